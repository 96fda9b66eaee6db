//! Agents from files.

use std::{env, fs, path::Path};

use mynah::{Approval, Engine, Options, Tool, ToolCall, log::MemoryLog, testing::Scripted};
use mynah_agent::{Agent, AgentFile, FileError};
use serde_json::json;

/// The agent of this text, in a folder that has a file.
async fn agent(text: &str) -> Result<Agent, FileError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("prompt.md"), "Speak {{language}}.").unwrap();
    fs::write(folder.path().join("answer.json"), r#"{"type": "object"}"#).unwrap();
    fs::write(folder.path().join("agent.toml"), text).unwrap();
    Agent::from_file(folder.path().join("agent.toml")).await.map_err(|mut error| {
        error.file = error.file.file_name().unwrap().into();
        let folder = format!("{}/", folder.path().display());
        error.message = error.message.replace(&folder, "");
        error
    })
}

fn tools(engine: &Engine) -> Vec<(String, bool)> {
    let tools = engine.resolve_tools(&Options::new());
    tools
        .iter()
        .map(|tool| (tool.name().to_owned(), tool.spec().approval == Approval::Ask))
        .collect()
}

#[tokio::test]
async fn a_file_becomes_an_engine_with_its_model_prompt_tools_and_limits() {
    let agent = agent(
        r#"
        name = "helper"
        model = "anthropic:claude-sonnet-5"
        fallback = [{ name = "llamacpp:default", base_url = "http://localhost:8080" }]
        system = { file = "prompt.md" }
        vars = { language = "French" }
        params = { temperature = 0.2, top_k = 4 }
        budget = { usd = 0.5, turns = 30, seconds = 60 }
        output = { schema = "answer.json" }
        [tools]
        files = { root = ".", write = "ask" }
        shell = "ask"
        calculator = true
        [approvals]
        calculator = "ask"
        edit_file = "deny"
        "#,
    )
    .await
    .unwrap();
    assert_eq!(agent.name, "helper");
    let spec = agent.engine.spec().unwrap_err().to_string();
    assert!(!spec.is_empty());
    let known = agent.engine.resolve_params(&Options::new());
    let expected = json!({
        "temperature": 0.2, "top_k": 4, "system": "Speak French.", "max_turns": u32::MAX,
        "budget": {"max_usd": 0.5, "max_turns": 30, "max_wall_clock_ms": 60_000},
        "response_format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": false},
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(known.get(name), Some(value), "{name} in {known:?}");
    }
    let expected = [
        ("read_file", false),
        ("list_dir", false),
        ("search_files", false),
        ("write_file", true),
        ("shell", true),
        ("calculator", true),
    ];
    assert_eq!(tools(&agent.engine), expected.map(|(name, manual)| (name.to_owned(), manual)));
    assert!(format!("{:?}", agent.engine).contains("anthropic|llamacpp"), "{:?}", agent.engine);
}

#[tokio::test]
async fn a_schema_that_is_none_is_refused() {
    let text = "model = \"anthropic:claude-sonnet-5\"\n[output]\nschema = { type = \"objekt\" }";
    let error = agent(text).await.unwrap_err().to_string();
    assert!(
        error.starts_with("agent.toml:3: output.schema: this is no JSON Schema: ")
            && error.contains("objekt"),
        "{error}"
    );
}

