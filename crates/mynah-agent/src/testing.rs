//! Goldens in Rust tests.

use std::path::Path;

use crate::{Agent, golden};

/// Checks an agent file against the goldens of a folder, from their records: no model is called and
/// no tool runs.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// mynah_agent::testing::check("agent.toml", "goldens").await;
/// # }
/// ```
///
/// # Panics
/// If the agent or a golden cannot be read, or something differs: with the first difference of each golden.
#[expect(clippy::panic, reason = "an assertion fails by panicking")]
pub async fn check(agent: impl AsRef<Path>, goldens: impl AsRef<Path>) {
    let agent = Agent::from_file(agent).await.unwrap_or_else(|error| panic!("{error}"));
    let checked =
        golden::check(&agent.engine, goldens.as_ref(), golden::Answers::Records, false).await;
    let checked = checked.unwrap_or_else(|error| panic!("{error}"));
    let failed = checked.iter().filter(|golden| !golden.findings.is_empty());
    let failed: Vec<String> =
        failed.map(|golden| format!("{}: {}", golden.name, golden.findings.join("\n"))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
