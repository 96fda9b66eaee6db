//! Mynah beside other libraries: `bench/`, a workspace of its own.

use std::{fs, process::Stdio};

use crate::{command, run};

/// Checks the formatting of the programs, which compiles nothing.
pub(crate) const FMT: &str = "cargo fmt --manifest-path bench/Cargo.toml --check";

/// The page, and the lines between which the measurements stand.
const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- measured by cargo xtask bench peers -->\n";
const END: &str = "<!-- end -->\n";

/// Measures, prints the tables and writes them into the page.
pub(crate) fn all() -> Result<(), String> {
    run("cargo build --release --manifest-path bench/Cargo.toml")?;
    let line = "cargo run --release --quiet --manifest-path bench/Cargo.toml";
    let output = command(line).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cannot start: {e}\nrepeat: {line}"))?;
    if !output.status.success() {
        return Err(format!("{}\nrepeat: {line}", output.status));
    }
    let measured = String::from_utf8_lossy(&output.stdout);
    println!("{measured}");
    let page = fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
    fs::write(PAGE, replace(&page, &measured)?).map_err(|e| format!("{PAGE}: {e}"))
}

/// The page with these measurements in the place of those before.
fn replace(page: &str, measured: &str) -> Result<String, String> {
    let parts = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?)));
    let (head, (_, tail)) =
        parts.ok_or_else(|| format!("{PAGE} has no place for measurements: {BEGIN}{END}"))?;
    Ok(format!("{head}{BEGIN}\n{}\n\n{END}{tail}", measured.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_measurements_take_the_place_of_the_old() {
        let page = format!("# Title\n\n{BEGIN}old\n{END}\nText\n");
        let once = replace(&page, "new\n").unwrap();
        assert_eq!(once, format!("# Title\n\n{BEGIN}\nnew\n\n{END}\nText\n"));
        assert_eq!(replace(&once, "new\n").unwrap(), once);
        assert!(replace("# Title\n", "new").is_err());
    }
}
