//! A custom loop that is resumed after its process ended.

use mynah_log::VerifyStatus;
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures_util::stream;
use mynah_data::{
    Breach, BreachTime, Budget, Error, Event, FinishReason, Limit, Request, Result, ToolCall,
    ToolOutcome, ToolReason,
};
use mynah_log::{Append, Fact, Kind, Log as _, MemoryLog, Record, verify};
use mynah_step::{
    Adapter, BoxFuture, CallTool, Config, Context, LEASE, ModelCall, ModelStream, OnUncertain,
    RunMode, Tool, ToolContext, World,
};
use serde_json::{Value, json};

use crate::common::*;

#[tokio::test(start_paused = true)]
async fn a_loop_cut_off_after_any_record_comes_to_the_same_and_does_nothing_completed_twice() {
    let log = Arc::new(MemoryLog::new());
    let live = agent(&first_process(&log).context(), &Doings::default()).await.expect("it runs");
    let whole = read(&log).await;
    assert!(whole.len() > 40, "{}", whole.len());
    for cut in 1..whole.len() {
        let (log, records, resumed) = resumed_after(&whole[..cut], 1).await;
        assert_eq!(without_chance(&resumed), without_chance(&live), "cut after {cut}");
        for again in (cut + 1..records.len()).step_by(7) {
            let (_, _, twice) = resumed_after(&records[..again], 2).await;
            assert_eq!(without_chance(&twice), without_chance(&live), "{cut}, then {again}");
        }
        drop(log);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ended_before_its_seal_gets_it() {
    let log = Arc::new(MemoryLog::new());
    let live = agent(&first_process(&log).context(), &Doings::default()).await.expect("it runs");
    let whole = read(&log).await;
    let (_, records, resumed) = resumed_after(&whole[..whole.len() - 1], 1).await;
    assert_eq!(resumed, live);
    assert_eq!(kinds(&facts(&records)), kinds(&facts(&whole)), "there is no seam before it");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_something_else_than_it_did_is_told_before_it_has_done_anything() {
    let log = Arc::new(MemoryLog::new());
    let (context, model) = (plain(&log).adapter(plays([says(&["hi"])])), plays([says(&["ho"])]));
    let context = Context::new(context).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert!(context.call_model(ask("one")).await.is_ok());
    assert_eq!(context.flush().await, Ok(()));
    drop(context);
    let before = read(&log).await;
    let resumed = plain(&log).adapter(model.clone()).resume().await.expect("it is there");
    let context = Context::new(resumed).expect("it goes on");
    assert_eq!(begin(&context).await, Ok(()));
    let told = context.call_model(ask("two")).await.map(drop).map_err(|error| error.reason());
    assert_eq!(told, Err("payload"));
    assert_eq!((model.1.load(Relaxed), read(&log).await), (0, before));
}

#[tokio::test]
async fn of_two_that_go_on_with_a_run_one_does_and_the_other_has_done_nothing() {
    let log = Arc::new(MemoryLog::new());
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    let config = plain(&log).tools([tool("slow", move |_| {
        counted.fetch_add(1, Relaxed);
        async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            json!(1)
        }
    })]);
    let context = Context::new(config.clone()).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(context.flush().await, Ok(()));
    drop(context);
    let go_on = async || {
        let context = Context::new(config.clone().resume().await?)?;
        begin(&context).await?;
        context.call_tool(call("c0", "slow")).await.map(drop)
    };
    let (first, second) = tokio::join!(go_on(), go_on());
    let told = [first, second].map(|done| done.map_err(|error| error.reason()));
    assert!(told.contains(&Ok(())) && told.contains(&Err("leased")), "{told:?}");
    assert_eq!(done.load(Relaxed), 1);
}

#[tokio::test]
async fn who_read_a_run_before_another_went_on_with_it_is_refused() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(context.flush().await, Ok(()));
    drop(context);
    let [first, second] = [(); 2].map(|()| plain(&log));
    let (first, second) = (first.resume().await, second.resume().await);
    let [first, second] = [first, second].map(|config| config.and_then(Context::new));
    let (first, second) = (first.expect("it goes on"), second.expect("it goes on"));
    assert_eq!(begin(&first).await, Ok(()));
    assert!(first.random().await.is_ok());
    assert_eq!(first.flush().await, Ok(()));
    drop(first);
    assert_eq!(begin(&second).await, Ok(()));
    assert_eq!(second.random().await.map_err(|error| error.reason()), Err("head_mismatch"));
}

#[tokio::test(start_paused = true)]
async fn a_new_run_with_the_id_of_one_that_was_cut_off_is_told_to_resume_that() {
    let log = Arc::new(MemoryLog::new());
    let config = plain(&log).world(Clock::default());
    let killed = Context::new(config.clone()).expect("a run");
    assert_eq!(begin(&killed).await, Ok(()));
    assert_eq!(killed.flush().await, Ok(()));
    for seconds in [0, 3_600] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let again = Context::new(config.clone()).expect("a run");
        assert_eq!(begin(&again).await, Ok(()));
        let told = again.flush().await.expect_err("the id is taken");
        assert_eq!(told.reason(), "head_mismatch");
        let why = "run run-1 exists already, up to record 1, and has not ended; resume it, or";
        assert!(told.to_string().contains(why), "{told}");
    }
    let again = config.resume().await.and_then(Context::new).expect("it goes on");
    assert_eq!(begin(&again).await, Ok(()));
    assert_eq!(end(&again).await, Ok(()));
}

