//! Two handles of one log, as two processes have.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::{Append, Head, Lease, Log, LogFuture, forward_log};

/// Handles of one log that take turns: each call goes to the other one than the call before.
pub(super) struct Turns {
    handles: [Arc<dyn Log>; 2],
    /// The handle of the next call.
    next: AtomicUsize,
}

impl Turns {
    pub(super) fn new(handles: [Arc<dyn Log>; 2]) -> Self {
        Self { handles, next: AtomicUsize::new(0) }
    }

    fn next(&self) -> &dyn Log {
        &*self.handles[self.next.fetch_xor(1, SeqCst)]
    }
}

/// An append without an answer. What follows it goes to the same handle: its order is the order of calls there.
struct Unanswered<'a>(&'a Turns, usize);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.next.store(self.1, SeqCst);
    }
}

impl Log for Turns {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        let handle = self.next.fetch_xor(1, SeqCst);
        let unanswered = Unanswered(self, handle);
        Box::pin(async move {
            let head = self.handles[handle].append(batch).await;
            std::mem::forget(unanswered);
            head
        })
    }

    /// The next call has the same handle: a release takes effect before what is asked next there.
    fn release(&self, lease: &Lease) {
        self.handles[self.next.load(SeqCst)].release(lease);
    }

    forward_log!(self => *self.next(), except append, release);
}
