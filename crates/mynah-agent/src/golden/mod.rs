//! Regression tests from real runs.
//!
//! A golden is a recorded run that is kept as a file: `NAME.ndjson`, as [`add`] or `mynah golden add` writes it. Beside it `NAME.toml` can say what
//! the run must do. [`Check`] compares an agent with all goldens of a folder.

mod again;
mod expect;
mod finding;
mod judge;
mod keep;
mod redact;

use std::{
    fs::{self, File},
    io::{self, BufReader},
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use futures_util::{StreamExt as _, stream};
use mynah::{
    ChatResult, Engine, Event, HaltReason, Message, Role, SystemWorld, Thread, ToolCall,
    UnknownCall, World as _,
    log::{Fact, Log, MemoryLog, RunStatus, RunSummary, Totals, bundle},
    replay_run, testing,
};
use serde::Serialize;

use self::{
    again::Made,
    expect::Expect,
    keep::{exported, folder_rules},
    redact::Names,
};
pub use self::{
    finding::{Change, Finding},
    keep::{Added, add},
    redact::{Redacted, Rules},
};
use crate::{FileError, answer::misfit};

/// Who answers when a golden is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answers {
    /// The records answer for the model and all tools: free and exact. An agent that differs from the recorded one is a finding.
    #[default]
    Records,
    /// Calls the model. Tools answer from the record if the call is the same, and fail otherwise.
    WhatIf,
    /// Calls the model and runs tools. A call that needs approval gets the decision that the same call has in the golden: it runs, runs with
    /// edited arguments, or is rejected. One that the golden does not have is rejected.
    Live,
}

/// How a golden was checked, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// The golden's name.
    pub name: String,
    /// Whether enough of the runs passed, or the golden was updated and its expectations are met.
    pub ok: bool,
    /// How many runs were made, or compared with the records.
    pub runs: u32,
    /// How many of them passed.
    pub passed: u32,
    /// The interval in which the true pass rate is with 95% confidence (Wilson); none for a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// The differences from what was expected, in order.
    pub findings: Vec<Finding>,
    /// The answer, if it is another than the recorded one. That alone is no finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Change>,
    /// The calls that the check answered itself, because the golden has no decision about them or no result. That alone is no finding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether the golden was replaced by the run that was made.
    pub updated: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Checked {
    /// A golden that cannot be read.
    fn unread(file: &Path, error: &GoldenError) -> Self {
        Self {
            name: name_of(file),
            ok: false,
            runs: 0,
            passed: 0,
            interval: None,
            findings: vec![Finding::new("file", error.to_string())],
            answer: None,
            notes: Vec::new(),
            updated: false,
            seconds: 0.0,
        }
    }
}

