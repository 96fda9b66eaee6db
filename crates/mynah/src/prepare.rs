//! From an engine and what a call asks of it to a run: everything that can be refused is refused here.

use std::{sync::Arc, time::Duration};

use mynah_data::{
    Budget, EngineReason, Error, FieldError, Messages, Metadata, ModelRef, Part, Request,
    ResponseFormat, Result, Thread, ToolCall, ToolSpec, ValidationReason, validate,
};
use mynah_log::{About, Extent, Fact, SessionLink};
use mynah_step::{
    HandlerExecutor, JsonEncoder, ModelCall, OnUncertain, Recorder, Tape, Tool, ToolContext,
    ToolLimits, check_price, price_of,
};
use serde_json::{Value, json};

use crate::{
    engine::{Engine, overlay_tools},
    options::{Options, Settings, said},
    run::{Driver, Finalize, Meter, Policy, Setup},
    stream::Filter,
};

const NUDGE: &str = "Now provide your final structured response.";

/// What a call starts from.
pub(crate) enum Input {
    Thread(Thread),
    Request(Box<Request>),
}

/// Where a run comes from: nowhere, the turn before in its session, or its own records.
#[derive(Default)]
pub(crate) struct Origin {
    /// The conversation that another run's records hold; the input is what joined since.
    pub(crate) before: Messages,
    /// The session that a new run is a turn of.
    pub(crate) session: Option<SessionLink>,
    /// The id of a call that has one already.
    pub(crate) request_id: Option<String>,
    /// What a run began with that is performed again.
    pub(crate) recorded: Option<Box<About>>,
    /// Whether that counts even where the engine is another one now.
    pub(crate) allow_changed: bool,
    pub(crate) recorded_tools: bool,
    pub(crate) on_uncertain: OnUncertain,
    pub(crate) resumption: Option<Fact>,
    pub(crate) since_answer: bool,
    /// How long earlier processes were active.
    pub(crate) active: Duration,
}

/// A run that may begin, and what its caller wants to see of it.
pub(crate) fn prepare(
    engine: &Engine,
    input: Input,
    mut options: Options,
    extent: Extent,
    origin: Origin,
) -> Result<(Driver, Filter)> {
    let world = &engine.0.world;
    let tape = match options.log.take() {
        Some(log) => {
            let recorder = Recorder::new(log, Arc::clone(world), world.new_run_id());
            let recorder = recorder
                .with_durability(options.durability)
                .with_emit_timeout(options.emit_timeout)
                .with_new_lease();
            Tape::Recording(Box::new(recorder.metered(engine.0.metrics.clone())))
        }
        None => Tape::Blank,
    };
    prepare_on(engine, input, options, extent, tape, origin)
}

