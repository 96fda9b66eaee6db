//! What a person answers to a run that waits.

use anstyle::Style;
use mynah::{ChatResult, Decision, HaltReason, Resume, ToolCall};
use serde_json::{Value, json};

use super::{Screen, Stop, legible};
use crate::{
    text::line,
    tty::{ASKS, BAD, Entered, Prompt, Reads},
};

impl Screen {
    /// Asks a person what a run waits for. Returns the run's continuation; none if the person leaves.
    pub(super) async fn decide(
        &mut self,
        result: &ChatResult,
        resume: Resume,
        prompt: &Prompt,
    ) -> Result<Option<Resume>, Stop> {
        Ok(match result.halted_reason {
            HaltReason::AskUser => match calls_of_agent(result) {
                Some((agent, calls, may_have_run)) => {
                    let whose = format!("{agent}/");
                    let decisions = self.decisions(&calls, &whose, may_have_run, prompt).await?;
                    decisions.map(|decisions| resume.answer(by_id(&calls, decisions)))
                }
                None => {
                    let question = result.pending_question.as_deref().unwrap_or_default();
                    self.question(question, resume, prompt).await?
                }
            },
            HaltReason::ManualToolCalls => {
                let calls = result.manual_tool_calls();
                let decisions = self.decisions(&calls, "", false, prompt).await?;
                decisions.map(|decisions| decided(resume, &calls, decisions))
            }
            HaltReason::UncertainTools => {
                let calls = result.uncertain_tool_calls();
                let decisions = self.decisions(&calls, "", true, prompt).await?;
                decisions.map(|decisions| decided(resume, &calls, decisions))
            }
            _ => None,
        })
    }

    /// Reads an answer to a question in place; none if the person leaves.
    async fn asked(
        &mut self,
        text: &str,
        reads: Reads,
        prompt: &Prompt,
    ) -> Result<Option<String>, Stop> {
        prompt.forget();
        match prompt.ask(text, reads).await? {
            Entered::Line(line) => Ok(Some(line)),
            Entered::End => Ok(None),
            Entered::Interrupted => Err(Stop::Interrupted),
        }
    }

    async fn question(
        &mut self,
        question: &str,
        resume: Resume,
        prompt: &Prompt,
    ) -> Result<Option<Resume>, Stop> {
        self.remark(ASKS, question);
        let answer = self.asked("? ", Reads::Answer, prompt).await?;
        Ok(answer.map(|answer| resume.answer(answer)))
    }

    /// Asks what happens with each of these calls; none if the person leaves. Calls of an agent have its name before theirs: what is approved
    /// for one agent is not approved for another.
    async fn decisions(
        &mut self,
        calls: &[ToolCall],
        whose: &str,
        may_have_run: bool,
        prompt: &Prompt,
    ) -> Result<Option<Vec<Decision>>, Stop> {
        let mut decisions = Vec::new();
        for call in calls {
            let name = format!("{whose}{}", call.name);
            let decision = match may_have_run {
                true => self.outcome(call, &name, prompt).await?,
                false => self.approval(call, &name, prompt).await?,
            };
            let Some(decision) = decision else { return Ok(None) };
            decisions.push(decision);
        }
        Ok(Some(decisions))
    }

    async fn approval(
        &mut self,
        call: &ToolCall,
        name: &str,
        prompt: &Prompt,
    ) -> Result<Option<Decision>, Stop> {
        if self.always.contains(name) {
            return Ok(Some(Decision::Approve));
        }
        self.describe(&format!("{} asks for approval", line(name)), call);
        let choice = "approve? [y]es, [n]o, [e]dit, [a]lways, or why not: ";
        let Some(said) = self.asked(choice, Reads::Answer, prompt).await? else {
            return Ok(None);
        };
        Ok(Some(match said.trim() {
            "y" | "Y" | "yes" => Decision::Approve,
            "a" | "always" => {
                self.always.insert(name.to_owned());
                Decision::Approve
            }
            "e" | "edit" => match self.edited(call, prompt).await? {
                Some(arguments) if arguments == call.arguments => Decision::Approve,
                Some(arguments) => Decision::ApproveWith(arguments),
                None => return Ok(None),
            },
            "" | "n" | "N" | "no" => Decision::Reject(String::new()),
            why => Decision::Reject(why.to_owned()),
        }))
    }

