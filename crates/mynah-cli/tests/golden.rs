//! `mynah golden` and `mynah check`: runs as regression tests.

use std::fs;

use serde_json::json;

use crate::common::{
    self, Store, lines,
    server::{Server, answer},
};

const SCRIPTS: &str = r#"{"scripts": [
  [{"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo $((6*7))"}}}, {"usage": {"input_tokens": 9, "output_tokens": 3}}, {"finish": "tool_calls"}],
  [{"text": "It is 42."}, {"finish": "stop"}]
]}"#;

/// Two other calls, and another answer.
const OTHER: &str = r#"{"scripts": [
  [{"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo $((6*7))"}}}, {"finish": "tool_calls"}],
  [{"tool_call": {"id": "c1", "name": "shell", "arguments": {"command": "rm -rf ."}}}, {"finish": "tool_calls"}],
  [{"text": "It may be 42."}, {"finish": "stop"}]
]}"#;

const AGENT: &str =
    "model = 'scripted:script.json'\nsystem = 'Compute.'\n[tools]\nshell = 'allow'\n";

/// A log with a golden beside it.
fn golden() -> (Store, String, String) {
    let store = Store::new();
    store.file("script.json", SCRIPTS);
    let (agent, goldens) = (store.file("agent.toml", AGENT), store.beside("goldens"));
    let run = store.run(&["run", &agent, "What is 6 times 7?"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "It is 42.\n"), "{}", run.stderr);
    let added = store.run(&["golden", "add", "last", "--name", "times", "--to", &goldens]);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    assert!(added.stdout.contains("times.ndjson"), "{}", added.stdout);
    (store, agent, goldens)
}

#[test]
fn a_golden_is_equal_until_the_prompt_changes_and_the_difference_is_shown() {
    let (store, agent, goldens) = golden();
    let same = common::run(["check", &agent, &goldens]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "times  ok\n"), "{}", same.stderr);
    store.file("agent.toml", &AGENT.replace("Compute.", "Guess."));
    let report = store.beside("report.xml");
    let changed = common::run(["check", &agent, &goldens, "--junit", &report]);
    assert_eq!(changed.code, Some(1));
    let expected = "\
times  differs
  record 1: run_started differs at about.params.system
  > about.params.system
      recorded: \"Compute.\"
      produced: \"Guess.\"
";
    assert_eq!(changed.stdout, expected);
    assert_eq!(changed.stderr, "mynah: 1 of 1 golden differs from what is expected\n");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("failures=\"1\"") && report.contains("&quot;Guess.&quot;"), "{report}");
    let twice = store.run(&["golden", "add", "last", "--name", "times", "--to", &goldens]);
    assert_eq!(twice.code, Some(4), "{}", twice.stderr);
}

#[test]
fn a_golden_has_the_name_of_a_file() {
    let (store, _, _) = golden();
    for name in ["../times", "", ".times", "a/b", "a b"] {
        let refused = store.run(&["golden", "add", "last", "--name", name]);
        assert_eq!(refused.code, Some(2), "{name}: {}", refused.stdout);
        let why = format!("{name:?} cannot be the name of a golden");
        assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    }
}

#[test]
fn expectations_are_checked_one_by_one() {
    let (store, agent, goldens) = golden();
    let table = [
        ("tools = ['shell']", None),
        ("tools = []", Some("tools: expected [], called [\"shell\"]")),
        ("calls = [{ tool = 'shell', arguments = { command = '6.7' } }]", None),
        (
            "calls = [{ tool = 'shell', arguments = { command = '^rm' } }]",
            Some("calls: no call of shell"),
        ),
        ("contains = ['42']\nmatches = '^It is \\d+'", None),
        ("contains = ['43']", Some("contains: the answer has no \"43\"")),
        ("lacks = ['42']", Some("lacks: the answer has \"42\"")),
        ("matches = '^42'", Some("matches: the answer does not match")),
        ("json = { '$.total' = 42 }", Some("json: the answer is not JSON")),
        ("schema = { type = 'object' }", Some("json: the answer is not JSON")),
        ("max_turns = 2\nmax_tokens = 12", None),
        ("max_turns = 1", Some("max_turns: at most 1 expected, 2 used")),
        ("max_tokens = 11", Some("max_tokens: at most 11 expected, 12 used")),
        ("max_seconds = 60", None),
        ("max_usd = 0.01", Some("max_usd: the price of")),
        ("max_seconds = 0", Some("max_seconds: at most 0 expected")),
    ];
    for (expectations, finding) in table {
        store.file("goldens/times.toml", expectations);
        let checked = common::run(["check", &agent, &goldens, "--json"]);
        let line = &lines(&checked)[0];
        let found = line["findings"][0]["message"].as_str();
        match finding {
            None => assert_eq!((checked.code, found), (Some(0), None), "{expectations}"),
            Some(finding) => {
                assert_eq!(checked.code, Some(1), "{expectations}");
                assert!(found.unwrap().starts_with(finding), "{expectations}: {found:?}");
            }
        }
    }
}

