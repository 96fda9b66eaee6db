//! From an engine and what a call asks of it to a run: everything that can be refused is refused here.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use mynah_data::{
    Approval, EngineReason, Error, FieldError, Message, Messages, Metadata, Part as ContentPart,
    Request, ResponseFormat, Result, Role, RunId, Thread, ToolCall, ToolMode, ToolSpec,
    ValidationReason, validate,
};
use mynah_log::{About, BEHAVIOUR, Extent, SessionLink, backend};
use mynah_step::{
    Adapter, HandlerExecutor, JsonEncoder, ModelCall, Recorder, Tool, ToolContext, ToolLimits,
    check_price, price_of, schema_error,
};
use serde_json::Value;

use crate::{
    context_policy::Token,
    engine::{Engine, overlay_tools},
    mailbox::Mailbox,
    options::Options,
    replay::Rerun,
    run::{Driver, Policy, RunStart, Setup},
    stream::Filter,
    values::Values,
    worker::queue_of,
};

/// The time limit of a tool call if not set.
const TOOL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a recorded chat waits in its process for a time, unless the caller says otherwise: longer than providers ask for.
pub(crate) const PARK_AFTER: Duration = Duration::from_secs(120);

/// The message before the finalizing call if not set.
const NUDGE: &str = "Now provide your final structured response.";

/// What a call starts from.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Thread(Thread),
    Request(Box<Request>),
}

/// Where a new run comes from: nowhere, or the turn before in its session.
#[derive(Default)]
pub(crate) struct Origin {
    /// The conversation that another run's records hold; the input is the new messages.
    pub(crate) before: Messages,
    /// The session that the run is a turn of.
    pub(crate) session: Option<SessionLink>,
    /// The id of a call that has one already.
    pub(crate) request_id: Option<String>,
    /// When the turn before was at its last record.
    pub(crate) since: Option<i64>,
    /// The id of the run; a fresh one if not set.
    pub(crate) run_id: Option<RunId>,
}

/// Refuses an id of a new run that cannot be read or typed, or that names another run on the command line.
pub(crate) fn check_run_id(run: &str) -> Result<()> {
    if run == "last" {
        let why =
            "validation failed: run_id: last is the newest run on the command line; use another id";
        return Err(Error::invalid_option("run_id", "reserved").with_message(why));
    }
    let control = run.chars().find(|c| c.is_control());
    let (code, why) = match control {
        Some(c) => {
            ("control_character", format!("has the control character U+{:04X}", u32::from(c)))
        }
        None if !run.is_empty() && run.trim().is_empty() => ("blank", "is blank".to_owned()),
        None => return Ok(()),
    };
    let message =
        format!("validation failed: run_id: {run:?} {why}; use an id that can be read and typed");
    Err(Error::invalid_option("run_id", code).with_message(message))
}

/// A run that may begin, and what its caller wants to see of it.
pub(crate) fn prepare(
    engine: &Engine,
    input: Input,
    mut options: Options,
    extent: Extent,
    origin: Origin,
) -> Result<Driver> {
    let world = &engine.0.world;
    origin.run_id.as_deref().map_or(Ok(()), check_run_id)?;
    if options.queue.as_ref().is_some_and(|queue| queue.limit == 0) {
        let why = "Queue::concurrency has a limit of 0, so no worker could claim the run";
        return Err(Error::invalid_option("queue", "must_be_positive").because(&[why.to_owned()]));
    }
    let mut mailbox = None;
    let recorder = match options.log.take() {
        Some(log) => {
            let run_id = origin.run_id.unwrap_or_else(|| world.new_run_id());
            // Workers claim the runs of the agents that they have, and no others.
            if let (Some(queue), Some(agent)) = (&mut options.queue, &options.values.agent) {
                queue.name = queue_of(&queue.name, agent);
            }
            // A run that workers may continue gets messages, whichever process performs it.
            if options.queue.is_some() {
                let cancel = options.own_cancel();
                mailbox = Some(Mailbox::new(Arc::clone(&log), run_id.clone(), cancel).reader());
            }
            let recorder = Recorder::new(log, Arc::clone(world), run_id);
            let recorder = recorder
                .with_durability(options.durability)
                .with_emit_timeout(options.log_timeout(&engine.0.options))
                .with_queue(options.queue.take())
                .not_before(origin.since.unwrap_or(i64::MIN))
                .with_new_lease();
            Some(recorder.metered(engine.0.metrics.clone()))
        }
        None => None,
    };
    let (thread, given) = input.parts(engine, &options, &origin.before);
    let Origin { before, session, request_id, .. } = origin;
    let cancel = options.cancel_handle.take();
    let part = CallPlan {
        engine,
        conversation: joined(&before, &thread),
        given,
        options,
        extent,
        past: CallOrigin::New {
            session: session.as_ref(),
            request_id,
            is_kept: recorder.is_some(),
        },
    };
    let Part { setup, about } = part.prepare()?;
    let beginning = RunStart { before, thread, extent, about };
    Ok(Driver::new(setup, beginning, cancel.as_ref(), (recorder, mailbox)))
}

