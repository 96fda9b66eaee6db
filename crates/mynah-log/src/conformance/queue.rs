//! Claiming runs, messages for them, and what changed.

use std::{sync::Arc, time::Duration};

use mynah_data::{HaltReason, LogReason};

use super::{HOUR, OVER, Sample, all, begin, refused};
use crate::{Append, Lease, Log, Queue, RunStatus, log::BoxFuture};

pub(super) async fn a_beat_keeps_all_leases_of_its_process(log: &dyn Log) {
    let mut runs = ["a", "b", "c"].map(|run| Sample::new(run, 0));
    for (run, owner) in runs.iter_mut().zip(["one/x", "one/y", "two/x"]) {
        log.append(run.batch().held(owner, OVER)).await.expect("a new run");
    }
    let until = async |run: &str| {
        log.run(run).await.expect("an index").expect("a run").held_until.expect("a holder")
    };
    let before = [until("a").await, until("b").await, until("c").await];
    log.beat("one", HOUR).await.expect("a sign of life");
    assert!(until("a").await > before[0] && until("b").await > before[1]);
    assert_eq!(until("a").await, until("b").await, "one beat for all");
    assert_eq!(until("c").await, before[2], "another process");
    assert_eq!(refused(log.lease("a", "two/z", HOUR).await), LogReason::Leased);
    let seen = Some(before[1]);
    assert_eq!(refused(log.take("b", "two/z", HOUR, seen).await), LogReason::Leased);
    log.lease("c", "one/z", HOUR).await.expect("a process that is silent");

    // A beat of a holder is one of its process, and each can be seen.
    let mut last = until("a").await;
    for owner in ["one", "one/x", "one/anyone", "one"] {
        for term in [Duration::MAX, HOUR, HOUR] {
            log.beat(owner, term).await.expect("a sign of life");
            let now = until("b").await;
            assert_ne!(now, last, "each beat can be seen, whatever the clock says");
            last = now;
        }
    }
    // It gives no right to a run: what was taken or given back stays so.
    let taken = log.take("a", "two/z", HOUR, Some(last)).await.expect("a silent owner");
    log.beat("one", HOUR).await.expect("a sign of life");
    let late = runs[0].clone().user("late").batch().fenced(&Lease::new("a", "one/x", 1, 0));
    assert_eq!(refused(log.append(late).await), LogReason::Fenced);
    log.release(&taken);
    log.beat("two", HOUR).await.expect("a sign of life");
    assert_eq!(log.run("a").await.map(|run| run.and_then(|run| run.held_until)), Ok(None));
    log.beat("stranger", HOUR).await.expect("a process without runs");
}

pub(super) async fn a_release_takes_effect_before_what_is_asked_next(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch().held("ann", HOUR)).await.expect("a new run");
    let mut lease = Lease::new("run", "ann", 1, 0);
    for n in 0..10 {
        log.release(&lease);
        lease = log.lease("run", ["ann", "bob"][n % 2], HOUR).await.expect("it is free");
        assert_eq!(lease.token, n as u64 + 2);
    }
    run = run.user("more");
    // An append that is dropped once it has begun is made before the release that follows it.
    let batch = run.batch().fenced(&lease);
    let mut append: BoxFuture<'_, _> = log.append(batch);
    let _ = begin(&mut append).await;
    drop(append);
    log.release(&lease);
    let taken = log.take("run", "cid", HOUR, None).await.expect("it is free");
    assert_eq!(taken.token, lease.token + 1);
    assert_eq!(log.head("run").await, Ok(Some(run.head())), "what was dropped is there");
    // Without a runtime.
    let log_dropped = std::thread::scope(|scope| scope.spawn(|| log.release(&taken)).join());
    log_dropped.expect("no panic");
    log.take("run", "dan", HOUR, None).await.expect("it is free");
}

/// Claims by an owner that lives, and gives the ids.
async fn claimed(log: &dyn Log, owner: &str, queues: &[&str], limit: usize) -> Vec<String> {
    let leases = log.claim(owner, HOUR, queues, limit).await.expect("an answer");
    assert!(leases.iter().all(|lease| lease.owner == owner && lease.token > 0), "{leases:?}");
    leases.iter().map(|lease| lease.run_id.to_string()).collect()
}