#[test]
fn dollars_are_rounded_where_a_limit_was_passed() {
    let store = Store::new();
    store.file("script.json", SCRIPTS);
    let model =
        "model = { name = 'scripted:script.json', price = { input = 8902.654889, output = 0 } }";
    let text = AGENT.replace("model = 'scripted:script.json'", model);
    let (agent, goldens) = (store.file("agent.toml", &text), store.beside("goldens"));
    assert_eq!(store.run(&["run", &agent, "What is 6 times 7?"]).code, Some(0));
    store.ok(&["golden", "add", "last", "--name", "times", "--to", &goldens]);
    store.file("goldens/times.toml", "max_usd = 0.01");
    let checked = common::run(["check", &agent, &goldens]);
    let told = "max_usd: at most 0.01 expected, 0.080124 used\n";
    assert!(checked.stdout.contains(told), "{}{}", checked.stdout, checked.stderr);
}

#[test]
fn an_expectation_that_cannot_be_checked_is_named_with_its_line_and_key() {
    let (store, agent, goldens) = golden();
    let table = [
        (
            "\nmax_turn = 1",
            "times.toml:2: max_turn: unknown key `max_turn`; did you mean `max_turns`?",
        ),
        ("matches = '('", "times.toml:1: matches: regex parse error"),
        (
            "\n[[calls]]\ntool = 'shell'\n[[calls]]\ntool = 'shell'\narguments = { command = '(' }",
            "times.toml:6: calls.1.arguments.command: regex parse error",
        ),
        ("[json]\nprice = 3", "times.toml:2: json.price: give a path as $.items[0].price"),
        ("schema = { type = 'strin' }", "times.toml:1: schema: "),
        ("pass_rate = 80", "times.toml:1: pass_rate: give a number from 0 to 1"),
        ("[judge]\nmodel = 'x:y'", "judge"),
        (
            "[judge]\nmodel = 'opnai:y'\nrubric = 'r'",
            "times.toml:2: judge.model: no adapter is named `opnai`; did you mean `openai`?",
        ),
        (
            "[judge]\nmodel = { name = 'openai:y', base_url = 'nowhere' }\nrubric = 'r'",
            "times.toml:2: judge.model: ",
        ),
        ("[redact]\ncustomer = '('", "times.toml:2: redact.customer: regex parse error"),
    ];
    for (expectations, told) in table {
        store.file("goldens/times.toml", expectations);
        let wrong = common::run(["check", &agent, &goldens]);
        assert_eq!(wrong.code, Some(1), "{expectations}");
        assert!(wrong.stdout.contains(told), "{expectations}: {}", wrong.stdout);
    }
}

#[test]
fn a_golden_that_cannot_be_read_fails_and_the_others_are_checked() {
    let (store, agent, goldens) = golden();
    store.file("goldens/broken.ndjson", "not a run\n");
    let report = store.beside("report.xml");
    let checked = common::run(["check", &agent, &goldens, "--junit", &report]);
    assert_eq!(checked.code, Some(1), "{}", checked.stderr);
    assert!(checked.stdout.starts_with("broken  cannot be checked\n"), "{}", checked.stdout);
    assert!(checked.stdout.ends_with("times  ok\n"), "{}", checked.stdout);
    assert!(checked.stderr.contains("1 of 2 goldens differs"), "{}", checked.stderr);
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("tests=\"2\" failures=\"1\""), "{report}");
}