/// The name of the golden in a file.
fn name_of(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Why goldens could not be kept or checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// A file that cannot be read or written.
    #[error("{}: {why}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why not.
        why: String,
    },
    /// A file of expectations or rules that does not fit.
    #[error(transparent)]
    Misfit(#[from] FileError),
    /// A run whose records cannot be read.
    #[error("run {run} cannot be read: {why}")]
    Unreadable {
        /// The run.
        run: String,
        /// Why not.
        why: String,
    },
    /// A run that has no end yet, or ended because a model call failed.
    #[error("run {run} cannot be a golden: {why}")]
    Unfit {
        /// The run.
        run: String,
        /// Why not.
        why: String,
    },
    /// A run whose texts cannot be replaced.
    #[error("run {run} cannot be redacted: {why}")]
    Redact {
        /// The run.
        run: String,
        /// Why not.
        why: String,
    },
    /// A run that cannot be read or made.
    #[error(transparent)]
    Run(#[from] mynah::Error),
}

fn unusable(file: &Path, why: impl ToString) -> GoldenError {
    GoldenError::File { file: file.to_owned(), why: why.to_string() }
}

type Judges = Arc<dyn Fn(&str) -> mynah::Result<Engine> + Send + Sync>;
type Watch = Box<dyn FnMut(usize, usize) + Send>;

/// Checks an engine against all goldens of a folder.
///
/// ```no_run
/// use mynah_agent::{Agent, golden::{Answers, Check}};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let agent = Agent::from_file("agent.toml").await?;
/// for golden in Check::new(&agent.engine, "goldens").answers(Answers::WhatIf).run().await? {
///     println!("{}: {} of {} runs passed", golden.name, golden.passed, golden.runs);
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is checked unless it is run"]
pub struct Check {
    engine: Engine,
    folder: PathBuf,
    /// A run of a log, in place of the goldens of the folder.
    given: Option<Golden>,
    answers: Answers,
    update: bool,
    repeat: u32,
    jobs: usize,
    judges: Judges,
    watch: Watch,
}

impl Check {
    /// Checks from the records, each golden once.
    pub fn new(engine: &Engine, folder: impl Into<PathBuf>) -> Self {
        Self {
            engine: engine.clone(),
            folder: folder.into(),
            given: None,
            answers: Answers::Records,
            update: false,
            repeat: 1,
            jobs: 4,
            judges: Arc::new(Engine::named),
            watch: Box::new(|_, _| {}),
        }
    }

    /// Checks against one run of a log, without expectations. It must have ended.
    ///
    /// # Errors
    /// A run that cannot be read.
    pub async fn of_run(engine: &Engine, log: &dyn Log, run: &str) -> Result<Self, GoldenError> {
        let (bytes, _) = exported(log, run, &Rules::none()).await?;
        let golden =
            Golden::read(Path::new(run), io::Cursor::new(bytes), Expect::default(), Rules::none())
                .await?;
        Ok(Self { given: Some(golden), ..Self::new(engine, "") })
    }

    /// Who answers.
    pub fn answers(mut self, answers: Answers) -> Self {
        self.answers = answers;
        self
    }

    /// Replaces goldens whose run differs by the new run. Records alone make none.
    pub fn update(mut self, update: bool) -> Self {
        self.update = update;
        self
    }

    /// How many runs each golden makes. Records give the same each time, so they are compared once.
    pub fn repeat(mut self, runs: NonZeroU32) -> Self {
        self.repeat = runs.get();
        self
    }

    /// How many runs are made at the same time; 4 by default.
    pub fn jobs(mut self, jobs: NonZeroUsize) -> Self {
        self.jobs = jobs.get();
        self
    }

    /// Makes the engines of judges from the names of their models. By default [`Engine::named`].
    pub fn judges(
        mut self,
        judges: impl Fn(&str) -> mynah::Result<Engine> + Send + Sync + 'static,
    ) -> Self {
        self.judges = Arc::new(judges);
        self
    }

    /// Calls a function with how many runs are done, and how many there are.
    pub fn on_progress(mut self, watch: impl FnMut(usize, usize) + Send + 'static) -> Self {
        self.watch = Box::new(watch);
        self
    }

    /// Checks all goldens. They are returned in the order of their names.
    ///
    /// # Errors
    /// A folder that cannot be read or has no goldens, and goldens that cannot be updated. What differs is a finding, and so is a golden that
    /// cannot be read.
    pub async fn run(mut self) -> Result<Vec<Checked>, GoldenError> {
        let runs = if self.answers == Answers::Records { 1 } else { self.repeat };
        let mut watch = std::mem::replace(&mut self.watch, Box::new(|_, _| {}));
        let (goldens, mut checked) = self.goldens().await?;
        // Each golden once, then each again: a scripted model of a program answers in this order.
        let places = (0..runs).flat_map(|_| 0..goldens.len());
        let all = goldens.len() * runs as usize;
        watch(0, all);
        let attempts = places.map(|place| {
            let (check, golden) = (&self, &goldens[place]);
            async move { (place, check.attempt(golden).await) }
        });
        let mut attempts = stream::iter(attempts.collect::<Vec<_>>()).buffer_unordered(self.jobs);
        let mut done: Vec<Vec<Attempt>> = goldens.iter().map(|_| Vec::new()).collect();
        let mut count = 0;
        while let Some((place, attempt)) = attempts.next().await {
            done[place].push(attempt);
            count += 1;
            watch(count, all);
        }
        drop(attempts);
        for (golden, attempts) in goldens.iter().zip(done) {
            checked.push(self.judged(golden, attempts).await?);
        }
        checked.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(checked)
    }

    /// The goldens of the folder, and the results of those that cannot be read.
    async fn goldens(&mut self) -> Result<(Vec<Golden>, Vec<Checked>), GoldenError> {
        if let Some(golden) = self.given.take() {
            return Ok((vec![golden], Vec::new()));
        }
        let advice = |error| format!("{error}; `mynah golden add RUN --name NAME` makes a golden");
        let entries =
            fs::read_dir(&self.folder).map_err(|error| unusable(&self.folder, advice(error)))?;
        let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        let of_type = |wanted: &'static str| {
            let is = move |path: &&PathBuf| path.extension().is_some_and(|it| it == wanted);
            paths.iter().filter(is).cloned()
        };
        let mut files: Vec<PathBuf> = of_type("ndjson").collect();
        files.sort();
        if files.is_empty() {
            return Err(unusable(
                &self.folder,
                "it has no goldens (*.ndjson); `mynah golden add RUN --name NAME` makes one",
            ));
        }
        let is_orphan = |file: &PathBuf| {
            !file.with_extension("ndjson").exists()
                && !file.ends_with(RULES)
                && Expect::read(file, None).is_ok()
        };
        let orphan = |file: PathBuf| {
            let why = "it has no run beside it, so nothing is checked; `mynah golden add RUN --name NAME` makes one";
            Checked::unread(&file, &unusable(&file, why))
        };
        let mut unread: Vec<Checked> = of_type("toml").filter(is_orphan).map(orphan).collect();
        let mut goldens = Vec::new();
        for file in files {
            match self.golden(&file).await {
                Ok(golden) => goldens.push(golden),
                Err(error) => unread.push(Checked::unread(&file, &error)),
            }
        }
        Ok((goldens, unread))
    }

    async fn golden(&self, file: &Path) -> Result<Golden, GoldenError> {
        let expect = Expect::read(&file.with_extension("toml"), Some(&self.judges))?;
        let input = File::open(file).map_err(|error| unusable(file, error))?;
        let rules = expect.rules(folder_rules(&self.folder)?);
        Golden::read(file, BufReader::new(input), expect, rules).await
    }

    /// Checks a golden once. A run that cannot be made is a finding, so that the others are still reported.
    async fn attempt(&self, golden: &Golden) -> Attempt {
        let begun = SystemWorld.now();
        let (made, findings) = match self.answers {
            Answers::Records => (None, golden.replayed(&self.engine).await),
            Answers::WhatIf => self.again(golden, false).await,
            Answers::Live => self.again(golden, true).await,
        };
        let seconds = since(begun);
        Attempt { findings, made, seconds }
    }

    async fn again(&self, golden: &Golden, live: bool) -> (Option<Made>, Vec<Finding>) {
        let (made, mut findings) = match golden.again(&self.engine, live).await {
            Ok(again) => again,
            Err(error) => return (None, vec![Finding::new("end", error.to_string())]),
        };
        findings.extend(golden.compared(&made.done));
        if let Some(judge) = &golden.expect.judge {
            let judged = match judge.engine(&self.judges) {
                Ok(engine) => judge.finding(&engine, &made.done).await,
                Err(error) => Err(error),
            };
            let unjudged =
                |error| Some(Finding::new("judge", format!("judge: no verdict: {error}")));
            findings.extend(judged.unwrap_or_else(unjudged));
        }
        (Some(made), findings)
    }

    /// Why a run must not become the golden: what [`add`] would refuse, and what is not the agent's doing. None also if there is no run.
    fn unfit(&self, attempt: &Attempt) -> Option<String> {
        let made = attempt.made.as_ref()?;
        if let Some(call) = made.unrecorded.first() {
            let instead = match call.is_rejected {
                true => {
                    "make the run with `mynah run`, decide there, and keep it with `mynah golden add`"
                }
                false => "use --live --update",
            };
            return Some(format!("{}; {instead}", answered_itself(call)));
        }
        let unmet = attempt.findings.iter().any(Finding::is_expectation);
        let unmet = unmet.then(|| "the new run does not do what is expected".to_owned());
        made.done.unfit().or(unmet)
    }

    /// Sums up the runs of a golden.
    async fn judged(
        &self,
        golden: &Golden,
        attempts: Vec<Attempt>,
    ) -> Result<Checked, GoldenError> {
        let runs = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
        let passed = attempts.iter().filter(|attempt| attempt.findings.is_empty()).count();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        let seconds = attempts.iter().map(|attempt| attempt.seconds).sum();
        let differs = |made: &&Made| made.done.messages != golden.done.messages;
        let made = || attempts.iter().filter_map(|attempt| attempt.made.as_ref());
        let other = made().find(differs);
        let answer = other.and_then(|made| Change::of_answers(&golden.done, &made.done));
        let is_due = self.update && (other.is_some() || !golden.equals(&self.engine).await);
        // Runs that differ come first.
        let fit = || {
            let fit = attempts.iter().filter(|attempt| self.unfit(attempt).is_none());
            fit.filter_map(|attempt| attempt.made.as_ref())
        };
        let kept = fit().find(differs).or_else(|| fit().next()).filter(|_| is_due);
        if let Some(made) = kept {
            let (bytes, _) = exported(&made.log, &made.run, &golden.rules).await?;
            fs::write(&golden.file, bytes).map_err(|error| unusable(&golden.file, error))?;
        }
        let updated = kept.is_some();
        let refusal = attempts.iter().find_map(|attempt| self.unfit(attempt));
        let refusal = refusal.filter(|_| is_due && !updated);
        let mut notes: Vec<String> = Vec::new();
        for note in made().flat_map(|made| made.unrecorded.iter().map(answered_itself)) {
            let is_told = refusal.as_ref().is_some_and(|why| why.starts_with(&note));
            if !is_told && !notes.contains(&note) {
                notes.push(note);
            }
        }
        let mut findings: Vec<Finding> = Vec::new();
        for finding in attempts.into_iter().flat_map(|attempt| attempt.findings) {
            let same = |other: &&mut Finding| {
                (&other.message, &other.changes) == (&finding.message, &finding.changes)
            };
            match findings.iter_mut().find(same) {
                Some(known) => known.runs += 1,
                None => findings.push(finding),
            }
        }
        let ok = match updated {
            true => !findings.iter().any(Finding::is_expectation),
            false => refusal.is_none() && golden.expect.is_enough(passed, runs),
        };
        findings.extend(refusal.map(|why| Finding::new("update", format!("not updated: {why}"))));
        let interval = (runs > 1).then(|| wilson(passed, runs));
        let name = golden.name();
        Ok(Checked { name, ok, runs, passed, interval, findings, answer, notes, updated, seconds })
    }
}

