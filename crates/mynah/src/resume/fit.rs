//! What a resumed run continues with, and why it is refused.

use std::sync::Arc;

use mynah_data::{
    Error, ErrorKind, HaltReason, LogReason, Message, Result, Role, SessionReason, ToolCall,
};
use mynah_log::{About, End, Extent, Fact, Interruption, Kind, RunStatus};
use mynah_step::OnUncertain;
use serde_json::json;

use super::Resume;
use crate::{
    Decision,
    linked::advice,
    loaded::Loaded,
    prepare::{PARK_AFTER, Part},
};

const UNCERTAIN: &str = "the outcome of some of its calls is unknown, because the process died while they ran; decide with Run::decide, \
     give results with Resume::tool_result, or choose a policy with Resume::on_uncertain";

/// What a run continues with.
pub(super) struct Fitting {
    /// What the user says to a run that does not wait.
    pub(super) message: Option<Arc<Message>>,
    pub(super) fact: Option<Fact>,
    pub(super) part: Part,
    /// What the engine runs with, if it is something else than before.
    pub(super) changed: Option<Box<About>>,
}

/// The same refusal, with what the run waits for where it waits.
fn awaited(error: Error, loaded: &Loaded) -> Error {
    let (ErrorKind::Session(_), Some(Fact::Suspended(end))) = (error.kind(), loaded.last()) else {
        return error;
    };
    let told = end.metadata.clone().into_iter();
    let error = told.fold(error, |error, (name, value)| error.with(&name, value));
    match end.reason {
        HaltReason::ManualToolCalls => {
            error.with("manual_tool_calls", json!(loaded.waiting_calls()))
        }
        _ => error,
    }
}

impl Resume {
    /// What the run continues with, if it fits the run.
    pub(super) fn fit(&self, loaded: &Loaded) -> Result<Fitting> {
        self.check_place(loaded)?;
        self.check_time(loaded).map_err(|error| awaited(error, loaded))?;
        let message = self.said(loaded)?;
        let fact = match message {
            Some(_) => None,
            None => self.resumption(loaded).map_err(|error| awaited(error, loaded))?,
        };
        let (part, changed) = self.part(loaded)?;
        if changed.is_some() {
            self.check_approved(loaded, fact.as_ref())?;
        }
        Ok(Fitting { message, fact, part, changed })
    }

    /// Refuses a run that has continued since a person looked at it.
    fn check_place(&self, loaded: &Loaded) -> Result<()> {
        let last = loaded.chain.head().map(|head| head.seq);
        match self.at.filter(|at| last != Some(*at)) {
            None => Ok(()),
            Some(at) => Err(Error::session(SessionReason::SessionMoved)
                .with_message(format!(
                    "session error: session_moved: run {} has continued since record {at}, so this may be about something else than what it \
                     waits for now; look at the run as it is, then decide",
                    loaded.run
                ))
                .with("run_id", loaded.run.as_str())),
        }
    }

    /// What a person says to a run that does not wait.
    fn said(&self, loaded: &Loaded) -> Result<Option<Arc<Message>>> {
        let is_answer = self.is_answer || self.turn.is_some() || !self.decisions.is_empty();
        let Some(message) = self.message.as_ref().filter(|_| !is_answer) else { return Ok(None) };
        match loaded.last() {
            Some(Fact::Suspended(end)) if !end.awaits_nobody() => return Ok(None),
            // Nothing follows but its end and its seal.
            Some(Fact::BudgetExceeded { .. } | Fact::Sealed(_)) => {
                return Err(self.has_ended(loaded));
            }
            Some(last) if last.kind().is_end() => return Err(self.has_ended(loaded)),
            _ => {}
        }
        let refused = |why| Err(self.refused(RunStatus::Running, why));
        if message.role() != Role::User {
            return refused("only a user message can be added to it");
        }
        match self.uncertain(loaded).filter(|_| self.on_uncertain == OnUncertain::Suspend) {
            Some(end) => refused(UNCERTAIN).map_err(|error| {
                let calls = end.metadata.get("uncertain_tool_calls").cloned().unwrap_or_default();
                error.with("missing_tool_calls", calls)
            }),
            None => Ok(Some(Arc::new(message.clone()))),
        }
    }

