//! A strategy for every public type: any value that the constructors can build and JSON can express.
//!
//! Left out is only what has no JSON form of its own: numbers that are not finite, `Some(null)` for what is missing,
//! values that spell a typed form in an untyped way, such as `HaltReason::Custom("completed")`, and a member `error` in
//! the metadata of a failed session, which is where its JSON has the session's own error.
#![allow(dead_code, reason = "whoever includes this file uses its own part of it")]

use std::sync::Arc;

use mynah_data::*;
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

pub(crate) fn text() -> BoxedStrategy<String> {
    let awkward =
        ["\u{0}", "\"\\/", "\r\n\t", "\u{2028}\u{feff}", "🐦\u{301}", "</script>", "null"];
    prop_oneof![
        2 => Just(String::new()),
        4 => "[a-z ]{1,8}",
        2 => "\\PC{0,6}",
        1 => select(awkward.to_vec()).prop_map(str::to_owned),
    ]
    .boxed()
}

pub(crate) fn id() -> BoxedStrategy<String> {
    prop_oneof![4 => "[a-c][0-3]", 1 => text()].boxed()
}

/// Names of metadata members; the library's own among them.
fn key() -> BoxedStrategy<String> {
    let own = [
        "error",
        "finish_reason",
        "halted_reason",
        "manual_tool_calls",
        "mode",
        "partial",
        "pending_question",
        "provider",
        "type",
        "tool_name",
        "field",
        "errors",
    ];
    prop_oneof![3 => "[a-e]{1,2}", 2 => select(own.to_vec()).prop_map(str::to_owned), 1 => text()]
        .boxed()
}

pub(crate) fn float() -> BoxedStrategy<f64> {
    use proptest::num::f64::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    let awkward = [0.1 + 0.2, 1e-7, 5e-324, f64::MAX, f64::MIN_POSITIVE, 1e21, 1.0, -0.0];
    prop_oneof![
        3 => POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO,
        1 => select(awkward.to_vec()),
    ]
    .boxed()
}

pub(crate) fn value() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        2 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        3 => float().prop_map(Value::from),
        3 => text().prop_map(Value::from),
    ];
    let nested = leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::Array),
            vec((key(), inner), 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    nested.boxed()
}

fn non_null() -> BoxedStrategy<Value> {
    value().prop_filter("null", |value| !value.is_null()).boxed()
}

pub(crate) fn metadata() -> BoxedStrategy<Metadata> {
    prop_oneof![
        1 => Just(Metadata::new()),
        1 => vec((key(), value()), 0..4).prop_map(|map| map.into_iter().collect()),
    ]
    .boxed()
}

/// Argument text as models write it: exact, spaced, empty, cut off, or no JSON at all.
fn raw_arguments() -> BoxedStrategy<String> {
    let written = ["", " ", "null", "{", "{\"x\":", "{\"x\": 1.50 }", "{} {}", "nope", "1e999"];
    prop_oneof![
        2 => value().prop_map(|value| value.to_string()),
        1 => metadata().prop_map(|map| format!("{:#}", Value::Object(map))),
        2 => select(written.to_vec()).prop_map(str::to_owned),
        1 => text(),
    ]
    .boxed()
}

pub(crate) fn tool_call() -> BoxedStrategy<ToolCall> {
    let written =
        (id(), id(), raw_arguments()).prop_map(|(id, name, raw)| ToolCall::new(id, name, raw));
    let given =
        (id(), id(), value()).prop_map(|(id, name, value)| ToolCall::from_value(id, name, value));
    // A tool may have been given other arguments than the model wrote.
    let edited =
        (id(), id(), raw_arguments(), non_null()).prop_map(|(id, name, raw, arguments)| {
            let mut call = ToolCall::new(id, name, raw);
            call.arguments = arguments;
            call
        });
    let call = prop_oneof![3 => written, 2 => given, 1 => edited];
    (call, metadata())
        .prop_map(|(mut call, metadata)| {
            call.metadata = metadata;
            call
        })
        .boxed()
}

