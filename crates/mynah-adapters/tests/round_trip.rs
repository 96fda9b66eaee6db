//! What a provider gave goes back to it as it came.

use mynah_adapters::{
    anthropic::Anthropic,
    format::{Delivery, Format},
    openai_chat::OpenAiChat,
    openai_responses::OpenAiResponses,
};
use mynah_data::{Event, FinishReason, Message, Request};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use crate::common::{
    events, folded,
    messages::{answer, body, read, read_whole, text},
    sse, streamed,
};

#[test]
fn what_means_nothing_to_us_goes_back_where_it_stood_and_as_it_came() {
    let compacted =
        json!({"type": "compaction", "content": "The user asked.", "encrypted_content": "e"});
    let failed = json!({"type": "compaction", "content": null});
    let fallback = json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}});
    let listing = json!({"type": "mcp_tool_listing", "server_name": "s", "tools": [{"name": "t"}]});
    let upload = json!({"type": "container_upload", "file_id": "f"});
    let novelty = json!({"type": "novelty", "text": "ab", "n": 2});
    let thought =
        |signature: &str| json!({"type": "thinking", "thinking": "hm", "signature": signature});
    let delta = |kind: &str, members: Value| {
        let mut delta = members;
        delta["type"] = kind.into();
        delta
    };
    let body = answer(
        &[
            (
                json!({"type": "compaction", "content": null}),
                vec![
                    delta("compaction_delta", json!({"content": "The user "})),
                    delta(
                        "compaction_delta",
                        json!({"content": "asked.", "encrypted_content": "e"}),
                    ),
                ],
            ),
            (failed.clone(), vec![delta("compaction_delta", json!({"content": null}))]),
            (thought("S1"), vec![]),
            (fallback.clone(), vec![]),
            (thought("S2"), vec![]),
            (listing.clone(), vec![]),
            (upload.clone(), vec![]),
            (
                json!({"type": "novelty", "text": ""}),
                vec![text("ab"), delta("novelty_delta", json!({"n": 2}))],
            ),
        ],
        "compaction",
    );
    let events = streamed(&Anthropic::default(), &body);
    assert!(matches!(events.last(), Some(Event::MessageCompleted { paused: true, .. })));
    let response = folded(&events);
    assert_eq!(response.text(), "");
    let request = Request::new([Message::clone(&response.message)]).with_model("m");
    let expected =
        [compacted, failed, thought("S1"), fallback, thought("S2"), listing, upload, novelty];
    assert_eq!(
        Anthropic::default().body(&request, &ModelCall::default()).unwrap()["messages"],
        json!([{"role": "assistant", "content": expected}])
    );
    let raw = events.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk),
        _ => None,
    });
    let unknown = expected.iter().filter(|block| block["type"] != "thinking");
    assert_eq!(raw.collect::<Vec<_>>(), unknown.collect::<Vec<_>>());
}

#[test]
fn what_code_called_goes_back_with_its_caller_to_where_the_code_runs() {
    let container = json!({"id": "c1", "expires_at": "2026-01-01T00:00:00Z"});
    let caller = json!({"type": "code_execution_20250825", "tool_id": "s1"});
    let direct = json!({"type": "direct"});
    let call = |id: &str, caller: &Value| json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}, "caller": caller});
    let whole = json!({
        "id": "m", "model": "c", "content": [call("t1", &caller), call("t2", &direct)],
        "stop_reason": "tool_use", "container": container,
    });
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let streamed = read(&body(&[
        json!({"type": "message_start", "message": {"id": "m", "model": "c"}}),
        start(0, call("t1", &caller)),
        start(1, call("t2", &direct)),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "container": container}}),
        json!({"type": "message_stop"}),
    ]));
    for response in [streamed, read_whole(&whole)] {
        assert_eq!(response.metadata["container"], container);
        let results = ["t1", "t2"].map(|id| Message::tool_result(id, "r"));
        let thread = [Message::user("hi"), Message::clone(&response.message)].into_iter();
        let request = Request::new(thread.chain(results)).with_model("m");
        let sent =
            |request: &Request| Anthropic::default().body(request, &ModelCall::default()).unwrap();
        let body = sent(&request);
        let mut direct = call("t2", &direct);
        direct.as_object_mut().unwrap().shift_remove("caller");
        assert_eq!(body["messages"][1]["content"], json!([call("t1", &caller), direct]));
        assert_eq!(body["container"], "c1");
        let mut skilled = request.clone();
        skilled.options.insert("container".to_owned(), json!({"skills": [1]}));
        assert_eq!(sent(&skilled)["container"], json!({"skills": [1], "id": "c1"}));
        let later = request.messages.iter().map(|message| Message::clone(message));
        let later = Request::new(later.chain([Message::user("so?")])).with_model("m");
        assert_eq!(sent(&later).get("container"), None, "it may be gone");
    }
}

#[test]
fn a_text_goes_back_with_what_it_was_taken_from() {
    let web = json!({"type": "web_search_result_location", "url": "u", "title": null, "encrypted_index": "e", "cited_text": "c"});
    let place = json!({"type": "char_location", "document_index": 0, "document_title": null, "start_char_index": 0, "end_char_index": 1, "cited_text": "c"});
    let mut given = place.clone();
    given["file_id"] = Value::Null;
    let cite = |citation: &Value| json!({"type": "citations_delta", "citation": citation});
    let plain = json!({"type": "text", "text": "So: "});
    let cited =
        |citations: &[&Value]| json!({"type": "text", "text": "it is.", "citations": citations});
    let streamed = read(&answer(
        &[
            (plain.clone(), vec![]),
            (
                json!({"type": "text", "text": "", "citations": []}),
                vec![cite(&web), text("it is."), cite(&given)],
            ),
        ],
        "end_turn",
    ));
    let whole = read_whole(&json!({
        "id": "m", "model": "c", "content": [plain, cited(&[&web, &given])], "stop_reason": "end_turn",
    }));
    for response in [streamed, whole] {
        assert_eq!(response.text(), "So: it is.");
        let request = Request::new([Message::clone(&response.message)]).with_model("m");
        let sent = Anthropic::default().body(&request, &ModelCall::default()).unwrap();
        assert_eq!(sent["messages"][0]["content"], json!([plain, cited(&[&web, &place])]));
    }
}

