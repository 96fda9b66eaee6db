//! Steps until something ends or suspends the conversation: every end, and which wins.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt as _, StreamExt as _};
use mynah::{
    AdapterReason, Chat, Engine, EngineReason, Error, ErrorKind, Event, FinishReason, HaltReason,
    Message, OnUnknownTool, Options, Result, Thread, Tool, ToolCall, ToolErrorDecision, ToolMode,
    ToolOutcome, ValidationReason, testing::names,
};
use serde_json::{Value, json};

use crate::{
    common::{
        Canned, boom, both, call, calls, counted, echo, events,
        fixtures::{fixtures, paused, paused_with_call, stopped},
        fold, map, refusal, says, scripted, tool, transcript,
    },
    param::Param as _,
};

/// One more setting of a chat.
type Set = fn(Chat) -> Chat;

#[tokio::test]
async fn c01_a_text_answer_completes_a_chat() -> Result<()> {
    let result = chat([says("hello")]).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert!(!result.is_halted());
    assert_eq!((result.steps.len(), &result.metadata), (1, &map(json!({}))));
    assert_eq!(result.text(), "hello");
    assert_eq!(transcript(&result.thread), ["user: hi", "assistant: hello"]);
    Ok(())
}

#[tokio::test]
async fn c02_one_tool_turn_then_text_completes() -> Result<()> {
    let result = chat([call("c0", "echo"), says("done")]).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert_eq!(result.steps.len(), 2);
    let expected = ["user: hi", "assistant: → c0", "tool c0: {}", "assistant: done"];
    assert_eq!(transcript(&result.thread), expected);
    assert_eq!(result.final_response.as_ref(), Some(&result.steps[1].response));
    Ok(())
}

#[tokio::test]
async fn c03_c04_a_chat_that_wants_ever_more_tools_ends_after_max_turns() -> Result<()> {
    for (limit, turns) in [(None, 8), (Some(2), 2), (Some(1), 1)] {
        let model = endless();
        let chat = Engine::new(model.clone()).tool(echo()).chat("hi");
        let chat = match limit {
            Some(limit) => chat.max_turns(limit),
            None => chat,
        };
        let result = chat.await?;
        assert_eq!(result.halted_reason, HaltReason::MaxTurns);
        assert_eq!((result.steps.len(), model.calls()), (turns, turns));
        assert_eq!(result.metadata, map(json!({"max_turns": turns})));
        assert_eq!(result.thread.messages.len(), 1 + 2 * turns);
    }
    Ok(())
}

#[tokio::test]
async fn c04_a_text_answer_in_the_last_turn_completes() -> Result<()> {
    let result = chat([call("c0", "echo"), says("done")]).max_turns(2).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    Ok(())
}

#[tokio::test]
async fn c05_a_max_turns_that_is_no_positive_integer_is_refused_before_the_model_is_called() {
    let model = scripted([says("never")]);
    let engine = Engine::new(model.clone());
    for wrong in [json!(0), json!(-1), json!(1.5), json!("8"), json!([8]), json!(true)] {
        let error = engine.chat("hi").param("max_turns", wrong.clone()).await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Validation(ValidationReason::InvalidOptions),
            "{wrong}"
        );
        assert_eq!(error.metadata()["field"], "max_turns");
        let streamed = refusal(engine.chat("hi").param("max_turns", wrong).stream()).await;
        assert_eq!(streamed, error);
    }
    let by_engine = engine.clone().param("max_turns", 0).chat("hi").await.unwrap_err();
    assert_eq!(by_engine.metadata()["field"], "max_turns");
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn c06_c07_max_turns_is_the_calls_else_the_engines_else_eight() -> Result<()> {
    let cases = [
        (json!({}), Value::Null, 8),
        (json!({}), json!(3), 3),
        (json!({"max_turns": 2}), json!(3), 2),
        (json!({"max_turns": null}), json!(3), 3),
        (json!({"max_turns": null}), Value::Null, 8),
    ];
    for (options, param, turns) in cases {
        let engine = Engine::new(endless()).tool(echo()).param("max_turns", param.clone());
        let result = engine.chat("hi").options(Options::from_json(options.clone())?).await?;
        assert_eq!(result.steps.len(), turns, "{options} over {param}");
    }
    Ok(())
}

