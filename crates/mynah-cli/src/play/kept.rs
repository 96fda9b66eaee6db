//! Operations on recorded runs.

use std::{io::Write, sync::Arc};

use futures_util::StreamExt as _;
use mynah::{
    ChatResult, EngineReason, Error, ErrorKind, Event, LogReason, Message, Metadata, Options,
    RecordedCall, Replay, Result, SessionReason, StepResult, Thread, decode, fork_run,
    log::{Extent, Fact, Log as _, RunFilter, verify_run},
    recorded_call, replay_run, restore_turn,
};
use serde::Serialize;
use serde_json::json;

use super::{
    options,
    perform::{Fold, Outcome, Stage, Stop},
    scenario::{Act, Kind, ResumeWith, Watch},
};
use crate::ledger::Ledger;

impl<W: Write> Stage<'_, W> {
    pub(super) async fn on_kept(
        &mut self,
        run_id: Option<String>,
        act: Act,
        options: Metadata,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        let Some(log) = self.log.clone() else {
            return Err(Error::log(LogReason::Unavailable).into());
        };
        let run = match run_id {
            Some(run) => run,
            None => newest(&log).await?,
        };
        match act {
            Act::Verify => Ok(self.kept(verify_run(&log, &run).await?)),
            Act::Fork { at } => {
                let forked = fork_run(&log, run, at).world(Arc::clone(&self.world)).await?;
                Ok(self.kept(forked))
            }
            Act::Replay { tools, allow_changed_engine } => {
                let mut replay = self.engine.replay(&log, &*run).replay_tools(tools);
                if allow_changed_engine {
                    replay = replay.allow_changed_engine();
                }
                self.replay(&log, &run, replay, options, watch).await
            }
            Act::Resume(go_on) => {
                // A scenario says what becomes of each run: one that has ended is not continued in another.
                if log.run(&run).await?.is_some_and(|run| run.seal.is_some()) {
                    verify_run(&log, &run).await?;
                    let why =
                        format!("log error: sealed: run {run} has ended; fork it to continue");
                    let sealed = Error::log(LogReason::Sealed).with_message(why);
                    return Err(sealed.with("run_id", run.to_string()).into());
                }
                self.resume(&log, &run, *go_on, options, watch).await
            }
        }
    }

    async fn replay(
        &mut self,
        log: &Arc<Ledger>,
        run: &str,
        replay: Replay,
        options: Metadata,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        let options = self.options_of(log, run, options, &recorded_call(log, run).await?).await?;
        let replay = replay.options(options);
        if !watch.is_needed() {
            return Ok(self.kept(replay.await?));
        }
        let mut stream = replay.stream();
        let cancel = stream.cancel_handle();
        match self.follow(&mut stream, &cancel, watch, |_| ()).await {
            // A run that its provider refused is equal when it is refused the same way.
            Err(Stop::Refused(error)) if refusal(log, run).await?.as_ref() == Some(&error) => {}
            followed => followed?,
        }
        Ok(self.kept(json!({"status": "equal", "records": stream.compared()})))
    }

    fn kept(&mut self, said: impl Serialize) -> Outcome {
        Outcome::Kept(self.hashes.name(json!(said)))
    }

    /// Resumes a run, and returns what the resumed operation would have returned.
    async fn resume(
        &mut self,
        log: &Arc<Ledger>,
        run: &str,
        go_on: ResumeWith,
        options: Metadata,
        watch: Watch,
    ) -> Result<Outcome, Stop> {
        let ResumeWith {
            message,
            is_answer,
            tool_results,
            approve,
            reject,
            on_uncertain,
            allow_changed_engine,
        } = go_on;
        let call = recorded_call(log, run).await?;
        let options = self.options_of(log, run, options, &call).await?;
        let mut thread = call.thread.clone();
        if watch.take.is_some() {
            // Events before the resume are not repeated, and belong to the partial result.
            thread = thread_so_far(log, run, thread).await?;
            let results =
                tool_results.iter().map(|(id, content)| Message::tool_result(id, content.clone()));
            thread.extend(results);
        }
        let message = message.as_ref().map(decode::message).transpose()?;
        thread.extend(message.clone().filter(|_| watch.take.is_some()));
        let fold = Fold::new(thread);
        let mut resume = self.engine.resume(log, run).on_uncertain(on_uncertain);
        if let Some(message) = message {
            resume = match is_answer {
                true => resume.answer(message.text()),
                false => resume.message(message),
            };
        }
        for (id, content) in tool_results {
            resume = resume.tool_result(id, content);
        }
        if allow_changed_engine {
            resume = resume.allow_changed_engine();
        }
        resume = approve.iter().fold(resume, |resume, id| resume.approve(id));
        resume = reject.iter().fold(resume, |resume, id| resume.reject(id, ""));
        let mut stream = resume.options(options).stream().started().await?;
        if let Some(error) = stream.refusal() {
            return Err(error.clone().into());
        }
        let (cancel, is_watched) = (stream.cancel_handle(), watch.is_needed());
        let completed = std::cell::RefCell::new(None::<ChatResult>);
        self.follow(&mut stream, &cancel, watch, |event| {
            fold.apply(event);
            if let Event::ChatCompleted { result } = event {
                *completed.borrow_mut() = Some((**result).clone());
            }
        })
        .await?;
        if let Some(error) = stream.last_step().and_then(unknown_tool).filter(|_| !is_watched) {
            return Err(error.into());
        }
        let told = match (call.extent, stream.last_step(), completed.into_inner()) {
            // A step that waits for the outcome of its tools has no result yet. Its run has the
            // reason.
            (Extent::Chat, _, Some(result)) | (_, None, Some(result)) => {
                Outcome::Chat(Box::new(result))
            }
            (Extent::Step, Some(step), _) => Outcome::Step(Box::new(step.clone())),
            (Extent::Generate, Some(step), _) => Outcome::Response(Box::new(step.response.clone())),
            (Extent::Chat, ..) => fold.told(Kind::Chat),
            (Extent::Step, ..) => fold.told(Kind::Step),
            (Extent::Generate, ..) => fold.told(Kind::Generate),
        };
        let session = match restore_turn(log, run).await {
            Ok(restored) => Some(restored.session),
            Err(error) if error.kind() == ErrorKind::Session(SessionReason::NoSession) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(match (session, told) {
            (Some(session), Outcome::Chat(result)) => {
                self.keep(session.apply_chat(&result), Some(Outcome::Chat(result)))
            }
            (Some(session), Outcome::Step(result)) => {
                self.keep(session.apply_step(&result), Some(Outcome::Step(result)))
            }
            (_, told) => {
                self.thread = told.thread(call.thread);
                told
            }
        })
    }

    /// Options of a replayed run that the records lack, and those that the operation adds.
    async fn options_of(
        &self,
        log: &Ledger,
        run: &str,
        mut said: Metadata,
        call: &RecordedCall,
    ) -> Result<Options> {
        if let Some(tools) = self.tools.get(run) {
            said.entry("tools").or_insert_with(|| tools.clone());
        }
        let about = options::last_about(log, run).await?;
        Ok(options::condition(&about).overlay(options::read(said, &call.thread)?))
    }
}

