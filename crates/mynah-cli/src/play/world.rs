//! Time and chance for outputs that are compared: counters.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use mynah::{
    RunId, World,
    log::{Log, Removals, RunFilter},
};

/// A world in which nothing is left to chance: each number, id and moment is the next one.
#[derive(Default)]
pub(super) struct Counters {
    times: AtomicU64,
    numbers: AtomicU64,
    ids: AtomicU64,
    runs: AtomicU64,
    /// The runs that continue from a place.
    places: Mutex<HashMap<String, RunId>>,
}

impl Counters {
    /// Continues where the runs of a log ended: ids are never reused, each run is newer than those
    /// before, and leases of dead processes are free.
    pub(super) async fn after(log: &dyn Log) -> mynah::Result<Self> {
        const PAUSE: u64 = 3600;
        let (mut numbers, mut newest) = (0, None);
        let mut take =
            |run: &str| numbers = numbers.max(number(run).map_or(0, |number| number + 1));
        let mut filter = RunFilter::new();
        loop {
            let page = log.runs(filter.clone()).await?;
            page.runs.iter().for_each(|run| take(&run.run_id));
            page.damaged.iter().for_each(|damaged| take(&damaged.run_id));
            newest = newest.max(page.runs.iter().map(|run| run.updated).max());
            let Some(next) = page.next else { break };
            filter = filter.after(next);
        }
        Removals::read(log).await?.pruned().for_each(|(run, _)| take(run));
        let seconds = |nanos: i64| u64::try_from(nanos).unwrap_or(0) / 1_000_000_000;
        let counters = Self::default();
        counters.times.store(newest.map_or(0, |at| seconds(at) + PAUSE), Ordering::Relaxed);
        counters.runs.store(numbers, Ordering::Relaxed);
        Ok(counters)
    }
}

/// The number in an id of this world.
fn number(run: &str) -> Option<u64> {
    let number = run.strip_prefix("run-")?.parse().ok();
    // No counter gets that far.
    number.filter(|number| *number < u64::MAX / 2)
}

impl World for Counters {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.times.fetch_add(1, Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn new_id(&self) -> String {
        format!("id-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn new_run_id(&self) -> RunId {
        format!("run-{}", self.runs.fetch_add(1, Ordering::Relaxed)).into()
    }

    fn run_id_at(&self, place: &str, _: SystemTime) -> RunId {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.entry(place.to_owned()).or_insert_with(|| self.new_run_id()).clone()
    }
}