#[tokio::test]
async fn an_error_names_the_file_the_line_and_the_key_and_suggests_the_nearest() {
    let model = "model = \"anthropic:claude-sonnet-5\"\n";
    let table = [
        ("modle = \"x\"", "agent.toml:1: modle: unknown key `modle`; did you mean `model`?"),
        ("system = \"x\"", "agent.toml: the key `model` is missing"),
        (
            "model = \"openia:gpt-5\"",
            "agent.toml:1: model: no adapter is named `openia`; did you mean `openai`?",
        ),
        (
            "model = \"openia:gpt-5\"\nbudget = { usd = 1 }",
            "agent.toml:1: model: no adapter is named `openia`; did you mean `openai`?",
        ),
        (
            "M\nbudget = { usd = \"x\" }",
            "agent.toml:3: budget.usd: invalid type: string \"x\", expected a number",
        ),
        (
            "M\nbudget = { turns = 0 }",
            "agent.toml:3: budget.turns: give 1 or more: a turn is a call of the model",
        ),
        (
            "M\nbudget = { turns = -1 }",
            "agent.toml:3: budget.turns: invalid value: integer `-1`, expected a whole number, 0 or more",
        ),
        (
            "M\nbudget = { turns = 99999999999 }",
            "agent.toml:3: budget.turns: invalid value: integer `99999999999`, expected a whole number, 4294967295 at most",
        ),
        ("M\nname = \"\"", "agent.toml:3: name: the name is empty; leave it out"),
        (
            "M\n[output]\nname = \"bad name!\"\nschema = { type = \"object\" }",
            "agent.toml:4: output.name: the name of a schema has at most 64 letters, digits, `_` and `-`",
        ),
        (
            "M\nenv = [\"A=b\"]",
            "agent.toml:3: env: give names alone; values come from the environment",
        ),
        (
            "M\n[params]\nmessages = []",
            "agent.toml:4: params.messages: not a param: it cannot be set in a file",
        ),
        (
            "M\n[params]\ndeadline = 5",
            "agent.toml:4: params.deadline: not a param: the key `budget.seconds` sets it",
        ),
        (
            "model = { name = \"llamacpp:x\", price = { input = -1, output = 1 } }",
            "agent.toml:1: model: give a `price` in dollars, 0 or more",
        ),
        (
            "M\n[tools]\nshell = 5",
            "agent.toml:4: tools.shell: invalid type: integer `5`, expected \"ask\", \"allow\", \"deny\", true or false, or a table",
        ),
        (
            "model = true",
            "agent.toml:1: model: invalid type: boolean `true`, expected a name such as \"anthropic:claude-sonnet-5\", or a table with a `name`",
        ),
        (
            "M\n[agents]\nx = 5",
            "agent.toml:4: agents.x: invalid type: integer `5`, expected a table",
        ),
        (
            "M\n[context]\nmax_tokens = 0",
            "agent.toml:4: context.max_tokens: invalid value: integer `0`, expected a whole number, 1 or more",
        ),
        ("M\nagent_depth = 9", "agent.toml:3: agent_depth: agents may be nested 8 deep at most"),
        (
            "model = \"llamacpp:x\"\nbudget = { usd = 1 }",
            "agent.toml:2: budget.usd: the price of llamacpp:x is not known, so this limit cannot be enforced; use a model with a known price (`mynah models` lists them), limit `total_tokens` or `turns` instead, or give the price in the file: model = { name = \"llamacpp:x\", price = { input = DOLLARS, output = DOLLARS } }, per million tokens",
        ),
        (
            "M\nbudget = { usd = 1 }\n[agents.x]\ndescription = \"d\"\nmodel = \"llamacpp:x\"",
            "agent.toml:6: agents.x.model: the price of llamacpp:x is not known, so `budget.usd` of the agent above cannot be enforced; use a model with a known price (`mynah models` lists them), limit `total_tokens` or `turns` instead, or give the price in the file: model = { name = \"llamacpp:x\", price = { input = DOLLARS, output = DOLLARS } }, per million tokens",
        ),
        (
            "model = 7",
            "agent.toml:1: model: invalid type: integer `7`, expected a name such as \"anthropic:claude-sonnet-5\", or a table with a `name`",
        ),
        (
            "model = { nam = \"x\" }",
            "agent.toml:1: model.nam: unknown key `nam`; did you mean `name`?",
        ),
        ("model = \"anthropic", "agent.toml:1: invalid basic string, expected `\"`"),
        (
            "M\n[tools]\nfile = { root = \".\" }",
            "agent.toml:4: tools.file: unknown key `file`; did you mean `files`?",
        ),
        (
            "M\n[tools]\nzoo = 1",
            "agent.toml:4: tools.zoo: unknown key `zoo`; known are files, shell, fetch, calculator, now, ask_user",
        ),
        (
            "M\n[tools]\nfiles = { root = \".\", write = \"aks\" }",
            "agent.toml:4: tools.files.write: unknown value `aks`; did you mean `ask`?",
        ),
        (
            "M\n[tools.shell]\npermission = \"allow\"\ntimout = 1",
            "agent.toml:5: tools.shell.timout: unknown key `timout`; did you mean `timeout`?",
        ),
        (
            "M\n[tools]\nfiles = { root = \"nowhere\" }",
            "agent.toml:4: tools.files.root: the folder nowhere cannot be opened: No such file or directory (os error 2)",
        ),
        (
            "M\nsystem = \"{{who}}\"",
            "agent.toml:3: system: the variable `who` has no value; set it under [vars], or give --var who=VALUE",
        ),
        (
            "M\nsystem = \"hi\"\n[vars]\nwho = \"x\"",
            "agent.toml:5: vars.who: the system prompt has no variable `who`",
        ),
        (
            "M\nsystem = { file = \"gone.md\" }",
            "agent.toml:3: system.file: gone.md: No such file or directory (os error 2)",
        ),
        (
            "M\nbudget = { dollars = 1 }",
            "agent.toml:3: budget.dollars: unknown key `dollars`; known are usd, turns, tool_calls, input_tokens, output_tokens, total_tokens, seconds, note",
        ),
        (
            "M\n[params]\nmax_turns = 3",
            "agent.toml:4: params.max_turns: not a param: the key `budget.turns` sets it",
        ),
        (
            "M\n[tools]\nnow = true\n[approvals]\nnwo = \"ask\"",
            "agent.toml:6: approvals.nwo: no tool is called `nwo`; did you mean `now`?",
        ),
        (
            "M\nenv = [\"MYNAH_SURELY_UNSET\"]\n[tools]\nshell = \"ask\"",
            "agent.toml:3: env: the environment variable MYNAH_SURELY_UNSET is not set",
        ),
        (
            "M\nenv = [\"A=b\"]\n[tools]\nshell = \"ask\"",
            "agent.toml:3: env: give names alone; values come from the environment",
        ),
        (
            "M\n[mcp.git]\ncommand = [\"git\"]\ninclud = []",
            "agent.toml:5: mcp.git.includ: unknown key `includ`; did you mean `include`?",
        ),
        ("M\n[mcp.git]\ninclude = []", "agent.toml:3: mcp.git: give either a `command` or a `url`"),
        (
            "M\n[mcp.git]\nurl = \"http://x\"\ntoken_env = \"MYNAH_SURELY_UNSET\"",
            "agent.toml:5: mcp.git.token_env: the environment variable MYNAH_SURELY_UNSET is not set",
        ),
    ];
    for (text, expected) in table {
        let error = agent(&text.replace("M\n", &format!("{model}\n"))).await.unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
    }
    let error = agent("model = \"anthropc:x\"").await.unwrap_err().to_string();
    assert!(error.starts_with("agent.toml:1: model: ") && error.contains("anthropc"), "{error}");
    let error = Agent::from_file("nowhere/agent.toml").await.unwrap_err();
    assert!(error.is_unreachable && error.to_string().starts_with("nowhere/agent.toml: No such"));
    let gone = agent(&format!("{model}system = {{ file = \"gone.md\" }}")).await.unwrap_err();
    assert!(gone.is_unreachable, "{gone}");
}

