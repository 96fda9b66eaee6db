//! The second verifier, in Python, against the library.

use std::{env, fs, path::Path, process::Stdio};

use crate::{BUILD, MYNAH, command, is_installed, run, skip};

/// Compares the verifier that shares no code with the library: on the vectors of the format, on the
/// bundles of a test of `mynah-log`, on a run with tools, on a redacted one, and on a changed one.
pub(crate) fn all() -> Result<(), String> {
    if !is_installed("python3") {
        skip("verifier", "`python3` is missing");
        return Ok(());
    }
    run(BUILD)?;
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
    let (text, root) = with_root(&sealed)?;
    let verify = |file: &Path, root: &str| {
        format!("python3 tools/verify.py {} --root {root}", file.display())
    };
    run(&verify(&sealed, &root))?;
    same_fingerprint(&sealed)?;
    refused(&verify(&sealed, &"0".repeat(64)), 1, "nothing proves")?;
    // A file of two runs: the root must be that of each.
    let (other, other_root) = with_root(&folder.join("good-cancelled.ndjson"))?;
    let both = env::temp_dir().join(format!("mynah-two-runs-{}.ndjson", std::process::id()));
    let done = fs::write(&both, format!("{other}{text}")).map_err(failed).and_then(|()| {
        run(&format!("python3 tools/verify.py {}", both.display()))?;
        [root, other_root]
            .iter()
            .try_for_each(|root| refused(&verify(&both, root), 1, "nothing proves"))
    });
    fs::remove_file(&both).map_err(failed)?;
    done
}

/// A bundle, and the root of the tree that has its seal.
fn with_root(bundle: &Path) -> Result<(String, String), String> {
    let text = fs::read_to_string(bundle).map_err(|e| format!("{}: {e}", bundle.display()))?;
    let root = text.rsplit_once("\"root\":\"").and_then(|(_, rest)| rest.get(..64));
    let root = root.ok_or("the vector has no root")?.to_owned();
    Ok((text, root))
}

/// Both verifiers print the same fingerprint of a sealed run.
fn same_fingerprint(bundle: &Path) -> Result<(), String> {
    let stdout = |line: String| {
        let done = command(&line).output().map_err(|e| format!("cannot start {line}: {e}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let file = bundle.display();
    let ours = stdout(format!("{MYNAH} verify --json {file}"))?;
    let ours = ours.split_once("\"fingerprint\":").and_then(|(_, rest)| rest.split('"').nth(1));
    let ours = ours.ok_or(format!("`mynah verify --json {file}` shows no fingerprint"))?;
    let theirs = stdout(format!("python3 tools/verify.py {file}"))?;
    if theirs.contains(ours) {
        return Ok(());
    }
    Err(format!("{file}: mynah has the fingerprint {ours}, and tools/verify.py prints {theirs}"))
}

fn verify_exported(file: &Path, log: &Path) -> Result<(), String> {
    let (file, path) = (file.display(), log.display());
    let log = format!("--log sqlite:{path}");
    let mynah = MYNAH;
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

/// Runs a command that must exit with this code and this text in its output.
fn refused(line: &str, code: i32, says: &str) -> Result<(), String> {
    let done = command(line).output().map_err(|e| format!("cannot start {line}: {e}"))?;
    let told = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(code) && told.contains(says) {
        return Ok(());
    }
    Err(format!("{line}: expected exit code {code} and {says:?}, not {}: {told}", done.status))
}