/// The conversation and the description of the call that the first record of its run would have.
pub(crate) fn first_record(
    engine: &Engine,
    input: Input,
    options: Options,
    extent: Extent,
) -> Result<(Thread, About)> {
    let (thread, given) = input.parts(engine, &options, &Messages::new());
    let past = CallOrigin::New { session: None, request_id: None, is_kept: true };
    let asked = CallPlan { engine, conversation: thread.clone(), given, options, extent, past };
    let about = asked.prepare()?.about.map(|about| *about).unwrap_or_default();
    Ok((thread, about))
}

impl Input {
    /// Returns the conversation, with the system prompt where it has none, and the request if there is one.
    fn parts(
        self,
        engine: &Engine,
        options: &Options,
        before: &Messages,
    ) -> (Thread, Option<Box<Request>>) {
        let (mut thread, given) = match self {
            Self::Thread(thread) => (thread, None),
            Self::Request(request) => {
                let mut thread = Thread::new();
                thread.messages = request.messages.clone();
                (thread, Some(request))
            }
        };
        let own = given.as_ref().and_then(|request| request.options.get("system")?.as_str());
        let said = options.values.system.as_deref().or(own);
        let prompt = said.or(engine.0.options.values.system.as_deref()).unwrap_or_default();
        let has_one = || thread.messages.iter().any(|message| message.role() == Role::System);
        if !prompt.is_empty() && before.is_empty() && !has_one() {
            let prompt = Arc::new(Message::system(prompt));
            thread.messages =
                [&prompt].into_iter().chain(thread.messages.iter()).cloned().collect();
        }
        (thread, given)
    }
}

/// A run, or what one engine does of it, that may be performed.
pub(crate) struct Part {
    pub(crate) setup: Setup,
    /// Its recorded configuration; in an unrecorded run only what tokens cost.
    pub(crate) about: Option<Box<About>>,
}

/// A request to an engine.
pub(crate) struct CallPlan<'a> {
    pub(crate) engine: &'a Engine,
    /// The conversation with which the run begins.
    pub(crate) conversation: Thread,
    /// The request, where the call is made with one.
    pub(crate) given: Option<Box<Request>>,
    pub(crate) options: Options,
    pub(crate) extent: Extent,
    pub(crate) past: CallOrigin<'a>,
}