#[tokio::test]
async fn a_file_without_end_or_of_many_megabytes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.toml");
    fs::write(&large, format!("model = 'x:y' # {}", "x".repeat(5 << 20))).unwrap();
    let error = Agent::from_file(&large).await.unwrap_err();
    assert!(error.to_string().ends_with("large.toml: it is larger than 4 MiB"), "{error}");
    #[cfg(unix)]
    {
        let error = Agent::from_file("/dev/zero").await.unwrap_err();
        assert_eq!(error.to_string(), "/dev/zero: it is not a regular file");
    }
}

#[tokio::test]
async fn a_permission_may_be_true_or_false_for_the_shell_too() {
    for (permission, names) in [("true", &["shell"][..]), ("false", &[]), ("'ask'", &["shell"])] {
        let text = format!("model = 'openai:gpt-5.4-mini'\n[tools]\nshell = {permission}");
        let engine = agent(&text).await.unwrap().engine;
        let tools = engine.resolve_tools(&Options::new());
        assert_eq!(tools.iter().map(Tool::name).collect::<Vec<_>>(), names, "{permission}");
        let asks = tools.iter().any(|tool| tool.spec().approval == mynah::Approval::Ask);
        assert_eq!(asks, permission == "'ask'");
        // Whether a person is asked is no property of the tool.
        assert!(tools.iter().all(|tool| !tool.spec().description.contains("is asked")));
    }
}

