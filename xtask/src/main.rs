//! Development tasks, run as `cargo xtask <command>`.
//!
//! Continuous integration runs `cargo xtask test`, and `cargo xtask hygiene` beside it.

mod api;
mod docs;
mod hygiene;
mod interop;
mod mcp;
mod peers;
mod release;
mod verifier;

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use std::time::Instant;
use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    thread,
};

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  test [--quick] [--install]
                   Run everything a change must pass (--quick: only formatting, links, lints and the fast tests).
                   With --install, or if the variable CI is set, missing system packages are installed
  hygiene [--install]
                   Check licences, advisories, features, unused dependencies, spelling, the public API, the minimum
                   Rust version and other platforms, with the tools that are installed; --install installs the others
  public-api       Compare the public API with docs/public-api.txt; with MYNAH_BLESS=1, write that file
  docs             Check the links of the documentation, and build the book (mdbook) and the API documentation
  release --dry-run
                   Check versions, changelog and packages, and print what a release takes
  bench [NAME]     Run the benchmarks, or only the bench target NAME
  bench peers      Measure Mynah beside other libraries, and write docs/benchmarks.md (builds bench/, which takes minutes)
  interop          Call servers that others wrote: a fake upstream (npm), a gateway and a real model (PyPI)
  mcp              Run the conformance suite of MCP, and call its servers that others wrote (npm, PyPI)
  browser          Run the tests of the inspector's pages in Chromium, with a check of their accessibility (npm)
  cast             Record the terminal that the guide shows: docs/terminal.cast and docs/images/terminal.svg
  nightly          Run the property tests with 10,000 cases each, 5,000 killed processes, 1,000 killed workers and every
                   cut of a connection on PostgreSQL, a million records, and the fuzz targets
";

/// System packages that the tests need and cargo cannot fetch: program, Debian package, reason, and whether nothing works without it.
const NEEDS: &[(&str, &str, &str, bool)] = &[
    ("cc", "build-essential", "it links every binary", true),
    ("python3", "python3", "it verifies runs without this code", false),
    ("npm", "npm", "it installs the MCP conformance suite and servers that others wrote", false),
    ("chromedriver", "chromium-driver", "it shows the inspector's pages", false),
    (
        "chromium-headless-shell",
        "chromium-headless-shell",
        "it shows them in three quarters of the time",
        false,
    ),
    ("psql", "postgresql", "the log in PostgreSQL is tested with a real server", false),
];

