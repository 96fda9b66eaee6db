//! What a person answers to a run that waits.

use anstyle::Style;
use mynah::{ChatResult, Decision, Engine, HaltReason, Options, Resume, Tool, ToolCall};
use serde_json::{Map, Value, json};

use super::{Screen, Stop, wording::legible};
use crate::{
    chat::commands::begins_with_command,
    describe::{asker, choices, form},
    text::line,
    tty::{ASKS, BAD, Entered, Prompt, Reads, edited},
};

impl Screen {
    /// Asks a person what a run waits for. Returns the run's continuation; none if the person leaves.
    pub(super) async fn decide(
        &mut self,
        result: &ChatResult,
        resume: Resume,
        engine: &Engine,
        prompt: &Prompt,
    ) -> Result<Option<Resume>, Stop> {
        let tools = engine.resolve_tools(&Options::new());
        Ok(match result.halted_reason {
            HaltReason::AskUser => match calls_of_agent(result) {
                Some((agent, calls, may_have_run)) => {
                    let whose = format!("{agent}/");
                    let decisions =
                        self.decisions(&calls, &whose, may_have_run, None, prompt).await?;
                    decisions.map(|decisions| resume.answer(by_id(&calls, decisions)))
                }
                None => {
                    let answer = self.question(result, prompt).await?;
                    answer.map(|answer| resume.answer(answer))
                }
            },
            HaltReason::ManualToolCalls => {
                let calls = result.manual_tool_calls();
                let decisions = self.decisions(&calls, "", false, Some(&tools), prompt).await?;
                decisions.map(|decisions| decided(resume, &calls, decisions))
            }
            HaltReason::UncertainTools => {
                let calls = result.uncertain_tool_calls();
                let decisions = self.decisions(&calls, "", true, Some(&tools), prompt).await?;
                decisions.map(|decisions| decided(resume, &calls, decisions))
            }
            _ => None,
        })
    }

    /// Reads an answer to a question in place; none if the person leaves. Enter alone is no answer.
    async fn asked(
        &mut self,
        text: &str,
        reads: Reads,
        prompt: &Prompt,
    ) -> Result<Option<String>, Stop> {
        prompt.forget();
        let mut reads = Some(reads);
        loop {
            match prompt.ask(text, reads.take().unwrap_or(Reads::Answer)).await? {
                Entered::Line(line) if line.trim().is_empty() => {}
                Entered::Line(line) => return Ok(Some(line)),
                Entered::End => return Ok(None),
                Entered::Interrupted => return Err(Stop::Interrupted),
            }
        }
    }

    /// Asks a question. A choice is answered with its number or its text.
    async fn question(
        &mut self,
        result: &ChatResult,
        prompt: &Prompt,
    ) -> Result<Option<String>, Stop> {
        let who = asker(&result.metadata, calls_of(result));
        let who = who.map(|who| format!("{} asks: ", line(who))).unwrap_or_default();
        let question = result.pending_question.as_deref().unwrap_or_default();
        self.remark(ASKS, &format!("{who}{question}"));
        let choices = choices(&result.metadata);
        let mut text = "? ".to_owned();
        if let Some(form) = form(&result.metadata) {
            self.remark(Style::new(), &form);
        }
        if !choices.is_empty() {
            let rows = choices.iter().enumerate();
            let rows = rows.map(|(index, choice)| format!("{}  {}", index + 1, line(choice)));
            self.remark(Style::new(), &rows.collect::<Vec<_>>().join("\n"));
            text = format!("1-{}, or an answer: ", choices.len());
        }
        loop {
            let Some(answer) = self.asked(&text, Reads::Answer, prompt).await? else {
                return Ok(None);
            };
            if begins_with_command(&answer) {
                self.remark(
                    BAD,
                    "commands work between messages: answer the question, or leave it with Ctrl-C",
                );
                continue;
            }
            let answer = chosen(&choices, answer);
            // A mistyped number would otherwise go to the model.
            let is_number = answer.trim().parse::<i64>().is_ok();
            if choices.is_empty() || !is_number || choices.iter().any(|it| it == answer.trim()) {
                return Ok(Some(answer));
            }
            self.remark(BAD, &format!("there is no choice {}", answer.trim()));
        }
    }

