//! Items of an answer of Responses, however the servers in the field number, name and list them.

use std::slice;

use mynah_adapters::openai_responses::OpenAiResponses;
use mynah_data::{Event, FinishReason, Part, ToolCall};
use serde_json::{Value, json};

use crate::common::{
    folded,
    responses::{body, completed, raw, read, reply, told, whole},
    sse, streamed,
};

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
    let part = |text: &str| json!({"type": "output_text", "text": text});
    let event = |name: &str, index: u64, member: &str, text: &str| json!({"type": format!("response.output_text.{name}"), "item_id": "msg_1", "output_index": 0, "content_index": index, member: text});
    // Numbered as they are listed; all with another number; each piece with its own.
    for [first, second, third] in [[0, 0, 0], [7, 7, 7], [3, 4, 5]] {
        let told = [
            event("delta", first, "delta", "It's"),
            event("delta", second, "delta", " 20"),
            event("done", third, "text", "It is 20°, sunny."),
        ];
        let content = json!([part("It is 20°, sunny."), part("Bring a hat.")]);
        let said = json!({"type": "message", "id": "msg_1", "content": content});
        for told in [&told[..], &told[..2]] {
            let read = read(&body(&[told, &[completed(json!([said]))]].concat()));
            assert_eq!(
                read.message.parts(),
                ["It's 20", "Bring a hat."].map(Part::text),
                "{told:?}"
            );
        }
    }
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
fn a_call_of_no_function_that_was_cut_off_has_no_arguments() {
    let call = |status: &str| {
        let item = json!({"type": "custom_tool_call", "id": "ct", "call_id": "c", "name": "sh", "input": "rm -r /tmp", "status": status});
        let (events, read) = whole(&reply("incomplete", json!({"output": [item]})));
        assert_eq!(read, Ok(()));
        folded(&events).tool_calls().next().unwrap().arguments.clone()
    };
    assert_eq!(call("completed"), json!({"input": "rm -r /tmp"}));
    assert_eq!(call("incomplete"), Value::Null);
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
