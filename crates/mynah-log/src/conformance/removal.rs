//! What is removed.

use mynah_data::{HaltReason, LogReason, Result, Thread};

use super::{HOUR, OVER, Sample, all, refused};
use crate::{
    About, Append, Auditor, Chain, Extent, Fact, Hash, Head, Kind, Log, MAINTENANCE, Previous,
    Prune, Record, Redact, Removals, Removed, RunFilter, RunStatus, RunSummary, SealedRun,
    SessionLink, Stripped, Tombstone, Warrant, log::BoxFuture, verify_run, verify_seals,
};

pub(super) async fn a_redacted_run_still_verifies(log: &dyn Log) {
    let mut run = Sample::new("run", 0).user("my name is Ann").tool_turn().sealed();
    log.append(run.batch()).await.expect("a run");
    let before = log.read("run", 1, 100).await.expect("records");
    let summary = log.run("run").await.expect("an index");

    let redact = Redact::kind("run", Kind::UserMessage);
    let found = redact.candidates(log).await.expect("a dry run");
    assert_eq!(found.iter().map(|found| found.seq).collect::<Vec<_>>(), [2, 7]);
    assert_eq!(log.read("run", 1, 100).await.as_ref(), Ok(&before), "a dry run changes nothing");
    assert_eq!(log.head(MAINTENANCE).await, Ok(None));

    assert_eq!(redact.perform(log, &warrant(99)).await.as_ref(), Ok(&found));
    let after = log.read("run", 1, 100).await.expect("records");
    for (old, new) in before.iter().zip(&after) {
        let is_gone = [2, 7].contains(&old.seq());
        let expected = if is_gone { old.clone().without_body() } else { old.clone() };
        assert_eq!(new, &expected);
    }
    assert_eq!(log.run("run").await, summary.clone().map_or(Ok(None), |run| Ok(Some(run))));
    let report = verify_run(log, "run").await.expect("a sound run");
    assert_eq!((report.status.as_str(), report.records, report.redacted), ("verified", 9, 2));

    let tombstones = log.read(MAINTENANCE, 1, 100).await.expect("tombstones");
    let [tombstone] = &tombstones[..] else { panic!("{tombstones:?}") };
    assert_eq!((tombstone.seq(), tombstone.envelope().ts), (1, 99));
    let bodies = found.iter().map(|found| Stripped::new(found.seq, found.hash)).collect();
    assert_eq!(tombstone.fact(), Ok(Some(buried("run", Removed::Bodies(bodies)))));
    assert_eq!(
        redact.perform(log, &warrant(100)).await,
        Ok(vec![]),
        "there is nothing left to take"
    );

    let rest = Redact::all("run").perform(log, &warrant(101)).await.expect("the rest");
    assert_eq!(rest.iter().map(|found| found.seq).collect::<Vec<_>>(), [1, 3, 4, 5, 6, 8]);
    assert_eq!(verify_run(log, "run").await.map(|report| report.redacted), Ok(8));
    assert_eq!(log.head(MAINTENANCE).await.map(|head| head.map(|head| head.seq)), Ok(Some(2)));
    assert_eq!(Auditor::new(log).removals().await.map(Removals::head), log.head(MAINTENANCE).await);
    for wrong in [
        Redact::records("run", [9]),
        Redact::records("run", [10]),
        Redact::records("run", [0]),
        Redact::kind("run", Kind::Sealed),
        Redact::all(MAINTENANCE),
    ] {
        let error = wrong.perform(log, &warrant(102)).await.expect_err("a wrong choice");
        assert!(matches!(error.kind(), mynah_data::ErrorKind::Validation(_)), "{error}");
    }
    assert_eq!(refused(Redact::all("other").candidates(log).await), LogReason::RunNotFound);
}

