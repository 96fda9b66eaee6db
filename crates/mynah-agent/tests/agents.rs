//! Agents of agents in files.

use std::fs;

use mynah::{
    Engine, Options, Tool,
    log::{Log as _, MemoryLog},
    testing::{Script, Scripted},
};
use mynah_agent::{Agent, AgentFile, FileError};
use serde_json::json;

/// The agent of the first of these files.
async fn agent(files: &[(&str, &str)]) -> Result<Agent, FileError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    Agent::from_file(folder.path().join(files[0].0)).await.map_err(|mut error| {
        error.file = error.file.file_name().unwrap().into();
        error.message = error.message.replace(&format!("{}/", folder.path().display()), "");
        error
    })
}

fn names(agent: &Agent) -> Vec<String> {
    let tools = agent.engine.resolve_tools(&Options::new());
    tools.iter().map(|tool| tool.name().to_owned()).collect()
}

const MODEL: &str = "model = \"anthropic:claude-sonnet-5\"\n";

#[tokio::test]
async fn agents_stand_in_a_table_or_in_a_file_of_their_own() {
    let outer = format!(
        r#"{MODEL}
        [tools]
        now = true
        [agents.research]
        file = "research.toml"
        [agents.editor]
        description = "Edits texts."
        model = "openai:gpt-5.4-mini"
        tools = {{ calculator = true }}
        [agents.editor.agents.typist]
        description = "Types."
        "#
    );
    let inner = "model = \"openai:gpt-5.4-mini\"\ndescription = \"Looks facts up.\"\ntools = { fetch = true }";
    let agent = agent(&[("agent.toml", &outer), ("research.toml", inner)]).await.unwrap();
    assert_eq!(names(&agent), ["now", "editor", "research"]);
    let tools = agent.engine.resolve_tools(&Options::new());
    let describes = |name: &str| {
        let tool = tools.iter().find(|tool| tool.name() == name).unwrap();
        tool.spec().description.clone()
    };
    assert_eq!(describes("research"), "Looks facts up.");
    assert_eq!(describes("editor"), "Edits texts.");
    let [editor, research] = &agent.agents[..] else { panic!("{agent:?}") };
    assert_eq!((&*editor.name, &*research.name), ("editor", "research"));
    assert_eq!(names(editor), ["calculator", "typist"]);
    assert_eq!(names(research), ["fetch"]);
    let model = |agent: &Agent| agent.engine.get_model().unwrap().to_string();
    assert_eq!(model(editor), "openai:gpt-5.4-mini");
    assert_eq!(
        model(&editor.agents[0]),
        model(editor),
        "an agent without a model has that above it"
    );
}