#[tokio::test]
async fn a_run_is_kept_while_its_process_lives() {
    let log = Arc::new(MemoryLog::new());
    let config = plain(&log).tools([tool("slow", async |_| {
        tokio::time::sleep(Duration::from_secs(4)).await;
        json!(1)
    })]);
    let context = Context::new(config.clone()).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    let other = async || {
        let context = Context::new(config.clone().resume().await?)?;
        begin(&context).await?;
        context.call_tool(call("c0", "slow")).await.map(drop)
    };
    let watch = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(other().await.map_err(|error| error.reason()), Err("leased"));
        }
    };
    let (done, ()) = tokio::join!(context.call_tool(call("c0", "slow")), watch);
    assert!(done.is_ok());
    assert_eq!(end(&context).await, Ok(()));
}

#[tokio::test]
async fn a_tool_of_which_nobody_knows_whether_it_ran_is_run_again_only_if_it_may_be() {
    let paid = Arc::new(AtomicUsize::new(0));
    let config = |log: &Arc<MemoryLog>, on_uncertain: OnUncertain| {
        let counted = paid.clone();
        let pay = tool("pay", move |_| {
            let paid = counted.fetch_add(1, Relaxed) + 1;
            async move { json!(paid) }
        });
        plain(log).tools([pay, tool("look", async |_| json!("seen"))]).on_uncertain(on_uncertain)
    };
    let agent = async |context: &Context| {
        begin(context).await?;
        let look = CallTool::from(call("look", "look")).idempotent(1);
        let done = context.call_tools([call("pay", "pay").into(), look]).await?;
        end(context).await?;
        Ok::<_, Error>(done.into_iter().map(|done| done.outcome).collect::<Vec<_>>())
    };
    let log = Arc::new(MemoryLog::new());
    let live = agent(&Context::new(config(&log, OnUncertain::Suspend)).expect("a run")).await;
    assert_eq!(live.map(|done| done.len()), Ok(2));
    let announced = &read(&log).await[..3];
    assert_eq!(kinds(&facts(announced))[1..], ["tool_scheduled", "tool_scheduled"]);
    let resumed = async |on_uncertain: OnUncertain| {
        paid.store(0, Relaxed);
        let log = log_of(announced).await;
        let context = config(&log, on_uncertain).resume().await.and_then(Context::new);
        let done = agent(&context.expect("it goes on")).await;
        (done, log, paid.load(Relaxed))
    };
    let seen = Ok(ToolOutcome::Ok(json!("seen")));
    // Waiting: what can be done is done, and the run stays as it is.
    let (done, log, ran) = resumed(OnUncertain::Suspend).await;
    let error = done.expect_err("its outcome is unknown");
    let message = "tool error (pay): the process ended during call pay, and its outcome is unknown; \
                   find out whether it did its work, then resume the run with on_uncertain(OnUncertain::Rerun) to run it again, \
                   or with OnUncertain::Fail to give the loop a failed call";
    assert_eq!(error.message(), message);
    let told = ["uncertain", "tool_call_id"].map(|name| &error.metadata()[name]);
    assert_eq!((told, ran), ([&json!(true), &json!("pay")], 0));
    let records = read(&log).await;
    let kept = ["resumed", "tool_scheduled", "tool_completed"];
    assert_eq!(kinds(&facts(&records))[3..], kept);
    // Later a person knows what to do.
    for (policy, outcome) in [(OnUncertain::Rerun, Ok(())), (OnUncertain::Fail, Err("failed"))] {
        let log = log_of(&records).await;
        paid.store(0, Relaxed);
        let context = config(&log, policy).resume().await.and_then(Context::new);
        let done = agent(&context.expect("it goes on")).await.expect("it ends");
        assert_eq!(done[0].clone().map(drop).map_err(|error| error.reason()), outcome);
        assert_eq!((&done[1], paid.load(Relaxed)), (&seen, usize::from(outcome.is_ok())));
        paid.store(0, Relaxed);
        let context = config(&log, policy).replay().await.and_then(Context::new);
        assert_eq!(agent(&context.expect("it is there")).await, Ok(done));
        assert_eq!(
            verify(RUN, &read(&log).await).map(|report| report.status),
            Ok(VerifyStatus::Verified)
        );
    }
    assert_eq!(resumed(OnUncertain::Rerun).await.2, 1);
}

