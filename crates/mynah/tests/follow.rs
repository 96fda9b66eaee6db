//! The events of a run, from its records.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use mynah::{
    Adapter, BoxFuture, Engine, Event, EventId, FollowedEvent, InFlight, Message, ModelCall,
    ModelStream, Request, Result, RunEvent, Tool, ToolOutcome, follow, fork_run,
    log::{AnswerPart, Log as _, MemoryLog},
    testing::Scripted,
};
use serde_json::{Value, json};

/// A chat with two turns and a tool, whose answers come in pieces.
fn engine() -> Result<Engine> {
    let model = Scripted::new([
        json!([{"text": "Let "}, {"text": "me see. "},
            {"tool_call": {"id": "c0", "name": "look", "arguments": {"at": "sky"}}}, {"finish": "tool_calls"}]),
        json!([{"text": "It "}, {"text": "is "}, {"text": "blue."}, {"finish": "stop"}]),
    ])?;
    let look = Tool::new("look", "", json!({})).handler(async |_, _| "blue");
    Ok(Engine::new(model).tool(look))
}

async fn all(log: &MemoryLog, run: &str, after: Option<EventId>) -> Result<Vec<FollowedEvent>> {
    let (mut events, mut list) = (follow(log, run, after), Vec::new());
    while let Some(event) = events.next().await {
        list.push(event?);
    }
    Ok(list)
}

fn names(events: &[FollowedEvent]) -> Vec<String> {
    let name = |event: &FollowedEvent| {
        let name = event.event.type_name();
        assert_eq!(json!(event.event)["type"], name);
        name.to_owned()
    };
    events.iter().map(name).collect()
}

#[tokio::test]
async fn a_run_that_ended_is_told_whole_and_in_order() -> Result<()> {
    let log = MemoryLog::new();
    let run = engine()?.chat("What colour?").record(&log).run_id("r").await?.run_id.unwrap();
    let events = all(&log, &run, None).await?;
    let expected = "run_started turn_started message_started text_delta text_delta tool_call_started tool_call_completed text_completed \
         message_completed tool_execution_started tool_execution_completed tool_result_encoded \
         turn_started message_started text_delta text_delta text_delta text_completed message_completed completed sealed";
    let shown: Vec<String> = names(&events);
    let shown: Vec<&str> =
        shown.iter().map(String::as_str).filter(|name| !name.starts_with("usage")).collect();
    assert_eq!(shown.join(" "), expected.split_whitespace().collect::<Vec<_>>().join(" "));
    let started = events.iter().find_map(|event| match &event.event {
        RunEvent::ToolExecutionStarted { name, arguments, attempt, .. } => {
            Some((name.clone(), arguments.clone(), *attempt))
        }
        _ => None,
    });
    assert_eq!(started, Some(("look".to_owned(), json!({"at": "sky"}), 1)));
    Ok(())
}

#[tokio::test]
async fn from_any_event_on_the_rest_is_the_same() -> Result<()> {
    let log = MemoryLog::new();
    let run = engine()?.chat("What colour?").record(&log).await?.run_id.unwrap();
    let whole = all(&log, &run, None).await?;
    for (place, event) in whole.iter().enumerate() {
        assert_eq!(all(&log, &run, Some(event.id)).await?, whole[place + 1..], "{}", event.id);
    }
    Ok(())
}

#[tokio::test]
async fn after_an_event_in_flight_the_recorded_answer_continues() -> Result<()> {
    let log = MemoryLog::new();
    let run = engine()?.chat("What colour?").record(&log).await?.run_id.unwrap();
    let whole = all(&log, &run, None).await?;
    // Record 2 starts the first turn, and record 3 has its answer.
    for index in 0..4 {
        let rest = all(&log, &run, Some(EventId::in_flight(2, 1, index))).await?;
        let place = whole.iter().position(|event| event.id == EventId::recorded(3, index)).unwrap();
        assert_eq!(rest, whole[place + 1..]);
    }
    Ok(())
}

#[tokio::test]
async fn events_of_a_run_that_waits_come_when_it_continues() -> Result<()> {
    let model = Scripted::new([
        json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]),
        json!([{"text": "Two it is."}, {"finish": "stop"}]),
    ])?;
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?"));
    let (engine, log) = (Engine::new(model).tool(ask), MemoryLog::new());
    let run = engine.chat("order").record(&log).await?.run_id.unwrap();
    let mut events = follow(&log, &run, None);
    let mut seen = Vec::new();
    while let Some(event) = events.next_ready().await? {
        seen.push(event);
    }
    assert!(matches!(seen.last().map(|event| &event.event), Some(RunEvent::Suspended(_))));
    let waits = tokio::time::timeout(Duration::from_millis(50), events.next()).await;
    assert!(waits.is_err(), "nothing follows before the answer");
    let reader = tokio::spawn(async move {
        while let Some(event) = events.try_next().await? {
            seen.push(event);
        }
        Ok::<_, mynah::Error>(seen)
    });
    engine.resume(&log, &*run).answer("two").await?;
    let seen = reader.await.unwrap()?;
    assert_eq!(seen, all(&log, &run, None).await?);
    assert!(names(&seen).contains(&"resumed".to_owned()));
    Ok(())
}

