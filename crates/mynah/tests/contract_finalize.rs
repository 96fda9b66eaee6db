//! An answer that gets its form by one more call after the tools.

use std::sync::Arc;

use mynah::{
    AdapterReason, Budget, Chat, Engine, EngineReason, ErrorKind, Event, FinishReason, HaltReason,
    Message, OnUnknownTool, Part, Request, Response, ResponseFormat, Result, Role, StepResult,
    Thread, Tool, ToolCall, ToolChoice, ToolMode, ToolOutcome,
    log::MemoryLog,
    replay_run,
    testing::{self, Scripted, names},
};
use serde_json::{Value, json};

use crate::{
    common::{
        Canned, boom, call, calls, counted, echo, events, fixtures::stopped, fold, map, says,
        scripted, tool, transcript,
    },
    param::Param as _,
};

/// One more setting of a chat.
type Set = fn(Chat) -> Chat;

const NUDGE: &str = "Now provide your final structured response.";

#[tokio::test]
async fn the_call_that_gives_the_answer_its_form_is_within_the_budget_too() -> Result<()> {
    let log = MemoryLog::new();
    let chat = |scripts: [Value; 2]| {
        let engine = Engine::new(scripted(scripts)).tool(echo());
        let chat = engine.chat("go").response_format(schema()).record(&log);
        chat.structured_finalize(true).budget(Budget::new().max_turns(1))
    };
    let (answers, calls) = (|| [says("done"), says("{}")], || [call("c0", "echo"), says("{}")]);
    for (chat, pass_1) in [
        (chat(answers()), "completed"),
        (chat(calls()).halt_when("test", |_: &StepResult| true), "halt_when"),
        // Within the conversation it is that which it ends.
        (chat(calls()), "budget_exceeded"),
    ] {
        let result = chat.await?;
        assert_eq!((result.halted_reason, result.steps.len()), (HaltReason::BudgetExceeded, 1));
        assert_eq!(result.metadata["structured_finalize"], json!({"pass_1_halted": pass_1}));
        let run = result.run_id.unwrap_or_default();
        assert_eq!(replay_run(&log, &*run).await?.status, "equal", "{pass_1}");
    }
    Ok(())
}

#[tokio::test]
async fn the_events_of_the_finalizing_pass_say_so_live_and_replayed() -> Result<()> {
    let log = MemoryLog::new();
    let engine = Engine::new(scripted([says("done"), says("{}")]));
    let chat = engine.chat("go").response_format(schema()).structured_finalize(true);
    let live = testing::collect(chat.record(&log).run_id("k").stream()).await?;
    let replayed = testing::collect(replay_run(&log, "k").stream()).await?;
    for events in [live, replayed] {
        let said = events.iter().filter_map(|event| match event {
            Event::MessageStarted { finalizing, .. } => Some(*finalizing),
            _ => None,
        });
        assert_eq!(said.collect::<Vec<_>>(), [false, true]);
        let started = events.iter().filter(|event| matches!(event, Event::MessageStarted { .. }));
        let members = started.map(|event| json!(event).get("finalizing").cloned());
        assert_eq!(members.collect::<Vec<_>>(), [None, Some(json!(true))]);
    }
    Ok(())
}

#[tokio::test]
async fn f01_the_answer_of_the_second_pass_is_the_chats() -> Result<()> {
    let result = finalized(&three()).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert_eq!(result.steps.len(), 3);
    assert_eq!(result.text(), "{}");
    assert_eq!(result.final_response.as_ref(), Some(&result.steps[2].response));
    let expected = [
        "user: hi",
        "assistant: → c0",
        "tool c0: {}",
        "assistant: words",
        &format!("user: {NUDGE}"),
        "assistant: {}",
    ];
    assert_eq!(transcript(&result.thread), expected);
    assert_eq!(
        result.metadata,
        map(json!({"structured_finalize": {"pass_1_halted": "completed"}}))
    );
    Ok(())
}

#[tokio::test]
async fn f02_without_a_response_format_there_is_one_pass() -> Result<()> {
    let model = scripted([says("words"), says("never")]);
    let result = Engine::new(model.clone()).chat("hi").structured_finalize(true).await?;
    assert_eq!((result.text().as_ref(), model.calls()), ("words", 1));
    assert_eq!(result.metadata, map(json!({})));
    let model = scripted([says("words"), says("never")]);
    Engine::new(model.clone()).chat("hi").response_format(schema()).await?;
    assert_eq!(model.calls(), 1, "and without the flag too");
    Ok(())
}