#[tokio::test(start_paused = true)]
async fn what_runs_beside_a_call_whose_outcome_is_unknown_is_done_once() {
    // With `try_join`, the loop drops what runs beside it.
    for drops in [false, true] {
        let (log, done) = (Arc::new(MemoryLog::new()), AtomicUsize::new(0));
        let agent = async |config: Config, hangs: bool| {
            let tools = [("pay", 0), ("look", 20)].map(|(name, millis)| {
                let pause = Duration::from_millis(if hangs { 1_000_000 } else { millis });
                tool(name, move |_| async move {
                    tokio::time::sleep(pause).await;
                    json!("done")
                })
            });
            let work = async || {
                tokio::time::sleep(Duration::from_millis(50)).await;
                done.fetch_add(1, Relaxed);
                Ok::<_, Error>(1)
            };
            let context = Context::new(config.tools(tools))?;
            let run = context.run("go", async |cx| {
                // The other call of the batch ends after the work began.
                let paid = async {
                    let look = CallTool::from(call("look", "look")).idempotent(1);
                    let paid = cx.call_tools([call("pay", "pay").into(), look]).await?;
                    paid.into_iter().map(|paid| paid.outcome).collect::<Result<Vec<_>>>()
                };
                let beside = async {
                    if hangs {
                        std::future::pending::<()>().await;
                    }
                    cx.side_effect("work", work()).await
                };
                if drops {
                    return futures_util::future::try_join(beside, paid).await;
                }
                let (beside, paid) = futures_util::future::join(beside, paid).await;
                Ok((beside?, paid?))
            });
            let done = tokio::time::timeout(3 * LEASE, run).await;
            done.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
        };
        let reason = |done: Result<(i32, Vec<ToolOutcome>)>| done.map_err(|error| error.reason());
        assert_eq!(reason(agent(plain(&log), true).await), Err("timeout"));
        die(&log).await;
        let unknown = agent(plain(&log).resume().await.expect("a run"), false).await;
        assert!(unknown.expect_err("its outcome is unknown").metadata().contains_key("uncertain"));
        let rerun = plain(&log).resume().await.expect("a run").on_uncertain(OnUncertain::Rerun);
        let paid = Ok((1, vec![ToolOutcome::Ok(json!("done")); 2]));
        assert_eq!(agent(rerun, false).await, paid);
        assert_eq!(done.load(Relaxed), 1);
        assert_eq!(agent(plain(&log).replay().await.expect("a run"), false).await, paid);
    }
}