pub(crate) fn image() -> BoxedStrategy<Image> {
    let source = prop_oneof![
        vec(any::<u8>(), 0..6).prop_map(ImageSource::Binary),
        text().prop_map(ImageSource::Base64),
        text().prop_map(ImageSource::Url),
        "[a-z/.]{0,8}".prop_map(|path| ImageSource::File(path.into())),
    ];
    let size = || option::of(any::<u32>());
    (source, option::of(text()), size(), size(), metadata())
        .prop_map(|(source, mime_type, width, height, metadata)| {
            let mut image = Image::from_url("");
            image.source = source;
            image.mime_type = mime_type;
            (image.width, image.height, image.metadata) = (width, height, metadata);
            image
        })
        .boxed()
}

pub(crate) fn part() -> BoxedStrategy<Part> {
    let detail = select([ImageDetail::Auto, ImageDetail::Low, ImageDetail::High].to_vec());
    prop_oneof![
        4 => text().prop_map(Part::text),
        1 => (text(), metadata()).prop_map(|(text, metadata)| Part::Text { text, metadata }),
        1 => (image(), detail, metadata())
            .prop_map(|(image, detail, metadata)| Part::Image { image, detail, metadata }),
        1 => (text(), option::of(text()), any::<bool>(), option::of(non_null())).prop_map(
            |(text, signature, redacted, data)| Part::Reasoning { text, signature, redacted, data }
        ),
        3 => tool_call().prop_map(Part::tool_call),
        1 => text().prop_map(|text| Part::Refusal { text }),
    ]
    .boxed()
}

pub(crate) fn message() -> BoxedStrategy<Message> {
    let bare = prop_oneof![
        1 => text().prop_map(Message::system),
        2 => text().prop_map(Message::user),
        2 => text().prop_map(Message::assistant),
        1 => vec(part(), 0..4).prop_map(Message::user_parts),
        3 => vec(part(), 0..4).prop_map(Message::assistant_parts),
        1 => (id(), value()).prop_map(|(id, content)| Message::tool_result(id, content)),
        1 => (id(), vec(part(), 0..3)).prop_map(|(id, parts)| Message::tool_parts(id, parts)),
    ];
    (bare, option::of(text()), metadata())
        .prop_map(|(message, name, metadata)| {
            let message = match name {
                Some(name) => message.with_name(name),
                None => message,
            };
            metadata.into_iter().fold(message, |message, (k, v)| message.with_metadata(&k, v))
        })
        .boxed()
}

pub(crate) fn thread() -> BoxedStrategy<Thread> {
    (vec(message(), 0..3), metadata())
        .prop_map(|(messages, metadata)| {
            let mut thread = Thread::from(messages);
            thread.metadata = metadata;
            thread
        })
        .boxed()
}

pub(crate) fn tool_spec() -> BoxedStrategy<ToolSpec> {
    let timeout = option::of(any::<u64>());
    (id(), text(), value(), any::<(bool, bool, u32)>(), timeout, metadata())
        .prop_map(|(name, description, schema, flags, timeout_ms, metadata)| {
            let mut spec = ToolSpec::new(name, description, schema);
            (spec.manual, spec.idempotent, spec.max_attempts) = flags;
            (spec.timeout_ms, spec.metadata) = (timeout_ms, metadata);
            spec
        })
        .boxed()
}

pub(crate) fn tool_choice() -> BoxedStrategy<ToolChoice> {
    let reserved = |name: &String| !["auto", "none", "required"].contains(&name.as_str());
    let named = |map: &Metadata| map.len() != 1 || !map.contains_key("tool");
    prop_oneof![
        Just(ToolChoice::Auto),
        Just(ToolChoice::None),
        Just(ToolChoice::Required),
        id().prop_filter("is Auto, None or Required", reserved).prop_map(ToolChoice::Tool),
        metadata().prop_filter("is Tool", named).prop_map(ToolChoice::Other),
    ]
    .boxed()
}

pub(crate) fn response_format() -> BoxedStrategy<ResponseFormat> {
    prop_oneof![
        Just(ResponseFormat::Text),
        Just(ResponseFormat::JsonObject),
        (text(), value(), any::<bool>()).prop_map(|(name, schema, strict)| {
            ResponseFormat::JsonSchema { name, schema, strict }
        }),
        metadata().prop_map(ResponseFormat::Other),
        metadata().prop_map(|mut map| {
            map.insert("type".to_owned(), json!("json_schema"));
            ResponseFormat::Other(map)
        }),
    ]
    .boxed()
}