pub(super) async fn runs_of_a_queue_are_claimed_once_by_priority_and_age(log: &dyn Log) {
    let runs = [
        ("late", 30, Some(Queue::new("q"))),
        ("early", 10, Some(Queue::new("q"))),
        ("urgent", 40, Some(Queue::new("q").priority(7))),
        ("minor", 5, Some(Queue::new("q").priority(-1))),
        ("other", 1, Some(Queue::new("r"))),
        ("private", 2, None),
    ];
    for (run, started, queue) in runs {
        let batch = Sample::new(run, started).batch().queue(queue.clone());
        log.append(batch).await.expect("a new run");
        let found = log.run(run).await.expect("an index").expect("a run").queue;
        assert_eq!(found.as_deref(), queue.as_ref(), "the index has it");
    }
    let held = Sample::new("held", 0).batch().queue(Queue::new("q")).held("ann", HOUR);
    log.append(held).await.expect("a new run");
    let mut ended = Sample::new("ended", 0).sealed();
    log.append(ended.batch().queue(Queue::new("q"))).await.expect("a new run");
    assert_eq!(claimed(log, "bob", &[], 9).await, [""; 0]);
    assert_eq!(claimed(log, "bob", &["none"], 9).await, [""; 0]);
    assert_eq!(claimed(log, "bob", &["q"], 0).await, [""; 0]);
    assert_eq!(claimed(log, "bob", &["q"], 2).await, ["urgent", "early"]);
    assert_eq!(claimed(log, "cid", &["q", "r"], 9).await, ["other", "late", "minor"]);
    assert_eq!(claimed(log, "dan", &["q", "r"], 9).await, [""; 0], "all are held");

    // What its owner gives back, and what an owner that is silent held, is there for others.
    let lease = log.lease("late", "cid", HOUR).await.expect("one's own run");
    log.release(&lease);
    let [late] = &*log.claim("dan", HOUR, &["q"], 9).await.expect("an answer") else {
        panic!("one run");
    };
    assert_eq!((&*late.run_id, late.taken_over), ("late", false));
    log.beat("bob", OVER).await.expect("the last sign of life");
    let again = log.claim("eve", HOUR, &["q"], 9).await.expect("an answer");
    let told = again.iter().map(|lease| (&*lease.run_id, lease.token, lease.taken_over));
    assert_eq!(told.collect::<Vec<_>>(), [("urgent", 2, true), ("early", 2, true)]);
    let mut early = Sample::new("early", 10);
    let _ = early.take();
    let late = early.clone().user("by bob").batch().fenced(&Lease::new("early", "bob", 1, 0));
    assert_eq!(refused(log.append(late).await), LogReason::Fenced);
    let batch = early.user("by eve").batch().fenced(&again[1]);
    log.append(batch).await.expect("the new owner");

    // Of those who claim at once, each gets others.
    for n in 0..20 {
        let batch = Sample::new(format!("n-{n:02}"), n).batch().queue(Queue::new("many"));
        log.append(batch).await.expect("a new run");
    }
    let owners: Vec<String> = (0..5).map(|n| format!("w{n}")).collect();
    let claims = owners.iter().map(|owner| log.claim(owner, HOUR, &["many"], 7)).collect();
    let mut got = Vec::new();
    for leases in all(claims).await {
        got.extend(leases.expect("an answer").into_iter().map(|lease| lease.run_id));
    }
    got.sort();
    got.dedup();
    assert!(got.len() >= 7, "{got:?}");
    got.extend(claimed(log, "rest", &["many"], 20).await.into_iter().map(Into::into));
    let (count, _) = (got.len(), got.sort());
    got.dedup();
    assert_eq!((count, got.len()), (20, 20), "each once");
}

pub(super) async fn a_claim_whose_answer_is_lost_keeps_no_run_from_others(log: &dyn Log) {
    let queue = Queue::new("q").concurrency("customer", 2);
    for n in 0..3 {
        let batch = Sample::new(format!("run-{n}"), n).batch().queue(queue.clone());
        log.append(batch).await.expect("a new run");
    }
    let first = log.claim("p/lost", HOUR, &["q"], 9).await.expect("an answer");
    assert_eq!(first.len(), 2);
    // Its process lives, and so others do not get them. Who asks again by the same name does.
    assert_eq!(claimed(log, "p/other", &["q"], 9).await, [""; 0]);
    let again = log.claim("p/lost", HOUR, &["q"], 9).await.expect("an answer");
    let runs =
        |leases: &[Lease]| leases.iter().map(|lease| lease.run_id.clone()).collect::<Vec<_>>();
    assert_eq!(runs(&first), runs(&again), "its own do not count against the limit");
    assert!(first.iter().zip(&again).all(|(old, new)| old.token < new.token), "{again:?}");
    // What the first answer gave is over: it can neither write nor give back.
    first.iter().for_each(|lease| log.release(lease));
    assert_eq!(claimed(log, "p/other", &["q"], 9).await, [""; 0]);
    again.iter().for_each(|lease| log.release(lease));
    // A claim that is dropped is given back, whether it was made or not.
    for n in 0..20 {
        let owner = format!("p/dropped-{n}");
        let mut claim = log.claim(&owner, HOUR, &["q"], 9);
        let done = begin(&mut claim).await;
        drop(claim);
        done.into_iter().flatten().flatten().for_each(|lease| log.release(&lease));
    }
    let mut leases = Vec::new();
    while leases.len() < 2 {
        leases = log.claim("p/last", HOUR, &["q"], 9).await.expect("an answer");
    }
}

