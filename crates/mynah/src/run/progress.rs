//! Progress of tool calls, from the thread that reports it to the consumers.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use mynah_data::{Event, ToolCall};
use mynah_step::{ToolContext, ToolProgress};

use crate::in_flight::Reports;

/// The latest progress of each call in flight that was not emitted yet.
///
/// It holds at most one event for each call, however often a tool reports.
#[derive(Clone, Default)]
pub(super) struct LatestProgress(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    /// The calls in flight, and what they reported last.
    running: Vec<(Arc<ToolCall>, Option<Box<Event>>)>,
    /// The driver, if it waits for a report.
    waker: Option<Waker>,
    /// Readers in this process.
    readers: Option<Reports>,
}

impl LatestProgress {
    pub(super) fn share(&self, readers: Reports) {
        self.calls().readers = Some(readers);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context of a call that starts, with a listener for its progress.
    pub(super) fn listen(&self, context: ToolContext) -> ToolContext {
        let (all, call) = (self.clone(), Arc::clone(&context.call));
        self.calls().running.push((Arc::clone(&call), None));
        context.on_progress(move |progress| all.report(&call, progress))
    }

    fn report(&self, call: &ToolCall, progress: &ToolProgress) {
        // JSON has no other numbers.
        if !progress.progress.is_finite() {
            return;
        }
        let mut event = Event::tool_execution_progress(&call.id, &call.name, progress.progress);
        if let Event::ToolExecutionProgress { total, message, .. } = &mut event {
            *total = progress.total.filter(|total| total.is_finite());
            message.clone_from(&progress.message);
        }
        let mut calls = self.calls();
        // A task may outlive the call that spawned it.
        let Some(place) = calls.running.iter().position(|(other, _)| other.id == call.id) else {
            return;
        };
        if let Some(readers) = &calls.readers {
            readers.report(&call.id, &event);
        }
        calls.running[place].1 = Some(Box::new(event));
        let waker = calls.waker.take();
        drop(calls);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The next report that was not emitted yet. The calls take turns, so that one that reports all the time does not hide the others.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Event> {
        let mut calls = self.calls();
        for place in 0..calls.running.len() {
            if let Some(event) = calls.running[place].1.take() {
                calls.running.rotate_left(place + 1);
                return Poll::Ready(*event);
            }
        }
        calls.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A call ended. Its progress is of no interest any more.
    pub(super) fn end(&self, call_id: &str) {
        let mut calls = self.calls();
        calls.running.retain(|(call, _)| call.id != call_id);
        if let Some(readers) = &calls.readers {
            readers.end(call_id);
        }
    }

    pub(super) fn clear(&self) {
        let mut calls = self.calls();
        for (call, _) in std::mem::take(&mut calls.running) {
            calls.readers.iter().for_each(|readers| readers.end(&call.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use mynah_step::SystemWorld;
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_take_turns() {
        let latest = LatestProgress::default();
        let start = |id: &str| {
            let call = ToolCall::from_value(id, "dig", json!({}));
            latest.listen(ToolContext::new(call, Arc::new(SystemWorld)))
        };
        let calls = ["c0", "c1", "c2"].map(start);
        let mut seen = Vec::new();
        for _ in 0..4 {
            // Faster than anyone reads.
            calls.iter().for_each(|call| call.progress(ToolProgress::new(1.0)));
            let polled = latest.poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Event::ToolExecutionProgress { id, .. }) = polled else {
                panic!("{polled:?}")
            };
            seen.push(id);
        }
        assert_eq!(seen, ["c0", "c1", "c2", "c0"]);
    }
}
