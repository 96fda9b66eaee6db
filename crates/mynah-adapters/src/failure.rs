//! What providers say when a call fails, and which of our reasons that is.
//!
//! One table for all of them: they agree on status codes and differ in where the words stand.

use mynah_data::{AdapterReason, Error, ErrorKind};
use serde_json::Value;

use crate::loose::tells;

/// The error of a response with a status that is not success. `header` looks a header up by its lowercase name.
///
/// Its message is the provider's own. Its metadata has `status` and, if known, `request_id`,
/// `retry_after_ms`, `should_retry`, the provider's `code` and `type`, and the beginning of the
/// model's output if that caused the failure (`failed_generation`). A date in `retry-after` is read with the feature `http`.
///
/// ```
/// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*}; }
/// use std::time::Duration;
/// use mynah::{AdapterReason, ErrorKind};
/// use mynah::adapters::failure;
///
/// let header = |name: &str| (name == "retry-after").then_some("2");
/// let error = failure::of_response(429, header, br#"{"error": {"message": "slow down", "type": "requests"}}"#);
/// assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
/// assert_eq!((&*error.message(), error.retry_after()), ("slow down", Some(Duration::from_secs(2))));
/// ```
pub fn of_response<'h>(
    status: u16,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
) -> Error {
    let text = String::from_utf8_lossy(body);
    let mut said = json_of(&text).map(|body| FailureReport::read(&body)).unwrap_or_default();
    // Amazon says in a header what kind of error it is, and where that is described.
    let kind = header("x-amzn-errortype").and_then(|kind| kind.split(':').next());
    said.kind = said.kind.or(kind.map(str::to_owned));
    let message = said
        .message
        .clone()
        .or_else(|| plain(&text))
        .unwrap_or_else(|| format!("HTTP status {status}"));
    // Redirects are not followed: only a person decides where a key goes.
    let message = match header("location").filter(|_| (300..400).contains(&status)) {
        Some(elsewhere) => format!("{message}: the server sends to {elsewhere}"),
        None => message,
    };
    let mut error = said.error(Some(status), message).with("status", status);
    if let Some(id) = request_id(&header).map(str::to_owned).or(said.request_id) {
        error = error.with("request_id", id);
    }
    if let Some(should_retry) = header("x-should-retry").and_then(|word| word.parse::<bool>().ok())
    {
        error = error.with("should_retry", should_retry);
    }
    match retry_after_ms(&header) {
        Some(ms) => error.with("retry_after_ms", ms),
        None => error,
    }
}

/// The error that a provider reports in mid-answer: the JSON of the frame, or its `error` member.
///
/// Where its words are not known, the provider failed: it had taken the request.
pub fn in_stream(frame: &Value) -> Error {
    let said = FailureReport::read(frame);
    // Gateways pass the status of the provider behind them as a code.
    let status = said
        .code
        .as_deref()
        .and_then(|code| code.parse().ok())
        .filter(|code| (400..600).contains(code));
    let message = said.message.clone().unwrap_or_else(|| frame.to_string());
    let error = said.error(status, message);
    match said.request_id {
        Some(id) => error.with("request_id", id),
        None => error,
    }
}

/// The error of an answer that is not what the format says.
pub fn malformed(why: impl std::fmt::Display) -> Error {
    Error::adapter(AdapterReason::MalformedResponse)
        .with_message(format!("adapter error: malformed_response: {why}"))
}

/// The error of an answer that ended without the provider's end mark.
pub fn broke_off() -> Error {
    Error::adapter(AdapterReason::NetworkError)
        .with_message("adapter error: network_error: the answer broke off before its end")
}

/// The provider's id of a request, from the headers of its response.
pub fn request_id<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<&'h str> {
    const NAMES: [&str; 6] = [
        "x-request-id",
        "request-id",
        "x-amzn-requestid",
        "apim-request-id",
        "mistral-correlation-id",
        "x-goog-request-id",
    ];
    NAMES.iter().find_map(|name| header(name).filter(|id| !id.is_empty()))
}