#[tokio::test]
async fn f03_f04_a_conversation_that_was_suspended_or_stopped_gets_no_form() -> Result<()> {
    let manual = |chat: Chat| chat.mode(ToolMode::Manual);
    let plain = |chat: Chat| chat;
    let cases: [(&str, Value, Set); 7] = [
        ("ask_user", call("c0", "ask"), plain),
        ("tool_error", call("c0", "boom"), |chat| chat.on_tool_error(mynah::OnToolError::Halt)),
        ("manual_tool_calls", call("c0", "echo"), manual),
        ("manual_tool_calls", call("c0", "hand_over"), plain),
        ("plan", call("c0", "plan"), plain),
        ("error", json!([{"error": "overloaded"}]), plain),
        ("error", call("c0", "nope"), plain),
    ];
    for (reason, script, set) in cases {
        let model = scripted([script, says("never")]);
        let result = set(finalized(&model)).await?;
        assert_eq!(result.halted_reason.as_str(), reason);
        assert_eq!(result.metadata["structured_finalize"], json!({"pass_1_halted": reason}));
        assert_eq!((result.steps.len(), model.calls()), (1, 1), "{reason}");
    }
    Ok(())
}

#[tokio::test]
async fn f05_after_max_turns_or_halt_when_the_answer_still_gets_its_form() -> Result<()> {
    let cases: [(&str, Set); 2] = [
        ("max_turns", |chat| chat.max_turns(1)),
        ("halt_when", |chat| chat.halt_when("test", |_| true)),
    ];
    for (reason, set) in cases {
        let model = scripted([call("c0", "echo"), says("{}")]);
        let result = set(finalized(&model)).await?;
        assert_eq!(result.halted_reason, HaltReason::Completed, "{reason}");
        assert_eq!(result.steps.len(), 2);
        let metadata = json!({"structured_finalize": {"pass_1_halted": reason}});
        assert_eq!(result.metadata, map(metadata));
    }
    Ok(())
}

#[tokio::test]
async fn f06_f08_f11_tools_belong_to_the_first_pass_and_the_format_to_the_second() -> Result<()> {
    let model = three();
    let chat = finalized(&model).param("parallel_tool_calls", false).param("seed", 1);
    chat.tools([tool("extra", |_| json!(1))]).tool_choice(ToolChoice::Auto).await?;
    let [first, second, last] = &model.requests()[..] else { panic!("three requests") };
    for request in [first, second] {
        let names: Vec<&str> = request.tools.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["echo", "boom", "ask", "plan", "hand_over", "extra"]);
        assert_eq!((&request.response_format, request.structured_finalize), (&None, false));
        assert_eq!(request.tool_choice, Some(ToolChoice::Auto));
        assert_eq!(request.options["parallel_tool_calls"], false);
    }
    let mut expected =
        Request::default().with_options(map(json!({"seed": 1}))).with_response_format(schema());
    expected.messages = last.messages.clone();
    expected.stream = true;
    assert_eq!(*last, expected, "no tools, no choice of them");
    assert_eq!(
        last.messages.last().map(|m| (m.role(), m.text())),
        Some((Role::User, NUDGE.into()))
    );
    assert_eq!(last.messages.len(), 5);
    Ok(())
}

#[tokio::test]
async fn f07_the_nudge_is_the_calls_else_the_engines_else_the_default() -> Result<()> {
    let cases = [
        (None, None, Some(NUDGE)),
        (None, Some("config"), Some("config")),
        (Some("call"), Some("config"), Some("call")),
        (Some(""), Some("config"), None),
        (None, Some(""), None),
    ];
    for (call, config, expected) in cases {
        let model = scripted([says("words"), says("{}")]);
        let mut engine = Engine::new(model.clone());
        if let Some(nudge) = config {
            engine = engine.param("structured_finalize_nudge", nudge);
        }
        let mut chat = engine.chat("hi").response_format(schema()).structured_finalize(true);
        if let Some(nudge) = call {
            chat = chat.structured_finalize_nudge(nudge);
        }
        chat.await?;
        let asked = &model.requests()[1].messages;
        let nudge = asked.last().filter(|message| message.role() == Role::User);
        assert_eq!(nudge.map(|message| message.text().into_owned()).as_deref(), expected);
        assert_eq!(asked.len(), 2 + usize::from(expected.is_some()));
    }
    Ok(())
}

