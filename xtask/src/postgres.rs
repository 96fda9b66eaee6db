//! PostgreSQL: its log with a real server, which the tests start in a temporary folder.

use std::env;

use crate::{is_installed, run, skip};

pub(crate) fn all() -> Result<(), String> {
    let on_ci = env::var_os("CI").is_some_and(|value| !value.is_empty());
    if !is_installed("psql") && !on_ci {
        skip("postgres", "PostgreSQL is not installed; on Debian: apt-get install postgresql");
        return Ok(());
    }
    run("cargo test --quiet -p mynah-postgres")
}
