//! A run as a timeline: turns, their tools, attempts, and what happened inside.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use mynah::{
    Message, RunId,
    log::{About, DirectCall, Fact, Record},
};
use serde::Serialize;

use crate::{
    describe::{NOT_PERMITTED, UNKNOWN_OUTCOME, changes, denied, other_model, refusal, waits},
    text::{Span, short},
};

/// Something that took its time, and what happened in it.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Node {
    /// The record that it began with.
    seq: u64,
    #[serde(rename = "type")]
    kind: String,
    /// Its identity among its siblings: a turn's number, a call's id, an attempt's number. May be
    /// empty.
    id: String,
    says: String,
    started: i64,
    ended: i64,
    children: Vec<Node>,
}

impl Node {
    fn new(record: &Record, kind: impl ToString, id: impl ToString, says: String) -> Self {
        let (seq, ts) = (record.seq(), record.envelope().ts);
        let (kind, id) = (kind.to_string(), id.to_string());
        Self { seq, kind, id, says, started: ts, ended: ts, children: Vec::new() }
    }

    /// The child of this kind and id, created if necessary.
    fn child(
        &mut self,
        record: &Record,
        kind: &str,
        id: &str,
        says: impl Fn() -> String,
    ) -> &mut Self {
        let found = self.children.iter().position(|node| node.kind == kind && node.id == id);
        let place = found.unwrap_or_else(|| {
            self.children.push(Self::new(record, kind, id, says()));
            self.children.len() - 1
        });
        self.ended = record.envelope().ts;
        &mut self.children[place]
    }
}

/// The records of runs that a run started, by their ids.
pub(crate) type SubRuns = HashMap<RunId, Vec<(Record, Option<Fact>)>>;

/// The timeline of a run. Those of the runs that its tools started are taken, so that each stands in one place.
pub(crate) fn tree(records: &[(Record, Option<Fact>)], sub_runs: &mut SubRuns) -> Vec<Node> {
    let mut tree = Tree {
        top: Vec::new(),
        turn: None,
        calls: HashMap::new(),
        answer: None,
        about: None,
        sub_runs,
    };
    for (record, fact) in records {
        match fact {
            Some(fact) => tree.take_in(record, fact),
            None => {
                tree.top.push(Node::new(record, record.kind(), "", "(redacted)".to_owned()));
            }
        }
    }
    tree.top
}

struct Tree<'f, 's> {
    top: Vec<Node>,
    /// The place of the last turn, or of the resume inside it.
    turn: Option<usize>,
    /// What was asked for, by the call's id.
    calls: HashMap<String, String>,
    /// The last answer.
    answer: Option<&'f Fact>,
    /// What the run runs with.
    about: Option<&'f About>,
    /// The runs beneath it that have no place yet.
    sub_runs: &'s mut SubRuns,
}

