//! Scenario files: what they may say, and where they are wrong.

use std::sync::Arc;

use mynah::{
    Engine, Message, Metadata, ModelRef, OnUncertain, Pricing, Tools,
    testing::{Script, Scripted},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{per_run::ScriptedPerRun, tools::SimulatedTool};
use crate::input;

/// A scenario that fits the format.
pub(super) struct Scenario {
    pub(super) engine: Engine,
    pub(super) ops: Vec<Op>,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) verb: Verb,
    pub(super) options: Metadata,
    pub(super) watch: Watch,
    /// End the process as soon as this record is safe.
    pub(super) crash_after: Option<u64>,
}

/// The operation.
#[derive(Debug)]
pub(super) enum Verb {
    Call {
        kind: Kind,
        input: Input,
    },
    Start {
        messages: Vec<Value>,
        id: Option<String>,
        context: Metadata,
    },
    Reply {
        text: String,
    },
    Continue {
        message: Option<Value>,
    },
    SessionStep,
    SubmitToolResults {
        results: Vec<(String, Value)>,
    },
    SaveAndLoad,
    Recover,
    /// An operation on a recorded run: this one, or the newest.
    Kept {
        run_id: Option<String>,
        act: Act,
    },
}

/// The operation on a recorded run.
#[derive(Debug)]
pub(super) enum Act {
    Verify,
    Replay { tools: Tools, allow_changed_engine: bool },
    Resume(Box<ResumeWith>),
    Fork { at: u64 },
}

/// What a run is resumed with.
#[derive(Debug)]
pub(super) struct ResumeWith {
    pub(super) message: Option<Value>,
    /// Whether that is an answer, and nothing else.
    pub(super) is_answer: bool,
    pub(super) tool_results: Vec<(String, Value)>,
    pub(super) approve: Vec<String>,
    pub(super) reject: Vec<String>,
    pub(super) on_uncertain: OnUncertain,
    /// Although the engine or the options are not those that the run began with.
    pub(super) allow_changed_engine: bool,
}

/// The calls that need no session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Generate,
    Step,
    Chat,
}

/// The conversation that a call starts from. Whether its messages follow the rules is the library's to judge.
#[derive(Debug)]
pub(super) enum Input {
    Messages(Vec<Value>),
    /// The thread of the operation before.
    Last,
}

/// How an operation's events are watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// Print them.
    pub(super) print: bool,
    /// Drop the stream after this many events.
    pub(super) take: Option<u64>,
    /// Cancel after this many events.
    pub(super) cancel_after: Option<u64>,
}

impl Watch {
    /// Whether anything must happen while the operation runs.
    pub(super) fn is_needed(&self) -> bool {
        self.print || self.take.is_some() || self.cancel_after.is_some()
    }
}

/// Reads a scenario. The error names the place. What needs a log is wrong where there is none.
pub(super) fn parse(text: &str, has_log: bool) -> Result<Scenario, String> {
    let mut file = Fields::of_file(text)?;
    let engine = file.engine(&[], false)?;
    let ops = file.required::<Vec<Value>>("ops")?;
    file.finish("a scenario")?;
    let ops = each("ops", ops, |op| parse_op(op, has_log).map_err(|why| format!(": {why}")))?;
    Ok(Scenario { engine, ops })
}

/// Reads the engine of a scenario, which need not have operations. Its scripts follow those that gave these answers. The
/// error names the place.
pub(super) fn agent(
    text: &str,
    answers: &[Vec<Arc<Message>>],
    per_run: bool,
) -> Result<Engine, String> {
    let mut file = Fields::of_file(text)?;
    let engine = file.engine(answers, per_run)?;
    file.optional::<Vec<Value>>("ops")?;
    file.finish("a scenario").map(|()| engine)
}

/// Reads the members of a list, and puts the place before what is wrong with one.
fn each<U>(
    name: &str,
    list: Vec<Value>,
    read: impl Fn(Value) -> Result<U, String>,
) -> Result<Vec<U>, String> {
    let indexed = list.into_iter().enumerate();
    indexed.map(|(index, item)| read(item).map_err(|why| format!("{name}.{index}{why}"))).collect()
}

/// How many scripts were played until the last of these answers. Those of the earliest runs may be
/// from elsewhere; none is counted if one of the last run is.
fn used(scripts: &[Value], answers: &[Vec<Arc<Message>>]) -> usize {
    let played = |used: usize, answer: &Arc<Message>| {
        let passed = scripts[used..].iter().position(|script| gives(script, answer))?;
        Some(used + passed + 1)
    };
    let mut from = 0..answers.len();
    from.find_map(|from| answers[from..].iter().flatten().try_fold(0, played)).unwrap_or(0)
}

/// Whether a script says this text, and makes these calls.
fn gives(script: &Value, answer: &Message) -> bool {
    const ENDS: [&str; 3] = ["finish", "error", "disconnect"];
    let goes_on = |entry: &&Value| !ENDS.iter().any(|end| entry.get(end).is_some());
    let entries = || script.as_array().into_iter().flatten().take_while(goes_on);
    let text = entries().filter_map(|entry| entry["text"].as_str());
    let calls = entries().filter_map(|entry| {
        let call = entry.get("tool_call").or_else(|| entry.get("tool_call_start"))?;
        call["id"].as_str().zip(call["name"].as_str())
    });
    text.collect::<String>() == answer.text()
        && calls.eq(answer.tool_calls().map(|call| (&*call.id, &*call.name)))
}

