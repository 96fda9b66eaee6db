//! What errors report to the person who has to act on them, and to the program that continues after them.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicUsize,
            Ordering::{self, Relaxed},
        },
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use mynah::{
    Adapter, AdapterReason, Approval, BoxFuture, Decision, Engine, Error, Event, HaltReason,
    ModelCall, ModelStream, Options, Request, Result, RetryPolicy, RunId, Session, Status, Tool,
    ToolReason, Worker, cancel_run, fork_run,
    log::{Log, MemoryLog, RunFilter},
    restore_session,
    schemars::{self, JsonSchema},
    step::{Config, Context},
    testing::{self, Script, Scripted},
};
use serde_json::{Value, json};

fn calls(id: &str, name: &str) -> Value {
    json!([{"tool_call": {"id": id, "name": name}}, {"finish": "tool_calls"}])
}

fn failing(reason: &str) -> Result<Engine> {
    let model = Scripted::new([json!([{"preflight_error": reason}])])?;
    Ok(Engine::new(model).retry(RetryPolicy::never()))
}

async fn only_run(log: &MemoryLog) -> Result<RunId> {
    let page = log.runs(RunFilter::new()).await?;
    assert_eq!(page.runs.len(), 1);
    Ok(page.runs[0].run_id.clone())
}

#[derive(Debug, serde::Deserialize, JsonSchema)]
struct Bird {
    wingspan: u32,
}

#[tokio::test]
async fn the_error_of_a_recorded_call_names_its_run_beside_its_json() -> Result<()> {
    let log = MemoryLog::new();
    let error = failing("not_found")?.chat("hi").record(&log).await.unwrap_err();
    assert_eq!(error.run_id(), Some(only_run(&log).await?));
    assert!(!error.metadata().contains_key("run_id"));
    assert_eq!(error.to_value(), serde_json::from_value::<Error>(error.to_value())?.to_value());

    let log = MemoryLog::new();
    let error = failing("not_found")?.chat("hi").record(&log).run_id("k").await.unwrap_err();
    assert_eq!(error.run_id(), Some("k".into()));
    let error = failing("not_found")?.generate("hi").record(&log).run_id("g").await.unwrap_err();
    assert_eq!(error.run_id(), Some("g".into()));

    let log = MemoryLog::new();
    let error = failing("not_found")?.start("hi").record(&log).await.unwrap_err();
    assert_eq!(error.run_id(), Some(only_run(&log).await?));

    let log = MemoryLog::new();
    let broken = Scripted::new([json!([{"text": "half"}, {"error": "overloaded"}])])?;
    let result = Engine::new(broken).chat("hi").record(&log).run_id("b").await?;
    assert_eq!(result.error().and_then(|error| error.run_id()), Some("b".into()));

    let log = MemoryLog::new();
    let tool = Tool::new("look", "", json!({})).handler(async |_, _| "seen");
    let endless = Engine::new(Scripted::new([calls("c0", "look")])?).tool(tool).max_turns(1);
    let chat = endless.chat("hi").record(&log).run_id("h");
    let error = chat.answer_as::<Bird>().await.map(drop).unwrap_err();
    assert_eq!(error.halted_reason(), Some(HaltReason::MaxTurns));
    assert_eq!(error.run_id(), Some("h".into()));
    // A call that is not recorded has no run.
    assert_eq!(failing("not_found")?.chat("hi").await.unwrap_err().run_id(), None);
    Ok(())
}

#[tokio::test]
async fn a_run_whose_model_call_failed_for_good_says_how_it_is_called_again() -> Result<()> {
    let log = MemoryLog::new();
    let chat = |engine: &Engine| engine.chat("hi").record(&log).run_id("k");
    let failed = chat(&failing("not_found")?).start_or_resume().await.map(drop).unwrap_err();
    let corrected = Engine::new(Scripted::says(["Hello."])).retry(RetryPolicy::never());
    let again = chat(&corrected).start_or_resume().await.map(drop).unwrap_err();
    let advice = "; run k has failed; allow_changed_engine() calls the model again, in another run";
    for error in [&failed, &again] {
        assert!(error.to_string().ends_with(advice), "{error}");
        assert_eq!(error.kind(), mynah::ErrorKind::Adapter(AdapterReason::NotFound));
    }
    let run = chat(&corrected).allow_changed_engine().start_or_resume().await?;
    assert_eq!((run.result().text().as_ref(), &**run.run_id()), ("Hello.", "k~2"));
    Ok(())
}

