//! What holds for every value, every text and every stream.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use mynah_data::*;
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{FileFailurePersistence, TestCaseResult},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    mutate::{Mutation, mutation},
    strategies,
    streams::{Streamed, chat},
};

/// For each type: it comes back from its JSON equal and with the same bytes, and its JSON broken in any way is another
/// value of the type or a typed error.
macro_rules! json_properties {
    ($($name:ident: $type:ty,)+) => {$(
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(cases())]

                #[test]
                fn comes_back_from_json_equal(value in strategies::$name()) {
                    comes_back(&value)?;
                }

                #[test]
                fn broken_json_is_a_value_or_a_typed_error(
                    value in strategies::$name(),
                    mutations in vec(mutation(), 1..3),
                ) {
                    survives::<$type>(&broken(&value, &mutations)?)?;
                }
            }
        }
    )+};
}

json_properties! {
    tool_call: ToolCall,
    image: Image,
    part: Part,
    message: Message,
    thread: Thread,
    tool_spec: ToolSpec,
    tool_choice: ToolChoice,
    response_format: ResponseFormat,
    pricing: Pricing,
    model_ref: ModelRef,
    prompt_cache: PromptCache,
    request: Request,
    usage: Usage,
    finish_reason: FinishReason,
    response: Response,
    halt_reason: HaltReason,
    halt: Halt,
    tool_outcome: ToolOutcome,
    step_result: StepResult,
    chat_result: ChatResult,
    field_error: FieldError,
    error: Error,
    event: Event,
    session: Session,
}