pub(super) async fn what_a_tombstone_names_must_be_there(log: &dyn Log) {
    let mut run = Sample::new("run", 0).user("two").sealed();
    log.append(run.batch()).await.expect("a run");
    let mut open = Sample::new("open", 0).user("two");
    log.append(open.batch()).await.expect("a run");
    let hash = |seq: u64| async move { log.read("run", seq, 1).await.expect("a record")[0].hash() };
    let whole = |head: Head, sealed| Removed::Run { records: head.seq, hash: head.hash, sealed };
    let wrong = [
        ("run", Removed::Bodies(vec![Stripped::new(2, Hash([9; 32]))]), LogReason::Corrupt),
        (
            "run",
            Removed::Bodies(vec![Stripped::new(2, hash(2).await), Stripped::new(5, hash(2).await)]),
            LogReason::Corrupt,
        ),
        ("run", Removed::Bodies(vec![Stripped::new(0, hash(1).await)]), LogReason::Corrupt),
        ("run", Removed::Bodies(vec![Stripped::new(4, hash(4).await)]), LogReason::Corrupt),
        ("run", whole(open.head(), true), LogReason::HeadMismatch),
        ("run", whole(run.head(), false), LogReason::HeadMismatch),
        ("open", whole(open.head(), true), LogReason::HeadMismatch),
        ("other", whole(open.head(), true), LogReason::RunNotFound),
        (MAINTENANCE, whole(open.head(), true), LogReason::Corrupt),
    ];
    for (run, removed, reason) in wrong {
        // One that is right does not help the one that is wrong.
        let right = buried("open", Removed::Bodies(vec![Stripped::new(2, open.head().hash)]));
        let told = format!("{removed:?}");
        let batch = tombstones([right, buried(run, removed)]);
        assert_eq!(refused(log.append(batch).await), reason, "{told}");
    }
    assert_eq!(verify_run(log, "open").await.map(|report| report.redacted), Ok(0));
    let twice = [buried("run", whole(run.head(), true)), buried("run", whole(run.head(), true))];
    assert_eq!(refused(log.append(tombstones(twice)).await), LogReason::Corrupt);

    let held = log.lease("open", "ann", HOUR).await.expect("a free run");
    let gone = tombstones([buried("open", whole(open.head(), false))]);
    assert_eq!(refused(log.append(gone.clone()).await), LogReason::Leased);
    log.lease("open", &held.owner, OVER).await.expect("one's own run");
    let head = log.append(gone.clone()).await.expect("a run that nobody holds any more");
    assert_eq!(log.append(gone).await, Ok(head), "an answer that was lost is given again");
    assert_eq!(log.head("open").await, Ok(None));
    verify_run(log, "run").await.expect("a sound run");
    verify_seals(log).await.expect("a sound list");
}

pub(super) async fn the_maintenance_run_has_tombstones_and_nothing_else(log: &dyn Log) {
    let mut strange = Sample::new(MAINTENANCE, 0);
    assert_eq!(refused(log.append(strange.batch()).await), LogReason::Corrupt);
    let mut run = Sample::new("run", 0).user("two");
    log.append(run.batch()).await.expect("a run");
    let misplaced = run.with(buried("run", Removed::Bodies(vec![]))).batch();
    assert_eq!(refused(log.append(misplaced).await), LogReason::Corrupt);
    let mut bare = tombstones([buried("run", Removed::Bodies(vec![]))]);
    bare.records = bare.records.into_iter().map(Record::without_body).collect();
    assert_eq!(refused(log.append(bare).await), LogReason::Corrupt);
    Redact::all("run").perform(log, &warrant(1)).await.expect("a run");
    let seal = tombstones([buried("run", Removed::Bodies(vec![]))]);
    assert_eq!(refused(log.append(seal).await), LogReason::HeadMismatch, "it is a chain like any");
    assert_eq!(listed(log, RunFilter::new()).await, ["run"], "it is not listed");
    assert_eq!(listed(log, RunFilter::new().prefix("log")).await, [""; 0]);
    let report = verify_run(log, MAINTENANCE).await.expect("a sound chain");
    assert_eq!((report.status.as_str(), report.records), ("in_progress", 1));
}

