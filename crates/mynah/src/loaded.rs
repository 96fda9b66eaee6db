//! Runs as they were kept.

use mynah_data::{Error, HaltReason, LogReason, Messages, Result, Session, SessionRun, Thread};
use mynah_log::{About, Chain, Corrupt, Extent, Fact, Log, Previous, Record, Totals, Verifier};
use serde::Deserialize as _;

use crate::run::{Meter, RunState};

/// A run as it was kept, verified.
pub(crate) struct Loaded {
    pub(crate) run: String,
    pub(crate) records: Vec<(Record, Fact)>,
    /// The conversation that the runs before it hold.
    pub(crate) before: Messages,
    /// What joined since.
    pub(crate) thread: Thread,
    pub(crate) extent: Extent,
    pub(crate) about: Box<About>,
    pub(crate) chain: Chain,
    pub(crate) totals: Totals,
}

impl Loaded {
    /// Reads a run, and of the runs before it in its session what it goes on from.
    pub(crate) async fn read(log: &dyn Log, run: &str) -> Result<Self> {
        let mut loaded = Self::alone(log, run, u64::MAX, Record::fact).await?;
        loaded.before = loaded.conversation_before(log).await?;
        Ok(loaded)
    }

    /// The same, to be performed again: what the loop always makes again need not be encoded twice, as its payload is compared
    /// with what the loop made.
    pub(crate) async fn to_compare(log: &dyn Log, run: &str) -> Result<Self> {
        let read = |record: &Record| match &*record.envelope().kind {
            "turn_started" | "assistant_completed" | "tool_scheduled" => record.loose_fact(),
            _ => record.fact(),
        };
        let mut loaded = Self::alone(log, run, u64::MAX, read).await?;
        loaded.before = loaded.conversation_before(log).await?;
        Ok(loaded)
    }

    /// Reads a run up to where another goes on from it.
    pub(crate) async fn read_until(log: &dyn Log, previous: &Previous) -> Result<Self> {
        let mut loaded = Self::until(log, previous).await?;
        loaded.before = loaded.conversation_before(log).await?;
        Ok(loaded)
    }

    /// Where the run before is, whatever this one takes from it.
    pub(crate) fn previous(&self) -> Option<&Previous> {
        self.about.session.as_ref()?.previous.as_ref()
    }

    /// The last thing that happened.
    pub(crate) fn last(&self) -> Option<&Fact> {
        self.records.last().map(|(_, fact)| fact)
    }

    /// Whether it came to something that its caller was told.
    pub(crate) fn was_told(&self) -> bool {
        matches!(self.last(), Some(Fact::Sealed(_) | Fact::Suspended(_)))
    }

    /// The session when the turn began that this run is.
    pub(crate) fn session_before(&self) -> Session {
        let mut session = Session::from(self.thread.clone());
        if !self.before.is_empty() {
            session.thread.messages = self.before.clone();
            session.thread.extend(self.thread.messages.iter().cloned());
        }
        if let Some(link) = &self.about.session {
            session.id = link.id.clone();
            session.context = link.context.clone();
            session.metadata = link.metadata.clone();
        }
        session
    }

    /// The run up to where it last waited; none if it never did.
    pub(crate) fn until_it_waited(mut self) -> Option<Self> {
        let waited = |(_, fact): &(Record, Fact)| matches!(fact, Fact::Suspended(_));
        let place = self.records.iter().rposition(waited)?;
        self.records.truncate(place + 1);
        Some(self)
    }

    /// The session after the turn that this run is; none if the caller was told of none, as the turn has no end yet, or
    /// was refused.
    pub(crate) fn session_after(self) -> Option<Session> {
        if !self.was_told() || self.refusal().is_some() {
            return None;
        }
        let before = self.session_before();
        let mut state = RunState::new(self.before, Meter::default());
        let (last, _) = self.records.last()?;
        let (seq, hash) = (last.seq(), last.hash().to_string());
        let waits = matches!(self.records.last(), Some((_, Fact::Suspended(_))));
        self.records.into_iter().for_each(|(_, fact)| state.evolve(fact));
        let mut session = match self.extent {
            Extent::Generate => return None,
            Extent::Step => before.apply_step(state.last_step()?),
            Extent::Chat => before.apply_chat(&state.result_since_answer()),
        };
        let messages = session.thread.messages.clone();
        session.last_run = Some(SessionRun::new(self.run, seq, hash, waits, messages));
        Some(session)
    }