/// A step of `cargo xtask test`: its name and what it does.
type Stage = (&'static str, fn() -> Result<(), String>);

/// The slowest tests, by their files: they kill processes, wait for leases or run thousands of cases.
const SLOW_TESTS: &[&str] = &[
    "bundle",
    "cast",
    "conformance",
    "crash",
    "crash_everywhere",
    "demo",
    "effects",
    "exported_page",
    "failures",
    "fit_properties",
    "full_disk",
    "handover",
    "heartbeat",
    "hardening",
    "hostile",
    "inspector",
    "inspector_details",
    "inspector_hidden",
    "inspector_runs",
    "inspector_views",
    "killed",
    "killed_approval",
    "killed_server",
    "leases",
    "outage",
    "outlived",
    "outside",
    "paused_consumers",
    "properties",
    "real",
    "record",
    "roles",
    "session_runs",
    "tamper",
    "terminal",
    "wire",
];

const QUICK_STAGES: &[Stage] = &[
    ("fmt", fmt),
    ("links", docs::links),
    ("listed", unlisted_tests),
    ("clippy", || run("cargo clippy --workspace --all-targets --all-features -- -D warnings")),
    ("test", quick_test),
];
const STAGES: &[Stage] = &[
    ("fmt", fmt),
    ("links", docs::links),
    ("listed", unlisted_tests),
    ("contract", contract),
    ("clippy", || run("cargo clippy --workspace --all-targets --all-features -- -D warnings")),
    ("features", features),
    ("test", test),
    ("verifier", verifier::all),
    ("aimock", interop::aimock),
    ("mcp", mcp::conformance),
    ("api", api::all),
    ("examples", examples),
    ("doc", docs::api),
    ("packages", release::packages),
    ("wasm", wasm),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Task<'a> {
    Help,
    Test { quick: bool, install: bool },
    Hygiene { install: bool },
    PublicApi,
    Docs,
    Release,
    Bench { name: Option<&'a str> },
    Peers,
    Interop,
    Mcp,
    Browser,
    Cast,
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
        ["test"] => Ok(Task::Test { quick: false, install: false }),
        ["test", "--quick"] => Ok(Task::Test { quick: true, install: false }),
        ["test", "--install"] => Ok(Task::Test { quick: false, install: true }),
        ["test", "--quick", "--install"] | ["test", "--install", "--quick"] => {
            Ok(Task::Test { quick: true, install: true })
        }
        ["hygiene"] => Ok(Task::Hygiene { install: false }),
        ["hygiene", "--install"] => Ok(Task::Hygiene { install: true }),
        ["public-api"] => Ok(Task::PublicApi),
        ["docs"] => Ok(Task::Docs),
        ["release", "--dry-run"] => Ok(Task::Release),
        ["release"] => Err("a release is published by hand; `--dry-run` prints how".into()),
        ["bench"] => Ok(Task::Bench { name: None }),
        ["bench", "peers"] => Ok(Task::Peers),
        ["bench", name] if !name.starts_with('-') => Ok(Task::Bench { name: Some(name) }),
        ["interop"] => Ok(Task::Interop),
        ["mcp"] => Ok(Task::Mcp),
        ["browser"] => Ok(Task::Browser),
        ["cast"] => Ok(Task::Cast),
        ["nightly"] => Ok(Task::Nightly),
        ["test" | "hygiene" | "docs" | "release" | "bench" | "interop" | "mcp" | "nightly", ..] => {
            Err(format!("cannot run `{}`", args.join(" ")))
        }
        [command, ..] => Err(format!("unknown command `{command}`")),
    }
}

fn perform(task: Task<'_>) -> Result<(), String> {
    // As cargo says now: a binary from a copied target folder was compiled elsewhere.
    let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&here).join("..");
    env::set_current_dir(&root).map_err(|e| format!("cannot enter {}: {e}", root.display()))?;
    match task {
        Task::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Task::Test { quick, install } => {
            let on_ci = env::var_os("CI").is_some_and(|value| !value.is_empty());
            set_up(install || on_ci)?;
            COMPLETE.store(install || on_ci, Relaxed);
            if quick {
                return run_stages(QUICK_STAGES);
            }
            interop::prefetch();
            run_stages(STAGES)
        }
        Task::Hygiene { install } => hygiene::all(install),
        Task::PublicApi => hygiene::public_api(false),
        Task::Docs => {
            run_stages(&[("links", docs::links), ("book", docs::book), ("api", docs::api)])
        }
        Task::Release => release::dry_run(),
        Task::Bench { name: None } => run("cargo bench --workspace"),
        Task::Bench { name: Some(name) } => run(&format!("cargo bench --workspace --bench {name}")),
        Task::Peers => peers::all(),
        Task::Interop => interop::all(),
        Task::Mcp => mcp::all(),
        Task::Browser => browser(),
        Task::Cast => run_with("MYNAH_CAST", "1", "cargo test -p mynah-cli cast::"),
        Task::Nightly => {
            let line = "cargo test --workspace --profile bench -- properties:: record:: session_runs:: handover:: outside:: effects::";
            run_with("PROPTEST_CASES", "10000", line)?;
            run_with("MYNAH_KILLS", "5000", "cargo test -p mynah-cli crash::")?;
            let all = [
                ("MYNAH_POSTGRES_KILLS", "1000"),
                ("MYNAH_POSTGRES_CUTS", "1"),
                ("MYNAH_WORKER_RUNS", "500"),
                ("MYNAH_WORKER_KILLS", "150"),
            ];
            let all = all.map(|(name, value)| (name, value.to_owned()));
            run_in(&all, "cargo test -p mynah-postgres -- failures:: workers::")?;
            run("cargo bench -p mynah-sqlite --bench million")?;
            fuzz()
        }
    }
}

/// Checks the formatting, that of the benchmarks beside other libraries included.
fn fmt() -> Result<(), String> {
    run("cargo fmt --all --check")?;
    run(peers::FMT)
}

/// Runs the stages up to the first that fails, and prints how long each took.
#[expect(clippy::disallowed_methods, reason = "only for show")]
fn run_stages(stages: &[Stage]) -> Result<(), String> {
    let begin = Instant::now();
    let mut times = String::new();
    for (name, stage) in stages {
        println!("==> {name}");
        let start = Instant::now();
        let done = stage();
        let took = start.elapsed().as_secs_f64();
        times += &format!("{name} {took:.1}s  ");
        if let Err(problem) = done {
            println!("==> {name}: failed after {took:.1}s");
            return Err(format!("stage `{name}` failed: {problem}"));
        }
        println!("==> {name}: done in {took:.1}s");
    }
    let skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let without = match skipped.as_slice() {
        [] => String::new(),
        some => format!("; skipped: {}", some.join(", ")),
    };
    println!("    {}", times.trim_end());
    let (count, took) = (stages.len(), begin.elapsed().as_secs_f64());
    println!("==> all {count} stages passed in {took:.1}s{without}");
    Ok(())
}