#[test]
fn expectations_without_a_run_are_reported() {
    let (store, agent, goldens) = golden();
    store.file("goldens/time.toml", "contains = ['42']");
    store.file("goldens/redact.toml", "email = false");
    store.file("goldens/agent.toml", AGENT);
    let checked = common::run(["check", &agent, &goldens]);
    assert_eq!(checked.code, Some(1), "{}", checked.stderr);
    assert!(checked.stdout.starts_with("time  cannot be checked\n"), "{}", checked.stdout);
    assert!(checked.stdout.contains("time.toml: it has no run beside it"), "{}", checked.stdout);
    assert!(checked.stderr.contains("1 of 2 goldens differs"), "{}", checked.stderr);
}

#[test]
fn a_changed_tool_is_named_in_the_difference() {
    let (store, agent, goldens) = golden();
    store.file("agent.toml", &AGENT.replace("'allow'", "'ask'"));
    let changed = common::run(["check", &agent, &goldens]);
    assert!(changed.stdout.contains("> about.tools.shell.approval\n"), "{}", changed.stdout);
}

#[test]
fn a_script_begins_anew_with_each_golden_and_each_repetition() {
    let (store, agent, goldens) = golden();
    let added = store.run(&["golden", "add", "last", "--name", "again", "--to", &goldens]);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let check = ["check", &agent, &goldens, "--what-if", "--repeat", "3"];
    let often = common::run(check);
    assert_eq!(often.code, Some(0), "{}{}", often.stdout, often.stderr);
    let passed: Vec<&str> =
        often.stdout.lines().filter_map(|line| line.split(" passed").next()).collect();
    assert_eq!(passed, ["again  ok  3 of 3 runs", "times  ok  3 of 3 runs"]);
    // A script that is too short gets advice for people who write no Rust, too.
    let short = SCRIPTS.split_once("],\n").unwrap().0.to_owned() + "]]}";
    store.file("script.json", &short);
    let failed = common::run(["check", &agent, &goldens, "--what-if"]);
    assert!(failed.stdout.contains("call 2 and only 1 script(s)"), "{}", failed.stdout);
    assert!(
        failed.stdout.contains("add scripts; a program that is started again"),
        "{}",
        failed.stdout
    );
}

#[test]
fn a_call_that_the_check_rejected_is_noted_also_if_expectations_allow_it() {
    let (store, agent, goldens) = golden();
    store.file("goldens/times.toml", "tools = ['shell']");
    store.file("agent.toml", &AGENT.replace("'allow'", "'ask'"));
    store.file("script.json", &SCRIPTS.replace("$((6*7))", "999"));
    let said = "the golden has no decision about shell {\"command\":\"echo 999\"}, so the call was rejected";
    for mode in ["--what-if", "--live"] {
        let noted = common::run(["check", &agent, &goldens, mode]);
        assert_eq!(noted.stdout, format!("times  ok\n  {said}\n"), "{}", noted.stderr);
        assert_eq!(noted.code, Some(0));
        let json = &lines(&common::run(["check", &agent, &goldens, mode, "--json"]))[0];
        assert_eq!(json["notes"], json!([said]));
    }
}