/// The same, for a run whose facts go where the tape says.
pub(crate) fn prepare_on(
    engine: &Engine,
    input: Input,
    options: Options,
    extent: Extent,
    tape: Tape,
    origin: Origin,
) -> Result<(Driver, Filter)> {
    let parts = &engine.0;
    let recorded = origin.recorded;
    let session = origin.session.or_else(|| recorded.as_ref()?.session.clone());
    let (thread, given) = match input {
        Input::Thread(thread) => (thread, None),
        Input::Request(request) => (thread_of(&request), Some(request)),
    };
    let mut conversation = thread.clone();
    if !origin.before.is_empty() {
        conversation.messages = origin.before.clone();
        conversation.extend(thread.messages.iter().cloned());
    }
    let mut own = given.as_deref().map(said_by).unwrap_or_default();
    own.extend(said(options.values().clone()));
    let mut values = parts.params.clone();
    values.extend(own.clone());
    let mut settings = Settings::read(values)?;
    if let Some(session) = &session {
        settings.session_id = settings.session_id.or_else(|| session.id.clone());
        // An empty context counts as none, so that the engine's holds.
        let context = Some(&session.context).filter(|context| !context.is_empty());
        settings.context = settings.context.or_else(|| context.cloned());
    }

    validate::thread(&conversation)?;
    let adapter = parts.adapter.clone().ok_or_else(|| {
        Error::engine(EngineReason::MissingAdapter).with_message(
            "engine error: missing_adapter: the engine has no adapter; Engine::new takes one",
        )
    })?;
    let described: Vec<Tool> = match (&given, &recorded) {
        (Some(request), _) => described(&request.tools, |_| true),
        (None, Some(about)) => described(&about.tools, |name| about.described.contains(name)),
        (None, None) => Vec::new(),
    };
    let tools = overlay_tools(
        &overlay_tools(&parts.tools, &described),
        options.tools.as_deref().unwrap_or_default(),
    );

    let model = settings.model.take().or_else(|| parts.model.clone());
    let model = model.map(|model| parts.catalog.inform(model));
    let request = first_request(
        &mut settings,
        model,
        &tools,
        conversation.messages,
        given.map(|r| r.metadata),
        extent,
    );
    validate::request(&request)?;
    check_capabilities(&request)?;
    // A run that goes on keeps the price that it began with; one that is only compared has the engine's.
    let pricing = match &recorded {
        Some(about) if tape.is_resuming() || origin.allow_changed => about.pricing,
        _ => price_of(&request, &parts.catalog),
    };
    check_price(settings.budget.as_ref(), pricing.as_ref(), &request)?;
    let (request, final_request) = split_passes(request, &settings, adapter.as_ref(), extent);

    let request_id = recorded.as_ref().map(|about| about.request_id.clone()).or(origin.request_id);
    let request_id = request_id.or(settings.request_id).unwrap_or_else(|| parts.world.new_id());
    let about = match recorded {
        Some(recorded) if origin.allow_changed => Some(recorded),
        recorded => tape.is_kept().then(|| {
            Box::new(About {
                request_id: request_id.clone(),
                adapter: adapter.name().to_owned(),
                model: request.model.as_ref().map(ToString::to_string),
                pricing,
                tools: tools.iter().map(|tool| Arc::clone(tool.spec())).collect(),
                params: parts.params.clone(),
                options: own,
                described: described.iter().map(|tool| tool.name().to_owned()).collect(),
                parent: recorded.and_then(|about| about.parent),
                session,
            })
        }),
    };
    let call = ModelCall {
        request_id: request_id.clone(),
        session_id: settings.session_id.clone(),
        adapter_opts: overlaid(&parts.adapter_opts, settings.adapter_opts),
        api_key: options.api_key,
        request_timeout: settings.request_timeout,
        stream_timeout: settings.stream_timeout,
    };
    // Each tool gets its own call.
    let mut tool_context = ToolContext::new(ToolCall::new("", "", ""), Arc::clone(&parts.world))
        .side_effect_errors(settings.side_effect_errors);
    tool_context.context = settings.context.map_or_else(|| Arc::clone(&parts.context), Arc::new);
    tool_context.session_id = settings.session_id.map(Arc::from);
    tool_context.request_id = Arc::from(request_id);
    tool_context.engine = Some(Arc::clone(&engine.0) as _);
    let meter = Meter { schema_bytes: schema_bytes(settings.budget.as_ref(), &tools), pricing };
    let policy = Policy {
        extent,
        mode: settings.mode,
        max_turns: settings.max_turns,
        budget: settings.budget,
        halt_when: options.halt_when,
        finalize: final_request
            .is_some()
            .then(|| Finalize { nudge: settings.nudge.unwrap_or_else(|| NUDGE.to_owned()) }),
        on_unknown_tool: settings.on_unknown_tool,
        tools: tools.into(),
    };
    let filter = Filter {
        text_deltas: settings.emit_text_deltas,
        tool_deltas: settings.emit_tool_deltas,
        raw_chunks: settings.include_raw_chunks,
    };
    let retry = settings.retry.unwrap_or_else(|| adapter.default_retry());
    let setup = Setup {
        policy,
        meter,
        active: origin.active,
        adapter,
        request: Request { messages: Messages::new(), ..request },
        final_request,
        call,
        retry: Arc::new(retry),
        world: Arc::clone(&parts.world),
        metrics: parts.metrics.clone(),
        executor: options
            .executor
            .or_else(|| parts.executor.clone())
            .unwrap_or_else(|| Arc::new(HandlerExecutor)),
        encoder: options
            .encoder
            .or_else(|| parts.encoder.clone())
            .unwrap_or_else(|| Arc::new(JsonEncoder)),
        on_tool_error: options.on_tool_error.unwrap_or(settings.on_tool_error),
        tool_context,
        tool_limits: ToolLimits::new(settings.tool_timeout),
        max_concurrency: settings.max_concurrency,
        deadline: settings.deadline,
        on_event: options.on_event,
        recorded_tools: origin.recorded_tools,
        on_uncertain: origin.on_uncertain,
        require_raw_response_hash: settings.require_raw_response_hash,
        resumption: origin.resumption,
        since_answer: origin.since_answer,
    };
    let cancel = options.cancel.as_ref();
    Ok((Driver::new(setup, origin.before, thread, cancel, tape, about), filter))
}

