//! How a run ended, and what is said about it.

use mynah::{
    Error, ErrorKind, HaltReason, Limit,
    log::{About, End, Extent, Fact, Log as _, RunStatus},
};

use mynah_agent::answer::misfit;

use super::{Arguments, facts};
use crate::{
    Failure,
    describe::{detail, handoff, other_model},
    ledger::Ledger,
    model::cannot_go_on,
    play,
    screen::Screen,
    store,
    text::{plain, quoted},
    waiting::CHANGED,
    written,
};

/// What is said in place of a command, for a log that ends with the program.
const LOST: &str = "its log is in memory, so it cannot be resumed; name another with --log";

impl Arguments {
    /// Ends what is shown of a run: what it used, and commands for it. Returns its exit code.
    pub(crate) async fn close(
        &self,
        screen: &mut Screen,
        log: &Ledger,
        run: &str,
    ) -> Result<(), Failure> {
        written(screen.end())?;
        let facts = facts(log, run).await?;
        let is_call =
            matches!(facts.first(), Some(Fact::RunStarted { extent: Extent::Generate, .. }));
        let is_shown = !self.log.json && !is_call;
        if is_shown {
            remarks(&facts).iter().for_each(|remark| screen.note(remark));
            screen.left_out(log, run).await?;
            screen.totals(log, run).await?;
        }
        self.judge(log, run).await?;
        if let (Some(agent), true) = (self.agent(), is_shown && !self.log.is_lost()) {
            let agent =
                format!(" --agent {}{}", quoted(&agent.to_string_lossy()), self.vars.flags());
            screen.hint(&self.log.command("show", run, ""));
            screen.hint(&self.log.command("fork", run, &format!(" --at N{agent}")));
        }
        match misfit(&facts) {
            Some(error) => Err(Failure::finding(format!("run {run}: {error}"))),
            None => Ok(()),
        }
    }

