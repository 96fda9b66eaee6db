//! What a run waits for, and how it is given.

use std::collections::HashSet;

use mynah::{
    HaltReason,
    log::{End, Fact},
};

use crate::{
    describe::{asker, choices, detail, form},
    text::{Moment, plain, quoted},
};

/// The flag that resumes a run although its agent changed.
pub(crate) const CHANGED: &str = " --allow-changed-agent";

/// What a run waits for: an answer, or word on calls.
pub(crate) struct Waiting<'f> {
    end: &'f End,
    calls: Vec<Call>,
    /// The tool that asks, if it continues with the answer.
    asker: Option<String>,
}

struct Call {
    id: String,
    name: String,
    says: String,
    /// Whether the run can make the call if a person approves it.
    is_approvable: bool,
    is_manual: bool,
    /// Whether the agent that resumes the run has lost the tool.
    is_gone: bool,
}

impl<'f> Waiting<'f> {
    /// What a run waits for that stopped so, after these facts.
    pub(crate) fn new(end: &'f End, facts: &[Fact]) -> Self {
        let about = facts.iter().rev().find_map(|fact| match fact {
            Fact::RunStarted { about, .. } | Fact::Resumed { about, .. } => about.as_deref(),
            _ => None,
        });
        let tools = about.map(|about| &*about.tools).unwrap_or_default();
        let calls = end.waiting_calls(facts).into_iter().map(|call| Call {
            id: call.id.clone(),
            says: format!("{} {}", call.name, call.arguments),
            is_approvable: tools.iter().any(|tool| tool.name == call.name && !tool.manual),
            is_manual: tools.iter().any(|tool| tool.name == call.name && tool.manual),
            is_gone: false,
            name: call.name.clone(),
        });
        let answers = facts.iter().rev().filter_map(|fact| match fact {
            Fact::AssistantCompleted { response, .. } => Some(response.tool_calls()),
            _ => None,
        });
        let asker = asker(&end.metadata, answers.flatten()).map(str::to_owned);
        Self { end, calls: calls.collect(), asker }
    }

    /// The same for an agent that can run these tools. Calls of others cannot be approved.
    pub(crate) fn with_tools(mut self, tools: Option<&[String]>) -> Self {
        for call in &mut self.calls {
            call.is_gone = !call.is_manual && tools.is_some_and(|it| !it.contains(&call.name));
        }
        self
    }

    /// What is wrong with naming these calls; nothing if they are those that are waited for, each once, or some of them
    /// where the others need no word.
    pub(crate) fn wrong(&self, named: &[&str], others_need_none: bool) -> Option<String> {
        let mut seen = HashSet::new();
        for id in named {
            if !self.calls.iter().any(|call| call.id == *id) {
                return Some(format!("it does not wait for a call {id:?}"));
            }
            if !seen.insert(id) {
                return Some(format!("call {id:?} is named twice"));
            }
        }
        let left = self.calls.iter().find(|call| !seen.contains(&&*call.id));
        left.filter(|_| !named.is_empty() && !others_need_none)
            .map(|left| format!("call {:?} has no decision", left.id))
    }

    /// What it waits for, and what to add to the command that resumes it.
    pub(crate) fn told(&self, command: &str) -> String {
        let calls: Vec<String> =
            self.calls.iter().map(|Call { id, says, .. }| format!("{says} [{id}]")).collect();
        let calls = calls.join(", ");
        let id = match &*self.calls {
            [only] => quoted(&only.id),
            _ => "ID".to_owned(),
        };
        let gone = self.calls.iter().any(|call| call.is_gone);
        let approvable = !gone && self.calls.iter().all(|call| call.is_approvable);
        let (what, again, for_all) = match self.end.reason {
            HaltReason::AskUser => {
                let who = self.asker.as_ref().map(|who| format!(" to {who}")).unwrap_or_default();
                let choices = match choices(&self.end.metadata).join(", ") {
                    none if none.is_empty() => none,
                    some => format!(" (choices: {some})"),
                };
                let form = form(&self.end.metadata).map(|form| format!(" ({form})"));
                let hints = choices + &form.unwrap_or_default();
                let question = plain(&format!("{who}{}{hints}", detail(self.end)));
                return format!("waits for an answer{question}\n  {command} --answer TEXT");
            }
            HaltReason::Sleeping => {
                let time = self.end.wake_at_ms().unwrap_or_default().saturating_mul(1_000_000);
                let time = Moment(i64::try_from(time).unwrap_or(i64::MAX));
                return format!("sleeps until {time} (UTC); resume it then\n  {command}");
            }
            HaltReason::UncertainTools => (
                "the outcome of tools that may have run:",
                " again",
                "\n  for all of them: --on-uncertain rerun, or --on-uncertain fail",
            ),
            _ if approvable && !self.calls.is_empty() => {
                let approve = self.calls.iter().map(|call| quoted(&call.id));
                let approve: String = approve.map(|id| format!(" --approve {id}")).collect();
                return format!(
                    "waits for approval of {}\n  {command}{approve}\n  \
                     in place of an approval: --approve-with {id}=JSON runs the call with other arguments, \
                     --reject {id}=TEXT tells the model why not, --tool-result {id}=JSON gives the result",
                    plain(&calls)
                );
            }
            _ => ("the results of", "", ""),
        };
        let results = self.calls.iter().map(|call| quoted(&format!("{}=JSON", call.id)));
        let results: String = results.map(|result| format!(" --tool-result {result}")).collect();
        if gone {
            return format!(
                "waits for {what} {}; the agent no longer has the tool to run them\n  \
                 {}{CHANGED}{results}\n  \
                 in place of a result: --reject {id}=TEXT tells the model why not",
                plain(&calls),
                command.trim_end_matches(CHANGED)
            );
        }
        format!(
            "waits for {what} {}\n  {command}{results}\n  \
             in place of a result: --approve {id} runs the call{again}, --approve-with {id}=JSON with other arguments, \
             --reject {id}=TEXT tells the model why not{for_all}",
            plain(&calls)
        )
    }
}