/// What was skipped, for the last line.
static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether peers that cannot be installed fail their stage: with `--install` and in CI.
static COMPLETE: AtomicBool = AtomicBool::new(false);

/// How a stage ends without its peers.
fn without_peers() -> Result<(), String> {
    match COMPLETE.load(Relaxed) {
        true => Err("what it needs could not be installed; is there a network?".to_owned()),
        false => Ok(()),
    }
}

/// Notes that something was not checked, and why.
fn skip(what: &str, why: &str) {
    let mut skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if !skipped.iter().any(|other| other == what) {
        println!("    {what} skipped: {why}");
        skipped.push(what.to_owned());
    }
}

/// Looks for system packages. Without `install` it changes nothing: what is missing is named.
fn set_up(install: bool) -> Result<(), String> {
    for (program, package, why, vital) in NEEDS.iter().filter(|need| !is_installed(need.0)) {
        let advice = format!(
            "`{program}` is missing ({why}); on Debian: apt-get install {package}, or repeat with --install as root"
        );
        match (install, vital) {
            (true, _) if is_debian_root() => {
                run("apt-get update")?;
                run(&format!("apt-get install -y --no-install-recommends {package}"))?;
            }
            (true, _) | (false, true) => return Err(advice),
            (false, false) => println!("note: {advice}"),
        }
    }
    Ok(())
}

/// The programs and examples of the workspace, with the features that the tests have. After the stage `test` this compiles nothing.
const BUILD: &str = "cargo build --quiet --workspace --all-features --bins --examples";

/// The command, as the tests compile it.
const MYNAH: &str = "target/debug/mynah";

/// What runs at the same time. The programs `pages` and `postgres` wait for a browser and a server for much of their time.
const PARTS: [&str; 4] = ["--lib --bins --test [!p]*", "--test pages", "--test postgres", "--doc"];

/// The options for the examples that have tests. `--examples` would link all others a second time.
fn tested_examples() -> Result<String, String> {
    let manifest = "crates/mynah/Cargo.toml";
    let text = fs::read_to_string(manifest).map_err(|e| format!("{manifest}: {e}"))?;
    let examples = text.split("[[example]]").skip(1).filter(|text| text.contains("test = true"));
    let names = examples.filter_map(|example| example.split('"').nth(1));
    Ok(names.map(|name| format!(" --example {name}")).collect())
}

/// Runs all tests in one build: another set of packages or features would compile the workspace again.
///
/// Peers that tests can use are installed first and named in the environment. The property tests have the same few cases each time,
/// so that a change fails by its own fault; `nightly` looks for new ones.
fn test() -> Result<(), String> {
    let mut line = String::from("cargo test --workspace --all-features --no-fail-fast");
    let on_ci = env::var_os("CI").is_some_and(|value| !value.is_empty());
    let mut parts = PARTS.map(str::to_owned).to_vec();
    parts[0] += &tested_examples()?;
    if !is_installed("psql") && !on_ci {
        skip("postgres", "PostgreSQL is not installed; on Debian: apt-get install postgresql");
        line += " --exclude mynah-postgres";
        parts.retain(|part| part != "--test postgres");
    }
    let fixed =
        [("PROPTEST_CASES", "64"), ("PROPTEST_RNG_SEED", "1"), ("RUST_TEST_THREADS", TEST_THREADS)];
    let mut variables = fixed.map(|(name, value)| (name, value.to_owned())).to_vec();
    variables.extend(mcp::peers().map(|folder| ("MYNAH_MCP_PEERS", folder.display().to_string())));
    variables.extend(axe().map(|file| ("MYNAH_AXE", file)));
    run_in(&variables, &format!("{line} --no-run"))?;
    let parts: Vec<String> = parts.iter().map(|part| format!("{line} {part}")).collect();
    let Err(failures) = side_by_side(&variables, &parts) else { return Ok(()) };
    let problem = failures.iter().map(|(problem, _)| &**problem).collect::<Vec<_>>().join("\n");
    let failed = failures.iter().flat_map(|(_, output)| failed_tests(output)).collect::<Vec<_>>();
    if failed.is_empty() || !failed.iter().all(|test| is_repeatable(test)) {
        return Err(problem);
    }
    run_in(&variables, &format!("{line} --tests -- --exact {}", failed.join(" ")))?;
    for test in failed {
        skip(&format!("the failure of {test}"), "it passed alone; mend it, its output is above");
    }
    Ok(())
}