    /// Lets a person change the arguments of a call until they are JSON.
    async fn edited(&mut self, call: &ToolCall, prompt: &Prompt) -> Result<Option<Value>, Stop> {
        let mut text = call.arguments.to_string();
        loop {
            let Some(said) = self.asked("arguments: ", Reads::Edit(text), prompt).await? else {
                return Ok(None);
            };
            match serde_json::from_str(&said) {
                Ok(arguments) => return Ok(Some(arguments)),
                Err(error) => self.remark(BAD, &format!("not JSON: {error}")),
            }
            text = said;
        }
    }

    async fn outcome(
        &mut self,
        call: &ToolCall,
        name: &str,
        prompt: &Prompt,
    ) -> Result<Option<Decision>, Stop> {
        self.describe(&format!("{} may have run before", line(name)), call);
        let choice = "[r]un it again, [s]kip it, or its result: ";
        let said = self.asked(choice, Reads::Answer, prompt).await?;
        Ok(said.map(|said| match said.trim() {
            "r" | "run" => Decision::Approve,
            "" | "s" | "skip" => Decision::Reject("its outcome is unknown".to_owned()),
            result => Decision::Result(result.into()),
        }))
    }

    /// Shows a call that a person decides on.
    fn describe(&mut self, what: &str, call: &ToolCall) {
        self.remark(ASKS, what);
        self.remark(Style::new(), &legible(&call.arguments));
    }
}

/// Continues a run with a decision for each of its calls.
fn decided(mut resume: Resume, calls: &[ToolCall], decisions: Vec<Decision>) -> Resume {
    for (call, decision) in calls.iter().zip(decisions) {
        resume = match decision {
            Decision::ApproveWith(arguments) => resume.approve_with(&call.id, arguments),
            Decision::Reject(why) => resume.reject(&call.id, why),
            Decision::Result(result) => resume.tool_result(&call.id, result),
            _ => resume.approve(&call.id),
        };
    }
    resume
}

/// The agent whose question a run asks, the calls that the question is about, and whether they may have run; none for other questions.
fn calls_of_agent(result: &ChatResult) -> Option<(String, Vec<ToolCall>, bool)> {
    let hints = result.metadata.get("ask_user_opts")?;
    let calls: Vec<ToolCall> = serde_json::from_value(hints.get("calls")?.clone()).ok()?;
    let may_have_run = match hints.get("for")?.as_str()? {
        "approval" => false,
        "outcome" => true,
        _ => return None,
    };
    let asks = result.pending_tool_call_id.as_deref()?;
    let mut answers = result.thread.messages.iter().rev().flat_map(|message| message.tool_calls());
    let agent = answers.find(|call| call.id == asks).map_or(asks, |call| call.name.as_str());
    (!calls.is_empty()).then(|| (line(agent), calls, may_have_run))
}

/// The answer to the question of an agent: a decision for each call, by its id.
fn by_id(calls: &[ToolCall], decisions: Vec<Decision>) -> String {
    let decided = |decision| match decision {
        Decision::ApproveWith(arguments) => json!({"arguments": arguments}),
        Decision::Reject(why) if why.is_empty() => json!(false),
        Decision::Reject(why) => json!(why),
        Decision::Result(result) => json!({"result": result}),
        _ => json!(true),
    };
    let members = calls.iter().zip(decisions).map(|(call, one)| (call.id.clone(), decided(one)));
    Value::Object(members.collect()).to_string()
}
