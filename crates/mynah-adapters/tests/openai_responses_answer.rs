//! Answers of Responses, as the documentation and the servers in the field write them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod common;

use std::slice;

use common::{events, folded, sse, streamed};
use mynah_adapters::{format::Delivery, openai_responses::OpenAiResponses};
use mynah_data::{
    AdapterReason, Error, ErrorKind, Event, FinishReason, Part, Request, Response, ToolCall, Usage,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

#[test]
fn a_call_that_was_cut_off_before_its_arguments_has_none_whatever_the_reason() {
    for details in ["null", r#"{"reason":"max_output_tokens"}"#, r#"{"reason":"content_filter"}"#] {
        let end = format!(
            r#"{{"type":"response.incomplete","response":{{"id":"r","model":"m","status":"incomplete","incomplete_details":{details},"output":[]}}}}"#
        );
        let body = sse([
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","id":"fc","call_id":"c","name":"f","arguments":""}}"#,
            end.as_str(),
        ]);
        let answer = folded(&streamed(&OpenAiResponses::default(), &body));
        let calls: Vec<&Value> = answer.tool_calls().map(|call| &call.arguments).collect();
        assert_eq!(calls, [&Value::Null], "{details}");
    }
}

#[test]
fn text_comes_in_pieces_and_is_told_once() {
    let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]});
    let events = streamed(
        &OpenAiResponses::default(),
        &body(&[
            json!({"type": "response.created", "response": {"id": "resp_1", "model": "gpt-5"}}),
            json!({"type": "response.in_progress", "response": {"id": "resp_1", "model": "gpt-5"}}),
            json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1", "content": []}}),
            json!({"type": "response.content_part.added", "item_id": "msg_1", "output_index": 0, "content_index": 0, "part": {"type": "output_text", "text": ""}}),
            json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "Hel", "logprobs": []}),
            json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "lo", "obfuscation": "x"}),
            json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 0, "content_index": 0, "text": "Hello"}),
            json!({"type": "response.content_part.done", "item_id": "msg_1", "output_index": 0, "content_index": 0, "part": {"type": "output_text", "text": "Hello"}}),
            json!({"type": "response.output_item.done", "output_index": 0, "item": message}),
            completed(json!([message])),
        ]),
    );
    let block = Some("0.0".into());
    assert_eq!(
        events[1..4],
        [
            Event::TextDelta { id: block.clone(), delta: "Hel".to_owned() },
            Event::TextDelta { id: block.clone(), delta: "lo".to_owned() },
            Event::TextCompleted { id: block, text: "Hello".to_owned() },
        ]
    );
    assert_eq!(events.len(), 5, "{events:?}");
    let response = folded(&events);
    assert_eq!(
        (response.id.as_deref(), response.model.as_deref()),
        (Some("resp_1"), Some("gpt-5"))
    );
    assert_eq!(response.message.parts(), [Part::text("Hello")]);
    assert_eq!(response.finish_reason, Some(FinishReason::Stop));
}

#[test]
fn a_text_that_is_written_anew_is_not_mixed_with_what_was_told() {
    let said = json!({"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "It is 20°, sunny."}]});
    let told = [
        json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "It's 20"}),
        json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 0, "content_index": 0, "text": "It is 20°, sunny."}),
        completed(json!([said])),
    ];
    assert_eq!(read(&body(&told)).text(), "It's 20");
}

