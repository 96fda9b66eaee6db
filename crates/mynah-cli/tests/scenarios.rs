//! Every scenario under `scenarios/` gives the output that lies beside it.
//!
//! `MYNAH_BLESS=1` rewrites the outputs. An output is an assertion: read what has changed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::{Ran, run};

#[test]
fn every_scenario_gives_its_expected_output() {
    let bless = std::env::var_os("MYNAH_BLESS").is_some();
    let mut failures = Vec::new();
    for scenario in scenarios() {
        let expected = scenario.with_extension("out");
        let found = play(&scenario);
        if bless && found.code == Some(0) {
            fs::write(&expected, &found.stdout).unwrap();
        }
        failures.extend(check(&found, &expected).map(|why| format!("{}\n{why}", shown(&scenario))));
    }
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n\n"));
}

/// A file is as good a log as memory is.
#[test]
fn scenarios_on_logs_give_the_same_on_a_file() {
    let on_logs = scenarios().into_iter().filter(|path| path.parent().unwrap().ends_with("log"));
    let folder = tempfile::tempdir().unwrap();
    for (index, scenario) in on_logs.enumerate() {
        let log = format!("sqlite:{}", folder.path().join(format!("{index}.db")).display());
        let on_file = run(["play", "--stable", "--log", &log, scenario.to_str().unwrap()]);
        let wrong = check(&on_file, &scenario.with_extension("out"));
        assert_eq!(wrong, None, "{}", shown(&scenario));
    }
}

/// Recording changes nothing but that there is a run.
#[test]
fn scenarios_give_the_same_with_and_without_a_log() {
    let without_run = |output: &str| {
        let lines = output.lines().map(|line| {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            line.as_object_mut().unwrap().remove("run_id");
            line
        });
        lines.collect::<Vec<_>>()
    };
    for topic in ["chat", "step", "generate", "session", "streams", "finalize", "errors", "budget"]
    {
        let of_topic =
            scenarios().into_iter().filter(|path| path.parent().unwrap().ends_with(topic));
        for scenario in of_topic {
            let path = scenario.to_str().unwrap();
            let kept = run(["play", "--stable", "--log", "memory:", path]);
            assert_eq!(kept.code, Some(0), "{}: {}", shown(&scenario), kept.stderr);
            let plain = fs::read_to_string(scenario.with_extension("out")).unwrap();
            assert_eq!(without_run(&kept.stdout), without_run(&plain), "{}", shown(&scenario));
        }
    }
}

#[test]
fn every_topic_has_scenarios_and_no_output_is_left_over() {
    let scenarios = scenarios();
    assert!(scenarios.len() >= 200, "only {} scenarios", scenarios.len());
    let topics = ["generate", "step", "chat", "tools", "finalize", "session", "streams", "options"];
    for topic in topics.into_iter().chain(["errors", "budget", "log"]) {
        let of_topic = scenarios.iter().filter(|path| path.parent().unwrap().ends_with(topic));
        assert!(of_topic.count() >= 5, "too few scenarios on {topic}");
    }
    for output in files("out") {
        assert!(output.with_extension("json").exists(), "{} has no scenario", shown(&output));
    }
}

/// Plays a scenario; those on logs with one.
fn play(scenario: &Path) -> Ran {
    let path = scenario.to_str().unwrap();
    if scenario.parent().unwrap().ends_with("log") {
        run(["play", "--stable", "--log", "memory:", path])
    } else {
        run(["play", "--stable", path])
    }
}

/// What is wrong with a run, if anything is.
fn check(found: &Ran, expected: &Path) -> Option<String> {
    if found.code != Some(0) || !found.stderr.is_empty() {
        return Some(format!("exit code {:?}, standard error: {}", found.code, found.stderr));
    }
    match fs::read_to_string(expected) {
        Ok(expected) => first_difference(&expected, &found.stdout),
        Err(error) => Some(format!("{}: {error}; MYNAH_BLESS=1 writes it", shown(expected))),
    }
}

/// The first line that differs, from shortly before the place where it does.
fn first_difference(expected: &str, found: &str) -> Option<String> {
    const NONE: &str = "(no such line)";
    let lines = |text: &str| text.split_terminator('\n').map(str::to_owned).collect::<Vec<_>>();
    let (expected, found) = (lines(expected), lines(found));
    let line =
        |lines: &[String], index: usize| lines.get(index).cloned().unwrap_or(NONE.to_owned());
    let index = (0..expected.len().max(found.len()))
        .find(|&index| line(&expected, index) != line(&found, index))?;
    let (expected, found) = (line(&expected, index), line(&found, index));
    let same = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let part =
        |line: &str| line.chars().skip(same.saturating_sub(60)).take(200).collect::<String>();
    let place = format!("line {}, column {}", index + 1, same + 1);
    Some(format!("{place}\n  expected: {}\n     found: {}", part(&expected), part(&found)))
}

fn scenarios() -> Vec<PathBuf> {
    files("json")
}

/// The files with this extension under `scenarios/`, in order.
fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(found_extension) if found_extension == extension => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
