//! Goldens in Rust tests.

use std::path::Path;

use mynah::Engine;

use crate::{
    Agent,
    golden::{Check, Checked},
};

/// Checks an agent file against the goldens of a folder, from their records: no model is called and
/// no tool runs.
///
/// ```no_run
/// # mod tests {
/// #[tokio::test]
/// async fn the_agent_does_what_it_did() {
///     mynah_agent::testing::check("agent.toml", "goldens").await;
/// }
/// # }
/// ```
///
/// # Panics
/// If the agent or a golden cannot be read, or something differs: with every field that differs.
#[expect(clippy::panic, reason = "an assertion fails by panicking")]
pub async fn check(agent: impl AsRef<Path>, goldens: impl AsRef<Path>) {
    let agent = Agent::from_file(agent).await.unwrap_or_else(|error| panic!("{error}"));
    check_with(Check::new(&agent.engine, goldens.as_ref())).await;
}

/// Checks an engine against the goldens of a folder: one with the program's own tools, say.
///
/// # Panics
/// As [`check`].
pub async fn check_engine(engine: &Engine, goldens: impl AsRef<Path>) {
    check_with(Check::new(engine, goldens.as_ref())).await;
}

/// Checks goldens in any way: with the model, say, or several times.
///
/// ```no_run
/// use mynah_agent::{Agent, golden::{Answers, Check}, testing};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), mynah_agent::FileError> {
/// let agent = Agent::from_file("agent.toml").await?;
/// testing::check_with(Check::new(&agent.engine, "goldens").answers(Answers::WhatIf)).await;
/// # Ok(()) }
/// ```
///
/// # Panics
/// As [`check`].
#[expect(clippy::panic, reason = "an assertion fails by panicking")]
pub async fn check_with(check: Check) {
    let checked = check.run().await.unwrap_or_else(|error| panic!("{error}"));
    let failed: Vec<String> = checked.iter().filter(|golden| !golden.ok).map(told).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

fn told(golden: &Checked) -> String {
    let findings = golden.findings.iter().map(|finding| format!("\n{finding}"));
    format!("{}:{}", golden.name, findings.collect::<String>())
}