#[test]
fn a_text_is_told_once_however_its_pieces_are_numbered() {
    // How the pieces are numbered, and with what number each text of an item ends.
    type Numbering = fn(u64) -> u64;
    let numberings: [(&str, Numbering); 4] = [
        ("by place", |_| 0),
        ("on from item to item", |_| 1),
        ("each piece", |event| event),
        ("otherwise", |_| 7),
    ];
    let thought = json!({"type": "reasoning_text", "text": "hm hm"});
    let said = json!({"type": "output_text", "text": "Hello world", "annotations": []});
    let items = |ids: [&str; 2]| {
        [
            json!({"type": "reasoning", "id": ids[0], "summary": [], "content": [thought]}),
            json!({"type": "message", "id": ids[1], "role": "assistant", "content": [said]}),
        ]
    };
    for ((how, number), announced) in
        numberings.into_iter().flat_map(|how| [(how, true), (how, false)])
    {
        let mut told = Vec::new();
        let pieces = [("reasoning_text", "hm", " hm"), ("output_text", "Hello", " world")];
        for (place, (name, first, second)) in pieces.into_iter().enumerate() {
            let [thinks, speaks] = items(["a", "b"]);
            let done = if place == 0 { thinks } else { speaks };
            let mut event = |name: &str, rest: Value| {
                let mut event = json!({"type": format!("response.{name}"), "output_index": place, "item_id": done["id"]});
                event["content_index"] = number(told.len() as u64).into();
                let members = rest.as_object().cloned().unwrap_or_default();
                event.as_object_mut().unwrap().extend(members);
                told.push(event);
            };
            let mut begun = done.clone();
            begun["content"] = json!([]);
            event("output_item.added", json!({"item": begun}));
            if announced {
                // Not every server says rightly what it is that begins.
                let part = json!({"type": "output_text", "text": ""});
                event("content_part.added", json!({"part": part}));
            }
            event(&format!("{name}.delta"), json!({"delta": first}));
            event(&format!("{name}.delta"), json!({"delta": second}));
            event(&format!("{name}.done"), json!({"text": done["content"][0]["text"]}));
            event("content_part.done", json!({"part": done["content"][0]}));
            event("output_item.done", json!({"item": done}));
        }
        told.push(completed(json!(items(["rs_9", "msg_9"]))));
        let response = read(&body(&told));
        let parts = response.message.parts().iter();
        let texts = parts.filter_map(|part| match part {
            Part::Reasoning { text, .. } | Part::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["hm hm", "Hello world"], "{how}, {announced}");
    }
}

#[test]
fn texts_of_an_item_stay_apart_however_they_are_told() {
    let part = |text: &str| json!({"type": "output_text", "text": text});
    let item = |parts: &[&str]| {
        let content: Vec<Value> = parts.iter().map(|text| part(text)).collect();
        json!({"type": "message", "id": "m", "content": content})
    };
    let event = |name: &str, index: u64, rest: (&str, Value)| {
        let mut event = json!({"type": format!("response.{name}"), "item_id": "m", "output_index": 0, "content_index": index});
        event[rest.0] = rest.1;
        event
    };
    let added = |index| event("content_part.added", index, ("part", part("")));
    let delta = |index, text: &str| event("output_text.delta", index, ("delta", json!(text)));
    let done = |index, text: &str| event("output_text.done", index, ("text", json!(text)));
    let texts = ["Yes", "Yes, and no"];
    for told in [
        // All at once; only at their ends; in pieces; the second in pieces alone; under other numbers.
        vec![],
        vec![added(0), done(0, texts[0]), added(1), done(1, texts[1])],
        vec![added(0), delta(0, "Y"), added(1), delta(1, "Yes, and")],
        vec![added(0), delta(0, "Yes"), added(1)],
        vec![added(5), delta(5, "Yes"), added(6), delta(6, "Yes, and no")],
    ] {
        let end = completed(json!([item(&texts)]));
        let response = read(&body(&[&told[..], &[end]].concat()));
        assert_eq!(response.message.parts(), texts.map(Part::text), "{told:?}");
    }
}

#[test]
fn o21_whatever_a_server_leaves_away_the_call_is_whole() {
    let item = |arguments: &str| json!({"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": arguments});
    let nameless =
        json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"});
    let added =
        |item| json!({"type": "response.output_item.added", "output_index": 0, "item": item});
    let done = |item| json!({"type": "response.output_item.done", "output_index": 0, "item": item});
    let delta = |text: &str| json!({"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": text});
    let whole = json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 0, "arguments": "{\"x\":1}"});
    let end = completed(json!([item("{\"x\":1}")]));
    for told in [
        vec![
            added(item("")),
            delta("{\"x\""),
            delta(":1}"),
            whole.clone(),
            done(item("{\"x\":1}")),
            end.clone(),
        ],
        vec![added(item("")), done(item("{\"x\":1}")), completed(json!([]))],
        vec![added(item("")), whole.clone(), completed(json!([]))],
        vec![added(item("")), delta("{ \"x\": 1 }"), whole, end.clone()],
        vec![added(item("")), delta("{ \"x\": 1 }"), end.clone()],
        vec![added(item("")), delta("{\"x\""), end.clone()],
        vec![delta("{\"x\""), delta(":1}"), done(item("{\"x\":1}")), end.clone()],
        vec![done(nameless.clone()), completed(json!([nameless]))],
        vec![end],
    ] {
        let response = read(&body(&told));
        let calls: Vec<ToolCall> = response.tool_calls().cloned().collect();
        assert_eq!(calls, [ToolCall::new("c1", "f", "{\"x\":1}")], "{told:?}");
        assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls), "{told:?}");
    }
}