/// The conversation up to where a run stopped that began with this one.
async fn thread_so_far(log: &Arc<Ledger>, run: &str, mut thread: Thread) -> Result<Thread> {
    let mut stream = replay_run(log, run).stream().started().await?;
    while let Some(Ok(event)) = stream.next().await {
        match event {
            Event::StepCompleted { thread: after, .. } => thread = after.onto(&thread),
            Event::ChatCompleted { result } => thread = result.thread,
            _ => {}
        }
    }
    Ok(thread)
}

/// The error that an awaited step returns. A stream has it in its events.
fn unknown_tool(step: &StepResult) -> Option<Error> {
    let error = step.error()?;
    (error.kind() == ErrorKind::Engine(EngineReason::UnknownTool)).then_some(error)
}

async fn newest(log: &Ledger) -> Result<String> {
    let page = log.runs(RunFilter::new().limit(1)).await?;
    page.sound()?.first().map(|run| run.run_id.to_string()).ok_or_else(|| {
        Error::log(LogReason::RunNotFound)
            .with_message("log error: run_not_found: there are no runs in this log")
    })
}

/// The error with which a run failed, unless a later one is only a part of its result.
async fn refusal(log: &Ledger, run: &str) -> Result<Option<Error>> {
    let Some(head) = log.head(run).await? else { return Ok(None) };
    // The last record is the seal.
    let last = log.read(run, head.seq.saturating_sub(1), 1).await?;
    let fact = last.first().and_then(|record| record.fact().ok().flatten());
    let Some(Fact::Failed(end)) = fact else { return Ok(None) };
    Ok(end.error().filter(|error| !matches!(error.kind(), ErrorKind::Replay(_))))
}