#[tokio::test]
async fn c08_c09_halt_when_is_asked_after_tool_turns_only() -> Result<()> {
    let result = chat([call("c0", "echo"), says("never")]).halt_when("test", |_| true).await?;
    assert_eq!(result.halted_reason, HaltReason::HaltWhen);
    assert_eq!(result.metadata, map(json!({"halt_when_step_index": 0})));
    assert_eq!(transcript(&result.thread), ["user: hi", "assistant: → c0", "tool c0: {}"]);

    let second = chat([call("c0", "echo"), call("c1", "echo"), says("never")]);
    let result = second.halt_when("test", |step| step.thread.messages.len() == 5).await?;
    assert_eq!(
        result.metadata,
        map(json!({"halt_when_step_index": 1})),
        "it sees the whole thread"
    );

    let result = chat([says("text")]).halt_when("test", |_| true).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    Ok(())
}

#[tokio::test]
async fn c10_a_panic_of_halt_when_reaches_the_caller() {
    let run = chat([call("c0", "echo")]).halt_when("test", |_| panic!("undecided"));
    let panic = AssertUnwindSafe(run.into_future()).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"undecided"));
}

#[tokio::test]
async fn c11_to_c15_what_ends_a_chat_first() -> Result<()> {
    let manual = |chat: Chat| chat.mode(ToolMode::Manual);
    let plain = |chat: Chat| chat;
    let cases: [(&str, Value, Set); 8] = [
        ("ask_user", call("c0", "ask"), plain),
        ("plan", call("c0", "plan"), plain),
        ("tool_error", call("c0", "boom"), |chat| chat.on_tool_error(mynah::OnToolError::Halt)),
        ("manual_tool_calls", call("c0", "echo"), manual),
        ("manual_tool_calls", both("echo", "hand_over"), plain),
        ("error", json!([{"error": "overloaded"}]), plain),
        ("completed", says("done"), plain),
        ("halt_when", call("c0", "echo"), plain),
    ];
    for (expected, script, set) in cases {
        let result = set(chat([script])).halt_when("test", |_| true).max_turns(1).await?;
        assert_eq!(result.halted_reason.as_str(), expected);
    }
    let result = chat([call("c0", "echo")]).halt_when("test", |_| false).max_turns(1).await?;
    assert_eq!(result.halted_reason, HaltReason::MaxTurns);
    Ok(())
}

#[tokio::test]
async fn c16_c17_a_question_suspends_the_chat_and_an_answer_continues_it() -> Result<()> {
    let model = scripted([call("c0", "ask"), says("three it is")]);
    let engine = Engine::new(model.clone()).tools(tools());
    let result = engine.chat("hi").await?;
    assert_eq!(result.halted_reason, HaltReason::AskUser);
    assert_eq!(result.pending_question.as_deref(), Some("how many?"));
    assert_eq!(result.pending_tool_call_id.as_deref(), Some("c0"));
    let metadata = json!({
        "pending_question": "how many?", "pending_tool_call_id": "c0", "ask_user_opts": {"choices": [1, 3]},
    });
    assert_eq!(result.metadata, map(metadata));
    let question = Message::assistant("how many?")
        .with_metadata("ask_user", true)
        .with_metadata("tool_call_id", "c0");
    assert_eq!(result.thread.last_message(), Some(&question));

    let answered = engine.chat(result.thread.with_user("three")).await?;
    assert_eq!(answered.halted_reason, HaltReason::Completed);
    let expected = [
        "user: hi",
        "assistant: → c0",
        "tool c0: <awaiting user response>",
        "assistant: how many?",
        "user: three",
        "assistant: three it is",
    ];
    assert_eq!(transcript(&answered.thread), expected);
    assert_eq!(model.requests()[1].messages.len(), 5);
    Ok(())
}

#[tokio::test]
async fn c16_a_question_beside_a_manual_call_leaves_no_call_unanswered() -> Result<()> {
    let result = chat([both("hand_over", "ask")]).await?;
    assert_eq!(result.halted_reason, HaltReason::AskUser);
    assert_eq!(result.metadata["repaired_tool_calls"], json!(["c0"]));
    assert!(result.manual_tool_calls().is_empty());
    let expected = [
        "user: hi",
        "assistant: → c0 → c1",
        "tool c1: <awaiting user response>",
        r#"tool c0: {"error":"the turn ended before this call had a result"}"#,
        "assistant: how many?",
    ];
    assert_eq!(transcript(&result.thread), expected);
    Ok(())
}