#[test]
fn calls_that_are_listed_under_other_ids_keep_their_arguments() {
    let item = |id: &str, call: &str, name: &str, arguments: &str| json!({"type": "function_call", "id": id, "call_id": call, "name": name, "arguments": arguments});
    let added = |place: u64, item: Value| json!({"type": "response.output_item.added", "output_index": place, "item": item});
    let told = [
        added(0, item("a", "c1", "one", "")),
        added(1, item("b", "c2", "two", "")),
        json!({"type": "response.function_call_arguments.delta", "item_id": "b", "output_index": 1, "delta": "{\"b\":2}"}),
    ];
    let expected =
        [ToolCall::new("c1", "one", "{\"a\":1}"), ToolCall::new("c2", "two", "{\"b\":2}")];
    let mut listed = vec![item("x", "c1", "one", "{\"a\":1}"), item("y", "c2", "two", "{\"b\":2}")];
    for _ in 0..2 {
        let response = read(&body(&[&told[..], &[completed(json!(listed))]].concat()));
        assert_eq!(response.tool_calls().cloned().collect::<Vec<_>>(), expected);
        listed.reverse();
    }
}

#[test]
fn arguments_that_are_no_text_stay_as_they_are_written() {
    const WRITTEN: &str = r#"{"n": 1.0, "big": 12345678901234567890123, "far": 1e400}"#;
    let call = format!(
        r#"{{"type":"function_call","id":"fc","call_id":"c","name":"f","arguments":{WRITTEN}}}"#
    );
    let added = format!(
        r#"{{"type":"response.output_item.added","output_index":0,"item":{}}}"#,
        call.replace(WRITTEN, "null")
    );
    let told = [
        format!(
            r#"{{"type":"response.function_call_arguments.done","item_id":"fc","arguments":{WRITTEN}}}"#
        ),
        format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{call}}}"#),
    ];
    let end = |output: &str| {
        format!(
            r#"{{"type":"response.completed","response":{{"id":"r","model":"m","status":"completed","output":[{output}]}}}}"#
        )
    };
    let streams = told.iter().map(|told| sse([added.as_str(), told, &end("")]));
    let listed = [sse([added.as_str(), &end(&call)]), sse([end(&call).as_str()])];
    for body in streams.chain(listed) {
        let answer = folded(&streamed(&OpenAiResponses::default(), &body));
        let calls: Vec<&str> =
            answer.tool_calls().map(|call| call.raw_arguments.as_str()).collect();
        assert_eq!(calls, [WRITTEN], "{body}");
    }
    // What is not ours to answer goes back as it came.
    let search =
        json!({"type": "tool_search_call", "id": "ts", "arguments": {"query": "q"}, "x": []});
    let events = streamed(&OpenAiResponses::default(), &body(&[completed(json!([search]))]));
    assert_eq!(raw(&events), [search]);
}

