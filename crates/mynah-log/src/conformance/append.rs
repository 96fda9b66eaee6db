//! Records in and out.

use mynah_data::{ErrorKind, HaltReason, LogReason};

use super::{HOUR, OVER, Sample, all, begin, refused};
use crate::{Append, Hash, Head, Log, MAX_RUN_ID, Queue, RunFilter};

pub(super) async fn records_come_back_as_they_were(log: &dyn Log) {
    let mut run = Sample::new("run/1 ü", 1_000).tool_turn().tool_turn();
    let batch = run.batch();
    let records = batch.records.clone();
    assert_eq!(log.append(batch).await, Ok(run.head()), "an append gives the new head");
    run = run.user("and more").sealed();
    let batch = run.batch();
    let records: Vec<_> = records.into_iter().chain(batch.records.clone()).collect();
    assert_eq!(log.append(batch).await, Ok(run.head()));

    assert_eq!(log.head(run.run_id()).await, Ok(Some(run.head())));
    for (from, limit) in [(1, 100), (0, 100), (1, 3), (4, 3), (4, 0), (13, 5), (14, 5), (15, 5)] {
        let expected = records.iter().skip((from as usize).max(1) - 1).take(limit);
        let expected: Vec<_> = expected.cloned().collect();
        assert_eq!(log.read(run.run_id(), from, limit).await, Ok(expected), "{limit} from {from}");
    }
    assert_eq!(log.read(run.run_id(), u64::MAX, usize::MAX).await, Ok(vec![]));
    assert_eq!(log.read(run.run_id(), 14, usize::MAX).await, Ok(records[13..].to_vec()));

    assert_eq!(log.head("other").await, Ok(None));
    assert_eq!(log.read("other", 1, 10).await, Ok(vec![]));
    assert_eq!(log.run("other").await, Ok(None));
    let report = crate::verify_run(log, run.run_id()).await.expect("a sound run");
    assert_eq!((report.status.as_str(), report.records), ("verified", 14));
}

pub(super) async fn a_run_has_an_id_that_can_be_told(log: &dyn Log) {
    for length in [0, MAX_RUN_ID + 1, 1 << 16] {
        let error = log.append(Sample::new("x".repeat(length), 0).batch()).await;
        let error = error.expect_err("an id that nobody can use");
        assert!(matches!(error.kind(), ErrorKind::Validation(_)), "{error}");
        assert!(error.to_string().ends_with("; an id has 1 to 255 bytes"), "{error}");
    }
    let longest = "x".repeat(MAX_RUN_ID);
    log.append(Sample::new(&*longest, 0).batch()).await.expect("the longest id");
    assert!(log.head(&longest).await.is_ok_and(|head| head.is_some()));
}

pub(super) async fn texts_with_nul_are_kept_and_names_with_it_refused(log: &dyn Log) {
    const NUL: &str = "a\0b";
    let mut run = Sample::new("run", 0).user(NUL).answered_by(NUL);
    let batch = run.batch();
    let records = batch.records.clone();
    log.append(batch.consume([NUL])).await.expect("any text in its messages");
    assert_eq!(log.read("run", 1, 9).await, Ok(records));
    let summary = log.run("run").await.expect("an index").expect("the run");
    assert_eq!(summary.model.as_deref(), Some("a\u{fffd}b"), "a model may have any name");
    log.deliver("run", "m", NUL.into()).await.expect("any text in a message");

    let new = || Sample::new("new", 0).batch();
    let refusals = [
        log.append(Sample::new(NUL, 0).batch()).await.map(drop),
        log.append(Sample::of_session("new", 0, NUL, None).batch()).await.map(drop),
        log.append(new().queue(Queue::new(NUL))).await.map(drop),
        log.append(new().queue(Queue::new("q").concurrency(NUL, 1))).await.map(drop),
        log.deliver("run", NUL, Vec::new()).await.map(drop),
    ];
    for refusal in refusals {
        let error = refusal.expect_err("a name that not every log can store");
        assert!(matches!(error.kind(), ErrorKind::Validation(_)), "{error}");
        assert!(error.to_string().contains("U+0000"), "{error}");
    }
    assert_eq!(refused(log.deliver(NUL, "m", Vec::new()).await), LogReason::RunNotFound);
    assert_eq!(refused(log.lease(NUL, "ann", HOUR).await), LogReason::RunNotFound);
    assert_eq!(log.head(NUL).await, Ok(None));
    assert_eq!(log.run(NUL).await, Ok(None));
    assert_eq!(log.read(NUL, 1, 9).await, Ok(Vec::new()));
    assert_eq!(log.inbox(NUL, 9).await, Ok(Vec::new()));
    assert_eq!(log.was_delivered("run", NUL).await, Ok(false));
    assert_eq!(log.claim("ann", HOUR, &[NUL], 9).await, Ok(Vec::new()));
    assert_eq!(begin(&mut log.wait(NUL, 0)).await, None);
    assert_eq!(begin(&mut log.parts(NUL, 0, 0)).await, None);
    for filter in
        [RunFilter::new().model(NUL), RunFilter::new().session(NUL), RunFilter::new().prefix(NUL)]
    {
        assert_eq!(log.runs(filter).await.map(|page| page.runs), Ok(Vec::new()));
    }
}

