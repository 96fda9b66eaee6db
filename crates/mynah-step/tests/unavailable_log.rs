//! A loop that gives something up while its log is unavailable finds the same in its records.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use futures_util::future::join;
use mynah_data::{Budget, Error, LogReason, Request, Result, ToolCall};
use mynah_log::{Append, Fact, Head, Log, LogFuture, MemoryLog, Resolution};
use mynah_step::{
    Adapter, BoxFuture, Config, Context, ModelCall, ModelStream, OnUncertain, RunMode,
};

use crate::common::*;

/// A log that appends nothing while it is away.
#[derive(Clone, Default)]
struct Away {
    log: Arc<MemoryLog>,
    is_away: Arc<AtomicBool>,
}

impl Away {
    /// Leaves for three seconds.
    fn leave(&self) {
        self.is_away.store(true, Relaxed);
        let log = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            log.is_away.store(false, Relaxed);
        });
    }
}

impl Log for Away {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        match self.is_away.load(Relaxed) {
            true => Box::pin(async { Err(Error::log(LogReason::Unavailable)) }),
            false => self.log.append(batch),
        }
    }

    mynah_log::forward_log!(self => self.log);
}

/// A model that takes the log away with its answer.
struct TakesAway(Away, Plays);

impl Adapter for TakesAway {
    fn name(&self) -> &str {
        "takes_away"
    }

    fn open(self: Arc<Self>, request: Request, to: ModelCall) -> BoxFuture<Result<ModelStream>> {
        self.0.leave();
        Arc::new(self.1.clone()).open(request, to)
    }
}

/// Runs a loop with a log that goes away in it, replays it, and resumes it after each record: it must come to the same.
async fn in_an_outage<T: PartialEq + std::fmt::Debug>(
    agent: impl AsyncFn(&Context, &Away) -> Result<T>,
) -> T {
    let answers = || plays([says(&["hi"]), says(&["ho"])]);
    let config = |away: &Away| {
        let (leaves, work) = (away.clone(), away.clone());
        let work = tool("work", move |_| {
            work.leave();
            async { "worked" }
        });
        let config = Config::new(&leaves, RUN).on_uncertain(OnUncertain::Rerun);
        config.adapter(TakesAway(leaves, answers())).tools([work])
    };
    let whole = Away::default();
    let perform = async |config: Config, away: &Away| {
        perform(config, async |context: &Context| agent(context, away).await).await
    };
    let live = perform(config(&whole), &whole).await.expect("the run goes well");
    let records = read(&whole.log).await;
    let again = config(&whole).mode(RunMode::Replay(records.clone()));
    assert_eq!(perform(again, &whole).await.as_ref(), Ok(&live), "again");
    for kept in 1..records.len() {
        let away = Away::default();
        let first = Append::new(RUN, None, records[..kept].to_vec());
        assert!(away.log.append(first).await.is_ok());
        let resumed = config(&away).resume().await.expect("it can go on");
        let done = perform(resumed, &away).await;
        // What was not recorded when the run was cut off may come to something else.
        if kept > 3 {
            assert_eq!(done.as_ref(), Ok(&live), "after {kept}");
        }
        assert!(done.is_ok(), "after {kept}: {done:?}");
    }
    live.expect("the loop goes well")
}