pub(crate) fn is_malformed(error: &Error) -> bool {
    error.kind() == ErrorKind::Adapter(AdapterReason::MalformedResponse)
}

#[cfg(feature = "http")]
pub(crate) fn is_of_network(error: &Error) -> bool {
    error.kind() == ErrorKind::Adapter(AdapterReason::NetworkError)
}

/// Whether the error of a response has no more information than its status, or that nothing has
/// this address.
#[cfg(feature = "http")]
pub(crate) fn is_wordless(error: &Error) -> bool {
    const NOTHING_THERE: [&str; 4] =
        ["404 not found", "404 page not found", "file not found", "not found"];
    let said = error.message().to_ascii_lowercase();
    said.starts_with("http status ") || NOTHING_THERE.contains(&said.as_str())
}

/// The JSON of an error's body. Where a stream was asked for, it may come as the first event of one.
fn json_of(body: &str) -> Option<Value> {
    let events = || body.lines().filter_map(|line| line.strip_prefix("data:"));
    std::iter::once(body).chain(events()).find_map(|json| serde_json::from_str(json).ok())
}

/// How long the provider asks to wait: milliseconds, seconds, or with the feature `http` a date.
fn retry_after_ms<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<u64> {
    let ms = header("retry-after-ms").and_then(|ms| ms.trim().parse::<f64>().ok());
    if let Some(ms) = ms.filter(|ms| *ms >= 0.0) {
        return Some(ms as u64);
    }
    let ms = header("retry-after").and_then(millis);
    #[cfg(feature = "http")]
    let ms = ms.or_else(|| until_date(&header));
    ms
}

/// How long it is until the date of a response, in milliseconds, by the response's own clock if it has one.
#[cfg(feature = "http")]
fn until_date<'h>(header: &impl Fn(&str) -> Option<&'h str>) -> Option<u64> {
    let date = |name| httpdate::parse_http_date(header(name)?).ok();
    let until = date("retry-after")?;
    let now = date("date").unwrap_or_else(|| mynah_step::World::now(&mynah_step::SystemWorld));
    Some(until.duration_since(now).map_or(0, |wait| wait.as_millis() as u64))
}

/// Seconds, written as a number, in milliseconds.
fn millis(seconds: &str) -> Option<u64> {
    let seconds = seconds.trim().parse::<f64>().ok().filter(|seconds| *seconds >= 0.0)?;
    Some((seconds * 1000.0) as u64)
}

/// `Please try again in 1m2.5s`: OpenAI and Groq report it in words, and in mid-answer only there.
fn pause_in_words(message: &str) -> Option<u64> {
    let (_, pause) = message.split_once("try again in ")?;
    let mut rest = pause.split_whitespace().next()?.trim_end_matches(['.', ',']);
    let mut total = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| c.is_ascii_alphabetic())?);
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let ms = match &after[..end] {
            "ms" => 1.0,
            "s" => 1_000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok().filter(|number| *number >= 0.0)? * ms;
        rest = &after[end..];
    }
    Some(total as u64)
}

/// Text that is no JSON, if a person may want to read it.
fn plain(text: &str) -> Option<String> {
    let text = text.trim();
    let is_readable = !text.is_empty() && text.len() <= 500 && !text.starts_with(['<', '{', '[']);
    is_readable.then(|| text.to_owned())
}

/// The most bytes that an error has of what the model wrote.
const MAX_GENERATION: usize = 4_096;

/// A provider's report of a failure.
#[derive(Default)]
struct FailureReport {
    message: Option<String>,
    code: Option<String>,
    kind: Option<String>,
    request_id: Option<String>,
    retry_after_ms: Option<u64>,
    /// What the model wrote that is no call, or no JSON.
    failed_generation: Option<String>,
    /// The member of the request that it is about.
    param: Option<String>,
    /// What was asked did not pass a check of its content.
    flagged: bool,
}

