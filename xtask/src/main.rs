//! Development tasks, run as `cargo xtask <command>`.
//!
//! `cargo xtask test` is everything a change must pass; continuous integration runs nothing else.

mod interop;
mod mcp;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use std::{env, fs};

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  test [--quick]   Run everything a change must pass (--quick: no contract index, verifier, aimock, MCP, examples, docs or wasm)
  bench [NAME]     Run the benchmarks, or only the bench target NAME
  interop          Call servers that others wrote: a fake upstream (npm), a gateway and a real model (PyPI)
  mcp              Run the conformance suite of MCP, and call its servers that others wrote (npm, PyPI)
  nightly          Run the property tests with 10,000 cases each, 5,000 killed processes, a million records, and the
                   fuzz targets
";

/// What the tests need and cargo cannot fetch: program, Debian package, why.
const NEEDS: &[(&str, &str, &str)] = &[
    ("cc", "build-essential", "links every binary"),
    ("python3", "python3", "verifies runs without this code"),
];

/// A step of `cargo xtask test`: its name and what it does.
type Stage = (&'static str, fn() -> Result<(), String>);

const QUICK_STAGES: &[Stage] = &[
    ("set-up", set_up),
    ("fmt", || run("cargo fmt --all --check")),
    ("clippy", clippy),
    // The same cases each time, so that a change fails by its own fault; `nightly` looks for new ones.
    ("test", || run_with("PROPTEST_RNG_SEED", "1", "cargo test --workspace --all-features")),
];
const SLOW_STAGES: &[Stage] = &[
    ("contract", contract),
    ("verifier", verifier),
    ("aimock", interop::aimock),
    ("mcp", mcp::all),
    ("examples", examples),
    ("doc", doc),
    ("wasm", wasm),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Task<'a> {
    Help,
    Test { quick: bool },
    Bench { name: Option<&'a str> },
    Interop,
    Mcp,
    Nightly,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (message, code) = match parse(&args).map(perform) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => (failure, 1),
        Err(misuse) => (format!("{misuse}; see `cargo xtask --help`"), 2),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

fn parse<'a>(args: &[&'a str]) -> Result<Task<'a>, String> {
    match *args {
        [] | ["help" | "-h" | "--help"] | [_, "-h" | "--help"] => Ok(Task::Help),
        ["test"] => Ok(Task::Test { quick: false }),
        ["test", "--quick"] => Ok(Task::Test { quick: true }),
        ["bench"] => Ok(Task::Bench { name: None }),
        ["bench", name] if !name.starts_with('-') => Ok(Task::Bench { name: Some(name) }),
        ["interop"] => Ok(Task::Interop),
        ["mcp"] => Ok(Task::Mcp),
        ["nightly"] => Ok(Task::Nightly),
        ["test" | "bench" | "interop" | "nightly", ..] => {
            Err(format!("cannot run `{}`", args.join(" ")))
        }
        [command, ..] => Err(format!("unknown command `{command}`")),
    }
}

fn perform(task: Task<'_>) -> Result<(), String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    env::set_current_dir(root).map_err(|e| format!("cannot enter {}: {e}", root.display()))?;
    match task {
        Task::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Task::Test { quick } => {
            let slow = if quick { &[] } else { SLOW_STAGES };
            QUICK_STAGES.iter().chain(slow).try_for_each(timed)
        }
        Task::Bench { name: None } => run("cargo bench --workspace"),
        Task::Bench { name: Some(name) } => run(&format!("cargo bench --workspace --bench {name}")),
        Task::Interop => interop::all(),
        Task::Mcp => mcp::all(),
        Task::Nightly => {
            let line = "cargo test --workspace --release --test properties --test record --test session_runs \
                        --test handover --test outside --test effects";
            run_with("PROPTEST_CASES", "10000", line)?;
            run_with("MYNAH_KILLS", "5000", "cargo test -p mynah-cli --test crash")?;
            run("cargo bench -p mynah-log --bench million")?;
            fuzz()
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "only for show")]
fn timed((name, stage): &Stage) -> Result<(), String> {
    println!("==> {name}");
    let start = Instant::now();
    stage().map_err(|e| format!("stage `{name}` failed: {e}"))?;
    println!("==> {name}: done in {:.1}s", start.elapsed().as_secs_f64());
    Ok(())
}

fn set_up() -> Result<(), String> {
    for (program, package, why) in NEEDS.iter().filter(|need| !is_installed(need.0)) {
        if !is_debian_root() {
            return Err(format!(
                "`{program}` is missing ({why}); on Debian it is in the package `{package}`\n\
                 repeat: cargo xtask test"
            ));
        }
        run("apt-get update")?;
        let install = "apt-get install -y --no-install-recommends";
        run(&format!("{install} {package}"))?;
    }
    Ok(())
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_debian_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    Path::new("/etc/debian_version").exists() && id.is_ok_and(|id| id.stdout == b"0\n")
}

fn clippy() -> Result<(), String> {
    run("cargo clippy --workspace --all-targets --all-features -- -D warnings")?;
    // What only a feature uses is not there without it.
    run("cargo clippy -p mynah --no-default-features -- -D warnings")
}

fn examples() -> Result<(), String> {
    for name in source_names(Path::new("examples"))? {
        println!("    {name}");
        let line =
            format!("cargo run --quiet -p mynah --features http,mcp,sqlite --example {name}");
        let mut command = command(&line);
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output();
        let output = output.map_err(|e| format!("cannot start cargo: {e}"))?;
        let problem = match output.status {
            status if !status.success() => status.to_string(),
            _ if output.stdout.is_empty() => "nothing on stdout".into(),
            _ => continue,
        };
        print!("{}", String::from_utf8_lossy(&output.stdout));
        return Err(format!("{problem}\nrepeat: {line} </dev/null"));
    }
    Ok(())
}

/// Every test that the pages of the contract name must exist.
fn contract() -> Result<(), String> {
    let mut sources = String::new();
    collect_sources(Path::new("crates"), &mut sources)?;
    for page in ["docs/contract.md", "docs/record-contract.md"] {
        let text = fs::read_to_string(page).map_err(|e| format!("{page}: {e}"))?;
        // In backticks, every second piece; a test is named as a sentence.
        let named = text.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 2);
        let gone: Vec<&str> =
            named.filter(|name| !sources.contains(&format!("fn {name}("))).collect();
        if !gone.is_empty() {
            return Err(format!("{page} names tests that do not exist: {}", gone.join(", ")));
        }
    }
    Ok(())
}