#[test]
fn what_a_program_called_goes_back_with_the_program() {
    let program =
        json!({"type": "program", "id": "p", "call_id": "pc", "code": "f()", "fingerprint": "x"});
    let came = json!({"type": "program_output", "id": "po", "call_id": "pc", "result": "r", "status": "completed"});
    let caller = json!({"type": "program", "caller_id": "pc"});
    let call =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let called = |id: &str, caller: &Value| {
        let mut call = call(id);
        call["caller"] = caller.clone();
        call
    };
    let whole = json!({"id": "r", "model": "m", "status": "completed", "output": [
        program, called("c1", &caller), called("c2", &json!({"type": "direct"})), came,
    ]});
    let format = OpenAiResponses::default();
    let (told, read) =
        events(&format, &Request::from("hi"), Delivery::Whole, [whole.to_string().as_bytes()]);
    assert_eq!(read, Ok(()));
    let results = ["c1", "c2"].map(|id| Message::tool_result(id, "done"));
    let thread = [Message::clone(&folded(&told).message)].into_iter().chain(results);
    let sent = format.body(&Request::new(thread).with_model("m"), &ModelCall::default()).unwrap();
    let output =
        |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "done"});
    let mut awaited = output("c1");
    awaited["caller"] = caller.clone();
    assert_eq!(
        sent["input"],
        json!([program, called("c1", &caller), call("c2"), came, awaited, output("c2")])
    );
}

#[test]
fn a_tool_that_takes_text_is_called_and_answered_as_its_own_kind() {
    let custom = json!({"type": "custom_tool_call", "id": "ct", "call_id": "c1", "name": "sh", "input": "echo \"hi\"\n", "status": "completed"});
    let patch = json!({"type": "apply_patch_call", "id": "ap", "call_id": "c2", "status": "completed", "operation": {"type": "delete_file", "path": "a"}});
    let done = |index: u64, item: &Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
    let response = folded(&streamed(
        &OpenAiResponses::default(),
        &body(&[
            json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "custom_tool_call", "id": "ct", "call_id": "c1", "name": "sh", "input": ""}}),
            json!({"type": "response.custom_tool_call_input.delta", "item_id": "ct", "output_index": 0, "delta": "echo"}),
            done(0, &custom),
            done(1, &patch),
            json!({"type": "response.completed", "response": {"id": "r", "model": "m", "status": "completed", "output": [custom, patch]}}),
        ]),
    ));
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    let called = response.tool_calls().map(|call| (call.name.as_str(), call.arguments.clone()));
    assert_eq!(
        called.collect::<Vec<_>>(),
        [
            ("sh", json!({"input": "echo \"hi\"\n"})),
            ("apply_patch", json!({"operation": {"type": "delete_file", "path": "a"}})),
        ]
    );
    let results = ["c1", "c2"].map(|id| Message::tool_result(id, "done"));
    let thread = [Message::clone(&response.message)].into_iter().chain(results);
    let request = Request::new(thread).with_model("m");
    let sent = OpenAiResponses::default().body(&request, &ModelCall::default()).unwrap();
    assert_eq!(
        sent["input"],
        json!([
            custom,
            patch,
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {"type": "apply_patch_call_output", "call_id": "c2", "output": "done", "status": "completed"},
        ])
    );
}

#[test]
fn a_tool_of_chat_completions_that_takes_text_is_called_and_answered_as_its_own_kind() {
    let call =
        json!({"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "echo \"hi\"\n"}});
    let whole = json!({"id": "r", "model": "m", "choices": [
        {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": null, "tool_calls": [call]}},
    ]});
    let piece = |call: Value, reason: Value| {
        let delta = json!({"tool_calls": [call]});
        json!({"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).to_string()
    };
    let pieces = |reason: &str| {
        sse([
            piece(json!({"index": 0, "id": "c1", "type": "custom", "custom": {"name": "sh", "input": ""}}), Value::Null).as_str(),
            piece(json!({"index": 0, "custom": {"input": "echo \""}}), Value::Null).as_str(),
            piece(json!({"index": 0, "custom": {"input": "hi\"\n"}}), json!(reason)).as_str(),
            "[DONE]",
        ])
    };
    let format = OpenAiChat::default();
    for (delivery, body) in
        [(Delivery::Whole, whole.to_string()), (Delivery::Streamed, pieces("tool_calls"))]
    {
        let (told, read) = events(&format, &Request::from("hi"), delivery, [body.as_bytes()]);
        assert_eq!(read, Ok(()));
        let response = folded(&told);
        let arguments: Vec<&Value> = response.tool_calls().map(|call| &call.arguments).collect();
        assert_eq!(arguments, [&json!({"input": "echo \"hi\"\n"})]);
        let result = Message::tool_result("c1", "done");
        let request = Request::new([Message::clone(&response.message), result]).with_model("m");
        let sent = format.body(&request, &ModelCall::default()).unwrap();
        assert_eq!(
            sent["messages"],
            json!([
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "done"},
            ])
        );
    }
    let cut = folded(&streamed(&format, &pieces("length")));
    assert_eq!(cut.tool_calls().next().unwrap().arguments, Value::Null, "it is not whole");
}