/// The tests that `cargo test` reports as failed.
fn failed_tests(output: &str) -> impl Iterator<Item = &str> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test "));
    lines.filter_map(|line| line.strip_suffix(" ... FAILED"))
}

/// Whether a failed test is run once more, alone: it drives a browser or a terminal, whose speed no test decides.
fn is_repeatable(test: &str) -> bool {
    ["exported_page::", "inspector", "terminal::"].iter().any(|prefix| test.starts_with(prefix))
}

/// Refuses a file of tests that is part of no program: it would never run.
fn unlisted_tests() -> Result<(), String> {
    for folder in fs::read_dir("crates").map_err(|e| format!("crates: {e}"))?.flatten() {
        let tests = folder.path().join("tests");
        let manifest = folder.path().join("Cargo.toml");
        let manifest = fs::read_to_string(&manifest).map_err(|e| format!("{manifest:?}: {e}"))?;
        if !manifest.contains("autotests = false") {
            continue;
        }
        let names = source_names(&tests)?;
        let read = |name: &String| fs::read_to_string(tests.join(name).with_extension("rs"));
        let sources: Vec<String> = names.iter().flat_map(read).collect();
        for name in names {
            let line = format!("mod {name};");
            let is_listed = sources.iter().any(|source| source.contains(&line));
            if !is_listed && !manifest.contains(&format!("name = \"{name}\"")) {
                let tests = tests.display();
                return Err(format!(
                    "{tests}/{name}.rs never runs; add `mod {name};` to a program of these tests, such as {tests}/all.rs"
                ));
            }
        }
    }
    Ok(())
}

/// How many tests of a program run at the same time. Most tests wait more than they compute.
const TEST_THREADS: &str = "6";