/// Whether the request is live or has records.
pub(crate) enum CallOrigin<'a> {
    /// It is new.
    New { session: Option<&'a SessionLink>, request_id: Option<String>, is_kept: bool },
    /// It ran with this configuration, and is replayed.
    Again(&'a About),
    /// The same, and at the price that it had.
    ReplayAtPrice(&'a About),
}

impl CallOrigin<'_> {
    fn about(&self) -> Option<&About> {
        match self {
            Self::New { .. } => None,
            Self::Again(about) | Self::ReplayAtPrice(about) => Some(about),
        }
    }

    /// Whether there are, or will be.
    fn is_kept(&self) -> bool {
        !matches!(self, Self::New { is_kept: false, .. })
    }

    fn session(&self) -> Option<&SessionLink> {
        match self {
            Self::New { session, .. } => *session,
            Self::Again(about) | Self::ReplayAtPrice(about) => about.session.as_ref(),
        }
    }
}

impl CallPlan<'_> {
    /// Refuses what can be refused.
    pub(crate) fn prepare(mut self) -> Result<Part> {
        let parts = &self.engine.0;
        if let Some(misuse) = &parts.misuse {
            return Err(misuse.clone());
        }
        let described = self.described();
        let own = self.own_values();
        let mut options = self.options(own.clone(), &described)?;
        validate::thread(&self.conversation)?;
        if let CallOrigin::New { session: Some(SessionLink { id: Some(id), .. }), .. } = &self.past
        {
            backend::check_name("session", id)?;
        }
        let adapter = parts.adapter.clone().ok_or_else(missing_adapter)?;
        let mut tools = std::mem::take(&mut options.tools);
        if let Some(About { tools: recorded, .. }) = self.past.about() {
            // The order of the same tools is no difference: they keep the one that they had.
            let place = |tool: &Tool| recorded.iter().position(|spec| spec.name == tool.name());
            if tools.len() == recorded.len() && tools.iter().all(|tool| place(tool).is_some()) {
                tools.sort_by_cached_key(place);
            }
        }
        let request = self.request(&mut options.values, &tools);
        validate::request(&request)?;
        self.check_schemas(&tools)?;
        self.check_format(&request)?;
        check_capabilities(&request)?;
        let pricing = match &self.past {
            CallOrigin::ReplayAtPrice(about) => about.pricing,
            _ => price_of(&request, &parts.catalog),
        };
        check_price(options.values.budget.as_ref(), pricing.as_ref(), &request)?;
        self.check_handlers(&tools, &options)?;
        let (request, final_request) =
            split_passes(request, &options.values, adapter.as_ref(), self.extent);
        let request_id = match &self.past {
            CallOrigin::New { request_id, .. } => {
                request_id.clone().or_else(|| options.values.request_id.take())
            }
            CallOrigin::Again(about) | CallOrigin::ReplayAtPrice(about) => {
                Some(about.request_id.clone())
            }
        };
        let request_id = request_id.unwrap_or_else(|| parts.world.new_id());
        let recorded = |pricing| About {
            behaviour: BEHAVIOUR,
            request_id: request_id.clone(),
            adapter: adapter.name().to_owned(),
            model: request.model.as_ref().map(ToString::to_string),
            pricing,
            tools: tools.iter().map(|tool| Arc::clone(tool.spec())).collect(),
            params: parts.options.values.recorded(),
            options: self.recorded_options(&own, &options),
            finalizes: final_request.is_some(),
            described: described.iter().map(|tool| tool.name().to_owned()).collect(),
            parent: self.past.about().and_then(|about| about.parent.clone()),
            session: self.past.session().cloned(),
        };
        let about = match self.past.is_kept() {
            true => Some(recorded(pricing)),
            // What tokens cost is a fact also in a run that is not recorded.
            false => pricing.map(About::of_price),
        };
        let first = matches!(self.past, CallOrigin::New { .. }).then(|| request.clone());
        let requests = (request, final_request);
        let setup = self.setup(options, adapter, requests, tools, request_id);
        // A replayed run may have its answers in its records.
        if let Some(request) = first {
            setup.adapter.preflight(&request, setup.call())?;
        }
        Ok(Part { setup, about: about.map(Box::new) })
    }

    fn own_values(&mut self) -> Values {
        let mut own = self.given.as_deref().map(said_by).unwrap_or_default();
        let mut said = std::mem::take(&mut self.options.values);
        // The recorded options of a call include those of its request.
        if self.past.about().is_none() {
            said.shared.clear();
        }
        own.overlay(said);
        own
    }

    /// The options that hold: those of the call, and those of the engine that it does not set.
    fn options(&mut self, own: Values, described: &[Tool]) -> Result<Options> {
        let mut said = std::mem::take(&mut self.options);
        said.tools = overlay_tools(described, &said.tools);
        let mut options = self.engine.0.options.clone().overlay(Options { values: own, ..said });
        let values = &mut options.values;
        values.check()?;
        if let Some(session) = self.past.session() {
            values.session_id = values.session_id.take().or_else(|| session.id.clone());
            // An empty context counts as not set, so that the engine's holds.
            let context = Some(&session.context).filter(|context| !context.is_empty());
            values.context = values.context.take().or_else(|| context.cloned());
        }
        Ok(options)
    }

    /// What records hold of the call's own options, and of the code among those that hold.
    fn recorded_options(&self, own: &Values, options: &Options) -> Metadata {
        let mut recorded = own.recorded();
        recorded.extend(self.code(options));
        for (name, told) in &options.told {
            recorded.entry(name).or_insert_with(|| told.clone());
        }
        recorded
    }

    /// The tools of the request itself, with only their specifications.
    fn described(&self) -> Vec<Tool> {
        let tool = |spec: &Arc<ToolSpec>| Tool::from_spec((**spec).clone());
        match (&self.given, self.past.about()) {
            (Some(request), _) => request.tools.iter().map(tool).collect(),
            (None, Some(About { tools, described, .. })) => {
                tools.iter().filter(|spec| described.contains(&spec.name)).map(tool).collect()
            }
            (None, None) => Vec::new(),
        }
    }

    /// Refuses tools whose arguments could not be checked. A single answer runs none. A run that
    /// began with one continues, and its calls fail.
    fn check_schemas(&self, tools: &[Tool]) -> Result<()> {
        if self.extent == Extent::Generate || matches!(self.past, CallOrigin::ReplayAtPrice(_)) {
            return Ok(());
        }
        let (mut errors, mut why) = (Vec::new(), Vec::new());
        for (index, tool) in tools.iter().enumerate() {
            if let Some(error) = tool.schema_error() {
                let broken = FieldError::new("schema", "not_json_schema");
                errors.push(broken.under(["tools".into(), index.into()]));
                why.push(error.to_owned());
            }
            let asks = tool.spec().approval == Approval::Ask && !tool.spec().manual;
            if asks && tool.get_handler().is_none() && matches!(self.past, CallOrigin::New { .. }) {
                let missing = FieldError::new("approval", "no_handler");
                errors.push(missing.under(["tools".into(), index.into()]));
                why.push(format!(
                    "tool {:?} asks for approval and has no handler that could run an approved call; give it one, or make it manual",
                    tool.name()
                ));
            }
        }
        refuse(ValidationReason::InvalidRequest, errors, &why)
    }

    fn check_format(&self, request: &Request) -> Result<()> {
        if let Some(ResponseFormat::JsonSchema { name, schema, .. }) = &request.response_format
            && matches!(self.past, CallOrigin::New { .. })
            && let Some(why) = schema_error(schema)
        {
            let broken = FieldError::new("schema", "not_json_schema");
            let errors = vec![broken.under(["response_format".into()])];
            let why = format!("the schema of response_format {name:?} cannot be used: {why}");
            return refuse(ValidationReason::InvalidRequest, errors, &[why]);
        }
        Ok(())
    }

    /// Refuses tools that could never run: those without a handler that are not handed to the
    /// caller.
    fn check_handlers(&self, tools: &[Tool], options: &Options) -> Result<()> {
        let hands_over =
            self.extent == Extent::Generate || options.values.mode == Some(ToolMode::Manual);
        if options.tool_executor.is_some()
            || hands_over
            || !matches!(self.past, CallOrigin::New { .. })
        {
            return Ok(());
        }
        let lacks = |tool: &&Tool| tool.get_handler().is_none() && !tool.spec().manual;
        let Some(tool) = tools.iter().find(lacks) else { return Ok(()) };
        Err(Error::invalid_option("tools", "no_handler").with_message(format!(
            "validation failed: tools: tool {:?} has no handler; give it one, or make it manual()",
            tool.name()
        )))
    }

    fn request(&mut self, values: &mut Values, tools: &[Tool]) -> Request {
        let parts = &self.engine.0;
        let model = values.model.take().or_else(|| parts.model.clone());
        let mut cache = values.prompt_cache.take();
        if let Some(cache) = &mut cache {
            cache.key = cache.key.take().or_else(|| values.session_id.clone());
        }
        let mut request = Request::from(std::mem::take(&mut self.conversation));
        request.model = model.map(|model| parts.catalog.inform(model));
        request.tools = tools.iter().map(|tool| Arc::clone(tool.spec())).collect();
        request.tool_choice = values.tool_choice.take();
        request.temperature = values.temperature;
        request.max_tokens = values.max_tokens;
        request.stream = true;
        request.response_format = values.response_format.take();
        // A chat finalizes automatically, and without an output format there is nothing to finalize.
        request.structured_finalize = values.structured_finalize.unwrap_or(false)
            && request.response_format.is_some()
            && self.extent != Extent::Chat;
        request.options = std::mem::take(&mut values.provider);
        request.options.extend(std::mem::take(&mut values.shared));
        request.prompt_cache = cache;
        request.metadata = self.given.take().map(|request| request.metadata).unwrap_or_default();
        request
    }

    /// Everything that does not change while this engine has the run.
    fn setup(
        self,
        options: Options,
        adapter: Arc<dyn Adapter>,
        (mut request, final_request): (Request, Option<Request>),
        tools: Vec<Tool>,
        request_id: String,
    ) -> Setup {
        let is_kept = self.past.is_kept();
        let parent = self.past.about().and_then(|about| about.parent.as_ref());
        let root = parent.and_then(|parent| Some(parent.continues.as_ref()?.root.clone()));
        let (parts, values) = (&self.engine.0, options.values);
        request.messages = Messages::new();
        // Each call gets the id of its run.
        let mut call = ModelCall::new(&*request_id);
        call.session_id.clone_from(&values.session_id);
        call.adapter_opts.clone_from(&parts.adapter_opts);
        call.adapter_opts.extend(values.adapter_opts.unwrap_or_default());
        call.api_key = options.api_key;
        call.request_timeout = values.request_timeout.map(Duration::from_millis);
        call.stream_timeout = values.stream_timeout.map(Duration::from_millis);
        let mut tool_context = ToolContext::new(Arc::clone(&NO_CALL), Arc::clone(&parts.world))
            .side_effect_errors(values.side_effect_errors.unwrap_or_default());
        tool_context.context = values.context.map_or_else(|| Arc::clone(&parts.context), Arc::new);
        tool_context.session_id = values.session_id.map(Arc::from);
        tool_context.request_id = Arc::from(request_id);
        tool_context.engine = Some(Arc::clone(parts) as _);
        let tool_context = tool_context.continuing(root);
        let nudge = values.structured_finalize_nudge.unwrap_or_else(|| NUDGE.to_owned());
        Setup {
            policy: Policy {
                schema_size: match is_kept
                    || values.budget.is_some()
                    || values.context_policy.is_some()
                {
                    true => tools.iter().map(schema_size).sum(),
                    false => 0,
                },
                max_crashes: clamped(values.max_crashes.unwrap_or(MAX_CRASHES)),
                mode: values.mode.unwrap_or_default(),
                max_turns: clamped(values.max_turns.unwrap_or(MAX_TURNS)),
                budget: values.budget,
                halt_when: options.halt_when.map(|(_, condition)| condition),
                finalize: final_request.is_some().then_some(nudge),
                on_unknown_tool: values.on_unknown_tool.unwrap_or_default(),
                context: values.context_policy,
                token: Token::of(adapter.name()),
                budget_note: values.budget_note.unwrap_or(false),
                approval: options.approval,
                tools: tools.into(),
            },
            retry: Arc::new(values.retry.unwrap_or_else(|| adapter.default_retry())),
            adapter,
            asked_last: final_request.map(|last| {
                let mut call = call.clone();
                call.former_tools.clone_from(&request.tools);
                Arc::new((last, call))
            }),
            asked: Arc::new((request, call)),
            world: Arc::clone(&parts.world),
            metrics: parts.metrics.clone(),
            executor: options.tool_executor.unwrap_or_else(|| Arc::new(HandlerExecutor)),
            encoder: options.tool_result_encoder.unwrap_or_else(|| Arc::new(JsonEncoder)),
            on_tool_error: options
                .on_tool_error
                .or_else(|| values.on_tool_error.map(Into::into))
                .unwrap_or_default(),
            tool_context,
            tool_limits: ToolLimits::new(
                values.tool_timeout.map_or(TOOL_TIMEOUT, Duration::from_millis),
            ),
            max_concurrency: values
                .max_concurrency
                .map_or(8, |tools| usize::try_from(tools).unwrap_or(usize::MAX)),
            deadline: values.deadline.map(Duration::from_millis),
            filter: Filter {
                text_deltas: values.emit_text_deltas.unwrap_or(true),
                tool_deltas: values.emit_tool_deltas.unwrap_or(true),
                raw_chunks: values.include_raw_chunks.unwrap_or(false),
            },
            park_after: options.park_after.unwrap_or(PARK_AFTER),
            on_event: options.on_event,
            in_flight: options.in_flight,
            durable_events: values.durable_events.unwrap_or(false),
            rerun: Rerun::default(),
            require_raw_response_hash: values.require_raw_response_hash.unwrap_or(false),
        }
    }
}