    /// Asks what happens with each of these calls; none if the person leaves. Calls of an agent have its name before theirs: what is approved
    /// for one agent is not approved for another. Calls can run whose tools are among these, or all if none are given.
    async fn decisions(
        &mut self,
        calls: &[ToolCall],
        whose: &str,
        may_have_run: bool,
        tools: Option<&[Tool]>,
        prompt: &Prompt,
    ) -> Result<Option<Vec<Decision>>, Stop> {
        let mut decisions = Vec::new();
        for call in calls {
            let name = format!("{whose}{}", call.name);
            let runs = |tool: &Tool| tool.name() == call.name && tool.get_handler().is_some();
            let can_run = tools.is_none_or(|tools| tools.iter().any(runs));
            let decision = match may_have_run || !can_run {
                true => self.outcome(call, &name, may_have_run, can_run, prompt).await?,
                false => self.approval(call, &name, prompt).await?,
            };
            let Some(decision) = decision else { return Ok(None) };
            decisions.push(decision);
        }
        // If the new arguments do not fit, only they are asked for again.
        if decisions.iter().any(|decision| matches!(decision, Decision::ApproveWith(_))) {
            let made = calls.iter().map(|call| call.id.clone()).zip(decisions.iter().cloned());
            self.made.extend(made);
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
        let with = |arguments| match arguments == call.arguments {
            true => Decision::Approve,
            false => Decision::ApproveWith(arguments),
        };
        match self.made.remove(&call.id) {
            Some(Decision::ApproveWith(tried)) => {
                return Ok(self.edited_line(&tried, prompt).await?.map(with));
            }
            Some(made) => return Ok(Some(made)),
            None => {}
        }
        self.describe(&format!("{} asks for approval", line(name)), call);
        let choice = "approve? [y]es, [n]o, [e]dit, [a]lways, or why not: ";
        loop {
            let Some(said) = self.asked(choice, Reads::Answer, prompt).await? else {
                return Ok(None);
            };
            let said = said.trim();
            let why = match &*said.to_lowercase() {
                "y" | "yes" | "ok" => return Ok(Some(Decision::Approve)),
                "a" | "always" => {
                    self.always.insert(name.to_owned());
                    return Ok(Some(Decision::Approve));
                }
                "e" | "edit" => return Ok(self.edited(call, prompt).await?.map(with)),
                "n" | "no" => "",
                // Other arguments, which a model would read as a reason.
                _ if serde_json::from_str::<Map<String, Value>>(said).is_ok() => {
                    self.remark(BAD, "to run the call with other arguments, answer e");
                    continue;
                }
                _ => said,
            };
            self.rejected(name, why);
            return Ok(Some(Decision::Reject(why.to_owned())));
        }
    }

    /// Asks again about tools that were approved for all of a session: another one begins.
    pub(crate) fn forget_approvals(&mut self) {
        self.always.clear();
    }

    /// Lets a person change the arguments of a call: texts of several lines in their editor, the rest as a line of JSON.
    async fn edited(&mut self, call: &ToolCall, prompt: &Prompt) -> Result<Option<Value>, Stop> {
        let (mut rest, mut long) = (call.arguments.clone(), Vec::new());
        for (name, value) in call.arguments.as_object().into_iter().flatten() {
            match value.as_str().filter(|text| text.contains('\n')).and_then(edited) {
                Some(Ok(text)) => long.push((name.clone(), Value::from(text))),
                Some(Err(error)) => self.remark(BAD, &format!("the editor failed: {error}")),
                None => {}
            }
        }
        let fields = rest.as_object_mut();
        if let Some(fields) = fields.filter(|_| !long.is_empty()) {
            fields.retain(|name, _| long.iter().all(|(known, _)| known != name));
        }
        let is_all = !long.is_empty() && rest == json!({});
        let given = if is_all { Some(rest) } else { self.edited_line(&rest, prompt).await? };
        Ok(given.map(|mut given| {
            given.as_object_mut().into_iter().for_each(|fields| fields.extend(long.drain(..)));
            given
        }))
    }

    /// Lets a person change arguments until they are JSON.
    async fn edited_line(
        &mut self,
        arguments: &Value,
        prompt: &Prompt,
    ) -> Result<Option<Value>, Stop> {
        let mut text = arguments.to_string();
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

    /// Asks about a call that may have run before, or cannot run.
    async fn outcome(
        &mut self,
        call: &ToolCall,
        name: &str,
        may_have_run: bool,
        can_run: bool,
        prompt: &Prompt,
    ) -> Result<Option<Decision>, Stop> {
        let name = line(name);
        let what = match (may_have_run, can_run) {
            (true, true) => format!("{name} may have run before"),
            (true, false) => {
                format!("{name} may have run before, and the agent has this tool no longer")
            }
            _ => format!("{name} was called, and the agent has no tool that could run it"),
        };
        self.describe(&what, call);
        let (run, why) = match can_run {
            true => ("[r]un it again, ", "its outcome is unknown"),
            false => {
                self.note("to run it, leave with Ctrl-D, give the agent the tool, and continue");
                ("", "the tool is not there any more")
            }
        };
        let choice = format!("{run}[s]kip it, or [g]ive its result: ");
        loop {
            let Some(said) = self.asked(&choice, Reads::Answer, prompt).await? else {
                return Ok(None);
            };
            return Ok(Some(match &*said.trim().to_lowercase() {
                "r" | "run" if can_run => Decision::Approve,
                "s" | "skip" => Decision::Reject(why.to_owned()),
                "g" | "give" => match self.asked("result: ", Reads::Answer, prompt).await? {
                    Some(result) => Decision::Result(result.trim().into()),
                    None => return Ok(None),
                },
                // Any other text would become what the model believes the tool returned.
                _ => continue,
            }));
        }
    }

    /// Shows a call that a person decides on.
    fn describe(&mut self, what: &str, call: &ToolCall) {
        self.remark(ASKS, what);
        let arguments = match call.argument_error() {
            Some(_) => call.raw_arguments.clone(),
            None => legible(&call.arguments),
        };
        self.remark(Style::new(), &arguments);
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
    let mut agent = line(asker(&result.metadata, calls_of(result))?);
    if let Some(beneath) = hints.get("agent").and_then(Value::as_str) {
        agent += &format!("/{}", line(beneath));
    }
    (!calls.is_empty()).then_some((agent, calls, may_have_run))
}

/// The calls of a conversation, those of the last answer first.
fn calls_of(result: &ChatResult) -> impl Iterator<Item = &ToolCall> {
    result.thread.messages.iter().rev().flat_map(|message| message.tool_calls())
}

/// The choice with this text or number, or else the answer itself.
fn chosen(choices: &[String], answer: String) -> String {
    let said = answer.trim();
    let is_text = choices.iter().any(|choice| choice == said);
    let number = said.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let choice = number.filter(|_| !is_text).and_then(|index| choices.get(index));
    choice.cloned().unwrap_or(answer)
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