#[tokio::test]
async fn f09_both_passes_stream_and_the_chat_ends_once() -> Result<()> {
    let seen = events(finalized(&three()).stream()).await;
    let count = |name| names(&seen).into_iter().filter(|found| *found == name).count();
    assert_eq!((count("step_completed"), count("chat_completed")), (3, 1));
    assert_eq!(seen.last().map(Event::type_name), Some("chat_completed"));
    assert_eq!(fold(&Thread::from("hi"), &seen).chat_result(), finalized(&three()).await?);
    Ok(())
}

#[tokio::test]
async fn f10_a_refused_second_pass_leaves_the_conversation_as_it_was() -> Result<()> {
    let refused = || {
        scripted([
            call("c0", "echo"),
            says("words"),
            json!([{"preflight_error": "authentication_failed"}]),
        ])
    };
    let result = finalized(&refused()).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert_eq!((result.text().as_ref(), result.steps.len()), ("words", 2));
    assert_eq!(result.thread.last_message().map(Message::role), Some(Role::Assistant), "no nudge");
    let told = &result.metadata["structured_finalize"];
    assert_eq!(told["pass_1_halted"], "completed");
    assert_eq!(told["pass_2_error"]["reason"], "authentication_failed");
    let error = result.clone().into_json::<Value>().unwrap_err();
    assert_eq!(error.reason(), "authentication_failed");

    let seen = events(finalized(&refused()).stream()).await;
    assert_eq!(seen.last(), Some(&Event::ChatCompleted { result: Box::new(result) }));
    Ok(())
}

#[tokio::test]
async fn f10_a_second_pass_that_breaks_off_is_the_chats_error() -> Result<()> {
    let model = scripted([says("words"), json!([{"text": "{"}, {"error": "overloaded"}])]);
    let result = finalized(&model).await?;
    assert_eq!(result.halted_reason, HaltReason::Error);
    assert_eq!(result.error().expect("an error").reason(), "overloaded");
    assert_eq!(result.metadata["structured_finalize"], json!({"pass_1_halted": "completed"}));
    assert_eq!((result.text().as_ref(), result.steps.len()), ("{", 2));
    Ok(())
}

#[tokio::test]
async fn f11_no_tool_runs_in_the_second_pass_whatever_the_model_calls() -> Result<()> {
    for policy in [OnUnknownTool::Fail, OnUnknownTool::Answer] {
        let (counting, runs) = counted("echo");
        let model = scripted([says("words"), call("c0", "echo"), says("never")]);
        let chat = finalized_by(&Engine::new(model.clone()).tool(counting)).on_unknown_tool(policy);
        let result = chat.await?;
        assert_eq!((runs.get(), model.calls()), (0, 2), "{policy:?}");
        assert!(result.is_halted(), "{policy:?}");
        assert_eq!(result.metadata["structured_finalize"], json!({"pass_1_halted": "completed"}));
        let told = result.thread.last_message().expect("a message");
        assert_eq!(told.tool_call_id(), Some("c0"));
        assert!(told.text().contains("unknown_tool"), "{told:?}");
    }
    Ok(())
}

#[tokio::test]
async fn two_passes_happen_by_themselves_where_the_adapter_needs_them() -> Result<()> {
    let tool_turn = || {
        vec![
            Event::message_started(),
            Event::tool_call_completed(ToolCall::new("c0", "echo", "{}")),
            Event::message_completed(Some(FinishReason::ToolCalls)),
        ]
    };
    let model = Canned::new([tool_turn(), stopped("words"), stopped("{}")]).needing_finalize();
    let engine = Engine::new(model.clone()).tool(echo());
    let result = engine.chat("hi").response_format(schema()).await?;
    assert_eq!((result.text().as_ref(), result.steps.len()), ("{}", 3));
    assert_eq!(
        result.metadata,
        map(json!({"structured_finalize": {"pass_1_halted": "completed"}}))
    );
    let formats = model.requests.all().into_iter().map(|request| request.response_format);
    assert_eq!(formats.collect::<Vec<_>>(), [None, None, Some(schema())]);
    let former = model.calls.all().into_iter().map(|call| call.former_tools);
    let told = vec![Arc::clone(echo().spec())];
    assert_eq!(former.collect::<Vec<_>>(), [vec![], vec![], told], "what the request has no more");

    let model = Canned::new([stopped("{}")]).needing_finalize();
    let result = Engine::new(model).chat("hi").response_format(schema()).await?;
    assert_eq!(result.steps.len(), 1, "without tools there is nothing to combine");
    Ok(())
}

