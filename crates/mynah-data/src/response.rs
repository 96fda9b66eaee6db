//! What a model answered.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    AdapterReason, EngineReason, Error, ErrorKind, Message, Metadata, Part, RunId, ToolCall,
    json::{self, Json},
};

crate::words! {
    /// Why a model stopped writing.
    #[non_exhaustive]
    pub enum FinishReason {
        /// It was done.
        Stop => "stop",
        /// It reached the token limit.
        Length => "length",
        /// It wants tools to be run.
        ToolCalls => "tool_calls",
        /// The provider, or the model itself, refused the content.
        ContentFilter => "content_filter",
        /// The call failed in mid-stream.
        Error => "error",
        /// Anything else; see the raw finish reason.
        Other => "other",
    }
}

/// Tokens and costs. What was not reported is none, never zero.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::Usage;
/// let mut usage = Usage::new(1_000, 20);
/// usage.cached_input_tokens = Some(900);
/// assert_eq!(usage.total(), Some(1_020));
/// assert_eq!(Usage::new(1_000, None).total(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// The whole prompt.
    pub input_tokens: Option<u64>,
    /// The whole output.
    pub output_tokens: Option<u64>,
    /// The part of the prompt that was read from a cache.
    pub cached_input_tokens: Option<u64>,
    /// The part of the prompt that was written to a cache.
    pub cache_write_tokens: Option<u64>,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: Option<u64>,
    /// All tokens: as the provider reports them, or as its adapter adds them up.
    pub total_tokens: Option<u64>,
    /// US dollars for the prompt.
    pub input_cost: Option<f64>,
    /// US dollars for the output.
    pub output_cost: Option<f64>,
    /// US dollars for both, or what the provider reports that the call cost. What it bills beside tokens, such as the searches that
    /// `tool_usage` counts, is in it only then.
    pub total_cost: Option<f64>,
    /// The provider's counters for its own tools.
    #[serde(with = "json::members")]
    pub tool_usage: Metadata,
    /// Counters that have no place above. Providers repeat them with every piece of an answer, so they are shared.
    #[serde(serialize_with = "json::members::serialize", deserialize_with = "extra")]
    pub extra: Arc<Metadata>,
}

fn extra<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Arc<Metadata>, D::Error> {
    let extra = json::option::deserialize(deserializer)?.unwrap_or_else(Metadata::new);
    Ok(if extra.is_empty() { Usage::nothing() } else { Arc::new(extra) })
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            input_tokens: None,
            output_tokens: None,
            cached_input_tokens: None,
            cache_write_tokens: None,
            reasoning_tokens: None,
            total_tokens: None,
            input_cost: None,
            output_cost: None,
            total_cost: None,
            tool_usage: Metadata::new(),
            extra: Self::nothing(),
        }
    }
}

impl Usage {
    /// The tokens of a prompt and of its answer. The other counters are fields.
    pub fn new(
        input_tokens: impl Into<Option<u64>>,
        output_tokens: impl Into<Option<u64>>,
    ) -> Self {
        let (input_tokens, output_tokens) = (input_tokens.into(), output_tokens.into());
        Self { input_tokens, output_tokens, ..Self::default() }
    }

    /// No further counters, which most answers have: one for all.
    fn nothing() -> Arc<Metadata> {
        static NOTHING: LazyLock<Arc<Metadata>> = LazyLock::new(Arc::default);
        Arc::clone(&NOTHING)
    }

    /// From a map of counters; members that are not known go into `extra`.
    ///
    /// # Errors
    /// A known counter that is not a number is an error.
    pub fn from_json(map: Metadata) -> Result<Self, Error> {
        let mut known = Metadata::new();
        let mut extra = Metadata::new();
        for (key, value) in map {
            let target = if Self::FIELDS.contains(&key.as_str()) { &mut known } else { &mut extra };
            target.insert(key, value);
        }
        let mut usage: Self = serde_json::from_value(Value::Object(known))?;
        if !extra.is_empty() {
            Arc::make_mut(&mut usage.extra).extend(extra);
        }
        Ok(usage)
    }

    const FIELDS: [&'static str; 11] = [
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "total_tokens",
        "input_cost",
        "output_cost",
        "total_cost",
        "tool_usage",
        "extra",
    ];

    /// The reported total, or input and output together where both are known.
    pub fn total(&self) -> Option<u64> {
        self.total_tokens.or_else(|| Some(self.input_tokens?.saturating_add(self.output_tokens?)))
    }

