//! Agent files with the verbs that take them.

use std::fs;

use crate::common::{Store, feed, lines, mynah, run};

#[test]
fn three_answers_make_an_agent_file_that_can_be_checked() {
    let store = Store::new();
    let file = store.beside("new.toml");
    let mut new = mynah(["agent", "new", &file]);
    new.env_remove("ANTHROPIC_API_KEY");
    let made = feed(new, b"You sort \"mail\".\n\nfiles shell now\n");
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let no_key = "no key is set; set the environment variable ANTHROPIC_API_KEY\n";
    assert!(made.stdout.contains(no_key), "{}", made.stdout);
    let text = fs::read_to_string(&file).unwrap();
    for line in ["system = \"You sort \\\"mail\\\".\"", "shell = \"ask\"", "now = true"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let checked = run(["agent", "check", &file]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains("write_file (asks)"), "{}", checked.stdout);
    assert!(checked.stdout.contains("shell (asks), now\n"), "{}", checked.stdout);
    let line = &lines(&run(["agent", "check", &file, "--json"]))[0];
    assert_eq!(line["ok"]["name"], "new");
    assert_eq!(line["ok"]["agents"], serde_json::json!([]));
    assert_eq!(feed(mynah(["agent", "new", &file]), b"").code, Some(2));
}

#[test]
fn a_prompt_with_variables_makes_a_file_that_can_be_checked() {
    let store = Store::new();
    let file = store.beside("new.toml");
    let made = feed(mynah(["agent", "new", &file]), b"Speak {{language}}.\n\nnone\n");
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\nvars = { \"language\" = \"\" }\n"), "{text}");
    let checked = run(["agent", "check", &file]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
}

#[test]
fn a_wrong_answer_is_asked_for_again_and_no_tools_are_an_answer() {
    let store = Store::new();
    let file = store.beside("new.toml");
    let answers = b"Help.\nopnai:gpt-5.4-mini\nopenai:gpt-5.4-mini\nfiles, shel\nnone\n";
    let made = feed(mynah(["agent", "new", &file]), answers);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for why in ["did you mean `openai`?", "there is no tool \"shel\"; give some of files, shell"] {
        assert!(made.stderr.contains(why), "{why} in {}", made.stderr);
    }
    let expected = "#:schema agent.schema.json\nmodel = \"openai:gpt-5.4-mini\"\nsystem = \"Help.\"\nbudget = { turns = 30 }\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    let schema = run(["agent", "schema"]).stdout;
    assert!(schema.contains("\"title\": \"Mynah agent\""), "{schema}");
    assert_eq!(fs::read_to_string(store.beside("agent.schema.json")).unwrap(), schema.trim_end());
    // An answer that stays wrong writes nothing.
    let other = store.beside("other.toml");
    let refused = feed(mynah(["agent", "new", &other]), b"Help.\nopnai:gpt-5.4-mini\n");
    assert_eq!((refused.code, fs::exists(&other).unwrap()), (Some(2), false), "{}", refused.stderr);
    // Neither does a pipe without answers.
    let refused = feed(mynah(["agent", "new", &other]), b"");
    assert_eq!((refused.code, fs::exists(&other).unwrap()), (Some(2), false), "{}", refused.stdout);
    assert!(refused.stderr.contains("nothing was written"), "{}", refused.stderr);
    let nowhere = store.beside("nodir/x.toml");
    let refused = feed(mynah(["agent", "new", &nowhere]), b"");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("its folder is not there"), "{}", refused.stderr);
}

