//! Ending a run from elsewhere.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Ends runs from elsewhere: another task, a signal handler, a button.
///
/// A cancelled chat stops where it is, keeps what was said and done, and comes to a result with
/// `halted_reason: cancelled`. Dropping a stream stops it too, without a result.
///
/// ```
/// # use mynah::{CancelHandle, Engine, testing::Scripted};
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// let engine = Engine::new(Scripted::new([json!([{"text": "never heard"}, {"finish": "stop"}])])?);
/// let cancel = CancelHandle::new();
/// cancel.cancel();
/// let result = engine.chat("hi").cancel_handle(&cancel).await?;
/// assert_eq!(result.halted_reason.as_str(), "cancelled");
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct CancelHandle(CancellationToken);

impl CancelHandle {
    /// A handle that was not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every run that has this handle.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// A handle that ends less: what this one ends, it ends too.
    pub(crate) fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Whether it was used.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelHandle").field(&self.is_cancelled()).finish()
    }
}

/// A run's ear for its handle. A run that nobody can cancel pays nothing for it.
#[derive(Default)]
pub(crate) struct Cancellation(Option<(CancelHandle, Pin<Box<WaitForCancellationFutureOwned>>)>);

impl Cancellation {
    pub(crate) fn listen(handle: &CancelHandle) -> Self {
        let own = handle.child();
        let waiting = Box::pin(own.0.clone().cancelled_owned());
        Self(Some((own, waiting)))
    }

    /// A handle for this run alone, beside the one that it may have been given.
    pub(crate) fn handle(&mut self) -> CancelHandle {
        if self.0.is_none() {
            *self = Self::listen(&CancelHandle::new());
        }
        self.0.as_ref().map(|(handle, _)| handle.clone()).unwrap_or_default()
    }

    pub(crate) fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> bool {
        let waiting = self.0.as_mut().map(|(_, waiting)| waiting.as_mut());
        waiting.is_some_and(|waiting| matches!(waiting.poll(cx), Poll::Ready(())))
    }
}
