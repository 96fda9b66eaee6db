//! Who may append.

use std::time::Duration;

use mynah_data::{HaltReason, LogReason};

use super::{Sample, refused};
use crate::{Lease, Log, RunFilter};

const TERM: Duration = Duration::from_nanos(100);

pub(super) async fn a_run_belongs_to_one_at_a_time(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let first = log.lease("run", "ann", TERM, 1_000).await.expect("a free run");
    assert_eq!(first, Lease::new("run", "ann", first.token, 1_100));
    let held = |now| async move {
        let run = log.run("run").await.expect("an index").expect("the run");
        let listed = log.runs(RunFilter::new()).await.expect("an index");
        assert_eq!(listed.runs, std::slice::from_ref(&run), "the list says the same");
        let abandoned = log.runs(RunFilter::new().abandoned(now)).await.expect("an index");
        assert_eq!(abandoned.runs.len(), usize::from(run.is_abandoned(now)), "so does a filter");
        (run.held_until, run.is_abandoned(now))
    };
    assert_eq!(held(1_099).await, (Some(1_100), false));
    assert_eq!(held(1_100).await, (Some(1_100), true), "nobody kept it");

    let error = log.lease("run", "bob", TERM, 1_099).await.expect_err("a run that is held");
    assert_eq!(
        (&error.metadata()["owner"], &error.metadata()["until"]),
        (&"ann".into(), &1_100.into())
    );
    assert_eq!(refused::<Lease>(Err(error)), LogReason::Leased);

    let longer = log.lease("run", "ann", TERM, 1_050).await.expect("one's own run");
    assert_eq!(longer, Lease::new("run", "ann", first.token, 1_150), "the same lease, for longer");
    assert_eq!(refused(log.lease("run", "bob", TERM, 1_149).await), LogReason::Leased);

    let taken = log.lease("run", "bob", TERM, 1_150).await.expect("a lease that has run out");
    assert!(taken.token > first.token, "{taken:?}");
    log.release(&first).await.expect("what was lost already");
    assert_eq!(refused(log.lease("run", "ann", TERM, 1_160).await), LogReason::Leased);

    log.release(&taken).await.expect("one's own lease");
    assert_eq!(held(1_160).await, (None, true), "it was given back");
    let again = log.lease("run", "ann", TERM, 1_170).await.expect("a run that was given back");
    assert!(again.token > taken.token, "{again:?}");
    let forever = log.lease("run", "ann", Duration::MAX, i64::MAX).await.expect("a long time");
    assert_eq!(forever.until, i64::MAX);
}

pub(super) async fn who_lost_a_run_is_fenced_off(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let mut next = |text: &str| {
        run = run.clone().user(text);
        run.batch()
    };
    let ann = log.lease("run", "ann", TERM, 0).await.expect("a free run");
    let batch = next("by ann");
    assert_eq!(refused(log.append(batch.clone()).await), LogReason::Leased, "without the lease");
    log.append(batch.fenced(&ann)).await.expect("the holder");

    let bob = log.lease("run", "bob", TERM, 200).await.expect("a lease that has run out");
    let batch = next("by bob");
    let result = log.append(batch.clone().fenced(&ann)).await;
    assert_eq!(refused(result), LogReason::Fenced, "with the right head, but a lower token");
    log.append(batch.fenced(&bob)).await.expect("the new holder, however late");

    log.release(&bob).await.expect("one's own lease");
    let batch = next("by nobody");
    let result = log.append(batch.clone().fenced(&bob)).await;
    assert_eq!(refused(result), LogReason::Fenced, "what was given back is no right any more");
    log.append(batch).await.expect("a run that nobody holds");
    assert_eq!(log.head("run").await.map(|head| head.map(|head| head.seq)), Ok(Some(4)));
}

pub(super) async fn a_lease_needs_a_run_that_goes_on(log: &dyn Log) {
    assert_eq!(refused(log.lease("run", "ann", TERM, 0).await), LogReason::RunNotFound);
    assert_eq!(log.run("run").await, Ok(None), "asking for a lease makes no run");
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let ann = log.lease("run", "ann", TERM, 0).await.expect("a free run");
    run = run.sealed();
    log.append(run.batch().fenced(&ann)).await.expect("the end");
    assert_eq!(refused(log.lease("run", "ann", TERM, 0).await), LogReason::Sealed);
    let late = run.user("late").batch().fenced(&ann);
    assert_eq!(refused(log.append(late).await), LogReason::Sealed);
}

pub(super) async fn a_new_run_belongs_to_whoever_began_it(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch().held("ann", 100)).await.expect("a new run");
    assert_eq!(refused(log.lease("run", "bob", TERM, 99).await), LogReason::Leased);
    let other = Sample::new("run", 1).batch().held("bob", 100);
    assert_eq!(refused(log.append(other).await), LogReason::HeadMismatch, "the id is taken");
    let ann = Lease::new("run", "ann", 1, 100);
    run = run.user("one");
    let batch = run.batch();
    assert_eq!(refused(log.append(batch.clone()).await), LogReason::Leased, "without the lease");
    log.append(batch.fenced(&ann).held("ann", 300)).await.expect("the holder");
    assert_eq!(refused(log.lease("run", "bob", TERM, 299).await), LogReason::Leased, "for longer");
    let bob = log.lease("run", "bob", TERM, 300).await.expect("a lease that has run out");
    run = run.user("two");
    let late = run.clone().batch().fenced(&ann).held("ann", 900);
    assert_eq!(refused(log.append(late).await), LogReason::Fenced);

    run = run.stopped(HaltReason::AskUser);
    log.append(run.batch().fenced(&bob).held("bob", 900)).await.expect("the holder");
    let ann = log.lease("run", "ann", TERM, 301).await.expect("a run that waits is nobody's");
    assert!(ann.token > bob.token, "{ann:?}");
}
