//! What can go wrong: the kinds of errors, each with a closed set of reasons.

use std::fmt;

/// Declares a reason enum whose JSON and text form is the snake_case name of the variant.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)+ }) => {
        $crate::words! {
            $(#[$doc])*
            #[non_exhaustive]
            pub enum $name { $($(#[$vdoc])* $variant => $text,)+ }
        }

        impl $name {
            /// Every reason, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
            }
        }
    };
}

reasons! {
    /// What is wrong with an engine, or with what was asked of it.
    EngineReason {
        /// The engine has no adapter.
        MissingAdapter => "missing_adapter",
        /// No model was named by the call, the request or the engine.
        MissingModel => "missing_model",
        /// No API key was found for the provider.
        MissingKey => "missing_key",
        /// The model called a tool that the engine does not have.
        UnknownTool => "unknown_tool",
        /// A stored engine names something that is not registered, or an engine cannot be stored.
        InvalidEngine => "invalid_engine",
        /// The adapter cannot produce the response format that was asked for.
        UnsupportedResponseFormat => "unsupported_response_format",
        /// The call would spend, or spent, more than its budget allows.
        BudgetExceeded => "budget_exceeded",
        /// There is a budget in dollars, and the price of the model is unknown.
        UnknownPrice => "unknown_price",
        /// The chat, or the model, stopped before there was a whole answer.
        Halted => "halted",
    }
}

reasons! {
    /// Why a provider call failed.
    AdapterReason {
        /// The provider asks for a pause.
        RateLimited => "rate_limited",
        /// The key was refused.
        AuthenticationFailed => "authentication_failed",
        /// The key is valid and may not do this.
        PermissionDenied => "permission_denied",
        /// The provider refused the request as malformed.
        InvalidRequest => "invalid_request",
        /// The model or endpoint does not exist.
        NotFound => "not_found",
        /// The provider is down.
        ProviderUnavailable => "provider_unavailable",
        /// The provider is up and has no capacity.
        Overloaded => "overloaded",
        /// The prompt does not fit the model.
        ContextLengthExceeded => "context_length_exceeded",
        /// The provider refused the content.
        ContentFilter => "content_filter",
        /// Nothing arrived in time.
        Timeout => "timeout",
        /// The connection failed or broke off.
        NetworkError => "network_error",
        /// The answer could not be understood.
        MalformedResponse => "malformed_response",
        /// The adapter cannot express what was asked.
        UnsupportedFeature => "unsupported_feature",
        /// A scripted adapter has no script left.
        NoScriptedResponse => "no_scripted_response",
        /// Anything else.
        Unknown => "unknown",
    }
}

reasons! {
    /// Why a stream ended early.
    StreamReason {
        /// The adapter failed in mid-stream.
        AdapterError => "adapter_error",
        /// The caller cancelled.
        Cancelled => "cancelled",
        /// The process released the run; another may continue it.
        Released => "released",
        /// Nothing arrived in time.
        Timeout => "timeout",
        /// An event that has no place in a model's stream, or stands in the wrong one.
        MalformedEvent => "malformed_event",
        /// The answer came without the hash of what the provider sent.
        MissingRawResponseHash => "missing_raw_response_hash",
        /// Anything else.
        Unknown => "unknown",
    }
}

reasons! {
    /// Why a tool call failed before or beside its own outcome.
    ToolReason {
        /// The handler panicked. An error that it returned is [`Failed`](Self::Failed).
        #[doc(alias = "panic")]
        HandlerRaised => "handler_raised",
        /// The handler took longer than its timeout.
        Timeout => "timeout",
        /// The run was ended while the handler ran.
        Cancelled => "cancelled",
        /// The handler gave an outcome that it may not give.
        InvalidReturn => "invalid_return",
        /// The handler finished, but its result is too large to be recorded.
        ResultTooLarge => "result_too_large",
        /// The tool has no handler.
        NotFound => "not_found",
        /// The result could not be turned into text.
        EncodingFailed => "encoding_failed",
        /// The arguments are not JSON, or do not fit the tool's schema.
        InvalidArguments => "invalid_arguments",
        /// The tool, or the engine's policy, does not permit the call.
        Denied => "denied",
        /// The handler itself reported an error.
        Failed => "failed",
    }
}

reasons! {
    /// Why a session refused an operation.
    SessionReason {
        /// The session is in status `error`; `recover` makes a fresh one.
        SessionInErrorState => "session_in_error_state",
        /// The operation is not legal in this status.
        InvalidStatus => "invalid_status",
        /// No pending tool call has this id.
        UnknownToolCallId => "unknown_tool_call_id",
        /// A tool changed since the run asked for approval of its call.
        ApprovalStale => "approval_stale",
        /// There is no session to operate on.
        NoSession => "no_session",
        /// Another turn continued the session first.
        SessionMoved => "session_moved",
    }
}

reasons! {
    /// How a replayed run differs from its record.
    MismatchClass {
        /// The run continued after the end of its records.
        Exhausted => "exhausted",
        /// Something else happened.
        Kind => "kind",
        /// The same happened, differently.
        Payload => "payload",
        /// The model was called in another turn.
        TurnId => "turn_id",
    }
}

reasons! {
    /// Why a log refused, or what is wrong with it.
    LogReason {
        /// Records that are not what they were, or are missing.
        Corrupt => "corrupt",
        /// A record that a newer version of Mynah wrote: its version, its kind or one of its members is not known.
        TooNew => "too_new",
        /// A fact that is larger than a record may be.
        TooLarge => "too_large",
        /// Another writer appended first.
        HeadMismatch => "head_mismatch",
        /// The run has its seal; nothing can follow.
        Sealed => "sealed",
        /// The writer's lease was taken over.
        Fenced => "fenced",
        /// Another process holds the run.
        Leased => "leased",
        /// Another run has this id, and began with another input.
        RunExists => "run_exists",
        /// No run has this id.
        RunNotFound => "run_not_found",
        /// The run was removed from the log, and its id is not reused.
        Pruned => "pruned",
        /// A record's body was removed, and what was asked for needs it.
        Redacted => "redacted",
        /// The run was written by a custom loop: no engine can perform it.
        OwnLoop => "own_loop",
        /// A shortened id fits several runs.
        AmbiguousRun => "ambiguous_run",
        /// The log was opened for reading alone.
        ReadOnly => "read_only",
        /// The log was made by another version of Mynah.
        SchemaTooNew => "schema_too_new",
        /// The log's file, or the place where it lies, cannot hold a log: another attempt fails as well.
        Unusable => "unusable",
        /// The log cannot be reached or used at the moment.
        Unavailable => "unavailable",
    }
}

reasons! {
    /// Which value did not pass validation.
    ValidationReason {
        /// A request.
        InvalidRequest => "invalid_request",
        /// A message.
        InvalidMessage => "invalid_message",
        /// A tool.
        InvalidTool => "invalid_tool",
        /// A thread.
        InvalidThread => "invalid_thread",
        /// A session.
        InvalidSession => "invalid_session",
        /// An option of a call or a parameter of an engine.
        InvalidOptions => "invalid_options",
        /// The model cannot do what the request needs.
        UnsupportedCapability => "unsupported_capability",
        /// JSON that could not be decoded.
        InvalidJson => "invalid_json",
    }
}

/// The kind of an [`Error`](crate::Error), with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The engine, or what was asked of it.
    Engine(EngineReason),
    /// A provider call.
    Adapter(AdapterReason),
    /// A stream.
    Stream(StreamReason),
    /// A tool call.
    Tool(ToolReason),
    /// A session operation.
    Session(SessionReason),
    /// A value that does not follow the rules.
    Validation(ValidationReason),
    /// A log.
    Log(LogReason),
    /// A run whose replay differs from its record.
    Replay(MismatchClass),
}