pub(super) async fn a_run_without_a_queue_gets_one_later(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    assert_eq!(log.deliver("run", "m1", b"yes".to_vec()).await, Ok(true));
    assert_eq!(claimed(log, "ann", &["q", "r"], 9).await, [""; 0]);
    run = run.user("one");
    let batch = run.batch().queue(Queue::new("q").priority(3).concurrency("key", 2));
    log.append(batch).await.expect("the next records");
    run = run.user("two").stopped(HaltReason::AskUser);
    log.append(run.batch().queue(Queue::new("r"))).await.expect("the next records");
    let found = log.run("run").await.expect("an index").expect("a run").queue;
    let queue = Queue::new("q").priority(3).concurrency("key", 2);
    assert_eq!(found.as_deref(), Some(&queue), "a run keeps its queue");
    assert_eq!(claimed(log, "ann", &["q", "r"], 9).await, ["run"], "a message waits");
}

pub(super) async fn runs_that_wait_are_claimed_when_they_can_continue(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    log.append(run.batch().queue(Queue::new("q"))).await.expect("a new run");
    let [lease] = &*log.claim("ann", HOUR, &["q"], 9).await.expect("an answer") else {
        panic!("one run");
    };
    let wakes = async || log.run("run").await.expect("an index").expect("a run").wake_at;
    // Parked for long: it has no owner and is not claimed.
    run = run.user("wait");
    log.append(run.batch().fenced(lease).wake_at(i64::MAX - 1)).await.expect("the holder");
    assert_eq!(wakes().await, Some(i64::MAX - 1));
    assert_eq!(claimed(log, "bob", &["q"], 9).await, [""; 0]);
    let lease = log.take("run", "bob", HOUR, None).await.expect("nobody holds it");
    // Parked until a time that is over.
    run = run.user("again");
    log.append(run.batch().fenced(&lease).wake_at(1)).await.expect("the holder");
    assert_eq!(claimed(log, "cid", &["q"], 9).await, ["run"]);
    let lease = log.lease("run", "cid", HOUR).await.expect("one's own run");
    // Suspended, and woken by a message.
    run = run.stopped(HaltReason::AskUser);
    log.append(run.batch().fenced(&lease)).await.expect("the holder");
    assert_eq!(wakes().await, None, "each append says it anew");
    assert_eq!(claimed(log, "dan", &["q"], 9).await, [""; 0]);
    assert_eq!(log.deliver("run", "m1", b"yes".to_vec()).await, Ok(true));
    assert_eq!(claimed(log, "dan", &["q"], 9).await, ["run"]);
    let lease = log.lease("run", "dan", HOUR).await.expect("one's own run");
    // A message that is left keeps it from sleeping.
    assert_eq!(log.deliver("run", "m2", b"and".to_vec()).await, Ok(true));
    run = run.user("yes").stopped(HaltReason::AskUser);
    log.append(run.batch().fenced(&lease).consume(["m1"])).await.expect("the holder");
    assert_eq!(claimed(log, "eve", &["q"], 9).await, ["run"]);
    let lease = log.lease("run", "eve", HOUR).await.expect("one's own run");
    run = run.user("and").stopped(HaltReason::AskUser);
    let parked = run.batch().fenced(&lease).consume(["m2"]).wake_at(i64::MAX - 1);
    log.append(parked).await.expect("the holder");
    assert_eq!(claimed(log, "fay", &["q"], 9).await, [""; 0]);
    assert_eq!(log.deliver("run", "m3", b"now".to_vec()).await, Ok(true));
    assert_eq!(claimed(log, "fay", &["q"], 9).await, ["run"], "a message ends a pause");
}

