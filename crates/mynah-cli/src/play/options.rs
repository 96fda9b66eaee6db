//! The options of an operation: the library's, with what a file says in its own way.

use mynah::{
    Error, Message, Metadata, Options, Result, Role, StepResult, Thread,
    log::{About, Fact, Kind, Log, Record},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::tools::SimulatedTool;

/// A condition that can be written down.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum HaltWhen {
    TextContains(String),
    /// From 0.
    Step(usize),
    /// When the conversation has this many answers. A step is recorded this way, because a process
    /// that resumes the run need not know how many it began with.
    Answers(usize),
}

impl HaltWhen {
    /// The options with this condition, in a call that starts from `thread`.
    fn add_to(self, options: Options, thread: &Thread) -> Options {
        let count = match self {
            Self::TextContains(text) => {
                let name = json!({"text_contains": text});
                return options
                    .halt_when(name, move |step: &StepResult| step.text().contains(&text));
            }
            Self::Step(index) => answers(thread).saturating_add(index).saturating_add(1),
            Self::Answers(count) => count,
        };
        let name = json!({"answers": count});
        options.halt_when(name, move |step: &StepResult| answers(&step.thread) == count)
    }
}

/// Reads the options of a call that starts from `thread`. What does not fit is the call's own error, as it is for options
/// that only the library knows.
pub(super) fn read(mut values: Metadata, thread: &Thread) -> Result<Options> {
    let mut take = |name| values.shift_remove(name).filter(|value| !value.is_null());
    let (halt_when, tools) = (take("halt_when"), take("tools"));
    let mut options = Options::from_json(Value::Object(values))?;
    if let Some(condition) = halt_when {
        let condition = HaltWhen::deserialize(condition)
            .map_err(|_| Error::invalid_option("halt_when", "invalid_shape"))?;
        options = condition.add_to(options, thread);
    }
    if let Some(tools) = tools {
        let tools = Vec::<SimulatedTool>::deserialize(tools).map_err(|error| {
            Error::invalid_option("tools", "invalid_shape").with_message(format!("tools: {error}"))
        })?;
        options = options.tools(tools.iter().map(SimulatedTool::tool));
    }
    Ok(options)
}

/// The last recorded configuration of a run; none if the records have none. The records are
/// verified when the run is resumed.
pub(crate) async fn last_about(log: &dyn Log, run: &str) -> Result<About> {
    let (mut next, mut last) = (1, About::default());
    loop {
        let page = log.read(run, next, 256).await?;
        if page.is_empty() {
            return Ok(last);
        }
        next += page.len() as u64;
        let tells = |record: &&Record| matches!(record.kind(), Kind::RunStarted | Kind::Resumed);
        for record in page.iter().filter(tells) {
            if let Ok(Some(
                Fact::RunStarted { about: Some(about), .. }
                | Fact::Resumed { about: Some(about), .. },
            )) = record.fact()
            {
                last = *about;
            }
        }
    }
}

/// The condition that a run has, if it is one that can be written down.
pub(crate) fn condition(about: &About) -> Options {
    let told = about.options.get("halt_when").cloned();
    let condition = told.and_then(|told| HaltWhen::deserialize(told).ok());
    let add = |condition: HaltWhen| condition.add_to(Options::new(), &Thread::new());
    condition.map_or_else(Options::new, add)
}

/// How often the model has answered. A step's place in a chat is the answers that came before it.
fn answers(thread: &Thread) -> usize {
    let is_answer = |message: &&std::sync::Arc<Message>| message.role() == Role::Assistant;
    thread.messages.iter().filter(is_answer).count()
}
