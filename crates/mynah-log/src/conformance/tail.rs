//! Runs while they grow.

use std::sync::Arc;

use mynah_data::{ErrorKind, LogReason};

use super::{Sample, all, begin, refused};
use crate::{Log, log::BoxFuture};

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

pub(super) async fn a_reader_that_waits_gets_each_record_once_until_the_seal(log: Arc<dyn Log>) {
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
    let follow = async |mut from: u64| {
        let mut seqs = Vec::new();
        loop {
            match log.wait("run", from.saturating_sub(1)).await {
                Err(error) if error.kind() == ErrorKind::Log(LogReason::Sealed) => return seqs,
                waited => waited.expect("a log that can be read"),
            }
            for record in log.read("run", from, 7).await.expect("a log that can be read") {
                from = record.seq() + 1;
                seqs.push(record.seq());
            }
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
