//! Calls in answers of Chat Completions, as the servers in the field write them.

use mynah_adapters::{format::Delivery, openai_chat::OpenAiChat};
use mynah_data::{Event, FinishReason, Message, Part, Request, Response, ToolCall};
use serde_json::{Value, json};

use crate::common::{
    chat::{answer, body, read},
    events, folded, sse, streamed,
};

#[test]
fn o15_o16_calls_are_told_by_their_index() {
    let events = streamed(
        &OpenAiChat::default(),
        &answer(
            &[
                json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}),
                json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\""}}]}),
                json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]}),
                json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
            ],
            "tool_calls",
        ),
    );
    let started =
        |id: &str, name: &str| Event::ToolCallStarted { id: id.to_owned(), name: name.to_owned() };
    let piece = |id: &str, text: &str| Event::ToolCallDelta {
        id: id.to_owned(),
        arguments_delta: text.to_owned(),
    };
    let calls = [ToolCall::new("a", "f", "{\"x\":1}"), ToolCall::new("b", "g", "{}")];
    assert_eq!(
        events[1..8],
        [
            started("a", "f"),
            piece("a", "{\"x\""),
            started("b", "g"),
            piece("b", "{}"),
            piece("a", ":1}"),
            Event::tool_call_completed(calls[0].clone()),
            Event::tool_call_completed(calls[1].clone()),
        ]
    );
}

#[test]
fn a_piece_without_a_name_goes_on_with_a_call_whatever_its_id() {
    let named = |id: &str, name: &str| json!({"index": 0, "id": id, "function": {"name": name, "arguments": ""}});
    let piece =
        |id: &str, text: &str| json!({"index": 0, "id": id, "function": {"arguments": text}});
    let unplaced = |id: &str, text: &str| json!({"id": id, "function": {"arguments": text}});
    for (pieces, expected) in [
        (
            vec![named("a1", "f"), piece("a2", "{\"x\""), piece("a3", ":2}")],
            vec![("a1", "f", "{\"x\":2}")],
        ),
        (
            vec![named("a1", "f"), unplaced("a2", "{\"x\""), unplaced("a3", ":2}")],
            vec![("a1", "f", "{\"x\":2}")],
        ),
        (
            vec![
                named("a", "f"),
                named("b", "g"),
                piece("a", "{\"x\""),
                piece("b", "{}"),
                piece("a", ":1}"),
            ],
            vec![("a", "f", "{\"x\":1}"), ("b", "g", "{}")],
        ),
    ] {
        let deltas: Vec<Value> =
            pieces.into_iter().map(|piece| json!({"tool_calls": [piece]})).collect();
        let answer = folded(&streamed(&OpenAiChat::default(), &answer(&deltas, "tool_calls")));
        let calls = answer.tool_calls().map(|call| (&*call.id, &*call.name, &*call.raw_arguments));
        assert_eq!(calls.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_call_that_was_cut_off_before_its_arguments_has_none() {
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]});
    for (reason, arguments) in [
        ("length", Value::Null),
        ("content_filter", Value::Null),
        ("max_tokens", Value::Null),
        ("tool_calls", json!({})),
        ("stop", json!({})),
    ] {
        let answer =
            folded(&streamed(&OpenAiChat::default(), &answer(std::slice::from_ref(&call), reason)));
        let calls: Vec<&Value> = answer.tool_calls().map(|call| &call.arguments).collect();
        assert_eq!(calls, [&arguments], "{reason}");
    }
}

#[test]
fn the_only_call_may_come_in_its_old_form() {
    let pieces = [
        json!({"function_call": {"name": "f", "arguments": ""}}),
        json!({"function_call": {"arguments": "{\"x\":"}}),
        json!({"function_call": {"arguments": "1}"}}),
    ];
    let answer = folded(&streamed(&OpenAiChat::default(), &answer(&pieces, "function_call")));
    assert_eq!(answer.finish_reason, Some(FinishReason::ToolCalls));
    let calls: Vec<(&str, &str)> =
        answer.tool_calls().map(|call| (call.name.as_str(), call.raw_arguments.as_str())).collect();
    assert_eq!(calls, [("f", r#"{"x":1}"#)]);
}

#[test]
fn calls_without_ids_or_with_the_same_one_get_their_own() {
    let whole = |id: Value| json!({"id": id, "function": {"name": "f", "arguments": "{}"}});
    let ids = |delta: Value| -> Vec<String> {
        let asked = Request::new([Message::assistant_parts([Part::tool_call(ToolCall::new(
            "x", "f", "{}",
        ))])]);
        let body = answer(&[delta], "tool_calls");
        let (events, read) =
            events(&OpenAiChat::default(), &asked, Delivery::Streamed, [body.as_bytes()]);
        assert_eq!(read, Ok(()));
        folded(&events).tool_calls().map(|call| call.id.clone()).collect()
    };
    assert_eq!(
        ids(json!({"tool_calls": [whole(json!(null)), whole(json!(""))]})),
        ["call_2", "call_3"]
    );
    assert_eq!(ids(json!({"tool_calls": [whole(json!("a")), whole(json!("b"))]})), ["a", "b"]);
    let indexed = |index: u64, id: &str| json!({"index": index, "id": id, "function": {"name": "f", "arguments": "{}"}});
    assert_eq!(ids(json!({"tool_calls": [indexed(0, "a"), indexed(0, "b")]})), ["a", "b"]);
    assert_eq!(ids(json!({"tool_calls": [indexed(0, "a"), indexed(1, "a")]})), ["a", "call_3"]);
}

#[test]
fn a_name_after_whole_arguments_begins_a_call() {
    let piece = |name: &str, arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]});
    let calls = |deltas: &[Value]| -> Vec<(String, String)> {
        let response = read(&answer(deltas, "tool_calls"));
        let calls = response.tool_calls();
        calls.map(|call| (call.name.clone(), call.raw_arguments.clone())).collect()
    };
    let told = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
    assert_eq!(
        calls(&[piece("f", "{}"), piece("g", "{\"x\":"), piece("", "1}"), piece("f", "{}")]),
        [told("f", "{}"), told("g", "{\"x\":1}"), told("f", "{}")]
    );
    assert_eq!(
        calls(&[piece("f", ""), piece("f", "{\"x\":"), piece("f", "{}"), piece("f", "}")]),
        [told("f", "{\"x\":{}}")],
        "some servers repeat the name"
    );
}

