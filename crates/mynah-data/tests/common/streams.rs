//! Streams of events as a chat emits them: well-formed, with random contents.

use std::sync::Arc;

use mynah_data::*;
use proptest::{collection::vec, option, prelude::*, sample::Index};
use serde_json::{Value, json};

use super::strategies::{metadata, text, usage, value};

/// A chat as it streamed.
#[derive(Clone, Debug)]
pub(crate) struct Streamed {
    /// The conversation that it began with.
    pub(crate) before: Thread,
    /// Its events; the last one is `ChatCompleted`.
    pub(crate) events: Vec<Event>,
}

/// Chats of one to four turns that complete, halt, ask, hand over their calls or fail.
pub(crate) fn chat() -> BoxedStrategy<Streamed> {
    let before = vec("[a-z]{0,4}", 0..3).prop_map(|texts| {
        texts
            .into_iter()
            .fold(Thread::from("hi"), |thread, text| thread.with_assistant("yes?").with_user(text))
    });
    (before, vec(turn(), 1..4), ending())
        .prop_map(|(before, turns, ending)| {
            let mut telling =
                Telling { thread: before.clone(), steps: Vec::new(), events: Vec::new() };
            telling.tell(turns, ending);
            Streamed { before, events: telling.events }
        })
        .boxed()
}

/// One block of an answer.
#[derive(Clone, Debug)]
enum Said {
    Text(Vec<String>),
    Reasoning(Vec<String>, Option<String>),
    Call { name: String, pieces: Vec<String> },
}

#[derive(Clone, Debug)]
struct Turn {
    said: Vec<Said>,
    /// Whether the provider names its blocks.
    named: bool,
    /// Whether it repeats a block when the block is complete.
    spelled_out: bool,
    usage: Option<Usage>,
    results: Vec<String>,
    /// Where each call comes in the order in which the tools finish.
    order: Vec<Index>,
}

/// How the last turn goes.
#[derive(Clone, Debug)]
enum Ending {
    Completed,
    Halted {
        reason: String,
        result: Value,
    },
    Asked {
        question: String,
        opts: Metadata,
    },
    Manual,
    /// An error after this part of the turn's events; a hopeful finish may follow it.
    Failed {
        after: Index,
        finish: bool,
    },
}

fn turn() -> BoxedStrategy<Turn> {
    let said = prop_oneof![
        3 => vec(text(), 0..4).prop_map(Said::Text),
        1 => (vec(text(), 0..3), option::of(text())).prop_map(|(d, s)| Said::Reasoning(d, s)),
        2 => ("[a-z]{1,4}", pieces()).prop_map(|(name, pieces)| Said::Call { name, pieces }),
    ];
    let flags = any::<(bool, bool)>();
    (vec(said, 0..5), flags, option::of(usage()), vec(text(), 5), vec(any::<Index>(), 5))
        .prop_map(|(said, (named, spelled_out), usage, results, order)| Turn {
            said,
            named,
            spelled_out,
            usage,
            results,
            order,
        })
        .boxed()
}

/// Argument text in pieces; cut anywhere, now and then no JSON.
fn pieces() -> BoxedStrategy<Vec<String>> {
    let whole = prop_oneof![3 => metadata().prop_map(Value::Object), 1 => value()];
    let cut = (whole, any::<Index>()).prop_map(|(value, at)| {
        let text: Vec<char> = value.to_string().chars().collect();
        let (head, tail) = text.split_at(at.index(text.len()));
        vec![head.iter().collect(), tail.iter().collect()]
    });
    prop_oneof![3 => cut, 1 => vec("[{}a-z\":]{0,3}", 0..3)].boxed()
}

fn ending() -> BoxedStrategy<Ending> {
    prop_oneof![
        2 => Just(Ending::Completed),
        1 => ("[a-z]{1,4}x", value()).prop_map(|(reason, result)| Ending::Halted { reason, result }),
        1 => (text(), metadata()).prop_map(|(question, opts)| Ending::Asked { question, opts }),
        1 => Just(Ending::Manual),
        2 => any::<(Index, bool)>().prop_map(|(after, finish)| Ending::Failed { after, finish }),
    ]
    .boxed()
}

/// Makes the events of a chat turn by turn.
struct Telling {
    thread: Thread,
    steps: Vec<StepResult>,
    events: Vec<Event>,
}

impl Telling {
    fn tell(&mut self, mut turns: Vec<Turn>, ending: Ending) {
        let last = turns.pop();
        for mut turn in turns {
            // A turn without a call would be the last.
            turn.said.push(Said::Call { name: "echo".to_owned(), pieces: vec!["{}".to_owned()] });
            self.turn(turn, None);
        }
        if let Some(mut turn) = last {
            if matches!(ending, Ending::Completed) {
                turn.said.retain(|said| !matches!(said, Said::Call { .. }));
            } else if !matches!(ending, Ending::Failed { .. }) {
                turn.said.push(Said::Call { name: "last".to_owned(), pieces: Vec::new() });
            }
            self.turn(turn, Some(&ending));
        }
        let result = self.result(&ending);
        self.events.push(Event::ChatCompleted { result: Box::new(result) });
    }

