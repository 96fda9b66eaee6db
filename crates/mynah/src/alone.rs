//! What a run's records tell of the engine that made it, for a replay without one.

use std::sync::Arc;

use mynah_data::{
    EngineReason, Error, HaltReason, ModelRef, Request, Result, Role, StepResult, Thread,
};
use mynah_log::{Fact, Record};
use mynah_step::{Adapter, BoxFuture, ModelCall, ModelStream, Tool};

use crate::{engine::Engine, loaded::Loaded, options::Options};

impl Loaded {
    /// The engine that the records tell of.
    pub(crate) fn engine(&self) -> Engine {
        let finalizes =
            self.records.iter().any(|(_, fact)| matches!(fact, Fact::FinalizeStarted { .. }));
        let adapter = Unneeded { name: self.about.adapter.clone(), finalizes };
        let tools = self.about.tools.iter().map(|spec| Tool::from_spec((**spec).clone()));
        Engine::new(adapter).tools(tools).with(|parts| {
            parts.model = self.about.model.clone().map(ModelRef::from);
            parts.params = self.about.params.clone();
        })
    }

    /// The functions that the records tell of: a condition that ended the run holds after its last answer.
    pub(crate) fn functions(&self) -> Options {
        let halts = |(_, fact): &(Record, Fact)| matches!(fact, Fact::Completed(end) if end.reason == HaltReason::HaltWhen);
        if !self.records.iter().any(halts) {
            return Options::new();
        }
        let is_answer =
            |(_, fact): &&(Record, Fact)| matches!(fact, Fact::AssistantCompleted { .. });
        let last = answers(&self.thread) + self.records.iter().filter(is_answer).count();
        Options::new().halt_when(move |step: &StepResult| answers(&step.thread) == last)
    }
}

/// How often the model has answered.
fn answers(thread: &Thread) -> usize {
    thread.messages.iter().filter(|message| message.role() == Role::Assistant).count()
}

/// Stands for the adapter of a run whose records answer for the model.
struct Unneeded {
    name: String,
    finalizes: bool,
}

impl Adapter for Unneeded {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(std::future::ready(Err(Error::engine(EngineReason::MissingAdapter))))
    }

    fn needs_structured_finalize(&self, _: &Request) -> bool {
        self.finalizes
    }
}