#[test]
fn the_strategies_cover_every_event_and_every_status() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut one = |strategy: BoxedStrategy<Event>| {
        strategy.new_tree(&mut runner).unwrap().current().type_name()
    };
    let names: BTreeSet<&str> = strategies::events().into_iter().map(&mut one).collect();
    assert_eq!(names.len(), 20);
    assert_eq!(strategies::session_states().len(), 5);
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn decoding_with_names_agrees_with_plain_decoding(
        message in strategies::message(),
        mutations in vec(mutation(), 0..3),
    ) {
        let bytes = broken(&message, &mutations)?;
        let Ok(value) = serde_json::from_slice::<Value>(&bytes) else { return Ok(()) };
        match (decode::message(&value), serde_json::from_value::<Message>(value.clone())) {
            (Ok(named), Ok(plain)) => prop_assert_eq!(named, plain),
            (Err(error), Err(_)) => prop_assert!(error.is_validation()),
            (Err(_), Ok(_)) if has_list_for_part(&value) => {}
            (named, plain) => prop_assert!(false, "{:?} but {:?}", named, plain),
        }
        match decode::thread(std::slice::from_ref(&value)) {
            Ok(thread) => comes_back(&thread)?,
            Err(error) => comes_back(&error)?,
        }
    }

    #[test]
    fn a_session_decoded_with_names_is_the_session(
        session in strategies::session(),
        mutations in vec(mutation(), 0..3),
    ) {
        let bytes = broken(&session, &mutations)?;
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        match (decode::session(&text), serde_json::from_str::<Session>(&text)) {
            (Ok(named), Ok(plain)) => prop_assert_eq!(named, plain),
            (Err(error), Ok(_)) => {
                let value: Value = serde_json::from_str(&text).map_err(fail)?;
                let messages = value.pointer("/thread/messages").and_then(Value::as_array);
                let list = messages.is_some_and(|list| list.iter().any(has_list_for_part));
                prop_assert!(list, "{}", error);
            }
            (Err(error), Err(_)) => {
                prop_assert!(error.is_validation());
                comes_back(&error)?;
            }
            // A member that stands twice is refused by the plain decoder only.
            (Ok(named), Err(_)) => comes_back(&named)?,
        }
    }

    #[test]
    fn a_list_of_messages_is_a_list(
        messages in vec(strategies::message(), 0..4),
        copies in 1..60_usize,
        fork in any::<prop::sample::Index>(),
    ) {
        let model: Vec<Message> =
            messages.iter().cycle().take(messages.len() * copies).cloned().collect();
        let mut list = Messages::new();
        let mut forked = (Messages::new(), 0);
        let fork = fork.index(model.len() + 1);
        for (index, message) in model.iter().enumerate() {
            if index == fork {
                forked = (list.clone(), index);
            }
            list.push(message.clone());
            prop_assert_eq!(list.last().map(Arc::as_ref), Some(message));
        }
        let mut branch = forked.0.clone();
        branch.push(Message::user("elsewhere"));
        prop_assert!(list.iter().map(Arc::as_ref).eq(model.iter()));
        prop_assert!(forked.0.iter().map(Arc::as_ref).eq(model[..forked.1].iter()));
        prop_assert_eq!((list.len(), branch.len()), (model.len(), forked.1 + 1));
        for (index, message) in model.iter().enumerate() {
            prop_assert_eq!(list.get(index).map(Arc::as_ref), Some(message));
        }
        prop_assert!(list.get(model.len()).is_none());
        prop_assert_eq!(list, model.into_iter().collect::<Messages>());
    }

    #[test]
    fn usages_never_lose_a_counter(a in strategies::usage(), b in strategies::usage()) {
        let mut sum = a.clone();
        sum.add(&b);
        prop_assert!(sum.input_tokens >= a.input_tokens.max(b.input_tokens));
        prop_assert!(sum.total() >= a.total().max(b.total()));
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_prefix_of_a_chat_folds_into_what_was_heard(chat in chat(), cut in any::<prop::sample::Index>()) {
        let heard = &chat.events[..cut.index(chat.events.len() + 1)];
        let mut collector = Collector::new(chat.before.clone());
        heard.iter().for_each(|event| collector.apply(event));
        let open = open_turn(heard);
        let steps = completed_steps(heard);
        let said = match open.first() {
            Some(_) => text_of(open),
            None => steps.last().map(|step| step.text().into_owned()).unwrap_or_default(),
        };
        let (response, result) = (collector.response(), collector.chat_result());
        prop_assert_eq!(response.text(), said.as_str());
        prop_assert_eq!(result.text(), said.as_str());
        prop_assert_eq!(&result.halted_reason, &expected_reason(heard));
        prop_assert_eq!(collector.steps().len(), steps.len());
        prop_assert_eq!(result.steps.len(), steps.len());

        let kept: Vec<_> = result.thread.messages.iter().take(chat.before.messages.len()).collect();
        prop_assert_eq!(kept, chat.before.messages.iter().collect::<Vec<_>>());
        if result.halted_reason != HaltReason::ManualToolCalls {
            prop_assert_eq!(unanswered(&result.thread), Vec::<String>::new());
            prop_assert_eq!(validate::thread(&result.thread), Ok(()));
        }
        let ended = open.iter().any(|event| matches!(event, Event::MessageCompleted { .. }));
        if let (false, Some(response)) = (open.is_empty(), &result.final_response) {
            prop_assert_eq!(response.message.metadata().contains_key("partial"), !ended);
        }
        for message in tool_messages(open) {
            prop_assert!(result.thread.messages.iter().any(|m| **m == message), "{:?}", message);
        }
        comes_back(&result)?;
        comes_back(&collector.step_result())?;
    }

    #[test]
    fn a_whole_chat_folds_into_its_own_result(chat in chat()) {
        let mut collector = Collector::new(chat.before.clone());
        chat.events.iter().for_each(|event| collector.apply(event));
        let result = own_result(&chat);
        prop_assert_eq!(&collector.chat_result(), result);
        for (folded, told) in collector.steps().iter().zip(&result.steps) {
            prop_assert_eq!((&folded.thread, &folded.response), (&told.thread, &told.response));
        }
    }

    #[test]
    fn a_chat_folds_alike_when_its_events_come_as_json(chat in chat(), cut in any::<prop::sample::Index>()) {
        let heard = &chat.events[..cut.index(chat.events.len() + 1)];
        let mut told = Collector::new(chat.before.clone());
        let mut read = told.clone();
        for event in heard {
            told.apply(event);
            let text = serde_json::to_string(event).map_err(fail)?;
            read.apply(&serde_json::from_str(&text).map_err(fail)?);
        }
        prop_assert_eq!(read.steps(), told.steps());
        prop_assert_eq!(read.chat_result(), told.chat_result());
    }

    #[test]
    fn any_prefix_of_a_turn_leaves_a_session_that_can_go_on(
        chat in chat(),
        cut in any::<prop::sample::Index>(),
        id in strategies::id(),
        context in strategies::metadata(),
    ) {
        let heard = &chat.events[..cut.index(chat.events.len() + 1)];
        let mut before = Session::from(&chat.before).with_id(id).with_context(context);
        before.state = SessionState::Completed;
        let mut reducer = SessionReducer::chat(before.clone(), Some(Message::user("go on")));
        heard.iter().for_each(|event| reducer.apply(event));
        let (session, result) = reducer.finalize();
        prop_assert_eq!(reducer.finalize(), (session.clone(), result.clone()));
        prop_assert_eq!((&session.id, &session.context), (&before.id, &before.context));
        let TurnResult::Chat(result) = result else { panic!("a chat's result") };
        prop_assert_eq!(&session.thread, &result.thread);
        let status = match &result.halted_reason {
            HaltReason::Cancelled => Status::Idle,
            HaltReason::Error => Status::Error,
            HaltReason::AskUser => Status::AwaitingUser,
            HaltReason::ManualToolCalls => Status::AwaitingTools,
            _ => Status::Completed,
        };
        prop_assert_eq!(session.status(), status);
        if completed_steps(heard).is_empty() {
            let message = session.thread.messages.get(before.thread.messages.len());
            prop_assert_eq!(message.map(Arc::as_ref), Some(&Message::user("go on")));
        }
        comes_back(&session)?;
        let recovered = session.recover();
        prop_assert_eq!(validate::thread(&recovered.thread), Ok(()));
        prop_assert_eq!(recovered.check(Operation::Reply, None), Ok(()));
    }

    #[test]
    fn any_prefix_of_a_step_leaves_a_session_that_can_go_on(chat in chat(), cut in any::<prop::sample::Index>()) {
        let end = chat.events.iter().position(|e| matches!(e, Event::StepCompleted { .. }));
        let step = &chat.events[..=end.unwrap_or_default()];
        let heard = &step[..cut.index(step.len() + 1)];
        let before = Session::from(&chat.before);
        let mut reducer = SessionReducer::step(before.clone());
        heard.iter().for_each(|event| reducer.apply(event));
        let (session, result) = reducer.finalize();
        match result {
            TurnResult::Step(step) => prop_assert_eq!(&session, &before.apply_step(&step)),
            _ if saw_error(heard) => prop_assert_eq!(session.status(), Status::Error),
            _ => prop_assert_eq!(&session, &before),
        }
        comes_back(&session)?;
        prop_assert_eq!(validate::thread(&session.recover().thread), Ok(()));
    }

    #[test]
    fn any_events_in_any_order_fold_without_a_panic(
        streamed in chat(),
        foreign in vec(strategies::event(), 0..6),
        order in vec(any::<prop::sample::Index>(), 1..8),
        session in strategies::session(),
    ) {
        let mut rest = [streamed.events, foreign].concat();
        let mut order = order.iter().cycle();
        let mut reducers =
            [SessionReducer::chat(session.clone(), None), SessionReducer::step(session.clone())];
        let mut collector = Collector::new(session.thread.clone());
        let mut ended = false;
        while let (false, Some(next)) = (rest.is_empty(), order.next()) {
            let event = rest.swap_remove(next.index(rest.len()));
            ended |= matches!(event, Event::ChatCompleted { .. });
            collector.apply(&event);
            reducers.iter_mut().for_each(|reducer| reducer.apply(&event));
        }
        let reason = collector.chat_result().halted_reason;
        prop_assert!(ended || matches!(reason, HaltReason::Cancelled | HaltReason::Error));
        comes_back(&collector.response())?;
        comes_back(&collector.step_result())?;
        comes_back(&collector.chat_result())?;
        for reducer in reducers {
            let (folded, _) = reducer.finalize();
            prop_assert_eq!(reducer.finalize().0, folded);
        }
    }

    #[test]
    fn pieces_of_named_blocks_are_joined_block_by_block(
        pieces in vec((0..3_usize, "[a-z]{0,2}", prop::bool::weighted(0.1)), 0..20),
    ) {
        let mut blocks: Vec<(usize, String)> = Vec::new();
        let mut builder = ResponseBuilder::new();
        for (block, text, completes) in pieces {
            let id = Some(Arc::from(format!("b{block}")));
            let known = blocks.iter_mut().position(|(known, _)| *known == block);
            let index = known.unwrap_or(blocks.len());
            if known.is_none() {
                blocks.push((block, String::new()));
            }
            if completes {
                blocks[index].1.clone_from(&text);
                builder.apply(&Event::TextCompleted { id, text });
            } else {
                blocks[index].1.push_str(&text);
                builder.apply(&Event::TextDelta { id, delta: text });
            }
        }
        let expected: String = blocks.into_iter().map(|(_, text)| text).collect();
        let response = builder.response();
        prop_assert_eq!(response.text(), expected);
    }
}

