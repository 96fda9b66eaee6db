//! What must be right before a release.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{command, run};

/// The crates that are published, each after those that it needs.
const CRATES: &[&str] = &[
    "mynah-data",
    "mynah-log",
    "mynah-postgres",
    "mynah-sqlite",
    "mynah-step",
    "mynah-adapters",
    "mynah-macros",
    "mynah-mcp",
    "mynah-tools",
    "mynah",
    "mynah-agent",
    "mynah-server",
    "mynah-cli",
];

/// Members of a package's manifest that crates.io shows or requires.
const MEMBERS: &[&str] =
    &["description", "license", "repository", "keywords", "categories", "rust-version"];

/// Every crate is in the list above, can be published, and packs what it should and nothing else.
pub(crate) fn packages() -> Result<(), String> {
    let folders = fs::read_dir("crates").map_err(|e| format!("crates: {e}"))?;
    let found: BTreeSet<String> =
        folders.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let listed: BTreeSet<String> = CRATES.iter().map(ToString::to_string).collect();
    if found != listed {
        return Err(format!("xtask/src/release.rs lists {listed:?}; the crates are {found:?}"));
    }
    for name in CRATES {
        let manifest = Path::new("crates").join(name).join("Cargo.toml");
        let text = read(&manifest)?;
        for member in MEMBERS {
            let has = |line: &str| {
                line.strip_prefix(member).is_some_and(|rest| rest.starts_with([' ', '.']))
            };
            if !text.lines().any(has) {
                return Err(format!("{}: no {member}", manifest.display()));
            }
        }
        check_order(name, &text)?;
        let line = format!("cargo package --list --allow-dirty -p {name}");
        let output = command(&line).output().map_err(|e| format!("cannot start cargo: {e}"))?;
        if !output.status.success() {
            return Err(format!("{}\nrepeat: {line}", String::from_utf8_lossy(&output.stderr)));
        }
        let files = String::from_utf8_lossy(&output.stdout);
        let strange = files.lines().find(|file| file.ends_with(".db") || file.ends_with(".log"));
        if let Some(file) = strange {
            return Err(format!("{name} would be published with {file}"));
        }
        println!("    {name}: {} files", files.lines().count());
    }
    Ok(())
}

/// A crate may need only those before it. Needs of its tests may lead further, by path alone.
fn check_order(name: &str, manifest: &str) -> Result<(), String> {
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let Some(needed) = CRATES.iter().find(|other| {
            line.strip_prefix(**other).is_some_and(|rest| rest.starts_with([' ', '.']))
        }) else {
            continue;
        };
        let place = |of: &str| CRATES.iter().position(|other| *other == of);
        let by_path = section == "[dev-dependencies]" && line.contains("path = ");
        if section.contains("dependencies") && place(needed) >= place(name) && !by_path {
            return Err(format!("{name} needs {needed}, which is published after it: {line}"));
        }
    }
    Ok(())
}

/// Checks everything that can be checked without publishing, and prints the rest.
pub(crate) fn dry_run() -> Result<(), String> {
    let manifest = read(Path::new("Cargo.toml"))?;
    let member = |name: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.map(|value| value.trim_matches('"').to_owned())
            .ok_or(format!("Cargo.toml has no {name}"))
    };
    let (version, repository) = (member("version")?, member("repository")?);
    let mut problems = Vec::new();
    if repository.contains(".example/") {
        problems
            .push("Cargo.toml: `repository` is a placeholder; set the public address".to_owned());
    }
    for line in manifest.lines().filter(|line| line.contains("path = \"crates/")) {
        if !line.contains(&format!("version = \"{version}\"")) {
            problems.push(format!("Cargo.toml: not version {version}: {line}"));
        }
    }
    let changelog = read(Path::new("CHANGELOG.md"))?;
    let heading = changelog.lines().find(|line| line.starts_with("## ")).unwrap_or_default();
    if !heading.starts_with(&format!("## {version} – 20")) {
        problems.push(format!(
            "CHANGELOG.md: the first heading is {heading:?}; it must be \"## {version} – \" and the date"
        ));
    }
    let output = |line: &str| {
        let output = command(line).output().map_err(|e| format!("cannot start git: {e}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if !output("git status --porcelain")?.is_empty() {
        problems.push("there are changes that are not committed".to_owned());
    }
    if !output(&format!("git tag --list v{version}"))?.is_empty() {
        problems.push(format!("the tag v{version} exists already; raise the version"));
    }
    packages()?;
    // What follows compiles every package, so it is left until the rest is right.
    if !problems.is_empty() {
        return Err(format!("not ready:\n{}", problems.join("\n")));
    }
    run("cargo package --workspace --exclude xtask")?;
    println!("\nTo release {version}:\n  cargo xtask test && cargo xtask hygiene --install");
    for name in CRATES {
        println!("  cargo publish -p {name}");
    }
    println!("  git tag -s v{version} -m 'Mynah {version}' && git push origin v{version}");
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_needs_a_later_one_is_refused() {
        let needs =
            |section: &str, line: &str| check_order("mynah-log", &format!("[{section}]\n{line}\n"));
        assert!(needs("dependencies", "mynah-step.workspace = true").is_err());
        assert!(needs("dev-dependencies", "mynah = { workspace = true }").is_err());
        assert!(needs("dev-dependencies", "mynah = { path = \"../mynah\" }").is_ok());
        assert!(needs("dependencies", "mynah-data.workspace = true").is_ok());
    }
}