/// Whether something is done within a second. What comes after it depends on that.
async fn in_time<T>(context: &Context, what: impl Future<Output = T>) -> Result<bool> {
    let is_done = tokio::time::timeout(Duration::from_secs(1), what).await.is_ok();
    let then = if is_done { "continue" } else { "fall back" };
    context.side_effect(then, async { Ok::<_, Error>(()) }).await?;
    Ok(is_done)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_recorded_while_the_log_was_away_reached_the_loop() {
    let agent =
        async |context: &Context, _: &Away| in_time(context, context.call_model(ask("hi"))).await;
    assert!(in_an_outage(agent).await);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_was_recorded_while_the_log_was_away_reached_the_loop() {
    let agent = async |context: &Context, _: &Away| {
        in_time(context, context.call_tool(call("c0", "work"))).await
    };
    assert!(in_an_outage(agent).await);
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_was_recorded_while_the_log_was_away_reached_the_loop() {
    let agent = async |context: &Context, away: &Away| {
        let effect = async {
            away.leave();
            Ok::<_, Error>(1)
        };
        in_time(context, context.side_effect("effect", effect)).await
    };
    assert!(in_an_outage(agent).await);
}

#[tokio::test(start_paused = true)]
async fn what_begins_while_the_log_is_away_waits_for_it() {
    for kind in ["effect", "tool", "model"] {
        let agent = async |context: &Context, away: &Away| {
            let leave = async {
                away.leave();
                Ok::<_, Error>(())
            };
            context.side_effect("leave", leave).await?;
            let begun = tokio::time::Instant::now();
            match kind {
                "effect" => context.side_effect("next", async { Ok::<_, Error>(()) }).await?,
                "tool" => context.call_tool(call("c0", "work")).await.map(drop)?,
                _ => context.call_model(ask("hi")).await.map(drop)?,
            }
            Ok::<_, Error>(begun.elapsed())
        };
        let away = Away::default();
        let work = tool("work", |_| async { "worked" });
        let config = Config::new(&away, RUN).adapter(plays([says(&["hi"])])).tools([work]);
        let waited = perform(config, async |context: &Context| agent(context, &away).await).await;
        let waited = waited.expect("the run goes well").expect("the loop goes well");
        assert!(waited >= Duration::from_secs(3), "{kind}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_done_while_the_log_was_away_is_kept_when_it_is_back_though_the_loop_waits() {
    let away = Away::default();
    let context = Context::new(Config::new(&away, RUN)).expect("a run");
    let run = context.run("go", async |cx| {
        let leave = async {
            away.leave();
            Ok::<_, Error>(())
        };
        cx.side_effect("leave", leave).await?;
        std::future::pending::<Result<()>>().await
    });
    assert!(tokio::time::timeout(Duration::from_secs(9), run).await.is_err(), "it waits");
    assert_eq!(kinds(&facts(&read(&away.log).await)), ["run_started", "side_effect"]);
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_no_room_was_left_for_is_not_recorded_when_it_is_given_up() {
    let agent = async |context: &Context, away: &Away| {
        let large = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            away.leave();
            Ok::<_, Error>("x".repeat(5 << 20))
        };
        let small = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok::<_, Error>(1)
        };
        let small =
            tokio::time::timeout(Duration::from_secs(1), context.side_effect("small", small));
        let (large, small) = join(context.side_effect("large", large), small).await;
        in_time(context, std::future::pending::<()>()).await?;
        Ok((large.is_ok(), small.is_ok()))
    };
    assert_eq!(in_an_outage(agent).await, (true, false));
}

/// Makes the log leave with so much to write that nothing is added to it.
async fn fill(context: &Context, away: &Away) -> Result<()> {
    let large = async {
        away.leave();
        Ok::<_, Error>("x".repeat(5 << 20))
    };
    context.side_effect("large", large).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_room_is_recorded_by_its_own_task_alone() {
    let away = Away::default();
    let context = Context::new(Config::new(&away, RUN)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(fill(&context, &away).await, Ok(()));
    let given_up = {
        let mut given_up = pin!(context.random());
        let polled = poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "there is no room");
        tokio::time::sleep(Duration::from_secs(9)).await;
        context.now().await
    };
    assert!(given_up.is_ok(), "the log is back, and the other task makes room");
    assert_eq!(context.flush().await, Ok(()));
    let facts = facts(&read(&away.log).await);
    let names = facts.iter().filter_map(|fact| match fact {
        Fact::SideEffect { name, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["large", "now"]);
}

#[tokio::test(start_paused = true)]
async fn calls_whose_time_runs_out_while_they_are_announced_have_not_begun() {
    let agent = async |context: &Context, away: &Away| {
        let leave = async {
            away.leave();
            Ok::<_, Error>(())
        };
        context.side_effect("leave", leave).await?;
        let large = ToolCall::new("c0", "work", format!("\"{}\"", "x".repeat(5 << 20)));
        let calls = [large, call("c1", "work"), call("c2", "work")];
        Ok::<_, Error>(context.call_tools(calls).await.map_err(|error| error.reason().to_owned()))
    };
    let away = Away::default();
    let config = |log: &Away| {
        let budget = Budget::new().max_wall_clock_ms(1_000);
        Config::new(log, RUN).tools([tool("work", |_| async { "worked" })]).budget(budget)
    };
    let told = Ok(Err("budget_exceeded".to_owned()));
    let live = perform(config(&away), async |context: &Context| agent(context, &away).await).await;
    let records = read(&away.log).await;
    assert_eq!(live.expect("the run goes well"), told);
    let facts = facts(&records);
    let kinds = kinds(&facts);
    let expected = [["tool_scheduled"; 3], ["tool_failed"; 3]].concat();
    assert_eq!(kinds[2..8], expected);
    assert_eq!(kinds[8..], ["budget_exceeded", "completed", "sealed"]);
    for fact in &facts[5..8] {
        let Fact::ToolFailed { error, resolution, .. } = fact else {
            unreachable!("it is its kind")
        };
        assert_eq!(*resolution, Resolution::CutOff);
        assert_eq!(error.metadata().get("not_begun"), Some(&true.into()), "{error:?}");
    }
    let again = config(&away).mode(RunMode::Replay(records));
    let again = perform(again, async |context: &Context| agent(context, &away).await).await;
    assert_eq!(again.expect("the replay is equal"), told);
}