#[tokio::test]
async fn tools_that_were_not_all_announced_have_not_run_and_are_run() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let config = |log: &Arc<MemoryLog>| {
        let ran = ran.clone();
        plain(log).tools([tool("pay", move |context: ToolContext| {
            ran.lock().expect("nobody panicked").push((context.call.id.clone(), context.attempt()));
            async { json!(1) }
        })])
    };
    let agent = async |context: &Context| {
        begin(context).await?;
        let done = context.call_tools([call("a", "pay"), call("b", "pay")]).await?;
        end(context).await?;
        Ok::<_, Error>(done)
    };
    let log = Arc::new(MemoryLog::new());
    let live = agent(&Context::new(config(&log)).expect("a run")).await.expect("it ends");
    let log = log_of(&read(&log).await[..2]).await;
    ran.lock().expect("nobody panicked").clear();
    let context = config(&log).resume().await.and_then(Context::new).expect("it goes on");
    assert_eq!(agent(&context).await, Ok(live.clone()));
    let once = [("a".to_owned(), 1), ("b".to_owned(), 1)];
    assert_eq!(*ran.lock().expect("nobody panicked"), once);
    let context = config(&log).replay().await.and_then(Context::new).expect("it is there");
    assert_eq!(agent(&context).await, Ok(live));
}

#[tokio::test]
async fn every_limit_counts_on_also_what_no_provider_reported() {
    // 30 characters of prompt and 30 of answer, nothing reported: 10 tokens and some each.
    let prompt = "a prompt of thirty characters.";
    let answer = || says(&["an answer of thirty characters"]);
    let broken = || {
        vec![Ok(Event::message_started()), Ok(Event::text_delta("thirty characters, then silence"))]
    };
    for (script, budget, breach) in [
        (
            answer(),
            Budget::new().max_input_tokens(15),
            Breach::new(Limit::InputTokens, 15, 20, BreachTime::PreCall),
        ),
        (
            answer(),
            Budget::new().max_output_tokens(15),
            Breach::new(Limit::OutputTokens, 15, 20, BreachTime::MidStream),
        ),
        (
            answer(),
            Budget::new().max_total_tokens(25),
            Breach::new(Limit::TotalTokens, 25, 30, BreachTime::PreCall),
        ),
        (
            answer(),
            Budget::new().max_turns(1),
            Breach::new(Limit::Turns, 1, 2, BreachTime::PreCall),
        ),
        (
            broken(),
            Budget::new().max_output_tokens(15),
            Breach::new(Limit::OutputTokens, 15, 20, BreachTime::MidStream),
        ),
        (
            broken(),
            Budget::new().max_total_tokens(25),
            Breach::new(Limit::TotalTokens, 25, 30, BreachTime::PreCall),
        ),
    ] {
        let log = Arc::new(MemoryLog::new());
        let config =
            |log: &Arc<MemoryLog>, model: Plays| plain(log).adapter(model).budget(budget.clone());
        let agent = async |context: &Context| {
            begin(context).await?;
            drop(context.call_model(ask(prompt)).await);
            context.flush().await?;
            let second = context.call_model(ask(prompt)).await;
            end(context).await?;
            second
        };
        let live = config(&log, plays([script, answer()]));
        let live = agent(&Context::new(live).expect("a run")).await.expect_err("it is too much");
        assert_eq!(live.metadata()["budget"], json!(breach));
        let whole = read(&log).await;
        let second = facts(&whole).iter().rposition(|fact| fact.kind() == Kind::TurnStarted);
        let first = facts(&whole).iter().position(|fact| fact.kind() == Kind::TurnStarted);
        let cut = second.filter(|_| second != first).unwrap_or(3);
        let log = log_of(&whole[..cut]).await;
        let mode = RunMode::Resume(read(&log).await);
        let resumed = config(&log, plays([answer()])).mode(mode);
        let resumed = agent(&Context::new(resumed).expect("it goes on")).await;
        assert_eq!(resumed.map(drop), Err(live), "{breach:?}");
    }
}

