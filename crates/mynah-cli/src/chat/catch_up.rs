//! A turn that an earlier process left without an end.

use anstyle::Style;
use mynah::{
    CancelHandle, ChatResult, Error, ErrorKind, HaltReason, LogReason, Resume, RunId, recorded_call,
};
use serde_json::Value;

use super::{Chat, Next, OpenTurn, stoppable};
use crate::{
    Failure, log_flag,
    replay::write_fields,
    screen::{Followed, Stop},
    text::quoted,
    tty::{ASKS, Entered, Reads},
    written,
};

/// How many settings that differ are shown with both values.
const SHOWN: usize = 6;

impl Chat {
    /// Continues a turn that was interrupted by the end of its process, or asks again what it waits for.
    pub(super) async fn catch_up(&mut self, open: OpenTurn) -> Result<Next, Failure> {
        let OpenTurn { run, message, is_interrupted } = open;
        self.unsent = message.map(|message| (self.session.clone(), message));
        let waiting = recorded_call(&self.log, &run).await?.result;
        let reason = waiting.as_ref().map(|waiting| &waiting.halted_reason);
        let is_for_person = reason.is_some_and(|reason| *reason != HaltReason::Sleeping);
        if is_for_person && !self.prompt.is_terminal {
            return Ok(Next::Waits(run));
        }
        if let Err(error) = refused(self.engine.resume(&self.log, &run), waiting.as_ref()).await
            && matches!(error.kind(), ErrorKind::Replay(_))
        {
            self.is_changed = true;
            match self.asks_about_change(&error, &run).await? {
                Change::Continue => {}
                Change::TakeBack => {
                    self.leave_turn(Some(&run)).await?;
                    self.screen.note("took the message back; /retry sends it again");
                    return Ok(Next::Continue);
                }
                Change::Leave => return Ok(Next::Waits(run)),
            }
        }
        let cancel = CancelHandle::new();
        let resume = |run: &RunId| {
            let resume = self.engine.resume(&self.log, run).cancel_handle(&cancel);
            if self.is_changed { resume.allow_changed_engine() } else { resume }
        };
        let followed =
            Followed { engine: &self.engine, resume: &resume, prompt: self.prompt.of_person() };
        let done = if is_interrupted {
            match resume(&run).stream().started().await {
                Ok(mut stream) => {
                    self.screen.note("the last turn was interrupted; it continues");
                    stoppable(&cancel, &self.log, self.screen.follow(&mut stream, &followed)).await
                }
                Err(error) => Err(error.into()),
            }
        } else {
            stoppable(&cancel, &self.log, self.screen.resume(&self.log, &run, &followed)).await
        };
        match done {
            Err(Stop::Refused(error)) if is_held(&error) => Err(Failure::file(
                "another process has this conversation; wait until its turn has ended, or name another one with --session",
            )),
            done => self.ended(done, Some(run)).await,
        }
    }

    /// Asks what happens with a turn whose agent changed since.
    async fn asks_about_change(&mut self, error: &Error, run: &RunId) -> Result<Change, Failure> {
        let what = differences(error);
        if !self.prompt.is_terminal {
            let (who, flags) = self.who.words();
            let who = if self.who.file().is_some() { format!("--agent {who}") } else { who };
            let log = log_flag(&self.place);
            return Err(Failure::input(format!(
                "the agent changed since the last turn began ({what}); decide in a terminal, or continue that turn with\n  \
                 mynah resume {} {who}{flags} --allow-changed-agent{log}",
                quoted(run)
            )));
        }
        self.screen.remark(ASKS, &format!("the agent changed since this turn began: {what}"));
        let diff = error.metadata().get("diff").and_then(Value::as_array);
        let diff = diff.map_or(&[] as &[_], Vec::as_slice);
        let (shown, more) = diff.split_at(diff.len().min(SHOWN));
        let mut told = Vec::new();
        written(write_fields(shown, ["recorded", "produced"], &mut told))?;
        let mut told = String::from_utf8_lossy(told.trim_ascii_end()).into_owned();
        if !more.is_empty() {
            told += &format!("\n  and {} more", more.len());
        }
        self.screen.remark(Style::new(), &told);
        let choice = "[c]ontinue with the changed agent, or [t]ake the message back: ";
        loop {
            match self.prompt.ask(choice, Reads::Answer).await? {
                Entered::Line(said) => match &*said.trim().to_lowercase() {
                    "c" | "continue" => return Ok(Change::Continue),
                    "t" | "take" => return Ok(Change::TakeBack),
                    _ => {}
                },
                Entered::Interrupted => return Ok(Change::TakeBack),
                Entered::End => return Ok(Change::Leave),
            }
        }
    }
}

/// What happens with a turn whose agent changed.
enum Change {
    Continue,
    TakeBack,
    Leave,
}

/// Checks whether this agent can resume the run, before a person is asked to decide anything.
async fn refused(resume: Resume, waiting: Option<&ChatResult>) -> mynah::Result<()> {
    let Some(waiting) = waiting else { return resume.check().await };
    let calls = match waiting.halted_reason {
        HaltReason::AskUser => return resume.answer("").check().await,
        HaltReason::UncertainTools => waiting.uncertain_tool_calls(),
        _ => waiting.manual_tool_calls(),
    };
    calls.iter().fold(resume, |resume, call| resume.reject(&call.id, "")).check().await
}

/// Whether another process holds the run.
fn is_held(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Log(LogReason::Leased | LogReason::HeadMismatch))
}

/// What of an agent differs from what a run ran with.
fn differences(error: &Error) -> String {
    let diff = error.metadata().get("diff").and_then(|diff| diff.as_array());
    let paths = diff.into_iter().flatten().filter_map(|diff| diff["path"].as_str());
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let mut parts = path.split(['.', '[']).skip_while(|part| *part == "about");
        let name = match (parts.next().unwrap_or_default(), parts.next()) {
            ("params" | "options", Some("system")) => "the prompt".to_owned(),
            ("params" | "options", Some(name)) => name.to_owned(),
            ("adapter" | "model" | "pricing", _) => "the model".to_owned(),
            ("tools", _) => "the tools".to_owned(),
            (name, _) => name.to_owned(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { "its settings".to_owned() } else { names.join(", ") }
}
