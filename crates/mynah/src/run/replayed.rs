//! Records answer: what each record stands for, as inputs. Nothing outside is called but tools that run again.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::StreamExt as _;
use mynah_data::{AdapterReason, Error, HaltReason, Limit, Result, ToolCall};
use mynah_log::{Cut, Fact, expand};
use mynah_step::{Desk, Recorded, Settled, Tape, is_not_rerun, outcome_of};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    decide::Action,
    door::{Door, ToolRuns, running},
    input::Input,
    machine::Machine,
};
use crate::cancel::Cancellation;

/// Records answer.
pub(super) struct Replay {
    tape: Tape,
    desk: Arc<Desk>,
    /// What the record of an answer stands for.
    model: VecDeque<Input>,
    /// Tools that run again.
    tools: ToolRuns,
    /// Those that are done before their turn.
    early: Vec<(Arc<ToolCall>, Settled)>,
    /// Calls whose records answer for them.
    answered: HashSet<String>,
    /// Whether the engine may be another than the run's.
    allow_changed: bool,
    cancel: Cancellation,
}

impl Replay {
    pub(super) fn new(records: Recorded, allow_changed: bool, cancel: Cancellation) -> Self {
        Self {
            tape: Tape::Replaying(Box::new(records)),
            desk: Desk::new(),
            model: VecDeque::new(),
            tools: ToolRuns::default(),
            early: Vec::new(),
            answered: HashSet::new(),
            allow_changed,
            cancel,
        }
    }

    /// The input for which the next record stands, wherever the run is: it was stopped, or continued by another process.
    fn anywhere(&mut self, machine: &Machine) -> Option<Input> {
        let timed = || {
            let budget = machine.setup.policy.budget.as_ref();
            budget.is_some_and(|budget| budget.max_wall_clock_ms.is_some())
        };
        let input = match self.tape.upcoming_of(&["resumed", "cancelled", "budget_exceeded"])? {
            fact @ Fact::Resumed { .. } => Input::Resumed(fact.clone()),
            Fact::Cancelled { end, partial, .. } => Input::Interrupted {
                reason: end.reason.clone(),
                end: Some((end.clone(), partial.is_some())),
            },
            Fact::BudgetExceeded { breach, .. } if breach.limit == Limit::WallClock && timed() => {
                Input::LimitReached(breach.clone())
            }
            _ => return None,
        };
        self.tools.clear();
        self.early.clear();
        self.answered.clear();
        Some(input)
    }
}

impl Door for Replay {
    fn commit(&mut self, mut fact: Fact) -> Result<Fact> {
        self.tape.adopt_durations(&mut fact);
        // Another engine may have other tools, whose schemas count in the estimate of a prompt.
        if let (true, Fact::TurnStarted { input_tokens, .. }) = (self.allow_changed, &mut fact)
            && let Some(Fact::TurnStarted { input_tokens: recorded, .. }) =
                self.tape.upcoming_of(&["turn_started"])
        {
            *input_tokens = *recorded;
        }
        self.tape.commit(&fact)?;
        self.desk.committed(&fact);
        Ok(fact)
    }

    fn before(
        &mut self,
        cx: &mut Context<'_>,
        action: &Action,
        machine: &Machine,
    ) -> Option<Input> {
        if machine.leaves_the_word(action)
            && let Some(Fact::UserMessage { message }) = self.tape.upcoming_of(&["user_message"])
        {
            return Some(Input::Said(Arc::clone(message)));
        }
        match action {
            Action::Stop | Action::Cancel(_) => return None,
            Action::CallModel | Action::RunTools => {}
            _ if !self.tape.has_upcoming() => return Some(Input::RecordsEnded),
            _ => {
                if let Some(input) = self.anywhere(machine) {
                    return Some(input);
                }
            }
        }
        let cancelled = !machine.is_over() && self.cancel.poll_cancelled(cx);
        cancelled.then_some(Input::Interrupted { reason: HaltReason::Cancelled, end: None })
    }