impl<'f> Tree<'f, '_> {
    fn take_in(&mut self, record: &Record, fact: &'f Fact) {
        let before = self.about;
        if let Fact::RunStarted { about: Some(about), .. }
        | Fact::Resumed { about: Some(about), .. } = fact
        {
            self.about = Some(about);
        }
        match fact {
            Fact::TurnStarted { turn, .. } => {
                self.turn = Some(self.top.len());
                self.top.push(Node::new(record, "turn", turn, String::new()));
            }
            Fact::AssistantCompleted { response, plan, .. } => {
                self.learn(&response.message);
                self.answer = Some(fact);
                let by = other_model(self.about, response);
                let by = by.map(|model| format!("(by {model}) ")).unwrap_or_default();
                let mut answer = Node::new(record, "answer", "", by + &fact.summary());
                let siblings = match self.turn {
                    Some(turn) => {
                        answer.started = self.top[turn].started;
                        self.top[turn].ended = answer.ended;
                        &mut self.top[turn].children
                    }
                    None => &mut self.top,
                };
                siblings.push(answer);
                for id in denied(plan) {
                    let call = self.calls.get(id).cloned().unwrap_or_default();
                    let mut tool = Node::new(record, "tool", id, call);
                    tool.children.push(Node::new(record, "result", "", NOT_PERMITTED.to_owned()));
                    siblings.push(tool);
                }
            }
            Fact::ToolScheduled { call_id, attempt, call } => {
                if let Some(DirectCall { name, arguments, .. }) = call.as_deref() {
                    self.calls.insert(call_id.clone(), format!("{name} {arguments}"));
                }
                self.attempt(record, call_id, *attempt);
            }
            Fact::ToolCompleted { call_id, attempt, content, .. } => {
                self.attempt(record, call_id, *attempt).says = content.clone();
            }
            Fact::ToolFailed { call_id, attempt, error, .. } => {
                self.attempt(record, call_id, *attempt).says = format!("failed: {error}");
            }
            Fact::SideEffect { inside: Some(inside), name, effect, .. } => {
                let mut effect = Node::new(record, fact.kind(), name, effect.to_string());
                if let Some((run, _)) = fact.sub_run()
                    && let Some(records) = self.sub_runs.remove(run)
                {
                    effect.children = tree(&records, self.sub_runs);
                }
                self.attempt(record, &inside.call_id, inside.attempt).children.push(effect);
            }
            Fact::Resumed { message, tool_results, rejected, given_up, about, edited, .. } => {
                for (id, arguments) in edited {
                    self.edit(id, arguments);
                }
                let changed = match (before, about) {
                    (Some(before), Some(about)) => changes(before, about),
                    _ => Vec::new(),
                };
                let changed = changed.into_iter().map(|change| format!("({change})"));
                let says: Vec<_> =
                    changed.chain(message.as_deref().map(Message::summary)).collect();
                let mut resumed = Node::new(record, fact.kind(), "", says.join(" "));
                let results = tool_results.iter().map(|(id, content)| (id, content.clone()));
                let rejected = rejected.iter().map(|(id, why)| (id, refusal(why)));
                let given_up = given_up.iter().map(|id| (id, UNKNOWN_OUTCOME.to_owned()));
                for (id, said) in results.chain(rejected).chain(given_up) {
                    let call = || self.calls.get(id).cloned().unwrap_or_default();
                    let tool = resumed.child(record, "tool", id, call);
                    tool.children.push(Node::new(record, "result", "", said));
                }
                self.turn = Some(self.top.len());
                self.top.push(resumed);
            }
            Fact::Suspended(end) => {
                self.top.push(Node::new(
                    record,
                    fact.kind(),
                    "",
                    waits(end, self.answer, self.about),
                ));
            }
            Fact::RunStarted { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::SideEffect { inside: None, .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { .. }
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Cancelled { .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => {
                self.top.push(Node::new(record, fact.kind(), "", fact.summary()));
            }
        }
    }

    fn learn(&mut self, message: &Message) {
        let calls = message.tool_calls();
        let calls =
            calls.map(|call| (call.id.clone(), format!("{} {}", call.name, call.arguments)));
        self.calls.extend(calls);
    }

    /// Shows a call with the arguments that a person gave it.
    fn edit(&mut self, id: &str, arguments: &str) {
        if let Some(call) = self.calls.get_mut(id) {
            let name = call.split_once(' ').map_or(&**call, |(name, _)| name);
            *call = format!("{name} {arguments}");
        }
    }

    /// An attempt of a call, up to this record.
    fn attempt(&mut self, record: &Record, call_id: &str, attempt: u32) -> &mut Node {
        let place = *self.turn.get_or_insert_with(|| {
            self.top.push(Node::new(record, "turn", "", String::new()));
            self.top.len() - 1
        });
        let turn = &mut self.top[place];
        let call = || self.calls.get(call_id).cloned().unwrap_or_default();
        let tool = turn.child(record, "tool", call_id, call);
        let node = tool.child(record, "try", &attempt.to_string(), String::new);
        node.ended = record.envelope().ts;
        node
    }
}

/// Writes a timeline for people: when, how long, what.
pub(crate) fn write(nodes: &[Node], began: i64, out: &mut impl Write) -> io::Result<()> {
    nodes.iter().try_for_each(|node| write_node(node, began, 0, out))
}

fn write_node(node: &Node, began: i64, depth: usize, out: &mut impl Write) -> io::Result<()> {
    /// How much of what was said fits on a line.
    const LINE: usize = 100;
    let after = Span(node.started.saturating_sub(began)).to_string();
    let took = node.ended.saturating_sub(node.started);
    let took = if took > 0 { Span(took).to_string() } else { String::new() };
    let name = match (node.kind.as_str(), node.id.as_str()) {
        (kind, "") => kind.to_owned(),
        ("tool", id) => format!("tool [{id}]"),
        (kind, id) => format!("{kind} {id}"),
    };
    let what = short(&format!("{name}  {}", node.says), LINE);
    let line =
        format!("{:>4}  {after:>10}  {took:>10}  {:depth$}{what}", node.seq, "", depth = 2 * depth);
    writeln!(out, "{}", line.trim_end())?;
    node.children.iter().try_for_each(|child| write_node(child, began, depth + 1, out))
}