impl FailureReport {
    /// From `{"error": {…}}`, `{"error": "text", "code"}`, `{"message", "code", "type"}`, `{"detail"}`, text alone, and a list
    /// with one of these.
    fn read(body: &Value) -> Self {
        let body = first(body);
        let error = ["error", "errors"].iter().find_map(|name| body.get(*name));
        let error = first(error.filter(|error| !error.is_null()).unwrap_or(body));
        let word = |names: &[&str]| {
            let places = [error, body].into_iter();
            places
                .flat_map(|place| names.iter().filter_map(|name| place.get(*name)))
                .find_map(scalar)
        };
        // `type` of an outer envelope only says that it is an error.
        let kind =
            ["type", "__type", "error_type"].iter().find_map(|name| error.get(*name)?.as_str());
        let kind = kind.filter(|kind| *kind != "error").and_then(|kind| kind.rsplit('#').next());
        let details = || error.get("details").and_then(Value::as_array).into_iter().flatten();
        let detail_of = |name: &str| details().find_map(|detail| detail.get(name)?.as_str());
        let inner = error.get("innererror").and_then(|inner| inner.get("code")?.as_str());
        let delay = detail_of("retryDelay").and_then(|delay| delay.strip_suffix('s'));
        let about = |name: &str| error.get("metadata").and_then(|about| about.get(name));
        let message = message_of(error).or_else(|| message_of(body));
        let behind = about("raw").and_then(passed_on).map(|raw| {
            let provider = about("provider_name").and_then(scalar);
            let words = [message.clone(), provider, Some(raw)];
            words.into_iter().flatten().collect::<Vec<_>>().join(": ")
        });
        Self {
            flagged: ["reasons", "flagged_input"].iter().any(|name| about(name).is_some_and(tells)),
            kind: kind
                .or(detail_of("reason"))
                .or(inner)
                .map(str::to_owned)
                .or_else(|| word(&["error_type", "status"])),
            code: word(&["code", "status_code"]),
            param: error.get("param").and_then(scalar),
            request_id: body.get("request_id").and_then(scalar),
            failed_generation: error.get("failed_generation").and_then(Value::as_str).map(|text| {
                let end = text.floor_char_boundary(MAX_GENERATION);
                text[..end].to_owned()
            }),
            retry_after_ms: delay
                .and_then(millis)
                .or_else(|| pause_in_words(message.as_deref().unwrap_or_default())),
            message: behind.or(message),
        }
    }

    fn error(&self, status: Option<u16>, message: String) -> Error {
        let mut error = Error::adapter(self.reason(status)).with_message(message);
        for (name, word) in [
            ("code", &self.code),
            ("type", &self.kind),
            ("failed_generation", &self.failed_generation),
        ] {
            if let Some(word) = word {
                error = error.with(name, word.as_str());
            }
        }
        match self.retry_after_ms {
            Some(ms) => error.with("retry_after_ms", ms),
            None => error,
        }
    }

    /// Whether the failure is about the length of the prompt: only that shrinks with a shorter
    /// conversation.
    fn is_about_the_prompt(&self) -> bool {
        const READ: [&str; 6] = ["arguments", "content", "input", "instructions", "output", "text"];
        let param = self.param.as_deref().unwrap_or("input");
        let member = param.rsplit('.').next().unwrap_or(param);
        READ.contains(&member.split('[').next().unwrap_or(member))
    }