    fn turn(&mut self, turn: Turn, ending: Option<&Ending>) {
        let mut events = model_events(&turn, self.steps.len());
        if let Some(Ending::Failed { after, finish }) = ending {
            let finished = events.pop();
            events.truncate(after.index(events.len()) + 1);
            let error = Error::adapter(AdapterReason::NetworkError);
            events.push(Event::Error { error });
            events.extend(finished.filter(|_| *finish));
        }
        let mut builder = ResponseBuilder::new();
        events.iter().for_each(|event| builder.apply(event));
        let response = builder.response();
        if !response.message.parts().is_empty() {
            self.thread.messages.push(Arc::clone(&response.message));
        }
        self.events.extend(events);
        let manual = matches!(ending, Some(Ending::Manual));
        if !manual && response.error().is_none() {
            self.run_tools(&turn, &response, ending);
        }
        let failure = response.error();
        let mut step = StepResult::new(self.thread.clone(), response.clone());
        let mode = if manual { ToolMode::Manual } else { ToolMode::Auto };
        step.describe(mode, &[], None, failure.as_ref());
        let after = step.first_added(self.steps.last());
        self.steps.push(step);
        let thread = StepThread::added(self.thread.clone(), after);
        self.events.push(Event::step_completed(response, thread, mode, Vec::new()));
    }

    /// Tools start in the order of the calls, finish in any, and stand in the thread in the order of the calls.
    fn run_tools(&mut self, turn: &Turn, response: &Response, ending: Option<&Ending>) {
        let calls: Vec<ToolCall> = response.tool_calls().cloned().collect();
        for call in &calls {
            let arguments = call.arguments.clone();
            self.events.push(Event::tool_execution_started(&call.id, &call.name, arguments));
        }
        let mut waiting: Vec<usize> = (0..calls.len()).collect();
        let mut order = turn.order.iter().cycle();
        let mut results: Vec<(usize, Message)> = Vec::new();
        while let (false, Some(next)) = (waiting.is_empty(), order.next()) {
            let index = waiting.remove(next.index(waiting.len()));
            let call = &calls[index];
            let content = turn.results[index % turn.results.len()].clone();
            let halts = index == calls.len() - 1;
            let (outcome, last, content) = match ending {
                Some(Ending::Halted { reason, result }) if halts => (
                    ToolOutcome::halt(reason.as_str(), result.clone()),
                    Event::tool_halt(
                        &call.id,
                        HaltReason::from(reason.clone()),
                        result.clone(),
                        &content,
                    ),
                    content,
                ),
                Some(Ending::Asked { question, opts }) if halts => (
                    ToolOutcome::ask_with(question.as_str(), opts.clone()),
                    Event::ask_user_requested(&call.id, &call.name, question, opts.clone()),
                    ASK_USER_SENTINEL.to_owned(),
                ),
                _ => (
                    ToolOutcome::from(content.as_str()),
                    Event::tool_result_encoded(&call.id, &content),
                    content,
                ),
            };
            self.events.push(Event::tool_execution_completed(&call.id, &call.name, outcome));
            self.events.push(last);
            results.push((index, Message::tool_result(&call.id, content)));
        }
        results.sort_by_key(|(index, _)| *index);
        self.thread.extend(results.into_iter().map(|(_, message)| message));
    }

    fn result(&mut self, ending: &Ending) -> ChatResult {
        let reason = match ending {
            Ending::Completed => HaltReason::Completed,
            Ending::Halted { reason, .. } => HaltReason::from(reason.clone()),
            Ending::Asked { .. } => HaltReason::AskUser,
            Ending::Manual => HaltReason::ManualToolCalls,
            Ending::Failed { .. } => HaltReason::Error,
        };
        if reason != HaltReason::ManualToolCalls {
            self.thread.messages.repair(CUT_SHORT);
        }
        let mut result = ChatResult::new(self.thread.clone(), reason);
        if let Ending::Asked { question, .. } = ending {
            result.pending_question = Some(question.clone());
        }
        result.final_response = self.steps.last().map(|step| step.response.clone());
        if let Some(error) = result.final_response.as_ref().and_then(Response::error) {
            result.metadata.insert("error".to_owned(), json!(error));
        }
        result.steps = std::mem::take(&mut self.steps);
        result
    }
}

/// One answer: the opening event, its blocks in order, the closing event.
fn model_events(turn: &Turn, step: usize) -> Vec<Event> {
    let mut events = vec![Event::message_started()];
    let mut unnamed = String::new();
    for (block, said) in turn.said.iter().enumerate() {
        let id = turn.named.then(|| Arc::<str>::from(format!("b{block}")));
        match said {
            Said::Text(deltas) => {
                for delta in deltas {
                    events.push(Event::TextDelta { id: id.clone(), delta: delta.clone() });
                }
                unnamed.push_str(&deltas.concat());
                if id.is_some() && turn.spelled_out {
                    events.push(Event::TextCompleted { id, text: deltas.concat() });
                }
            }
            Said::Reasoning(deltas, signature) => {
                for delta in deltas {
                    events.push(Event::ReasoningDelta { id: id.clone(), delta: delta.clone() });
                }
                if turn.spelled_out {
                    let mut completed = Event::reasoning_completed(deltas.concat());
                    if let Event::ReasoningCompleted { id: of, signature: by, .. } = &mut completed
                    {
                        (*of, *by) = (id, signature.clone());
                    }
                    events.push(completed);
                }
            }
            Said::Call { name, pieces } => {
                let id = format!("c{step}{block}");
                events.push(Event::ToolCallStarted { id: id.clone(), name: name.clone() });
                for piece in pieces {
                    let arguments_delta = piece.clone();
                    events.push(Event::ToolCallDelta { id: id.clone(), arguments_delta });
                }
                if turn.spelled_out {
                    let call = ToolCall::new(id, name, pieces.concat());
                    events.push(Event::tool_call_completed(call));
                }
            }
        }
    }
    if !turn.named && turn.spelled_out {
        events.push(Event::TextCompleted { id: None, text: unnamed });
    }
    events.extend(turn.usage.clone().map(|usage| Event::Usage { usage: Box::new(usage) }));
    let calls = turn.said.iter().any(|said| matches!(said, Said::Call { .. }));
    let finish = if calls { FinishReason::ToolCalls } else { FinishReason::Stop };
    events.push(Event::message_completed(Some(finish)));
    events
}
