//! The JSON of a chat grows with the chat, and not with its square.

use std::sync::Arc;

use mynah_data::*;
use serde_json::{Value, json};

#[test]
fn the_json_of_a_chat_of_800_turns_is_eight_times_that_of_100() {
    let size = |turns| {
        let (events, result) = chat(turns);
        let events: usize = events.iter().map(|event| json!(event).to_string().len()).sum();
        (json!(result).to_string().len(), events)
    };
    let ((few, few_told), (many, many_told)) = (size(100), size(800));
    assert!(many < 9 * few, "{many} bytes for 800 turns, {few} for 100");
    assert!(many_told < 9 * few_told, "{many_told} bytes for 800 turns, {few_told} for 100");
}

#[test]
fn a_step_of_a_chat_has_the_messages_that_it_added_and_the_result_has_the_thread() {
    let (events, result) = chat(2);
    let written = json!(result);
    assert_eq!(written["thread"]["messages"].as_array().unwrap().len(), 5);
    for (index, after) in [(0, 1), (1, 3)] {
        let step = &written["steps"][index];
        assert_eq!((&step["after"], step.get("thread")), (&json!(after), None));
        let added = &written["thread"]["messages"].as_array().unwrap()[after..after + 2];
        assert_eq!(step["messages"].as_array().unwrap(), added);
        let told = json!(events[index]);
        assert_eq!((&told["after"], &told["messages"]), (&step["after"], &step["messages"]));
        assert_eq!(told.get("thread"), None);
    }
}

#[test]
fn a_result_that_is_read_has_the_threads_of_its_steps_and_shares_them() {
    let (_, result) = chat(40);
    let read: ChatResult = serde_json::from_value(json!(result)).unwrap();
    assert_eq!(read, result);
    for step in &read.steps {
        let pairs = step.thread.messages.iter().zip(read.thread.messages.iter());
        assert!(pairs.into_iter().all(|(own, whole)| Arc::ptr_eq(own, whole)));
    }
}

#[test]
fn a_single_step_keeps_its_thread() {
    let (_, result) = chat(1);
    let step = &result.steps[0];
    assert_eq!(json!(step)["thread"]["messages"].as_array().unwrap().len(), 3);
    let told = json!(completed(step, step.thread.clone().into()));
    assert_eq!(told["thread"], json!(step.thread));
    assert_eq!((told.get("after"), told.get("messages")), (None, None));
}

#[test]
fn messages_that_a_chat_did_not_keep_stay_in_the_step_that_added_them() {
    let (_, mut result) = chat(2);
    // The conversation went another way after the first step.
    result.thread = result.steps[0].thread.clone().with_user("no");
    let written = json!(result);
    assert_eq!(written["steps"][1]["after"], 3);
    assert_eq!(serde_json::from_value::<ChatResult>(written).unwrap(), result);
    // Changes of the earlier conversation are written as well.
    result.thread = Thread::from("another");
    let written = json!(result);
    assert_eq!(written["steps"][1]["after"], 0);
    assert_eq!(serde_json::from_value::<ChatResult>(written).unwrap(), result);
}

#[test]
fn a_thread_with_metadata_of_its_own_is_kept_whole() {
    let (_, mut result) = chat(1);
    result.thread.metadata.insert("topic".to_owned(), json!("weather"));
    let written = json!(result);
    assert_eq!(written["steps"][0]["thread"], json!(result.steps[0].thread));
    assert_eq!(serde_json::from_value::<ChatResult>(written).unwrap(), result);
}

#[test]
fn json_that_does_not_say_which_thread_a_step_has_is_refused() {
    let refused = |change: fn(&mut Value)| {
        let mut written = json!(chat(1).1);
        change(&mut written["steps"][0]);
        serde_json::from_value::<ChatResult>(written).unwrap_err().to_string()
    };
    let beyond = refused(|step| step["after"] = json!(9));
    assert_eq!(beyond, "`after` is 9, and the thread has 3 messages");
    let neither = "expected either `thread`, or `after` and `messages`";
    assert_eq!(refused(|step| drop(step.as_object_mut().unwrap().remove("after"))), neither);
    assert_eq!(refused(|step| step["thread"] = json!({"messages": []})), neither);
}

/// The `step_completed` of a chat in which each turn calls a tool, and its result.
fn chat(turns: usize) -> (Vec<Event>, ChatResult) {
    let mut thread = Thread::from("go");
    let (mut steps, mut events) = (Vec::<StepResult>::new(), Vec::new());
    for turn in 0..turns {
        let id = format!("call-{turn:03}");
        let call = ToolCall::new(&*id, "echo", format!(r#"{{"turn":{}}}"#, 1000 + turn));
        let response = Response::new(Message::assistant_parts([Part::tool_call(call)]));
        let result = Arc::new(Message::tool_result(&*id, "done"));
        thread = thread.with(Arc::clone(&response.message)).with(Arc::clone(&result));
        let mut step = StepResult::new(thread.clone(), response);
        step.tool_results.push(result);
        let own = StepThread::added(thread.clone(), step.first_added(steps.last()));
        events.push(completed(&step, own));
        steps.push(step);
    }
    let mut result = ChatResult::new(thread, HaltReason::Completed);
    result.steps = steps;
    (events, result)
}

fn completed(step: &StepResult, thread: StepThread) -> Event {
    Event::step_completed(step.response.clone(), thread, ToolMode::Auto, Vec::new())
}
