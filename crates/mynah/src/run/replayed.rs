//! Records answer: what each record stands for, as inputs. Nothing outside is called but tools that run again.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::StreamExt as _;
use mynah_data::{Error, HaltReason, Response, Result, ToolCall};
use mynah_log::{Cut, End, Fact, Kind, expand};
use mynah_step::{
    Journal, ReplayCursor, Settled, WallClock, is_not_rerun, outcome_of, recorded_error,
};

use super::{
    decide::Action,
    door::{Door, ToolRuns, running},
    input::Input,
    machine::Machine,
};
use crate::context_policy::ContextView;

/// Records answer.
pub(super) struct Replay {
    journal: Arc<Journal>,
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
}

impl Replay {
    pub(super) fn new(journal: Arc<Journal>, allow_changed: bool) -> Self {
        Self {
            journal,
            model: VecDeque::new(),
            tools: ToolRuns::default(),
            early: Vec::new(),
            answered: HashSet::new(),
            allow_changed,
        }
    }

    /// The input for which the next record stands, wherever the run is: it was stopped, or continued by another process.
    fn anywhere(&mut self, machine: &Machine) -> Option<Input> {
        let timed = || {
            let budget = machine.setup.policy.budget.as_ref();
            budget.is_some_and(|budget| budget.max_wall_clock_ms.is_some())
        };
        let input = self.journal.records(|cursor| {
            let kinds = [Kind::Resumed, Kind::Cancelled, Kind::BudgetExceeded];
            Some(match cursor.upcoming_of(&kinds)? {
                fact @ Fact::Resumed { .. } => Input::Resumed(Box::new(fact.clone())),
                Fact::Cancelled { end, partial, .. } => interrupted(end, partial.is_some()),
                fact => {
                    let passed = WallClock::recorded(fact).filter(|_| timed());
                    Input::LimitReached(passed?.clone())
                }
            })
        })?;
        self.tools.clear();
        self.early.clear();
        self.answered.clear();
        Some(input)
    }

    fn has_upcoming(&self) -> bool {
        self.journal.records(|cursor| Some(cursor.has_upcoming())) == Some(true)
    }
}

impl Door for Replay {
    fn commit(&mut self, mut fact: Fact) -> Result<Fact> {
        // Another engine may have other tools, whose schemas count in the estimate of a prompt.
        if let (true, Fact::TurnStarted { input_tokens, .. }) = (self.allow_changed, &mut fact) {
            let recorded = self.journal.records(|cursor| match cursor.upcoming()? {
                Fact::TurnStarted { input_tokens, .. } => Some(*input_tokens),
                _ => None,
            });
            *input_tokens = recorded.unwrap_or(*input_tokens);
        }
        self.journal.commit(&mut fact)?;
        Ok(fact)
    }

    fn before(
        &mut self,
        _: &mut Context<'_>,
        action: &Action,
        machine: &Machine,
        cancelled: bool,
    ) -> Option<Input> {
        if machine.leaves_the_word(action) {
            let said =
                self.journal.records(|cursor| match cursor.upcoming_of(&[Kind::UserMessage])? {
                    Fact::UserMessage { message } => Some(Input::Said(Arc::clone(message))),
                    _ => None,
                });
            if said.is_some() {
                return said;
            }
        }
        match action {
            Action::Stop | Action::Cancel(_) => return None,
            Action::CallModel | Action::RunTools => {}
            _ if !self.has_upcoming() => return Some(Input::RecordsEnded),
            _ => {
                if let Some(input) = self.anywhere(machine) {
                    return Some(input);
                }
            }
        }
        cancelled.then_some(Input::Interrupted { reason: HaltReason::Cancelled, end: None })
    }

    fn call_model(&mut self, machine: &Machine) {
        let upcoming = |cursor: &mut ReplayCursor| {
            Some(match cursor.upcoming() {
                None => VecDeque::from([Input::RecordsEnded]),
                Some(Fact::AssistantCompleted { response, cuts, .. }) => answer(cuts, response),
                Some(
                    Fact::Cancelled { partial: Some(response), cuts, .. }
                    | Fact::BudgetExceeded { partial: Some(response), cuts, .. },
                ) => answer(cuts, response),
                Some(Fact::Suspended(end)) => VecDeque::from([Input::Parked(end.clone())]),
                Some(Fact::FinalizeFailed { error }) => failed(error.clone()),
                Some(Fact::Failed(end)) => failed(recorded_error(end.metadata.get("error"))),
                // Any other record does not follow here, unless it may be at any place.
                Some(_) => VecDeque::new(),
            })
        };
        self.model = self.journal.records(upcoming).unwrap_or_default();
        if self.model.back().is_none_or(|last| matches!(last, Input::ModelEvent(_))) {
            let end = self.anywhere(machine).unwrap_or(Input::ModelEnded(Ok(())));
            self.model.push_back(end);
        }
    }

