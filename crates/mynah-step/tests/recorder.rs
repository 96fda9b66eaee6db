//! What a recorder has given to its log, and when.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use mynah_data::{Error, HaltReason, LogReason, Message, Metadata, Result, Thread};
use mynah_log::{Append, End, Extent, Fact, Head, Log, LogFuture, MemoryLog, verify};
use mynah_step::{Recorder, SystemWorld};

use crate::common::Slow;

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
    assert_eq!(recorder.poll_given(&mut now)?, Poll::Ready(()), "it waits for no other append");
    assert_eq!(log.given.load(Relaxed), 2);
    assert!(recorder.poll_held(&mut now).is_pending(), "another run may have its id");
    log.answers.add_permits(1);
    assert!(recorder.poll_flush(&mut now).is_pending(), "it was given, and is not safe");
    assert_eq!(recorder.poll_held(&mut now)?, Poll::Ready(()), "the run is in the log");
    log.answers.add_permits(1);
    assert_eq!(poll_fn(|cx| recorder.poll_flush(cx)).await, Ok(()));
    assert_eq!(log.log.head("run").await?.map(|head| head.seq), Some(2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn batches_that_were_in_flight_when_the_log_failed_are_there_once() -> Result<()> {
    // Each append takes effect or not, and then its answer is lost. A log that refuses one refuses those that follow it.
    for effective in 0..=3 {
        let log = Failing { log: MemoryLog::new(), left: Arc::new(AtomicUsize::new(3)), effective };
        let mut recorder = Recorder::new(Arc::new(log.clone()), Arc::new(SystemWorld), "run");
        recorder = recorder.with_new_lease();
        let thread = Thread::from("go");
        recorder.commit(&Fact::RunStarted { thread, extent: Extent::Chat, about: None })?;
        let mut now = Context::from_waker(Waker::noop());
        assert!(recorder.poll_flush(&mut now).is_pending());
        for text in ["one", "two"] {
            recorder.commit(&Fact::UserMessage { message: Arc::new(Message::user(text)) })?;
            assert!(recorder.poll_flush(&mut now).is_pending());
        }
        assert_eq!(log.left.load(Relaxed), 0, "the log was given three batches at once");
        assert_eq!(poll_fn(|cx| recorder.poll_flush(cx)).await, Ok(()), "{effective}");
        let records = log.log.read("run", 1, 10).await?;
        assert_eq!(records.len(), 3, "{effective}");
        verify("run", &records).map_err(Error::from)?;
    }
    Ok(())
}

#[tokio::test]
async fn an_append_may_wait_for_others_unless_it_begins_announces_or_ends_something() -> Result<()>
{
    let log = Noting::default();
    let mut recorder = Recorder::new(Arc::new(log.clone()), Arc::new(SystemWorld), "run");
    let thread = Thread::from("go");
    let said = || Fact::UserMessage { message: Arc::new(Message::user("more")) };
    let announced = Fact::ToolScheduled { call_id: "a".to_owned(), attempt: 1, call: None };
    let begun = Fact::RunStarted { thread, extent: Extent::Chat, about: None };
    let end = || End::new(HaltReason::Completed, Metadata::new());
    for facts in [vec![begun], vec![said()], vec![said(), announced, said()], vec![said(), said()]]
        .into_iter()
        .chain([vec![Fact::Suspended(end())], vec![said()], vec![Fact::Completed(end())]])
    {
        facts.iter().try_for_each(|fact| recorder.commit(fact))?;
        poll_fn(|cx| recorder.poll_flush(cx)).await?;
    }
    let deferrable = log.deferrable.lock().expect("no panic").clone();
    assert_eq!(deferrable, [false, true, false, true, false, true, false]);
    Ok(())
}

/// A log that notes which appends may wait.
#[derive(Clone, Default)]
struct Noting {
    log: MemoryLog,
    deferrable: Arc<Mutex<Vec<bool>>>,
}

impl Log for Noting {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        self.deferrable.lock().expect("no panic").push(batch.deferrable);
        self.log.append(batch)
    }

    mynah_log::forward_log!(self => self.log);
}

/// A log whose first three appends fail when they have taken effect or not: the first of them do.
#[derive(Clone)]
struct Failing {
    log: MemoryLog,
    left: Arc<AtomicUsize>,
    effective: usize,
}

impl Log for Failing {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            let Ok(left) = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            else {
                return self.log.append(batch).await;
            };
            if 3 - left < self.effective {
                self.log.append(batch).await?;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err(Error::log(LogReason::Unavailable))
        })
    }

    mynah_log::forward_log!(self => self.log);
}