#[test]
fn items_are_told_apart_by_id_or_by_place() {
    let added = |index: usize, id: &str, call: &str| json!({"type": "response.output_item.added", "output_index": index, "item": {"type": "function_call", "id": id, "call_id": call, "name": "f", "arguments": ""}});
    let delta = |index: usize, id: &str, text: &str| json!({"type": "response.function_call_arguments.delta", "output_index": index, "item_id": id, "delta": text});
    // As it should be; with ids that change on the way; with places that are all the same; without ids.
    for told in [
        [added(0, "a", "c1"), added(1, "b", "c2"), delta(0, "a", "[1]"), delta(1, "b", "[2]")],
        [added(0, "a", "c1"), added(1, "b", "c2"), delta(0, "y", "[1]"), delta(1, "z", "[2]")],
        [added(0, "a", "c1"), added(0, "b", "c2"), delta(0, "b", "[2]"), delta(0, "a", "[1]")],
        [added(0, "a", "c1"), added(1, "b", "c2"), delta(1, "", "[2]"), delta(0, "", "[1]")],
    ] {
        let told = [told.to_vec(), vec![completed(json!([]))]].concat();
        let calls: Vec<ToolCall> = read(&body(&told)).tool_calls().cloned().collect();
        assert_eq!(
            calls,
            [ToolCall::new("c1", "f", "[1]"), ToolCall::new("c2", "f", "[2]")],
            "{told:?}"
        );
    }
}

#[test]
fn what_the_end_lists_was_told_already_whatever_it_is_called() {
    let text = json!({"type": "response.output_text.delta", "item_id": "a", "output_index": 0, "delta": "Hel"});
    let thought = json!({"type": "response.reasoning_text.delta", "item_id": "b", "output_index": 1, "delta": "hm"});
    let listed = json!([
        {"type": "reasoning", "id": "y", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "z", "content": [{"type": "output_text", "text": "Hello"}]},
        {"type": "message", "content": [{"type": "output_text", "text": " again"}]},
    ]);
    let response = read(&body(&[text, thought, completed(listed)]));
    let [
        Part::Text { text, .. },
        Part::Reasoning { text: thought, .. },
        Part::Text { text: more, .. },
    ] = response.message.parts()
    else {
        panic!("{:?}", response.message);
    };
    assert_eq!((text.as_str(), thought.as_str(), more.as_str()), ("Hello", "hm", " again"));
}

#[test]
fn items_that_are_listed_under_one_id_are_all_told() {
    let call = |x: u64| json!({"type": "function_call", "id": "a", "call_id": "c", "name": "f", "arguments": json!([x]).to_string()});
    let calls: Vec<ToolCall> =
        read(&body(&[completed(json!([call(1), call(2)]))])).tool_calls().cloned().collect();
    assert_eq!(calls, [ToolCall::new("c", "f", "[1]"), ToolCall::new("call_2", "f", "[2]")]);
}

#[test]
fn reasoning_is_one_block_an_item_and_goes_back_as_it_came() {
    let item = json!({
        "type": "reasoning", "id": "rs_1", "status": "completed", "content": null, "encrypted_content": "sealed",
        "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Second."}],
    });
    let summary = |event: &str, index: usize, rest: Value| {
        let mut told = json!({"type": format!("response.reasoning_summary_{event}"), "item_id": "rs_1", "output_index": 0, "summary_index": index});
        told.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        told
    };
    let streamed = [
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": []}}),
        summary("part.added", 0, json!({"part": {"type": "summary_text", "text": ""}})),
        summary("text.delta", 0, json!({"delta": "Fir"})),
        summary("text.delta", 0, json!({"delta": "st."})),
        summary("text.done", 0, json!({"text": "First."})),
        summary("part.added", 1, json!({"part": {"type": "summary_text", "text": ""}})),
        summary("text.done", 1, json!({"text": "Second."})),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
    ];
    let expected = Part::Reasoning {
        text: "First.\n\nSecond.".to_owned(),
        signature: Some("sealed".to_owned()),
        redacted: false,
        data: Some(json!({"type": "reasoning", "id": "rs_1", "summary": item["summary"]})),
    };
    let end = completed(json!([item]));
    let told = [streamed.to_vec(), vec![end.clone()]].concat();
    for told in [told, vec![end]] {
        assert_eq!(read(&body(&told)).message.parts(), std::slice::from_ref(&expected));
    }
}