fn cases() -> ProptestConfig {
    // By default regressions are kept beside a `lib.rs`, and there is none above this file.
    let persistence = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

fn comes_back<T>(value: &T) -> TestCaseResult
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let text = serde_json::to_string(value).map_err(fail)?;
    let back: T = serde_json::from_str(&text).map_err(fail)?;
    prop_assert_eq!(&back, value);
    prop_assert_eq!(serde_json::to_string(&back).map_err(fail)?, text);
    Ok(())
}

fn survives<T>(bytes: &[u8]) -> TestCaseResult
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    match serde_json::from_slice::<T>(bytes) {
        Ok(value) => comes_back(&value),
        Err(error) => {
            let error = Error::from(error);
            prop_assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidJson));
            prop_assert_eq!(error.field_errors().len(), 1);
            comes_back(&error)
        }
    }
}

fn broken<T: Serialize>(value: &T, mutations: &[Mutation]) -> Result<Vec<u8>, TestCaseError> {
    let mut bytes = serde_json::to_vec(value).map_err(fail)?;
    for mutation in mutations {
        match String::from_utf8(bytes.clone()) {
            Ok(text) if !text.is_empty() => bytes = mutation.apply(&text),
            _ => break,
        }
    }
    Ok(bytes)
}

fn fail(error: impl ToString) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// A list in the place of an object is read by position, by the plain decoder only.
fn has_list_for_part(message: &Value) -> bool {
    message["content"].as_array().is_some_and(|parts| parts.iter().any(Value::is_array))
}

