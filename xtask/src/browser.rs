//! The inspector's pages in a real Chromium.

use crate::{interop::fetched, run_with};

/// What checks the accessibility of pages.
const NPM: &str = "npm install --no-audit --no-fund --loglevel error axe-core@4.14.0";

/// Runs the tests that need a browser, with what checks accessibility.
pub(crate) fn all() -> Result<(), String> {
    let Some(npm) = fetched("npm", "axe-npm", NPM) else { return Ok(()) };
    let axe = npm.join("node_modules/axe-core/axe.min.js").display().to_string();
    run_with(
        "MYNAH_AXE",
        &axe,
        "cargo test --quiet -p mynah-cli --test exported_page --test inspector",
    )
}
