//! An answer streams again as it came, from its message and its cuts.

use std::sync::Arc;

use mynah_data::{Event, FinishReason, ResponseBuilder, ToolCall, Usage};
use mynah_log::{Cut, CutRecorder, expand};
use proptest::{collection::vec, option, prelude::*};
use serde_json::json;

proptest! {
    #[test]
    fn any_events_come_back_from_the_response_and_its_cuts(events in vec(event(), 0..24)) {
        let (mut answer, mut recorder) = (ResponseBuilder::new(), CutRecorder::new());
        for event in &events {
            recorder.apply(event, &mut answer);
        }
        let (response, cuts) = (answer.response(), recorder.finish());
        let bytes = mynah_log::cbor::to_vec(&cuts).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let cuts: Vec<Cut> = mynah_log::cbor::from_slice(&bytes).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let expanded = expand(&cuts, &response);
        prop_assert_eq!(strip(&expanded), strip(&events), "{:?}", cuts);
        // And they fold into the same answer.
        let mut again = ResponseBuilder::new();
        expanded.iter().for_each(|event| again.apply(event));
        prop_assert_eq!(again.response(), response);
    }
}

#[test]
fn the_pieces_of_a_text_are_a_row_of_lengths() {
    let (mut answer, mut recorder) = (ResponseBuilder::new(), CutRecorder::new());
    for event in [
        Event::message_started(),
        Event::text_delta("hel"),
        Event::text_delta("lo"),
        Event::TextCompleted { id: None, text: "hello".to_owned() },
        Event::message_completed(Some(FinishReason::Stop)),
    ] {
        recorder.apply(&event, &mut answer);
    }
    let cuts = json!(["started", {"pieces": {"part": 0, "lens": [3, 2]}}, {"complete": {"part": 0}}, "completed"]);
    assert_eq!(serde_json::to_value(recorder.finish()).ok(), Some(cuts));
}

/// The message of a completed answer is the answer's own, regardless of the adapter's.
fn strip(events: &[Event]) -> Vec<Event> {
    let mut events = events.to_vec();
    for event in &mut events {
        if let Event::MessageCompleted { message, .. } = event {
            *message = Arc::new(mynah_data::Message::assistant(""));
        }
    }
    events
}

fn event() -> impl Strategy<Value = Event> {
    let id = || {
        option::weighted(0.4, prop_oneof![Just(Arc::<str>::from("a")), Just(Arc::<str>::from("b"))])
    };
    let text = || "[a-zé]{0,3}";
    prop_oneof![
        6 => (id(), text()).prop_map(|(id, delta)| Event::TextDelta { id, delta }),
        2 => (id(), text()).prop_map(|(id, text)| Event::TextCompleted { id, text }),
        3 => (id(), text()).prop_map(|(id, delta)| Event::ReasoningDelta { id, delta }),
        2 => (id(), text(), option::of("[A-Z]")).prop_map(|(block, text, by)| {
            let mut event = Event::reasoning_completed(text);
            if let Event::ReasoningCompleted { id, signature, .. } = &mut event {
                (*id, *signature) = (block, by);
            }
            event
        }),
        2 => (0..3u8).prop_map(|n| Event::ToolCallStarted { id: format!("c{n}"), name: format!("t{n}") }),
        3 => (0..3u8, "[{}x]{0,2}").prop_map(|(n, arguments_delta)| Event::ToolCallDelta {
            id: format!("c{n}"), arguments_delta,
        }),
        2 => (0..3u8, prop_oneof!["\\{\\}", "\\{\"x\":1\\}", "\\{"]).prop_map(|(n, raw)| {
            Event::tool_call_completed(ToolCall::new(format!("c{n}"), format!("t{n}"), raw))
        }),
        1 => (0..9u64).prop_map(|n| Event::Usage { usage: Box::new(Usage::new(n, None)) }),
        1 => Just(Event::message_started()),
        1 => option::of(Just(FinishReason::Stop)).prop_map(Event::message_completed),
        1 => Just(Event::RawChunk { chunk: json!({"odd": 1}) }),
        1 => Just(Event::Error { error: mynah_data::Error::adapter(mynah_data::AdapterReason::RateLimited) }),
    ]
}
