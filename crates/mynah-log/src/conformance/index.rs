//! The index of runs.

use mynah_data::HaltReason;

use super::Sample;
use crate::{About, Log, Parent, RunFilter, RunStatus, RunSummary, merkle};

pub(super) async fn a_summary_adds_up_what_the_records_say(log: &dyn Log) {
    let mut run = Sample::new("run", 100);
    log.append(run.batch()).await.expect("a new run");
    let summary = get(log, "run").await;
    assert_eq!((summary.status, summary.records), (RunStatus::Running, 1));
    assert_eq!((summary.started, summary.updated), (100, 100));
    assert_eq!((&summary.model, &summary.session_id, summary.seal), (&None, &None, None));

    // Sums of fractions depend on the order: batch by batch or not, it is that of the records.
    for _ in 0..3 {
        run = run.tool_turn().tool_turn();
        log.append(run.batch()).await.expect("more");
    }
    let summary = get(log, "run").await;
    assert_eq!(&summary.totals, run.totals());
    assert_eq!((summary.totals.turns, summary.totals.tool_calls), (6, 6));
    assert_eq!((summary.totals.input_tokens, summary.totals.output_tokens), (600, 60));
    assert_eq!(summary.model.as_deref(), Some("gpt-4.1-mini"));
    assert_eq!((summary.started, summary.updated), (100, run.time()));
    assert_eq!(summary.head(), run.head());

    run = run.sealed();
    log.append(run.batch()).await.expect("the end");
    let summary = get(log, "run").await;
    assert_eq!((summary.status, summary.seal), (RunStatus::Completed, Some(0)));
    let listed = log.runs(RunFilter::new()).await.expect("a list");
    assert_eq!((listed.runs, listed.next), (vec![summary], None), "the list says the same");
}

pub(super) async fn a_suspended_run_goes_on(log: &dyn Log) {
    let ends = [
        (HaltReason::AskUser, RunStatus::Suspended),
        (HaltReason::Completed, RunStatus::Completed),
        (HaltReason::Error, RunStatus::Failed),
    ];
    for (n, (reason, status)) in ends.into_iter().enumerate() {
        let mut run = Sample::new(format!("run-{n}"), 0).stopped(reason);
        log.append(run.batch()).await.expect("a run that stops");
        assert_eq!(get(log, run.run_id()).await.status, status);
    }
    let mut run = Sample::new("run", 0).stopped(HaltReason::AskUser);
    log.append(run.batch()).await.expect("a run that asks");
    run = run.user("an answer");
    log.append(run.batch()).await.expect("an answer");
    assert_eq!(get(log, "run").await.status, RunStatus::Running);
}

pub(super) async fn each_filter_picks_its_runs(log: &dyn Log) {
    let named = About { model: Some("openai:gpt-5:x".to_owned()), ..About::default() };
    let runs = [
        Sample::new("ab%c", 10),
        Sample::new("abbc", 20).tool_turn(),
        Sample::new("ab_c", 30).stopped(HaltReason::AskUser),
        Sample::new("Ab", 40).tool_turn().sealed(),
        Sample::new("b", -50),
        Sample::new("ab\u{10ffff}\u{10ffff}", 60),
        Sample::about("named", -60, Some(Box::new(named))),
    ];
    for mut run in runs {
        log.append(run.batch()).await.expect("a new run");
    }
    let all = RunFilter::new;
    let cases = [
        (all(), "ab\u{10ffff}\u{10ffff} Ab ab_c abbc ab%c b named"),
        (all().status(RunStatus::Running), "ab\u{10ffff}\u{10ffff} abbc ab%c b named"),
        (all().status(RunStatus::Suspended), "ab_c"),
        (all().status(RunStatus::Completed), "Ab"),
        (all().status(RunStatus::Failed), ""),
        (all().model("gpt-4.1-mini"), "Ab abbc"),
        (all().model("gpt"), ""),
        (all().model("openai:gpt-5:x"), "named"),
        (all().model("gpt-5:x"), "named"),
        (all().model("x"), ""),
        (all().model("openai"), ""),
        (all().model(""), ""),
        (all().session("s"), ""),
        (all().since(30), "ab\u{10ffff}\u{10ffff} Ab ab_c"),
        (all().prefix("ab"), "ab\u{10ffff}\u{10ffff} ab_c abbc ab%c"),
        (all().prefix("ab%"), "ab%c"),
        (all().prefix("ab_"), "ab_c"),
        (all().prefix("ab\u{10ffff}"), "ab\u{10ffff}\u{10ffff}"),
        (all().prefix("\u{10ffff}"), ""),
        (all().prefix(""), "ab\u{10ffff}\u{10ffff} Ab ab_c abbc ab%c b named"),
        (all().limit(2), "ab\u{10ffff}\u{10ffff} Ab"),
        (all().limit(2).prefix("ab").status(RunStatus::Running), "ab\u{10ffff}\u{10ffff} abbc"),
    ];
    for (filter, expected) in cases {
        let page = log.runs(filter.clone()).await.expect("a list");
        let ids: Vec<&str> = page.runs.iter().map(|run| &*run.run_id).collect();
        assert_eq!(ids.join(" "), expected, "{filter:?}");
    }
    let error = log.runs(all().after("nonsense")).await.expect_err("no page ended there");
    assert!(error.is_validation(), "{error}");
}