/// The file of a folder of goldens with rules for what is replaced.
pub const RULES: &str = "redact.toml";

/// How the check answered a call that the golden does not have.
fn answered_itself(UnknownCall { call, is_rejected, .. }: &UnknownCall) -> String {
    match is_rejected {
        true => format!("the golden has no decision about {call}, so the call was rejected"),
        false => format!("the golden has no result for {call}, so the model read an error"),
    }
}

fn since(begun: SystemTime) -> f64 {
    SystemWorld.now().duration_since(begun).unwrap_or_default().as_secs_f64()
}

/// The interval of a rate with 95% confidence, by Wilson. Unlike the normal approximation it holds for few runs, and for rates near 0 and 1.
fn wilson(passed: u32, runs: u32) -> [f64; 2] {
    const Z: f64 = 1.959_963_985;
    let (n, rate) = (f64::from(runs), f64::from(passed) / f64::from(runs));
    let denominator = 1.0 + Z * Z / n;
    let centre = (rate + Z * Z / (2.0 * n)) / denominator;
    let half = Z * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt() / denominator;
    [(centre - half).max(0.0), (centre + half).min(1.0)]
}

/// A golden that was checked once.
struct Attempt {
    findings: Vec<Finding>,
    made: Option<Made>,
    seconds: f64,
}