/// Each tool gets its own call.
static NO_CALL: LazyLock<Arc<ToolCall>> = LazyLock::new(|| Arc::new(ToolCall::new("", "", "")));

pub(crate) fn joined(before: &Messages, thread: &Thread) -> Thread {
    let mut conversation = thread.clone();
    if !before.is_empty() {
        conversation.messages = before.clone();
        conversation.extend(thread.messages.iter().cloned());
    }
    conversation
}

fn missing_adapter() -> Error {
    Error::engine(EngineReason::MissingAdapter).with_message(
        "engine error: missing_adapter: the engine has no adapter; Engine::new takes one",
    )
}

/// The options that a request sets. A key belongs to a call and is never recorded.
fn said_by(request: &Request) -> Values {
    let mut options = request.options.clone();
    if let Some(Value::Object(opts)) = options.get_mut("adapter_opts") {
        opts.shift_remove("api_key");
    }
    let mut values = Values::from_json(options);
    values.overlay(Values {
        model: request.model.clone(),
        temperature: request.temperature,
        max_tokens: request.max_tokens,
        tool_choice: request.tool_choice.clone(),
        response_format: request.response_format.clone(),
        prompt_cache: request.prompt_cache.clone(),
        structured_finalize: request.structured_finalize.then_some(true),
        ..Values::default()
    });
    values
}