#[tokio::test]
async fn the_price_and_window_of_a_model_that_the_catalog_does_not_know_stand_in_the_file() {
    let text = "model = { name = 'llamacpp:x', price = { input = 0.1, output = 0.4 }, context_window = 40000 }\n\
        budget = { usd = 1 }";
    let file = AgentFile::parse("agent.toml", text).unwrap();
    let engine = file.build().await.unwrap().engine;
    let pricing = engine.get_model().unwrap().pricing.unwrap();
    assert_eq!((pricing.input, pricing.output), (0.1, 0.4));
    assert_eq!(engine.resolve_params(&Options::new())["context_policy"]["max_tokens"], 30_000);
    // They are not those of another model.
    let other = file.with_model("llamacpp:y").build().await.unwrap_err().to_string();
    assert!(other.contains("the price of llamacpp:y is not known"), "{other}");
}

#[tokio::test]
async fn a_variable_of_the_caller_overrides_that_of_the_file() {
    let text = "model = \"openai:gpt-5.4-mini\"\nsystem = \"Speak {{language}}.\"\nvars = { language = \"French\" }";
    let system = async |file: AgentFile| {
        file.build().await.unwrap().engine.resolve_params(&Options::new())["system"].clone()
    };
    let file = AgentFile::parse("agent.toml", text).unwrap();
    assert_eq!(system(file.clone()).await, "Speak French.");
    assert_eq!(system(file.clone().var("language", "Latin")).await, "Speak Latin.");
    let error = file.var("lang", "x").build().await.unwrap_err().to_string();
    assert_eq!(error, "agent.toml:2: system: the system prompt has no variable `lang`");
}

#[tokio::test]
async fn a_shell_that_is_allowed_runs_in_the_folder_of_the_file_with_the_variables_that_are_named()
{
    let folder = tempfile::tempdir().unwrap();
    let text = "model = \"x:y\"\nenv = [\"CARGO_PKG_NAME\"]\n[tools]\nshell = \"allow\"";
    let file = AgentFile::parse(folder.path().join("agent.toml"), text).unwrap();
    let command =
        json!({"command": "pwd; echo $CARGO_PKG_NAME $CARGO_MANIFEST_DIR; echo home is $HOME"});
    let call = ToolCall::from_value("c0", "shell", command);
    let model = Scripted::new([
        json!([{"tool_call": {"id": call.id, "name": call.name, "arguments": call.arguments}}, {"finish": "tool_calls"}]),
        json!([{"text": "Done."}, {"finish": "stop"}]),
    ]);
    let engine = file.build_on(Engine::new(model.unwrap())).await.unwrap().engine;
    let result = engine.chat("Where am I?").record(&MemoryLog::new()).await.unwrap();
    assert_eq!(result.text(), "Done.");
    let output = result.steps[0].tool_results[0].text().into_owned();
    let place = folder.path().canonicalize().unwrap();
    let expected = format!("{}\\nmynah-agent\\n", place.display());
    assert!(output.contains(&expected), "{output}");
    let home = env::var_os("HOME").map(|home| home.into_string().unwrap()).unwrap_or_default();
    assert!(output.contains(format!("home is {home}").trim_end()), "{output}");
    assert_eq!(
        engine.resolve_tools(&Options::new()).iter().map(Tool::name).collect::<Vec<_>>(),
        ["shell"]
    );
}

