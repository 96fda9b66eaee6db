//! The agents in `examples/agents`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use mynah::{
    Adapter, BoxFuture, Catalog, Engine, ModelCall, ModelRef, ModelStream, Request, Role,
    log::MemoryLog,
    testing::{Script, Scripted, crash_everywhere},
};
use mynah_agent::{AgentFile, FileError};
use serde_json::{Value, json};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents"));
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

fn parsed(path: &Path) -> Value {
    toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn each_fits_the_schema_and_names_models_that_are_known() {
    let schema = jsonschema::validator_for(&mynah_agent::schema()).unwrap();
    let catalog = Catalog::built_in();
    assert!(files().len() >= 10);
    for path in files() {
        let file = parsed(&path);
        if let Err(error) = schema.validate(&file) {
            panic!("{}: {error}", path.display());
        }
        let fallback = file["fallback"].as_array().cloned().unwrap_or_default();
        for model in fallback.iter().chain([&file["model"]]) {
            let name = model.as_str().or(model["name"].as_str()).unwrap();
            let is_local = name.starts_with("llamacpp:") || name.starts_with("ollama:");
            let known = catalog.find(&ModelRef::from(name));
            assert!(is_local || known.is_some(), "{}: {name}", path.display());
            let end = known.and_then(|known| known.shutdown_date.clone());
            assert_eq!(end, None, "{}: {name} ends", path.display());
        }
    }
    let wrong = [
        json!({}),
        json!({"model": "a:b", "tols": {}}),
        json!({"model": "a:b", "tools": {"shell": "yes"}}),
    ];
    for wrong in wrong {
        assert!(!schema.is_valid(&wrong), "{wrong}");
    }
}

#[tokio::test]
async fn each_answers_with_a_scripted_model() {
    for path in files() {
        // Servers of others are tested where they are installed.
        if parsed(&path).get("mcp").is_some() {
            continue;
        }
        let file = AgentFile::read(&path).unwrap();
        file.build().await.unwrap();
        let model = Scripted::new([json!([{"text": "{}"}, {"finish": "stop"}])]).unwrap();
        let engine = Engine::new(model).model(file.model());
        let agent = file.build_on(engine).await.unwrap();
        let result = agent.engine.chat("Hello?").await.unwrap();
        assert_eq!(result.text(), "{}", "{}", path.display());
    }
}

/// Lets an agent make this call after approval. Returns what its model read then.
async fn approved(file: AgentFile, tool: &str, arguments: Value) -> String {
    let call = json!({"id": "c0", "name": tool, "arguments": arguments});
    let model = Scripted::new([
        json!([{"tool_call": call}, {"finish": "tool_calls"}]),
        json!([{"text": "Done."}, {"finish": "stop"}]),
    ]);
    let engine = Engine::new(model.unwrap()).model(file.model());
    let engine = file.build_on(engine).await.unwrap().engine;
    let log = MemoryLog::new();
    let waiting = engine.chat("Begin.").record(&log).await.unwrap();
    let run = waiting.run_id.unwrap();
    let result = engine.resume(&log, run).approve("c0").await.unwrap();
    assert_eq!(result.text(), "Done.");
    let messages: Vec<_> = result.thread.messages.iter().map(|message| message.text()).collect();
    messages.join("\n")
}

#[tokio::test]
async fn the_analyst_computes_with_a_command_that_is_approved() {
    let path = files().into_iter().find(|path| path.ends_with("analyst.toml")).unwrap();
    let command = "awk -F, '/India/ { sum += $3 } END { print sum }' birds.csv";
    let read = approved(AgentFile::read(path).unwrap(), "shell", json!({"command": command})).await;
    assert!(read.contains("1510"), "{read}");
}

#[tokio::test]
async fn the_mail_agent_writes_a_file_that_is_approved() {
    let folder = tempfile::tempdir().unwrap();
    let file = mail_in(folder.path());
    let table = json!({"path": "triage.md", "content": "| file | urgency |"});
    approved(file, "write_file", table).await;
    let written = fs::read_to_string(folder.path().join("mail/triage.md")).unwrap();
    assert_eq!(written, "| file | urgency |");
}

/// The mail agent, with an empty folder of its own.
fn mail_in(folder: &Path) -> AgentFile {
    let path = files().into_iter().find(|path| path.ends_with("mail.toml")).unwrap();
    fs::create_dir(folder.join("mail")).unwrap();
    AgentFile::parse(folder.join("mail.toml"), fs::read_to_string(path).unwrap()).unwrap()
}

/// The engine of an agent whose model makes these calls, one in each answer, and says that it is done.
async fn calling(file: AgentFile, calls: &[(&str, Value)]) -> Engine {
    let call = |(n, (name, arguments)): (usize, &(&str, Value))| {
        Script::new().tool_call(format!("c{n}"), *name, arguments.clone()).call_tools()
    };
    let answers = calls.iter().enumerate().map(call).chain([Script::new().text("Done.").stop()]);
    let engine = Engine::new(Scripted::play(answers)).model(file.model());
    file.build_on(engine).await.unwrap().engine
}

#[tokio::test]
async fn the_tutor_survives_every_crash() {
    let path = files().into_iter().find(|path| path.ends_with("tutor.toml")).unwrap();
    let calls = [
        ("ask_user", json!({"question": "What is 3 + 4?"})),
        ("calculator", json!({"expression": "3 + 4"})),
    ];
    let engine = calling(AgentFile::read(path).unwrap(), &calls).await;
    let report = crash_everywhere(|| engine.clone(), "Teach me.").answer("7").await;
    assert_eq!(report.uncertain, 0, "neither tool does harm if it runs again");
}

#[tokio::test]
async fn the_mail_agent_survives_every_crash() {
    let folder = tempfile::tempdir().unwrap();
    let file = mail_in(folder.path());
    let (mail, table) = (folder.path().join("mail/1.txt"), folder.path().join("mail/triage.md"));
    fs::write(&mail, "The tap leaks.").unwrap();
    let calls = [
        ("read_file", json!({"path": "1.txt"})),
        ("write_file", json!({"path": "triage.md", "content": "| 1.txt | now |"})),
    ];
    let engine = calling(file, &calls).await;
    let report = crash_everywhere(|| engine.clone(), "Sort today's mail.")
        .approve_all()
        .before_each(|| _ = fs::remove_file(&table))
        .observe(|| fs::read_to_string(&table).ok())
        .await;
    assert!(report.crashed > 0);
}

/// A model whose answer follows from how often it has answered, as that of a process that knows only the records.
struct Stateless(Vec<Value>);

impl Adapter for Stateless {
    fn name(&self) -> &str {
        "stateless"
    }

    fn open(
        self: Arc<Self>,
        request: Request,
        call: ModelCall,
    ) -> BoxFuture<mynah::Result<ModelStream>> {
        let is_answer = |message: &&Arc<mynah::Message>| message.role() == Role::Assistant;
        let answers = request.messages.iter().filter(is_answer).count();
        // An answer with a schema is asked for once more in its form.
        let script = self.0.get(answers).or(self.0.last()).cloned().unwrap();
        Arc::new(Scripted::new([script]).unwrap()).open(request, call)
    }
}

#[tokio::test]
async fn the_report_survives_every_crash_of_itself_and_its_agents() {
    let path = files().into_iter().find(|path| path.ends_with("report.toml")).unwrap();
    let calls = |name: &str, arguments: Value| json!([{"tool_call": {"id": "c0", "name": name, "arguments": arguments}}, {"finish": "tool_calls"}]);
    let says = |text: &str| json!([{"text": text}, {"finish": "stop"}]);
    let engine = |file: &AgentFile| {
        let scripts = match &*file.name() {
            "research" => vec![
                calls("calculator", json!({"expression": "3 + 4"})),
                says(r#"{"answer": "The hill myna.", "sources": []}"#),
            ],
            "critic" => vec![says("Nothing lacks a source.")],
            _ => vec![
                calls("research", json!({"task": "Which birds talk?"})),
                calls("critic", json!({"task": "The hill myna talks."})),
                says("The hill myna talks."),
            ],
        };
        Ok::<_, FileError>(Some(Engine::new(Stateless(scripts)).model(file.model())))
    };
    let engine = AgentFile::read(path).unwrap().build_with(&engine).await.unwrap().engine;
    let report = crash_everywhere(|| engine.clone(), "Which mynah birds talk?").await;
    assert_eq!(report.uncertain, 0, "agents are continued, not started again");
    assert!(report.crashed > 20, "{report:?}");
}