#[test]
fn reasoning_may_be_readable_or_withheld() {
    let delta = json!({"type": "response.reasoning_text.delta", "item_id": "r", "output_index": 0, "content_index": 0, "delta": "hm"});
    let readable = json!({"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let response = read(&body(&[delta, completed(json!([readable]))]));
    let expected = Part::Reasoning {
        text: "hm".to_owned(),
        signature: None,
        redacted: false,
        data: Some(readable),
    };
    assert_eq!(response.message.parts(), [expected]);
    let withheld =
        json!({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "sealed"});
    let expected = Part::Reasoning {
        text: String::new(),
        signature: Some("sealed".to_owned()),
        redacted: true,
        data: Some(json!({"type": "reasoning", "id": "r", "summary": []})),
    };
    assert_eq!(read(&body(&[completed(json!([withheld]))])).message.parts(), [expected]);
}

#[test]
fn o24_a_refusal_is_a_part_of_its_own() {
    let delta = |text: &str| json!({"type": "response.refusal.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": text});
    let item = json!({"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "I won't."}]});
    let done = json!({"type": "response.refusal.done", "item_id": "m", "output_index": 0, "content_index": 0, "refusal": "I won't."});
    let end = completed(json!([item]));
    for told in [
        vec![delta("I "), delta("won't."), done.clone(), end.clone()],
        vec![done, end.clone()],
        vec![end],
    ] {
        let response = read(&body(&told));
        assert_eq!(response.message.parts(), [Part::Refusal { text: "I won't.".to_owned() }]);
        assert_eq!(
            (response.finish_reason, response.raw_finish_reason.as_deref()),
            (Some(FinishReason::ContentFilter), Some("completed"))
        );
        assert_eq!(response.text(), "");
    }
}

#[test]
fn what_the_providers_own_tools_do_is_passed_on_and_kept() {
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}});
    let searching =
        json!({"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 0});
    let citation = json!({"type": "response.output_text.annotation.added", "item_id": "m", "output_index": 1, "content_index": 0, "annotation": {"type": "url_citation", "url": "https://e.com"}});
    let message = json!({"type": "message", "id": "m", "phase": "final_answer", "content": [{"type": "output_text", "text": "So.", "annotations": [{"type": "url_citation", "url": "https://e.com"}]}]});
    let told = [
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}}),
        searching.clone(),
        json!({"type": "response.output_item.done", "output_index": 0, "item": search}),
        json!({"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "id": "m", "phase": "final_answer", "content": []}}),
        json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 1, "content_index": 0, "delta": "So."}),
        citation.clone(),
        completed(json!([search, message])),
    ];
    let events = streamed(&OpenAiResponses::default(), &body(&told));
    assert_eq!(raw(&events), [searching, search.clone(), citation]);
    let opaque = |data: Value| Part::Reasoning {
        text: String::new(),
        signature: None,
        redacted: false,
        data: Some(data),
    };
    let phase = opaque(json!({"type": "message", "phase": "final_answer"}));
    assert_eq!(folded(&events).message.parts(), [opaque(search.clone()), phase, Part::text("So.")]);
    // In one piece the annotations have no event of their own.
    let events = whole(&reply("completed", json!({"output": [search, message]}))).0;
    let annotations = json!({"type": "annotations", "annotations": [{"type": "url_citation", "url": "https://e.com"}]});
    assert_eq!(raw(&events), [search, annotations]);
}

#[test]
fn what_takes_the_provider_long_is_told_while_it_does_it() {
    let created = json!({"type": "response.created", "response": {"id": "resp_1", "model": "gpt-5"}, "novelty": 1});
    let call = json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "image_generation_call", "id": "ig_1"}});
    let image = json!({"type": "response.image_generation_call.partial_image", "item_id": "ig_1"});
    let told = |events: &[Value]| {
        let (events, read) = told(&body(events));
        assert!(read.is_err(), "the answer is not whole");
        events.iter().map(Event::type_name).collect::<Vec<_>>()
    };
    assert!(told(slice::from_ref(&created)).is_empty(), "nothing was done yet");
    assert_eq!(told(&[created, call, image]), ["message_started", "raw_chunk", "raw_chunk"]);
    let novelties: Vec<Value> = (0..100).map(|n| json!({"type": "novelty", "n": n})).collect();
    assert_eq!(told(&novelties).len(), 101, "there is a limit to what waits");
}

