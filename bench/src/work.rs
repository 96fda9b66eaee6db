//! The work that every library does.

use std::{future::Future, str::FromStr};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::{Result, measure::Stopwatch, peers};

/// How many tools a run calls, one in each turn.
pub const TOOL_CALLS: usize = 10;

/// How many pieces the last answer of such a run has.
pub const WORDS: usize = 20;

/// How many pieces the long answer has.
pub const DELTAS: usize = 100_000;

pub const WORD: &str = " word";

/// How many runs are made at once.
const RUNS: usize = 64;

pub const PROMPT: &str = "What do the ten items cost?";

pub const TOOL_DESCRIPTION: &str = "The price of an item.";

/// What is measured. Its name is the name of the model that the server plays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Runs with ten tool calls, one after the other.
    OneByOne,
    /// Sixty-four such runs at once.
    AtOnce,
    /// One answer of 100,000 pieces.
    Deltas,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "one-by-one",
            Self::AtOnce => "at-once",
            Self::Deltas => "deltas",
        }
    }

    /// How many times it is done before anything is measured, and then.
    fn times(self) -> (usize, usize) {
        match self {
            Self::OneByOne => (10, 100),
            Self::AtOnce => (1, 4),
            Self::Deltas => (1, 3),
        }
    }

    fn runtime(self) -> std::io::Result<Runtime> {
        match self {
            Self::AtOnce => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
            Self::OneByOne | Self::Deltas => Builder::new_current_thread().enable_all().build(),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::OneByOne, Self::AtOnce, Self::Deltas];
        all.into_iter().find(|work| work.name() == name).ok_or_else(|| format!("no work `{name}`"))
    }
}

/// A library, ready to call the server.
pub trait Peer: Clone + Send + Sync + 'static {
    /// Does one run of the work as a user of the library would, and looks at everything that streams.
    fn run(&self, work: Work) -> impl Future<Output = Result<Seen>> + Send;

    /// Something more to report: durable commits since the library was made.
    fn commits(&self) -> u64 {
        0
    }
}

/// What a run has streamed.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub text: usize,
    pub calls: usize,
}

/// Measures one library, and prints milliseconds, milliseconds of CPU and commits of one run.
pub fn measure(port: u16, peer: &str, work: Work) -> Result<()> {
    peers::with(peer, port, work, Measure)
}

/// Does the same work this many times, for a profiler.
pub fn repeat(port: u16, peer: &str, work: Work, times: usize) -> Result<()> {
    peers::with(peer, port, work, Repeat(times))
}

/// Something to do with a library.
pub trait Visitor {
    fn visit<P: Peer>(self, peer: P, work: Work) -> Result<()>;
}

struct Measure;

impl Visitor for Measure {
    fn visit<P: Peer>(self, peer: P, work: Work) -> Result<()> {
        let (before, times) = work.times();
        work.runtime()?.block_on(async {
            perform(&peer, work, before).await?;
            let (commits, watch) = (peer.commits(), Stopwatch::start()?);
            let runs = perform(&peer, work, times).await?;
            let [time, cpu] = watch.each(runs)?;
            println!("{time} {cpu} {}", (peer.commits() - commits) as f64 / runs as f64);
            Ok(())
        })
    }
}

struct Repeat(usize);

impl Visitor for Repeat {
    fn visit<P: Peer>(self, peer: P, work: Work) -> Result<()> {
        work.runtime()?.block_on(perform(&peer, work, self.0)).map(drop)
    }
}

/// Does the work and returns how many runs that were.
async fn perform<P: Peer>(peer: &P, work: Work, times: usize) -> Result<usize> {
    for _ in 0..times {
        if work == Work::AtOnce {
            let mut runs = JoinSet::new();
            for _ in 0..RUNS {
                let peer = peer.clone();
                runs.spawn(async move { run(&peer, work).await });
            }
            while let Some(run) = runs.join_next().await {
                run??;
            }
        } else {
            run(peer, work).await?;
        }
    }
    Ok(if work == Work::AtOnce { times * RUNS } else { times })
}

async fn run<P: Peer>(peer: &P, work: Work) -> Result<()> {
    let seen = peer.run(work).await?;
    let (words, calls) = if work == Work::Deltas { (DELTAS, 0) } else { (WORDS, TOOL_CALLS) };
    let wanted = Seen { text: words * WORD.len(), calls };
    if seen == wanted { Ok(()) } else { Err(format!("{seen:?} in place of {wanted:?}").into()) }
}