pub(crate) fn pricing() -> BoxedStrategy<Pricing> {
    let retention = select([CacheRetention::Short, CacheRetention::Long].to_vec());
    (float(), float(), option::of(float()), option::of(float()), retention)
        .prop_map(|(input, output, cached_input, cache_write, retention)| {
            let mut pricing = Pricing::new(input, output);
            (pricing.cached_input, pricing.cache_write) = (cached_input, cache_write);
            pricing.for_retention(retention)
        })
        .boxed()
}

pub(crate) fn model_ref() -> BoxedStrategy<ModelRef> {
    let maps = (metadata(), metadata(), metadata());
    (option::of(text()), text(), maps, option::of(pricing()))
        .prop_map(|(provider, id, maps, pricing)| {
            let mut model = ModelRef::new(id);
            (model.provider, model.pricing) = (provider, pricing);
            (model.capabilities, model.limits, model.metadata) = maps;
            model
        })
        .boxed()
}

pub(crate) fn prompt_cache() -> BoxedStrategy<PromptCache> {
    let retention = select([CacheRetention::Short, CacheRetention::Long].to_vec());
    (option::of(text()), retention)
        .prop_map(|(key, retention)| {
            let mut cache = PromptCache::default();
            (cache.key, cache.retention) = (key, retention);
            cache
        })
        .boxed()
}

pub(crate) fn request() -> BoxedStrategy<Request> {
    let asked = (option::of(model_ref()), vec(message(), 0..4), vec(tool_spec(), 0..3));
    let form =
        (option::of(tool_choice()), option::of(response_format()), option::of(prompt_cache()));
    let limits = (option::of(float()), option::of(any::<u64>()), any::<(bool, bool)>());
    (asked, form, limits, metadata(), metadata())
        .prop_map(|(asked, form, limits, options, metadata)| {
            let (model, messages, tools) = asked;
            let (tool_choice, response_format, prompt_cache) = form;
            let (temperature, max_tokens, (stream, structured_finalize)) = limits;
            let mut request = Request::new(messages).with_tools(tools).with_options(options);
            (request.model, request.metadata) = (model, metadata);
            (request.tool_choice, request.response_format) = (tool_choice, response_format);
            (request.temperature, request.max_tokens) = (temperature, max_tokens);
            (request.stream, request.structured_finalize) = (stream, structured_finalize);
            request.prompt_cache = prompt_cache;
            request
        })
        .boxed()
}

pub(crate) fn usage() -> BoxedStrategy<Usage> {
    let counter = || option::of(any::<u64>());
    let cost = || option::of(float());
    let counters = (counter(), counter(), counter(), counter(), counter(), counter());
    (counters, (cost(), cost(), cost()), metadata(), metadata())
        .prop_map(|(counters, costs, tool_usage, extra)| {
            let mut usage = Usage::new(counters.0, counters.1);
            (usage.cached_input_tokens, usage.cache_write_tokens) = (counters.2, counters.3);
            (usage.reasoning_tokens, usage.total_tokens) = (counters.4, counters.5);
            (usage.input_cost, usage.output_cost, usage.total_cost) = costs;
            (usage.tool_usage, usage.extra) = (tool_usage, extra.into());
            usage
        })
        .boxed()
}

pub(crate) fn finish_reason() -> BoxedStrategy<FinishReason> {
    use FinishReason::*;
    select([Stop, Length, ToolCalls, ContentFilter, Error, Other].to_vec()).boxed()
}

pub(crate) fn response() -> BoxedStrategy<Response> {
    let ids = (option::of(text()), option::of(text()), option::of(text()));
    let finish = (option::of(finish_reason()), option::of(text()));
    // What a failed call leaves in the metadata is often an error.
    let told = prop_oneof![
        3 => metadata(),
        1 => error().prop_map(|error| Metadata::from_iter([("error".to_owned(), error.to_value())])),
    ];
    (ids, message(), finish, usage(), option::of(non_null()), told)
        .prop_map(|(ids, message, finish, usage, raw, metadata)| {
            let mut response = Response::new(message);
            (response.id, response.request_id, response.model) = ids;
            (response.finish_reason, response.raw_finish_reason) = finish;
            (response.usage, response.raw, response.metadata) = (usage, raw, metadata);
            response
        })
        .boxed()
}

