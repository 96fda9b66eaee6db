//! A redacted run cannot be replayed, and the error has the reason.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mynah::{
    Engine, ErrorKind, LogReason, Session, fork_run,
    log::{
        Append, Head, Log, LogFuture, MAINTENANCE, MemoryLog, Prune, Redact, Warrant, forward_log,
    },
    restore_session,
    testing::Scripted,
};
use serde_json::json;

#[tokio::test]
async fn replay_resume_and_fork_name_the_first_redacted_record() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let run = engine()?.chat("my name is Ann").record(&log).await?.run_id.unwrap_or_default();
    let last = log.head(&run).await?.map_or(0, |head| head.seq);
    let warrant = Warrant::new("ann", "she asked for it", 0);
    Redact::records(&*run, [3, 2]).perform(&log, &warrant).await?;
    let errors = [
        engine()?.replay(&log, &*run).await.map(drop),
        engine()?.resume(&log, &*run).await.map(drop),
        fork_run(&log, &*run, last - 1).await.map(drop),
    ];
    assert_eq!(fork_run(&log, &*run, 1).await?.parent.seq, 1, "what is before it is whole");
    for error in errors.map(|refused| refused.expect_err("a body is missing")) {
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Redacted), "{error}");
        assert_eq!(
            (&error.metadata()["run_id"], &error.metadata()["seq"]),
            (&json!(run), &json!(2))
        );
    }
    Prune::before(i64::MAX).perform(&log, &warrant).await?;
    let error = engine()?.replay(&log, &*run).await.expect_err("there is no such run");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Pruned), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_body_that_is_missing_without_a_tombstone_is_corrupt() -> mynah::Result<()> {
    let whole = Arc::new(MemoryLog::new());
    let run = engine()?.chat("my name is Ann").record(&whole).await?.run_id.unwrap_or_default();
    let mut records = whole.read(&run, 1, 100).await?;
    records[1] = records[1].clone().without_body();
    let log = Arc::new(MemoryLog::new());
    log.append(Append::new(&*run, None, records)).await?;
    let errors = [
        engine()?.replay(&log, &*run).await.map(drop),
        engine()?.resume(&log, &*run).await.map(drop),
        fork_run(&log, &*run, 3).await.map(drop),
    ];
    for error in errors.map(|refused| refused.expect_err("a body is missing")) {
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
        assert_eq!(error.metadata()["seq"], 2);
    }
    Ok(())
}

#[tokio::test]
async fn a_turn_that_is_replied_to_while_it_is_pruned_stays() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let says = json!([{"text": "hello"}, {"finish": "stop"}]);
    let engine = Engine::new(Scripted::new([says.clone(), says])?);
    let (session, first) = engine.start(Session::from("hi").with_id("s")).record(&log).await?;
    let late = Late { log: log.clone(), engine, session, replied: AtomicBool::new(false) };
    let warrant = Warrant::new("ann", "age", i64::MAX);
    let done = Prune::before(i64::MAX).perform(&late, &warrant).await?;
    assert_eq!(done.pruned, []);
    let in_use: Vec<_> = done.in_use.iter().map(|run| run.run_id.clone()).collect();
    assert_eq!(Some(in_use), first.run_id.map(|run| vec![run]));
    let restored = restore_session(&log, "s").await?;
    assert_eq!(restored.session.thread.messages.len(), 4, "both turns are there");

    let done = Prune::before(i64::MAX).perform(&log, &warrant).await?;
    assert_eq!((done.pruned.len(), done.in_use.len()), (2, 0), "they go together");
    Ok(())
}

/// A log in which a session is replied to just before something is removed.
struct Late {
    log: MemoryLog,
    engine: Engine,
    session: Session,
    replied: AtomicBool,
}

impl Log for Late {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            if *batch.run_id == *MAINTENANCE && !self.replied.swap(true, Ordering::SeqCst) {
                self.engine.reply(&self.session, "and then?").record(&self.log).await?;
            }
            self.log.append(batch).await
        })
    }

    forward_log!(self => self.log);
}

fn engine() -> mynah::Result<Engine> {
    Ok(Engine::new(Scripted::new([json!([{"text": "hello"}, {"finish": "stop"}])])?))
}
