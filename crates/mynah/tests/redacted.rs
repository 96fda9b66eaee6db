//! A run of which something was taken away cannot be performed again, and the error says why.

use std::sync::Arc;

use mynah::{
    Engine, ErrorKind, LogReason, fork_run,
    log::{Append, Log, MemoryLog, Prune, Redact, Warrant},
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
    for error in errors.map(|refused| refused.expect_err("a body is missing")) {
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Redacted), "{error}");
        assert_eq!(
            (&error.metadata()["run_id"], &error.metadata()["seq"]),
            (&json!(run), &json!(2))
        );
    }
    Prune::before(i64::MAX).perform(&log, &warrant).await?;
    let error = engine()?.replay(&log, &*run).await.expect_err("there is no such run");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::RunNotFound), "{error}");
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

fn engine() -> mynah::Result<Engine> {
    Ok(Engine::new(Scripted::new([json!([{"text": "hello"}, {"finish": "stop"}])])?))
}