/// Tools of which no more is known than what the model is told.
fn described(specs: &[Arc<ToolSpec>], which: impl Fn(&String) -> bool) -> Vec<Tool> {
    let specs = specs.iter().filter(|spec| which(&spec.name));
    specs.map(|spec| Tool::from_spec((**spec).clone())).collect()
}

fn thread_of(request: &Request) -> Thread {
    let mut thread = Thread::new();
    thread.messages = request.messages.clone();
    thread
}

/// What a request says, under the names of options.
fn said_by(request: &Request) -> Metadata {
    let mut said = request.options.clone();
    let mut say = |name: &str, value: Value| {
        if !value.is_null() {
            said.insert(name.to_owned(), value);
        }
    };
    say("model", json!(request.model));
    say("temperature", json!(request.temperature));
    say("max_tokens", json!(request.max_tokens));
    say("tool_choice", json!(request.tool_choice));
    say("response_format", json!(request.response_format));
    say("prompt_cache", json!(request.prompt_cache));
    say("structured_finalize", if request.structured_finalize { json!(true) } else { Value::Null });
    said
}

fn first_request(
    settings: &mut Settings,
    model: Option<ModelRef>,
    tools: &[Tool],
    messages: Messages,
    metadata: Option<Metadata>,
    extent: Extent,
) -> Request {
    let mut cache = settings.prompt_cache.take();
    if let Some(cache) = &mut cache {
        cache.key = cache.key.take().or_else(|| settings.session_id.clone());
    }
    let response_format = settings.response_format.take();
    Request {
        model,
        messages,
        tools: tools.iter().map(|tool| Arc::clone(tool.spec())).collect(),
        tool_choice: settings.tool_choice.take(),
        temperature: settings.temperature,
        max_tokens: settings.max_tokens,
        stream: true,
        // A chat finalizes by itself, and without a form there is nothing to finalize.
        structured_finalize: settings.structured_finalize
            && response_format.is_some()
            && extent != Extent::Chat,
        response_format,
        options: std::mem::take(&mut settings.rest),
        prompt_cache: cache,
        metadata: metadata.unwrap_or_default(),
    }
}

/// The request of the conversation, and that of the finalizing call if there is to be one.
fn split_passes(
    request: Request,
    settings: &Settings,
    adapter: &dyn mynah_step::Adapter,
    extent: Extent,
) -> (Request, Option<Request>) {
    let formed = request.response_format.is_some();
    let wanted =
        settings.structured_finalize || (formed && adapter.needs_structured_finalize(&request));
    if extent != Extent::Chat || !formed || !wanted {
        return (request, None);
    }
    let last = Request {
        tools: Vec::new(),
        tool_choice: None,
        messages: Messages::new(),
        ..request.clone()
    };
    (Request { response_format: None, ..request }, Some(last))
}

/// The bytes of the schemas that stand in every prompt. Only a budget asks for them.
fn schema_bytes(budget: Option<&Budget>, tools: &[Tool]) -> u64 {
    let size = |tool: &Tool| tool.spec().schema.to_string().len() as u64;
    if budget.is_some() { tools.iter().map(size).sum() } else { 0 }
}

/// Refuses what the model is known not to be able to do. What is not known is not refused.
fn check_capabilities(request: &Request) -> Result<()> {
    let Some(model) = request.model.as_ref().filter(|model| !model.capabilities.is_empty()) else {
        return Ok(());
    };
    let lacks = |pointer: &[&str]| {
        let mut value = model.capabilities.get(pointer[0]);
        for step in &pointer[1..] {
            value = value.and_then(|value| value.get(step));
        }
        value == Some(&Value::Bool(false))
    };
    let has_image = || {
        let parts = request.messages.iter().flat_map(|message| message.parts());
        parts.into_iter().any(|part| matches!(part, Part::Image { .. }))
    };
    let mut errors = Vec::new();
    if !request.tools.is_empty() && (lacks(&["tools", "enabled"]) || lacks(&["tools"])) {
        errors.push(FieldError::new("tools", "tools_disabled"));
    }
    if matches!(request.response_format, Some(ResponseFormat::JsonSchema { .. }))
        && lacks(&["json_native"])
    {
        errors.push(FieldError::new("response_format", "json_native_disabled"));
    }
    if lacks(&["vision"]) && has_image() {
        errors.push(FieldError::new("vision", "vision_disabled"));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Error::validation(ValidationReason::UnsupportedCapability, errors))
    }
}

fn overlaid(base: &Metadata, over: Metadata) -> Metadata {
    let mut map = base.clone();
    map.extend(over);
    map
}
