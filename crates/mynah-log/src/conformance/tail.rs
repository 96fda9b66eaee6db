//! Runs while they grow.

use std::sync::Arc;

use mynah_data::LogReason;

use super::{Sample, all, begin, refused};
use crate::{Log, Tail, log::BoxFuture};

pub(super) async fn waiting_ends_when_there_is_more(log: &dyn Log) {
    let mut early = log.wait("run", 0);
    assert_eq!(begin(&mut early).await, None, "the run is not there yet");
    let mut run = Sample::new("run", 0).user("two");
    log.append(run.batch()).await.expect("a new run");
    early.await.expect("the run is there");
    log.wait("run", 1).await.expect("there is more already");

    let mut waiting = log.wait("run", 2);
    assert_eq!(begin(&mut waiting).await, None);
    let mut other = Sample::new("other", 0).user("two").user("three");
    log.append(other.batch()).await.expect("another run");
    assert_eq!(begin(&mut waiting).await, None, "another run is none of its business");
    run = run.sealed();
    log.append(run.batch()).await.expect("the end");
    waiting.await.expect("there is more");
    assert_eq!(refused(log.wait("run", 4).await), LogReason::Sealed, "nothing will ever follow");
}

pub(super) async fn a_tail_gives_each_record_once_until_the_seal(log: Arc<dyn Log>) {
    const TURNS: usize = 60;
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let write = async {
        for _ in 0..TURNS {
            run = run.clone().tool_turn();
            log.append(run.batch()).await.expect("more");
        }
        run = run.clone().sealed();
        log.append(run.batch()).await.expect("the end");
        Vec::new()
    };
    let follow = |from: u64| {
        let mut tail = Tail::new(Arc::clone(&log), "run", from);
        async move {
            let mut seqs = Vec::new();
            while let Some(record) = tail.next().await.expect("a log that can be read") {
                seqs.push(record.seq());
            }
            assert_eq!(tail.next().await, Ok(None), "over is over");
            seqs
        }
    };
    let tasks: Vec<BoxFuture<'_, Vec<u64>>> =
        vec![Box::pin(write), Box::pin(follow(0)), Box::pin(follow(100))];
    let seen = all(tasks).await;
    let last = 1 + 5 * TURNS as u64 + 2;
    assert_eq!(seen[1], (1..=last).collect::<Vec<_>>());
    assert_eq!(seen[2], (100..=last).collect::<Vec<_>>());
    assert_eq!(follow(last + 1).await, [0u64; 0], "there is nothing beyond the seal");
}
