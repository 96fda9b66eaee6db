//! Simulated tools.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use mynah::{Metadata, Tool, ToolContext, ToolOutcome, ToolSpec};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, json};

use crate::input;

/// A tool and what its calls come to.
#[derive(Debug)]
pub(super) struct SimulatedTool {
    spec: ToolSpec,
    replay: Replay,
    /// Nothing for a tool that cannot run.
    returns: Option<Arc<[Return]>>,
}

/// The outcome of one call.
#[derive(Clone, Debug)]
struct Return {
    delay: Duration,
    form: Form,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Form {
    #[serde(skip)]
    Outcome(ToolOutcome),
    Panic(String),
    Echo(True),
    Context(String),
    SessionId(True),
    Now(True),
    Random(True),
    #[serde(deserialize_with = "object")]
    SideEffect(SideEffect),
    Hang(True),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SideEffect {
    name: String,
    value: Value,
}

/// The forms that are a tool's outcome as it stands, and those that are made when the tool runs.
const OUTCOMES: [&str; 4] = ["ok", "error", "ask_user", "halt"];
const MADE: [&str; 8] =
    ["panic", "echo", "context", "session_id", "now", "random", "side_effect", "hang"];

/// The only value of a variant without further members.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "bool")]
struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(flag: bool) -> Result<Self, Self::Error> {
        if flag { Ok(Self) } else { Err("expected true") }
    }
}

/// Whether a replay runs the tool again.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Replay {
    #[default]
    Rerun,
    Recorded,
}

impl<'de> Deserialize<'de> for SimulatedTool {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wire {
            name: String,
            #[serde(default)]
            description: String,
            #[serde(default = "any_object")]
            schema: Metadata,
            #[serde(default)]
            manual: bool,
            #[serde(default)]
            idempotent: bool,
            #[serde(default)]
            max_attempts: Option<u32>,
            #[serde(default)]
            timeout_ms: Option<u64>,
            #[serde(default)]
            replay: Replay,
            #[serde(default)]
            returns: Option<Value>,
        }
        let wire: Wire = object(deserializer)?;
        let mut spec = ToolSpec::new(wire.name, wire.description, Value::Object(wire.schema));
        spec.manual = wire.manual;
        spec.idempotent = wire.idempotent;
        spec.max_attempts = wire.max_attempts.unwrap_or(spec.max_attempts);
        spec.timeout_ms = wire.timeout_ms;
        let returns = wire.returns.map(parse_returns).transpose().map_err(D::Error::custom)?;
        Ok(Self { spec, replay: wire.replay, returns })
    }
}

/// An object and nothing else. What is derived takes a list for one.
fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: DeserializeOwned,
{
    let map = Metadata::deserialize(deserializer)?;
    T::deserialize(Value::Object(map)).map_err(D::Error::custom)
}

fn any_object() -> Metadata {
    Metadata::from_iter([("type".to_owned(), json!("object"))])
}

/// One form, or a list of them.
fn parse_returns(value: Value) -> Result<Arc<[Return]>, String> {
    match value {
        Value::Array(list) if list.is_empty() => Err("returns: an empty list".to_owned()),
        Value::Array(list) => list
            .into_iter()
            .enumerate()
            .map(|(index, form)| {
                parse_return(form).map_err(|why| format!("returns.{index}: {why}"))
            })
            .collect(),
        form => Ok(Arc::from([parse_return(form).map_err(|why| format!("returns: {why}"))?])),
    }
}

fn parse_return(value: Value) -> Result<Return, String> {
    let Value::Object(mut map) = value else {
        return Err("expected an object".to_owned());
    };
    let delay = map.shift_remove("delay_ms").unwrap_or(json!(0));
    let delay = u64::deserialize(delay).map_err(|error| format!("delay_ms: {error}"))?;
    let has = |names: &[&str]| map.keys().any(|key| names.contains(&key.as_str()));
    let form = if has(&OUTCOMES) {
        input::strict(Value::Object(map)).map(Form::Outcome)
    } else if has(&MADE) {
        Form::deserialize(Value::Object(map)).map_err(|error| error.to_string())
    } else {
        let found = map.keys().next().map_or("nothing", String::as_str);
        let known = [OUTCOMES.as_slice(), &MADE].concat().join(", ");
        return Err(format!("expected one of {known}, found {found}"));
    };
    Ok(Return { delay: Duration::from_millis(delay), form: form? })
}

impl SimulatedTool {
    /// The tool, at the beginning of its list.
    pub(super) fn tool(&self) -> Tool {
        let mut tool = Tool::from_spec(self.spec.clone());
        if self.replay == Replay::Recorded {
            tool = tool.recorded();
        }
        let Some(returns) = self.returns.clone() else { return tool };
        let runs = AtomicUsize::new(0);
        tool.handler(move |arguments, context| {
            let index = runs.fetch_add(1, Ordering::Relaxed).min(returns.len() - 1);
            run(returns[index].clone(), arguments, context)
        })
    }
}

async fn run(planned: Return, arguments: Value, context: ToolContext) -> ToolOutcome {
    if !planned.delay.is_zero() {
        tokio::time::sleep(planned.delay).await;
    }
    let effect = match planned.form {
        Form::Outcome(outcome) => return outcome,
        // The panic hook is bypassed: a panic of the scenario is reported in the output.
        Form::Panic(text) => std::panic::resume_unwind(Box::new(text)),
        Form::Echo(True) => Ok(arguments),
        Form::Context(key) => Ok(context.context.get(&key).cloned().unwrap_or_default()),
        Form::SessionId(True) => Ok(json!(context.session_id)),
        Form::Now(True) => context.now().await.map(|time| json!(nanoseconds(time))),
        Form::Random(True) => context.random().await.map(|number| json!(number)),
        Form::SideEffect(SideEffect { name, value }) => {
            context.side_effect(&name, async { Ok::<_, Infallible>(value) }).await
        }
        Form::Hang(True) => std::future::pending().await,
    };
    effect.into()
}

/// Since 1970, as the log counts them.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