pub(crate) fn halt_reason() -> BoxedStrategy<HaltReason> {
    prop_oneof![
        3 => select(HaltReason::RESERVED.to_vec()),
        1 => text().prop_map(HaltReason::from),
        1 => Just(HaltReason::from("plan_submitted".to_owned())),
    ]
    .boxed()
}

pub(crate) fn halt() -> BoxedStrategy<Halt> {
    prop_oneof![
        (id(), text(), metadata()).prop_map(|(tool_call_id, question, opts)| Halt::AskUser {
            tool_call_id,
            question,
            opts
        }),
        (id(), halt_reason(), value(), option::of(text())).prop_map(
            |(tool_call_id, reason, result, exception)| Halt::Tool {
                tool_call_id,
                reason,
                result,
                exception
            }
        ),
    ]
    .boxed()
}

pub(crate) fn tool_outcome() -> BoxedStrategy<ToolOutcome> {
    prop_oneof![
        value().prop_map(ToolOutcome::Ok),
        (value(), any::<bool>())
            .prop_map(|(error, transient)| ToolOutcome::Error { error, transient }),
        (text(), metadata()).prop_map(|(question, opts)| ToolOutcome::AskUser { question, opts }),
        (halt_reason(), value()).prop_map(|(reason, result)| ToolOutcome::Halt { reason, result }),
        (wait(), option::of(value())).prop_map(|(wait, state)| ToolOutcome::Later { wait, state }),
    ]
    .boxed()
}

fn wait() -> BoxedStrategy<Wait> {
    prop_oneof![any::<u64>().prop_map(Wait::ForMs), any::<u64>().prop_map(Wait::UntilMs)].boxed()
}

pub(crate) fn step_result() -> BoxedStrategy<StepResult> {
    let results = vec(message().prop_map(Arc::new), 0..3);
    (thread(), response(), results, any::<bool>(), turn_metadata())
        .prop_map(|(thread, response, tool_results, done, metadata)| {
            let mut step = StepResult::new(thread, response);
            (step.tool_results, step.done, step.metadata) = (tool_results, done, metadata);
            step
        })
        .boxed()
}

pub(crate) fn chat_result() -> BoxedStrategy<ChatResult> {
    let pending = (option::of(text()), option::of(id()));
    let last = option::of(response());
    let steps = vec((step_result(), option::of((0..4_usize, any::<bool>()))), 0..4);
    (thread(), last, steps, halt_reason(), pending, turn_metadata())
        .prop_map(|(thread, last, steps, reason, pending, metadata)| {
            let mut result = ChatResult::new(thread, reason);
            (result.final_response, result.metadata) = (last, metadata);
            result.steps =
                steps.into_iter().map(|(step, kept)| in_chat(&result, step, kept)).collect();
            (result.pending_question, result.pending_tool_call_id) = pending;
            result
        })
        .boxed()
}

/// A step as chats have it: its thread is the beginning of the chat's, perhaps with more behind it. Or it is any thread.
fn in_chat(chat: &ChatResult, mut step: StepResult, kept: Option<(usize, bool)>) -> StepResult {
    if let Some((kept, has_more)) = kept {
        let own = std::mem::replace(&mut step.thread, chat.thread.clone());
        step.thread.messages = chat.thread.messages.iter().take(kept).cloned().collect();
        step.thread.extend(own.messages.iter().filter(|_| has_more).cloned());
    }
    step
}