#[test]
fn o22_each_end_has_its_meaning() {
    use FinishReason::*;
    for (status, reason, expected, raw) in [
        ("completed", json!(null), Stop, Some("completed")),
        ("incomplete", json!({"reason": "max_output_tokens"}), Length, Some("max_output_tokens")),
        ("incomplete", json!({"reason": "content_filter"}), ContentFilter, Some("content_filter")),
        ("incomplete", json!({"reason": "bored"}), Other, Some("bored")),
        ("incomplete", json!(null), Other, Some("incomplete")),
        ("paused", json!(null), Other, Some("paused")),
    ] {
        let reply = reply(status, json!({"output": [], "incomplete_details": reason}));
        let event = json!({"type": format!("response.{}", if status == "incomplete" { status } else { "completed" }), "response": reply});
        for response in [read(&body(&[event])), folded(&whole(&reply).0)] {
            assert_eq!(
                (response.finish_reason, response.raw_finish_reason.as_deref()),
                (Some(expected), raw),
                "{reply}"
            );
            let details = response.metadata.get("incomplete_details").cloned().unwrap_or_default();
            assert_eq!(details, reason);
        }
    }
    // Some say how it ended only by the event's name.
    let response = read(&body(&[json!({"type": "response.incomplete", "response": {}})]));
    assert_eq!(response.finish_reason, Some(Other));
}

#[test]
fn a_call_that_was_cut_off_before_its_arguments_has_none() {
    let call = json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "", "status": "incomplete"});
    let end = json!({"type": "response.incomplete", "response": reply("incomplete", json!({"output": [call], "incomplete_details": {"reason": "max_output_tokens"}}))});
    let response = read(&body(&[end]));
    let call = response.tool_calls().next().unwrap();
    assert_eq!((&call.arguments, call.raw_arguments.as_str()), (&Value::Null, ""));
    assert_eq!(response.finish_reason, Some(FinishReason::Length));
}

#[test]
fn o20_usage_counts_the_whole_prompt_and_the_whole_output() {
    let usage = json!({
        "input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "cost": 0.25, "num_sources_used": 2,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 3},
    });
    let reply = reply(
        "completed",
        json!({"output": [], "usage": usage, "service_tier": "flex", "reasoning": {"effort": "low", "summary": null}, "tool_usage": {"web_search": {"num_requests": 1}}}),
    );
    let expected = Usage {
        input_tokens: Some(10),
        output_tokens: Some(5),
        total_tokens: Some(15),
        cached_input_tokens: Some(4),
        cache_write_tokens: Some(2),
        reasoning_tokens: Some(3),
        total_cost: Some(0.25),
        tool_usage: json!({"web_search": {"num_requests": 1}}).as_object().unwrap().clone(),
        extra: json!({"cost": 0.25, "num_sources_used": 2, "service_tier": "flex"})
            .as_object()
            .unwrap()
            .clone()
            .into(),
        ..Usage::default()
    };
    let response = read(&body(&[json!({"type": "response.completed", "response": reply})]));
    assert_eq!(response.usage, expected);
    assert_eq!(
        response.metadata,
        *json!({"reasoning": {"effort": "low"}, "service_tier": "flex"}).as_object().unwrap()
    );
}

#[test]
fn o23_a_failure_has_the_reason_that_the_provider_gives() {
    use AdapterReason::*;
    let failed_with = |error: Value| json!({"type": "response.failed", "response": reply("failed", json!({"error": error}))});
    for (event, expected, message) in [
        (failed_with(json!({"code": "server_error", "message": "m"})), ProviderUnavailable, "m"),
        (failed_with(json!({"code": "rate_limit_exceeded", "message": "m"})), RateLimited, "m"),
        (failed_with(json!({"code": "server_is_overloaded", "message": "m"})), Overloaded, "m"),
        (failed_with(json!({"code": "invalid_prompt", "message": "m"})), InvalidRequest, "m"),
        (failed_with(json!({"code": "image_too_large", "message": "m"})), InvalidRequest, "m"),
        (
            failed_with(json!({"code": "image_content_policy_violation", "message": "m"})),
            ContentFilter,
            "m",
        ),
        (failed_with(json!({"code": "vector_store_timeout", "message": "m"})), Timeout, "m"),
        (failed_with(json!(null)), ProviderUnavailable, "the provider gave the answer up: failed"),
        (
            json!({"type": "error", "code": "insufficient_quota", "message": "m", "param": null, "sequence_number": 3}),
            PermissionDenied,
            "m",
        ),
        (
            json!({"type": "error", "error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "m"}}),
            ContextLengthExceeded,
            "m",
        ),
        (json!({"error": {"message": "m", "code": 502}}), ProviderUnavailable, "m"),
    ] {
        let delta = json!({"type": "response.output_text.delta", "delta": "Hel"});
        let body = body(&[delta, event.clone()]);
        let (events, read) = events(
            &OpenAiResponses::default(),
            &Request::from("hi"),
            Delivery::Streamed,
            [body.as_bytes()],
        );
        let error = read.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Adapter(expected), message),
            "{event}"
        );
        assert_eq!(folded(&events).text(), "Hel");
    }
}