pub(super) async fn records_may_come_without_bodies_if_a_tombstone_says_so(log: &dyn Log) {
    let mut batch = Sample::new("run", 0).tool_turn().sealed().batch();
    let adds = batch.records[2].gist().adds.clone();
    batch.records[2] = batch.records[2].clone().without_body();
    let (records, hash) = (batch.records.clone(), batch.records[2].hash());
    log.append(batch).await.expect("a run with a body less");
    assert_eq!(log.read("run", 1, 100).await, Ok(records));
    let error = verify_run(log, "run").await.expect_err("a body that is missing");
    assert_eq!(error.metadata()["seq"], 3, "{error}");
    assert_eq!(refused::<()>(Err(error)), LogReason::Corrupt);

    let stripped = Stripped::new(3, hash).adding(adds);
    let batch = tombstones([buried("run", Removed::Bodies(vec![stripped]))]);
    log.append(batch).await.expect("a tombstone for what is not there");
    let report = verify_run(log, "run").await.expect("a sound run");
    assert_eq!((report.status.as_str(), report.redacted), ("verified", 1));

    let mut open = Sample::new("open", 0);
    log.append(open.batch()).await.expect("a run");
    let mut more = open.user("two").sealed().batch();
    more.records[0] = more.records[0].clone().without_body();
    let bury = async |seq, hash| {
        let mut chain = Removals::read(log).await.expect("tombstones").into_chain();
        let bodies = Removed::Bodies(vec![Stripped::new(seq, hash)]);
        let (expected, fact) = (chain.head(), buried("open", bodies));
        let record = chain.append(0, [0; 16], &fact).expect("a fact that can be encoded");
        log.append(Append::new(MAINTENANCE, expected, vec![record])).await
    };
    let held = log.lease("open", "ann", HOUR).await.expect("a free run");
    let early = bury(2, more.records[0].hash()).await;
    assert_eq!(refused(early), LogReason::Leased, "what is to come is for its holder to say");
    log.release(&held);
    // A read of the run waits for the release, so every handle sees it afterwards.
    log.head("open").await.expect("the run");
    bury(2, more.records[0].hash()).await.expect("a tombstone for what is to come");
    let report = verify_run(log, "open").await.expect("a sound beginning");
    assert_eq!((report.status.as_str(), report.redacted), ("in_progress", 0));
    log.append(more).await.expect("a record with a body less");
    let report = verify_run(log, "open").await.expect("a sound run");
    assert_eq!((report.status.as_str(), report.redacted), ("verified", 1));
    assert_eq!(refused(bury(4, hash).await), LogReason::Corrupt, "nothing is to come");
}

pub(super) async fn pruned_runs_are_gone_and_their_seals_stay(log: &dyn Log) {
    for n in 0..5 {
        let mut run = Sample::new(format!("run-{n}"), n * 100).tool_turn().sealed();
        log.append(run.batch()).await.expect("a run");
    }
    let seals = log.seals(0, 100).await.expect("seals");
    let prune = Prune::before(300).limit(2);
    let found = prune.candidates(log).await.expect("a dry run");
    assert_eq!(found.iter().map(|run| &*run.run_id).collect::<Vec<_>>(), ["run-0", "run-1"]);
    assert_eq!(listed(log, RunFilter::new()).await.len(), 5, "a dry run changes nothing");

    let done = prune.perform(log, &warrant(999)).await.expect("two runs");
    assert_eq!((&done.pruned, done.in_use), (&found, vec![]));
    assert_eq!(listed(log, RunFilter::new()).await, ["run-4", "run-3", "run-2"]);
    for run in ["run-0", "run-1"] {
        assert_eq!(log.run(run).await, Ok(None));
        assert_eq!(log.head(run).await, Ok(None));
        assert_eq!(log.read(run, 1, 10).await, Ok(vec![]));
        assert_eq!(refused(verify_run(log, run).await), LogReason::Pruned);
        let again = Sample::new(run, 7).batch();
        assert_eq!(
            refused(log.append(again).await),
            LogReason::Pruned,
            "its id is not given again"
        );
    }
    let leaves = log.seals(0, 100).await.expect("leaves");
    assert_eq!(leaves[..5], seals, "the seals stay");
    let buried_hashes = log.read(MAINTENANCE, 1, 10).await.expect("tombstones");
    let buried_hashes =
        buried_hashes.iter().map(|record| SealedRun::new(MAINTENANCE, record.hash()));
    assert_eq!(leaves[5..], buried_hashes.collect::<Vec<_>>(), "tombstones are leaves");
    assert_eq!(verify_seals(log).await.map(|tree| tree.size()), Ok(7));
    let tombstone = log.read(MAINTENANCE, 1, 1).await.expect("a tombstone").remove(0);
    let removed = Removed::Run { records: 8, hash: found[0].hash, sealed: true };
    assert_eq!(tombstone.fact(), Ok(Some(buried("run-0", removed))));
    let removals = Removals::read(log).await.expect("a sound chain");
    assert_eq!(["run-0", "run-2"].map(|run| removals.is_pruned(run)), [true, false]);
    let late = buried("run-0", Removed::Bodies(vec![Stripped::new(1, found[0].hash)]));
    let mut late = tombstones([late]);
    late.expected = None;
    assert_eq!(refused(log.append(late).await), LogReason::Pruned);

    let mut run = Sample::new("run-5", 500).sealed();
    log.append(run.batch()).await.expect("life goes on");
    assert_eq!(log.run("run-5").await.map(|run| run.and_then(|run| run.seal)), Ok(Some(7)));
    verify_seals(log).await.expect("a sound list");
    for run in listed(log, RunFilter::new()).await {
        verify_run(log, &run).await.expect("a sound run");
    }
}

