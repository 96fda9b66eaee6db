//! Performs one run that a worker claimed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mynah_data::{Error, ErrorKind, HaltReason, Result, RunId, StreamReason};
use mynah_log::{End, Fact, InboxMessage, Log};
use mynah_step::{BoxFuture, KeptLease, SystemWorld};
use serde_json::Value;

use super::Signal;
use crate::{
    CancelHandle, Decision, Engine, Options, cancel_run,
    loaded::Loaded,
    mailbox::Mailbox,
    resume::{Claimed, Resume},
    stream::EventStream,
};

/// The result of performing a run that was claimed.
pub(super) enum Performed {
    /// It ended or waits.
    Stopped,
    /// It waits for more than its inbox has: for so long, if it waits for a time.
    Waits(Option<Duration>),
    /// It was released, because the worker stops.
    Released,
}

/// Makes the engine for a run.
pub(super) type Make = dyn Fn(Arc<dyn Log>, RunId) -> BoxFuture<Result<Engine>> + Send + Sync;

/// The agents of a worker, by their names.
pub(super) type Agents = BTreeMap<String, Arc<Make>>;

pub(super) async fn perform(
    log: Arc<dyn Log>,
    agents: Agents,
    (run, lease): (RunId, KeptLease),
    (cancel, mailbox): (CancelHandle, Mailbox),
    options: Options,
) -> Result<Performed> {
    let inbox = log.inbox(&run, usize::MAX).await?;
    let signals = Signal::all(&inbox);
    if signals.iter().any(|(_, signal)| *signal == Signal::Cancel) {
        drop(lease);
        cancel_run(&log, &run).await?;
        return Ok(Performed::Stopped);
    }
    let loaded = Loaded::read(&*log, &run).await?;
    let engine = make_of(&loaded, &agents, &run)?(Arc::clone(&log), run.clone()).await?;
    let resume = Resume::new(engine, Arc::clone(&log), run).options(options);
    let resume = resume.cancel_handle(&cancel);
    // A run without messages was claimed because its time has come by the clock of the log.
    let sleeps = loaded.sleeps_for(&SystemWorld).filter(|_| !inbox.is_empty());
    let (resume, mut consumed) = match loaded.last() {
        _ if sleeps.is_some() => return Ok(Performed::Waits(sleeps)),
        Some(Fact::Suspended(end)) => match fitting(resume, end, &loaded, &signals) {
            Some(fitting) => fitting,
            None => return Ok(Performed::Waits(None)),
        },
        _ => (resume, Vec::new()),
    };
    // What cannot be read will never be.
    let strange = inbox.iter().filter(|message| Signal::read(&message.payload).is_none());
    consumed.extend(strange.map(|message| message.id.clone()));
    mailbox.pass_over(&consumed);
    mailbox.take_in(&inbox);
    let mut resume = resume.claimed(Claimed { lease, consumed, mailbox: Some(mailbox) });
    let mut stream = EventStream::new(resume.prepare(loaded).await);
    match stream.drain(drop).await {
        Err(error) if error.kind() == ErrorKind::Stream(StreamReason::Released) => {
            Ok(Performed::Released)
        }
        done => done.map(|_| Performed::Stopped),
    }
}

/// How a run that waits continues with these messages, and which of them it consumes; none if they are not what it waits for.
/// Answers and decisions that it does not wait for are consumed as well: they were meant for something else.
pub(crate) fn fitting(
    mut resume: Resume,
    end: &End,
    loaded: &Loaded,
    signals: &[(&str, Signal)],
) -> Option<(Resume, Vec<String>)> {
    let is_said = |signal: &Signal| matches!(signal, Signal::Message(_));
    let mut consumed: Vec<String> = Vec::new();
    match end.reason {
        HaltReason::AskUser => {
            let answer = signals.iter().find_map(|(id, signal)| match signal {
                Signal::Answer(text) | Signal::Message(text) => Some((id, text)),
                _ => None,
            });
            let (id, text) = answer?;
            resume = resume.answer(text);
            consumed.push((*id).to_owned());
        }
        HaltReason::ManualToolCalls | HaltReason::UncertainTools => {
            for call in loaded.waiting_calls() {
                // The last decision counts, so that one which cannot be followed is replaced by another.
                let decisions = signals.iter().rev().filter_map(|(_, signal)| signal.decision());
                let (id, decision) = decisions.into_iter().find(|(id, _)| *id == call.id)?;
                resume = resume.decide(id, decision);
            }
        }
        HaltReason::Sleeping => resume = resume.woken(),
        _ => {
            signals.iter().find(|(_, signal)| is_said(signal))?;
        }
    }
    let others = signals.iter().filter(|(_, signal)| !is_said(signal));
    consumed.extend(others.map(|(id, _)| (*id).to_owned()));
    consumed.dedup();
    Some((resume, consumed))
}

impl Signal {
    /// The messages that can be read, with their ids.
    pub(crate) fn all(inbox: &[InboxMessage]) -> Vec<(&str, Self)> {
        let read = |message: &InboxMessage| Self::read(&message.payload);
        inbox.iter().filter_map(|message| Some((message.id.as_str(), read(message)?))).collect()
    }

    /// The call that it decides about, and how.
    pub(crate) fn decision(&self) -> Option<(&str, Decision)> {
        Some(match self {
            Self::Approve { call_id, arguments: None } => (call_id, Decision::Approve),
            Self::Approve { call_id, arguments: Some(arguments) } => {
                (call_id, Decision::ApproveWith(arguments.clone()))
            }
            Self::Reject { call_id, reason } => (call_id, Decision::Reject(reason.clone())),
            Self::ToolResult { call_id, content } => (call_id, Decision::Result(content.clone())),
            Self::Answer(_) | Self::Message(_) | Self::Cancel => return None,
        })
    }
}

fn make_of<'a>(loaded: &Loaded, agents: &'a Agents, run: &RunId) -> Result<&'a Make> {
    let name = loaded.about.options.get("agent").and_then(Value::as_str);
    let make = match name {
        Some(name) => agents.get(name),
        None if agents.len() == 1 => agents.values().next(),
        None => None,
    };
    make.map(|make| &**make).ok_or_else(|| {
        let known = agents.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let why = match name {
            Some(name) => format!("run {run} needs the agent {name}, and this worker has: {known}"),
            None => format!(
                "run {run} names no agent, so only a worker with one agent performs it, and this worker has: {known}; name the agent \
                 with Chat::agent when runs are enqueued"
            ),
        };
        Error::invalid_option("agent", "unknown")
            .with_message(format!("validation failed: agent: {why}"))
    })
}
