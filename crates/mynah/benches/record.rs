//! What keeping a run costs, and performing it again: each beside the same run unkept, in the same process.
//!
//! `cargo xtask bench record`. Ratios are what to look at; the times depend on the machine.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use mynah::{
    Engine, Tool, Tools,
    log::MemoryLog,
    testing::{Script, Scripted},
};
use serde_json::{Value, json};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Ok(runtime) = runtime else { return eprintln!("no runtime") };
    println!("{:<46} {:>12} {:>12} {:>8}  goal", "", "mynah", "beside", "ratio");
    runtime.block_on(recorded());
    runtime.block_on(replayed());
    runtime.block_on(sessions());
}

/// Chats that are kept in memory, against the same chats unkept: with answers of a usual length, which come in 300 pieces, and
/// with the shortest there are, in which there is nothing but the turn itself.
async fn recorded() {
    for (pieces, goal) in [(300, "under 1.5x"), (1, "")] {
        const TURNS: usize = 64;
        let (mut kept, mut plain) = (Duration::MAX, Duration::MAX);
        for _ in 0..40 {
            let engine = || talking(1, TURNS, pieces);
            let unkept = engine();
            let start = now();
            black_box(unkept.chat("go").await.is_ok());
            plain = plain.min(start.elapsed());
            let (log, engine) = (Arc::new(MemoryLog::new()), engine());
            let start = now();
            black_box(engine.chat("go").record(&log).await.is_ok());
            kept = kept.min(start.elapsed());
        }
        let what = format!("a turn of {pieces} pieces kept in memory, against unkept");
        report(&what, per(kept, TURNS), per(plain, TURNS), goal);
    }
}

/// Performing a long run again, against running and keeping it; and a long run's turn, against a short one's. Both take turns,
/// and of each the least time counts: a busy machine disturbs both alike.
///
/// Ten short runs stand against the long one, and each ten have one engine: a log that fits into the processor's cache, and an
/// engine that is made for few turns, say nothing of how long a run is.
///
/// Both let go of what came of it before the clock is read: of the engine too, as the scripted model holds the conversations with
/// all that it was asked. In a replay it is asked nothing, and so has no answers.
async fn replayed() {
    let mut turns = Vec::new();
    for (runs, length) in [(10, 100), (1, 1_000)] {
        let (mut again, mut live) = (Duration::MAX, Duration::MAX);
        for _ in 0..20 {
            let log = Arc::new(MemoryLog::new());
            let (first, mut kept) = (talking(runs, length, 1), Vec::with_capacity(runs));
            let start = now();
            for _ in 0..runs {
                match first.chat("go").record(&log).await.map(|result| result.run_id) {
                    Ok(run) => kept.extend(run),
                    Err(error) => return eprintln!("{error}"),
                }
            }
            drop(first);
            live = live.min(start.elapsed());
            let second = listening([]);
            let start = now();
            for run in &kept {
                let replay = second.replay(&log, run).replay_tools(Tools::Recorded);
                if let Err(error) = replay.await {
                    return eprintln!("{error}");
                }
            }
            drop(second);
            again = again.min(start.elapsed());
        }
        turns.push(per(again, runs * length));
        let what = format!("a turn of {length} performed again, against live");
        report(&what, per(again, runs * length), per(live, runs * length), "at most 1x");
    }
    report("a turn of 1,000 performed again, against of 100", turns[1], turns[0], "flat");
}

/// A turn of a long session that is kept, against one of a short session.
async fn sessions() {
    const WINDOW: usize = 10;
    let script = |_| Script::new().text("and so on").stop();
    let engine = Engine::new(Scripted::play((0..2_000 + WINDOW).map(script)));
    let log = Arc::new(MemoryLog::new());
    let Ok((mut session, _)) = engine.start("go").record(&log).await else {
        return eprintln!("the session failed");
    };
    let mut turns = Vec::new();
    for turn in 2..2_000 + WINDOW {
        let start = now();
        match engine.reply(&session, "and then?").record(&log).await {
            Ok((after, _)) => session = after,
            Err(error) => return eprintln!("{error}"),
        }
        turns.push((turn, start.elapsed()));
    }
    let fastest = |from: usize| {
        let times = turns.iter().filter(|(turn, _)| (from..from + WINDOW).contains(turn));
        times.map(|(_, time)| *time).min().unwrap_or_default()
    };
    report("turn 2,000 of a kept session, against turn 10", fastest(2_000), fastest(10), "flat");
}

/// A model that calls a tool in each turn of a run but the last, and says something before it in so many pieces.
fn talking(runs: usize, turns: usize, pieces: usize) -> Engine {
    let call = move |n: usize| {
        (0..pieces)
            .fold(Script::new(), |script, _| script.text("let me "))
            .tool_call(format!("c{n}"), "echo", json!({"x": n}))
            .call_tools()
    };
    let run = move |_| (0..turns - 1).map(call).chain([Script::new().text("done").stop()]);
    listening((0..runs).flat_map(run))
}

/// A model with these answers, and its tool.
fn listening(scripts: impl IntoIterator<Item = Script>) -> Engine {
    let echo = Tool::new("echo", "gives its arguments back", json!({"type": "object"}))
        .handler(async |arguments: Value, _| arguments);
    Engine::new(Scripted::play(scripts)).tool(echo).max_turns(100_000)
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn now() -> Instant {
    Instant::now()
}

fn per(time: Duration, count: usize) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX)
}

fn report(what: &str, ours: Duration, beside: Duration, goal: &str) {
    let ratio = ours.as_secs_f64() / beside.as_secs_f64();
    println!(
        "{what:<46} {:>12} {:>12} {ratio:>7.2}x  {goal}",
        format!("{ours:?}"),
        format!("{beside:?}")
    );
}