/// The text of every `.rs` file below `folder`.
fn collect_sources(folder: &Path, sources: &mut String) -> Result<(), String> {
    let failed = |path: &Path, e| format!("{}: {e}", path.display());
    for entry in fs::read_dir(folder).map_err(|e| failed(folder, e))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_sources(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *sources += &fs::read_to_string(&path).map_err(|e| failed(&path, e))?;
        }
    }
    Ok(())
}

/// The verifier that shares no code with the library must agree with it: on the vectors of the format, on the bundles that a test of
/// `mynah-log` judges too, on a run with tools, on one that was redacted, and that a changed run is not what it was.
fn verifier() -> Result<(), String> {
    run("python3 tools/verify.py --vectors docs/format.md")?;
    verify_vectors(Path::new("crates/mynah-log/tests/vectors"))?;
    let folder = env::temp_dir().join(format!("mynah-verifier-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let done = verify_exported(&folder.join("run.ndjson"), &folder.join("runs.db"));
    let cleared = fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()));
    done.and(cleared)
}

/// The name of a vector begins with what it is.
fn verify_vectors(folder: &Path) -> Result<(), String> {
    let failed = |e| format!("cannot list {}: {e}", folder.display());
    let mut count = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let code = match name.split_once('-').map(|(class, _)| class) {
            Some("good") => 0,
            Some("corrupt") => 1,
            Some("too_new") => 3,
            _ => return Err(format!("{}: the name does not say what it is", path.display())),
        };
        refused(&format!("python3 tools/verify.py {}", path.display()), code, "")?;
        count += 1;
    }
    println!("    {count} vectors are what they say");
    let sealed = folder.join("good-sealed.ndjson");
    let text = fs::read_to_string(&sealed).map_err(failed)?;
    let root = text.rsplit_once("\"root\":\"").and_then(|(_, rest)| rest.get(..64));
    let root = root.ok_or("the vector has no root")?;
    let verify = format!("python3 tools/verify.py {} --root", sealed.display());
    run(&format!("{verify} {root}"))?;
    refused(&format!("{verify} {}", "0".repeat(64)), 1, "nothing proves")
}

