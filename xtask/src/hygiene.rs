//! Checks by tools of others, which take minutes to install and seconds to run.

use std::{fs, path::Path};

use crate::{command, is_installed, run, skip};

/// A tool: the program, the crate that has it, and the command.
const TOOLS: &[(&str, &str, &str)] = &[
    ("cargo-deny", "cargo-deny", "cargo deny --all-features check bans licenses sources"),
    // Alone: it fetches a database, which needs a network.
    ("cargo-deny", "cargo-deny", "cargo deny --all-features check advisories"),
    (
        "cargo-hack",
        "cargo-hack",
        "cargo hack check --each-feature --no-dev-deps --workspace --exclude xtask",
    ),
    ("cargo-machete", "cargo-machete", "cargo machete crates xtask"),
    ("typos", "typos-cli", "typos"),
];

/// Systems other than this one for which the library must compile, without the features that need their C compiler.
const PLATFORMS: &[&str] = &["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];

/// The public API of `mynah` and of the crates whose items it re-exports, one item a line.
const API: &str = "docs/public-api.txt";

/// The listing of `mynah` has the names of what it re-exports; those of the others have the methods and fields.
const API_OF: &[&str] = &[
    "mynah",
    "mynah-data",
    "mynah-log",
    "mynah-step",
    "mynah-adapters",
    "mynah-mcp",
    "mynah-sqlite",
    "mynah-tools",
];

pub(crate) fn all(install: bool) -> Result<(), String> {
    let mut failed = Vec::new();
    let mut note = |name: &str, done: Result<(), String>| {
        if let Err(problem) = done {
            println!("==> {name}: failed");
            failed.push(format!("{name}: {problem}"));
        }
    };
    for (program, krate, line) in TOOLS {
        println!("==> {line}");
        note(
            line,
            available(program, krate, install).and_then(|is| if is { run(line) } else { Ok(()) }),
        );
    }
    println!("==> cargo-semver-checks");
    note("cargo-semver-checks", semver(install));
    println!("==> cargo-public-api");
    note("cargo-public-api", public_api(install));
    println!("==> minimum Rust version");
    note("minimum Rust version", minimum(install));
    println!("==> platforms");
    note("platforms", platforms(install));
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Whether a tool is installed, after installing it if allowed.
fn available(program: &str, krate: &str, install: bool) -> Result<bool, String> {
    if is_installed(program) {
        return Ok(true);
    }
    if install {
        return run(&format!("cargo install --locked {krate}")).map(|()| true);
    }
    skip(program, &format!("cargo install --locked {krate}, or repeat with --install"));
    Ok(false)
}

/// The API against that of the last release.
fn semver(install: bool) -> Result<(), String> {
    let tag = command("git describe --tags --abbrev=0 --match v*").output();
    let tag = tag.map_err(|e| format!("cannot start git: {e}"))?;
    if !tag.status.success() {
        skip("cargo-semver-checks", "there is no release to compare with");
        return Ok(());
    }
    if !available("cargo-semver-checks", "cargo-semver-checks", install)? {
        return Ok(());
    }
    let tag = String::from_utf8_lossy(&tag.stdout);
    run(&format!("cargo semver-checks --workspace --exclude xtask --baseline-rev {}", tag.trim()))
}

/// The public API against the file that is checked in. `MYNAH_BLESS=1` writes the file.
pub(crate) fn public_api(install: bool) -> Result<(), String> {
    if !available("cargo-public-api", "cargo-public-api", install)? {
        return Ok(());
    }
    let mut listing = String::new();
    for name in API_OF {
        let line = format!("cargo public-api -p {name} --all-features -sss");
        let output = command(&line).output().map_err(|e| format!("cannot start: {e}"))?;
        if !output.status.success() {
            return Err(format!("{}\nrepeat: {line}", String::from_utf8_lossy(&output.stderr)));
        }
        let items = without_std_paths(&String::from_utf8_lossy(&output.stdout));
        listing += &format!("# {name}\n\n{items}\n");
    }
    if std::env::var_os("MYNAH_BLESS").is_some() {
        return fs::write(API, &listing).map_err(|e| format!("{API}: {e}"));
    }
    if fs::read_to_string(API).is_ok_and(|kept| kept == listing) {
        return Ok(());
    }
    Err(format!(
        "the public API is not that of {API}; see the change with: MYNAH_BLESS=1 cargo xtask public-api, git diff {API}"
    ))
}

/// Replaces `core::option::Option` by `Option`: where the standard library keeps an item inside is no part of our API,
/// and differs from one compiler to the next.
fn without_std_paths(listing: &str) -> String {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut short = String::with_capacity(listing.len());
    let mut rest = listing;
    while let Some(start) = rest.find(is_path) {
        let end = rest[start..].find(|c| !is_path(c)).map_or(rest.len(), |length| start + length);
        let path = &rest[start..end];
        let is_std = ["core::", "alloc::", "std::"].iter().any(|root| path.starts_with(root));
        // The item begins with the first capital: `Arc`, or `Arc::new`.
        let item = path
            .split_inclusive("::")
            .skip_while(|part| is_std && !part.starts_with(char::is_uppercase));
        short.push_str(&rest[..start]);
        let before = short.len();
        short.extend(item);
        if short.len() == before {
            short.push_str(path);
        }
        rest = &rest[end..];
    }
    // The same type: newer compilers print its other name.
    (short + rest).replace("Err = Infallible", "Err = never")
}

/// Everything compiles with the oldest Rust that `Cargo.toml` promises.
fn minimum(install: bool) -> Result<(), String> {
    let manifest = fs::read_to_string("Cargo.toml").map_err(|e| format!("Cargo.toml: {e}"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version = version.ok_or("Cargo.toml has no rust-version")?.trim_matches('"');
    let installed = command(&format!("cargo +{version} --version")).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        let line = format!("rustup toolchain install {version} --profile minimal");
        if !install {
            skip("minimum Rust version", &line);
            return Ok(());
        }
        run(&line)?;
    }
    run(&format!(
        "cargo +{version} check --workspace --all-features --locked --target-dir target/minimum"
    ))
}

fn platforms(install: bool) -> Result<(), String> {
    let output = command("rustc --print sysroot").output();
    let output = output.map_err(|e| format!("cannot start rustc: {e}"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    for target in PLATFORMS {
        let line = format!("rustup target add {target}");
        if !Path::new(&sysroot).join("lib/rustlib").join(target).exists() {
            if !install {
                skip(target, &line);
                continue;
            }
            run(&line)?;
        }
        run(&format!("cargo check -p mynah -p mynah-log --no-default-features --target {target}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_does_not_depend_on_where_the_standard_library_keeps_its_items() {
        let old = "pub fn mynah::A::b(&self, alloc::sync::Arc<dyn mynah_log::Log>) -> core::option::Option<u8>\n";
        let new = old.replace("alloc::sync::Arc", "alloc::rcs::arc::Arc");
        assert_eq!(
            without_std_paths(old),
            "pub fn mynah::A::b(&self, Arc<dyn mynah_log::Log>) -> Option<u8>\n"
        );
        assert_eq!(without_std_paths(&new), without_std_paths(old));
        assert_eq!(
            without_std_paths("pub fn alloc::sync::Arc<A>::open(&self)"),
            "pub fn Arc<A>::open(&self)"
        );
        assert_eq!(
            without_std_paths("type A::Err = core::convert::Infallible"),
            "type A::Err = never"
        );
        assert_eq!(without_std_paths("std::env::var"), "std::env::var");
    }
}