impl ErrorKind {
    /// The name of the kind in JSON: `engine_error`, `adapter_error`, …
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Engine(_) => "engine_error",
            Self::Adapter(_) => "adapter_error",
            Self::Stream(_) => "stream_error",
            Self::Tool(_) => "tool_error",
            Self::Session(_) => "session_error",
            Self::Validation(_) => "validation_error",
            Self::Log(_) => "log_error",
            Self::Replay(_) => "replay_mismatch",
        }
    }

    /// The reason as text.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Engine(r) => r.as_str(),
            Self::Adapter(r) => r.as_str(),
            Self::Stream(r) => r.as_str(),
            Self::Tool(r) => r.as_str(),
            Self::Session(r) => r.as_str(),
            Self::Validation(r) => r.as_str(),
            Self::Log(r) => r.as_str(),
            Self::Replay(r) => r.as_str(),
        }
    }

    pub(crate) fn parse(type_name: &str, reason: &str) -> Option<Self> {
        Some(match type_name {
            "engine_error" => Self::Engine(EngineReason::parse(reason)?),
            "adapter_error" => Self::Adapter(AdapterReason::parse(reason)?),
            "stream_error" => Self::Stream(StreamReason::parse(reason)?),
            "tool_error" => Self::Tool(ToolReason::parse(reason)?),
            "session_error" => Self::Session(SessionReason::parse(reason)?),
            "validation_error" => Self::Validation(ValidationReason::parse(reason)?),
            "log_error" => Self::Log(LogReason::parse(reason)?),
            "replay_mismatch" => Self::Replay(MismatchClass::parse(reason)?),
            _ => return None,
        })
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}", self.type_name(), self.reason())
    }
}