    /// Adds another usage to this one, counter by counter. A counter is known in the sum if it is known in either.
    pub fn add(&mut self, other: &Self) {
        fn sum<T: Copy>(a: &mut Option<T>, b: Option<T>, add: impl FnOnce(T, T) -> T) {
            *a = match (*a, b) {
                (Some(a), Some(b)) => Some(add(a, b)),
                (a, b) => a.or(b),
            };
        }
        let tokens = |a: &mut Option<u64>, b| sum(a, b, u64::saturating_add);
        let cost = |a: &mut Option<f64>, b| sum(a, b, |a, b| a + b);
        self.total_tokens = self.total();
        tokens(&mut self.total_tokens, other.total());
        tokens(&mut self.input_tokens, other.input_tokens);
        tokens(&mut self.output_tokens, other.output_tokens);
        tokens(&mut self.cached_input_tokens, other.cached_input_tokens);
        tokens(&mut self.cache_write_tokens, other.cache_write_tokens);
        tokens(&mut self.reasoning_tokens, other.reasoning_tokens);
        cost(&mut self.input_cost, other.input_cost);
        cost(&mut self.output_cost, other.output_cost);
        cost(&mut self.total_cost, other.total_cost);
    }
}

/// One answer of a model.
///
/// Text and tool calls are those of the message. In JSON they are repeated beside it as
/// `output_text` and `tool_calls`; in compact formats they are not.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Response {
    /// The provider's id of the answer.
    pub id: Option<String>,
    /// The id under which the call was made.
    pub request_id: Option<String>,
    /// The model that answered, as the provider names it.
    pub model: Option<String>,
    /// The answer.
    pub message: Arc<Message>,
    /// Why the model stopped; none if the provider did not say.
    pub finish_reason: Option<FinishReason>,
    /// The provider's own word for it, where it says more.
    pub raw_finish_reason: Option<String>,
    /// Tokens and costs.
    pub usage: Usage,
    /// The provider's body, where an adapter keeps it.
    pub raw: Option<Value>,
    /// Anything else; `error` after a failure in mid-stream.
    pub metadata: Metadata,
    /// The run as which the call was recorded, if it was one of its own and no part of a step or chat.
    pub run_id: Option<RunId>,
}

impl Response {
    /// An answer with only a message.
    pub fn new(message: impl Into<Arc<Message>>) -> Self {
        Self {
            id: None,
            request_id: None,
            model: None,
            message: message.into(),
            finish_reason: None,
            raw_finish_reason: None,
            usage: Usage::default(),
            raw: None,
            metadata: Metadata::new(),
            run_id: None,
        }
    }

    /// The text of the answer.
    pub fn text(&self) -> Cow<'_, str> {
        self.message.text()
    }

    /// The tool calls of the answer, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.message.tool_calls()
    }

    /// The error that broke the answer off.
    pub fn error(&self) -> Option<Error> {
        Error::deserialize(self.metadata.get("error")?).ok()
    }

    /// The text of an answer, or the error that broke it off.
    ///
    /// An answer that was filtered or cut off by the token limit is returned as received; see
    /// [`finish_reason`](Response::finish_reason). The text is not checked against a response
    /// format. [`into_json`](Response::into_json) checks both.
    ///
    /// # Errors
    /// The error of an answer that failed in mid-stream.
    pub fn into_text(self) -> Result<String, Error> {
        match self.error() {
            Some(error) => Err(error),
            None => Ok(self.text().into_owned()),
        }
    }

    /// The text of a whole answer, read as JSON. It is held against `T`, and not against the schema of a response format, which
    /// the provider is only asked to follow. A Markdown fence around the whole text is left out.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{AdapterReason, EngineReason, ErrorKind, FinishReason, Message, Response};
    /// let answer = |text: &str| Response::new(Message::assistant(text));
    /// assert_eq!(answer("[1, 2]").into_json::<Vec<u8>>()?, [1, 2]);
    /// assert_eq!(answer("```json\n[1, 2]\n```").into_json::<Vec<u8>>()?, [1, 2]);
    ///
    /// let error = answer("[1, -2]").into_json::<Vec<u8>>().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    /// assert_eq!(error.metadata()["response"]["output_text"], "[1, -2]");
    ///
    /// let mut cut_off = answer("12");
    /// cut_off.finish_reason = Some(FinishReason::Length);
    /// let error = cut_off.into_json::<u32>().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::Halted));
    /// # Ok::<(), mynah_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of an answer that failed in mid-stream; `halted` where the token limit cut it off, or the model waits for tools;
    /// `content_filter` where it was filtered or refused; `malformed_response` where it is not JSON, or does not fit `T`. All but
    /// the first have the answer in their metadata, as `response`.
    pub fn into_json<T: DeserializeOwned>(self) -> Result<T, Error> {
        if let Some(error) = self.error() {
            return Err(error);
        }
        let halted = ErrorKind::Engine(EngineReason::Halted);
        let filtered = ErrorKind::Adapter(AdapterReason::ContentFilter);
        let malformed = ErrorKind::Adapter(AdapterReason::MalformedResponse);
        let refusal = self.message.parts().iter().find_map(|part| match part {
            Part::Refusal { text } => Some(text),
            _ => None,
        });
        let (kind, why) = match (refusal, self.finish_reason) {
            (Some(refusal), _) => (filtered, format!("the model refused: {refusal}")),
            (_, Some(FinishReason::ContentFilter)) => {
                (filtered, "the answer was filtered".to_owned())
            }
            (_, Some(FinishReason::Length)) => {
                (halted, "the answer was cut off at its token limit".to_owned())
            }
            (_, Some(FinishReason::ToolCalls)) => {
                (halted, "the model waits for tools, and has not answered yet".to_owned())
            }
            _ => match serde_json::from_str(unfenced(&self.text())) {
                Ok(value) => return Ok(value),
                Err(error) if error.is_data() => {
                    (malformed, format!("the answer does not fit its type: {error}"))
                }
                Err(error) => (malformed, format!("the answer is not JSON: {error}")),
            },
        };
        let error = Error::new(kind);
        let message = format!("{error}: {why}");
        Err(error.with_message(message).with("response", json!(self)))
    }
}