#[test]
fn an_update_redacts_as_the_golden_was_redacted() {
    let store = Store::new();
    let script =
        |text: &str| format!(r#"{{"scripts": [[{{"text": "{text}"}}, {{"finish": "stop"}}]]}}"#);
    store.file("script.json", &script("C-123456 is open."));
    let (agent, goldens) = (store.file("agent.toml", AGENT), store.beside("goldens"));
    assert_eq!(store.run(&["run", &agent, "What of C-123456?"]).code, Some(0));
    let redact = ["--redact", "customer=C-[0-9]{6}"];
    let add = ["golden", "add", "last", "--name", "c", "--to", &goldens];
    let added = store.run(&[&add[..], &redact].concat());
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    // What is appended is an expectation, and no rule.
    let toml = fs::read_to_string(store.beside("goldens/c.toml")).unwrap();
    store.file("goldens/c.toml", &(toml + "contains = ['is']\n"));
    store.file("script.json", &script("C-654321 is closed."));
    let update = ["check", &agent, &goldens, "--live", "--update"];
    let updated = common::run(update);
    assert!(updated.stdout.starts_with("c  updated"), "{}{}", updated.stdout, updated.stderr);
    let kept = everything(&goldens);
    assert!(!kept.contains("C-654321"), "{kept}");
    // [customer-1] is the one of the question.
    assert!(kept.contains("[customer-2] is closed."), "{kept}");
    // The rules of a golden that is added anew are those of its file.
    fs::remove_file(store.beside("goldens/c.ndjson")).unwrap();
    let refused = store.run(&[&add[..], &redact].concat());
    assert_eq!(refused.code, Some(4), "{}", refused.stdout);
    assert!(refused.stderr.contains("it has `redact` rules"), "{}", refused.stderr);
    assert_eq!(store.run(&add).code, Some(0));
    assert!(!everything(&goldens).contains("C-123456"));
}

#[test]
fn what_if_asks_the_model_lets_records_answer_for_tools_and_updates_after_a_look() {
    let (store, agent, goldens) = golden();
    store.file("goldens/times.toml", "");
    // The tool does not run: the record answers, whatever it would print now.
    let same = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "times  ok\n"), "{}", same.stderr);
    store.file("script.json", OTHER);
    let changed = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!(changed.code, Some(1), "{}", changed.stderr);
    let expected = "\
times  differs
  other calls than recorded
  > call 2
      recorded: nothing
      produced: \"shell {\\\"command\\\":\\\"rm -rf .\\\"}\"
  the golden has no result for shell {\"command\":\"rm -rf .\"}, so the model read an error
  another answer
      recorded: \"It is 42.\"
      produced: \"It may be 42.\"
                    ^
";
    assert_eq!(changed.stdout, expected);
    let refused = common::run(["check", &agent, &goldens, "--update"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    store.file("script.json", &SCRIPTS.replace("It is 42.", "It may be 42."));
    let updated = common::run(["check", &agent, &goldens, "--what-if", "--update"]);
    assert_eq!(
        (updated.code, updated.stdout.lines().next()),
        (Some(0), Some("times  updated")),
        "{}",
        updated.stderr
    );
    let again = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "times  ok\n"), "{}", again.stderr);
}