#[tokio::test]
async fn c18_c19_in_manual_mode_the_calls_are_on_the_final_response() -> Result<()> {
    let result = chat([call("c0", "echo")]).mode(ToolMode::Manual).await?;
    assert_eq!(result.halted_reason, HaltReason::ManualToolCalls);
    assert_eq!(result.metadata, map(json!({"manual_turn_index": 0})));
    let call = ToolCall::from_value("c0", "echo", json!({}));
    assert_eq!(result.manual_tool_calls(), std::slice::from_ref(&call));
    let response = result.final_response.expect("a response");
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&call]);
    assert_eq!(transcript(&result.thread), ["user: hi", "assistant: → c0"]);

    let result = chat([says("text")]).mode(ToolMode::Manual).await?;
    assert_eq!((result.halted_reason, result.metadata), (HaltReason::Completed, map(json!({}))));
    Ok(())
}

#[tokio::test]
async fn c20_c21_manual_calls_are_handed_over_and_their_results_continue_the_chat() -> Result<()> {
    let scripts = [call("c0", "echo"), both("echo", "hand_over"), says("done")];
    let model = scripted(scripts);
    let engine = Engine::new(model.clone()).tools(tools());
    let result = engine.chat("hi").await?;
    assert_eq!(result.halted_reason, HaltReason::ManualToolCalls);
    let handed = ToolCall::from_value("c1", "hand_over", json!({}));
    let metadata = json!({"manual_turn_index": 1, "manual_tool_calls": [&handed]});
    assert_eq!(result.metadata, map(metadata));
    assert_eq!(result.manual_tool_calls(), [handed]);

    let unanswered = engine.chat(&result.thread).await.unwrap_err();
    assert_eq!(unanswered.kind(), ErrorKind::Validation(ValidationReason::InvalidThread));
    assert!(unanswered.to_string().contains("c1"), "{unanswered}");

    let thread = result.thread.with(Message::tool_result("c1", json!({"by": "hand"})));
    let result = engine.chat(thread).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert_eq!(
        transcript(&result.thread)[4..],
        [
            "tool c0: {}".to_owned(),
            r#"tool c1: {"by":"hand"}"#.to_owned(),
            "assistant: done".to_owned(),
        ]
    );
    assert_eq!(model.calls(), 3, "the refused call never reached the model");
    Ok(())
}

#[tokio::test]
async fn c22_an_error_in_mid_stream_ends_the_chat_and_keeps_everything() -> Result<()> {
    let script =
        json!([{"text": "hal"}, {"usage": {"output_tokens": 2}}, {"error": "rate_limited"}]);
    let result = chat([call("c0", "echo"), script]).await?;
    assert_eq!(result.halted_reason, HaltReason::Error);
    let error = result.error().expect("an error");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
    assert_eq!(result.metadata, map(json!({"error": error.to_value()})));
    assert_eq!(result.steps.len(), 2);
    let response = result.final_response.as_ref().expect("a response");
    assert_eq!(response.finish_reason, Some(FinishReason::Error));
    assert_eq!(response.error(), Some(error));
    assert_eq!(response.usage.output_tokens, Some(2));
    let expected = ["user: hi", "assistant: → c0", "tool c0: {}", "assistant: hal"];
    assert_eq!(transcript(&result.thread), expected);
    Ok(())
}

#[tokio::test]
async fn only_a_chat_whose_model_was_done_has_an_answer() -> Result<()> {
    let cut_off = json!([{"text": "I was say"}, {"error": "network_error"}]);
    let cases = [
        (says("done"), Ok("done")),
        (cut_off, Err(("network_error", None))),
        (call("c0", "ask"), Err(("halted", Some("ask_user")))),
        (call("c0", "plan"), Err(("halted", Some("plan")))),
        (call("c0", "hand_over"), Err(("halted", Some("manual_tool_calls")))),
        (call("c0", "echo"), Err(("halted", Some("max_turns")))),
    ];
    for (script, expected) in cases {
        let answer = chat([script]).max_turns(1).await?.into_text();
        let answer = answer.as_deref().map_err(|error| {
            let halted = error.metadata().get("halted_reason");
            (error.reason(), halted.and_then(Value::as_str))
        });
        assert_eq!(answer, expected);
    }
    Ok(())
}