/// Says something, and fails with a cause.
struct Cut;

impl Adapter for Cut {
    fn name(&self) -> &str {
        "cut"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(async {
            let error = Error::adapter(AdapterReason::NetworkError)
                .caused_by(io::Error::other("the cable is cut"));
            let events = [Ok(Event::message_started()), Ok(Event::text_delta("half")), Err(error)];
            Ok(stream::iter(events).boxed() as ModelStream)
        })
    }
}

#[tokio::test]
async fn the_cause_of_a_broken_stream_is_in_the_result_and_in_a_replay() -> Result<()> {
    let log = MemoryLog::new();
    let engine = Engine::new(Cut).model("m");
    let result = engine.chat("hi").record(&log).run_id("k").await?;
    let replayed = testing::collect(engine.replay(&log, "k").stream()).await?;
    let replayed = replayed.iter().find_map(|event| match event {
        Event::ChatCompleted { result } => result.error(),
        _ => None,
    });
    for error in [result.error(), result.into_text().err(), replayed] {
        assert!(error.unwrap().message().contains("the cable is cut"));
    }
    Ok(())
}

#[tokio::test]
async fn a_session_tells_calls_with_an_unknown_outcome_from_those_that_wait_for_approval()
-> Result<()> {
    let log = MemoryLog::new();
    let pay = |is_asked| {
        let pay = Tool::new("pay", "", json!({}));
        let pay = if is_asked { pay.approval(Approval::Ask) } else { pay };
        pay.handler(async |_, _| std::future::pending::<String>().await)
    };
    let engine = |is_asked| {
        Ok::<_, Error>(Engine::new(Scripted::new([calls("c0", "pay")])?).tool(pay(is_asked)))
    };
    let (session, _) = engine(true)?.start(Session::from("pay").with_id("a")).record(&log).await?;
    assert_eq!(session.pending_tool_calls().len(), 1);
    assert_eq!(session.uncertain_tool_calls().count(), 0);

    let engine = engine(false)?;
    let mut turn = engine.start(Session::from("pay").with_id("u")).record(&log).stream();
    let cut = async {
        while let Some(event) = turn.next().await {
            event?;
        }
        Ok::<_, Error>(())
    };
    assert!(tokio::time::timeout(Duration::from_millis(200), cut).await.is_err());
    drop(turn);
    let unfinished = restore_session(&log, "u").await?.unfinished.unwrap();
    engine.resume(&log, &unfinished).await?;
    let session = restore_session(&log, "u").await?.session;
    assert_eq!(session.status(), Status::AwaitingTools);
    let uncertain: Vec<_> = session.uncertain_tool_calls().map(|call| &*call.id).collect();
    assert_eq!(uncertain, ["c0"]);
    let error = engine.reply(&session, "and?").record(&log).await.map(drop).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("outcome of some of its calls is unknown"), "{told}");
    assert!(told.contains("runs them again"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_loop_that_a_model_call_ended_continues_in_a_fork_that_its_error_names() -> Result<()> {
    let (log, paid) = (Arc::new(MemoryLog::new()), Arc::new(AtomicUsize::new(0)));
    let pay = || {
        let paid = Arc::clone(&paid);
        Tool::new("pay", "", json!({})).handler(move |_: Value, _| {
            paid.fetch_add(1, Relaxed);
            async { "paid" }
        })
    };
    let agent = async |config: Config| -> Result<String> {
        let run = Context::new(config)?;
        let turns = run.run("go", async |cx| {
            let calls = cx.call_model(Request::from("pay")).await?.response;
            cx.call_tools(calls.tool_calls().cloned().collect::<Vec<_>>()).await?;
            cx.call_model(Request::from("and?")).await?.response.into_text()
        });
        turns.await
    };
    let config = |run: &str, model: Scripted| Config::new(&log, run).adapter(model).tools([pay()]);
    let overloaded = || Script::new().fail(Error::adapter(AdapterReason::Overloaded));
    let call = Script::new().tool_call("c0", "pay", json!({})).call_tools();
    let first = Scripted::play([call, overloaded(), overloaded(), overloaded()]);
    let error = agent(config("l", first)).await.unwrap_err();
    assert!(error.is_resumable(), "{error}");

    let error = config("l", Scripted::says(["done"])).resume().await.and_then(Context::new);
    let error = error.map(drop).unwrap_err();
    assert_eq!(error.reason(), "sealed");
    let told = r#"run l has ended; its model call failed; mynah::fork_run(&log, "l", 5) copies"#;
    assert!(error.message().contains(told), "{error}");
    let fork = fork_run(&log, "l", 5).await?;
    let resumed = config(&fork.run_id, Scripted::says(["done"])).resume().await?;
    assert_eq!(agent(resumed).await?, "done");
    assert_eq!(paid.load(Relaxed), 1);

    let failing = async |run: &Context| -> Result<()> {
        run.run("go", async |cx| cx.random().await.and(Err(Error::tool(ToolReason::Failed)))).await
    };
    failing(&Context::new(config("own", Scripted::says([""; 0])))?).await.unwrap_err();
    let ended = config("own", Scripted::says([""; 0])).resume().await.and_then(Context::new);
    let ended = ended.map(drop).unwrap_err();
    let told =
        r#"it failed; mynah::fork_run(&log, "own", 2) copies the records before its failure"#;
    assert!(ended.message().contains(told), "{ended}");
    Ok(())
}

#[tokio::test]
async fn ids_of_new_runs_follow_one_rule() -> Result<()> {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::says(["Hello.", "Hello."]));
    let start = async |id: String| engine.chat("hi").record(&log).run_id(id).await;
    for (length, code) in [(0, "empty"), (245, "too_long"), (300, "too_long")] {
        let error = start("x".repeat(length)).await.unwrap_err();
        assert_eq!(error.field_errors()[0].code, code);
        let rule = format!("it has {length} bytes; the id of a run has 1 to 244");
        assert!(error.to_string().ends_with(&rule), "{error}");
    }
    let error = start("inv~2".to_owned()).await.unwrap_err();
    assert!(error.to_string().contains("belong to runs that continue others"), "{error}");
    let error = start("last".to_owned()).await.unwrap_err();
    assert!(error.to_string().contains("the newest run on the command line"), "{error}");
    start("inv~two".to_owned()).await?;
    start("x".repeat(244)).await?;
    Ok(())
}

#[tokio::test]
async fn an_approval_that_cannot_count_says_why() -> Result<()> {
    let log = MemoryLog::new();
    let engine = |about: &str| {
        let model = Scripted::new([calls("c0", "pay"), calls("c0", "pay")])?;
        let pay = Tool::new("pay", about, json!({})).approval(Approval::Ask);
        Ok::<_, Error>(Engine::new(model).tool(pay.handler(async |_, _| "paid")))
    };
    let first = engine("Pays.")?;
    let chat = |engine: &Engine, id: &str| engine.chat("pay").record(&log).run_id(id);
    drop(chat(&first, "stale").start_or_resume().await?);
    let changed = engine("Pays twice.")?;
    let run = chat(&changed, "stale").allow_changed_engine().start_or_resume().await?;
    let error = run.decide(|_| Decision::Approve).await.map(drop).unwrap_err();
    assert_eq!(error.reason(), "approval_stale");
    assert!(error.to_string().contains("Engine::resume(…).approve_digest"), "{error}");

    drop(chat(&first, "gone").start_or_resume().await?);
    cancel_run(&log, "gone").await?;
    let error = first.resume(&log, "gone").approve("c0").await.unwrap_err();
    assert!(!error.to_string().contains("decided before"), "{error}");

    let error = first.step("pay").record(&log).run_id("stale").await.unwrap_err();
    assert_eq!(error.reason(), "run_exists");
    assert!(!error.to_string().contains("allow_changed_engine"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_worker_with_several_agents_says_that_a_run_names_none_and_leaves_it_alone() -> Result<()>
{
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::says(["Hello."]));
    engine.chat("hi").record(&log).run_id("k").enqueue().await?;
    let (told, failures) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
    let (heard, counted) = (Arc::clone(&told), Arc::clone(&failures));
    let worker = Worker::new(&log).agent("a", engine.clone()).agent("b", engine);
    let worker = worker.on_failure(move |_: &RunId, error: &Error| {
        *heard.lock().unwrap() = error.to_string();
        counted.fetch_add(1, Ordering::Relaxed);
    });
    worker.run(tokio::time::sleep(Duration::from_millis(1_000))).await?;
    let told = told.lock().unwrap().clone();
    assert!(told.contains("run k names no agent, so only a worker with one agent performs it, and this worker has: a, b"), "{told}");
    assert!(failures.load(Ordering::Relaxed) <= 3, "it is claimed again and again");
    Ok(())
}

#[test]
fn options_are_checked_as_a_call_checks_them() {
    for (options, rule) in [
        (Options::new().temperature(2.5), "; temperature must be a number from 0 to 2"),
        (Options::new().max_tokens(0), "; max_tokens must be a whole number from 1 up"),
    ] {
        let error = options.check().unwrap_err();
        assert!(error.is_validation() && error.to_string().ends_with(rule), "{error}");
    }
    for (wrong, rule) in [
        (json!({"tool_choice": 7}), r#"; tool_choice must be "auto", "none", "required", "#),
        (json!({"retry": 7}), r#"; retry must be an object such as {"max_attempts": 3"#),
    ] {
        let error = Options::from_json(wrong).and_then(|options| options.check()).unwrap_err();
        assert!(error.to_string().contains(rule), "{error}");
        assert!(error.message().ends_with(": invalid_shape"), "{error}");
    }
    assert!(Options::new().temperature(2.0).max_tokens(1).check().is_ok());
}

#[test]
fn an_option_whose_name_is_almost_a_known_one_is_refused_by_a_check() -> Result<()> {
    let options = |value| Options::from_json(value);
    let error = options(json!({"max_turn": 3, "top_p": 1, "Temprature": 0}))?.check().unwrap_err();
    assert_eq!(error.field_errors().len(), 2);
    for meant in ["did you mean max_turns?", "did you mean temperature?"] {
        assert!(error.to_string().contains(meant), "{error}");
    }
    let provider = json!({"top_p": 1, "max_completion_tokens": 9, "reasoning_effort": "low"});
    options(provider)?.check()?;
    let error = options(json!({"budget": {"usd": 1}}))?.check().unwrap_err();
    assert!(error.to_string().contains("; a budget has max_input_tokens, "), "{error}");
    assert!(error.to_string().ends_with(", allow_unknown_price"), "{error}");
    Ok(())
}

#[tokio::test]
async fn what_a_program_gets_wrong_is_answered_with_what_it_can_do() -> Result<()> {
    let model = || Scripted::new([calls("c0", "nope")]);
    let error = Engine::new(model()?).chat("go").run_id("r").await.unwrap_err();
    assert!(error.to_string().ends_with("a call with a run_id needs record(&log)"), "{error}");

    let pay = Tool::new("pay", "", json!("x")).handler(async |_, _| "paid");
    let error = Engine::new(model()?).tool(pay).chat("go").await.unwrap_err();
    let told = r#"not_a_map; the schema of tool "pay" must be a JSON object"#;
    assert!(error.to_string().ends_with(told), "{error}");

    let result = Engine::new(model()?).chat("go").await?;
    let error = result.error().unwrap();
    assert!(error.to_string().contains("on_unknown_tool(OnUnknownTool::Answer)"), "{error}");
    // The model reads nothing of the program's options.
    let read = result.thread.messages.last().map(|message| message.text().into_owned());
    assert!(!read.unwrap().contains("on_unknown_tool"));

    let log = Arc::new(MemoryLog::new());
    let agent = async |config: Config, effect: &str| {
        let run = Context::new(config)?;
        let value = async { Ok::<_, Error>(1) };
        run.run("go", async |cx| cx.side_effect::<u8, _>(effect, value).await).await
    };
    let config = || Config::new(&log, "l");
    agent(config(), "one").await?;
    let error = agent(config().replay().await?, "two").await.unwrap_err();
    assert_eq!(error.kind().type_name(), "replay_mismatch");
    assert!(error.to_string().contains("a loop may depend only on its arguments"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_typed_answer_follows_an_approval() -> Result<()> {
    let log = MemoryLog::new();
    let answer = json!([{"text": r#"{"wingspan": 43}"#}, {"finish": "stop"}]);
    let measure = Tool::new("measure", "", json!({})).approval(Approval::Ask);
    let engine = Engine::new(Scripted::new([calls("c0", "measure"), answer])?)
        .tool(measure.handler(async |_, _| "43"));
    let chat = || engine.chat("How wide?").record(&log).run_id("k").answer_as::<Bird>();
    let error = chat().await.unwrap_err();
    assert_eq!(error.halted_reason(), Some(HaltReason::ManualToolCalls));
    engine.resume(&log, "k").approve("c0").await?;
    assert_eq!(chat().await?.wingspan, 43);
    Ok(())
}

#[tokio::test]
async fn an_answer_in_a_fence_is_read() -> Result<()> {
    let engine = Engine::new(Scripted::says(["```json\n{\"wingspan\": 43}\n```\n"]));
    assert_eq!(engine.chat("How wide?").answer_as::<Bird>().await?.wingspan, 43);
    Ok(())
}