/// The model calls of a chat, by default.
pub(crate) const MAX_TURNS: u64 = 8;

/// The crashes without progress, by default. A lost model call is a turn, so there must be fewer.
const MAX_CRASHES: u64 = 5;

/// A count as a smaller type, at most its maximum.
fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Options that are about tools. A provider refuses them where there are none.
const OF_TOOLS: [&str; 3] = ["tools", "tool_choice", "parallel_tool_calls"];

/// The request of the conversation, and that of the finalizing call if there is one.
fn split_passes(
    mut request: Request,
    values: &Values,
    adapter: &dyn Adapter,
    extent: Extent,
) -> (Request, Option<Request>) {
    let formed = request.response_format.is_some();
    let wanted = values.structured_finalize.unwrap_or(false)
        || (formed && adapter.needs_structured_finalize(&request));
    if extent != Extent::Chat || !formed || !wanted {
        return (request, None);
    }
    let mut last = without_tools(&request);
    last.response_format = request.response_format.take();
    (request, Some(last))
}

/// The same request without messages, tools and the form of the answer.
pub(crate) fn without_tools(request: &Request) -> Request {
    let mut request = request.clone();
    request.options.retain(|name, _| !OF_TOOLS.contains(&name.as_str()));
    request.tools = Vec::new();
    request.tool_choice = None;
    request.messages = Messages::new();
    request.response_format = None;
    request
}