fn answer(messages: &[Arc<Message>]) -> String {
    let said = messages.iter().rev().find(|message| message.role() == Role::Assistant);
    said.map(|message| message.text().into_owned()).unwrap_or_default()
}

/// What a run did.
struct Done {
    facts: Vec<(i64, Fact)>,
    messages: Vec<Arc<Message>>,
    text: String,
    /// The names of texts in it.
    names: Names,
    /// Why it ended.
    reason: HaltReason,
    /// What it and its agents spent.
    totals: Totals,
    summary: RunSummary,
}

impl Done {
    /// The tool calls, in order.
    fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.messages.iter().flat_map(|message| message.tool_calls())
    }

    async fn read(log: &MemoryLog, run: &str) -> Result<Self, GoldenError> {
        let missing = || mynah::Error::log(mynah::LogReason::RunNotFound);
        let summary = log.run(run).await?.ok_or_else(missing)?;
        let unfit = |why: String| GoldenError::Unfit { run: run.to_owned(), why };
        let events = testing::collect(replay_run(log, run).stream()).await;
        let events = events.map_err(|error| match summary.status {
            RunStatus::Failed => unfit(format!("it failed when it was recorded: {error}")),
            _ => error.into(),
        })?;
        let result = events.into_iter().rev().find_map(|event| match event {
            Event::ChatCompleted { result } => Some(*result),
            _ => None,
        });
        let ChatResult { thread, halted_reason: reason, .. } = result.unwrap_or_default();
        let messages: Vec<Arc<Message>> = thread.messages.iter().cloned().collect();
        let text = answer(&messages);
        let facts = redact::facts(log, run).await?;
        let mut totals = summary.totals.clone();
        facts.iter().filter_map(|(_, fact)| fact.sub_run_totals()).for_each(|it| totals.add(&it));
        Ok(Self { facts, messages, text, names: Names::default(), reason, totals, summary })
    }

    /// The same conversation with texts replaced.
    fn named(mut self, mut names: Names) -> Self {
        self.messages = self.messages.iter().map(|message| names.message(message)).collect();
        self.text = answer(&self.messages);
        Self { names, ..self }
    }

    /// Why it cannot be a golden: it has no end, or ended because a model call failed.
    fn unfit(&self) -> Option<String> {
        if !self.summary.status.is_ended() {
            return Some("it has not ended; resume it first".to_owned());
        }
        (self.reason == HaltReason::Error).then(|| {
            let ends = self.facts.iter().rev().filter_map(|(_, fact)| fact.end()?.error());
            let why: Vec<String> = ends.take(1).map(|error| error.to_string()).collect();
            format!("it failed when it was recorded: {}", why.concat())
        })
    }

    /// Why its answer does not fit the schema that the agent asked for.
    fn misfit(&self) -> Option<mynah::Error> {
        misfit(self.facts.iter().map(|(_, fact)| fact))
    }

    /// The model of an answer whose cost is not known.
    fn unpriced_model(&self) -> Option<String> {
        self.facts.iter().find_map(|(_, fact)| match fact {
            Fact::AssistantCompleted { response, .. } if response.usage.total_cost.is_none() => {
                let model = response.model.as_deref().or(self.summary.model.as_deref());
                Some(model.unwrap_or("the model").to_owned())
            }
            _ => None,
        })
    }

    /// The conversation with which it began, without the prompt of the agent: the one that is asked now has its own.
    fn asked(&self) -> Thread {
        let Some((_, Fact::RunStarted { thread, about, .. })) = self.facts.first() else {
            return Thread::new();
        };
        let first = thread.messages.get(0).filter(|first| first.role() == Role::System);
        let prompt = about.as_ref().and_then(|about| about.system_prompt());
        let has_prompt = first.zip(prompt).is_some_and(|(first, prompt)| {
            first.text() == prompt || first.text() == self.names.afresh().text(prompt)
        });
        thread.messages.iter().skip(usize::from(has_prompt)).cloned().collect()
    }

    /// A finding, if another run did not end in the same way.
    fn other_end(&self, other: &ChatResult) -> Option<Finding> {
        let (recorded, reason) = (&self.reason, &other.halted_reason);
        (recorded != reason).then(|| {
            let why = other.error().map(|error| format!(": {error}")).unwrap_or_default();
            Finding::new(
                "end",
                format!("ended with {reason}{why}; the golden ended with {recorded}"),
            )
        })
    }
}