pub(super) async fn the_turns_of_a_session_are_listed_without_its_branches(log: &dyn Log) {
    let mut first = Sample::of_session("first", 10, "s", None).sealed();
    let parent = Parent {
        run_id: "first".into(),
        seq: 1,
        hash: first.head().hash,
        active: 0,
        continues: None,
    };
    let mut others = [
        Sample::of_session("branch", 20, "s", Some(parent)),
        Sample::of_session("second", 30, "s", None).tool_turn(),
        Sample::of_session("another", 40, "t", None),
        Sample::new("alone", 50),
    ];
    log.append(first.batch()).await.expect("a new run");
    for run in &mut others {
        log.append(run.batch()).await.expect("a new run");
    }
    for (session, expected) in [("s", &["second", "first"][..]), ("t", &["another"]), ("", &[])] {
        let page = log.runs(RunFilter::new().session(session)).await.expect("a list");
        let ids: Vec<&str> = page.runs.iter().map(|run| &*run.run_id).collect();
        assert_eq!(ids, expected, "{session}");
        assert!(page.runs.iter().all(|run| run.session_id.as_deref() == Some(session)));
    }
    assert_eq!(get(log, "branch").await.session_id, None);
}

pub(super) async fn pages_stay_whole_while_runs_come_and_go_on(log: &dyn Log) {
    // Three of each time, so that pages end between runs that began at the same time.
    let mut runs: Vec<Sample> =
        (0..24).map(|n| Sample::new(format!("run-{n:02}"), n / 3)).collect();
    for run in &mut runs {
        log.append(run.batch()).await.expect("a new run");
    }
    let (mut seen, mut after) = (Vec::new(), None);
    for page in 0.. {
        let mut filter = RunFilter::new().prefix("run-").limit(5);
        filter.after = after;
        let found = log.runs(filter).await.expect("a page");
        assert!(found.runs.len() <= 5);
        seen.extend(found.runs.into_iter().map(|run| run.run_id.to_string()));
        let mut newer = Sample::new(format!("newer-{page}"), 100 + page);
        log.append(newer.batch()).await.expect("a run that comes meanwhile");
        runs[0] = runs[0].clone().user("more");
        log.append(runs[0].batch()).await.expect("a run that goes on meanwhile");
        match found.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let expected: Vec<String> = (0..24).rev().map(|n| format!("run-{n:02}")).collect();
    assert_eq!(seen, expected, "newest first; of the same time, the one that came last");
}

pub(super) async fn the_seals_are_the_leaves_of_the_logs_tree(log: &dyn Log) {
    let tree = crate::verify_seals(log).await.expect("a log without seals");
    assert_eq!((tree.size(), tree.root()), (0, merkle::empty_root()));
    let mut fingerprints = Vec::new();
    for n in 0..7 {
        let mut open = Sample::new(format!("open-{n}"), n);
        log.append(open.batch()).await.expect("a run without a seal");
        let mut run = Sample::new(format!("run-{n}"), -n).tool_turn().sealed();
        log.append(run.batch()).await.expect("a run with its seal");
        assert_eq!(get(log, run.run_id()).await.seal, Some(n as u64));
        fingerprints.push(run.head().hash);
    }
    let seals = log.seals(0, 100).await.expect("seals");
    let found: Vec<_> = seals.iter().map(|seal| seal.fingerprint).collect();
    assert_eq!(found, fingerprints, "in the order of the sealing");
    assert_eq!(log.seals(2, 3).await.as_deref(), Ok(&seals[2..5]));
    assert_eq!(log.seals(7, 3).await.as_deref(), Ok(&[][..]));
    assert_eq!(log.seals(u64::MAX, 3).await.as_deref(), Ok(&[][..]));

    let tree = crate::verify_seals(log).await.expect("a sound list");
    let leaves: Vec<_> = seals.iter().map(|seal| seal.leaf()).collect();
    assert_eq!((tree.size(), tree.root()), (7, merkle::root(&leaves)));
    let proof = merkle::inclusion_proof(&leaves, 4).expect("a leaf");
    assert!(merkle::verify_inclusion(&leaves[4], 4, 7, &tree.root(), &proof));
}

async fn get(log: &dyn Log, run: &str) -> RunSummary {
    log.run(run).await.expect("an index").expect("a run")
}