    /// The provider's words first, for a 400 can mean anything; then the status.
    fn reason(&self, status: Option<u16>) -> AdapterReason {
        if self.flagged {
            return AdapterReason::ContentFilter;
        }
        // Failures that a retry cannot change, at any status. llama.cpp reports missing start
        // options and unsupported features this way. Groq and OpenAI report a request above the
        // tokens per minute as a rate limit.
        const NEVER: [&str; 4] = [
            "requires --jinja",
            "Cannot use both json_schema and grammar",
            "Cannot use custom grammar constraints with tools",
            "response_format type must be one of",
        ];
        let message = self.message.as_deref().unwrap_or_default();
        if NEVER.iter().any(|words| message.contains(words)) {
            return AdapterReason::InvalidRequest;
        }
        if message.starts_with("Request too large for") {
            return AdapterReason::ContextLengthExceeded;
        }
        let words = [&self.code, &self.kind].into_iter().flatten();
        let words = words.map(|word| word.to_ascii_lowercase());
        let mut named = words.filter_map(|word| match word.as_str() {
            "string_above_max_length" if !self.is_about_the_prompt() => None,
            word => by_word(word),
        });
        let named = named.next();
        let told = by_message(message).filter(|told| match status {
            None | Some(400 | 403 | 413 | 422 | 503) => true,
            // A prompt may be too long for a server that only then says that it failed.
            Some(500..) => *told == AdapterReason::ContextLengthExceeded,
            _ => false,
        });
        let by_status = status.map(by_status);
        // A generic error word must not hide a status that is more specific.
        let reason = match named {
            Some(AdapterReason::InvalidRequest | AdapterReason::ProviderUnavailable) => {
                told.or(by_status).or(named)
            }
            Some(AdapterReason::PermissionDenied) => told.or(named),
            _ => named.or(told).or(by_status),
        };
        // Without a status the request was taken: it failed for the provider's reasons.
        reason.unwrap_or(AdapterReason::ProviderUnavailable)
    }
}

/// The only element of a list, or what is none.
fn first(value: &Value) -> &Value {
    value.as_array().and_then(|list| list.first()).unwrap_or(value)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The message for people. If it is not only text, all of it.
fn message_of(error: &Value) -> Option<String> {
    const NAMES: [&str; 6] =
        ["message", "Message", "msg", "detail", "error_message", "description"];
    if let Value::String(text) = error {
        return Some(text.clone()).filter(|text| !text.is_empty());
    }
    let said = NAMES.iter().find_map(|name| error.get(*name).filter(|said| tells(said)))?;
    Some(scalar(said).unwrap_or_else(|| said.to_string()))
}

/// What a gateway passes on of what the provider behind it said: JSON, as such or as text, or words.
fn passed_on(raw: &Value) -> Option<String> {
    let said = |value: &Value| {
        let error = first(value).get("error").unwrap_or(first(value));
        message_of(error).or_else(|| message_of(first(value)))
    };
    match raw {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(value) => said(&value),
            Err(_) => plain(text),
        },
        value => said(value),
    }
}

fn by_word(word: &str) -> Option<AdapterReason> {
    use AdapterReason::*;
    Some(match word {
        "context_length_exceeded"
        | "context_window_exceeded"
        | "exceed_context_size_error"
        | "model_context_window_exceeded"
        | "string_above_max_length"
        | "tokens_limit_reached" => ContextLengthExceeded,
        "content_filter"
        | "content_policy_violation"
        | "image_content_policy_violation"
        | "moderation_blocked"
        | "cyber_policy"
        | "responsibleaipolicyviolation" => ContentFilter,
        "throttlingexception" | "servicequotaexceededexception" | "modelnotreadyexception" => {
            RateLimited
        }
        "unrecognizedclientexception"
        | "invalidsignatureexception"
        | "expiredtokenexception"
        | "missingauthenticationtokenexception" => AuthenticationFailed,
        "accessdeniedexception" => PermissionDenied,
        "resourcenotfoundexception" => NotFound,
        "modeltimeoutexception" => Timeout,
        "internalserverexception"
        | "serviceunavailableexception"
        | "modelerrorexception"
        | "modelstreamerrorexception" => ProviderUnavailable,
        "validationexception" => InvalidRequest,
        "invalid_api_key"
        | "authentication_error"
        | "authenticationerror"
        | "api_key_invalid"
        | "unauthenticated"
        | "unauthorized" => AuthenticationFailed,
        // An account without money has none after a pause either.
        "permission_error"
        | "permission_denied"
        | "billing_error"
        | "billing_not_active"
        | "billing_hard_limit_reached"
        | "insufficient_quota"
        | "forbidden" => PermissionDenied,
        "rate_limit_error"
        | "rate_limit_exceeded"
        | "rate_limited"
        | "ratelimiterror"
        | "resource_exhausted"
        | "too_many_requests" => RateLimited,
        "overloaded_error"
        | "overloaded"
        | "capacity_exceeded"
        | "server_overloaded"
        | "server_is_overloaded"
        | "slow_down" => Overloaded,
        "not_found_error" | "model_not_found" | "invalid_model" | "not_found" | "notfounderror" => {
            NotFound
        }
        "timeout_error" | "timeout" | "deadline_exceeded" | "vector_store_timeout" => Timeout,
        "api_error"
        | "server_error"
        | "internal"
        | "internal_error"
        | "internal_server_error"
        | "internalservererror"
        | "service_unavailable"
        | "unavailable" => ProviderUnavailable,
        "invalid_request_error"
        | "request_too_large"
        | "invalid_argument"
        | "bad_request"
        | "badrequesterror"
        | "failed_precondition" => InvalidRequest,
        word if word.contains("content_filter") => ContentFilter,
        word if word.starts_with("invalid_") || word.contains("image_") => InvalidRequest,
        _ => return None,
    })
}