/// Runs these commands at the same time. Prints the output of each when it ends.
fn side_by_side(variables: &[(&str, String)], lines: &[String]) -> Result<(), Vec<Failure>> {
    let results = thread::scope(|scope| {
        let mut running = Vec::new();
        for line in lines {
            running.push(scope.spawn(move || captured(variables, line)));
        }
        running.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let panicked = |_| Err(("the thread of a command panicked".to_owned(), String::new()));
    let failures: Vec<Failure> =
        results.into_iter().filter_map(|result| result.unwrap_or_else(panicked).err()).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// What went wrong with a command, and what it printed.
type Failure = (String, String);

/// Runs a command and prints its output when it ends.
fn captured(variables: &[(&str, String)], line: &str) -> Result<(), Failure> {
    let failed = |e| (format!("cannot start: {e}\nrepeat: {line}"), String::new());
    let (mut output, writer) = io::pipe().map_err(failed)?;
    let mut command = command(line);
    command.envs(variables.iter().map(|(key, value)| (key, value))).stdin(Stdio::null());
    command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = command.spawn().map_err(failed)?;
    // It holds the other ends of the pipe.
    drop(command);
    let mut text = Vec::new();
    output.read_to_end(&mut text).map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(&text).and_then(|()| stdout.flush());
    let problem = || format!("{status}\nrepeat: {line}");
    let printed = || String::from_utf8_lossy(&text).into_owned();
    if status.success() { Ok(()) } else { Err((problem(), printed())) }
}

/// The script that checks the accessibility of pages.
fn axe() -> Option<String> {
    let line = "npm install --no-audit --no-fund --loglevel error axe-core@4.14.0";
    let npm = interop::fetched("npm", "axe-npm", line)?;
    Some(npm.join("node_modules/axe-core/axe.min.js").display().to_string())
}

/// Runs the tests of the inspector's pages in Chromium.
fn browser() -> Result<(), String> {
    let Some(axe) = axe() else { return without_peers() };
    let line = "cargo test -p mynah-cli --all-features --test pages";
    run_in(&[("MYNAH_AXE", axe)], line)
}

/// Runs the tests except the slow ones and the doctests.
fn quick_test() -> Result<(), String> {
    let mut line = String::from("cargo test --workspace --all-features --lib --bins --tests --");
    for name in SLOW_TESTS {
        line += &format!(" --skip {name}::");
    }
    let variables =
        [("PROPTEST_CASES", "16"), ("PROPTEST_RNG_SEED", "1"), ("RUST_TEST_THREADS", TEST_THREADS)];
    run_in(
        &variables.map(|(name, value)| (name, value.to_owned())),
        &(line + " --skip mistakes_are_reported"),
    )
}

/// Checks that the library compiles without features, and with its default ones. `hygiene` checks each feature of each crate alone.
fn features() -> Result<(), String> {
    run("cargo clippy -p mynah --no-default-features -- -D warnings")?;
    run("cargo check --quiet -p mynah")
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_debian_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    Path::new("/etc/debian_version").exists() && id.is_ok_and(|id| id.stdout == b"0\n")
}

/// Runs every example. Each must succeed and print something.
fn examples() -> Result<(), String> {
    run(BUILD)?;
    for name in source_names(Path::new("examples"))? {
        println!("    {name}");
        let line = format!("cargo run -p mynah --all-features --example {name}");
        let mut command = command(&format!("target/debug/examples/{name}"));
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output();
        let output = output.map_err(|e| format!("cannot start {name}: {e}"))?;
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
    let tests: HashSet<&str> =
        sources.split("fn ").filter_map(|rest| rest.split('(').next()).collect();
    for page in ["docs/contract.md", "docs/record-contract.md"] {
        let text = fs::read_to_string(page).map_err(|e| format!("{page}: {e}"))?;
        // In backticks, every second piece; a test is named as a sentence.
        let named = text.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 2);
        let gone: Vec<&str> = named.filter(|name| !tests.contains(name)).collect();
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

/// Gives each fuzz target five minutes, where there is something to fuzz with.
fn fuzz() -> Result<(), String> {
    let toolchains = command("rustup toolchain list").output();
    let nightly =
        toolchains.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nightly"));
    if !nightly || !is_installed("cargo-fuzz") {
        skip(
            "fuzz targets",
            "they need `rustup toolchain install nightly` and `cargo install cargo-fuzz`; \
             `cargo test hostile::` runs some of each",
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

fn wasm() -> Result<(), String> {
    let target = "wasm32-unknown-unknown";
    let output = command("rustc --print sysroot").output();
    let output = output.map_err(|e| format!("cannot start rustc: {e}"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout);
    let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(target);
    if !installed.exists() {
        skip("wasm", "the target is missing: `rustup target add wasm32-unknown-unknown`");
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

fn run_with(key: &'static str, value: &str, line: &str) -> Result<(), String> {
    run_in(&[(key, value.to_owned())], line)
}

/// Runs a command with these environment variables.
fn run_in(variables: &[(&str, String)], line: &str) -> Result<(), String> {
    let words = variables.iter().map(|(key, value)| format!("{key}='{value}' "));
    let repeat = words.collect::<String>() + line;
    finish(command(line).envs(variables.iter().map(|(key, value)| (key, value))), &repeat)
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
        assert_eq!(parse(&["test"]), Ok(Task::Test { quick: false, install: false }));
        assert_eq!(parse(&["test", "--quick"]), Ok(Task::Test { quick: true, install: false }));
        assert_eq!(parse(&["test", "--install"]), Ok(Task::Test { quick: false, install: true }));
        assert_eq!(parse(&["hygiene", "--install"]), Ok(Task::Hygiene { install: true }));
        assert_eq!(parse(&["public-api"]), Ok(Task::PublicApi));
        assert_eq!(parse(&["docs"]), Ok(Task::Docs));
        assert_eq!(parse(&["release", "--dry-run"]), Ok(Task::Release));
        assert_eq!(parse(&["bench", "--help"]), Ok(Task::Help));
        let name = Some("append");
        assert_eq!(parse(&["bench", "append"]), Ok(Task::Bench { name }));
        assert_eq!(parse(&["bench", "peers"]), Ok(Task::Peers));
        assert_eq!(parse(&["interop"]), Ok(Task::Interop));
        assert_eq!(parse(&["mcp"]), Ok(Task::Mcp));
        assert_eq!(parse(&["browser"]), Ok(Task::Browser));
        assert_eq!(parse(&["cast"]), Ok(Task::Cast));
        assert_eq!(parse(&["nightly"]), Ok(Task::Nightly));
    }

    #[test]
    fn peers_that_are_missing_fail_a_complete_run() {
        assert_eq!(without_peers(), Ok(()));
        COMPLETE.store(true, Relaxed);
        assert!(without_peers().is_err());
        COMPLETE.store(false, Relaxed);
    }

    #[test]
    fn only_tests_of_pages_and_terminals_are_run_again() {
        let output = "test inspector_runs::a_page ... ok\ntest terminal::a_key ... FAILED\ntest log::an_append ... FAILED\n";
        let failed: Vec<&str> = failed_tests(output).collect();
        assert_eq!(failed, ["terminal::a_key", "log::an_append"]);
        assert_eq!(
            failed.iter().map(|test| is_repeatable(test)).collect::<Vec<_>>(),
            [true, false]
        );
    }

    #[test]
    fn a_mistyped_command_or_option_is_refused() {
        for args in [&["tset"][..], &["test", "--fast"], &["bench", "a", "b"], &["release"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