pub(super) async fn names_that_the_index_is_searched_by_are_short(log: &dyn Log) {
    let (longest, longer) = ("x".repeat(MAX_RUN_ID), "x".repeat(MAX_RUN_ID + 1));
    let queue = |name: &str| Queue::new(name).concurrency(name, 1);
    for batch in [
        Sample::of_session("run", 0, &longer, None).batch(),
        Sample::new("run", 0).batch().queue(Queue::new(&*longer)),
        Sample::new("run", 0).batch().queue(Queue::new("q").concurrency(&*longer, 1)),
    ] {
        let error = log.append(batch).await.expect_err("a name that is too long");
        assert!(matches!(error.kind(), ErrorKind::Validation(_)), "{error}");
    }
    let batch = Sample::of_session("run", 0, &longest, None).batch().queue(queue(&longest));
    log.append(batch).await.expect("the longest names");
    let page = log.runs(RunFilter::new().session(&*longest)).await.expect("an index");
    assert_eq!(page.runs.len(), 1);
}

pub(super) async fn an_append_names_the_head_that_it_expects(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    let early = Sample::new("run", 0).user("hi").batch().records.remove(1);
    let first = run.batch();
    let missing = Append::new("run", Some(run.head()), vec![early]);
    let result = log.append(missing).await;
    assert_eq!(refused(result), LogReason::RunNotFound, "a head is expected where no run is");

    log.append(first).await.expect("a new run");
    let other = Sample::new("run", 9).batch();
    assert_eq!(refused(log.append(other).await), LogReason::HeadMismatch, "a run begins once");

    let mut rival = run.clone().user("I was faster");
    run = run.user("I was slower");
    log.append(rival.batch()).await.expect("the first to append");
    let error = log.append(run.batch()).await.expect_err("a stale head");
    assert_eq!(error.metadata()["seq"], 2, "the error says where the run ends: {error}");
    assert_eq!(refused::<Head>(Err(error)), LogReason::HeadMismatch);
    assert_eq!(log.head("run").await, Ok(Some(rival.head())), "what was refused left no trace");

    let next = rival.clone().user("next").batch();
    let other = Head { seq: rival.head().seq, hash: Hash([9; 32]) };
    let result = log.append(Append::new("run", Some(other), next.records.clone())).await;
    assert_eq!(refused(result), LogReason::Corrupt, "the records do not follow what is expected");
    log.append(next).await.expect("the right head");
}

pub(super) async fn a_batch_is_kept_whole_or_not_at_all(log: &dyn Log) {
    let mut run = Sample::new("run", 0).tool_turn();
    let first = run.batch();
    let head = run.head();
    let fresh = |records| Append::new("run", None, records);
    let mut swapped = first.records.clone();
    swapped.swap(2, 3);
    let mut cut = first.records.clone();
    cut.remove(2);
    let mut doubled = first.records.clone();
    doubled.insert(2, doubled[2].clone());
    let mut strange = first.records.clone();
    strange.push(Sample::new("strange", 0).tool_turn().user("x").batch().records.remove(6));
    let late = first.records[1..].to_vec();
    for records in [swapped, cut, doubled, strange, late, vec![]] {
        assert_eq!(refused(log.append(fresh(records)).await), LogReason::Corrupt);
        assert_eq!(log.head("run").await, Ok(None), "nothing of a refused batch is kept");
    }
    log.append(first).await.expect("a sound batch");

    let mut twice = run.clone().user("x").batch();
    twice.records.push(twice.records[0].clone());
    assert_eq!(refused(log.append(twice).await), LogReason::Corrupt);
    let result = log.append(Append::new("run", Some(head), vec![])).await;
    assert_eq!(refused(result), LogReason::Corrupt, "an append holds at least one record");
    assert_eq!(log.head("run").await, Ok(Some(head)));
    assert_eq!(log.read("run", 1, 100).await.map(|records| records.len()), Ok(6));
}

pub(super) async fn nothing_follows_a_seal(log: &dyn Log) {
    let mut run = Sample::new("run", 0).sealed().user("too late");
    let mut batch = run.batch();
    assert_eq!(refused(log.append(batch.clone()).await), LogReason::Corrupt, "in the same batch");
    let late = batch.records.pop().expect("four records");
    let head = log.append(batch).await.expect("a run with its seal");
    let result = log.append(Append::new("run", Some(head), vec![late])).await;
    assert_eq!(refused(result), LogReason::Sealed);
    assert_eq!(log.head("run").await, Ok(Some(head)));
}