#[tokio::test]
async fn nobody_is_told_of_what_the_records_tell() {
    let told = Arc::new(Told::default());
    let log = Arc::new(MemoryLog::new());
    let config = || {
        plain(&log)
            .adapter(plays([says(&["hi"]), says(&["ho"])]))
            .tools([tool("t", async |_| json!(1)).idempotent(1)])
            .metrics(told.clone())
    };
    let agent = async |context: &Context, calls: &[&str]| {
        begin(context).await?;
        context.call_model(ask("one")).await?;
        for id in calls {
            context.call_tool(call(id, "t")).await?;
        }
        context.flush().await
    };
    assert_eq!(agent(&Context::new(config()).expect("a run"), &["a"]).await, Ok(()));
    told.0.lock().expect("nobody panicked").clear();
    let context = config().resume().await.and_then(Context::new).expect("it goes on");
    assert!(context.is_replaying());
    assert_eq!(agent(&context, &["a", "b"]).await, Ok(()));
    assert!(!context.is_replaying());
    assert_eq!(told.calls(), [json!({"tool": "t", "failure": null})]);
}

/// What is done in the world, by its names.
#[derive(Clone, Default)]
struct Doings(Arc<Mutex<Vec<String>>>);

impl Doings {
    fn did(&self, what: impl Into<String>) {
        self.0.lock().expect("nobody panicked").push(what.into());
    }

    async fn effect(&self, name: &str) -> Result<String, String> {
        self.did(name);
        Ok(format!("{name} done"))
    }
}

/// A process that performs the loop.
struct Process {
    log: Arc<MemoryLog>,
    number: u64,
    doings: Doings,
    mode: RunMode,
}

fn first_process(log: &Arc<MemoryLog>) -> Process {
    Process { log: log.clone(), number: 0, doings: Doings::default(), mode: RunMode::Live }
}

impl Process {
    fn context(&self) -> Context {
        Context::new(self.config()).expect("a run")
    }

    fn config(&self) -> Config {
        let inner = {
            let doings = self.doings.clone();
            Tool::new("inner", "", json!({})).handler(move |arguments, context: ToolContext| {
                let doings = doings.clone();
                async move {
                    let first = context.random().await?;
                    let name = format!("inside {}", context.call.id);
                    let pause = Duration::from_millis(arguments.as_u64().unwrap_or(0));
                    let effect = async {
                        tokio::time::sleep(pause).await;
                        doings.effect(&name).await
                    };
                    let done = context.side_effect("inside", effect).await?;
                    doings.did(context.call.id.clone());
                    Ok::<_, Error>(
                        json!({"z": done, "chance": first, "a": context.random().await?}),
                    )
                }
            })
        };
        let flaky = {
            let doings = self.doings.clone();
            tool("flaky", move |context: ToolContext| {
                let doings = doings.clone();
                async move {
                    if context.attempt() < 3 {
                        return ToolOutcome::transient("busy");
                    }
                    doings.did(context.call.id.clone());
                    ToolOutcome::Ok(json!("at last"))
                }
            })
        };
        let fails = tool("fails", async |_| ToolOutcome::error("no")).idempotent(1);
        let tools = [inner.idempotent(1), flaky.idempotent(3), fails];
        let mut config = plain(&self.log).adapter(Echo(self.doings.clone())).tools(tools);
        config = config.world(Chance(AtomicU64::new(self.number << 20)));
        config.mode(self.mode.clone())
    }
}

/// A loop with everything in it.
async fn agent(context: &Context, doings: &Doings) -> Result<Value> {
    begin(context).await?;
    let at = context.now().await?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let chance = context.random().await?;
    let page = context.side_effect("page", doings.effect("page")).await?;
    let refused = async { Err::<(), _>("refused") };
    let failed = context.side_effect("refused", refused).await.map_err(|error| error.to_string());
    let first = context.call_model(ask(&format!("one {chance} {}", at.as_millis()))).await?;
    let calls =
        [("a", "inner", "30"), ("b", "flaky", "0"), ("c", "inner", "10"), ("d", "fails", "0")];
    let calls = calls.map(|(id, tool, pause)| {
        CallTool::from(ToolCall::new(id, tool, pause))
            .turn(first.turn)
            .backoff(|_| Duration::from_millis(7))
    });
    let results = context.call_tools(calls).await?;
    let results: Vec<Value> = results
        .into_iter()
        .map(|result| match result.outcome {
            Ok(ToolOutcome::Ok(value)) => value,
            other => json!(other.map(|_| "?").map_err(|error| error.to_string()).err()),
        })
        .collect();
    let second = context.call_model(ask(&json!(results).to_string())).await?;
    // The same id once more, and something at once with it.
    let id = context.new_call_id().await?;
    let (again, effect, unnamed) = tokio::join!(
        context.call_tool(ToolCall::new("a", "inner", "20")),
        context.side_effect("beside", doings.effect("beside")),
        context.call_tool(ToolCall::new("", "inner", "5")),
    );
    let message = Arc::new(mynah_data::Message::user(id));
    context.emit(Fact::UserMessage { message }).await?;
    end(context).await?;
    let texts = [first, second].map(|answer| answer.response.text().into_owned());
    let value = |outcome: Result<ToolOutcome>| outcome.map(|outcome| json!(outcome));
    Ok(json!([page, failed.err(), texts, results, value(again)?, effect?, value(unnamed)?]))
}