/// The text inside a Markdown fence around the whole of it, as models without structured output write it.
#[doc(hidden)]
pub fn unfenced(text: &str) -> &str {
    let inside = text.trim().strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    inside.map_or(text, |text| text.strip_prefix("json").unwrap_or(text))
}

impl Response {
    /// All remaining members except the run, in the order of deterministic CBOR.
    fn serialize_compact<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Response", 9)?;
        fields.serialize_field("id", &self.id)?;
        if let Some(raw) = self.raw.as_ref().filter(|raw| !raw.is_null()) {
            fields.serialize_field("raw", &Json(raw))?;
        }
        fields.serialize_field("model", &self.model)?;
        fields.serialize_field("usage", &self.usage)?;
        fields.serialize_field("message", &self.message)?;
        if !self.metadata.is_empty() {
            fields.serialize_field("metadata", &Json(&self.metadata))?;
        }
        fields.serialize_field("request_id", &self.request_id)?;
        fields.serialize_field("finish_reason", &self.finish_reason)?;
        fields.serialize_field("raw_finish_reason", &self.raw_finish_reason)?;
        fields.end()
    }
}

impl Serialize for Response {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        if !serializer.is_human_readable() {
            return self.serialize_compact(serializer);
        }
        let len = 11 + usize::from(self.run_id.is_some());
        let mut fields = serializer.serialize_struct("Response", len)?;
        fields.serialize_field("id", &self.id)?;
        fields.serialize_field("request_id", &self.request_id)?;
        fields.serialize_field("model", &self.model)?;
        fields.serialize_field("message", &self.message)?;
        fields.serialize_field("output_text", &self.text())?;
        fields.serialize_field("tool_calls", &self.tool_calls().collect::<Vec<_>>())?;
        fields.serialize_field("finish_reason", &self.finish_reason)?;
        fields.serialize_field("raw_finish_reason", &self.raw_finish_reason)?;
        fields.serialize_field("usage", &self.usage)?;
        fields.serialize_field("raw", &self.raw)?;
        fields.serialize_field("metadata", &self.metadata)?;
        if let Some(run_id) = &self.run_id {
            fields.serialize_field("run_id", run_id)?;
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Response {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(expecting = "a response")]
        struct Wire {
            #[serde(default)]
            id: Option<String>,
            #[serde(default)]
            request_id: Option<String>,
            #[serde(default)]
            model: Option<String>,
            message: Arc<Message>,
            #[serde(default, rename = "output_text")]
            _output_text: String,
            #[serde(default, rename = "tool_calls")]
            _tool_calls: Vec<ToolCall>,
            #[serde(default)]
            finish_reason: Option<FinishReason>,
            #[serde(default)]
            raw_finish_reason: Option<String>,
            #[serde(default)]
            usage: Usage,
            #[serde(default, deserialize_with = "json::option::deserialize")]
            raw: Option<Value>,
            #[serde(default, deserialize_with = "json::deserialize")]
            metadata: Metadata,
            #[serde(default)]
            run_id: Option<RunId>,
        }
        let wire = Wire::deserialize(deserializer)?;
        Ok(Self {
            id: wire.id,
            request_id: wire.request_id,
            model: wire.model,
            message: wire.message,
            finish_reason: wire.finish_reason,
            raw_finish_reason: wire.raw_finish_reason,
            usage: wire.usage,
            raw: wire.raw,
            metadata: wire.metadata,
            run_id: wire.run_id,
        })
    }
}
