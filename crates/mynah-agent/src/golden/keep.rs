//! Keeping a run as a golden.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mynah::log::{Log, bundle};
use serde_json::Value;

use super::{Golden, GoldenError, RULES, Redacted, Rules, expect::Expect, redact, unusable};

/// A golden that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Added {
    /// The file of the run.
    pub file: PathBuf,
    /// What was replaced in it.
    pub redacted: Redacted,
}

/// Keeps a run of a log as a golden: writes `NAME.ndjson`, with texts replaced as the rules say, and `NAME.toml` for what it must do. A later turn
/// of a session is kept with the conversation before it.
///
/// # Errors
/// A name that is not one of a file; a run that cannot be read, has not ended, failed or cannot be redacted; a file that exists or cannot be
/// written.
pub async fn add(
    log: &dyn Log,
    run: &str,
    folder: &Path,
    name: &str,
    rules: &Rules,
) -> Result<Added, GoldenError> {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        let why = format!(
            "{name:?} cannot be the name of a golden; give letters, digits, `_`, `-` and `.`"
        );
        return Err(mynah::Error::invalid_option("name", "invalid").with_message(why).into());
    }
    let file = folder.join(format!("{name}.ndjson"));
    if file.exists() {
        return Err(unusable(&file, "it exists; choose another name, or remove it"));
    }
    let expectations = file.with_extension("toml");
    let (expect, own) = (Expect::read(&expectations, None)?, rules.since(&folder_rules(folder)?));
    let rules = match &expect.redact {
        Some(_) if !own.is_empty() => {
            let why = "it has `redact` rules; add yours there";
            return Err(unusable(&expectations, why));
        }
        _ => expect.rules(rules.clone()),
    };
    fs::create_dir_all(folder).map_err(|error| unusable(folder, error))?;
    let (bytes, redacted) = exported(log, run, &rules).await?;
    let golden = Golden::read(&file, io::Cursor::new(&bytes), Expect::default(), rules).await?;
    if let Some(error) = golden.done.misfit() {
        let why = format!("it did not do what it was asked for: {error}");
        return Err(GoldenError::Unfit { run: run.to_owned(), why });
    }
    fs::write(&file, bytes).map_err(|error| unusable(&file, error))?;
    let tools: Vec<Value> = golden.done.calls().map(|call| call.name.as_str().into()).collect();
    let known = fs::read_to_string(&expectations);
    let is_known = known.is_ok();
    let mut text = known.unwrap_or_else(|_| {
        format!(
            "# What the run must do; docs/regression-tests.md describes the keys.\n\
             # Without `tools` and `calls`, --what-if and --live expect the recorded calls with the same arguments.\n\
             # tools = {}\n",
            Value::from(tools)
        )
    });
    if !own.is_empty() {
        // A check that updates the golden applies them too. They stand above all tables, and begin none, so that keys can be added below.
        let rules = own.iter().map(|(name, rule)| format!("redact.{name:?} = {rule}\n"));
        text = format!("{}\n{text}", rules.collect::<String>());
    }
    if !is_known || !own.is_empty() {
        fs::write(&expectations, text).map_err(|error| unusable(&expectations, error))?;
    }
    Ok(Added { file, redacted })
}

/// The rules for all goldens of a folder.
pub(super) fn folder_rules(folder: &Path) -> Result<Rules, GoldenError> {
    Rules::read(&folder.join(RULES))
}

/// The file of a run, with texts replaced.
pub(super) async fn exported(
    log: &dyn Log,
    run: &str,
    rules: &Rules,
) -> Result<(Vec<u8>, Redacted), GoldenError> {
    let mut bytes = Vec::new();
    let redacted = match redact::redacted(log, run, rules).await? {
        Some((copy, redacted)) => {
            bundle::export(&copy, run, &mut bytes).await?;
            redacted
        }
        None => {
            bundle::export(log, run, &mut bytes).await?;
            Redacted::default()
        }
    };
    Ok((bytes, redacted))
}
