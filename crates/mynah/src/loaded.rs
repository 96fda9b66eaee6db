//! Runs as they were kept.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use mynah_data::{
    ChatResult, EngineReason, Error, ErrorKind, HaltReason, LogReason, Messages, Result, RunId,
    Session, SessionRun, Thread, ToolCall,
};
use mynah_log::{
    About, BEHAVIOUR, Chain, Continues, Corrupt, Extent, Fact, Hash, Kind, Log, MAINTENANCE,
    Previous, Record, Removals, RunSummary, Totals, Verifier, walk,
};
use mynah_step::{
    RecordedFact, SystemWorld, ToolContext, World, millis, mismatch, since_1970, was_redacted,
};

use crate::{prepare::joined, run::RunState};

/// How the fact of a record is read, unless its body was removed.
type ReadFact = fn(&Record) -> std::result::Result<Option<RecordedFact>, Corrupt>;

/// A run that was read to its end and verified. Any loop may have written it, and parts may be
/// redacted.
pub(crate) struct VerifiedRun {
    pub(crate) verifier: Verifier,
    /// What its records come to.
    pub(crate) run: RunSummary,
    /// The first record whose body was removed.
    pub(crate) redacted: Option<Record>,
}

impl VerifiedRun {
    /// Reads a run, and compares its records with the log's index. Passes each record to the
    /// caller.
    pub(crate) async fn whole(
        log: &dyn Log,
        run: &str,
        mut visit: impl FnMut(&Record) -> Result<()>,
    ) -> Result<Self> {
        if run == MAINTENANCE {
            return Err(Error::invalid_option("run", "is_maintenance").with_message(format!(
                "validation failed: run: {run} is the log's own account of removals"
            )));
        }
        let Some(indexed) = log.run(run).await? else {
            return Err(Removals::read(log).await?.absence(run));
        };
        let mut redacted = None;
        let walked = walk(log, &indexed, |record| {
            if record.body().is_none() {
                redacted.get_or_insert_with(|| record.clone());
            }
            visit(record)
        });
        let (verifier, run) = walked.await?;
        Ok(Self { verifier, run, redacted })
    }
}

/// A run of an engine as it was kept, with its verified records.
pub(crate) struct Loaded {
    pub(crate) run: RunId,
    pub(crate) records: Vec<RecordedFact>,
    pub(crate) chain: Chain,
    pub(crate) totals: Totals,
    /// The conversation that the runs before it hold.
    pub(crate) before: Messages,
    /// The new messages.
    pub(crate) thread: Thread,
    /// How far it was to go when it began.
    pub(crate) extent: Extent,
    /// What it began with.
    pub(crate) about: Box<About>,
    /// The fold of its records, once that was asked for.
    state: OnceLock<RunState>,
}

/// What a run ran with while one engine had it, and how far it was to go.
#[derive(Clone, Copy)]
pub(crate) struct EngineSegment<'a> {
    pub(crate) about: &'a About,
    pub(crate) extent: Extent,
}

impl Loaded {
    /// Reads a run, and the conversation that it continues from earlier runs of its session.
    pub(crate) async fn read(log: &dyn Log, run: &str) -> Result<Self> {
        Self::whole(log, run, RecordedFact::read).await?.after_what_was(log).await
    }

    /// The same for a replay: facts that the loop always makes are decoded when they are compared.
    pub(crate) async fn to_compare(log: &dyn Log, run: &str) -> Result<Self> {
        Self::whole(log, run, RecordedFact::to_compare).await?.after_what_was(log).await
    }

    /// Reads a run whose conversation the caller already has, so that earlier runs need not be
    /// read.
    pub(crate) async fn read_knowing(
        log: &dyn Log,
        run: &str,
        conversation: &Messages,
    ) -> Result<Self> {
        let mut loaded = Self::whole(log, run, RecordedFact::read).await?;
        let before = loaded.previous().map_or(0, |previous| previous.messages);
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        loaded.before = conversation.iter().take(before).cloned().collect();
        Ok(loaded)
    }

    /// Reads a run up to the record that another continues from.
    pub(crate) async fn read_until(log: &dyn Log, previous: &Previous) -> Result<Self> {
        Self::until(log, previous).await?.after_what_was(log).await
    }

    async fn after_what_was(mut self, log: &dyn Log) -> Result<Self> {
        self.before = self.conversation_before(log).await?;
        Ok(self)
    }

    /// A run, without what stands before it.
    async fn whole(log: &dyn Log, run: &str, read: ReadFact) -> Result<Self> {
        let mut records = Vec::new();
        let VerifiedRun { verifier, redacted, .. } = VerifiedRun::whole(log, run, |record| {
            records.extend(read(record)?);
            Ok(())
        })
        .await?;
        match redacted {
            Some(record) => Err(was_redacted(&record)),
            None => Self::of(run, records, verifier),
        }
    }

