//! What the loop itself costs: each figure beside a limit or a peer taken in the same run.
//!
//! `cargo xtask bench core`. Ratios are what to look at; the times depend on the machine.

use std::{
    future::Future,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use mynah::{
    Adapter, Collector, Engine, Event, Message, ModelCall, Request, Session, Thread, Tool,
    ToolContext, ToolOutcome,
    testing::{Script, Scripted},
};
use serde_json::{Value, json};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Ok(runtime) = runtime else { return eprintln!("no runtime") };
    println!("{:<46} {:>12} {:>12} {:>8}  goal", "", "mynah", "beside", "ratio");
    runtime.block_on(tool_turn());
    runtime.block_on(typed_call::<8>());
    runtime.block_on(typed_call::<64>());
    collect_deltas();
    runtime.block_on(long_session());
}

/// One tool turn on the scripted model, against a hand-written loop over the same futures.
async fn tool_turn() {
    const TURNS: usize = 64;
    let (scripts, tool) = (scripts(TURNS), echo());
    let (mut ours, mut hand) = (Duration::MAX, Duration::MAX);
    for _ in 0..60 {
        let engine =
            Engine::new(Scripted::play(scripts.clone())).tool(tool.clone()).max_turns(1000);
        let time =
            timed(async { black_box(engine.chat("go").await.map(|result| result.steps.len())) })
                .await;
        ours = ours.min(time);
        hand = hand.min(timed(hand_written(Scripted::play(scripts.clone()), tool.clone())).await);
    }
    report(
        "one tool turn, against a hand-written loop",
        per(ours, TURNS),
        per(hand, TURNS),
        "under 2x, under 5 us",
    );
}

/// The weather in a city.
#[mynah::tool]
async fn get_weather(city: String, days: Option<u8>) -> Weather {
    Weather { city, days: days.unwrap_or(1), celsius: 21.0 }
}

#[derive(serde::Serialize)]
struct Weather {
    city: String,
    days: u8,
    celsius: f64,
}

/// One call of a typed tool in the loop, arguments checked, against calling its function. The loop without the call is what an
/// answer with calls costs whose tools the caller runs.
async fn typed_call<const CALLS: usize>() {
    let call = |script: Script, n: usize| {
        script.tool_call(format!("c{n}"), "get_weather", json!({"city": "Boston", "days": 3}))
    };
    let asks = (0..CALLS).fold(Script::new(), call).call_tools();
    let scripts = [asks, Script::new().text("done").stop()];
    let tool = get_weather();
    let (mut ours, mut idle, mut direct) = (Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..200 {
        let engine = || Engine::new(Scripted::play(scripts.clone())).tool(tool.clone());
        let (runs, hands_out) = (engine(), engine());
        ours = ours.min(timed(async { runs.step("go").await.is_ok() }).await);
        let manual = hands_out.step("go").mode(mynah::ToolMode::Manual);
        idle = idle.min(timed(async { manual.await.is_ok() }).await);
        let calls = async {
            for _ in 0..CALLS {
                black_box(get_weather::call(black_box("Boston".to_owned()), Some(3)).await);
            }
        };
        direct = direct.min(timed(calls).await);
    }
    report(
        &format!("one of {CALLS} typed calls, against its function"),
        per(ours.saturating_sub(idle), CALLS),
        per(direct, CALLS),
        "under 3 us over it",
    );
}

/// What a person would write: call, collect, run the tool, append, until there is no call.
async fn hand_written(adapter: Scripted, tool: Tool) {
    let adapter: Arc<dyn Adapter> = Arc::new(adapter);
    let mut thread = Thread::from("go");
    loop {
        let mut request = Request::new(Vec::<Message>::new()).with_tools([(**tool.spec()).clone()]);
        request.messages = thread.messages.clone();
        let Ok(mut stream) = Arc::clone(&adapter).open(request, ModelCall::default()).await else {
            return;
        };
        let (mut text, mut calls) = (String::new(), Vec::new());
        while let Some(Ok(event)) = stream.next().await {
            match event {
                Event::TextDelta { delta, .. } => text.push_str(&delta),
                Event::ToolCallCompleted(call) => calls.push(call),
                _ => {}
            }
        }
        if calls.is_empty() {
            black_box(text);
            return;
        }
        let parts = calls.iter().cloned().map(mynah::Part::ToolCall);
        thread.messages.push(Message::assistant_parts(parts));
        for call in calls {
            let context = ToolContext::new(Arc::clone(&call), Arc::new(mynah::SystemWorld));
            let Some(handler) = tool.get_handler() else { return };
            let ToolOutcome::Ok(value) = handler.call(call.arguments.clone(), context).await else {
                return;
            };
            thread.messages.push(Message::tool_result(call.id.as_str(), value.to_string()));
        }
    }
}

/// Collecting text, against appending it.
fn collect_deltas() {
    const DELTAS: usize = 100_000;
    let events: Vec<Event> =
        (0..DELTAS).map(|n| Event::text_delta(format!("word{} ", n % 10))).collect();
    let (mut ours, mut append) = (Duration::MAX, Duration::MAX);
    for _ in 0..30 {
        let start = now();
        let mut collector = Collector::new(Thread::new());
        events.iter().for_each(|event| collector.apply(event));
        black_box(&collector);
        ours = ours.min(start.elapsed());
        let start = now();
        let mut text = String::new();
        for event in &events {
            if let Event::TextDelta { delta, .. } = event {
                text.push_str(delta);
            }
        }
        black_box(&text);
        append = append.min(start.elapsed());
    }
    report(
        "one text delta, against String::push_str",
        per(ours, DELTAS),
        per(append, DELTAS),
        "under 3x",
    );
}

/// Turn 2,000 of a session, against turn 10.
async fn long_session() {
    const TURNS: usize = 2_000;
    let scripts = (0..TURNS).map(|_| Script::new().text("fine").stop());
    let engine = Engine::new(Scripted::play(scripts));
    let mut session = Session::new();
    let mut times = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        let start = now();
        let Ok((next, _)) = engine.reply(&session, "and now?").await else {
            return eprintln!("turn {turn} failed");
        };
        times.push(start.elapsed());
        session = next;
    }
    report(
        "turn 2,000 of a session, against turn 10",
        median(&times[TURNS - 100..]),
        median(&times[10..110]),
        "within 1.5x",
    );
}

fn scripts(turns: usize) -> Vec<Script> {
    let call = |n: usize| {
        let script = Script::new().tool_call(format!("c{n}"), "echo", json!({"x": n}));
        script.finish(mynah::FinishReason::ToolCalls)
    };
    (0..turns - 1).map(call).chain([Script::new().text("done").stop()]).collect()
}

fn echo() -> Tool {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    Tool::new("echo", "gives its arguments back", schema)
        .handler(async |arguments: Value, _| arguments)
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn now() -> Instant {
    Instant::now()
}

async fn timed<T>(work: impl Future<Output = T>) -> Duration {
    let start = now();
    black_box(work.await);
    start.elapsed()
}

fn per(time: Duration, count: usize) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX)
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[sorted.len() / 2]
}

fn report(what: &str, ours: Duration, beside: Duration, goal: &str) {
    let ratio = ours.as_secs_f64() / beside.as_secs_f64();
    println!(
        "{what:<46} {:>12} {:>12} {ratio:>7.2}x  {goal}",
        format!("{ours:?}"),
        format!("{beside:?}")
    );
}
