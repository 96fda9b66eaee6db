//! Errors as problem documents (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use mynah::{AdapterReason, Error, ErrorKind, LogReason, Metadata, SessionReason};
use serde::Serialize;

use crate::reply;

pub(crate) type Result<T = Response> = std::result::Result<T, Problem>;

/// Why a request was refused or failed.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Problem(Box<Members>);

#[derive(Clone, Debug, Serialize)]
struct Members {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "code_of")]
    status: StatusCode,
    code: String,
    detail: String,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
}

fn code_of<S: serde::Serializer>(
    status: &StatusCode,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// A problem of the server itself.
    pub(crate) fn new(status: StatusCode, reason: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Members {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status,
            code: format!("http_error/{reason}"),
            detail: detail.into(),
            metadata: Metadata::new(),
        }))
    }

    /// A parameter, header or body that does not fit.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// A request that this client or page may not make.
    pub(crate) fn forbidden(reason: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, reason, detail)
    }

    /// Something that does not exist.
    pub(crate) fn absent(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = status_of(&error);
        let name = error.to_value()["type"].as_str().unwrap_or("error").to_owned();
        let title = status.canonical_reason().unwrap_or("Error");
        let code = format!("{name}/{}", error.reason());
        let detail = of_api(&error.message());
        let metadata = error.metadata().clone();
        let kind = "about:blank";
        Self(Box::new(Members { kind, title, status, code, detail, metadata }))
    }
}

/// A message of the library in the words of this API: what is a function there is a member of the body here.
fn of_api(message: &str) -> String {
    const WORDS: &[(&str, &str)] = &[
        ("allow_changed_engine()", "\"allow_changed_agent\": true"),
        (
            "decide about each with Run::decide, or with Resume::approve, reject or tool_result",
            "approve or reject each, or give its result",
        ),
        (
            "decide with Run::decide, give results with Resume::tool_result, or choose a policy with Resume::on_uncertain",
            "give their results, reject them, or resume with \"on_uncertain\"",
        ),
        ("give it with Resume::answer", "give it as \"answer\""),
        ("add a Resume::message", "send a \"message\""),
        ("; use Engine::replay", "; name an agent"),
    ];
    WORDS.iter().fold(message.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Log(reason) => match reason {
            LogReason::RunNotFound => StatusCode::NOT_FOUND,
            LogReason::Pruned => StatusCode::GONE,
            LogReason::Unavailable | LogReason::Unusable => StatusCode::SERVICE_UNAVAILABLE,
            LogReason::ReadOnly => StatusCode::FORBIDDEN,
            LogReason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            LogReason::HeadMismatch
            | LogReason::Sealed
            | LogReason::Fenced
            | LogReason::Leased
            | LogReason::RunExists
            | LogReason::Redacted
            | LogReason::OwnLoop
            | LogReason::AmbiguousRun => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        },
        ErrorKind::Session(SessionReason::NoSession) => StatusCode::NOT_FOUND,
        ErrorKind::Session(_) => StatusCode::CONFLICT,
        ErrorKind::Validation(_) | ErrorKind::Replay(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Adapter(AdapterReason::RateLimited | AdapterReason::Overloaded) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        ErrorKind::Adapter(_) | ErrorKind::Stream(_) => StatusCode::BAD_GATEWAY,
        ErrorKind::Engine(_) => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = reply::json(self.0.status, &self);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.0.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
