//! Who may append.

use std::time::Duration;

use mynah_data::{HaltReason, LogReason};

use super::{HOUR, OVER, Sample, refused};
use crate::{Lease, Log, RunFilter};

pub(super) async fn a_run_belongs_to_one_at_a_time(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let first = log.lease("run", "ann", HOUR).await.expect("a free run");
    assert_eq!(first, Lease::new("run", "ann", first.token, first.until));
    let held = |now| async move {
        let run = log.run("run").await.expect("an index").expect("the run");
        let listed = log.runs(RunFilter::new()).await.expect("an index");
        assert_eq!(listed.runs, std::slice::from_ref(&run), "the list says the same");
        let abandoned = log.runs(RunFilter::new().abandoned(now)).await.expect("an index");
        assert_eq!(abandoned.runs.len(), usize::from(run.is_abandoned(now)), "so does a filter");
        (run.held_until, run.is_abandoned(now))
    };
    assert_eq!(held(first.until - 1).await, (Some(first.until), false));
    assert_eq!(held(first.until).await, (Some(first.until), true), "nobody kept it");

    let error = log.lease("run", "bob", HOUR).await.expect_err("a run that is held");
    assert_eq!(
        (&error.metadata()["owner"], &error.metadata()["until"]),
        (&"ann".into(), &first.until.into())
    );
    assert_eq!(refused::<Lease>(Err(error)), LogReason::Leased);

    let longer = log.lease("run", "ann", 2 * HOUR).await.expect("one's own run");
    assert_eq!(longer, Lease::new("run", "ann", first.token, longer.until), "the same lease");
    assert!(longer.until - first.until >= 3_600_000_000_000, "for longer");
    assert_eq!(refused(log.lease("run", "bob", HOUR).await), LogReason::Leased);

    log.lease("run", "ann", OVER).await.expect("one's own run");
    let taken = log.lease("run", "bob", HOUR).await.expect("a lease that has run out");
    assert!(taken.token > first.token && taken.taken_over, "{taken:?}");
    log.release(&first);
    assert_eq!(refused(log.lease("run", "ann", HOUR).await), LogReason::Leased);

    log.release(&taken);
    assert_eq!(held(taken.until - 1).await, (None, true), "it was given back");
    let again = log.lease("run", "ann", HOUR).await.expect("a run that was given back");
    assert!(again.token > taken.token && !again.taken_over, "{again:?}");
    let forever = log.lease("run", "ann", Duration::MAX).await.expect("a long time");
    assert_eq!(forever.until, i64::MAX);
}

pub(super) async fn a_lease_is_taken_from_an_owner_that_was_not_seen_to_renew_it(log: &dyn Log) {
    assert_eq!(refused(log.take("run", "bob", HOUR, None).await), LogReason::RunNotFound);
    let mut run = Sample::new("run", 0);
    log.append(run.batch().held("ann", HOUR)).await.expect("a new run");
    let seen = async || log.run("run").await.expect("an index").and_then(|run| run.held_until);
    let first = seen().await;
    assert!(first.is_some(), "it is held");
    // One that was refused under the same id gives back nothing of the holder's.
    log.release(&Lease::new("run", "bob", 1, i64::MAX));
    assert_eq!(seen().await, first);
    assert_eq!(refused(log.take("run", "bob", HOUR, None).await), LogReason::Leased);

    // The term may be short: its end alone proves nothing.
    let ann = log.lease("run", "ann", OVER).await.expect("one's own run");
    let renewed = log.take("run", "bob", HOUR, first).await.expect_err("a sign of life");
    assert_eq!(renewed.metadata()["until"], ann.until);
    assert_eq!(refused::<Lease>(Err(renewed)), LogReason::Leased);
    let before = seen().await;
    run = run.user("by ann");
    log.append(run.batch().fenced(&ann).held("ann", HOUR)).await.expect("the holder");
    let result = log.take("run", "bob", HOUR, before).await;
    assert_eq!(refused(result), LogReason::Leased, "an append that renews is a sign of life");
    let mut last = seen().await;
    for _ in 0..100 {
        for term in [Duration::MAX, HOUR, HOUR] {
            log.lease("run", "ann", term).await.expect("one's own run");
            let now = seen().await;
            assert_ne!(now, last, "each renewal can be seen, whatever the clock says");
            last = now;
        }
    }

    let bob = log.take("run", "bob", HOUR, last).await.expect("an owner that is silent");
    assert!(bob.token > ann.token, "{bob:?}");
    run = run.user("by bob");
    let batch = run.batch();
    assert_eq!(refused(log.append(batch.clone().fenced(&ann)).await), LogReason::Fenced);
    log.append(batch.fenced(&bob)).await.expect("the new holder");

    log.release(&bob);
    let cid = log.take("run", "cid", HOUR, None).await.expect("a run that was given back");
    log.release(&cid);
    let cid = log.take("run", "cid", HOUR, last).await.expect("a run that was given back");
    run = run.stopped(HaltReason::AskUser);
    log.append(run.batch().fenced(&cid)).await.expect("the holder");
    let dan = log.take("run", "dan", HOUR, None).await.expect("a run that waits");
    log.append(run.user("more").sealed().batch().fenced(&dan)).await.expect("the end");
    assert_eq!(refused(log.take("run", "eve", HOUR, None).await), LogReason::Sealed);
}