#[tokio::test]
async fn a_call_that_a_person_edited_shows_the_arguments_that_ran() -> Result<()> {
    let log = MemoryLog::new();
    let model = Scripted::new([
        json!([{"tool_call": {"id": "c0", "name": "pay", "arguments": {"eur": 89}}}, {"finish": "tool_calls"}]),
        json!([{"text": "Paid."}, {"finish": "stop"}]),
    ])?;
    let pay = Tool::new("pay", "", json!({})).manual();
    let engine = Engine::new(model).tool(pay.handler(async |arguments: Value, _| arguments));
    let run = engine.chat("Pay.").record(&log).await?.run_id.unwrap();
    engine.resume(&log, &run).approve_with("c0", json!({"eur": 8})).await?;
    let events = all(&log, &run, None).await?;
    let started = events.iter().find_map(|event| match &event.event {
        RunEvent::ToolExecutionStarted { arguments, .. } => Some(arguments.clone()),
        _ => None,
    });
    assert_eq!(started, Some(json!({"eur": 8})));
    let edited = events.iter().find_map(|event| match &event.event {
        RunEvent::Resumed { edited, .. } => Some(edited.clone()),
        _ => None,
    });
    assert_eq!(edited, Some(vec![("c0".to_owned(), r#"{"eur":8}"#.to_owned())]));
    Ok(())
}

#[tokio::test]
async fn events_come_back_from_their_json() -> Result<()> {
    let log = MemoryLog::new();
    let run = engine()?.chat("What colour?").record(&log).await?.run_id.unwrap();
    for event in all(&log, &run, None).await? {
        let json: Value = json!(event);
        assert_eq!(
            serde_json::from_value::<FollowedEvent>(json.clone()).ok(),
            Some(event),
            "{json}"
        );
    }
    Ok(())
}

#[test]
fn an_id_that_is_none_is_refused() {
    for text in ["", "4", "4.", ".2", "4.x", "0.1", "4~.1", "4~x.1", "-1.0", "4.2.1"] {
        assert!(text.parse::<EventId>().is_err(), "{text:?}");
    }
}

#[tokio::test]
async fn a_run_that_is_not_there_is_an_error() {
    let log = Arc::new(MemoryLog::new());
    let error = follow(&log, "none", None).try_next().await.unwrap_err();
    assert_eq!(error.reason(), "run_not_found");
}

/// A model that says its pieces one by one, each when it is allowed to.
struct Paced {
    pieces: Vec<Event>,
    permits: Arc<tokio::sync::Semaphore>,
}

impl Adapter for Paced {
    fn name(&self) -> &str {
        "paced"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let pieces = self.pieces.clone().into_iter();
        let stream = stream::unfold((pieces, self), async |(mut pieces, paced)| {
            let piece = pieces.next()?;
            paced.permits.acquire().await.ok()?.forget();
            Some((Ok(piece), (pieces, paced)))
        });
        Box::pin(async move { Ok(stream.boxed()) })
    }
}

#[tokio::test]
async fn an_answer_in_flight_is_shown_before_it_is_recorded_and_continues_with_its_record()
-> Result<()> {
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let raw = Event::RawChunk { chunk: json!({"n": 1}) };
    let pieces = vec![
        raw,
        Event::message_started(),
        Event::text_delta("It "),
        Event::text_delta("rains."),
        Event::message_completed(None),
    ];
    let engine = Engine::new(Paced { pieces, permits: Arc::clone(&permits) });
    let (log, all) = (MemoryLog::new(), InFlight::new());
    let mut chat =
        engine.chat("hi").record(&log).run_id("r").in_flight(&all).stream().started().await?;
    let task = tokio::spawn(async move {
        while let Some(event) = chat.next().await {
            event?;
        }
        Ok::<_, mynah::Error>(())
    });
    let mut events = follow(&log, "r", None).in_flight(&all);
    let mut seen = Vec::new();
    permits.add_permits(3);
    while seen.len() < 5 {
        seen.extend(events.try_next().await?);
    }
    let ids: Vec<String> = seen.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(ids, ["1.0", "2.0", "2~1.0", "2~1.1", "2~1.2"]);

    // Another reader starts from there, and a third begins inside the answer.
    let mut second = follow(&log, "r", seen[3].id).in_flight(&all);
    assert_eq!(second.try_next().await?.as_ref(), seen.last());
    permits.add_permits(2);
    while let Some(event) = events.try_next().await? {
        seen.push(event);
    }
    task.await.unwrap()?;
    let whole = self::all(&log, "r", None).await?;
    let only =
        |list: &[FollowedEvent]| list.iter().map(|event| event.event.clone()).collect::<Vec<_>>();
    assert_eq!(only(&seen), only(&whole));
    let mut rest = vec![seen[4].clone()];
    while let Some(event) = second.try_next().await? {
        rest.push(event);
    }
    assert_eq!(only(&rest), only(&whole[4..]));
    assert_eq!(format!("{all:?}"), "InFlight(0)", "a run that ended is not held");
    Ok(())
}

#[tokio::test]
async fn an_answer_in_flight_of_a_branch_is_shown() -> Result<()> {
    let (log, all) = (MemoryLog::new(), InFlight::new());
    engine()?.chat("hi").record(&log).run_id("r").await?;
    for message in [None, Some("go on")] {
        let branch = fork_run(&log, "r", 2).await?.run_id;
        let pieces = vec![Event::message_started(), Event::text_delta("It ")];
        let permits = Arc::new(tokio::sync::Semaphore::new(2));
        let resume = Engine::new(Paced { pieces, permits }).resume(&log, &*branch);
        let resume = resume.allow_changed_engine().in_flight(&all);
        let resume =
            message.into_iter().fold(resume, |resume, text| resume.message(Message::user(text)));
        let mut chat = resume.stream().started().await?;
        let task = tokio::spawn(async move { while chat.next().await.is_some() {} });
        let mut events = follow(&log, &*branch, None).in_flight(&all);
        let mut seen = "";
        while seen != "text_delta" {
            seen = events.try_next().await?.unwrap().event.type_name();
        }
        task.abort();
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_answer_is_restarted_once() -> Result<()> {
    let permits = Arc::new(tokio::sync::Semaphore::new(3));
    let mut pieces =
        vec![Event::message_started(), Event::text_delta("It "), Event::text_delta("rains.")];
    let engine = Engine::new(Paced { pieces: pieces.clone(), permits: Arc::clone(&permits) });
    let (log, all) = (MemoryLog::new(), InFlight::new());
    let mut chat = engine.chat("hi").record(&log).run_id("r").in_flight(&all).stream();
    for _ in 0..2 {
        chat.next().await.unwrap()?;
    }
    let mut events = follow(&log, "r", None).in_flight(&all);
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.extend(events.try_next().await?);
    }
    assert_eq!(seen.last().unwrap().id.to_string(), "2~1.1");
    // The run leaves this process during its answer.
    drop(chat);
    pieces.push(Event::message_completed(None));
    permits.add_permits(9);
    let engine = Engine::new(Paced { pieces, permits });
    engine.resume(&log, "r").await?;
    while let Some(event) = events.try_next().await? {
        seen.push(event);
    }
    let names = names(&seen).join(" ");
    assert!(names.starts_with("run_started turn_started message_started text_delta resumed turn_restarted turn_started message_started text_delta text_delta"), "{names}");
    assert_eq!(names.matches("turn_restarted").count(), 1);
    Ok(())
}

#[tokio::test]
async fn a_run_that_is_cancelled_after_its_process_died_tells_so() -> Result<()> {
    let permits = Arc::new(tokio::sync::Semaphore::new(2));
    let pieces =
        vec![Event::message_started(), Event::text_delta("It "), Event::text_delta("rains.")];
    let engine = Engine::new(Paced { pieces, permits });
    let (log, all) = (MemoryLog::new(), InFlight::new());
    let mut chat = engine.chat("hi").record(&log).run_id("r").in_flight(&all).stream();
    for _ in 0..2 {
        chat.next().await.unwrap()?;
    }
    drop(chat);
    mynah::cancel_run(&log, "r").await?;
    let rest = self::all(&log, "r", Some(EventId::in_flight(2, 1, 1))).await?;
    assert_eq!(names(&rest), ["cancelled", "sealed"]);
    Ok(())
}

/// An answer of four events, and its end.
fn rain() -> Vec<Event> {
    let mut pieces = vec![Event::message_started()];
    pieces.extend(["It ", "rains ", "here."].map(Event::text_delta));
    pieces.push(Event::message_completed(None));
    pieces
}

#[tokio::test]
async fn a_kept_answer_is_shown_by_the_log_and_deleted_when_it_is_recorded() -> Result<()> {
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let engine = Engine::new(Paced { pieces: rain(), permits: Arc::clone(&permits) });
    let log = MemoryLog::new();
    let chat = engine.chat("hi").record(&log).run_id("r").durable_events();
    let mut chat = chat.stream().started().await?;
    let task = tokio::spawn(async move {
        while let Some(event) = chat.next().await {
            event?;
        }
        Ok::<_, mynah::Error>(())
    });
    let mut events = follow(&log, "r", None);
    let mut seen = Vec::new();
    for (permit, id) in ["2~1.0", "2~1.1", "2~1.2"].into_iter().enumerate() {
        permits.add_permits(1);
        while seen.len() < 3 + permit {
            seen.extend(events.try_next().await?);
        }
        assert_eq!(seen.last().unwrap().id.to_string(), id);
    }
    // A reader that had less continues from there.
    let mut second = follow(&log, "r", seen[2].id);
    assert_eq!(second.try_next().await?.as_ref(), Some(&seen[3]));
    assert_eq!(log.parts("r", 2, 0).await?.len(), 3);

    permits.add_permits(2);
    while let Some(event) = events.try_next().await? {
        seen.push(event);
    }
    task.await.unwrap()?;
    let whole = all(&log, "r", None).await?;
    let only =
        |list: &[FollowedEvent]| list.iter().map(|event| event.event.clone()).collect::<Vec<_>>();
    assert_eq!(only(&seen), only(&whole));
    let mut rest = vec![seen[3].clone()];
    while let Some(event) = second.try_next().await? {
        rest.push(event);
    }
    assert_eq!(only(&rest), only(&whole[3..]));
    assert_eq!(log.parts("r", 2, 0).await?, [], "the record has them");
    Ok(())
}

#[tokio::test]
async fn from_every_event_of_a_kept_answer_that_was_lost_one_restart_follows() -> Result<()> {
    let permits = Arc::new(tokio::sync::Semaphore::new(3));
    let engine = Engine::new(Paced { pieces: rain(), permits: Arc::clone(&permits) });
    let log = MemoryLog::new();
    let chat = engine.chat("hi").record(&log).run_id("r").durable_events();
    let mut chat = chat.stream().started().await?;
    let mut events = follow(&log, "r", None);
    let mut seen = Vec::new();
    while seen.len() < 5 {
        tokio::select! {
            event = events.try_next() => seen.extend(event?),
            event = chat.next() => drop(event.unwrap()?),
        }
    }
    // The run leaves this process in the middle of its answer. What it kept stays until another continues the run.
    drop(chat);
    assert_eq!(log.parts("r", 2, 0).await?.iter().map(|part| part.count).sum::<u64>(), 3);
    permits.add_permits(9);
    engine.resume(&log, "r").await?;
    while let Some(event) = events.try_next().await? {
        seen.push(event);
    }
    assert_eq!(
        names(&seen)[..9].join(" "),
        "run_started turn_started message_started text_delta text_delta resumed turn_restarted turn_started message_started"
    );
    let whole = all(&log, "r", None).await?;
    let lost = whole.iter().position(|event| event.id == EventId::recorded(3, 0)).unwrap();
    for index in 0..5 {
        let rest = all(&log, "r", Some(EventId::in_flight(2, 1, index))).await?;
        assert_eq!(rest, whole[lost..], "after 2~1.{index}");
    }
    Ok(())
}

#[tokio::test]
async fn parts_that_cannot_be_read_are_damage_and_missing_ones_come_with_the_record() -> Result<()>
{
    for (first, payload) in [(0, "[{"), (1, "[]")] {
        let permits = Arc::new(tokio::sync::Semaphore::new(1));
        let engine = Engine::new(Paced { pieces: rain(), permits: Arc::clone(&permits) });
        let log = MemoryLog::new();
        let mut chat = engine.chat("hi").record(&log).run_id("r").stream();
        chat.next().await.unwrap()?;
        drop(chat);
        let lease = log.lease("r", "me", Duration::from_secs(9)).await?;
        log.keep_part(&lease, AnswerPart::new(2, first, 1, payload)).await?;
        let mut events = follow(&log, "r", EventId::recorded(2, 0));
        if first == 0 {
            let error = events.try_next().await.unwrap_err();
            assert_eq!(error.reason(), "corrupt");
            assert!(error.to_string().contains("cannot be read"), "{error}");
            continue;
        }
        let resumes = async {
            tokio::task::yield_now().await;
            log.release(&lease);
            permits.add_permits(100);
            engine.resume(&log, "r").await
        };
        let (next, resumed) = tokio::join!(events.try_next(), resumes);
        resumed?;
        let mut seen = vec![next?.unwrap()];
        while let Some(event) = events.try_next().await? {
            seen.push(event);
        }
        assert_eq!(seen, all(&log, "r", EventId::recorded(2, 0).into()).await?);
    }
    Ok(())
}