/// What providers say in words alone.
fn by_message(message: &str) -> Option<AdapterReason> {
    const TOO_LONG: [&str; 12] = [
        "cannot truncate prompt with n_keep",
        "prompt is too long",
        "input is too long",
        "input tokens exceeds",
        "too large for model with",
        "exceeds the maximum number of tokens",
        "input token count",
        "maximum prompt length",
        "exceed context limit",
        "too many tokens",
        "maximum model length",
        "`inputs` tokens + `max_new_tokens` must be",
    ];
    const FILTERED: [&str; 4] = [
        "flagged as potentially violating",
        "blocked by content filtering policy",
        "content exists risk",
        "content violates usage guidelines",
    ];
    const BAD_KEY: [&str; 5] = [
        "incorrect api key",
        "invalid api key",
        "api key not valid",
        "api key is invalid",
        "make sure your api key is valid",
    ];
    let message = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let too_long = says(&["context window", "context length", "context size"])
        && says(&[
            "exceed",
            "greater than",
            "larger than",
            "limit",
            "longer than",
            "maximum",
            "which is not enough",
            "too l",
        ]);
    let is_word = |at: usize| !message[..at].ends_with(|c: char| c == '_' || c.is_alphanumeric());
    let of_model = message.match_indices("model").find(|(at, _)| is_word(*at));
    let of_model = of_model.map_or("", |(at, _)| &message[at..]);
    let no_model = ["not exist", "not found", "identifier is invalid"];
    if too_long || says(&TOO_LONG) {
        Some(AdapterReason::ContextLengthExceeded)
    } else if says(&FILTERED) {
        Some(AdapterReason::ContentFilter)
    } else if says(&["is not a valid model id"])
        || no_model.iter().any(|word| of_model.contains(word))
    {
        Some(AdapterReason::NotFound)
    } else if says(&["credit balance is too low", "reached your specified api usage limits"]) {
        Some(AdapterReason::PermissionDenied)
    } else if says(&["is overloaded", "currently overloaded", "experiencing high demand"]) {
        Some(AdapterReason::Overloaded)
    } else {
        says(&BAD_KEY).then_some(AdapterReason::AuthenticationFailed)
    }
}

fn by_status(status: u16) -> AdapterReason {
    use AdapterReason::*;
    match status {
        401 => AuthenticationFailed,
        402 | 403 => PermissionDenied,
        404 => NotFound,
        408 => Timeout,
        // What the server itself depends on failed.
        424 => ProviderUnavailable,
        429 => RateLimited,
        // Groq's own, for a tier without room.
        498 => Overloaded,
        501 => UnsupportedFeature,
        529 => Overloaded,
        500..=599 => ProviderUnavailable,
        400..=499 => InvalidRequest,
        _ => Unknown,
    }
}