pub(super) async fn of_those_who_append_after_one_head_one_wins(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    for round in 0..8 {
        let rivals: Vec<Sample> =
            (0..8).map(|n| run.clone().user(&format!("{round} by {n}"))).collect();
        let appends = rivals.iter().map(|rival| log.append(rival.clone().batch())).collect();
        let results = all(appends).await;
        let winners: Vec<usize> = (0..8).filter(|n| results[*n].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        let losses = results.into_iter().filter(Result::is_err);
        losses.for_each(|loss| assert_eq!(refused(loss), LogReason::HeadMismatch));
        run = rivals[winners[0]].clone();
        run.take();
    }
    let report = crate::verify_run(log, "run").await.expect("a sound run");
    assert_eq!(report.records, 9);
}

pub(super) async fn the_same_batch_twice_is_kept_once(log: &dyn Log) {
    let mut run = Sample::new("run", 0).tool_turn();
    for end in [false, false, true] {
        run = if end { run.seal() } else { run.user("more").tool_turn() };
        let batch = run.batch();
        let summary = async || log.run("run").await.expect("an index");
        assert_eq!(log.append(batch.clone()).await, Ok(run.head()));
        let told = summary().await;
        let twice = all(vec![log.append(batch.clone()), log.append(batch)]).await;
        assert_eq!(twice, [Ok(run.head()), Ok(run.head())]);
        assert_eq!(summary().await, told, "nothing is counted twice");
    }
    let report = crate::verify_run(log, "run").await.expect("a sound run");
    assert_eq!(report.status.as_str(), "verified");
    assert_eq!(log.seals(0, 9).await.map(|seals| seals.len()), Ok(1));
}

pub(super) async fn an_answer_that_was_lost_is_given_again(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    // The caller was not informed whether it was appended.
    drop(begin(&mut log.append(run.clone().batch())).await);
    assert_eq!(log.append(run.batch()).await, Ok(run.head()));
    let ann = log.lease("run", "ann", HOUR).await.expect("a free run");
    run = run.user("by ann");
    let batch = run.batch().fenced(&ann);
    log.append(batch.clone()).await.expect("the holder");
    log.release(&ann);
    assert_eq!(log.append(batch.clone()).await, Ok(run.head()), "the records are there");
    let bob = log.lease("run", "bob", HOUR).await.expect("a free run");
    assert_eq!(log.append(batch).await, Ok(run.head()), "whoever has the run by now");
    run = run.user("by bob").stopped(HaltReason::AskUser);
    let batch = run.batch().fenced(&bob);
    for _ in 0..2 {
        assert_eq!(log.append(batch.clone()).await, Ok(run.head()), "the run waits");
    }
    let report = crate::verify_run(log, "run").await.expect("a sound run");
    assert_eq!(report.records, run.head().seq);
}

pub(super) async fn a_batch_that_is_not_the_end_any_more_is_refused(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let ann = log.lease("run", "ann", OVER).await.expect("a free run");
    let mut unsent = run.clone().user("by ann, unsent");
    run = run.user("by ann");
    let sent = run.batch().fenced(&ann);
    log.append(sent.clone()).await.expect("the holder");
    let bob = log.lease("run", "bob", HOUR).await.expect("a lease that has run out");
    let unsent = unsent.batch().fenced(&ann);
    assert_eq!(refused(log.append(unsent.clone()).await), LogReason::Fenced, "it is not there");
    log.append(run.user("by bob").batch().fenced(&bob)).await.expect("the new holder");
    for batch in [sent, unsent] {
        assert_eq!(refused(log.append(batch).await), LogReason::Fenced);
    }
    assert_eq!(log.head("run").await.map(|head| head.map(|head| head.seq)), Ok(Some(3)));
}

pub(super) async fn a_refused_append_does_not_trouble_its_neighbours(log: &dyn Log) {
    let mut runs: Vec<Sample> = (0..32).map(|n| Sample::new(format!("run-{n}"), n)).collect();
    let begun = all(runs.iter_mut().map(|run| log.append(run.batch())).collect()).await;
    assert!(begun.iter().all(Result::is_ok), "{begun:?}");
    let batch = |(n, run): (usize, &mut Sample)| {
        let mut batch = run.clone().user("more").batch();
        if n % 4 == 0 {
            batch.expected = None;
            batch.records = Sample::new(format!("run-{n}"), 7).batch().records;
        }
        log.append(batch)
    };
    let results = all(runs.iter_mut().enumerate().map(batch).collect()).await;
    for (n, result) in results.into_iter().enumerate() {
        match n % 4 {
            0 => assert_eq!(refused(result), LogReason::HeadMismatch),
            _ => assert_eq!(result.map(|head| head.seq), Ok(2)),
        }
        let report = crate::verify_run(log, &format!("run-{n}")).await.expect("a sound run");
        assert_eq!(report.records, if n % 4 == 0 { 1 } else { 2 });
    }
}