#[tokio::test]
async fn an_error_in_an_agent_names_its_file_line_and_key() {
    let table = [
        (
            "[agents.a]\nfile = 'b.toml'\ndescripton = 'x'",
            "",
            "agent.toml:4: agents.a.descripton: unknown key `descripton`; did you mean `description`?",
        ),
        (
            "[agents.a]\ndescription = 'x'\n[agents.a.tools]\nfiles = { root = 'nowhere' }",
            "",
            "agent.toml:5: agents.a.tools.files.root: the folder nowhere cannot be opened: No such file or directory (os error 2)",
        ),
        (
            "[agents.a]\nfile = 'gone.toml'",
            "",
            "agent.toml:3: agents.a.file: gone.toml: No such file or directory (os error 2)",
        ),
        (
            "[agents.a]\nfile = 'b.toml'",
            "model = 'openai:x'\n[tools]\nnwo = true",
            "b.toml:3: tools.nwo: unknown key `nwo`; did you mean `now`?",
        ),
        (
            "[agents.a]\nfile = 'b.toml'\nsystem = 'x'",
            "model = 'openai:x'",
            "agent.toml:2: agents.a: beside `file` only `description`, `handoff` and `timeout` may stand here; move the other keys to the file",
        ),
        (
            "[agents.a]\nsystem = 'x'",
            "",
            "agent.toml:2: agents.a: give a `description`: the model reads it to decide when to call the agent",
        ),
        (
            "[agents.'a b']\ndescription = 'x'",
            "",
            "agent.toml:2: agents.a b: the name of an agent has at most 64 letters, digits, `_` and `-`",
        ),
        (
            "tools = { now = true }\n[agents.now]\ndescription = 'x'",
            "",
            "agent.toml:3: agents.now: a tool has this name already; give the agent another",
        ),
        (
            "[agents.a]\nfile = 'agent.toml'\ndescription = 'x'",
            "",
            "agent.toml:3: agents.a.file: these agents have each other: agent.toml, agent.toml",
        ),
        (
            "[agents.a]\nfile = 'b.toml'\ndescription = 'x'",
            "model = 'openai:x'\n[agents.c]\ndescription = 'x'\n[agents.c.agents.d]\nfile = './agent.toml'",
            "b.toml:5: agents.c.agents.d.file: these agents have each other: agent.toml, b.toml, agent.toml",
        ),
        (
            "agent_depth = 1\n[agents.a]\ndescription = 'x'\n[agents.a.agents.b]\ndescription = 'y'",
            "",
            "agent.toml:5: agents.a.agents.b: agents are nested too deep here; `agent_depth` of the outermost agent permits more",
        ),
        (
            "context = 'sumarise'",
            "",
            "agent.toml:2: context: unknown value `sumarise`; did you mean `summarise`?",
        ),
        (
            "[context]\nkeep_turn = 1",
            "",
            "agent.toml:3: context.keep_turn: unknown key `keep_turn`; did you mean `keep_turns`?",
        ),
    ];
    for (text, other, expected) in table {
        let text = format!("{MODEL}{text}");
        let error = agent(&[("agent.toml", &text), ("b.toml", other)]).await.unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

#[tokio::test]
async fn agents_work_on_tasks_and_take_over_and_share_the_budget() {
    let text = "model = 'x:front'\nbudget = { turns = 4 }\n\
        [agents.research]\nmodel = 'x:research'\ndescription = 'Looks facts up.'\n\
        [agents.billing]\nmodel = 'x:billing'\ndescription = 'Refunds.'\nhandoff = true";
    let says = |text: &str| Script::new().text(text).stop();
    let engine = |file: &AgentFile| {
        let call = |name: &str, member: &str| {
            let script = Script::new().tool_call(name, name, json!({member: "x"}));
            script.call_tools()
        };
        let model = match file.model() {
            "x:front" => vec![call("research", "task"), call("billing", "note")],
            "x:research" => vec![says("They can talk.")],
            _ => vec![says("Refunded.")],
        };
        Ok::<_, FileError>(Some(Engine::new(Scripted::play(model))))
    };
    // Two answers of the front, and one of each agent.
    for (turns, expected) in [(4, "completed"), (3, "budget_exceeded"), (2, "budget_exceeded")] {
        let text = text.replace("turns = 4", &format!("turns = {turns}"));
        let file = AgentFile::parse("agent.toml", text).unwrap();
        let agent = file.build_with(&engine).await.unwrap();
        let log = MemoryLog::new();
        let result = agent.engine.chat("Hi").record(&log).run_id("p").await.unwrap();
        if turns == 4 {
            assert_eq!(result.text(), "Refunded.");
            assert_eq!(log.runs(Default::default()).await.unwrap().runs.len(), 3);
        }
        assert_eq!(result.halted_reason.as_str(), expected, "{turns}");
    }
}

fn policy(agent: &Agent) -> serde_json::Value {
    agent.engine.get_params().get("context_policy").cloned().unwrap_or_default()
}

#[tokio::test]
async fn conversations_are_shortened_unless_the_file_keeps_them() {
    let window = 1_000_000 / 4 * 3;
    let table = [
        ("", json!({"max_tokens": window, "keep_turns": 4, "clear_tool_results": true})),
        ("context = 'keep'", json!(null)),
        (
            "context = 'summarise'",
            json!({"max_tokens": window, "keep_turns": 4, "clear_tool_results": true, "summarise": true}),
        ),
        (
            "[context]\nmax_tokens = 9\nkeep_turns = 1\nclear_tool_results = false",
            json!({"max_tokens": 9, "keep_turns": 1, "clear_tool_results": false}),
        ),
    ];
    for (text, expected) in table {
        let agent = agent(&[("agent.toml", &format!("{MODEL}{text}"))]).await.unwrap();
        assert_eq!(policy(&agent), expected, "{text}");
    }
    let local = agent(&[("agent.toml", "model = 'llamacpp:default'")]).await.unwrap();
    assert_eq!(policy(&local)["max_tokens"], 32_000);
}

#[tokio::test]
async fn the_model_reads_what_is_left_if_the_file_says_so() {
    for (budget, expected) in [
        ("{ turns = 3, note = true }", "[Budget left after this answer: 2 model calls.]"),
        ("{ turns = 3 }", "Hi"),
    ] {
        let model = Scripted::play([Script::new().text("Hello.").stop()]);
        let file =
            AgentFile::parse("agent.toml", format!("model = 'x:y'\nbudget = {budget}")).unwrap();
        let agent = file.build_on(Engine::new(model.clone())).await.unwrap();
        agent.engine.chat("Hi").await.unwrap();
        assert_eq!(model.requests()[0].messages.last().unwrap().text(), expected);
    }
}

#[tokio::test]
async fn the_permission_of_an_agent_is_set_by_its_name() {
    let text = format!(
        "{MODEL}approvals = {{ a = 'ask', b = 'deny' }}\n[agents.a]\ndescription = 'x'\n[agents.b]\ndescription = 'x'"
    );
    let agent = agent(&[("agent.toml", &text)]).await.unwrap();
    let tools = agent.engine.resolve_tools(&Options::new());
    let asks = |tool: &Tool| (tool.name().to_owned(), tool.spec().approval == mynah::Approval::Ask);
    assert_eq!(tools.iter().map(asks).collect::<Vec<_>>(), [("a".to_owned(), true)]);
}
