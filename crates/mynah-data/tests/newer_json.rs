//! Values that a newer version wrote: members that this one does not know are ignored.

use std::fmt::Debug;

use mynah_data::{
    ChatResult, Error, Event, FinishReason, HaltReason, Message, Part, Response, Session,
    StepResult, Thread, ToolCall, ToolOutcome, ToolReason, Usage,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Result, Value, json};

/// Adds a member to every object that is not free-form.
fn grow(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let free = [
                "metadata",
                "arguments",
                "context",
                "extra",
                "opts",
                "tool_usage",
                "turn_metadata",
            ];
            map.iter_mut()
                .filter(|(key, _)| !free.contains(&key.as_str()))
                .for_each(|(_, member)| grow(member));
            map.insert("from_the_future".to_owned(), json!({"a": [1]}));
        }
        Value::Array(items) => items.iter_mut().for_each(grow),
        _ => {}
    }
}

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Result<()> {
    let mut json = serde_json::to_value(value)?;
    grow(&mut json);
    let text = json.to_string();
    assert_eq!(&serde_json::from_value::<T>(json)?, value);
    assert_eq!(&serde_json::from_str::<T>(&text)?, value);
    Ok(())
}

#[test]
fn members_that_a_newer_version_added_are_ignored() -> Result<()> {
    let call = ToolCall::new("c0", "look", r#"{"at":"sky"}"#);
    let message =
        Message::assistant_parts([Part::text("Let me see."), Part::tool_call(call.clone())]);
    let thread = Thread::from(vec![
        Message::user("Which colour?"),
        message.clone(),
        Message::tool_result("c0", "blue"),
    ]);
    let response = Response::new(message.clone());
    let error = Error::tool(ToolReason::Failed).with_message("no sky");
    check(&call)?;
    check(&message)?;
    check(&thread)?;
    check(&response)?;
    check(&error)?;
    check(&Session::from(thread.clone()))?;
    check(&ChatResult::new(thread.clone(), HaltReason::Completed))?;
    check(&StepResult::new(thread, response))?;
    for event in [
        Event::message_started(),
        Event::text_delta("a"),
        Event::tool_call_completed(call.clone()),
        Event::Usage { usage: Box::new(Usage::new(3, None)) },
        Event::tool_execution_completed(&call.id, &call.name, ToolOutcome::ask("Which sky?")),
        Event::message_completed(Some(FinishReason::Stop)),
        Event::Error { error },
    ] {
        check(&event)?;
    }
    Ok(())
}