#[tokio::test]
async fn a_model_that_calls_an_unknown_tool_reads_the_list_of_tools_and_corrects_itself() {
    let text = "model = \"x:y\"\n[tools]\ncalculator = true\nnow = true";
    let file = AgentFile::parse("agent.toml", text).unwrap();
    let call = |id: &str, name: &str| {
        let arguments = json!({"expression": "6 * 7"});
        json!([{"tool_call": {"id": id, "name": name, "arguments": arguments}}, {"finish": "tool_calls"}])
    };
    let answer = json!([{"text": "42"}, {"finish": "stop"}]);
    let model = Scripted::new([call("c0", "calc"), call("c1", "calculator"), answer]).unwrap();
    let engine = file.build_on(Engine::new(model)).await.unwrap().engine;
    let result = engine.chat("6 * 7?").await.unwrap();
    assert_eq!(result.text(), "42");
    let read = |step: usize| result.steps[step].tool_results[0].text().into_owned();
    assert!(read(0).contains("its tools are: calculator, now"), "{}", read(0));
    assert!(read(1).contains("42"), "{}", read(1));
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_published_schema_is_current() {
    let file = root().join("docs/agent.schema.json");
    let current = serde_json::to_string_pretty(&mynah_agent::schema()).unwrap() + "\n";
    if env::var_os("MYNAH_BLESS").is_some() {
        fs::write(&file, &current).unwrap();
    }
    let published = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        published == current,
        "docs/agent.schema.json is out of date; run this with MYNAH_BLESS=1"
    );
}

#[tokio::test]
async fn what_will_probably_fail_is_a_warning_with_its_place() {
    let text = "model = { name = 'openai:gpt-4o-mini', api_key_env = 'NO_SUCH_KEY' }\n\
        fallback = ['openai:gpt-no-such-model']\n[params]\ntemprature = 0.2\ntop_p = 1\n\
        [agents.critic]\ndescription = 'Checks.'\nmodel = { name = 'groq:x', api_key_env = 'NO_SUCH_KEY' }\n";
    let agent = AgentFile::parse("agent.toml", text).unwrap().build().await.unwrap();
    let told: Vec<String> = agent.warnings.iter().map(ToString::to_string).collect();
    let expected = [
        "agent.toml:4: params.temprature: did you mean `temperature`? As it is, it goes to the provider",
        "agent.toml:1: model: openai:gpt-4o-mini: no key is set; set the environment variable NO_SUCH_KEY",
        "agent.toml:1: model: openai:gpt-4o-mini: its provider ends it on ",
        "agent.toml:2: fallback: openai:gpt-no-such-model: the model catalog does not know it; ",
    ];
    for expected in expected {
        assert!(told.iter().any(|told| told.starts_with(expected)), "{expected} in {told:?}");
    }
    let beneath = agent.agents[0].warnings[0].to_string();
    assert!(beneath.contains("agents.critic.model: groq:x: no key is set"), "{beneath}");
    // A model that is given is not looked at.
    let file = AgentFile::parse("agent.toml", "model = 'openai:gpt-4o-mini'").unwrap();
    let given = file.build_on(Engine::new(Scripted::default())).await.unwrap();
    assert!(given.warnings.is_empty());
}

#[tokio::test]
async fn params_of_a_wrong_type_are_refused_with_their_place() {
    let table = [
        (
            "temperature = 'hot'",
            "agent.toml:3: params.temperature: give a number from 0 to 2, such as 0.7",
        ),
        ("max_tokens = 'many'", "agent.toml:3: params.max_tokens: give a whole number, 1 or more"),
        ("retry = 5", "agent.toml:3: params.retry: give a table, such as { max_attempts = 3 }"),
    ];
    for (line, expected) in table {
        let text = format!("model = 'openai:gpt-5.4-mini'\n[params]\n{line}\n");
        let error = AgentFile::parse("agent.toml", text).unwrap().build().await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
