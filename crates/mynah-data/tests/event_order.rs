//! Which events of a model may follow each other.

use mynah_data::*;
use serde_json::json;

#[test]
fn an_answer_with_text_reasoning_and_calls_is_in_order() {
    let thought = Event::ReasoningDelta { id: None, delta: "hm".to_owned() };
    let whole = Event::tool_call_completed(ToolCall::new("c1", "t", "{}"));
    let call = [started("c0"), delta("c0"), whole, delta("c0"), completed("c0")];
    let said = [thought, Event::text_delta("hi")].into_iter().chain(call);
    assert_eq!(check(said.chain([end()])), Ok(()));
}

#[test]
fn an_answer_may_come_whole() {
    let mut order = EventOrder::new();
    assert_eq!(order.check(&end()), Ok(()));
    assert!(order.check(&Event::text_delta("more")).is_err());
}

#[test]
fn usage_raw_chunks_and_errors_may_come_at_any_time() {
    let anywhere = || {
        let chunk = Event::RawChunk { chunk: json!("x") };
        let error = Event::Error { error: Error::adapter(AdapterReason::Overloaded) };
        [Event::Usage { usage: Box::default() }, chunk, error]
    };
    let mut order = EventOrder::new();
    for event in anywhere() {
        assert_eq!(order.check(&event), Ok(()));
    }
    let within = anywhere().into_iter().chain([end()]).chain(anywhere());
    assert_eq!(check(within), Ok(()));
}

#[test]
fn what_stands_where_it_may_not_is_a_malformed_event() {
    let tool = Event::tool_execution_started("c0", "t", json!({}));
    let text = || Event::text_delta("hi");
    for (why, events) in [
        ("the answer started twice", vec![text(), Event::message_started()]),
        ("it came after the end of the answer", vec![end(), text()]),
        ("it came after the end of the answer", vec![end(), end()]),
        ("it came after the end of the answer", vec![end(), Event::message_started()]),
        ("the call has no id", vec![started("")]),
        ("the call has no id", vec![completed("")]),
        ("the call was not started", vec![started("c0"), delta("c1")]),
        ("the call was already complete", vec![started("c0"), completed("c0"), delta("c0")]),
        ("an adapter may not emit it", vec![tool]),
    ] {
        let last = events[events.len() - 1].type_name();
        let error = check(events).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stream(StreamReason::MalformedEvent), "{why}");
        assert_eq!(error.to_string(), format!("stream error: malformed_event: {last}: {why}"));
        assert_eq!(error.metadata()["event"], last);
    }
    let error = check(vec![started("c0"), started("c0")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    for event in [text(), started("c0"), completed("c0")] {
        let error = EventOrder::new().check(&event).unwrap_err();
        assert!(error.to_string().ends_with("it came before the start of the answer"), "{error}");
    }
}

#[test]
fn an_event_that_is_refused_changes_nothing() {
    let mut order = EventOrder::new();
    assert!(order.check(&completed("c0")).is_err());
    assert_eq!(order.check(&Event::message_started()), Ok(()));
    assert!(order.check(&delta("c0")).is_err());
    assert_eq!(order.check(&started("c0")), Ok(()));
    assert_eq!(order.check(&completed("c0")), Ok(()));
    assert_eq!(order.check(&end()), Ok(()));
}

/// Checks these events of an answer that has started.
fn check(events: impl IntoIterator<Item = Event>) -> Result<()> {
    let mut order = EventOrder::new();
    [Event::message_started()].into_iter().chain(events).try_for_each(|event| order.check(&event))
}

fn started(id: &str) -> Event {
    Event::ToolCallStarted { id: id.to_owned(), name: "t".to_owned() }
}

fn delta(id: &str) -> Event {
    Event::ToolCallDelta { id: id.to_owned(), arguments_delta: "{".to_owned() }
}

fn completed(id: &str) -> Event {
    Event::tool_call_completed(ToolCall::new(id, "t", "{}"))
}

fn end() -> Event {
    Event::message_completed(Some(FinishReason::Stop))
}