pub(super) async fn who_lost_a_run_is_fenced_off(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let mut next = |text: &str| {
        run = run.clone().user(text);
        run.batch()
    };
    let ann = log.lease("run", "ann", OVER).await.expect("a free run");
    let batch = next("by ann");
    assert_eq!(refused(log.append(batch.clone()).await), LogReason::Leased, "without the lease");
    log.append(batch.fenced(&ann)).await.expect("the holder");

    let bob = log.lease("run", "bob", OVER).await.expect("a lease that has run out");
    let batch = next("by bob");
    let result = log.append(batch.clone().fenced(&ann)).await;
    assert_eq!(refused(result), LogReason::Fenced, "with the right head, but a lower token");
    log.append(batch.fenced(&bob)).await.expect("the new holder, however late");

    log.release(&bob);
    let batch = next("by nobody");
    let result = log.append(batch.clone().fenced(&bob)).await;
    assert_eq!(refused(result), LogReason::Fenced, "what was given back is no right any more");
    log.append(batch).await.expect("a run that nobody holds");
    assert_eq!(log.head("run").await.map(|head| head.map(|head| head.seq)), Ok(Some(4)));
}

pub(super) async fn a_lease_needs_a_run_that_goes_on(log: &dyn Log) {
    assert_eq!(refused(log.lease("run", "ann", HOUR).await), LogReason::RunNotFound);
    assert_eq!(log.run("run").await, Ok(None), "asking for a lease makes no run");
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let ann = log.lease("run", "ann", HOUR).await.expect("a free run");
    run = run.sealed();
    log.append(run.batch().fenced(&ann)).await.expect("the end");
    assert_eq!(refused(log.lease("run", "ann", HOUR).await), LogReason::Sealed);
    let late = run.user("late").batch().fenced(&ann);
    assert_eq!(refused(log.append(late).await), LogReason::Sealed);
}

pub(super) async fn a_new_run_belongs_to_whoever_began_it(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch().held("ann", HOUR)).await.expect("a new run");
    assert_eq!(refused(log.lease("run", "bob", HOUR).await), LogReason::Leased);
    let other = Sample::new("run", 1).batch().held("bob", HOUR);
    assert_eq!(refused(log.append(other).await), LogReason::HeadMismatch, "the id is taken");
    let ann = Lease::new("run", "ann", 1, 0);
    run = run.user("one");
    let batch = run.batch();
    assert_eq!(refused(log.append(batch.clone()).await), LogReason::Leased, "without the lease");
    log.append(batch.fenced(&ann).held("ann", OVER)).await.expect("the holder");
    let bob = log.lease("run", "bob", OVER).await.expect("a lease that has run out");
    run = run.user("two");
    let late = run.clone().batch().fenced(&ann).held("ann", HOUR);
    assert_eq!(refused(log.append(late).await), LogReason::Fenced);
    log.append(run.batch().fenced(&bob).held("bob", HOUR)).await.expect("the holder");
    assert_eq!(refused(log.lease("run", "ann", HOUR).await), LogReason::Leased, "for longer");

    run = run.stopped(HaltReason::AskUser);
    log.append(run.batch().fenced(&bob).held("bob", HOUR)).await.expect("the holder");
    let ann = log.lease("run", "ann", HOUR).await.expect("a run that waits is nobody's");
    assert!(ann.token > bob.token, "{ann:?}");
}