#[test]
fn what_will_probably_fail_is_a_warning_of_check_and_doctor() {
    let store = Store::new();
    let file = store.file("agent.toml", "model = 'openai:gpt-4o-mini'\n");
    let without_key = |words: &[&str]| {
        let mut command = mynah(words.iter().copied());
        command.env_remove("OPENAI_API_KEY");
        feed(command, b"")
    };
    let checked = without_key(&["agent", "check", &file]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    let no_key = "agent.toml:1: model: openai:gpt-4o-mini: no key is set; set the environment variable OPENAI_API_KEY";
    assert!(checked.stdout.contains(no_key), "{}", checked.stdout);
    assert!(checked.stdout.contains("ends it on 2027-01-14"), "{}", checked.stdout);
    let line = &lines(&without_key(&["agent", "check", &file, "--json"]))[0];
    assert_eq!(line["ok"]["warnings"].as_array().map(Vec::len), Some(2), "{line}");
    let examined = without_key(&["doctor", &file, "--log", "memory:"]);
    assert_eq!(examined.code, Some(0), "{}", examined.stderr);
    assert!(examined.stdout.contains(no_key), "{}", examined.stdout);
    store.file("agent.toml", "model = 'openai:gpt-4o-mini'\n[params]\ntemperature = 'hot'\n");
    for words in [&["agent", "check", &file][..], &["doctor", &file, "--log", "memory:"]] {
        let refused = without_key(words);
        assert_eq!(refused.code, Some(2), "{}", refused.stdout);
        let why = "agent.toml:3: params.temperature: give a number";
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let file = store.file("agent.toml", "model = 'scripted:nothere.json'\n");
    let missing = run(["agent", "check", &file]);
    assert_eq!(missing.code, Some(4), "{}", missing.stderr);
    assert!(missing.stderr.contains("agent.toml:1: model: "), "{}", missing.stderr);
}

#[test]
fn a_wrong_file_is_refused_with_its_place_and_a_server_that_is_not_there_is_unusable() {
    let store = Store::new();
    let file = store.file("agent.toml", "model = 'x:y'\n[tools]\nshel = 'ask'\n");
    for arguments in [&["agent", "check", &file][..], &["run", &file, "hi"], &["chat", &file]] {
        let refused = store.run(arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.stderr);
        let expected = "agent.toml:3: tools.shel: unknown key `shel`; did you mean `shell`?";
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    let text = "model = 'openai:gpt-5.4-mini'\n[mcp.x]\ncommand = ['surely-no-such-command']\n";
    let file = store.file("agent.toml", text);
    let refused = run(["agent", "check", &file]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("agent.toml:2: mcp.x: "), "{}", refused.stderr);
}

#[test]
fn a_file_that_was_read_and_does_not_fit_is_bad_input() {
    let store = Store::new();
    let file = store.file("agent.toml", "model = 'scripted:script.json'\n");
    for script in [r#"{"scripts": [[{"txt": "a"}]]}"#, r#"{"scripts": [["#] {
        store.file("script.json", script);
        for verb in [&["agent", "check", &file][..], &["run", &file, "Go."]] {
            let ran = store.run(verb);
            assert_eq!(ran.code, Some(2), "{verb:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("agent.toml:1: model: "), "{}", ran.stderr);
        }
    }
    store.file("script.json", SCRIPT);
    fs::write(store.beside("latin.txt"), b"caf\xe9").unwrap();
    for key in ["system = { file = 'latin.txt' }", "[agents.x]\nfile = 'latin.txt'"] {
        store.file("agent.toml", &format!("model = 'scripted:script.json'\n{key}\n"));
        let ran = store.run(&["agent", "check", &file]);
        assert!(ran.code == Some(2) && ran.stderr.contains("it is not UTF-8"), "{}", ran.stderr);
    }
    fs::write(&file, b"name = 'caf\xe9'").unwrap();
    let ran = store.run(&["agent", "check", &file]);
    assert!(ran.code == Some(2) && ran.stderr.contains("it is not UTF-8"), "{}", ran.stderr);
}

#[test]
fn a_folder_that_is_not_there_is_unusable_like_a_file() {
    let store = Store::new();
    store.file("script.json", SCRIPT);
    for (key, place) in [
        ("system = { file = 'no.md' }", "system.file"),
        ("[output]\nschema = 'no.json'", "output.schema"),
        ("[tools]\nfiles = { root = 'no' }", "tools.files.root"),
        ("[tools]\nshell = { permission = 'ask', dir = 'no' }", "tools.shell.dir"),
        ("[agents.x]\nfile = 'no.toml'", "agents.x.file"),
    ] {
        let text = format!("model = 'scripted:script.json'\n{key}\n");
        let file = store.file("agent.toml", &text);
        for verb in [&["agent", "check", &file][..], &["run", &file, "Go."], &["chat", &file]] {
            let ran = store.run(verb);
            assert_eq!(ran.code, Some(4), "{verb:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(place), "{verb:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_script_has_the_price_of_the_file_and_no_fallback() {
    let store = Store::new();
    store.file("script.json", SCRIPT);
    let model =
        "model = { name = 'scripted:script.json', price = { input = 1000.0, output = 2000.0 } }";
    let file = store.file("agent.toml", &format!("{model}\nbudget = {{ usd = 1.0 }}\n"));
    assert_eq!(run(["agent", "check", &file]).code, Some(0));
    let ran = store.run(&["run", &file, "Go."]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("10 + 5 tokens, $0.0200"), "{}", ran.stderr);
    for (text, code, said) in [
        (
            "budget = { usd = 1.0 }",
            Some(2),
            "agent.toml:2: budget.usd: the price of scripted:script.json is not known",
        ),
        (
            "fallback = ['scripted:script.json']",
            Some(2),
            "agent.toml:2: fallback: scripted:script.json: a script cannot be a fallback",
        ),
        (
            "fallback = ['openai:gpt-5.4']",
            Some(0),
            "warning: agent.toml:2: fallback: not used: a scripted model has no fallback",
        ),
    ] {
        let file = store.file("agent.toml", &format!("model = 'scripted:script.json'\n{text}\n"));
        let checked = run(["agent", "check", &file]);
        let all = checked.stdout + &checked.stderr;
        assert!(checked.code == code && all.replace(&store.beside(""), "").contains(said), "{all}");
    }
    let file =
        store.file("agent.toml", "model = 'openai:gpt-5.4'\nfallback = ['scripted:script.json']\n");
    let checked = run(["agent", "check", &file]);
    assert!(
        checked.stderr.contains("a script cannot be a fallback, only the `model`"),
        "{}",
        checked.stderr
    );
}

#[test]
fn a_model_without_a_known_price_is_refused_and_the_chat_keeps_its_own() {
    let store = Store::new();
    store.file("script.json", SCRIPT);
    let model = "model = { name = 'scripted:script.json', price = { input = 1.0, output = 2.0 } }";
    let file = store.file("agent.toml", &format!("{model}\nbudget = {{ usd = 1.0 }}\n"));
    let chat = mynah(["chat", &file, "--log", "memory:"]);
    let chatted = feed(chat, b"/model llamacpp:x\n/model scripted:script.json\nGo.\n");
    assert_eq!((chatted.code, chatted.stdout.as_str()), (Some(0), "Gone.\n"), "{}", chatted.stderr);
    let why = "the price of llamacpp:x is not known, so this limit cannot be enforced; use a model with a known price (`mynah models` lists them)";
    assert!(chatted.stderr.contains(why), "{}", chatted.stderr);
    assert_eq!(chatted.stderr.matches("  model: scripted\n").count(), 2, "{}", chatted.stderr);
}

const SCRIPT: &str = r#"{"scripts": [[{"text": "Gone."}, {"usage": {"input_tokens": 10, "output_tokens": 5}}, {"finish": "stop"}]]}"#;

#[test]
fn a_run_that_waits_is_resumed_and_replayed_with_its_file_and_no_command_runs_twice() {
    let store = Store::new();
    store.file(
        "script.json",
        r#"{"scripts": [
          [{"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo x >> marks"}}}, {"finish": "tool_calls"}],
          [{"text": "Done."}, {"finish": "stop"}]
        ]}"#,
    );
    let text =
        "model = 'scripted:script.json'\nsystem = 'Speak {{language}}.'\n[tools]\nshell = 'ask'\n";
    let file = store.file("agent.toml", text);
    let var = ["--var", "language=Latin"];
    let waits = store.run(&["run", &file, "Mark.", var[0], var[1]]);
    assert_eq!(waits.code, Some(3), "{}", waits.stderr);
    assert!(waits.stderr.contains("--var language=Latin"), "{}", waits.stderr);
    let agent = ["last", "--agent", &file, var[0], var[1]];
    let resumed = store.run(&[&["resume"], &agent[..], &["--approve", "c0"]].concat());
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert!(resumed.stdout.contains("Done."), "{}", resumed.stdout);
    let replayed = store.run(&[&["replay"], &agent[..], &["--tools", "rerun"]].concat());
    assert_eq!(replayed.code, Some(0), "{}{}", replayed.stdout, replayed.stderr);
    assert_eq!(fs::read_to_string(store.beside("marks")).unwrap(), "x\n");
    let other = store.run(&["replay", "last", "--agent", &file, "--var", "language=Greek"]);
    assert_eq!(other.code, Some(1), "{}", other.stdout);
    assert!(other.stdout.contains("Greek"), "{}", other.stdout);
}