/// The events since the last completed step.
fn open_turn(events: &[Event]) -> &[Event] {
    let end = events
        .iter()
        .rposition(|e| matches!(e, Event::StepCompleted { .. } | Event::ChatCompleted { .. }));
    &events[end.map_or(0, |end| end + 1)..]
}

fn completed_steps(events: &[Event]) -> Vec<&Response> {
    let steps = events.iter().filter_map(|event| match event {
        Event::StepCompleted { response, .. } => Some(response.as_ref()),
        _ => None,
    });
    steps.collect()
}

fn text_of(events: &[Event]) -> String {
    let deltas = events.iter().filter_map(|event| match event {
        Event::TextDelta { delta, .. } => Some(delta.as_str()),
        _ => None,
    });
    deltas.collect()
}

fn saw_error(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Error { .. }))
}

fn expected_reason(events: &[Event]) -> HaltReason {
    match events.last() {
        Some(Event::ChatCompleted { result }) => result.halted_reason.clone(),
        _ if saw_error(events) => HaltReason::Error,
        _ => HaltReason::Cancelled,
    }
}

fn own_result(chat: &Streamed) -> &ChatResult {
    match chat.events.last() {
        Some(Event::ChatCompleted { result }) => result,
        last => panic!("a chat ends with its result, not with {last:?}"),
    }
}

/// The tool messages of these events.
fn tool_messages(events: &[Event]) -> Vec<Message> {
    let message = |event: &Event| match event {
        Event::ToolResultEncoded { id, content, .. } => {
            Some(Message::tool_result(id, content.as_str()))
        }
        Event::AskUserRequested { tool_call_id, .. } => {
            Some(Message::tool_result(tool_call_id, ASK_USER_SENTINEL))
        }
        Event::ToolHalt { tool_call_id, content, .. } => {
            Some(Message::tool_result(tool_call_id, content.as_str()))
        }
        _ => None,
    };
    events.iter().filter_map(message).collect()
}

/// The calls of a thread that have no result among the tool messages right after them.
fn unanswered(thread: &Thread) -> Vec<String> {
    let messages: Vec<&Message> = thread.messages.iter().map(Arc::as_ref).collect();
    let mut open = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let after = messages[index + 1..].iter().take_while(|m| m.role() == Role::Tool);
        let answered: BTreeSet<_> = after.filter_map(|m| m.tool_call_id()).collect();
        let calls = message.tool_calls().filter(|call| !answered.contains(call.id.as_str()));
        open.extend(calls.map(|call| call.id.clone()));
    }
    open
}
