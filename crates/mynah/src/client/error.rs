//! Why a request failed.

use std::fmt;

use mynah_data::Metadata;
use reqwest::Response;
use serde::Deserialize;

/// Why a request failed: the problem document of the server, or the reason why there is none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClientError {
    /// The status of the answer; none if there was no answer.
    pub status: Option<u16>,
    /// The server's code, as `log_error/run_not_found`; `unreachable`, `unexpected_answer` and others of the client.
    pub code: String,
    /// What failed, and what to do.
    pub detail: String,
    /// More about it.
    pub metadata: Box<Metadata>,
}

impl ClientError {
    pub(super) fn local(code: &str, detail: impl ToString) -> Self {
        let (code, detail) = (code.to_owned(), detail.to_string());
        Self { status: None, code, detail, metadata: Box::default() }
    }

    /// The server was not reached, or the connection broke.
    pub(super) fn unreachable(error: reqwest::Error) -> Self {
        let mut detail = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            detail = format!("{detail}: {error}");
            cause = error.source();
        }
        Self::local("unreachable", detail)
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
        let bytes = response.bytes().await.unwrap_or_default();
        match serde_json::from_slice(&bytes) {
            Ok(Problem { code, detail, metadata }) => Self { status, code, detail, metadata },
            Err(_) => {
                let text = String::from_utf8_lossy(&bytes);
                let start: String = text.chars().take(200).collect();
                Self { status, ..Self::local("unexpected_answer", start) }
            }
        }
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

impl std::error::Error for ClientError {}