pub(super) async fn a_concurrency_key_limits_how_many_are_held(log: &dyn Log) {
    for n in 0..4 {
        let queue = Queue::new(["q", "r"][n % 2]).concurrency("customer", 2);
        let batch = Sample::new(format!("a{n}"), n as i64).batch().queue(queue);
        log.append(batch).await.expect("a new run");
    }
    let single = Queue::new("q").concurrency("other", 1);
    for n in 0..2 {
        let batch = Sample::new(format!("b{n}"), 10 + n).batch().queue(single.clone());
        log.append(batch).await.expect("a new run");
    }
    let none = Queue::new("q").concurrency("none", 0);
    log.append(Sample::new("c", 0).batch().queue(none)).await.expect("a new run");
    assert_eq!(claimed(log, "ann", &["q", "r"], 1).await, ["a0"]);
    assert_eq!(claimed(log, "bob", &["q", "r"], 9).await, ["a1", "b0"]);
    assert_eq!(claimed(log, "cid", &["q", "r"], 9).await, [""; 0]);
    let lease = log.lease("a0", "ann", HOUR).await.expect("one's own run");
    let mut ended = Sample::new("a0", 0);
    let _ = ended.take();
    log.append(ended.sealed().batch().fenced(&lease)).await.expect("the end");
    assert_eq!(claimed(log, "cid", &["q", "r"], 9).await, ["a2"], "one is done");
    log.beat("bob", OVER).await.expect("the last sign of life");
    let mut free = claimed(log, "dan", &["q", "r"], 9).await;
    free.sort();
    assert_eq!(free, ["a1", "b0"], "two owners died, and a2 is held");
}

pub(super) async fn a_message_is_delivered_once_and_consumed_with_a_fact(log: &dyn Log) {
    assert_eq!(refused(log.deliver("run", "m", Vec::new()).await), LogReason::RunNotFound);
    let mut run = Sample::new("run", 0);
    log.append(run.batch().held("ann", HOUR)).await.expect("a new run");
    let ann = Lease::new("run", "ann", 1, 0);
    for id in ["", &*"x".repeat(256)] {
        let error = log.deliver("run", id, Vec::new()).await.expect_err("an id");
        assert!(error.is_validation(), "{error}");
    }
    // Any process may deliver, also while another holds the run.
    for (id, is_new) in [("b", true), ("a", true), ("b", false), ("c", true)] {
        let payload = format!("\0{id}").into_bytes();
        assert_eq!(log.deliver("run", id, payload).await, Ok(is_new), "{id}");
    }
    let inbox = async |limit| {
        let found = log.inbox("run", limit).await.expect("an inbox");
        assert!(
            found.iter().all(|message| message.payload == format!("\0{}", message.id).as_bytes())
        );
        assert!(found.is_sorted_by_key(|message| message.at));
        found.into_iter().map(|message| message.id).collect::<Vec<_>>()
    };
    assert_eq!(inbox(9).await, ["b", "a", "c"], "in the order of arrival");
    assert_eq!(inbox(2).await, ["b", "a"]);
    assert_eq!(log.inbox("none", 9).await, Ok(Vec::new()));

    run = run.user("a and c");
    let batch = run.batch().consume(["a", "c", "unknown"]);
    assert_eq!(refused(log.append(batch.clone()).await), LogReason::Leased);
    assert_eq!(inbox(9).await, ["b", "a", "c"], "what is refused consumes nothing");
    let batch = batch.fenced(&ann);
    log.append(batch.clone()).await.expect("the holder");
    assert_eq!(inbox(9).await, ["b"]);
    assert_eq!(log.deliver("run", "d", b"\0d".to_vec()).await, Ok(true));
    log.append(batch).await.expect("the same again");
    assert_eq!(log.deliver("run", "a", b"\0a".to_vec()).await, Ok(false), "it was consumed");
    assert_eq!(inbox(9).await, ["b", "d"]);
    for (run, id, was) in
        [("run", "a", true), ("run", "b", true), ("run", "unknown", false), ("none", "a", false)]
    {
        assert_eq!(log.was_delivered(run, id).await, Ok(was), "{id} of {run}");
    }

    let same = (0..8).map(|_| log.deliver("run", "e", b"\0e".to_vec())).collect();
    let new = all(same).await.into_iter().filter(|told| *told == Ok(true)).count();
    assert_eq!(new, 1, "of those who deliver one message at once, one is the first");

    log.append(run.user("end").sealed().batch().fenced(&ann)).await.expect("the end");
    assert_eq!(inbox(9).await, [""; 0], "a run that has ended has no messages");
    assert_eq!(refused(log.deliver("run", "f", Vec::new()).await), LogReason::Sealed);
    assert_eq!(log.deliver("run", "a", Vec::new()).await, Ok(false), "that it came is known");
}