    /// The exit code for the run's state.
    pub(crate) async fn judge(&self, log: &Ledger, run: &str) -> Result<(), Failure> {
        let summary = log.run(run).await?;
        let status = summary.map(|summary| summary.status);
        if !matches!(status, Some(RunStatus::Suspended | RunStatus::Failed)) {
            return Ok(());
        }
        let facts = facts(log, run).await?;
        if let Some((why, how)) = self.outage(log, run).await? {
            let failure = Failure::finding(format!("run {run} failed: {why}; {how}"));
            let error = facts.iter().rev().find_map(|fact| fact.end()?.error());
            let is_reached = error.is_none_or(|error| !error.is_unreachable());
            return Err(if is_reached { failure } else { failure.unusable() });
        }
        match facts.iter().rev().find(|fact| !matches!(fact, Fact::Sealed(_))) {
            Some(Fact::Failed(end)) => {
                Err(Failure::finding(format!("run {run} failed: {}", reason(end))))
            }
            Some(Fact::Suspended(end)) => {
                let changed = if self.allow_changed_agent { CHANGED } else { "" };
                let told = self.waiting(end, &facts).told(&(self.command(run) + changed));
                if self.log.is_lost() {
                    let told = told.lines().next().unwrap_or_default();
                    return Err(Failure::waits(format!("run {run} {told}; {LOST}")));
                }
                let unheard = "\n  your message was not delivered: the run suspended before";
                let unheard = if self.is_unheard(&facts) { unheard } else { "" };
                Err(Failure::waits(format!("run {run} {told}{unheard}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether a message was given, and the run suspended before the message was delivered.
    fn is_unheard(&self, facts: &[Fact]) -> bool {
        let since = facts.iter().rposition(|fact| matches!(fact, Fact::Resumed { .. }));
        let is_said = |fact: &Fact| {
            matches!(fact, Fact::UserMessage { .. } | Fact::Resumed { message: Some(_), .. })
        };
        self.message.is_some() && !facts[since.unwrap_or_default()..].iter().any(is_said)
    }

    /// Which limit, or which failed model call, ended a run, and the command that continues it; none if something else did.
    pub(super) async fn outage(
        &self,
        log: &Ledger,
        run: &str,
    ) -> Result<Option<(String, String)>, Failure> {
        let (mut asked, mut outage) = (false, None);
        let facts = store::facts(log, run).await?.into_iter().filter_map(|(_, fact)| fact);
        for fact in facts {
            match fact {
                Fact::TurnStarted { .. } => asked = true,
                Fact::BudgetExceeded { breach, .. } => {
                    let unit = if breach.limit == Limit::WallClock { "_ms" } else { "" };
                    let why = format!("{}: {breach}", HaltReason::BudgetExceeded);
                    let more = format!(" --budget max_{}{unit}=N", breach.limit);
                    outage = Some((why, "resume it with a larger budget", more));
                }
                Fact::Failed(end) if outage.is_none() && asked && is_of_model(&end) => {
                    let why = reason(&end);
                    let passes = end.error().is_some_and(|error| error.is_resumable());
                    let more = if passes { "" } else { CHANGED };
                    outage = Some((why, "resume it to call the model again", more.to_owned()));
                }
                Fact::Completed(end) if end.reason == HaltReason::MaxTurns => {
                    let more = " --budget max_turns=N".to_owned();
                    outage = Some((end.reason.to_string(), "resume it with more turns", more));
                }
                Fact::RunStarted { .. }
                | Fact::Resumed { .. }
                | Fact::UserMessage { .. }
                | Fact::TurnLost { .. }
                | Fact::FinalizeStarted { .. }
                | Fact::FinalizeFailed { .. }
                | Fact::AssistantCompleted { .. }
                | Fact::ToolScheduled { .. }
                | Fact::ToolCompleted { .. }
                | Fact::ToolFailed { .. }
                | Fact::SideEffect { .. }
                | Fact::ContextTruncated { .. }
                | Fact::Suspended(_)
                | Fact::Completed(_)
                | Fact::Failed(_)
                | Fact::Cancelled { .. }
                | Fact::Sealed(_)
                | Fact::Removed(_) => {}
            }
        }
        let Some((why, what, more)) = outage else { return Ok(None) };
        if self.log.is_lost() {
            return Ok(Some((why, LOST.to_owned())));
        }
        let about = play::last_about(log, run).await?;
        let who = match self.agent() {
            None if cannot_go_on(&about, self.model.as_deref()).is_some() => {
                " --agent FILE".to_owned()
            }
            _ => self.who(),
        };
        let command = self.log.command("resume", run, &(who + &more));
        Ok(Some((why, format!("{what}:\n  {command}"))))
    }
}

/// What the answer of a completed run does not show: that it is empty, and that a fallback gave it.
fn remarks(facts: &[Fact]) -> Vec<String> {
    let about = facts.iter().rev().find_map(|fact| match fact {
        Fact::RunStarted { about, .. } | Fact::Resumed { about, .. } => about.as_deref(),
        _ => None,
    });
    let answer = facts.iter().rev().find_map(|fact| match fact {
        Fact::AssistantCompleted { response, .. } => Some(response),
        _ => None,
    });
    let is_done =
        |fact: &Fact| matches!(fact, Fact::Completed(end) if end.reason == HaltReason::Completed);
    let is_handoff = |fact: &Fact| matches!(fact, Fact::ToolCompleted { outcome, .. } if handoff(outcome).is_some());
    let is_answer = facts.iter().any(is_done) && !facts.iter().any(is_handoff);
    let Some(answer) = answer.filter(|_| is_answer) else { return Vec::new() };
    // The adapter of a model with fallbacks has the names of all of them.
    let may_fall_back = |about: &&About| about.adapter.contains('|');
    let other = other_model(about.filter(may_fall_back), answer);
    let empty = answer.text().trim().is_empty().then(|| "the answer is empty".to_owned());
    let other = other.map(|model| format!("answered by the fallback {model}"));
    empty.into_iter().chain(other).collect()
}

/// Why a run failed, with the provider and the status if a model call failed.
fn reason(end: &End) -> String {
    plain(&match end.error() {
        Some(error) if is_of_model(end) => error.to_string(),
        _ => format!("{}{}", end.reason, detail(end)),
    })
}

/// Whether a run ended because a call of its model failed.
fn is_of_model(end: &End) -> bool {
    let is_of_model =
        |error: Error| matches!(error.kind(), ErrorKind::Adapter(_) | ErrorKind::Stream(_));
    end.reason == HaltReason::Error && end.error().is_some_and(is_of_model)
}