pub(super) async fn what_is_pruned_is_chosen(log: &dyn Log) {
    let ends = [HaltReason::Completed, HaltReason::Error, HaltReason::Cancelled];
    let runs = ends.into_iter().zip(["done", "failed", "cancelled"]);
    for ((reason, name), at) in runs.zip([30, 20, 10]) {
        let run = Sample::new(name, at).stopped(reason).seal();
        log.append(run.clone().batch()).await.expect("a run");
    }
    for (name, at, reason) in [("waits", 5, Some(HaltReason::AskUser)), ("runs", 6, None)] {
        let run = Sample::new(name, at);
        let mut run = reason.map_or(run.clone(), |reason| run.stopped(reason));
        log.append(run.batch()).await.expect("a run");
    }
    let chosen = async |prune: Prune| {
        let found = prune.candidates(log).await.expect("a dry run");
        found.iter().map(|run| run.run_id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(chosen(Prune::before(100)).await, ["cancelled", "failed", "done"]);
    assert_eq!(chosen(Prune::before(20)).await, ["cancelled"], "strictly before");
    assert_eq!(chosen(Prune::before(100).limit(0)).await, [""; 0]);
    assert_eq!(chosen(Prune::before(100).status(RunStatus::Failed)).await, ["failed"]);
    let all = Prune::before(100).include_unfinished();
    assert_eq!(chosen(all.clone()).await, ["waits", "runs", "cancelled", "failed", "done"]);
    assert_eq!(chosen(all.clone().status(RunStatus::Suspended)).await, ["waits"]);
    let error = Prune::before(100).status(RunStatus::Running).candidates(log).await;
    assert!(error.is_err_and(|error| error.to_string().contains("have not ended")));

    all.limit(2).perform(log, &warrant(200)).await.expect("two runs");
    assert_eq!(listed(log, RunFilter::new()).await, ["done", "failed", "cancelled"]);
    assert_eq!(listed(log, RunFilter::new().oldest_first()).await, ["cancelled", "failed", "done"]);
    let mut page = RunFilter::new().oldest_first().limit(1);
    let mut seen = Vec::new();
    loop {
        let found = log.runs(page.clone()).await.expect("a page");
        seen.extend(found.runs.iter().map(|run| run.run_id.to_string()));
        let Some(next) = found.next else { break };
        page = page.after(next);
    }
    assert_eq!(seen, ["cancelled", "failed", "done"]);
    verify_seals(log).await.expect("a sound list");
}

pub(super) async fn a_run_that_somebody_goes_on_with_is_not_pruned_and_the_others_are(
    log: &dyn Log,
) {
    for name in ["held", "left", "free"] {
        let mut run = Sample::new(name, 5).user("hi");
        log.append(run.batch()).await.expect("a run");
    }
    log.append(Sample::new("done", 5).sealed().batch()).await.expect("a run");
    let held = log.lease("held", "bob", HOUR).await.expect("a free run");
    log.lease("left", "cid", OVER).await.expect("a free run");
    let prune = Prune::before(100).include_unfinished();
    let foreseen = prune.dry_run(log, held.until - 1).await.expect("a dry run");
    let done = prune.perform(log, &warrant(200)).await.expect("a log that can be written");
    assert_eq!(foreseen, done);
    let names =
        |runs: &[RunSummary]| runs.iter().map(|run| run.run_id.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (names(&done.pruned), names(&done.in_use)),
        (vec!["left".to_owned(), "free".to_owned(), "done".to_owned()], vec!["held".to_owned()])
    );
    assert_eq!(listed(log, RunFilter::new()).await, ["held"]);
    assert_eq!(verify_seals(log).await.map(|tree| tree.size()), Ok(4));
}

pub(super) async fn what_a_run_that_stays_goes_on_from_is_not_taken_out(log: &dyn Log) {
    let mut first = Sample::of_session("first", 0, "s", None).sealed();
    log.append(first.batch()).await.expect("a turn");
    let (seq, hash) = (first.head().seq, first.head().hash);
    let previous =
        Some(Previous { run_id: "first".into(), seq, hash, messages: 1, left_out: None });
    let link = SessionLink { id: Some("s".to_owned()), previous, ..SessionLink::default() };
    let about = Some(Box::new(About { session: Some(link), ..About::default() }));
    let fact = Fact::RunStarted { thread: Thread::from("more"), extent: Extent::Chat, about };
    let record = Chain::new("second").append(9, [7; 16], &fact).expect("a fact");
    let head = Head { seq: 1, hash: record.hash() };
    log.append(Append::new("second", None, vec![record])).await.expect("the turn after it");

    let whole = |run, head: Head, sealed| {
        buried(run, Removed::Run { records: head.seq, hash: head.hash, sealed })
    };
    let needed = log.append(tombstones([whole("first", first.head(), true)])).await;
    let error = needed.expect_err("a conversation that would be lost");
    assert_eq!(error.metadata()["needed_by"], "second");
    assert_eq!(refused::<()>(Err(error)), LogReason::HeadMismatch);
    let both = [whole("second", head, false), whole("first", first.head(), true)];
    log.append(tombstones(both)).await.expect("they go together");
    assert_eq!(listed(log, RunFilter::new()).await, [""; 0]);
}

pub(super) async fn of_those_who_remove_at_once_none_is_lost(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    for n in 0..8 {
        run = run.user(&n.to_string());
    }
    log.append(run.batch()).await.expect("a run");
    let warrant = warrant(1);
    let removals = (2..10).map(|seq| {
        let (redact, warrant) = (Redact::records("run", [seq]), &warrant);
        let removal = async move { redact.perform(log, warrant).await.map(|gone| gone.len()) };
        Box::pin(removal) as BoxFuture<'_, Result<usize>>
    });
    assert_eq!(all(removals.collect()).await, vec![Ok(1); 8]);
    assert_eq!(verify_run(log, "run").await.map(|report| report.redacted), Ok(8));
    assert_eq!(log.head(MAINTENANCE).await.map(|head| head.map(|head| head.seq)), Ok(Some(8)));
}

fn warrant(at: i64) -> Warrant {
    Warrant::new("ann", "she asked for it", at)
}

/// A tombstone by that warrant.
fn buried(run: &str, removed: Removed) -> Fact {
    let (by, reason) = ("ann".to_owned(), "she asked for it".to_owned());
    Fact::Removed(Tombstone { run_id: run.into(), removed, by, reason })
}

/// The first tombstones of a log.
fn tombstones(facts: impl IntoIterator<Item = Fact>) -> Append {
    let mut chain = Chain::new(MAINTENANCE);
    let record = |fact| chain.append(1, [0; 16], &fact).expect("a fact that can be encoded");
    Append::new(MAINTENANCE, None, facts.into_iter().map(record).collect())
}

async fn listed(log: &dyn Log, filter: RunFilter) -> Vec<String> {
    let page = log.runs(filter).await.expect("a page");
    page.runs.iter().map(|run| run.run_id.to_string()).collect()
}