#[test]
fn o27_an_answer_in_one_piece_is_read_from_its_items() {
    let output = json!([
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "So"}, {"type": "output_text", "text": " be it."}]},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"},
    ]);
    let (events, read) = whole(&reply(
        "completed",
        json!({"output": output, "usage": {"input_tokens": 1, "output_tokens": 2}, "novelty": 7}),
    ));
    assert_eq!(read, Ok(()));
    let response = folded(&events);
    assert_eq!(response.text(), "So be it.");
    assert_eq!(response.message.parts().len(), 4, "{:?}", response.message);
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!((response.id.as_deref(), response.usage.output_tokens), (Some("resp_1"), Some(2)));
    assert_eq!(raw(&events), [json!({"type": "response", "novelty": 7})]);
    let plain = json!([{"type": "message", "id": "m", "content": "So be it."}]);
    let (events, _) = whole(&reply("completed", json!({"output": plain})));
    assert_eq!(folded(&events).text(), "So be it.");
    for (body, expected) in [
        (json!({"id": "x"}), AdapterReason::MalformedResponse),
        (
            json!({"error": {"code": "server_error", "message": "m"}}),
            AdapterReason::ProviderUnavailable,
        ),
        (reply("cancelled", json!({"output": []})), AdapterReason::ProviderUnavailable),
    ] {
        assert_eq!(whole(&body).1.unwrap_err().kind(), ErrorKind::Adapter(expected), "{body}");
    }
    let (events, _) = whole(&reply("queued", json!({"output": []})));
    assert_eq!(folded(&events).finish_reason, None, "it goes on in the background");
}