/// Resumes after these records, and replays the run when it has its end.
async fn resumed_after(prefix: &[Record], number: u64) -> (Arc<MemoryLog>, Vec<Record>, Value) {
    let log = log_of(prefix).await;
    let (doings, mode) = (Doings::default(), RunMode::Resume(prefix.to_vec()));
    let process = Process { log: log.clone(), number, doings: doings.clone(), mode };
    let resumed = agent(&process.context(), &doings).await.expect("it goes on");
    let records = read(&log).await;
    assert_eq!(records[..prefix.len()], *prefix);
    assert_eq!(verify(RUN, &records).map(|report| report.status), Ok(VerifyStatus::Verified));
    let done = doings.0.lock().expect("nobody panicked").clone();
    let twice: Vec<_> = done.iter().filter(|name| completed(prefix).contains(*name)).collect();
    assert!(twice.is_empty(), "after {} records: {twice:?}", prefix.len());
    let mode = RunMode::Replay(records.clone());
    let replay = Process { log: log.clone(), number: 9, doings, mode };
    let replayed = agent(&replay.context(), &Doings::default()).await;
    assert_eq!(
        replayed.as_ref().map(ToString::to_string),
        Ok(resumed.to_string()),
        "{}",
        prefix.len()
    );
    (log, records, resumed)
}

/// The names of what these records say was completed.
fn completed(records: &[Record]) -> HashSet<String> {
    let mut names = HashSet::new();
    let mut first_a = false;
    let mut turns = 0;
    for fact in facts(records) {
        match fact {
            Fact::SideEffect { inside: None, name, .. } => _ = names.insert(name),
            // This id is used twice.
            Fact::ToolCompleted { call_id, .. } if call_id == "a" && !first_a => first_a = true,
            Fact::ToolCompleted { call_id, .. } => {
                names.insert(format!("inside {call_id}"));
                names.insert(call_id);
            }
            Fact::AssistantCompleted { .. } => {
                turns += 1;
                names.insert(format!("answer {turns}"));
            }
            _ => {}
        }
    }
    names
}

async fn log_of(records: &[Record]) -> Arc<MemoryLog> {
    let log = Arc::new(MemoryLog::new());
    let batch = Append::new(RUN, None, records.to_vec());
    assert!(log.append(batch).await.is_ok());
    log
}

/// A value without what is by chance in it.
fn without_chance(value: &Value) -> String {
    let text = value.to_string();
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    let chances: HashSet<&str> = parts.filter(|part| part.len() > 12).collect();
    let mut text = text.clone();
    for chance in chances {
        text = text.replace(chance, "#");
    }
    text
}

/// A world in which each process has its own numbers.
struct Chance(AtomicU64);

impl World for Chance {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
            + Duration::from_millis(1_700_000_000_000 + self.random() % 1_000_000)
    }

    fn random(&self) -> u64 {
        (1 << 50) + self.0.fetch_add(1, Relaxed)
    }
}

/// A model with given answers.
#[derive(Clone)]
struct Echo(Doings);

impl Adapter for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn open(self: Arc<Self>, request: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let text = request.messages.iter().map(|message| message.text().into_owned());
        let text: String = text.collect();
        self.0.did(if text.starts_with("one") { "answer 1" } else { "answer 2" });
        let events = [
            Event::message_started(),
            Event::text_delta(text),
            Event::message_completed(Some(FinishReason::Stop)),
        ];
        Box::pin(async move { Ok(Box::pin(stream::iter(events.map(Ok))) as ModelStream) })
    }
}