    /// Refuses a run that waits for a time which is far away.
    fn check_time(&self, loaded: &Loaded) -> Result<()> {
        let left = loaded.sleeps_for(self.engine.0.world.as_ref());
        let longest = self.options.park_after.unwrap_or(PARK_AFTER);
        match left.filter(|left| !self.woken && *left > longest) {
            Some(left) => {
                let why = format!("it sleeps for another {} s; resume it then", left.as_secs());
                Err(self.refused(RunStatus::Suspended, &why))
            }
            None => Ok(()),
        }
    }

    fn says_something(&self) -> bool {
        self.message.is_some() || !self.decisions.is_empty()
    }

    /// Whether nothing is said that may be meant for the run as it was when it was read.
    pub(super) fn may_read_again(&self) -> bool {
        !self.says_something() && self.on_uncertain == OnUncertain::Suspend
    }

    fn has_ended(&self, loaded: &Loaded) -> Error {
        let was_cancelled = loaded.records.iter().any(|kept| kept.is(Kind::Cancelled));
        let advice = match self.decisions.is_empty() || was_cancelled {
            true => advice(loaded),
            false => "its calls were decided before",
        };
        let message = format!("log error: sealed: run {} has ended; {advice}", self.run);
        Error::log(LogReason::Sealed).with_message(message).with("run_id", self.run.as_str())
    }

    /// What the run continues with; none if it does not wait.
    fn resumption(&self, loaded: &Loaded) -> Result<Option<Fact>> {
        let uncertain;
        let (end, status) = match loaded.last() {
            Some(Fact::Sealed(_)) => return Err(self.has_ended(loaded)),
            Some(Fact::Suspended(end)) => (end, RunStatus::Suspended),
            _ if !self.says_something() => return Ok(None),
            _ => {
                let nothing = || self.refused(RunStatus::Running, "it does not wait for anything");
                let waits = self.uncertain(loaded).filter(|_| !self.decisions.is_empty());
                uncertain = waits.ok_or_else(nothing)?;
                self.check_repeated(loaded)?;
                (&uncertain, RunStatus::Running)
            }
        };
        let refused = |why: &str| self.refused(status, why);
        match &self.message {
            None if end.reason == HaltReason::AskUser => {
                return Err(refused("it waits for an answer; give it with Resume::answer"));
            }
            Some(_) if end.awaits_nobody() => {
                return Err(refused(
                    "it waits for no answer; resume it without one, or add a Resume::message",
                ));
            }
            Some(message) if message.role() != Role::User => {
                return Err(refused("it waits for an answer of the user"));
            }
            _ => {}
        }
        let mut missing = self.unanswered(end.waiting_calls(loaded.facts()), loaded)?;
        let mut approved: Vec<String> = self.approved().cloned().collect();
        let mut given_up = Vec::new();
        if end.reason == HaltReason::UncertainTools {
            match self.on_uncertain {
                OnUncertain::Rerun => approved.append(&mut missing),
                OnUncertain::Fail => given_up.append(&mut missing),
                _ => {}
            }
        }
        if self.message.is_some() && !approved.is_empty() {
            return Err(refused("a message can follow the approved calls when they are done"));
        }
        if !missing.is_empty() {
            let waits = match end.reason {
                HaltReason::UncertainTools => UNCERTAIN.to_owned(),
                _ => format!(
                    "it waits for the calls {}; decide about each with Run::decide, or with Resume::approve, reject or tool_result",
                    missing.join(", ")
                ),
            };
            return Err(refused(&waits).with("missing_tool_calls", missing));
        }
        let (_, last) = loaded.stretches();
        Ok(Some(self.resumed(approved, given_up, last.extent)))
    }