/// The characters of a tool's schema, which stands in every prompt.
fn schema_size(tool: &Tool) -> u64 {
    tool.spec().schema.to_string().len() as u64
}

/// Refuses features that the model is known to lack. Unknown ones are not refused.
fn check_capabilities(request: &Request) -> Result<()> {
    let Some(model) = request.model.as_ref().filter(|model| !model.capabilities.is_empty()) else {
        return Ok(());
    };
    let lacks = |name: &str| model.capabilities.get(name) == Some(&Value::Bool(false));
    let tools = model.capabilities.get("tools").and_then(|tools| tools.get("enabled"));
    let has_image = || {
        let parts = request.messages.iter().flat_map(|message| message.parts());
        parts.into_iter().any(|part| matches!(part, ContentPart::Image { .. }))
    };
    let mut errors = Vec::new();
    if !request.tools.is_empty() && (lacks("tools") || tools == Some(&Value::Bool(false))) {
        errors.push(FieldError::new("tools", "tools_disabled"));
    }
    if matches!(request.response_format, Some(ResponseFormat::JsonSchema { .. }))
        && lacks("json_native")
    {
        errors.push(FieldError::new("response_format", "json_native_disabled"));
    }
    if lacks("vision") && has_image() {
        errors.push(FieldError::new("vision", "vision_disabled"));
    }
    refuse(ValidationReason::UnsupportedCapability, errors, &[])
}

/// Refuses a call for these errors, if there are any.
fn refuse(reason: ValidationReason, errors: Vec<FieldError>, why: &[String]) -> Result<()> {
    match errors.is_empty() {
        true => Ok(()),
        false => Err(Error::validation(reason, errors).because(why)),
    }
}