#[test]
fn only_the_last_event_ends_an_answer() {
    let delta = json!({"type": "response.output_text.delta", "delta": "x"});
    let done = json!({"type": "response.output_text.done", "text": "x"});
    let unfinished = body(&[delta.clone(), done]);
    for body in [unfinished.clone(), format!("{unfinished}data: [DONE]\n\n")] {
        assert_eq!(failed(&body).kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    }
    // Nothing that follows the end changes it.
    let ended = body(&[delta.clone(), completed(json!([])), delta]);
    assert_eq!(read(&format!("{ended}data: [DONE]\n\n")).text(), "x");
}

#[test]
fn unknown_events_and_members_are_passed_on() {
    let strange = json!({"type": "response.surprise.delta", "delta": "?"});
    let extended =
        json!({"type": "response.output_text.delta", "delta": "x", "logprobs": [{"token": "x"}]});
    let audio =
        json!({"type": "response.content_part.added", "item_id": "m", "part": {"type": "audio"}});
    let told = [
        strange.clone(),
        json!({"type": "keepalive"}),
        extended,
        audio.clone(),
        completed(json!([])),
    ];
    let events = streamed(&OpenAiResponses::default(), &body(&told));
    let logprobs = json!({"type": "response.output_text.delta", "logprobs": [{"token": "x"}]});
    assert_eq!(raw(&events), [strange, logprobs, audio]);
    assert_eq!(folded(&events).text(), "x");
}

#[test]
fn the_type_may_stand_in_the_frame_alone() {
    let body = "event: response.output_text.delta\ndata: {\"delta\":\"x\"}\n\nevent: response.completed\ndata: {}\n\n";
    assert_eq!(read(body).text(), "x");
}

#[test]
fn items_without_end_are_refused() {
    let added = |index: usize| json!({"type": "response.output_item.added", "output_index": index, "item": {"type": "function_call"}});
    let told: Vec<Value> = (0..=10_000).map(added).collect();
    assert_eq!(failed(&body(&told)).kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    let listed = vec![json!({"type": "function_call", "name": "f"}); 10_001];
    let error = whole(&reply("completed", json!({"output": listed}))).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_event_is_too_odd(told in vec(odd_event(), 0..8), ended in any::<bool>()) {
        let mut body = sse(told.iter().map(String::as_str));
        if ended {
            body.push_str(&sse([completed(json!([])).to_string().as_str()]));
        }
        let (events, _) = events(&OpenAiResponses::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        folded(&events);
    }

    #[test]
    fn no_answer_is_too_odd(reply in odd_members()) {
        let (events, _) = whole(&reply);
        folded(&events);
    }
}

/// Events of the right shape with the wrong things in them.
fn odd_event() -> impl Strategy<Value = String> {
    let kind = prop_oneof![
        "response\\.output_item\\.(added|done)",
        "response\\.(output_text|refusal|reasoning_text|function_call_arguments)\\.(delta|done)",
        "response\\.(content_part|reasoning_summary_part)\\.(added|done)",
        "response\\.output_text\\.annotation\\.added",
        "response\\.reasoning_summary_text\\.(delta|done|other)",
        "response\\.(created|incomplete|surprise)",
    ];
    (kind, odd_members()).prop_map(|(kind, mut members)| {
        members["type"] = kind.into();
        members.to_string()
    })
}

fn odd_members() -> impl Strategy<Value = Value> {
    let odd = prop_oneof![
        Just(json!(null)),
        Just(json!(0)),
        Just(json!("wörld")),
        Just(json!("w")),
        Just(json!([])),
        Just(json!({})),
        Just(
            json!({"type": "message", "id": "w", "content": [{"type": "output_text", "text": "é"}, 7, {"type": "audio"}]})
        ),
        Just(json!({"type": "function_call", "id": "w", "arguments": {"x": 1}})),
        Just(json!({"type": "function_call", "call_id": "w", "name": "f"})),
        Just(
            json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "é"}], "encrypted_content": 7})
        ),
        Just(json!({"type": "output_text", "text": "wö", "annotations": [1]})),
        Just(
            json!([{"type": "web_search_call"}, {"type": "message", "content": "é"}, {"type": "function_call", "id": "w"}])
        ),
    ];
    let names = prop_oneof![
        "item",
        "item_id",
        "part",
        "delta",
        "text",
        "refusal",
        "arguments",
        "output",
        "usage",
        "error",
        "status",
        "output_index",
        "novelty",
    ];
    vec((names, odd), 0..6).prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": reply("completed", json!({"output": output}))})
}

fn reply(status: &str, rest: Value) -> Value {
    let mut reply = json!({"id": "resp_1", "object": "response", "model": "m1", "status": status, "temperature": 1.0, "tools": [{"type": "function"}]});
    reply.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    reply
}

fn raw(events: &[Event]) -> Vec<Value> {
    let raw = events.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk.clone()),
        _ => None,
    });
    raw.collect()
}

fn read(body: &str) -> Response {
    folded(&streamed(&OpenAiResponses::default(), body))
}

fn whole(body: &Value) -> (Vec<Event>, Result<(), Error>) {
    let body = body.to_string();
    events(&OpenAiResponses::default(), &Request::from("hi"), Delivery::Whole, [body.as_bytes()])
}

fn told(body: &str) -> (Vec<Event>, Result<(), Error>) {
    let bytes = [body.as_bytes()];
    events(&OpenAiResponses::default(), &Request::from("hi"), Delivery::Streamed, bytes)
}

fn failed(body: &str) -> Error {
    told(body).1.unwrap_err()
}

fn body(told: &[Value]) -> String {
    let told: Vec<String> = told.iter().map(Value::to_string).collect();
    sse(told.iter().map(String::as_str))
}