    /// The same, up to the record that another run names.
    async fn until(log: &dyn Log, previous: &Previous) -> Result<Self> {
        const PAGE: usize = 256;
        let Previous { run_id: run, seq: last, hash, .. } = previous;
        let (mut verifier, mut records) = (Verifier::new(run), Vec::new());
        while (records.len() as u64) < *last {
            let left = last - records.len() as u64;
            let wanted = usize::try_from(left).unwrap_or(PAGE).min(PAGE);
            let page = log.read(run, records.len() as u64 + 1, wanted).await?;
            if page.is_empty() {
                break;
            }
            for record in &page {
                verifier.check(record)?;
                if record.body().is_none() {
                    if !Removals::read(log).await?.is_redacted(record) {
                        let what = "its body is missing, and no tombstone explains it";
                        return Err(corrupt(run, record.seq(), what));
                    }
                    return Err(was_redacted(record));
                }
                records.extend(RecordedFact::read(record)?);
            }
        }
        let Some(found) = records.last().map(RecordedFact::record) else {
            return Err(Removals::read(log).await?.absence(run));
        };
        let is_named = (found.seq(), found.hash()) == (*last, *hash);
        let loaded = Self::of(run, records, verifier)?;
        let what = "it is not the record that the next run of the session names";
        if is_named { Ok(loaded) } else { Err(corrupt(run, *last, what)) }
    }

    pub(crate) fn facts(&self) -> impl DoubleEndedIterator<Item = &Fact> {
        self.records.iter().map(RecordedFact::fact)
    }

    pub(crate) fn last(&self) -> Option<&Fact> {
        self.facts().next_back()
    }

    /// The previous run, whether or not this one uses its conversation.
    pub(crate) fn previous(&self) -> Option<&Previous> {
        self.about.session.as_ref()?.previous.as_ref()
    }

    /// What it ran with, one engine after the other: those that another took over from, and the last.
    pub(crate) fn stretches(&self) -> (Vec<EngineSegment<'_>>, EngineSegment<'_>) {
        let (mut earlier, mut last) =
            (Vec::new(), EngineSegment { about: &self.about, extent: self.extent });
        for kept in self.records.iter().filter(|kept| kept.is(Kind::Resumed)) {
            let Fact::Resumed { about, extent, .. } = kept.fact() else { continue };
            if let Some(about) = about {
                earlier.push(last);
                last.about = about;
            }
            last.extent = extent.unwrap_or(last.extent);
        }
        (earlier, last)
    }

    /// How what it ran with last differs from what an engine would run with, if it does.
    pub(crate) fn difference(&self, engine: Option<&About>) -> Option<Error> {
        let tells = |kept: &&RecordedFact| {
            kept.is(Kind::RunStarted)
                || kept.is(Kind::Resumed)
                    && matches!(kept.fact(), Fact::Resumed { about: Some(_), .. })
        };
        let told = self.records.iter().rev().find(tells)?;
        let (seq, recorded) = (told.record().seq(), told.fact());
        let mut produced = recorded.clone();
        if let Fact::RunStarted { about, .. } | Fact::Resumed { about, .. } = &mut produced {
            *about = engine.map(|engine| Box::new(engine.clone()));
        }
        let difference = || mismatch(&self.run, seq, Some(recorded), Some(&produced));
        (*recorded != produced).then(difference)
    }