/// A run in a log of its own.
struct Golden {
    file: PathBuf,
    log: MemoryLog,
    run: String,
    expect: Expect,
    rules: Rules,
    done: Done,
}

impl Golden {
    async fn read(
        file: &Path,
        input: impl io::BufRead + io::Seek,
        expect: Expect,
        rules: Rules,
    ) -> Result<Self, GoldenError> {
        let log = MemoryLog::new();
        let imported = bundle::import(&log, input).await;
        let run = imported.map_err(|error| unusable(file, error))?.run_id.to_string();
        let mut done = Done::read(&log, &run).await.map_err(|error| match error {
            GoldenError::Run(error) => unusable(file, error),
            unfit => unfit,
        })?;
        if let Some(why) = done.unfit() {
            return Err(GoldenError::Unfit { run, why });
        }
        done.names = Names::of_run(&rules, &done.messages);
        Ok(Self { file: file.to_owned(), log, run, expect, rules, done })
    }

    fn name(&self) -> String {
        name_of(&self.file)
    }

    /// What this engine would do differently, from the records.
    async fn replayed(&self, engine: &Engine) -> Vec<Finding> {
        let replayed = engine.replay(&self.log, &self.run).await;
        let mut findings: Vec<Finding> =
            replayed.err().iter().map(|error| Finding::of_replay(error, &self.done)).collect();
        findings.extend(self.expect.findings(&self.done));
        findings
    }

    /// Whether this engine would record the same.
    async fn equals(&self, engine: &Engine) -> bool {
        engine.replay(&self.log, &self.run).await.is_ok()
    }

    /// The differences in another run. Without expectations about calls, they must be the recorded ones.
    fn compared(&self, made: &Done) -> Vec<Finding> {
        let mut findings = Vec::new();
        let changes = Change::of_calls(&self.done, made);
        if !self.expect.has_calls() && !changes.is_empty() {
            let what = "other calls than recorded";
            findings.push(Finding { changes, ..Finding::new("differs", what) });
        }
        findings.extend(self.expect.findings(made));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_wilson() {
        // Compared with published tables.
        let table = [(0, 10, [0.0, 0.2775]), (7, 10, [0.3968, 0.8922]), (10, 10, [0.7225, 1.0])];
        for (passed, runs, expected) in table {
            let found = wilson(passed, runs);
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 5e-4, "{passed} of {runs}: {found}");
            }
        }
    }
}