#[test]
fn an_update_refuses_a_run_with_a_call_that_the_golden_has_no_result_for() {
    let (store, agent, goldens) = golden();
    // Other calls are allowed here, so that nothing but the missing result is wrong.
    store.file("goldens/times.toml", "tools = ['shell', 'shell']");
    store.file("script.json", &OTHER.replace("rm -rf .", "echo 43"));
    let before = everything(&goldens);
    let refused = common::run(["check", &agent, &goldens, "--what-if", "--update"]);
    assert_eq!(refused.code, Some(1), "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stdout.starts_with("times  differs\n"), "{}", refused.stdout);
    let why = "not updated: the golden has no result for shell {\"command\":\"echo 43\"}";
    assert!(refused.stdout.contains(why), "{}", refused.stdout);
    assert!(refused.stdout.contains("use --live --update"), "{}", refused.stdout);
    assert_eq!(everything(&goldens), before);
    let updated = common::run(["check", &agent, &goldens, "--live", "--update"]);
    assert_eq!(updated.code, Some(0), "{}{}", updated.stdout, updated.stderr);
    assert!(!everything(&goldens).contains("not in the recorded run"));
    // The check rejected a call without an approval; no person did.
    store.file("agent.toml", &AGENT.replace("'allow'", "'ask'"));
    store.file("script.json", &OTHER.replace("rm -rf .", "echo 44"));
    let refused = common::run(["check", &agent, &goldens, "--live", "--update"]);
    assert_eq!(refused.code, Some(1), "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stdout.contains("keep it with `mynah golden add`"), "{}", refused.stdout);
}

#[test]
fn an_update_keeps_the_golden_if_the_new_run_is_none() {
    let store = Store::new();
    let script =
        |text: &str| json!({"scripts": [[{"text": text}, {"finish": "stop"}]]}).to_string();
    // A Markdown fence is no misfit.
    store.file("script.json", &script("```json\n{\"n\": 1}\n```"));
    let schema = "{ type = 'object', properties = { n = { type = 'integer' } }, required = ['n'] }";
    let text = format!("model = 'scripted:script.json'\noutput = {{ schema = {schema} }}\n");
    let (agent, goldens) = (store.file("agent.toml", &text), store.beside("goldens"));
    let run = store.run(&["run", &agent, "Count."]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(
        store.run(&["golden", "add", "last", "--name", "n", "--to", &goldens]).code,
        Some(0)
    );
    store.file("goldens/n.toml", "lacks = ['7']\njson = { '$.n' = 1 }");
    let same = common::run(["check", &agent, &goldens]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "n  ok\n"), "{}", same.stderr);
    store.file("goldens/n.toml", "lacks = ['7']");
    let before = everything(&goldens);
    let table = [(r#"{"n": "two"}"#, "output: "), (r#"{"n": 7}"#, "lacks: the answer has \"7\"")];
    for (answer, why) in table {
        store.file("script.json", &script(answer));
        let refused = common::run(["check", &agent, &goldens, "--what-if", "--update"]);
        assert_eq!(refused.code, Some(1), "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stdout.starts_with("n  differs\n"), "{}", refused.stdout);
        assert!(refused.stdout.contains(why), "{}", refused.stdout);
        let told = "not updated: the new run does not do what is expected";
        assert!(refused.stdout.contains(told), "{}", refused.stdout);
        assert_eq!(everything(&goldens), before);
    }
    store.file("script.json", &script(r#"{"n": 2}"#));
    let updated = common::run(["check", &agent, &goldens, "--what-if", "--update"]);
    assert_eq!(updated.code, Some(0), "{}{}", updated.stdout, updated.stderr);
}

#[test]
fn the_model_reads_the_prompt_that_the_agent_has_now() {
    let (store, agent, goldens) = golden();
    store.file("goldens/times.toml", "");
    store.file("agent.toml", &AGENT.replace("Compute.", "Guess."));
    let updated = common::run(["check", &agent, &goldens, "--what-if", "--update"]);
    assert_eq!(updated.code, Some(0), "{}", updated.stderr);
    let imported = store.run(&["import", &store.beside("goldens/times.ndjson"), "--json"]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    let run = lines(&imported)[0]["run_id"].as_str().unwrap().to_owned();
    let shown = store.run(&["show", &run, "--json"]).stdout;
    assert!(shown.contains("Guess.") && !shown.contains("Compute."), "{shown}");
    let same = common::run(["check", &agent, &goldens]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "times  ok\n"), "{}", same.stderr);
}

#[test]
fn live_runs_the_tools_and_a_call_that_needs_approval_only_if_the_golden_has_it() {
    let (store, agent, goldens) = golden();
    store.file("goldens/times.toml", "");
    store.file("agent.toml", &AGENT.replace("'allow'", "'ask'"));
    let touched = store.beside("touched");
    let other = OTHER.replace("rm -rf .", &format!("touch {touched}"));
    store.file("script.json", &other);
    let live = common::run(["check", &agent, &goldens, "--live", "--json"]);
    assert_eq!(live.code, Some(1), "{}", live.stderr);
    assert_eq!(lines(&live)[0]["findings"][0]["changes"][0]["place"], "call 2");
    assert!(!fs::exists(&touched).unwrap());
    // No decision about the call is recorded, so an update does not help.
    for mode in ["--what-if", "--live"] {
        let update = common::run(["check", &agent, &goldens, mode, "--update"]);
        let why = "not updated: the golden has no decision about shell";
        assert!(update.stdout.contains(why), "{mode}: {}", update.stdout);
        assert!(
            update.stdout.contains("was rejected; make the run with `mynah run`"),
            "{}",
            update.stdout
        );
        assert!(!fs::exists(&touched).unwrap());
    }
    // Without approvals, every call runs.
    store.file("agent.toml", AGENT);
    store.file("script.json", SCRIPTS);
    let live = common::run(["check", &agent, &goldens, "--live"]);
    assert_eq!((live.code, live.stdout.as_str()), (Some(0), "times  ok\n"), "{}", live.stderr);
}

#[test]
fn repeated_runs_have_a_pass_rate_with_a_confidence_interval() {
    let (store, agent, goldens) = golden();
    // Two checks of ten runs each.
    let answers = (0..20).map(|run| if run % 10 % 4 == 3 { "No idea." } else { "42" });
    let server = Server::new(answers.map(|text| answer(text, "stop")));
    let model = format!("model = {{ name = 'openai-chat:m', base_url = '{}' }}", server.url);
    store.file("agent.toml", &AGENT.replace("model = 'scripted:script.json'", &model));
    store.file("goldens/times.toml", "tools = []\ncontains = ['42']");
    let check = ["check", &agent, &goldens, "--what-if", "--repeat", "10"];
    let check = |more: &[&str]| {
        let mut check = common::mynah(check.iter().chain(more).copied());
        check.env("OPENAI_API_KEY", "sk-none");
        common::feed(check, b"")
    };
    let often = check(&[]);
    assert_eq!(often.code, Some(1), "{}", often.stderr);
    let first = often.stdout.lines().next().unwrap();
    let rate = "times  differs  8 of 10 runs passed: 80% (95% confidence: 49% to 94%)";
    assert_eq!(first, rate);
    assert!(
        often.stdout.contains("the answer has no \"42\": \"No idea.\" (in 2 runs)"),
        "{}",
        often.stdout
    );
    store.file("goldens/times.toml", "tools = []\ncontains = ['42']\npass_rate = 0.8");
    let enough = check(&["--json", "--jobs", "1"]);
    assert_eq!(enough.code, Some(0), "{}", enough.stderr);
    let line = &lines(&enough)[0];
    assert_eq!((line["passed"].as_u64(), line["runs"].as_u64()), (Some(8), Some(10)));
    assert!((line["interval"][0].as_f64().unwrap() - 0.4902).abs() < 1e-3, "{line}");
    let pointless = common::run(["check", &agent, &goldens, "--repeat", "2"]);
    assert_eq!(pointless.code, Some(2), "{}", pointless.stderr);
}

#[test]
fn a_model_judges_an_answer_by_a_rubric() {
    let (store, agent, goldens) = golden();
    let verdict = |passes: bool| {
        let verdict = format!(r#"{{\"reason\": \"It says 42.\", \"passes\": {passes}}}"#);
        format!(r#"{{"scripts": [[{{"text": "{verdict}"}}, {{"finish": "stop"}}]]}}"#)
    };
    let rubric = "[judge]\nmodel = 'scripted:judge.json'\nrubric = 'The answer explains itself.'";
    store.file("goldens/times.toml", rubric);
    store.file("goldens/judge.json", &verdict(true));
    let good = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!((good.code, good.stdout.as_str()), (Some(0), "times  ok\n"), "{}", good.stderr);
    store.file("goldens/judge.json", &verdict(false));
    let bad = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!(bad.code, Some(1), "{}", bad.stderr);
    assert_eq!(bad.stdout, "times  differs\n  judge: It says 42.\n");
    // Records are free: no judge is asked.
    let records = common::run(["check", &agent, &goldens]);
    assert_eq!(records.code, Some(0), "{}", records.stderr);
}

/// The files of a folder, as one text, with the bytes that are hexadecimal in them.
fn everything(folder: &str) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let payloads = text.split('"').filter(|part| part.len() > 40);
        for payload in payloads.filter(|part| part.bytes().all(|b| b.is_ascii_hexdigit())) {
            let digits: Vec<u8> = payload.bytes().collect();
            let byte =
                |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let bytes: Vec<u8> = digits.chunks_exact(2).map(byte).collect();
            all += &String::from_utf8_lossy(&bytes);
        }
        all += &text;
    }
    all
}

#[test]
fn keys_addresses_and_what_rules_name_are_replaced_before_a_run_is_kept() {
    let store = Store::new();
    let call = r#"{"id": "c0", "name": "shell", "arguments": {"command": "echo to ada@example.org, C-123456"}}"#;
    let scripts = format!(
        r#"{{"scripts": [
            [{{"tool_call": {call}}}, {{"finish": "tool_calls"}}],
            [{{"text": "Sent to ada@exam"}}, {{"text": "ple.org and not to bob@example.org."}}, {{"finish": "stop"}}]
        ]}}"#
    );
    store.file("script.json", &scripts);
    let (agent, goldens) = (store.file("agent.toml", AGENT), store.beside("goldens"));
    let goal = "Mail ada@example.org about C-123456 with sk-abcdefghijklmnop1234.";
    let run = store.run(&["run", &agent, goal]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    fs::create_dir(&goldens).unwrap();
    store.file("goldens/redact.toml", "customer = 'C-[0-9]{6}'");
    let added = store.run(&["golden", "add", "last", "--name", "mail", "--to", &goldens]);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    assert!(
        added.stdout.contains("replaced: customer (1), email (2), key (1)"),
        "{}",
        added.stdout
    );
    let kept = everything(&goldens);
    for secret in ["ada@", "bob@", "C-123456", "sk-abc"] {
        assert!(!kept.contains(secret), "{secret} is in {kept}");
    }
    assert!(kept.contains("Sent to [email-1] and not to [email-2]."), "{kept}");
    let same = common::run(["check", &agent, &goldens]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "mail  ok\n"), "{}", same.stderr);
    let bad =
        store.run(&["golden", "add", "last", "--name", "x", "--to", &goldens, "--redact", "a=("]);
    assert_eq!(bad.code, Some(2), "{}", bad.stderr);
    let raw = ["golden", "add", "last", "--name", "raw", "--to", &goldens, "--no-redact"];
    assert_eq!(store.run(&raw).code, Some(0));
    assert!(everything(&goldens).contains("ada@example.org"));
}

/// Two files are read at once. Then both addresses in them, and the one in the prompt, get a mail.
const MAILS: &str = r#"{"scripts": [
  [{"tool_call": {"id": "c0", "name": "read_file", "arguments": {"path": "eve.txt"}}},
   {"tool_call": {"id": "c1", "name": "read_file", "arguments": {"path": "bob.txt"}}}, {"finish": "tool_calls"}],
  [{"tool_call": {"id": "c2", "name": "shell", "arguments": {"command": "echo to ops@example.org, bob@example.org"}}}, {"finish": "tool_calls"}],
  [{"text": "Ada, I mailed eve@example.org."}, {"finish": "stop"}]
]}"#;

#[test]
fn a_redacted_golden_equals_what_the_same_agent_does_again() {
    let store = Store::new();
    store.file("script.json", MAILS);
    store.file("eve.txt", "eve@example.org");
    store.file("bob.txt", "bob@example.org");
    let agent = "model = 'scripted:script.json'\nsystem = 'Report to ops@example.org.'\n\
                 tools = { files = { root = '.' }, shell = 'allow' }\n";
    let (agent, goldens) = (store.file("agent.toml", agent), store.beside("goldens"));
    assert_eq!(store.run(&["run", &agent, "I am ada@example.org"]).code, Some(0));
    let added = store.run(&["golden", "add", "last", "--name", "mail", "--to", &goldens]);
    assert!(added.stdout.contains("replaced: email (3)"), "{}{}", added.stdout, added.stderr);
    // Texts of the agent are in its file anyway.
    let kept = everything(&goldens);
    assert!(kept.contains("echo to ops@example.org, [email-3]"), "{kept}");
    let check = |expectations: &str, mode: &[&str], expected: &str| {
        store.file("goldens/mail.toml", expectations);
        let checked = common::run([&["check", &agent, &goldens], mode].concat());
        assert_eq!(checked.stdout, expected, "{mode:?} {expectations}: {}", checked.stderr);
    };
    // What the records answer to a model has names in it; tools that run return the texts themselves.
    let named =
        MAILS.replace("bob@example.org", "[email-3]").replace("eve@example.org", "[email-2]");
    for (script, mode) in [(MAILS, &[][..]), (&named, &["--what-if"]), (MAILS, &["--live"])] {
        store.file("script.json", script);
        check("", mode, "mail  ok\n");
        for other in ["bob", "ada", "ops", "new"] {
            let expected =
                format!("contains = ['eve@example.org']\nlacks = ['{other}@example.org']");
            check(&expected, mode, "mail  ok\n");
        }
        let missing = "contains = ['to eve@example.org']";
        let differs = "mail  differs\n  contains: the answer has no \"to eve@example.org\": \"Ada, I mailed [email-2].\"\n";
        check(missing, mode, differs);
    }
    let lacks = "mail  differs\n  lacks: the answer has \"eve@example.org\": \"Ada, I mailed [email-2].\"\n";
    check("lacks = ['eve@example.org']", &["--live"], lacks);
    // Another person than before.
    store.file("script.json", &MAILS.replace("bob@example.org\"", "eve@example.org\""));
    let other = common::run(["check", &agent, &goldens, "--live"]);
    assert!(
        other.stdout.contains("produced: \"echo to ops@example.org, [email-2]\""),
        "{}",
        other.stdout
    );
}

#[test]
fn a_replay_with_a_changed_agent_shows_what_it_would_do_differently() {
    let (store, agent, _) = golden();
    let replay = ["replay", "last", "--agent", &agent];
    assert_eq!(store.run(&replay).code, Some(0));
    store.file("agent.toml", &AGENT.replace("Compute.", "Guess."));
    let changed = store.run(&replay);
    assert_eq!(changed.code, Some(1), "{}", changed.stderr);
    assert!(changed.stdout.contains("\"Guess.\""), "{}", changed.stdout);
    let asked = store.run(&[&replay[..], &["--what-if"]].concat());
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    store.file("script.json", OTHER);
    let asked = store.run(&[&replay[..], &["--what-if"]].concat());
    assert_eq!(asked.code, Some(1), "{}", asked.stderr);
    assert!(
        asked.stdout.contains("> call 2") && asked.stdout.contains("rm -rf ."),
        "{}",
        asked.stdout
    );
}

#[test]
fn a_run_that_waits_or_failed_is_refused_as_a_golden() {
    let (store, agent, goldens) = golden();
    let add = ["golden", "add", "last", "--name", "other", "--to", &goldens];
    store.file("agent.toml", &AGENT.replace("'allow'", "'ask'"));
    assert_eq!(store.run(&["run", &agent, "Again."]).code, Some(3));
    let waits = store.run(&add);
    assert_eq!(waits.code, Some(2), "{}", waits.stderr);
    assert!(waits.stderr.contains("it has not ended; resume it first"), "{}", waits.stderr);
    store.file("agent.toml", AGENT);
    store.file("script.json", r#"{"scripts": [[{"error": "boom"}]]}"#);
    assert_eq!(store.run(&["run", &agent, "Again."]).code, Some(1));
    let failed = store.run(&add);
    assert_eq!(failed.code, Some(2), "{}", failed.stderr);
    assert!(failed.stderr.contains("it failed when it was recorded"), "{}", failed.stderr);
}

#[test]
fn a_model_that_cannot_be_reached_is_a_difference_of_each_golden_in_every_report() {
    let (store, agent, goldens) = golden();
    let model = "model = { name = 'openai:gpt-5.4-mini', base_url = 'http://127.0.0.1:9' }";
    store.file("agent.toml", &AGENT.replace("model = 'scripted:script.json'", model));
    let report = store.beside("report.xml");
    let mut check = common::mynah(["check", &agent, &goldens, "--what-if", "--junit", &report]);
    check.env("OPENAI_API_KEY", "sk-none");
    let failed = common::feed(check, b"");
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stdout.starts_with("times  differs\n  "), "{}", failed.stdout);
    assert!(!failed.stdout.contains("--base-url"), "{}", failed.stdout);
    assert!(fs::read_to_string(report).unwrap().contains("failures=\"1\""));
}

#[test]
fn a_later_turn_of_a_chat_is_kept_and_asked_again() {
    let store = Store::new();
    let answer = |text: &str| format!(r#"[{{"text": "{text}"}}, {{"finish": "stop"}}]"#);
    let scripts = |answers: &[&str]| {
        let answers: Vec<String> = answers.iter().map(|text| answer(text)).collect();
        format!(r#"{{"scripts": [{}]}}"#, answers.join(","))
    };
    store.file("script.json", &scripts(&["Hi Ada.", "You are Ada."]));
    let (agent, goldens) = (store.file("agent.toml", AGENT), store.beside("goldens"));
    let url = store.url();
    let chat = common::mynah(["chat", &agent, "--log", &url]);
    let chat = common::feed(chat, b"I am Ada.\nWho am I?\n");
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    store.file("script.json", &scripts(&["You are Ada."]));
    let again = store.run(&["replay", "last", "--agent", &agent, "--what-if"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let added = store.run(&["golden", "add", "last", "--name", "who", "--to", &goldens]);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    for answers in [&[][..], &["--what-if"]] {
        let same = common::run([&["check", &agent, &goldens], answers].concat());
        assert_eq!((same.code, same.stdout.as_str()), (Some(0), "who  ok\n"), "{}", same.stderr);
    }
}
