//! Keeps the answer in flight in the log, for readers in other processes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use mynah_data::{Event, Result};
use mynah_log::AnswerPart;
use mynah_step::{BoxFuture, Journal, Recorder};
use tokio::{
    sync::watch,
    time::{Sleep, sleep},
};

use crate::in_flight::Answer;

/// How long events wait for others, and how many bytes of them do not wait.
const GROUP: (Duration, usize) = (Duration::from_millis(50), 4 << 10);

/// Writes the events of an answer into the log in groups. It never holds up the run.
pub(super) struct PartWriter {
    journal: Arc<Journal>,
    answer: watch::Receiver<Answer>,
    /// The answer that it writes.
    generation: u64,
    /// How many events of it are kept, and how many were looked at.
    kept: usize,
    seen: usize,
    /// About how many bytes wait.
    bytes: usize,
    due: Option<Pin<Box<Sleep>>>,
    /// The part that is being written, and how many events are kept with it.
    writing: Option<(usize, BoxFuture<Result<()>>)>,
}

impl PartWriter {
    pub(super) fn new(journal: Arc<Journal>, answer: watch::Receiver<Answer>) -> Self {
        Self {
            journal,
            answer,
            generation: 0,
            kept: 0,
            seen: 0,
            bytes: 0,
            due: None,
            writing: None,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let answer = self.answer.borrow();
        if answer.generation != self.generation {
            self.generation = answer.generation;
            (self.kept, self.seen, self.bytes) = (0, 0, 0);
            (self.due, self.writing) = (None, None);
        }
        self.bytes += answer.events.iter().skip(self.seen).map(size).sum::<usize>();
        self.seen = answer.events.len();
        loop {
            if let Some((end, writing)) = &mut self.writing {
                match writing.as_mut().poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(())) => self.kept = *end,
                    // The events are written with the next group.
                    Poll::Ready(Err(error)) => tracing::debug!(%error, "events were not kept"),
                }
                self.writing = None;
            }
            if self.kept >= self.seen {
                return;
            }
            let (pace, full) = GROUP;
            let due = self.due.get_or_insert_with(|| Box::pin(sleep(pace)));
            if self.bytes < full && due.as_mut().poll(cx).is_pending() {
                return;
            }
            // A part is kept only after the record that it follows. What fails is reported elsewhere.
            if !matches!(self.journal.poll(cx, Recorder::poll_flush), Poll::Ready(Ok(()))) {
                return;
            }
            (self.due, self.bytes) = (None, 0);
            let events = &answer.events[self.kept..];
            // A run that is not held has no answer in flight, and every event has a JSON.
            let (Some((log, lease, seq)), Ok(payload)) =
                (self.journal.held(), serde_json::to_vec(events))
            else {
                return;
            };
            let part = AnswerPart::new(seq, self.kept as u64, events.len() as u64, payload);
            let writing = Box::pin(async move { log.keep_part(&lease, part).await });
            self.writing = Some((self.seen, writing));
        }
    }
}

fn size(event: &Event) -> usize {
    const MEMBERS: usize = 64;
    MEMBERS
        + match event {
            Event::TextDelta { delta, .. } | Event::ReasoningDelta { delta, .. } => delta.len(),
            Event::ToolCallDelta { arguments_delta, .. } => arguments_delta.len(),
            _ => 0,
        }
}