    fn poll_model(&mut self, _: &mut Context<'_>, _: &Machine) -> Poll<Result<Input>> {
        let input = self.model.pop_front().unwrap_or(Input::RecordsEnded);
        Poll::Ready(Ok(input))
    }

    fn poll_summary(
        &mut self,
        _: &mut Context<'_>,
        _: &Machine,
        view: ContextView,
    ) -> Poll<Result<Input>> {
        let summary = self.journal.records(|cursor| match cursor.upcoming()? {
            Fact::ContextTruncated { summary, .. } => Some(Ok(summary.clone())),
            Fact::TurnLost { .. } => Some(Err(Input::SummaryLost)),
            _ => None,
        });
        Poll::Ready(Ok(match summary {
            Some(Err(lost)) => lost,
            summary => {
                let summary = summary.and_then(Result::ok).flatten();
                Input::Summarised { view, summary }
            }
        }))
    }

    fn poll_ended(&mut self, _: &mut Context<'_>, _: &Machine) -> Poll<()> {
        Poll::Ready(())
    }

    fn start_tool(&mut self, call: &Arc<ToolCall>, machine: &Machine) -> bool {
        let setup = &machine.setup;
        let tool = setup.policy.tool(&call.name, machine.state.conversation.is_some());
        let answers = setup.rerun.is_answered(tool, machine.state.runs_approved());
        // A call without an outcome ended with its process or its run: it is not run again.
        let reruns = self
            .journal
            .records(|cursor| cursor.outcome_of(&call.id).map(|fact| !is_not_rerun(fact)));
        if reruns == Some(true) && !answers {
            self.tools.push(running(call, machine, Some(&self.journal), true, None));
        } else {
            self.answered.insert(call.id.clone());
        }
        reruns.is_some() || self.journal.records(|cursor| Some(cursor.stops_tools())) == Some(true)
    }

    fn poll_tools(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<Result<Input>> {
        loop {
            if let Some(fact) = self.journal.noted() {
                return Poll::Ready(Ok(Input::Recorded(Box::new(fact))));
            }
            if let Some(input) = self.anywhere(machine) {
                return Poll::Ready(Ok(input));
            }
            if !self.has_upcoming() {
                return Poll::Ready(Ok(Input::RecordsEnded));
            }
            let next = self.journal.records(|cursor| cursor.upcoming_of_tool().map(str::to_owned));
            if let Some(call) = next {
                if self.answered.contains(&call) {
                    let Some(fact) = self.journal.records(ReplayCursor::take) else { continue };
                    if outcome_of(&fact).is_some() {
                        self.answered.remove(&call);
                    }
                    return Poll::Ready(Ok(Input::Recorded(Box::new(fact))));
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
                        None => Err(self.journal.differs_from_next()),
                    });
                }
                Poll::Pending => {}
            }
            if !self.journal.watch(cx)? {
                return Poll::Pending;
            }
        }
    }

    fn poll_sleep(&mut self, _: &mut Context<'_>, _: u64, _: &Machine) -> Poll<Result<Input>> {
        let recorded = self.journal.records(|cursor| match cursor.upcoming()? {
            Fact::Suspended(end) => Some(Input::Parked(end.clone())),
            _ => Some(cursor.announced_next()).filter(|calls| !calls.is_empty()).map(Input::Woke),
        });
        Poll::Ready(recorded.ok_or_else(|| self.journal.differs_from_next()))
    }

    fn after_end(&mut self) -> Option<Input> {
        self.journal.records(|cursor| {
            Some(match cursor.upcoming_of(&[Kind::Resumed, Kind::Cancelled])? {
                Fact::Cancelled { end, .. } => interrupted(end, false),
                fact => Input::Resumed(Box::new(fact.clone())),
            })
        })
    }
}

fn interrupted(end: &End, cut_off: bool) -> Input {
    Input::Interrupted { reason: end.reason.clone(), end: Some((end.clone(), cut_off)) }
}

fn answer(cuts: &[Cut], response: &Response) -> VecDeque<Input> {
    expand(cuts, response).into_iter().map(Input::ModelEvent).collect()
}

fn failed(error: Error) -> VecDeque<Input> {
    VecDeque::from([Input::ModelEnded(Err(error))])
}
