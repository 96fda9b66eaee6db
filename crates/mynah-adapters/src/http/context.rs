//! What errors of a call say, and what they must not.

use std::{error::Error as StdError, io, sync::Arc, time::Duration};

use mynah_data::{AdapterReason, Error, Result};
use rustls::InvalidMessage;

use super::{address::Address, connection::SendError, secrets::Secrets};
use crate::failure;

/// What to do about a server that cannot be reached.
const UNREACHABLE: &str = "check that the server runs and that its address is right";

/// Data that is added to an error on its way out.
pub(super) struct ErrorContext {
    provider: Arc<str>,
    pub(super) secrets: Secrets,
    pub(super) request_id: Option<String>,
    /// Where the call goes, once that is known.
    address: Option<Arc<Address>>,
}

impl ErrorContext {
    pub(super) fn new(provider: Arc<str>, secrets: Secrets) -> Self {
        Self { provider, secrets, request_id: None, address: None }
    }

    /// Sets where the call goes.
    pub(super) fn calling(&mut self, address: Arc<Address>) {
        self.address = Some(address);
    }

    fn server(&self) -> &str {
        self.address.as_ref().map_or("", |address| address.server())
    }

    /// What a server sends next.
    pub(super) async fn unless_silent<T>(
        &self,
        limit: Duration,
        next: impl Future<Output = Result<T, impl TransportError>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, next).await {
            Ok(next) => next.map_err(|error| self.transport_error(error)),
            Err(_) => Err(self.was_silent(limit)),
        }
    }

    pub(super) fn was_silent(&self, limit: Duration) -> Error {
        let limit = limit.as_secs_f64();
        self.network(AdapterReason::Timeout, format!("the server was silent for {limit} s"))
    }

    pub(super) fn was_wordless(&self, limit: Duration) -> Error {
        let limit = limit.as_secs_f64();
        self.network(
            AdapterReason::Timeout,
            format!("the server sent nothing but keep-alives for {limit} s"),
        )
    }

    pub(super) fn transport_error(&self, error: impl TransportError) -> Error {
        let connected = error.connected();
        // The innermost cause is the one that a person can act on.
        let mut cause: &(dyn StdError + 'static) = &error;
        let mut reason = AdapterReason::NetworkError;
        loop {
            let io = cause.downcast_ref::<io::Error>();
            if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                reason = AdapterReason::Timeout;
            }
            let Some(inner) = inner(cause) else { break };
            cause = inner;
        }
        let speaks_no_tls = matches!(
            cause.downcast_ref(),
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
        );
        let (why, advice) = match speaks_no_tls {
            true => ("the server does not speak TLS; is its address http://?".to_owned(), None),
            false => (cause.to_string(), Some(UNREACHABLE.to_owned())),
        };
        let failed = self.network(reason, why).caused_by(error);
        match connected {
            true => failed,
            false => failed.because(advice.as_slice()).with("connected", false),
        }
    }

    fn network(&self, reason: AdapterReason, why: String) -> Error {
        let server = self.server();
        let proxy = self.address.as_ref().and_then(|address| address.proxy());
        let through = proxy.map(|proxy| format!(" through the proxy {proxy}"));
        let through = through.unwrap_or_default();
        let error = Error::adapter(reason)
            .with_message(format!("adapter error: {reason}: {why}, calling {server}{through}"))
            .with("server", server);
        match proxy {
            Some(proxy) => error.with("proxy", proxy),
            None => error,
        }
    }

    /// What the provider calls the call.
    pub(super) fn called(&mut self, id: Option<&str>) {
        self.request_id = id.map(|id| self.secrets.out_of(id));
    }

    /// Names the provider, and takes out the key, which some providers repeat in their messages. Where something else came than
    /// an answer, or less, the server may not be the one that was meant, and is named too.
    pub(super) fn complete(&self, error: Error) -> Error {
        let mut error = self.secrets.out_of_error(error);
        let is_other = failure::is_malformed(&error) || failure::is_of_network(&error);
        if is_other && !self.server().is_empty() {
            error = error.with("server", self.server());
        }
        if let (Some(id), false) = (&self.request_id, error.metadata().contains_key("request_id")) {
            error = error.with("request_id", id.as_str());
        }
        error.with_provider(&*self.provider)
    }
}

/// What a request or the body of its answer fails with.
pub(super) trait TransportError: StdError + Send + Sync + 'static {
    /// Whether the server, or its proxy, was reached.
    fn connected(&self) -> bool;
}

impl TransportError for SendError {
    fn connected(&self) -> bool {
        matches!(self, Self::Send(_))
    }
}

impl TransportError for hyper::Error {
    fn connected(&self) -> bool {
        true
    }
}

/// What an error is because of. What an I/O error wraps is not its source.
fn inner<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}