    /// The fact with which the run continues: these calls run, and the outcome of those stays unknown.
    fn resumed(&self, approved: Vec<String>, given_up: Vec<String>, before: Extent) -> Fact {
        let (mut tool_results, mut edited, mut rejected) = (Vec::new(), Vec::new(), Vec::new());
        for (id, decision) in &self.decisions {
            let (list, text) = match decision {
                Decision::Approve => continue,
                Decision::ApproveWith(arguments) => (&mut edited, arguments.to_string()),
                Decision::Reject(why) => (&mut rejected, why.clone()),
                Decision::Result(value) => {
                    let message = Message::tool_result(id, value.clone());
                    (&mut tool_results, message.text().into_owned())
                }
            };
            list.push((id.clone(), text));
        }
        let turn = self.turn.as_ref();
        Fact::Resumed {
            message: self.message.clone().map(Arc::new),
            tool_results,
            approved,
            edited,
            rejected,
            given_up,
            request_id: turn.map(|turn| turn.request_id.clone()),
            extent: turn.map(|turn| turn.extent).filter(|extent| *extent != before),
            about: None,
            on_uncertain: self.on_uncertain,
            after: Interruption::default(),
        }
    }

    /// Refuses a repeated approval of a call that may have run since: who sent it did not know of the first.
    fn check_repeated(&self, loaded: &Loaded) -> Result<()> {
        let Some(id) = self.repeated(loaded) else { return Ok(()) };
        let why = format!(
            "call {id} was approved before and has no outcome yet: it is running, or the process died while it ran; \
             resume the run without a decision first, then decide what to do with the call"
        );
        Err(self.refused(RunStatus::Running, &why).with("missing_tool_calls", vec![id]))
    }

    /// A call that is approved once more, although it may have run since.
    pub(super) fn repeated(&self, loaded: &Loaded) -> Option<String> {
        if matches!(loaded.last(), Some(Fact::Suspended(_))) || self.decisions.is_empty() {
            return None;
        }
        let was_approved = |id: &String| {
            loaded
                .facts()
                .any(|fact| matches!(fact, Fact::Resumed { approved, .. } if approved.contains(id)))
        };
        let left = loaded.state().left_open();
        let repeated = left.iter().find(|(call, _)| {
            self.approved().any(|id| *id == call.id)
                && was_approved(&call.id)
                && !self.is_harmless(call)
        });
        repeated.map(|(call, _)| call.id.clone())
    }

    /// Whether a call may run twice.
    fn is_harmless(&self, call: &ToolCall) -> bool {
        let tools = self.engine.resolve_tools(&self.options);
        tools.iter().any(|tool| tool.name() == call.name && tool.spec().idempotent)
    }

    /// The tool calls that a resumed run waits for: those with an unknown outcome, because the
    /// process died while they ran, and those that the caller decided about.
    fn uncertain(&self, loaded: &Loaded) -> Option<End> {
        let is_named = |call: &ToolCall| self.decisions.iter().any(|(id, _)| *id == call.id);
        let mut left = loaded.state().left_open();
        left.retain(|(call, _)| is_named(call) || !self.is_harmless(call));
        let edited = left.iter().filter(|(_, edited)| *edited).map(|(call, _)| &**call);
        let ids = left.iter().map(|(call, _)| call.id.as_str());
        (!left.is_empty()).then(|| End::uncertain(ids).with_edited(edited))
    }

    pub(super) fn refused(&self, status: RunStatus, why: &str) -> Error {
        Error::session(SessionReason::InvalidStatus)
            .with_message(format!("session error: invalid_status: run {}: {why}", self.run))
            .with("operation", "resume")
            .with("status", status.as_str())
            .with("run_id", self.run.as_str())
    }
}