    fn call_model(&mut self, machine: &Machine) {
        let answer = |cuts: &[Cut], response| {
            expand(cuts, response).into_iter().map(Input::ModelEvent).collect::<VecDeque<_>>()
        };
        self.model = match self.tape.upcoming() {
            None => VecDeque::from([Input::RecordsEnded]),
            Some(Fact::AssistantCompleted { response, cuts, .. }) => answer(cuts, response),
            Some(
                Fact::Cancelled { partial: Some(response), cuts, .. }
                | Fact::BudgetExceeded { partial: Some(response), cuts, .. },
            ) => answer(cuts, response),
            Some(Fact::FinalizeFailed { error }) => failed(error.clone()),
            Some(Fact::Failed(end)) => failed(recorded_error(end.metadata.get("error"))),
            // Whatever else is recorded is not what follows, unless it may stand anywhere.
            Some(_) => VecDeque::new(),
        };
        if self.model.back().is_none_or(|last| matches!(last, Input::ModelEvent(_))) {
            let end = self.anywhere(machine).unwrap_or(Input::ModelEnded(Ok(())));
            self.model.push_back(end);
        }
    }

    fn poll_model(&mut self, _: &mut Context<'_>, _: &Machine) -> Poll<Result<Input>> {
        let input = self.model.pop_front().unwrap_or(Input::RecordsEnded);
        Poll::Ready(Ok(input))
    }

    fn start_tool(&mut self, call: &Arc<ToolCall>, machine: &Machine) -> bool {
        let setup = &machine.setup;
        let tool = setup.policy.tool(&call.name, machine.state.conversation.is_some());
        let answers = setup.rerun.is_answered(tool, machine.state.runs_approved());
        // A call without an outcome ended with its process or its run: it is not run again.
        let outcome = self.tape.outcome_of(&call.id);
        let ran = outcome.is_some() || self.tape.stops_tools();
        match outcome {
            Some(fact) if !answers && !is_not_rerun(fact) => {
                self.tools.push(running(call, machine, (&self.tape, Some(&self.desk)), true));
            }
            _ => _ = self.answered.insert(call.id.clone()),
        }
        ran
    }

    fn poll_tools(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<Result<Input>> {
        loop {
            if let Some(fact) = self.desk.noted() {
                return Poll::Ready(Ok(Input::Recorded(fact)));
            }
            if let Some(input) = self.anywhere(machine) {
                return Poll::Ready(Ok(input));
            }
            if !self.tape.has_upcoming() {
                return Poll::Ready(Ok(Input::RecordsEnded));
            }
            let next = self.tape.upcoming_of_tool();
            if let Some(call) = next.map(str::to_owned) {
                if self.answered.contains(&call) {
                    let Some(fact) = self.tape.take_outcome() else { continue };
                    if outcome_of(&fact).is_some() {
                        self.answered.remove(&call);
                    }
                    return Poll::Ready(Ok(Input::Recorded(fact)));
                }
                if let Some(place) = self.early.iter().position(|(early, _)| early.id == call) {
                    let (call, settled) = self.early.remove(place);
                    return Poll::Ready(Ok(Input::ToolFinished { call, settled }));
                }
            }
            match self.tools.poll_next_unpin(cx) {
                Poll::Ready(Some(done)) => {
                    self.early.push(done);
                    continue;
                }
                // The next record belongs to none of them: the run differs.
                Poll::Ready(None) => {
                    return Poll::Ready(match self.early.pop() {
                        Some((call, settled)) => Ok(Input::ToolFinished { call, settled }),
                        None => Err(self.tape.nobody_makes_next()),
                    });
                }
                Poll::Pending => {}
            }
            self.desk.park(cx.waker());
            if self.desk.serve(&mut self.tape)? {
                continue;
            }
            return self.desk.poll_stuck(&mut self.tape).map(Err);
        }
    }

    fn after_end(&mut self) -> Option<Input> {
        match self.tape.upcoming_of(&["resumed", "cancelled"])? {
            Fact::Cancelled { end, .. } => Some(Input::Interrupted {
                reason: end.reason.clone(),
                end: Some((end.clone(), false)),
            }),
            fact => Some(Input::Resumed(fact.clone())),
        }
    }

    fn tape(&mut self) -> &mut Tape {
        &mut self.tape
    }

    fn recorded(&self) -> &Tape {
        &self.tape
    }

    fn cancellation(&mut self) -> &mut Cancellation {
        &mut self.cancel
    }
}

fn failed(error: Error) -> VecDeque<Input> {
    VecDeque::from([Input::ModelEnded(Err(error))])
}

/// An error as it is recorded.
fn recorded_error(error: Option<&Value>) -> Error {
    let error = error.and_then(|error| Error::deserialize(error).ok());
    error.unwrap_or_else(|| Error::adapter(AdapterReason::Unknown))
}
