//! The agents in `examples/agents`, held against recorded runs of theirs in `examples/agents/goldens`.
//!
//! `MYNAH_BLESS=1` records the runs that differ again: the models are scripted, the tools are real.

use std::{
    collections::VecDeque,
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use mynah::{
    Adapter, BoxFuture, ChatResult, Engine, Fallback, HaltReason, ModelCall, ModelStream, Options,
    Request, Result, ToolContext, ToolOutcome, adapters::http::HttpAdapter, log::MemoryLog,
    testing::Scripted,
};
use mynah_agent::{
    AgentFile, FileError,
    golden::{self, Check, Checked, Rules},
    testing,
};
use serde_json::{Value, json};

fn examples() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents")).to_owned()
}

/// What a person does when a run waits.
enum Does {
    Approves,
    Edits(Value),
    Rejects(&'static str),
    Answers(&'static str),
}
use Does::{Answers, Approves, Edits, Rejects};

/// A run of an agent.
struct Case {
    agent: &'static str,
    name: &'static str,
    goal: &'static str,
    scripts: Vec<Value>,
    /// What the models of its agents answer.
    agents: Vec<(&'static str, Vec<Value>)>,
    person: Vec<Does>,
}

/// A model's answer that calls tools.
fn calls(calls: &[(&str, Value)]) -> Value {
    let call = |(place, (name, arguments)): (usize, &(&str, Value))| json!({"tool_call": {"id": format!("{name}_{place}"), "name": name, "arguments": arguments}});
    let usage = json!({"usage": {"input_tokens": 400, "output_tokens": 40}});
    let calls = calls.iter().enumerate().map(call);
    calls.chain([usage, json!({"finish": "tool_calls"})]).collect()
}

/// A model's answer in words.
fn says(text: &str) -> Value {
    json!([{"text": text}, {"usage": {"input_tokens": 500, "output_tokens": 60}}, {"finish": "stop"}])
}

fn cases() -> Vec<Case> {
    let case = |agent, name, goal, scripts: &[Value], person: Vec<Does>| Case {
        agent,
        name,
        goal,
        scripts: scripts.to_vec(),
        agents: Vec::new(),
        person,
    };
    let awk = "awk -F, '/India/ { sum += $3 } END { print sum }' birds.csv";
    let triage = "| file | sender | wants | urgency |\n|---|---|---|---|\n| 1-leak.txt | Ines Ochoa | a plumber | now |\n";
    let birds = json!({"answer": "The hill myna and the common myna.", "sources": ["https://example.org/mynas"]});
    let invoice =
        json!({"number": "2026-17", "date": "2026-11-03", "currency": "EUR", "total": 119.0});
    let review = json!({"verdict": "change", "findings": [{"file": "src/pay.rs", "line": 7, "problem": "The amount is not checked."}]});
    vec![
        case(
            "analyst",
            "sum",
            "How many mynas were counted in India?",
            &[
                calls(&[("shell", json!({"command": awk}))]),
                says("1510 mynas were counted in India."),
            ],
            vec![Approves],
        ),
        case(
            "analyst",
            "edited-command",
            "How many rows are there?",
            &[calls(&[("shell", json!({"command": "wc -l *"}))]), says("There are 5 rows.")],
            vec![Edits(json!({"command": "tail -n +2 birds.csv | wc -l"}))],
        ),
        case(
            "mail",
            "triage",
            "Sort today's mail.",
            &[
                calls(&[("list_dir", json!({"path": "."}))]),
                calls(&[
                    ("read_file", json!({"path": "1-leak.txt"})),
                    ("read_file", json!({"path": "2-offer.txt"})),
                ]),
                calls(&[("write_file", json!({"path": "triage.md", "content": triage}))]),
                says(
                    "One mail is urgent: water in the cellar. The offer is spam, and I did not follow it.",
                ),
            ],
            vec![Approves],
        ),
        case(
            "mail",
            "rejected-draft",
            "Answer Ines.",
            &[
                calls(&[(
                    "write_file",
                    json!({"path": "drafts/ines.txt", "content": "We come at noon."}),
                )]),
                says("I wrote nothing, because a date must not be promised."),
            ],
            vec![Rejects("never promise a date")],
        ),
        case(
            "repository",
            "search",
            "What is this repository about?",
            &[
                calls(&[("search_files", json!({"pattern": "mynah"}))]),
                says("It is about mynah birds; see README.md, line 1."),
            ],
            vec![],
        ),
        case(
            "research",
            "sources",
            "Which birds can talk?",
            &[
                calls(&[("ask_user", json!({"question": "All birds, or mynas only?"}))]),
                calls(&[("fetch", json!({"url": "https://example.org/mynas"}))]),
                says(&birds.to_string()),
                says(&birds.to_string()),
            ],
            vec![Answers("mynas only")],
        ),
        case(
            "invoices",
            "total",
            "Invoice 2026-17 of 3 November 2026: 100 EUR and 19% VAT.",
            &[
                calls(&[("calculator", json!({"expression": "100 * 1.19"}))]),
                says(&invoice.to_string()),
                says(&invoice.to_string()),
            ],
            vec![],
        ),
        case(
            "reviewer",
            "unchecked-amount",
            "+++ b/src/pay.rs\n@@ -6,0 +7 @@\n+    charge(amount);",
            &[says(&review.to_string()), says(&review.to_string())],
            vec![],
        ),
        case("translator", "spanish", "Birds *talk*.", &[says("Los pájaros *hablan*.")], vec![]),
        case(
            "tutor",
            "fraction",
            "Fractions, please.",
            &[
                calls(&[("ask_user", json!({"question": "What is a half and a quarter?"}))]),
                calls(&[("calculator", json!({"expression": "1/2 + 1/4"}))]),
                says(
                    "Three quarters is right. You found a common denominator, and that is the way.",
                ),
            ],
            vec![Answers("three quarters")],
        ),
        Case {
            agents: vec![
                (
                    "research",
                    vec![
                        calls(&[("ask_user", json!({"question": "All birds, or mynas only?"}))]),
                        says(&birds.to_string()),
                        says(&birds.to_string()),
                    ],
                ),
                ("critic", vec![says("No claim lacks a source.")]),
            ],
            ..case(
                "report",
                "talking-birds",
                "Which mynah birds can talk?",
                &[
                    calls(&[("research", json!({"task": "Which mynah birds can talk?"}))]),
                    calls(&[(
                        "critic",
                        json!({"task": "The hill myna talks (https://example.org/mynas)."}),
                    )]),
                    says("The hill myna talks best; see https://example.org/mynas."),
                ],
                vec![Answers("mynas only")],
            )
        },
        case(
            "local",
            "sum",
            "What is 6 times 7?",
            &[calls(&[("calculator", json!({"expression": "6 * 7"}))]), says("42.")],
            vec![],
        ),
    ]
}

/// A script in place of the model that an agent file names. In the record it is that model.
struct Played {
    real: Fallback,
    script: Arc<Scripted>,
}

impl Adapter for Played {
    fn name(&self) -> &str {
        self.real.name()
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Arc::clone(&self.script).open(request, call)
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        self.real.needs_structured_finalize(request)
    }

    fn schema_fit(&self) -> Option<u32> {
        self.real.schema_fit()
    }
}

fn played(file: &AgentFile, text: &str, scripts: Vec<Value>) -> Engine {
    let table: Value = toml::from_str(text).unwrap();
    let fallback = table["fallback"].as_array().cloned().unwrap_or_default();
    let (first, model) = HttpAdapter::for_model(file.model()).unwrap();
    let mut real = Fallback::new(first);
    for name in fallback {
        let (next, model) = HttpAdapter::for_model(name.as_str().unwrap()).unwrap();
        real = real.or(next, model);
    }
    let script = Arc::new(Scripted::new(scripts).unwrap());
    Engine::new(Played { real, script }).model(model)
}

/// Records a run in a folder that the agent's tools may change.
async fn record(case: Case, goldens: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("examples/agents");
    for sub in ["data", "mail"] {
        fs::create_dir_all(agents.join(sub)).unwrap();
        for entry in fs::read_dir(examples().join(sub)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), agents.join(sub).join(entry.file_name())).unwrap();
        }
    }
    for file in ["invoice.schema.json", "research.toml"] {
        fs::copy(examples().join(file), agents.join(file)).unwrap();
    }
    fs::write(folder.path().join("README.md"), "# All about mynah birds\n").unwrap();
    let name = format!("{}.toml", case.agent);
    let text = fs::read_to_string(examples().join(&name)).unwrap();
    let file = AgentFile::parse(agents.join(name), &*text).unwrap();
    let engine = |file: &AgentFile| {
        let of_agent = case.agents.iter().find(|(name, _)| file.name() == *name);
        Ok::<_, FileError>(Some(match of_agent {
            Some((_, scripts)) => {
                Engine::new(Scripted::new(scripts.clone()).unwrap()).model(file.model())
            }
            None => played(file, &text, case.scripts.clone()),
        }))
    };
    let engine = file.build_with(&engine).await.unwrap().engine;
    let fetched =
        engine.resolve_tools(&Options::new()).into_iter().filter(|tool| tool.name() == "fetch");
    let page = |_: Value, _: ToolContext| {
        let page = ToolOutcome::Ok("Hill mynas talk best.".into());
        Box::pin(std::future::ready(page)) as BoxFuture<ToolOutcome>
    };
    let fetched: Vec<_> = fetched.map(|tool| tool.with_handler(Arc::new(page))).collect();
    let (log, mut person) = (MemoryLog::new(), VecDeque::from(case.person));
    let mut result = engine.chat(case.goal).tools(fetched.clone()).record(&log).await.unwrap();
    while result.halted_reason != HaltReason::Completed {
        let resume = engine.resume(&log, waiting(&result)).tools(fetched.clone());
        let id = result.manual_tool_calls().first().map(|call| call.id.clone()).unwrap_or_default();
        let resume = match person.pop_front().unwrap_or_else(|| panic!("{}: {result:?}", case.name))
        {
            Approves => resume.approve(&id),
            Edits(arguments) => resume.approve_with(&id, arguments),
            Rejects(why) => resume.reject(&id, why),
            Answers(text) => resume.answer(text),
        };
        result = resume.await.unwrap();
    }
    let _ = fs::remove_file(goldens.join(format!("{}.ndjson", case.name)));
    golden::add(&log, waiting(&result), goldens, case.name, &Rules::default()).await.unwrap();
}

fn waiting(result: &ChatResult) -> &str {
    result.run_id.as_ref().unwrap()
}

#[tokio::test]
async fn each_agent_does_what_its_goldens_recorded() {
    let goldens = |case: &Case| examples().join("goldens").join(case.agent);
    let agent = |case: &Case| examples().join(format!("{}.toml", case.agent));
    if env::var_os("MYNAH_BLESS").is_some() {
        for case in cases() {
            let (name, goldens) = (case.name, goldens(&case));
            let engine = AgentFile::read(agent(&case)).unwrap().build().await.unwrap().engine;
            let checked = Check::new(&engine, &goldens).run().await.unwrap_or_default();
            if !checked.iter().any(|golden| golden.name == name && golden.ok) {
                record(case, &goldens).await;
            }
        }
    }
    assert!(cases().len() >= 10);
    for case in cases() {
        testing::check(agent(&case), goldens(&case)).await;
    }
}

/// Checks an agent whose file has another text, as if it stood in its place.
async fn changed(agent: &str, from: &str, to: &str) -> Vec<Checked> {
    let path = examples().join(format!("{agent}.toml"));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{agent}.toml has no {from:?}");
    let file = AgentFile::parse(&path, text.replace(from, to)).unwrap();
    let engine = file.build().await.unwrap().engine;
    Check::new(&engine, examples().join("goldens").join(agent)).run().await.unwrap()
}

#[tokio::test]
async fn a_changed_prompt_is_the_one_difference_that_is_found() {
    let from = "Never promise money or dates.";
    for golden in changed("mail", from, "Promise what it takes.").await {
        let [finding] = &golden.findings[..] else { panic!("{:?}", golden.findings) };
        let [change] = &finding.changes[..] else { panic!("{:?}", finding.changes) };
        assert_eq!(
            (finding.about.as_str(), change.place.as_str()),
            ("record", "about.params.system")
        );
        let text = |side: &Option<Value>| side.as_ref().unwrap().as_str().unwrap().to_owned();
        assert!(text(&change.recorded).ends_with(from), "{change}");
        assert!(text(&change.produced).ends_with("Promise what it takes."), "{change}");
        assert!(finding.to_string().contains("> about.params.system"), "{finding}");
    }
}

#[tokio::test]
async fn a_changed_tool_model_and_limit_are_found_field_by_field() {
    let table = [
        (
            "analyst",
            "shell = { permission = \"ask\"",
            "shell = { permission = \"allow\"",
            "about.tools",
        ),
        (
            "analyst",
            "model = \"anthropic:claude-sonnet-5-5\"",
            "model = \"anthropic:claude-opus-5-5\"",
            "about.model",
        ),
        ("mail", "turns = 40", "turns = 4", "about."),
        ("translator", "temperature = 0.2", "temperature = 0.9", "about.params.temperature"),
    ];
    for (agent, from, to, place) in table {
        for golden in changed(agent, from, to).await {
            assert!(!golden.ok, "{agent}: {from}");
            let changes = &golden.findings[0].changes;
            assert!(changes[0].place.starts_with(place), "{agent}: {changes:?}");
        }
    }
}
