//! Why a request failed.

use std::{error::Error as StdError, fmt, sync::Arc};

use http_body_util::BodyExt as _;
use mynah_data::{AdapterReason, Error, Metadata};
use serde::Deserialize;
use serde_json::json;

use super::Response;

/// Why a request failed: the problem document of the server, or the reason why there is none.
///
/// It is a type of its own because its codes are the server's. In a function that returns [`mynah::Result`](crate::Result), `?` turns it
/// into an [`Error`] of the same kind as on the server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientError {
    /// The status of the answer; none if there was no answer.
    pub status: Option<u16>,
    /// The server's code, as `log_error/run_not_found`; `unreachable`, `unexpected_answer` and others of the client.
    pub code: String,
    /// What failed, and what to do.
    pub detail: String,
    metadata: Box<Metadata>,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ClientError {
    pub(super) fn local(code: &str, detail: impl ToString) -> Self {
        let (code, detail) = (code.to_owned(), detail.to_string());
        Self { status: None, code, detail, metadata: Box::default(), cause: None }
    }

    /// The server was not reached, or the connection broke.
    pub(super) fn unreachable(server: &str, error: impl StdError + Send + Sync + 'static) -> Self {
        let mut detail = format!("{server}: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            detail = format!("{detail}: {error}");
            cause = error.source();
        }
        Self { cause: Some(Arc::new(error)), ..Self::local("unreachable", detail) }
    }

    /// What the server says in an answer that is none.
    pub(super) async fn refused(response: Response) -> Self {
        #[derive(Deserialize)]
        struct Problem {
            code: String,
            detail: String,
            #[serde(default)]
            metadata: Box<Metadata>,
        }
        let status = Some(response.status().as_u16());
        let body = response.into_body().collect().await;
        let bytes = body.map(|body| body.to_bytes()).unwrap_or_default();
        match serde_json::from_slice(&bytes) {
            Ok(Problem { code, detail, metadata }) => {
                Self { status, code, detail, metadata, cause: None }
            }
            Err(_) => {
                let text = String::from_utf8_lossy(&bytes);
                let start: String = text.chars().take(200).collect();
                Self { status, ..Self::local("unexpected_answer", start) }
            }
        }
    }

    /// Facts for programs, as [`Error::metadata`] has them.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self.status {
            Some(status) => [408, 425, 429, 500, 502, 503, 504].contains(&status),
            None => self.code == "unreachable",
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{} ({status}): {}", self.code, self.detail),
            None => write!(f, "{}: {}", self.code, self.detail),
        }
    }
}

impl StdError for ClientError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

/// The server's error, if its code is one of Mynah's; otherwise an adapter error.
impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        let (kind, reason) = error.code.split_once('/').unwrap_or_default();
        let known = json!({"type": kind, "reason": reason, "message": "", "metadata": {}});
        let known = Self::deserialize(known).map(|known| known.kind());
        let told = match known {
            Ok(kind) => Self::new(kind),
            Err(_) => Self::adapter(match error.status {
                None if error.is_temporary() => AdapterReason::NetworkError,
                Some(401) => AdapterReason::AuthenticationFailed,
                Some(404) => AdapterReason::NotFound,
                Some(429) => AdapterReason::RateLimited,
                Some(_) if error.is_temporary() => AdapterReason::ProviderUnavailable,
                Some(400..=499) => AdapterReason::InvalidRequest,
                _ => AdapterReason::Unknown,
            }),
        };
        let metadata = error.metadata.iter().map(|(name, value)| (name, value.clone()));
        let told = metadata.fold(told, |told, (name, value)| told.with(name, value));
        let told = error.status.into_iter().fold(told, |told, status| told.with("status", status));
        told.with_message(error.to_string()).caused_by(error)
    }
}
