//! The questions to a journal, and their answers.

use std::task::{Context, Poll, ready};

use mynah_data::{Result, ToolReason};
use mynah_log::{Fact, Inside, Resolution};
use tokio::time::Instant;

use super::{
    Answer, Attempt, GRACE, Origin, PATIENCE, PendingEffect, Query, Question, Stall, State,
    call_is_over, gone,
};
use crate::{Recorder, cursor::is_answer, recorder::ends, settle::failed, uncertain::not_begun};

impl State {
    /// Whether the next answer comes from the records: always in a replay, in a run that is resumed until it is where it was.
    pub(crate) fn is_behind(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.is_behind())
    }

    /// Who writes, if no records answer any more.
    pub(super) fn live(&mut self) -> Option<&mut Recorder> {
        if self.cursor.is_some() { None } else { self.recorder.as_deref_mut() }
    }

    /// Refuses requests before the run began, or after it ended.
    pub(crate) fn check_open(&mut self) -> Result<()> {
        self.live().map_or(Ok(()), |recorder| recorder.check_open())
    }

    /// Continues in the world once everything recorded was made again: takes the lease first.
    pub(super) fn poll_take_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.cursor.as_ref().is_some_and(|cursor| !cursor.is_behind()) {
            if let Some(recorder) = &mut self.recorder
                && let Err(error) = ready!(recorder.poll_take(cx))
            {
                recorder.fail(error);
            }
            self.cursor = None;
        }
        Poll::Ready(())
    }

    /// Answers what can be answered, and returns the answered questions.
    pub(super) fn answer_all(&mut self, cx: &mut Context<'_>, answered: &mut Vec<u64>) {
        while !self.questions.is_empty()
            && self.poll_take_over(cx).is_ready()
            && let Some((id, answer)) = self.next_answer()
        {
            let Some(id) = id else { continue };
            self.answers.insert(id, answer);
            answered.push(id);
        }
    }

    fn next_answer(&mut self) -> Option<(Option<u64>, Answer)> {
        let mut found = None;
        let now = self.cursor.as_ref().map_or(u64::MAX, |cursor| cursor.taken());
        let (passed, then) = self.without_answer;
        let passed = if then == now { passed } else { 0 };
        for (index, Question { id, place, want }) in
            self.questions.iter_mut().enumerate().skip(passed)
        {
            if let Query::Commit { fact: Fact::SideEffect { ahead, .. }, asked: Some(asked) } = want
            {
                *ahead = asked.ahead();
            }
            let answer = match (&mut self.cursor, &mut self.recorder, &*want) {
                (Some(cursor), _, _) => cursor.answer(place, want),
                (None, Some(recorder), Query::Commit { fact, .. }) if id.is_none() => {
                    Some(recorder.commit(fact).map(|()| Some(fact.clone())))
                }
                // What has no record is left to its task, while the run is ours.
                (None, Some(recorder), _) => Some(recorder.is_ours().map(|()| None)),
                (None, None, _) => Some(Err(gone())),
            };
            if let Some(answer) = answer {
                found = Some((index, answer));
                break;
            }
        }
        let Some((index, answer)) = found else {
            self.without_answer = (self.questions.len(), now);
            return None;
        };
        self.answered += 1;
        self.without_answer = (index, now);
        let question = self.questions.remove(index);
        self.take_in(&question, &answer);
        Some((question.id, answer))
    }

    /// A question has its answer.
    fn take_in(&mut self, Question { place, want, .. }: &Question, answer: &Answer) {
        if let Some(attempt) = place.as_ref().and_then(|at| self.attempts.get_mut(&at.call_id)) {
            attempt.answered = Some(Instant::now());
        }
        let Ok(Some(recorded)) = answer else { return };
        match (want, recorded) {
            (Query::Commit { fact, asked }, _) => self.committed(place, fact, asked.as_ref()),
            (Query::Recall { asked, .. }, _) => asked.leave(),
            (Query::Outcome, fact) => {
                // If it is the end of the run, the call has no other outcome.
                if let Some(at) = place {
                    self.attempts.remove(&at.call_id);
                }
                self.came_out(fact);
            }
            (Query::Answer, _) => self.turn = None,
            (Query::Announce(_), Fact::TurnStarted { turn, .. }) => self.turn = Some(*turn),
            (Query::Announce(_), Fact::ToolScheduled { call_id, call: Some(call), .. }) => {
                let cursor = self.cursor.as_ref();
                let may_have_run = cursor.is_none_or(|cursor| cursor.may_have_run(call_id));
                let attempt = cursor.and_then(|cursor| cursor.attempt_of(call_id));
                let number = attempt.map_or(1, |attempt| attempt.number);
                self.announced(call_id, &call.name, number, may_have_run);
            }
            _ => {}
        }
    }

    /// Adds a fact to the records of a run, if there is room for it.
    pub(super) fn add(
        &mut self,
        place: &Origin,
        fact: &mut Fact,
        asked: Option<&PendingEffect>,
    ) -> Option<Result<()>> {
        if asked.is_some() && !self.may_ask(place) {
            return Some(Err(call_is_over()));
        }
        if let Fact::SideEffect { ahead, .. } = fact
            && let Some(asked) = asked
        {
            *ahead = asked.ahead();
        }
        let Some(recorder) = self.live() else { return Some(Err(gone())) };
        if recorder.is_full() {
            return None;
        }
        let added = recorder.commit(fact);
        if added.is_ok() {
            self.answered += 1;
            self.committed(place, fact, asked);
        }
        Some(added)
    }

    /// A fact that was made at a place is in the records.
    fn committed(&mut self, place: &Origin, fact: &Fact, asked: Option<&PendingEffect>) {
        if let Some(asked) = asked {
            asked.leave();
        } else {
            self.came_out(fact);
        }
        // The process ended between the end and its seal.
        if let (Some(cursor), Some(recorder)) = (&self.cursor, &mut self.recorder)
            && ends(fact)
            && !cursor.is_behind()
            && let Err(error) = recorder.seal()
        {
            recorder.fail(error);
        }
        // Of side effects, what a run spent that a tool started counts in the budget at once.
        let is_noted = place.is_some() && (asked.is_none() || fact.sub_run().is_some());
        if let Some(noted) = self.noted.as_mut().filter(|_| is_noted) {
            noted.push_back(fact.clone());
        }
    }

    /// Waits for something to happen in a replay in which every question waits for its turn. If nothing does, the first of
    /// them is about something else than what is recorded, and is answered so.
    pub(super) fn poll_stuck(&mut self, cx: &mut Context<'_>, answered: &mut Vec<u64>) {
        let before = self.standstill.take().filter(|before| before.since == self.answered);
        if !self.is_behind() || self.questions.is_empty() {
            return;
        }
        let standstill = self.standstill.insert(before.unwrap_or_else(|| Stall {
            since: self.answered,
            until: Box::pin(tokio::time::sleep(GRACE)),
            is_patient: false,
        }));
        if standstill.until.as_mut().poll(cx).is_pending() {
            return;
        }
        let is_patient = standstill.is_patient;
        let running = || self.attempts.iter().filter(|(_, attempt)| !attempt.is_over);
        if !running().all(|(call, _)| self.waits(call)) {
            self.standstill = None;
            return;
        }
        let is_end = |question: &Question| matches!(&question.want, Query::Commit { fact, .. } if ends(fact));
        let alone = !self.loop_waits_elsewhere && running().all(|(_, attempt)| attempt.is_alone);
        let is_near = alone || self.questions.iter().any(is_end);
        // A call is given up by a timer of the loop, or of a task that is not waited for, which began in the same process.
        let gives_up = self.cursor.as_ref().and_then(|cursor| cursor.given_up_after());
        if !is_patient && (gives_up.is_some() || !is_near) {
            let patience = gives_up.unwrap_or_default() + PATIENCE - GRACE;
            let mut until = Box::pin(tokio::time::sleep(patience));
            // It is polled again when it is over.
            let _ = until.as_mut().poll(cx);
            self.standstill = Some(Stall { since: self.answered, until, is_patient: true });
            return;
        }
        let first =
            self.questions.iter().enumerate().min_by(|(_, a), (_, b)| a.place.cmp(&b.place));
        let Some((index, _)) = first else { return };
        let Question { id, place, want } = self.questions.remove(index);
        let refused = self.cursor.as_mut().map_or_else(gone, |cursor| cursor.refuse(&place, &want));
        self.without_answer = (0, 0);
        self.answered += 1;
        if let Some(id) = id {
            self.answers.insert(id, Err(refused));
            answered.push(id);
        }
    }

    /// Adds a question. A call that is over gets no answer.
    pub(super) fn question(&mut self, id: u64, place: Origin, want: Query) {
        let of_effect = matches!(want, Query::Recall { .. } | Query::Commit { asked: Some(_), .. });
        if !of_effect || self.may_ask(&place) {
            self.questions.push(Question { id: Some(id), place, want });
        } else {
            self.answers.insert(id, Err(call_is_over()));
        }
    }

    /// Whether side effects of a place may be asked for: the attempt of the call that does it runs.
    fn may_ask(&self, place: &Origin) -> bool {
        place.as_ref().is_none_or(|Inside { call_id, attempt: number }| {
            let attempt = self.attempts.get(call_id);
            attempt.is_some_and(|attempt| attempt.number == *number && !attempt.is_over)
        })
    }

    /// Takes questions back, and returns their ids.
    pub(super) fn withdraw(&mut self, which: impl Fn(&Question) -> bool) -> Vec<u64> {
        self.without_answer = (0, 0);
        self.questions.extract_if(.., |question| which(question)).filter_map(|q| q.id).collect()
    }

    /// Whether the attempt of a call waits for its turn.
    pub(super) fn waits(&self, call_id: &str) -> bool {
        let mut places = self.questions.iter().filter_map(|question| question.place.as_ref());
        places.any(|at| at.call_id == call_id)
    }

    /// A fact is committed: if it is the outcome of a call, that does not run any more.
    pub(super) fn came_out(&mut self, fact: &Fact) {
        match fact {
            Fact::TurnStarted { turn, .. } => self.turn = Some(*turn),
            fact if is_answer(fact) => self.turn = None,
            Fact::ToolScheduled { call_id, attempt: 1, call: Some(call) } => {
                self.announced(call_id, &call.name, 1, false);
            }
            Fact::ToolScheduled { call_id, attempt, .. } => {
                if let Some(announced) = self.attempts.get_mut(call_id) {
                    announced.number = *attempt;
                }
            }
            // A loop may give the call up before the next attempt.
            Fact::ToolFailed { resolution: Resolution::Retried, .. } if self.noted.is_none() => {}
            Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
                self.attempts.remove(call_id);
            }
            _ => {}
        }
    }

    /// A user's loop announced a call, which does not run yet.
    fn announced(&mut self, call_id: &str, tool: &str, number: u32, may_have_run: bool) {
        let (tool, is_over) = (tool.to_owned(), true);
        let attempt = Attempt { tool, number, may_have_run, is_over, ..Attempt::default() };
        self.attempts.insert(call_id.to_owned(), attempt);
    }

    pub(super) fn stopped(&mut self, call_id: &str, why: &str) -> Option<Fact> {
        let Attempt { tool, number: attempt, may_have_run, .. } = self.attempts.remove(call_id)?;
        let error = failed(&tool, ToolReason::Cancelled, why);
        let error = if may_have_run { error } else { not_begun(error) };
        let (call_id, resolution) = (call_id.to_owned(), Resolution::CutOff);
        let (content, duration_ms) = (String::new(), None);
        Some(Fact::ToolFailed { call_id, attempt, error, resolution, content, duration_ms })
    }
}
