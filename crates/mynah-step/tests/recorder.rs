//! What a recorder has given to its log, and when.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use mynah_data::{Message, Result, Thread};
use mynah_log::{Append, Extent, Fact, Head, Log, LogFuture, MemoryLog};
use mynah_step::{Recorder, SystemWorld};
use tokio::sync::Semaphore;

#[tokio::test]
async fn a_record_that_was_given_to_the_log_is_kept_though_nobody_waits_for_it() -> Result<()> {
    let log = Slow::default();
    let mut recorder = Recorder::new(Arc::new(log.clone()), Arc::new(SystemWorld), "run");
    recorder = recorder.with_new_lease();
    let thread = Thread::from("go");
    recorder.commit(&Fact::RunStarted { thread, extent: Extent::Chat, about: None })?;
    let mut now = Context::from_waker(Waker::noop());
    assert!(recorder.poll_given(&mut now).is_ready());
    assert!(recorder.poll_held(&mut now).is_pending(), "another run may have its id");
    assert!(recorder.poll_flush(&mut now).is_pending(), "it was given, and is not safe");
    let said = |text: &str| Fact::UserMessage { message: Arc::new(Message::user(text)) };
    recorder.commit(&said("one"))?;
    assert!(recorder.poll_given(&mut now).is_pending(), "another append is in flight");
    log.answers.add_permits(1);
    assert_eq!(poll_fn(|cx| recorder.poll_given(cx)).await, Ok(()));
    assert_eq!(log.given.load(Relaxed), 2);
    assert_eq!(recorder.poll_held(&mut now)?, Poll::Ready(()), "the run is in the log");
    assert!(recorder.poll_flush(&mut now).is_pending(), "it was given, and is not safe");
    log.answers.add_permits(1);
    assert_eq!(poll_fn(|cx| recorder.poll_flush(cx)).await, Ok(()));
    assert_eq!(log.log.head("run").await?.map(|head| head.seq), Some(2));
    Ok(())
}

/// A log that answers on demand.
#[derive(Clone)]
struct Slow {
    log: MemoryLog,
    given: Arc<AtomicUsize>,
    answers: Arc<Semaphore>,
}

impl Default for Slow {
    fn default() -> Self {
        Self { log: MemoryLog::new(), given: Arc::default(), answers: Arc::new(Semaphore::new(0)) }
    }
}

impl Log for Slow {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            self.given.fetch_add(1, Relaxed);
            let head = self.log.append(batch).await;
            if let Ok(answer) = self.answers.acquire().await {
                answer.forget();
            }
            head
        })
    }

    mynah_log::forward_log!(self => self.log);
}