pub(super) async fn what_changed_is_returned_once_for_each_cursor(log: &dyn Log) {
    let mut old = Sample::new("old", 0);
    log.append(old.batch()).await.expect("a new run");
    let start = log.changes(None, 9).await.expect("a cursor");
    assert_eq!(start.runs, [], "from now on");
    let since = async |cursor: &str| {
        let (mut cursor, mut found) = (cursor.to_owned(), Vec::<(String, _)>::new());
        loop {
            let changes = log.changes(Some(&cursor), 2).await.expect("changes");
            assert!(!changes.runs.iter().any(|change| *change.run_id == *crate::MAINTENANCE));
            let is_done = changes.cursor == cursor;
            cursor = changes.cursor;
            for change in changes.runs {
                found.retain(|(run, ..)| *run != *change.run_id);
                let state = (change.head, change.status, change.has_messages);
                found.push((change.run_id.to_string(), state));
            }
            if is_done {
                found.sort_by(|one, other| one.0.cmp(&other.0));
                return (cursor, found);
            }
        }
    };
    assert_eq!(since(&start.cursor).await.1, []);
    let mut runs: Vec<Sample> = (0..5).map(|n| Sample::new(format!("run-{n}"), n)).collect();
    for run in &mut runs {
        log.append(run.batch()).await.expect("a new run");
    }
    runs[0] = runs[0].clone().tool_turn().sealed();
    log.append(runs[0].batch()).await.expect("the end");
    let (cursor, found) = since(&start.cursor).await;
    let mut expected: Vec<_> = runs
        .iter()
        .map(|run| (run.run_id().to_owned(), (run.head(), RunStatus::Running, false)))
        .collect();
    expected[0].1.1 = RunStatus::Completed;
    assert_eq!(found, expected, "as they are now");
    assert_eq!(since(&cursor).await.1, []);
    log.deliver("old", "m", Vec::new()).await.expect("a message");
    let (last, found) = since(&cursor).await;
    assert_eq!(found, [("old".to_owned(), (old.head(), RunStatus::Running, true))]);
    old = old.user("m");
    log.append(old.batch().consume(["m"])).await.expect("what follows");
    let (_, found) = since(&last).await;
    assert_eq!(found, [("old".to_owned(), (old.head(), RunStatus::Running, false))]);
    let error = log.changes(Some("nonsense"), 9).await.expect_err("not a cursor");
    assert!(error.is_validation(), "{error}");
}

pub(super) async fn whoever_follows_changes_misses_none_of_those_who_append_at_once(
    log: Arc<dyn Log>,
) {
    let mut cursor = log.changes(None, 9).await.expect("a cursor").cursor;
    let mut runs: Vec<Sample> = (0..8).map(|n| Sample::new(format!("run-{n}"), n)).collect();
    let mut seen = std::collections::HashMap::new();
    let mut batches: Vec<Append> = Vec::new();
    for _ in 0..12 {
        batches.extend(runs.iter_mut().map(Sample::batch));
        let appends = batches.drain(..).map(|batch| log.append(batch)).collect();
        let following = async {
            let changes = log.changes(Some(&cursor), 3).await.expect("changes");
            cursor = changes.cursor;
            changes.runs
        };
        let (appended, changed) = join(all(appends), following).await;
        for head in appended {
            head.expect("what follows");
        }
        seen.extend(changed.into_iter().map(|change| (change.run_id, change.head)));
        runs = runs.into_iter().map(|run| run.user("more")).collect();
    }
    loop {
        let changes = log.changes(Some(&cursor), 3).await.expect("changes");
        let is_done = changes.cursor == cursor;
        cursor = changes.cursor;
        seen.extend(changes.runs.into_iter().map(|change| (change.run_id, change.head)));
        if is_done {
            break;
        }
    }
    for run in runs {
        let head = log.head(run.run_id()).await.expect("a log").expect("a run");
        assert_eq!(seen.get(run.run_id()), Some(&head), "{}", run.run_id());
    }
}

/// Performs both side by side.
async fn join<A: Send, B: Send>(
    one: impl Future<Output = A> + Send,
    other: impl Future<Output = B> + Send,
) -> (A, B) {
    let (mut a, mut b) = (None, None);
    let both: Vec<BoxFuture<'_, ()>> =
        vec![Box::pin(async { a = Some(one.await) }), Box::pin(async { b = Some(other.await) })];
    all(both).await;
    (a.expect("it is done"), b.expect("it is done"))
}

pub(super) async fn limits_hold_what_they_promise(log: &dyn Log) {
    let limits = log.limits();
    assert!(limits.record > 0 && limits.batch > 0, "{limits:?}");
    let text = "x".repeat(limits.record.min(1 << 20) - 1_000);
    let mut run = Sample::new("run", 0).user(&text);
    log.append(run.batch()).await.expect("a large record");
    assert_eq!(log.head("run").await, Ok(Some(run.head())));
}