/// `id`, `name` and arguments of each call.
fn told(response: &Response) -> Vec<(&str, &str, &str)> {
    response.tool_calls().map(|call| (&*call.id, &*call.name, &*call.raw_arguments)).collect()
}

#[test]
fn calls_that_share_an_id_are_told_apart_by_their_names_and_arguments() {
    let piece = |index: Option<u64>, name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        match index {
            Some(index) => json!({"index": index, "id": "a", "function": function}),
            None => json!({"id": "a", "function": function}),
        }
    };
    for index in [None, Some(0)] {
        let piece = |name: &str, arguments: &str| piece(index, name, arguments);
        for (pieces, expected) in [
            (
                vec![piece("f", "{\"x\":1}"), piece("g", "{\"y\":2}")],
                vec![("a", "f", "{\"x\":1}"), ("call_2", "g", "{\"y\":2}")],
            ),
            (
                vec![piece("f", "{\"x\":1}"), piece("f", "{\"x\":"), piece("", "2}")],
                vec![("a", "f", "{\"x\":1}"), ("call_2", "f", "{\"x\":2}")],
            ),
            (
                vec![piece("f", "{}"), piece("g", "{}"), piece("f", "{}")],
                vec![("a", "f", "{}"), ("call_2", "g", "{}"), ("call_3", "f", "{}")],
            ),
            (
                vec![piece("f", "{}"), piece("g", ""), piece("", "{\"y\":2}")],
                vec![("a", "f", "{}"), ("call_2", "g", "{\"y\":2}")],
            ),
            // The same again is an end that repeats the call, as some servers write it.
            (
                vec![piece("f", "{\"x\":1}"), piece("f", "{\"x\":1}"), piece("f", "")],
                vec![("a", "f", "{\"x\":1}")],
            ),
        ] {
            let deltas: Vec<Value> =
                pieces.into_iter().map(|piece| json!({"tool_calls": [piece]})).collect();
            let response = read(&answer(&deltas, "tool_calls"));
            assert_eq!(told(&response), expected, "{index:?}");
        }
    }
}

#[test]
fn arguments_that_come_in_pieces_and_once_more_are_those_of_one_call() {
    let function = |arguments: &str| json!({"name": "f", "arguments": arguments});
    for index in [Some(0), None] {
        let piece = |id: Option<&str>, arguments: &str| {
            let mut call = json!({"function": function(arguments)});
            for (name, value) in [("index", index.map(Value::from)), ("id", id.map(Value::from))] {
                if let Some(value) = value {
                    call[name] = value;
                }
            }
            json!({"tool_calls": [call]})
        };
        // Only the first has the id, unless nothing else tells the call.
        let (first, later) = (Some("a"), index.is_none().then_some("a"));
        let once = |x: u8| {
            let (head, whole) = ("{\"x", format!("{{\"x\":{x}}}"));
            let tail = format!("\":{x}}}");
            [piece(later, head), piece(later, &tail), piece(later, &whole)]
        };
        let deltas = [&[piece(first, "")][..], &once(1)].concat();
        let response = read(&answer(&deltas, "tool_calls"));
        assert_eq!(told(&response), [("a", "f", "{\"x\":1}")], "{index:?}");
        let deltas = [&[piece(first, "")][..], &once(1), &once(2)].concat();
        let response = read(&answer(&deltas, "tool_calls"));
        let second = response.tool_calls().nth(1).map(|call| call.raw_arguments.clone());
        assert_eq!(second.as_deref(), Some("{\"x\":2}"), "{index:?}");
        assert_eq!(response.tool_calls().count(), 2, "{index:?}");
    }
}

