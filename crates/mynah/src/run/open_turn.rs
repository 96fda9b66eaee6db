//! The turn of a run whose tools are not all done, and how one went.

use std::{collections::HashMap, sync::Arc};

use mynah_data::{Halt, Message, Response, ToolCall};
use mynah_log::Plan;
use mynah_step::{Continuation, denied};
use serde_json::json;

/// An answer whose tools are not all done.
#[derive(Clone, Debug)]
pub(super) struct OpenTurn {
    pub(super) response: Response,
    pub(super) plan: Plan,
    /// Each call to run, and its outcome.
    pub(super) calls: Vec<PlannedCall>,
    /// Where they stand, in the order of their ids: there may be thousands, and mostly there is one.
    pub(super) places: Vec<usize>,
    /// How many calls, from the first on, are announced or settled.
    pub(super) announced: usize,
    pub(super) unsettled: usize,
    /// How many calls may have run in a process that died, and have no outcome.
    pub(super) lost: usize,
    /// How many calls wait for the time of their next attempt.
    pub(super) sleeping: usize,
    /// Whether the answer is that of the last step, whose calls waited to be approved.
    pub(super) approved: bool,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedCall {
    pub(super) call: Arc<ToolCall>,
    /// The last attempt that was announced; 0 before the first.
    pub(super) attempt: u32,
    /// How many attempts failed; others ended with their process.
    pub(super) failed: u32,
    /// Whether the last attempt may have run in a process that died.
    pub(super) lost: bool,
    /// Whether a person allowed another attempt after that.
    pub(super) approved: bool,
    /// What it continues with, if it asked a person.
    pub(super) continuation: Option<Arc<Continuation>>,
    /// Whether it waited until a person approved it.
    pub(super) permitted: bool,
    /// Whether its arguments are a person's, and not the model's.
    pub(super) edited: bool,
    pub(super) settled: Option<(Arc<Message>, Option<Halt>)>,
    /// Until when it waits for its next attempt, in milliseconds since 1970.
    pub(super) sleeps_until: Option<u64>,
}

impl PlannedCall {
    /// Whether its outcome is unknown. One that continues after a question is none of these: its last attempt ended with that.
    pub(super) fn is_unknown(&self) -> bool {
        let asked = self.approved && self.continuation.is_some();
        self.lost && self.settled.is_none() && !asked
    }
}

impl OpenTurn {
    /// An answer with these calls to run.
    pub(super) fn new(response: Response, plan: Plan, approved: bool) -> Self {
        let ids: &[String] = match &plan {
            Plan::Tools { run, .. } => run,
            _ => &[],
        };
        let asked = response.message.shared_tool_calls();
        let mut asked: Vec<_> = asked.map(|call| (call.id.as_str(), Some(call))).collect();
        asked.sort_by_key(|(id, _)| *id);
        asked.dedup_by_key(|(id, _)| *id);
        let mut calls = Vec::with_capacity(ids.len());
        for id in ids {
            let place = asked.binary_search_by_key(&id.as_str(), |(id, _)| *id);
            // What is no call of the answer, or was there before, could never come out.
            let call = place.ok().and_then(|place| asked[place].1.take()).cloned();
            let planned = |call| PlannedCall {
                call,
                attempt: 0,
                failed: 0,
                lost: false,
                approved: false,
                continuation: None,
                permitted: false,
                edited: false,
                settled: None,
                sleeps_until: None,
            };
            calls.extend(call.map(planned));
        }
        let mut places: Vec<usize> = (0..calls.len()).collect();
        places.sort_by(|a, b| calls[*a].call.id.cmp(&calls[*b].call.id));
        let unsettled = calls.len();
        let (announced, lost, sleeping) = (0, 0, 0);
        Self { response, plan, calls, places, announced, unsettled, lost, sleeping, approved }
    }

    /// The first call that was not announced yet, and how many there are.
    pub(super) fn unannounced(&self) -> Option<(&PlannedCall, usize)> {
        let left = &self.calls[self.announced..];
        left.first().map(|first| (first, left.len()))
    }

    /// Calls that may have run in a process that died, and have no outcome.
    pub(super) fn lost(&self) -> impl Iterator<Item = &PlannedCall> {
        let calls = if self.lost == 0 { &[] } else { &self.calls[..] };
        calls.iter().filter(|call| call.lost)
    }

    /// Whether a call without an outcome may run or be running.
    pub(super) fn runs(&self) -> bool {
        self.unsettled > self.lost + self.sleeping
    }

    /// Calls that wait for the time of their next attempt, and that time.
    pub(super) fn sleeping(&self) -> impl Iterator<Item = (&PlannedCall, u64)> {
        let calls = if self.sleeping == 0 { &[] } else { &self.calls[..] };
        calls.iter().filter_map(|call| Some((call, call.sleeps_until?)))
    }

    pub(super) fn wake(&mut self, place: usize) {
        let slept = self.calls.get_mut(place).and_then(|call| call.sleeps_until.take());
        self.sleeping -= usize::from(slept.is_some());
    }

    /// The process that ran the calls is gone. Tools start when all of them are announced: before that none has run.
    pub(super) fn lose(&mut self) {
        if self.unannounced().is_none() {
            let runs =
                |call: &&mut PlannedCall| call.settled.is_none() && call.sleeps_until.is_none();
            self.calls.iter_mut().filter(runs).for_each(|call| call.lost = true);
            self.lost = self.unsettled - self.sleeping;
        }
    }

    /// Passes over calls at the front that need no announcement.
    pub(super) fn pass_announced(&mut self) {
        let is_passed = |call: &PlannedCall| call.attempt > 0 || call.settled.is_some();
        while self.calls.get(self.announced).is_some_and(is_passed) {
            self.announced += 1;
        }
    }

    pub(super) fn place(&self, id: &str) -> Option<usize> {
        let id_at = |place: &usize| self.calls[*place].call.id.as_str();
        let found = self.places.binary_search_by_key(&id, id_at);
        found.ok().map(|found| self.places[found])
    }

    pub(super) fn call(&self, id: &str) -> Option<&PlannedCall> {
        self.calls.get(self.place(id)?)
    }
}

/// How a step went.
#[derive(Clone, Debug)]
pub(super) struct ClosedTurn {
    pub(super) plan: Plan,
    pub(super) halt: Option<Halt>,
    /// The calls that halted. If the one that counts continues with an answer, the others are looked at again afterwards.
    pub(super) halted: Vec<PlannedCall>,
}

impl ClosedTurn {
    /// The calls that wait for approval.
    pub(super) fn manual(&self) -> &[String] {
        match &self.plan {
            Plan::Tools { manual, .. } => manual,
            _ => &[],
        }
    }
}

/// Adds what the model reads of calls that are not permitted, in the order of the calls.
pub(super) fn add_denied(
    settled: &mut Vec<(Arc<Message>, Option<Halt>)>,
    ids: &[String],
    response: &Response,
) {
    let places: HashMap<&str, (usize, &ToolCall)> = response
        .tool_calls()
        .enumerate()
        .map(|(place, call)| (call.id.as_str(), (place, call)))
        .collect();
    for (_, call) in ids.iter().filter_map(|id| places.get(id.as_str())) {
        let content = json!({"error": denied(call).to_string()}).to_string();
        settled.push((Arc::new(Message::tool_error(&call.id, content)), None));
    }
    settled.sort_by_key(|(message, _)| {
        places.get(message.tool_call_id().unwrap_or_default()).map(|(place, _)| *place)
    });
}
