//! Where and with what it was measured.

use std::{fs, process::Command};

use crate::Result;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// A list of the machine, the compiler and the versions.
pub fn describe() -> Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cpu = cpu.trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism()?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let memory = memory.split_whitespace().nth(1).ok_or("no memory")?.parse::<f64>()? / 1_048_576.0;
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    let (date, kernel) = (output("date", &["-u", "+%F"])?, output("uname", &["-sr"])?);
    let (rustc, names) = (
        output("rustc", &["--version"])?,
        ["rig-agent", "genai", "async-openai", "reqwest", "rusqlite"],
    );
    let versions = names.map(|name| Ok(format!("{name} {}", version(name)?)));
    let versions = versions.into_iter().collect::<Result<Vec<_>>>()?.join(", ");
    Ok(format!(
        "- {date}; {cpu}, {cores} cores, {memory:.0} GiB, {kernel}; load at the end {load}\n- {rustc}, `--release`\n- {versions}\n"
    ))
}

/// The version of a crate in the lock file.
fn version(name: &str) -> Result<String> {
    let lock = fs::read_to_string(format!("{FOLDER}/Cargo.lock"))?;
    let entry = format!("name = \"{name}\"\nversion = \"");
    let version = lock.split_once(&entry).and_then(|(_, rest)| rest.split('"').next());
    Ok(version.ok_or_else(|| format!("Cargo.lock has no {name}"))?.to_owned())
}

/// How many crates a program with each library compiles, without what is only for build scripts.
pub fn crates() -> Result<Vec<(&'static str, usize)>> {
    let programs = [
        ("reqwest", "reqwest and serde_json, no library"),
        ("mynah", "**Mynah**"),
        ("mynah,log", "**Mynah**, with its log in SQLite"),
        ("async-openai", "async-openai"),
        ("genai", "genai"),
        ("rig", "rig"),
    ];
    let count = |(features, label)| {
        let manifest = format!("{FOLDER}/Cargo.toml");
        let args = ["tree", "--manifest-path", &manifest, "--edges", "normal", "--prefix", "none"];
        let features = ["--no-default-features", "--features", features];
        let tree = output("cargo", &[&args[..], &features].concat())?;
        let mut names: Vec<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
        names.sort_unstable();
        names.dedup();
        // This program is the first of them.
        Ok((label, names.len() - 1))
    };
    programs.into_iter().map(count).collect()
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
