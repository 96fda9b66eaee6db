//! `ask_user` and `now`, in normal use.

use crate::common::{call, outcome};
use mynah_data::ToolOutcome;
use serde_json::json;

#[tokio::test]
async fn a_question_suspends_the_conversation_with_its_choices() {
    let tool = mynah_tools::ask_user();
    let asked = outcome(&tool, json!({"question": "Which?", "choices": ["a", "b"]})).await;
    let ToolOutcome::AskUser { question, opts } = asked.unwrap() else { panic!("no question") };
    assert_eq!((question.as_str(), &opts["choices"]), ("Which?", &json!(["a", "b"])));
    let free = outcome(&tool, json!({"question": "Why?", "choices": null})).await;
    assert_eq!(free, Ok(ToolOutcome::ask("Why?")));
}

#[tokio::test]
async fn the_time_is_that_of_the_clock_in_the_zone_that_was_asked_for() {
    let tool = mynah_tools::now();
    let utc = call(&tool, json!({})).await.unwrap();
    assert_eq!(utc["time_zone"], "UTC");
    assert!(utc["time"].as_str().unwrap().ends_with("+00:00"));
    let there = call(&tool, json!({"time_zone": "Asia/Kolkata"})).await.unwrap();
    assert!(there["time"].as_str().unwrap().ends_with("+05:30"));
}