fn verify_exported(file: &Path, log: &Path) -> Result<(), String> {
    let (file, path) = (file.display(), log.display());
    let log = format!("--log sqlite:{path}");
    let mynah = "cargo run --quiet -p mynah-cli --";
    let verify = format!("python3 tools/verify.py {file}");
    let scenario = "scenarios/tools/values_become_text_or_json.json";
    let played = command(&format!("{mynah} play {log} {scenario}")).stdout(Stdio::null()).status();
    if !played.is_ok_and(|status| status.success()) {
        return Err(format!("cannot play {scenario}"));
    }
    run(&format!("{mynah} export last {log} -o {file}"))?;
    run(&verify)?;
    let failed = |e| format!("{file}: {e}");
    let whole = fs::read_to_string(file.to_string()).map_err(failed)?;
    run(&format!("{mynah} redact last --kind tool_completed --reason test --yes {log}"))?;
    run(&format!("{mynah} export last {log} -o {file} --force"))?;
    run(&verify)?;
    let more = whole.replacen("\"fact\":{", "\"fact\":{\"note\":\"more than its bytes say\",", 1);
    fs::write(file.to_string(), more).map_err(failed)?;
    refused(&verify, 1, "line 2: the fact that is shown is not")?;
    // A digit of the last payload: it is not what was committed to any more.
    let at = whole.rfind("\"payload\":\"").ok_or("the bundle has no payload")? + 20;
    let other = if whole.as_bytes()[at] == b'0' { "1" } else { "0" };
    let line = whole[..at].lines().count();
    let mut changed = whole;
    changed.replace_range(at..=at, other);
    fs::write(file.to_string(), &changed).map_err(failed)?;
    refused(&verify, 1, &format!("line {line}: the body is not"))?;
    fs::write(file.to_string(), changed.replacen("{\"record\"", "{record", 1)).map_err(failed)?;
    refused(&verify, 1, "line 2: ")?;
    refused(&format!("python3 tools/verify.py {path}"), 2, "not a file that `mynah export` wrote")
}

/// Runs a command that has to end with this code, and to say so much of why.
fn refused(line: &str, code: i32, says: &str) -> Result<(), String> {
    let done = command(line).output().map_err(|e| format!("cannot start {line}: {e}"))?;
    let told = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(code) && told.contains(says) {
        return Ok(());
    }
    Err(format!("{line}: expected exit code {code} and {says:?}, not {}: {told}", done.status))
}

/// Gives each fuzz target five minutes, where there is something to fuzz with.
fn fuzz() -> Result<(), String> {
    let toolchains = command("rustup toolchain list").output();
    let nightly =
        toolchains.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nightly"));
    if !nightly || !is_installed("cargo-fuzz") {
        println!(
            "    fuzz targets skipped: they need `rustup toolchain install nightly` and \
             `cargo install cargo-fuzz`; `cargo test --test hostile` runs some of each"
        );
        return Ok(());
    }
    for target in source_names(Path::new("fuzz/fuzz_targets"))? {
        run(&format!("cargo +nightly fuzz run {target} -- -max_total_time=300"))?;
    }
    Ok(())
}

/// The names of the `.rs` files in `folder`, sorted; none if there is no such folder.
fn source_names(folder: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    if folder.exists() {
        let failed = |e| format!("cannot list {}: {e}", folder.display());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            names.extend(file.to_string_lossy().strip_suffix(".rs").map(String::from));
        }
    }
    names.sort();
    Ok(names)
}

fn doc() -> Result<(), String> {
    let line = "cargo doc --workspace --all-features --no-deps";
    run_with("RUSTDOCFLAGS", "-D warnings", line)
}

fn wasm() -> Result<(), String> {
    let target = "wasm32-unknown-unknown";
    let output = command("rustc --print sysroot").output();
    let output = output.map_err(|e| format!("cannot start rustc: {e}"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout);
    let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(target);
    if !installed.exists() {
        println!("    skipped: target not installed");
        return Ok(());
    }
    run(&format!("cargo build -p mynah-data --target {target}"))
}

/// The command written as `line`, its words split at spaces.
///
/// It does not inherit what `cargo run` set for this process: build scripts that watch those
/// variables would rerun each time `cargo test` and `cargo xtask test` alternate.
fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    for (key, _) in env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

fn run(line: &str) -> Result<(), String> {
    finish(&mut command(line), line)
}

fn run_with(key: &str, value: &str, line: &str) -> Result<(), String> {
    let repeat = format!("{key}='{value}' {line}");
    finish(command(line).env(key, value), &repeat)
}

/// Runs `command`; an error says how to `repeat` it.
fn finish(command: &mut Command, repeat: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{status}\nrepeat: {repeat}")),
        Err(e) => Err(format!("cannot start: {e}\nrepeat: {repeat}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_recognised() {
        assert_eq!(parse(&[]), Ok(Task::Help));
        assert_eq!(parse(&["test"]), Ok(Task::Test { quick: false }));
        assert_eq!(parse(&["test", "--quick"]), Ok(Task::Test { quick: true }));
        assert_eq!(parse(&["bench", "--help"]), Ok(Task::Help));
        let name = Some("append");
        assert_eq!(parse(&["bench", "append"]), Ok(Task::Bench { name }));
        assert_eq!(parse(&["interop"]), Ok(Task::Interop));
        assert_eq!(parse(&["mcp"]), Ok(Task::Mcp));
        assert_eq!(parse(&["nightly"]), Ok(Task::Nightly));
    }

    #[test]
    fn a_mistyped_command_or_option_is_refused() {
        for args in [&["tset"][..], &["test", "--fast"], &["bench", "a", "b"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