    /// The id of the call that last continued it, if that was a call of its own.
    pub(crate) fn request_id(&self) -> Option<String> {
        let mut resumed = self.records.iter().rev().filter(|kept| kept.is(Kind::Resumed));
        resumed.find_map(|kept| match kept.fact() {
            Fact::Resumed { request_id, .. } => request_id.clone(),
            _ => None,
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.records.last().is_some_and(|last| last.record().kind().is_end())
    }

    /// How it continues a run that a failed model call or a limit ended, if it does.
    pub(crate) fn link(&self) -> Option<&Continues> {
        self.about.parent.as_ref()?.continues.as_ref()
    }

    /// Whether its caller received a result.
    pub(crate) fn was_told(&self) -> bool {
        matches!(self.last(), Some(Fact::Sealed(_) | Fact::Suspended(_)))
    }

    /// The session when the turn began that this run is, with its data as they were last.
    pub(crate) fn session_before(&self) -> Session {
        let mut session = Session::from(joined(&self.before, &self.thread));
        let (_, last) = self.stretches();
        if let Some(link) = &last.about.session {
            session.id = link.id.clone();
            session.context = link.context.clone();
            session.metadata = link.metadata.clone();
        }
        session
    }

    /// The run at its first record, which holds no conversation for later turns.
    pub(crate) fn start(&self) -> Option<SessionRun> {
        let first = self.records.first()?.record();
        let hash = first.hash().to_string();
        Some(SessionRun::new(self.run.clone(), first.seq(), hash, false, Messages::new()))
    }

    /// The conversation at the start of the call that the run is, or that last continued it.
    pub(crate) fn thread_of_call(self) -> Thread {
        let is_call = |kept: &RecordedFact| {
            let fact = kept.fact();
            matches!(fact, Fact::RunStarted { .. } | Fact::Resumed { request_id: Some(_), .. })
        };
        let records = self.records;
        let began = records.iter().rposition(is_call).unwrap_or(0);
        let mut state = RunState::new(self.before);
        records.into_iter().take(began + 1).for_each(|kept| state.evolve(kept.into_fact()));
        state.thread
    }

    pub(crate) fn state(&self) -> &RunState {
        self.state.get_or_init(|| {
            let mut state = RunState::new(self.before.clone());
            self.records.iter().for_each(|kept| state.evolve(kept.fact().clone()));
            state
        })
    }

    pub(crate) fn take_state(&mut self) -> RunState {
        self.state();
        self.state.take().unwrap_or_default()
    }

    /// The result that the caller of a waiting run received.
    pub(crate) fn waiting(&self) -> Option<ChatResult> {
        matches!(self.last(), Some(Fact::Suspended(_))).then(|| {
            let mut result = self.state().clone().chat_result();
            result.run_id = Some(self.run.as_str().into());
            result
        })
    }

    /// Until when it waits for a time, in milliseconds since 1970, if it does.
    pub(crate) fn sleeps_until(&self) -> Option<u64> {
        match self.last() {
            Some(Fact::Suspended(end)) => end.wake_at_ms(),
            _ => None,
        }
    }

    /// How long it waits from now on for its time; none if it does not wait for one that is to come.
    pub(crate) fn sleeps_for(&self, world: &dyn World) -> Option<Duration> {
        let left = self.sleeps_until()?.checked_sub(millis(since_1970(world.now())))?;
        Some(Duration::from_millis(left)).filter(|left| !left.is_zero())
    }

    pub(crate) fn waiting_calls(&self) -> Vec<Cow<'_, ToolCall>> {
        let Some(Fact::Suspended(end)) = self.last() else { return Vec::new() };
        end.waiting_calls(self.facts())
    }

    /// The digests of the calls that it waits for, with the tools that it ran with when it asked.
    pub(crate) fn digests(&self) -> BTreeMap<String, Hash> {
        let digest = |call: Cow<'_, ToolCall>| Some((call.id.clone(), self.digest(&call)?));
        self.waiting_calls().into_iter().filter_map(digest).collect()
    }

    pub(crate) fn idempotency_keys(&self) -> BTreeMap<String, String> {
        let calls = self.waiting_calls();
        if calls.is_empty() {
            return BTreeMap::new();
        }
        let (turn, root) = (self.state().turn_of_calls(), self.link().map(|link| &link.root));
        let key = |call: Cow<'_, ToolCall>| {
            let context = ToolContext::new(call.into_owned(), Arc::new(SystemWorld))
                .continuing(root.cloned())
                .in_run(Some(self.run.clone()), turn);
            (context.call.id.clone(), context.idempotency_key())
        };
        calls.into_iter().map(key).collect()
    }

    /// The digest of a call with the tool that it last ran with; none if it had none of this name.
    pub(crate) fn digest(&self, call: &ToolCall) -> Option<Hash> {
        let (_, last) = self.stretches();
        let tool = last.about.tools.iter().find(|tool| tool.name == call.name)?;
        Some(Hash::of_call(tool, call))
    }

    /// The run up to a record.
    pub(crate) fn cut(mut self, at: u64) -> Self {
        self.records.retain(|kept| kept.record().seq() <= at);
        self.state.take();
        self
    }

    /// The run up to where it last waited; none if it never did.
    pub(crate) fn until_it_waited(mut self) -> Option<Self> {
        let place = self.records.iter().rposition(|kept| kept.is(Kind::Suspended))?;
        self.records.truncate(place + 1);
        self.state.take();
        Some(self)
    }