#[tokio::test]
async fn calls_that_the_first_pass_left_unanswered_are_answered_and_named() -> Result<()> {
    let cut = json!([{"tool_call": {"id": "c0", "name": "echo"}}, {"finish": "length"}]);
    let refused = json!([{"preflight_error": "overloaded"}]);
    for second in [says("{}"), refused, json!([{"disconnect": true}])] {
        let model = scripted([cut.clone(), second]);
        let result = finalized(&model).await?;
        assert!(
            mynah::validate::request(&model.requests()[1]).is_ok(),
            "nothing unanswered is sent"
        );
        assert_eq!(result.metadata["repaired_tool_calls"], json!(["c0"]));
        assert!(mynah::validate::thread(&result.thread).is_ok());
    }
    Ok(())
}

/// A tool turn, an answer in words, an answer in JSON.
#[tokio::test]
async fn only_a_whole_answer_that_fits_is_read_as_json() -> Result<()> {
    let ends = |text: &str, finish: &str| json!([{"text": text}, {"finish": finish}]);
    let cases = [
        (ends("21", "stop"), Ok(21)),
        (ends("21", "length"), Err(("halted", "cut off at its token limit"))),
        (ends("21", "content_filter"), Err(("content_filter", "was filtered"))),
        (ends("twenty", "stop"), Err(("malformed_response", "is not JSON: expected ident"))),
        (ends("", "stop"), Err(("malformed_response", "is not JSON: EOF"))),
        (ends("-1", "stop"), Err(("malformed_response", "does not fit its type: invalid value"))),
    ];
    for (script, expected) in cases {
        let degrees =
            finalized(&scripted([says("words"), script.clone()])).await?.into_json::<u8>();
        match (degrees, expected) {
            (Ok(degrees), Ok(expected)) => assert_eq!(degrees, expected),
            (Err(error), Err((reason, why))) => {
                assert_eq!(error.reason(), reason, "{script}");
                assert!(error.to_string().contains(why), "{error}");
            }
            (degrees, expected) => panic!("{script}: {degrees:?} and not {expected:?}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_is_no_json_says_whether_the_model_refused_or_waits() -> Result<()> {
    let refusal = Message::assistant_parts([Part::Refusal { text: "I will not.".to_owned() }]);
    let error = Response::new(refusal).into_json::<u8>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ContentFilter));
    assert!(error.to_string().ends_with("the model refused: I will not."), "{error}");

    let stopped = Engine::new(scripted([call("c0", "echo")])).tool(echo()).chat("hi").max_turns(1);
    let error = stopped.await?.into_json::<u8>().unwrap_err();
    assert_eq!(error.metadata()["halted_reason"], "max_turns");

    let calls = Engine::new(scripted([call("c0", "echo")])).generate("hi").await?;
    let error = calls.clone().into_json::<u8>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::Halted));
    assert_eq!(error.metadata()["response"], json!(calls));
    Ok(())
}

fn three() -> Scripted {
    scripted([calls([("c0", "echo", json!({}))]), says("words"), says("{}")])
}

fn finalized(model: &Scripted) -> Chat {
    let ask = tool("ask", |_| ToolOutcome::ask("q"));
    let plan = tool("plan", |_| ToolOutcome::halt("plan", json!(1)));
    let hand_over = Tool::new("hand_over", "", json!({})).manual();
    finalized_by(&Engine::new(model.clone()).tools([echo(), boom(), ask, plan, hand_over]))
}

fn finalized_by(engine: &Engine) -> Chat {
    engine.chat("hi").request_id("r").response_format(schema()).structured_finalize(true)
}

fn schema() -> ResponseFormat {
    ResponseFormat::json_schema("person", json!({"type": "object"}))
}
