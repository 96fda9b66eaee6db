//! Answers as values of a type: checked, repaired on request, after tools, streamed and recorded.

use std::sync::Arc;

use futures_util::StreamExt as _;
use mynah::{
    Adapter, AdapterReason, BoxFuture, Engine, EngineReason, ErrorKind, Event, ModelCall,
    ModelStream, Request, Result, Tool,
    log::MemoryLog,
    schemars::{self, JsonSchema},
    testing::{Script, Scripted},
};
use serde::Deserialize;
use serde_json::json;

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Bird {
    name: String,
    /// Wingspan in centimetres.
    #[schemars(range(min = 1))]
    wingspan: u32,
    talks: Option<bool>,
}

fn mynah() -> Bird {
    Bird { name: "mynah".to_owned(), wingspan: 43, talks: None }
}

const GOOD: &str = r#"{"name": "mynah", "wingspan": 43, "talks": null}"#;
const BAD: &str = r#"{"name": 7, "wingspan": 0}"#;

fn model<'a>(answers: impl IntoIterator<Item = &'a str>) -> Scripted {
    Scripted::play(answers.into_iter().map(|text| Script::new().text(text).stop()))
}

#[tokio::test]
async fn an_answer_is_a_value_of_its_type_and_the_model_was_asked_for_it() {
    let model = model([GOOD]);
    let bird = Engine::new(model.clone()).chat("a bird").answer_as::<Bird>().await;
    assert_eq!(bird, Ok(mynah()));
    let format = json!(model.requests()[0].response_format);
    assert_eq!((&format["type"], &format["name"]), (&json!("json_schema"), &json!("Bird")));
    assert_eq!(format["schema"]["properties"]["wingspan"]["minimum"], 1);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_an_error_that_names_each_place() {
    let engine = Engine::new(model([BAD]));
    let error = engine.chat("a bird").answer_as::<Bird>().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    let text = error.to_string();
    assert!(text.contains("/name: expected string, got 7"), "{text}");
    assert!(text.contains("/wingspan: 0 is less than the minimum of 1"), "{text}");
    assert_eq!(error.metadata()["response"]["output_text"], BAD);

    let prose = Engine::new(model(["A bird."])).chat("a bird").answer_as::<Bird>().await;
    let malformed = ErrorKind::Adapter(AdapterReason::MalformedResponse);
    assert_eq!(prose.unwrap_err().kind(), malformed);
}

#[tokio::test]
async fn one_repair_gets_the_answer_back_with_what_is_wrong() {
    let model = model([BAD, GOOD]);
    let engine = Engine::new(model.clone());
    assert_eq!(engine.chat("a bird").answer_as::<Bird>().repair(1).await, Ok(mynah()));
    let asked = &model.requests()[1].messages;
    let said: Vec<_> = asked.iter().map(|message| message.text().into_owned()).collect();
    assert_eq!(said[..2], ["a bird", BAD]);
    assert!(said[2].contains("/name: expected string, got 7"), "{}", said[2]);
}

#[tokio::test]
async fn a_repair_that_does_not_fit_either_is_an_error() {
    let model = model([BAD, BAD, GOOD]);
    let engine = Engine::new(model.clone());
    let error = engine.chat("a bird").answer_as::<Bird>().repair(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    assert_eq!(model.requests().len(), 2);
}

#[tokio::test]
async fn a_chat_without_an_answer_is_not_repaired() {
    let cut = Scripted::new([json!([{"text": GOOD}, {"finish": "length"}])]).unwrap();
    let error = Engine::new(cut.clone()).chat("a bird").answer_as::<Bird>().repair(1).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Engine(EngineReason::Halted));
    assert_eq!(cut.requests().len(), 1);
}

#[tokio::test]
async fn a_list_or_a_word_is_asked_for_as_a_member() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Mood {
        Good,
        Bad,
    }
    let model = model([r#"{"answer": "good"}"#, r#"{"answer": [43]}"#, r#"["good"]"#]);
    let engine = Engine::new(model.clone());
    assert_eq!(engine.chat("mood").answer_as::<Mood>().await, Ok(Mood::Good));
    assert_eq!(engine.chat("list").answer_as::<Vec<u8>>().await, Ok(vec![43]));
    assert!(engine.chat("mood").answer_as::<Mood>().await.is_err());
    let format = json!(model.requests()[1].response_format);
    assert_eq!(format["schema"]["properties"]["answer"]["type"], "array");
}

#[tokio::test]
async fn it_works_after_tools_with_a_call_of_its_own_for_the_form() {
    let model = Scripted::play([
        Script::new().tool_call("c0", "look_up", json!({})).call_tools(),
        Script::new().text("43 cm.").stop(),
        Script::new().text(GOOD).stop(),
    ]);
    let look_up = Tool::new("look_up", "", json!({"type": "object"})).handler(async |_, _| 43);
    let chat = Engine::new(model).tool(look_up).chat("a bird").structured_finalize(true);
    assert_eq!(chat.answer_as::<Bird>().await, Ok(mynah()));
}

/// A model that cannot give its answer a form while it has tools.
struct OneAtATime(Scripted);

impl Adapter for OneAtATime {
    fn name(&self) -> &str {
        "one-at-a-time"
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        !request.tools.is_empty()
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Arc::new(self.0.clone()).open(request, call)
    }
}

#[tokio::test]
async fn after_tools_the_form_needs_no_option() {
    let look_up = || Tool::new("look_up", "", json!({"type": "object"})).handler(async |_, _| 43);
    let calls = || Script::new().tool_call("c0", "look_up", json!({})).call_tools();
    let formed = |model: &Scripted| -> Vec<bool> {
        model.requests().iter().map(|request| request.response_format.is_some()).collect()
    };
    // A model that does both at once is asked for the form from the start.
    let model = Scripted::play([calls(), Script::new().text(GOOD).stop()]);
    let engine = Engine::new(model.clone()).tool(look_up());
    assert_eq!(engine.chat("a bird").answer_as::<Bird>().await, Ok(mynah()));
    assert_eq!(formed(&model), [true, true]);
    // Any other one is asked in a call of its own, without tools.
    let words = Script::new().text("43 cm.").stop();
    let model = Scripted::play([calls(), words, Script::new().text(GOOD).stop()]);
    let engine = Engine::new(OneAtATime(model.clone())).tool(look_up());
    assert_eq!(engine.chat("a bird").answer_as::<Bird>().await, Ok(mynah()));
    assert_eq!(formed(&model), [false, false, true]);
    assert!(model.requests()[2].tools.is_empty());
}

#[tokio::test]
async fn it_streams_its_events_and_those_of_the_repair() {
    let mut stream =
        Engine::new(model([BAD, GOOD])).chat("a bird").answer_as::<Bird>().repair(1).stream();
    let (mut text, mut ends) = (String::new(), 0);
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            Event::TextDelta { delta, .. } => text.push_str(&delta),
            Event::ChatCompleted { .. } => ends += 1,
            _ => {}
        }
    }
    assert_eq!((text.as_str(), ends), (format!("{BAD}{GOOD}").as_str(), 2));
    assert_eq!(stream.result().unwrap().text(), GOOD);
    assert_eq!(stream.answer(), Ok(mynah()));

    let unpolled = Engine::new(model([GOOD])).chat("a bird").answer_as::<Bird>().stream();
    assert_eq!(unpolled.answer().unwrap_err().reason(), "halted");
}

#[tokio::test]
async fn a_recorded_answer_replays_and_is_not_asked_for_twice() {
    let (log, model) = (MemoryLog::new(), model([BAD, GOOD]));
    let engine = Engine::new(model.clone());
    let ask = || engine.chat("a bird").record(&log).run_id("bird").answer_as::<Bird>().repair(1);
    assert_eq!(ask().await, Ok(mynah()));
    assert_eq!(ask().await, Ok(mynah()), "from its records");
    assert_eq!(model.requests().len(), 2);
    for run in ["bird", "bird-repair-1"] {
        assert_eq!(engine.replay(&log, run).await.unwrap().status, "equal", "{run}");
    }
}