    /// The session after this turn; none if its caller received none, because the turn has no end
    /// yet, or was refused.
    pub(crate) fn session_after(self) -> Option<Session> {
        if !self.was_told() || self.refusal().is_some() {
            return None;
        }
        let (before, (_, EngineSegment { extent, .. })) = (self.session_before(), self.stretches());
        let mut state = RunState::new(self.before);
        let Self { run, records, .. } = self;
        let last = records.last()?;
        let (seq, hash) = (last.record().seq(), last.record().hash().to_string());
        let waits = last.is(Kind::Suspended);
        records.into_iter().for_each(|kept| state.evolve(kept.into_fact()));
        let mut session = match extent {
            Extent::Generate => return None,
            Extent::Step => before.apply_step(state.last_step()?),
            Extent::Chat => before.apply_chat(&state.chat_result()),
        };
        let messages = session.thread.messages.clone();
        session.last_run = Some(SessionRun::new(run, seq, hash, waits, messages));
        Some(session)
    }

    /// Whether the turn ended without changing its session.
    pub(crate) fn left_session_as_it_was(self) -> bool {
        let (_, EngineSegment { extent, .. }) = self.stretches();
        // The caller of a step with an unknown tool got an error in place of a session.
        let is_unknown = |fact: &Fact| match fact {
            Fact::Failed(end) => end
                .error()
                .is_some_and(|error| error.kind() == ErrorKind::Engine(EngineReason::UnknownTool)),
            _ => false,
        };
        let unknown_tool = extent == Extent::Step
            && self.records.iter().rev().take(2).any(|kept| is_unknown(kept.fact()));
        self.was_told() && (unknown_tool || self.session_after().is_none())
    }

    /// The error of a run whose call was refused, or whose result has no place for it.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let (_, EngineSegment { extent, .. }) = self.stretches();
        // A step that continues after waiting, or with a message of a person, counts as a new call.
        let is_call = |kept: &RecordedFact| match kept.fact() {
            fact @ Fact::Resumed { request_id: None, .. } => {
                extent != Extent::Chat && !fact.is_seam()
            }
            Fact::UserMessage { .. } => extent != Extent::Chat,
            _ => true,
        };
        let records = &self.records;
        let may_be_call =
            |kept: &RecordedFact| kept.is(Kind::Resumed) || kept.is(Kind::UserMessage);
        let began = records.iter().rposition(|kept| may_be_call(kept) && is_call(kept));
        let records = &records[began.unwrap_or(0)..];
        let answered = records.iter().any(|kept| kept.is(Kind::AssistantCompleted));
        let failed = records.iter().rev().find(|kept| kept.is(Kind::Failed))?;
        let Fact::Failed(end) = failed.fact() else { return None };
        let refused = !answered || end.reason == HaltReason::BudgetExceeded;
        end.error().filter(|_| refused)
    }

    fn of(run: &str, records: Vec<RecordedFact>, verifier: Verifier) -> Result<Self> {
        for told in
            records.iter().filter(|kept| kept.is(Kind::RunStarted) || kept.is(Kind::Resumed))
        {
            if let Fact::RunStarted { about: Some(about), .. }
            | Fact::Resumed { about: Some(about), .. } = told.fact()
                && about.behaviour > BEHAVIOUR
            {
                let what = format!("version {} of the loop's behaviour", about.behaviour);
                return Err(Corrupt::too_new(told.record(), what).into());
            }
        }
        let (thread, extent, about) = match records.first().map(RecordedFact::fact) {
            Some(Fact::RunStarted { thread, extent, about: Some(about) }) if !about.is_bare() => {
                (thread.clone(), *extent, about.clone())
            }
            _ => return Err(own_loop(run)),
        };
        let ((chain, totals), before) = (verifier.into_chain(), Messages::new());
        let (run, state) = (run.into(), OnceLock::new());
        Ok(Self { run, records, chain, totals, before, thread, extent, about, state })
    }

    async fn conversation_before(&self, log: &dyn Log) -> Result<Messages> {
        let from = |loaded: &Self| loaded.previous().filter(|run| run.messages > 0).cloned();
        let (mut earlier, mut next) = (Vec::new(), from(self));
        while let Some(previous) = next {
            let needed = |error: Error| {
                let run = &*self.run;
                let message = format!("{}; run {run} continues it", error.message());
                error.with_message(message).with("needed_by", run)
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
                return Err(corrupt(&run, seq, what));
            }
        }
        Ok(messages)
    }
}

fn corrupt(run: &str, seq: u64, what: impl Into<String>) -> Error {
    Corrupt::new(run, seq, what).into()
}

fn own_loop(run: &str) -> Error {
    Error::log(LogReason::OwnLoop)
        .with_message(format!(
            "log error: own_loop: run {run} was written by a loop of its caller's own, which alone can replay or resume it; \
             here it can be forked and cancelled"
        ))
        .with("run_id", run)
}
