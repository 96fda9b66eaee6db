//! Runs that share records: a run, what it was branched from, and the branches of both.

use mynah::RunId;
use std::collections::{HashMap, HashSet};

use mynah::log::{Log, Parent, RunFilter, RunSummary, parent};

use crate::Failure;

/// A run that shares records with another.
pub(crate) struct RelatedRun {
    pub(crate) run: RunSummary,
    /// Up to which record they have the same content.
    pub(crate) shared: u64,
}

/// The run, and those of its log that share records with it. Each branch comes before its parent,
/// which only its own first record names.
pub(crate) async fn of(log: &dyn Log, run: &str) -> Result<Vec<RelatedRun>, Failure> {
    let (mut runs, mut parents) = (Vec::new(), HashMap::new());
    let mut filter = RunFilter::new();
    loop {
        let page = log.runs(filter.clone()).await?;
        for run in page.runs {
            if let Some(parent) = parent(log, &run.run_id).await? {
                parents.insert(run.run_id.clone(), parent);
            }
            runs.push(run);
        }
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    let shared = shared(run, &parents);
    let related = runs.into_iter().filter_map(|run| {
        let shared = *shared.get(&*run.run_id)?;
        Some(RelatedRun { run, shared })
    });
    let mut related: Vec<RelatedRun> = related.collect();
    related.sort_by_key(|related| std::cmp::Reverse(depth(&related.run.run_id, &parents)));
    Ok(related)
}

/// Up to which record each run has what this one has. Runs that are gone still link those that stayed.
fn shared<'p>(run: &'p str, parents: &'p HashMap<RunId, Parent>) -> HashMap<&'p str, u64> {
    let mut links: HashMap<&str, Vec<(&str, u64)>> = HashMap::new();
    for (run, Parent { run_id, seq, .. }) in parents {
        links.entry(run).or_default().push((run_id, *seq));
        links.entry(run_id).or_default().push((run, *seq));
    }
    let (mut shared, mut open) = (HashMap::from([(run, u64::MAX)]), vec![run]);
    while let Some(run) = open.pop() {
        let so_far = shared[run];
        for &(other, seq) in links.get(run).map_or(&[] as &[_], Vec::as_slice) {
            // Forged records may form a cycle.
            if !shared.contains_key(other) {
                shared.insert(other, so_far.min(seq));
                open.push(other);
            }
        }
    }
    shared
}

/// How many runs it was branched from, one after the other.
fn depth(run: &str, parents: &HashMap<RunId, Parent>) -> usize {
    let (mut seen, mut run) = (HashSet::from([run]), run);
    while let Some(parent) = parents.get(run).filter(|parent| seen.insert(&parent.run_id)) {
        run = &parent.run_id;
    }
    seen.len()
}