#[tokio::test]
async fn c23_a_chat_about_nothing_is_refused() {
    let model = scripted([says("never")]);
    let engine = Engine::new(model.clone());
    let error = engine.chat(Thread::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidRequest));
    assert_eq!(error.field_errors(), [mynah::FieldError::new("messages", "empty")]);
    assert_eq!(refusal(engine.chat(Thread::new()).stream()).await, error);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn c24_without_an_adapter_a_chat_is_refused() {
    let engine = Engine::without_adapter();
    let error = engine.chat("hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingAdapter));
    assert_eq!(refusal(engine.chat("hi").stream()).await, error);
}

#[tokio::test]
async fn c25_c36_every_end_of_an_answer_but_a_wish_for_tools_completes() -> Result<()> {
    let reasons = ["stop", "length", "content_filter", "other"];
    let finishes = reasons.map(|reason| json!([{"text": "x"}, {"finish": reason}]));
    for script in finishes.into_iter().chain([json!([{"text": "x"}])]) {
        let model = scripted([script.clone(), says("never")]);
        let result = Engine::new(model.clone()).chat("hi").await?;
        assert_eq!(result.halted_reason, HaltReason::Completed, "{script}");
        assert_eq!(model.calls(), 1, "{script}");
    }
    Ok(())
}

#[tokio::test]
async fn calls_of_an_answer_that_does_not_wait_for_them_are_answered_in_its_place() -> Result<()> {
    let (counting, runs) = counted("echo");
    let calls = [json!({"id": "c0", "name": "echo"}), json!({"id": "c1", "name": "nope"})];
    for end in [json!({"finish": "length"}), json!({"finish": "stop"}), json!({"error": "timeout"})]
    {
        let script = json!([{"tool_call": calls[0]}, {"tool_call": calls[1]}, end]);
        let result = Engine::new(scripted([script])).tool(counting.clone()).chat("hi").await?;
        assert_eq!(result.metadata["repaired_tool_calls"], json!(["c0", "c1"]), "{end}");
        let told = r#"{"error":"the turn ended before this call had a result"}"#;
        assert_eq!(
            transcript(&result.thread)[1..],
            [
                "assistant: → c0 → c1".to_owned(),
                format!("tool c0: {told}"),
                format!("tool c1: {told}")
            ]
        );
        assert!(mynah::validate::thread(&result.thread).is_ok());
    }
    assert_eq!(runs.get(), 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn c26_a_chat_is_the_fold_of_its_stream() -> Result<()> {
    for fixture in fixtures() {
        let awaited = fixture.chat().await?;
        let seen = events(fixture.chat().stream()).await;
        let folded = fold(&fixture.thread, &seen);
        assert_eq!(folded.chat_result(), awaited, "{}", fixture.name);
        assert_eq!(folded.steps(), awaited.steps, "{}", fixture.name);

        // Not only because the last event carries it all: the events before it have the same steps.
        let told = fold(&fixture.thread, &seen[..seen.len() - 1]).chat_result();
        assert_eq!(told.steps, awaited.steps, "{}", fixture.name);
        assert!(mynah::validate::thread(&told.thread).is_ok(), "{}", fixture.name);
    }
    Ok(())
}

#[tokio::test]
async fn c26_no_manual_key_leaks_into_a_chat_without_manual_tools() -> Result<()> {
    let result = chat([both("echo", "echo"), says("done")]).await?;
    assert!(!serde_json::to_string(&result)?.contains("manual"));
    Ok(())
}

#[tokio::test]
async fn c27_c28_a_chat_streams_turn_after_turn_and_ends_once() {
    let mut stream = chat([call("c0", "echo"), says("done")]).stream();
    let mut seen = Vec::new();
    while let Some(event) = stream.next().await {
        seen.push(event.unwrap());
    }
    let expected = [
        "message_started",
        "tool_call_started",
        "tool_call_completed",
        "message_completed",
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_encoded",
        "step_completed",
        "message_started",
        "text_delta",
        "text_completed",
        "message_completed",
        "step_completed",
        "chat_completed",
    ];
    assert_eq!(names(&seen), expected);
    assert!(stream.next().await.is_none(), "and stays ended");

    let model = scripted([says("x")]);
    let mut stream = Engine::new(model.clone()).chat("hi").stream();
    assert_eq!(stream.next().await.unwrap().unwrap().type_name(), "message_started");
    assert_eq!(model.open_streams(), 1);
    drop(stream);
    assert_eq!(model.open_streams(), 0);
}

#[tokio::test]
async fn c29_c30_a_question_joins_the_thread_of_the_chat_and_not_that_of_the_step() {
    let seen = events(chat([call("c0", "ask")]).stream()).await;
    let [.., Event::StepCompleted { thread, .. }, Event::ChatCompleted { result }] = &seen[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!(transcript(thread.whole().unwrap())[2..], ["tool c0: <awaiting user response>"]);
    let with_question = ["tool c0: <awaiting user response>", "assistant: how many?"];
    assert_eq!(transcript(&result.thread)[2..], with_question);

    let count = |name| names(&seen).into_iter().filter(|found| *found == name).count();
    assert_eq!((count("message_started"), count("message_completed")), (1, 1));
}

#[tokio::test]
async fn c33_an_unknown_tool_ends_a_chat_alike_in_any_turn_and_on_both_paths() -> Result<()> {
    let scripts = [vec![both("echo", "nope")], vec![call("x0", "echo"), both("echo", "nope")]];
    for scripts in scripts {
        let turns = scripts.len();
        let (counting, runs) = counted("echo");
        let chat = || {
            Engine::new(scripted(scripts.clone())).tool(counting.clone()).chat("hi").request_id("r")
        };
        let result = chat().await?;
        assert_eq!(result.halted_reason, HaltReason::Error);
        let error = Error::unknown_tool("nope");
        let metadata = json!({"error": error.to_value(), "repaired_tool_calls": ["c0", "c1"]});
        assert_eq!(result.metadata, map(metadata));
        assert_eq!(
            (result.steps.len(), runs.get()),
            (turns, turns - 1),
            "the failing step is the last"
        );
        let told = json!({"error": error.message()});
        let expected = [
            "assistant: → c0 → c1".to_owned(),
            format!("tool c0: {told}"),
            format!("tool c1: {told}"),
        ];
        assert_eq!(transcript(&result.thread)[2 * turns - 1..], expected);

        let seen = events(chat().stream()).await;
        assert_eq!(names(&seen)[seen.len() - 3..], ["error", "step_completed", "chat_completed"]);
        assert_eq!(fold(&Thread::from("hi"), &seen).chat_result(), result);
    }
    Ok(())
}

#[tokio::test]
async fn c33_an_unknown_tool_can_be_answered_so_that_the_model_goes_on() -> Result<()> {
    let model = scripted([both("nope", "echo"), says("sorry")]);
    let chat = Engine::new(model.clone()).tool(echo()).chat("hi");
    let result = chat.on_unknown_tool(OnUnknownTool::Answer).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    let told = format!("{}; its tools are: echo", Error::unknown_tool("nope").message());
    let told = json!({"error": told});
    assert_eq!(
        transcript(&result.thread)[2..],
        [format!("tool c0: {told}"), "tool c1: {}".to_owned(), "assistant: sorry".to_owned(),]
    );
    assert!(mynah::validate::request(&model.requests()[1]).is_ok());
    Ok(())
}

#[tokio::test]
async fn c34_a_call_refused_in_a_later_turn_ends_the_chat_with_an_error() -> Result<()> {
    for refused in [Some(json!([{"preflight_error": "overloaded"}])), None] {
        let scripts = [Some(call("c0", "echo")), refused.clone()];
        let model = || scripted(scripts.clone().into_iter().flatten());
        let chat = || Engine::new(model()).tool(echo()).chat("hi").request_id("r");
        let result = chat().await?;
        assert_eq!(result.halted_reason, HaltReason::Error);
        let error = result.error().expect("an error");
        let reason = if refused.is_some() { "overloaded" } else { "no_scripted_response" };
        assert_eq!(error.reason(), reason);
        // The call that failed is a step with its error, and adds nothing to the conversation.
        assert_eq!(result.steps.len(), 2);
        assert_eq!(result.steps[1].response.error().as_ref(), Some(&error));
        assert_eq!(result.final_response, Some(result.steps[1].response.clone()));
        assert_eq!(transcript(&result.thread), ["user: hi", "assistant: → c0", "tool c0: {}"]);

        let seen = events(chat().stream()).await;
        assert_eq!(seen[seen.len() - 3], Event::Error { error });
        assert_eq!(fold(&Thread::from("hi"), &seen).chat_result(), result);
    }
    Ok(())
}

#[tokio::test]
async fn c34_a_call_refused_in_the_first_turn_is_the_callers_error() {
    let model = || scripted([json!([{"preflight_error": "authentication_failed"}])]);
    let error = Engine::new(model()).chat("hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::AuthenticationFailed));
    assert_eq!(refusal(Engine::new(model()).chat("hi").stream()).await, error);
}

#[tokio::test]
async fn c35_a_missing_key_is_the_callers_error_with_the_places_that_were_searched() {
    let missing = Error::engine(EngineReason::MissingKey)
        .with_provider("canned")
        .with("checked", json!(["opts", "env"]));
    let chat = || Engine::new(Canned::refusing(missing.clone())).chat("hi");
    assert_eq!(chat().await.unwrap_err(), missing);
    assert_eq!(refusal(chat().stream()).await, missing);
}

#[tokio::test]
async fn c39_a_policy_for_tool_errors_works_alike_on_both_paths() -> Result<()> {
    for decision in [ToolErrorDecision::Continue(json!("never mind")), ToolErrorDecision::Halt] {
        let chat = || {
            let decision = decision.clone();
            chat([both("boom", "echo"), says("done")])
                .on_tool_error(mynah::OnToolError::decide(move |_, _| decision.clone()))
        };
        let result = chat().await?;
        let halts = decision == ToolErrorDecision::Halt;
        assert_eq!(result.is_halted(), halts);
        assert_eq!(result.steps.len(), if halts { 1 } else { 2 });
        let seen = events(chat().stream()).await;
        assert_eq!(fold(&Thread::from("hi"), &seen).chat_result(), result);
    }
    Ok(())
}

#[tokio::test]
async fn a_provider_that_paused_is_called_again_with_what_it_said() -> Result<()> {
    let model = Canned::new([paused("a"), paused("b"), stopped("c")]);
    let result = Engine::new(model.clone()).chat("hi").await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert_eq!(
        transcript(&result.thread),
        ["user: hi", "assistant: a", "assistant: b", "assistant: c"]
    );
    assert_eq!(result.steps.iter().map(|step| step.done).collect::<Vec<_>>(), [false, false, true]);
    let asked: Vec<usize> = model.requests.all().iter().map(|r| r.messages.len()).collect();
    assert_eq!(asked, [1, 2, 3]);

    let model = Canned::new([paused("a"), paused("b")]);
    let result = Engine::new(model).chat("hi").max_turns(2).await?;
    assert_eq!(result.halted_reason, HaltReason::MaxTurns, "a pause is a turn");
    Ok(())
}

#[tokio::test]
async fn a_provider_that_paused_is_not_called_again_before_its_calls_have_results() -> Result<()> {
    for (finish, turns) in [(FinishReason::ToolCalls, 2), (FinishReason::Other, 1)] {
        let model = Canned::new([paused_with_call("echo", finish), stopped("done")]);
        let result = Engine::new(model.clone()).tool(echo()).chat("hi").await?;
        assert_eq!(result.halted_reason, HaltReason::Completed);
        assert_eq!(result.steps.len(), turns);
        for request in model.requests.all() {
            assert!(mynah::validate::request(&request).is_ok(), "no call is sent without a result");
        }
        assert!(mynah::validate::thread(&result.thread).is_ok());
    }
    Ok(())
}

fn chat<const N: usize>(scripts: [Value; N]) -> Chat {
    Engine::new(scripted(scripts)).tools(tools()).chat("hi").request_id("r")
}

fn tools() -> [Tool; 5] {
    let opts = || map(json!({"choices": [1, 3]}));
    let ask = tool("ask", move |_| ToolOutcome::ask_with("how many?", opts()));
    let plan = tool("plan", |_| ToolOutcome::halt("plan", json!({"ok": 1})));
    [echo(), boom(), ask, plan, Tool::new("hand_over", "", json!({})).manual()]
}

/// A model that calls a tool nine times.
fn endless() -> mynah::testing::Scripted {
    scripted((0..9).map(|turn| calls([(&*format!("c{turn}"), "echo", json!({}))])))
}