/// What turns say beside their results: anything, often in the members that the library reads.
fn turn_metadata() -> BoxedStrategy<Metadata> {
    let typed = prop_oneof![
        halt_reason().prop_map(|reason| ("halted_reason", json!(reason))),
        vec(tool_call(), 0..3).prop_map(|calls| ("manual_tool_calls", json!(calls))),
        Just(("mode", json!("manual"))),
        error().prop_map(|error| ("error", error.to_value())),
        text().prop_map(|question| ("pending_question", json!(question))),
    ];
    let typed = vec(typed.prop_map(|(key, value)| (key.to_owned(), value)), 0..3);
    prop_oneof![metadata(), typed.prop_map(|map| map.into_iter().collect())].boxed()
}

pub(crate) fn field_error() -> BoxedStrategy<FieldError> {
    let step = prop_oneof![
        any::<u32>().prop_map(|index| PathSegment::Index(index as usize)),
        id().prop_map(PathSegment::Field),
    ];
    (vec(step, 0..4), text()).prop_map(|(path, code)| FieldError::at(path, code)).boxed()
}

pub(crate) fn error_kinds() -> Vec<ErrorKind> {
    let mut kinds = Vec::new();
    kinds.extend(EngineReason::ALL.iter().copied().map(ErrorKind::Engine));
    kinds.extend(AdapterReason::ALL.iter().copied().map(ErrorKind::Adapter));
    kinds.extend(StreamReason::ALL.iter().copied().map(ErrorKind::Stream));
    kinds.extend(ToolReason::ALL.iter().copied().map(ErrorKind::Tool));
    kinds.extend(SessionReason::ALL.iter().copied().map(ErrorKind::Session));
    kinds.extend(ValidationReason::ALL.iter().copied().map(ErrorKind::Validation));
    kinds
}

pub(crate) fn error() -> BoxedStrategy<Error> {
    let plain = select(error_kinds()).prop_map(Error::new);
    let reasons = select(ValidationReason::ALL);
    let validation = (reasons, vec(field_error(), 0..3))
        .prop_map(|(reason, errors)| Error::validation(reason, errors));
    let named = (plain.clone(), text()).prop_map(|(error, name)| error.with_provider(name));
    let said = (plain.clone(), text()).prop_map(|(error, text)| error.with_message(text));
    let spelled_out = plain.clone().prop_map(|error| {
        let text = error.to_string();
        error.with_message(text)
    });
    (prop_oneof![plain, validation, named, said, spelled_out], metadata())
        .prop_map(|(error, metadata)| {
            metadata.into_iter().fold(error, |error, (key, value)| error.with(&key, value))
        })
        .boxed()
}