/// The engine with the settings of the file.
fn equip(mut engine: Engine, said: Metadata) -> Result<Engine, String> {
    let mut said = Fields(said);
    let model: Option<String> = said.optional("model")?;
    let price: Option<Metadata> = said.optional("price")?;
    let params: Metadata = said.optional("params")?.unwrap_or_default();
    let context: Metadata = said.optional("context")?.unwrap_or_default();
    said.finish("the engine")?;

    if let Some(price) = price {
        let price = Pricing::deserialize(Value::Object(price));
        let price = price.map_err(|error| format!("price: {error}"))?;
        let id = model.unwrap_or_else(|| "scripted".to_owned());
        engine = engine.model(ModelRef::new(id).with_pricing(price));
    } else if let Some(id) = model {
        engine = engine.model(id);
    }
    let params =
        mynah::Options::from_json(Value::Object(params)).map_err(|error| error.to_string())?;
    engine = engine.defaults(params);
    for (key, value) in context {
        engine = engine.context(&key, value);
    }
    Ok(engine)
}

/// The names of all operations, for people.
const OPERATIONS: [&str; 15] = [
    "generate",
    "step",
    "chat",
    "session.start",
    "session.reply",
    "session.continue",
    "session.step",
    "session.submit_tool_result",
    "session.submit_tool_results",
    "session.save_and_load",
    "session.recover",
    "verify",
    "replay",
    "resume",
    "fork",
];

fn parse_op(op: Value, has_log: bool) -> Result<Op, String> {
    let mut fields = Fields(Metadata::deserialize(op).map_err(|error| error.to_string())?);
    let name: String = fields.required("op")?;
    let verb = match name.as_str() {
        "generate" => Verb::Call { kind: Kind::Generate, input: fields.input()? },
        "step" => Verb::Call { kind: Kind::Step, input: fields.input()? },
        "chat" => Verb::Call { kind: Kind::Chat, input: fields.input()? },
        "session.start" => Verb::Start {
            messages: fields.messages()?,
            id: fields.optional("id")?,
            context: fields.optional("context")?.unwrap_or_default(),
        },
        "session.reply" => Verb::Reply { text: fields.required("text")? },
        "session.continue" => Verb::Continue { message: fields.message()? },
        "session.step" => Verb::SessionStep,
        "session.submit_tool_result" => Verb::SubmitToolResults {
            results: vec![(fields.required("id")?, fields.required("content")?)],
        },
        "session.submit_tool_results" => {
            Verb::SubmitToolResults { results: fields.required("results")? }
        }
        "session.save_and_load" => Verb::SaveAndLoad,
        "session.recover" => Verb::Recover,
        "verify" | "replay" | "resume" | "fork" if !has_log => {
            return Err(format!("op: {name:?} needs a log"));
        }
        "verify" | "replay" | "resume" | "fork" => {
            Verb::Kept { run_id: fields.optional("run_id")?, act: fields.act(&name)? }
        }
        _ => {
            let known = OPERATIONS.join(", ");
            return Err(format!("op: unknown operation {name:?}; known are {known}"));
        }
    };
    let op = Op {
        verb,
        options: fields.optional("options")?.unwrap_or_default(),
        watch: Watch {
            print: fields.optional("stream")?.unwrap_or(false),
            take: fields.optional("take")?,
            cancel_after: fields.optional("cancel_after")?,
        },
        crash_after: fields.optional("crash_after")?,
    };
    fields.finish(&name)?;
    match op.crash_after {
        Some(_) if !has_log => return Err("crash_after: needs a log".to_owned()),
        Some(0) => return Err("crash_after: records are counted from 1".to_owned()),
        _ => {}
    }
    Ok(op)
}

/// The members of an object that were not read yet.
struct Fields(Metadata);

impl Fields {
    fn of_file(text: &str) -> Result<Self, String> {
        let read = mynah::decode::unique_keys(text).and_then(|()| serde_json::from_str(text));
        read.map(Self).map_err(|error| error.to_string())
    }

    /// The engine that the file's members describe, after these answers of its model.
    fn engine(&mut self, answers: &[Vec<Arc<Message>>], per_run: bool) -> Result<Engine, String> {
        let engine = self.optional::<Metadata>("engine")?.unwrap_or_default();
        let scripts = self.optional::<Vec<Value>>("scripts")?.unwrap_or_default();
        let tools = self.optional::<Vec<Value>>("tools")?.unwrap_or_default();
        let used = used(&scripts, answers);
        let mut scripts = each("scripts", scripts, |script| {
            // An error begins with the index of its entry, if it has one.
            Script::from_json(&script).map_err(|error| match script {
                Value::Array(_) => format!(".{error}"),
                _ => ": expected a list of entries".to_owned(),
            })
        })?;
        let tools = each("tools", tools, |tool| {
            SimulatedTool::deserialize(tool).map_err(|error| format!(": {error}"))
        })?;
        let tools = tools.iter().map(SimulatedTool::tool);
        let scripts = scripts.split_off(used);
        let engine_of = match per_run {
            true => Engine::new(ScriptedPerRun::new(scripts)),
            false => Engine::new(Scripted::play(scripts)),
        };
        // A tool that returns nothing cannot run; a scenario says what happens if it is called all the same.
        let engine_of = engine_of.tool_executor(mynah::HandlerExecutor);
        equip(engine_of.tools(tools), engine).map_err(|why| format!("engine: {why}"))
    }

    fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, String> {
        let value = self.0.shift_remove(name).ok_or_else(|| format!("missing key {name:?}"))?;
        input::strict(value).map_err(|why| format!("{name}: {why}"))
    }

    fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, String> {
        match self.0.get(name) {
            Some(value) if !value.is_null() => self.required(name).map(Some),
            _ => {
                self.0.shift_remove(name);
                Ok(None)
            }
        }
    }

    /// It may have no other members.
    fn finish(self, of: &str) -> Result<(), String> {
        match self.0.keys().next() {
            Some(key) => Err(format!("unknown key {key:?} for {of}")),
            None => Ok(()),
        }
    }

    fn input(&mut self) -> Result<Input, String> {
        match self.optional::<String>("thread")?.as_deref() {
            None => Ok(Input::Messages(self.messages()?)),
            Some("last") if self.0.contains_key("messages") => {
                Err("thread: give either messages or thread".to_owned())
            }
            Some("last") => Ok(Input::Last),
            Some(other) => Err(format!("thread: expected \"last\", found {other:?}")),
        }
    }

    fn messages(&mut self) -> Result<Vec<Value>, String> {
        let messages: Vec<Value> = self.required("messages")?;
        let check = |message| check_message(&message).map(|()| message);
        each("messages", messages, |message| check(message).map_err(|why| format!(": {why}")))
    }

    /// The operation on a recorded run.
    fn act(&mut self, name: &str) -> Result<Act, String> {
        Ok(match name {
            "verify" => Act::Verify,
            "fork" => Act::Fork { at: self.required("at")? },
            "replay" => Act::Replay {
                tools: self
                    .one_of("tools", &[("rerun", Tools::All), ("recorded", Tools::Recorded)])?,
                allow_changed_engine: self.allow_changed_engine()?,
            },
            _ => Act::Resume(Box::new(ResumeWith {
                is_answer: self.0.get("answer").is_some_and(|text| !text.is_null()),
                message: self.said()?,
                tool_results: self.optional("tool_results")?.unwrap_or_default(),
                approve: self.optional("approve")?.unwrap_or_default(),
                reject: self.optional("reject")?.unwrap_or_default(),
                on_uncertain: self.one_of(
                    "on_uncertain",
                    &[
                        ("suspend", OnUncertain::Suspend),
                        ("rerun", OnUncertain::Rerun),
                        ("fail", OnUncertain::Fail),
                    ],
                )?,
                allow_changed_engine: self.allow_changed_engine()?,
            })),
        })
    }

    fn allow_changed_engine(&mut self) -> Result<bool, String> {
        Ok(self.optional("allow_changed_engine")?.unwrap_or_default())
    }

    /// What a person says: a message, or its text alone.
    fn said(&mut self) -> Result<Option<Value>, String> {
        if let Some(text) = self.optional::<String>("answer")? {
            return match self.0.get("message") {
                Some(message) if !message.is_null() => {
                    Err("answer: give either message or answer".to_owned())
                }
                _ => Ok(Some(user(&text))),
            };
        }
        match self.0.get("message") {
            Some(Value::String(text)) => {
                let message = user(text);
                self.0.shift_remove("message");
                Ok(Some(message))
            }
            _ => self.message(),
        }
    }

    /// One of these words; without any, the first.
    fn one_of<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Result<T, String> {
        let word: Option<String> = self.optional(name)?;
        let word = word.as_deref().unwrap_or(words[0].0);
        let known = words.iter().find(|(known, _)| *known == word);
        known.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            format!("{name}: expected one of {}, found {word:?}", words.join(", "))
        })
    }

    fn message(&mut self) -> Result<Option<Value>, String> {
        let message = self.optional("message")?;
        if let Some(message) = &message {
            check_message(message).map_err(|why| format!("message: {why}"))?;
        }
        Ok(message)
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Checks the shape of a message. Its values (a role, the parts of its content) are the library's to judge.
fn check_message(value: &Value) -> Result<(), String> {
    const KEYS: [&str; 6] = ["role", "content", "name", "tool_call_id", "tool_calls", "metadata"];
    let Value::Object(fields) = value else {
        return Err("expected an object".to_owned());
    };
    if let Some(key) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("unknown key {key:?}"));
    }
    for key in ["role", "content"] {
        if !fields.contains_key(key) {
            return Err(format!("missing key {key:?}"));
        }
    }
    match mynah::decode::message(value) {
        Err(error) if error.reason() == "invalid_json" => Err(error.to_string()),
        _ => Ok(()),
    }
}