    /// The error of a run whose first model call was refused, or the first after what it had waited for, or that is not
    /// told in a result.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let resumed =
            |(_, fact): &(Record, Fact)| matches!(fact, Fact::Resumed { .. }) && !fact.is_seam();
        let began = self.records.iter().rposition(resumed).unwrap_or(0);
        let facts = || self.records[began..].iter().map(|(_, fact)| fact);
        let answered = facts().any(|fact| matches!(fact, Fact::AssistantCompleted { .. }));
        let end = facts().rev().find_map(|fact| match fact {
            Fact::Failed(end) => Some(end),
            _ => None,
        })?;
        let refused = !answered || end.reason == HaltReason::BudgetExceeded;
        Error::deserialize(end.metadata.get("error").filter(|_| refused)?).ok()
    }

    /// Reads a run without what stands before it, up to a record.
    async fn alone(
        log: &dyn Log,
        run: &str,
        last: u64,
        read: fn(&Record) -> std::result::Result<Option<Fact>, String>,
    ) -> Result<Self> {
        const PAGE: usize = 256;
        let mut verifier = Verifier::new(run);
        let mut records = Vec::new();
        loop {
            let there = records.len() as u64;
            let wanted = usize::try_from(last.saturating_sub(there)).unwrap_or(PAGE).min(PAGE);
            let page = log.read(run, there + 1, wanted).await?;
            if page.is_empty() {
                break;
            }
            for record in page {
                verifier.check(&record)?;
                let wrong = |what| Corrupt { run: run.to_owned(), seq: record.seq(), what };
                let fact = read(&record).map_err(wrong)?.ok_or_else(|| redacted(&record))?;
                records.push((record, fact));
            }
        }
        match records.first() {
            Some((_, Fact::RunStarted { thread, extent, about: Some(about) })) => {
                let (thread, extent, about) = (thread.clone(), *extent, about.clone());
                let (chain, totals) = verifier.into_chain();
                let (run, before) = (run.to_owned(), Messages::new());
                Ok(Self { run, records, before, thread, extent, about, chain, totals })
            }
            Some(_) => Err(unreadable(run, 1)),
            None => Err(Error::log(LogReason::RunNotFound)
                .with_message(format!("log error: run_not_found: no run has the id {run:?}"))
                .with("run_id", run)),
        }
    }

    /// The same, up to the record that another run names.
    async fn until(log: &dyn Log, previous: &Previous) -> Result<Self> {
        let loaded = Self::alone(log, &previous.run_id, previous.seq, Record::fact).await?;
        let found = loaded.records.last().map(|(record, _)| (record.seq(), record.hash()));
        if found == Some((previous.seq, previous.hash)) {
            return Ok(loaded);
        }
        let what = "it is not the record that the next run of the session names".to_owned();
        Err(Corrupt { run: previous.run_id.clone(), seq: previous.seq, what }.into())
    }

    /// The conversation that this run goes on from, folded from the runs that hold it.
    async fn conversation_before(&self, log: &dyn Log) -> Result<Messages> {
        let from = |loaded: &Self| loaded.previous().filter(|run| run.messages > 0).cloned();
        let (mut earlier, mut next) = (Vec::new(), from(self));
        while let Some(previous) = next {
            let needed = |error: Error| {
                let message = format!("{error}; run {} goes on from it", self.run);
                error.with_message(message).with("needed_by", self.run.as_str())
            };
            let loaded = Self::until(log, &previous).await.map_err(needed)?;
            next = from(&loaded);
            earlier.push((loaded, previous));
        }
        let mut messages = Messages::new();
        for (mut loaded, previous) in earlier.into_iter().rev() {
            loaded.before = messages;
            let after = loaded.session_after().map(|session| session.thread.messages);
            messages = after.unwrap_or_default();
            if messages.len() as u64 != previous.messages {
                let Previous { run_id: run, seq, messages: named, .. } = previous;
                let what = format!("its conversation does not have {named} messages there");
                return Err(Corrupt { run, seq, what }.into());
            }
        }
        Ok(messages)
    }
}

fn redacted(record: &Record) -> Error {
    let (run, seq, kind) = (&record.envelope().run, record.seq(), &record.envelope().kind);
    Error::log(LogReason::Redacted)
        .with_message(format!(
            "log error: redacted: the body of record {seq} of run {run}, {kind}, was taken away, and \
             the run cannot be performed again without it"
        ))
        .with("run_id", &**run)
        .with("seq", seq)
}

fn unreadable(run: &str, seq: u64) -> Error {
    Error::log(LogReason::Corrupt)
        .with_message(format!(
            "log error: run {run}, record {seq}: what is needed to perform it again was taken away"
        ))
        .with("run_id", run)
        .with("seq", seq)
}