/// One strategy for each type of event.
pub(crate) fn events() -> Vec<BoxedStrategy<Event>> {
    let block = || option::of(id().prop_map(Arc::<str>::from));
    let shared = || message().prop_map(Arc::new);
    let said = || option::of(text());
    vec![
        (shared(), said(), said(), said())
            .prop_map(|members| {
                let mut event = Event::message_started();
                if let Event::MessageStarted { message, request_id, id, model, .. } = &mut event {
                    (*message, *request_id, *id, *model) = members;
                }
                event
            })
            .boxed(),
        (block(), text()).prop_map(|(id, delta)| Event::TextDelta { id, delta }).boxed(),
        (block(), text()).prop_map(|(id, text)| Event::TextCompleted { id, text }).boxed(),
        (block(), text()).prop_map(|(id, delta)| Event::ReasoningDelta { id, delta }).boxed(),
        (text(), (block(), said(), any::<bool>(), option::of(non_null())))
            .prop_map(|(text, others)| {
                let mut event = Event::reasoning_completed(text);
                if let Event::ReasoningCompleted { id, signature, redacted, data, .. } = &mut event
                {
                    (*id, *signature, *redacted, *data) = others;
                }
                event
            })
            .boxed(),
        (id(), text()).prop_map(|(id, name)| Event::ToolCallStarted { id, name }).boxed(),
        (id(), raw_arguments())
            .prop_map(|(id, arguments_delta)| Event::ToolCallDelta { id, arguments_delta })
            .boxed(),
        tool_call().prop_map(Event::tool_call_completed).boxed(),
        usage().prop_map(|usage| Event::Usage { usage: Box::new(usage) }).boxed(),
        (option::of(finish_reason()), (shared(), said(), any::<bool>(), metadata()))
            .prop_map(|(finish_reason, others)| {
                let mut event = Event::message_completed(finish_reason);
                if let Event::MessageCompleted {
                    message,
                    raw_finish_reason,
                    paused,
                    metadata,
                    ..
                } = &mut event
                {
                    (*message, *raw_finish_reason, *paused, *metadata) = others;
                }
                event
            })
            .boxed(),
        (id(), text(), value())
            .prop_map(|(id, name, arguments)| Event::tool_execution_started(id, name, arguments))
            .boxed(),
        (id(), text(), -1e9..1e9, (option::of(0.0..1e9), option::of(text())))
            .prop_map(|(id, name, progress, others)| {
                let mut event = Event::tool_execution_progress(id, name, progress);
                if let Event::ToolExecutionProgress { total, message, .. } = &mut event {
                    (*total, *message) = others;
                }
                event
            })
            .boxed(),
        (id(), text(), tool_outcome())
            .prop_map(|(id, name, result)| Event::tool_execution_completed(id, name, result))
            .boxed(),
        (id(), text()).prop_map(|(id, content)| Event::tool_result_encoded(id, content)).boxed(),
        (id(), text(), text(), metadata())
            .prop_map(|(id, name, question, opts)| {
                Event::ask_user_requested(id, name, question, opts)
            })
            .boxed(),
        (id(), halt_reason(), value(), text(), said())
            .prop_map(|(id, reason, result, content, exception)| {
                let mut event = Event::tool_halt(id, reason, result, content);
                if let Event::ToolHalt { on_tool_error_exception, .. } = &mut event {
                    *on_tool_error_exception = exception;
                }
                event
            })
            .boxed(),
        (response(), step_thread(), any::<bool>(), vec(tool_call(), 0..3))
            .prop_map(|(response, thread, manual, calls)| {
                let mode = if manual { ToolMode::Manual } else { ToolMode::Auto };
                Event::step_completed(response, thread, mode, calls)
            })
            .boxed(),
        chat_result().prop_map(|result| Event::ChatCompleted { result: Box::new(result) }).boxed(),
        value().prop_map(|chunk| Event::RawChunk { chunk }).boxed(),
        error().prop_map(|error| Event::Error { error }).boxed(),
    ]
}

fn step_thread() -> BoxedStrategy<StepThread> {
    (thread(), option::of(0..4_usize))
        .prop_map(|(thread, after)| match after {
            Some(after) => StepThread::added(thread, after),
            None => StepThread::from(thread),
        })
        .boxed()
}

pub(crate) fn event() -> BoxedStrategy<Event> {
    proptest::strategy::Union::new(events()).boxed()
}

/// What a session waits for, in each of the five statuses.
pub(crate) fn session_states() -> Vec<BoxedStrategy<SessionState>> {
    vec![
        Just(SessionState::Idle).boxed(),
        (text(), option::of(id()))
            .prop_map(|(question, tool_call_id)| SessionState::AwaitingUser {
                question,
                tool_call_id,
            })
            .boxed(),
        vec(tool_call(), 1..3).prop_map(|calls| SessionState::AwaitingTools { calls }).boxed(),
        Just(SessionState::Completed).boxed(),
        prop_oneof![value(), error().prop_map(|error| error.to_value())]
            .prop_map(|error| SessionState::Failed { error })
            .boxed(),
    ]
}

pub(crate) fn session() -> BoxedStrategy<Session> {
    let state = proptest::strategy::Union::new(session_states());
    let kept = option::of((id(), any::<u64>(), text(), any::<bool>(), 0usize..4));
    (option::of(text()), thread(), state, metadata(), metadata(), turn_metadata(), kept)
        .prop_map(|(id, thread, state, context, metadata, turn_metadata, kept)| {
            let mut session = Session::from(thread);
            session.last_run = kept.map(|(run, seq, hash, waits, length)| {
                let messages = session.thread.messages.iter().take(length).cloned();
                SessionRun::new(run, seq, hash, waits, messages.collect())
            });
            (session.id, session.state, session.context) = (id, state, context);
            (session.metadata, session.turn_metadata) = (metadata, turn_metadata);
            if session.status() == Status::Error {
                session.metadata.shift_remove("error");
            }
            session
        })
        .boxed()
}