#[test]
fn each_call_of_a_whole_message_is_one_of_its_own() {
    let call = |name: &str, arguments: &str| json!({"id": "a", "function": {"name": name, "arguments": arguments}});
    let custom = |input: &str| json!({"id": "a", "custom": {"name": "sql", "input": input}});
    for (calls, expected) in [
        (
            json!([call("f", "{\"x\":1}"), call("g", "{\"y\":2}")]),
            [("a", "f", "{\"x\":1}"), ("call_2", "g", "{\"y\":2}")],
        ),
        (json!([call("f", "{}"), call("f", "{}")]), [("a", "f", "{}"), ("call_2", "f", "{}")]),
        (json!([call("f", ""), call("g", "")]), [("a", "f", ""), ("call_2", "g", "")]),
        (
            json!([custom("one"), custom("two")]),
            [("a", "sql", r#"{"input":"one"}"#), ("call_2", "sql", r#"{"input":"two"}"#)],
        ),
    ] {
        let message = json!({"role": "assistant", "tool_calls": calls});
        let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
        let whole = json!({"id": "c", "model": "m", "choices": [choice]});
        for (delivery, body) in
            [(Delivery::Whole, whole.to_string()), (Delivery::Streamed, body(&[whole]))]
        {
            let format = OpenAiChat::default();
            let (events, read) = events(&format, &Request::from("hi"), delivery, [body.as_bytes()]);
            assert_eq!(read, Ok(()));
            assert_eq!(told(&folded(&events)), expected);
        }
    }
}

#[test]
fn a_call_that_is_never_named_is_passed_on() {
    let piece = |arguments: &str| json!({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": arguments}}]});
    let body = answer(&[piece("{\"x\":"), piece("1}")], "tool_calls");
    let events = streamed(&OpenAiChat::default(), &body);
    assert_eq!(folded(&events).tool_calls().count(), 0);
    let chunks = events.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk),
        _ => None,
    });
    let nameless = json!({"tool_call": {"id": "a", "arguments": "{\"x\":1}"}});
    assert_eq!(chunks.collect::<Vec<_>>(), [&nameless]);
}

#[test]
fn a_name_may_come_in_pieces_or_with_each_piece() {
    let piece = |name: &str, arguments: &str| json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": name, "arguments": arguments}}]});
    let next = |name: &str, arguments: &str| json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": name, "arguments": arguments}}]});
    let told = |name: &str, arguments: &str| ToolCall::new("a", name, arguments);
    let other = ToolCall::new("b", "now", "{}");
    for (deltas, expected) in [
        (
            vec![piece("get_", ""), piece("weather", ""), piece("", "{}")],
            vec![told("get_weather", "{}")],
        ),
        (
            vec![piece("get_", ""), piece("weather", "{"), piece("", "}")],
            vec![told("get_weather", "{}")],
        ),
        (vec![piece("get_", ""), piece("get_weather", "{}")], vec![told("get_weather", "{}")]),
        (vec![piece("get_", ""), piece("get_", "{"), piece("get_", "}")], vec![told("get_", "{}")]),
        (vec![piece("get_", ""), piece("weather", "")], vec![told("get_weather", "")]),
        (
            vec![
                piece("get_", ""),
                piece("weather", ""),
                next("no", ""),
                next("w", "{}"),
                piece("", "{}"),
            ],
            vec![told("get_weather", "{}"), other],
        ),
    ] {
        let response = read(&answer(&deltas, "tool_calls"));
        assert_eq!(response.tool_calls().cloned().collect::<Vec<_>>(), expected, "{deltas:?}");
    }
    let before_text = [piece("get_", ""), piece("weather", ""), json!({"content": "so"})];
    let parts = read(&answer(&before_text, "tool_calls")).message.parts().to_vec();
    assert_eq!(parts, [Part::tool_call(told("get_weather", "")), Part::text("so")]);
}

#[test]
fn arguments_may_be_an_object_and_the_name_may_come_later() {
    let deltas = [
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": {"x": 1.5}}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
    ];
    let response = read(&answer(&deltas, "tool_calls"));
    assert_eq!(
        response.tool_calls().cloned().collect::<Vec<_>>(),
        [ToolCall::new("a", "f", "{\"x\":1.5}")]
    );
}

#[test]
fn arguments_stay_as_they_are_written() {
    let arguments = r#"{"id":12345678901234567890123,"x":1.10, "y":1e3}"#;
    let call =
        format!(r#"{{"index":0,"id":"a","function":{{"name":"f","arguments":{arguments}}}}}"#);
    let chunk = format!(
        r#"{{"choices":[{{"delta":{{"tool_calls":[{call}]}},"finish_reason":"tool_calls"}}]}}"#
    );
    let response = read(&sse([chunk.as_str(), "[DONE]"]));
    let call = response.tool_calls().next().unwrap();
    assert_eq!(call.raw_arguments, arguments);
}
