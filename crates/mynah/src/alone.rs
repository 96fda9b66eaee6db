//! A run performed from its records alone, without the engines that it ran with.

use std::sync::Arc;

use mynah_data::{EngineReason, Error, HaltReason, ModelRef, Request, Result};
use mynah_log::{About, Fact, Kind, Plan};
use mynah_step::{Adapter, BoxFuture, ModelCall, ModelStream, RecordedFact, Tool};
use serde_json::Value;

use crate::{
    code::{APPROVAL, HALT_WHEN, code_of, is_code},
    engine::Engine,
    loaded::{EngineSegment, Loaded},
    options::Options,
    prepare::{CallOrigin, CallPlan, Part, joined},
    run::{ApprovalPolicy, HaltWhen},
    values::Values,
};

impl Loaded {
    /// An engine rebuilt from the records of a run. They answer for models and tools.
    pub(crate) fn part(&self, ran: EngineSegment<'_>, options: &Options) -> Result<Part> {
        let mut part = self.plan(&engine(ran.about), ran, options)?.prepare()?;
        // The records have only the name of the model. What is set for the replay is compared.
        let mut about = ran.about.clone();
        about.options.extend(options.values.recorded());
        part.about = Some(Box::new(about));
        Ok(part)
    }

    /// What an engine makes of a run that ran with this, at the price that it had: a price list that changed changes nothing of it.
    pub(crate) fn plan<'a>(
        &self,
        engine: &'a Engine,
        ran: EngineSegment<'a>,
        options: &Options,
    ) -> Result<CallPlan<'a>> {
        Ok(CallPlan {
            engine,
            conversation: joined(&self.before, &self.thread),
            given: None,
            options: self.options(ran.about)?.overlay(options.clone()),
            extent: ran.extent,
            past: CallOrigin::ReplayAtPrice(ran.about),
        })
    }

    /// The options of a call, from the records. Its `halt_when` holds where it held; for other code
    /// they have the outcome.
    pub(crate) fn options(&self, about: &About) -> Result<Options> {
        let (mut options, mut told) = (Options::of(about)?, code_of(about));
        options.halt_when =
            told.shift_remove(HALT_WHEN).map(|name| (name, HaltWhen::After(self.halted_after())));
        options.approval =
            told.shift_remove(APPROVAL).map(|_| ApprovalPolicy::Recorded(self.plans()));
        options.told = told;
        Ok(options)
    }

    fn plans(&self) -> Arc<[Plan]> {
        let records = self.records.iter().filter(|kept| kept.is(Kind::AssistantCompleted));
        let plan = |kept: &RecordedFact| match kept.fact() {
            Fact::AssistantCompleted { plan, .. } => plan.clone(),
            _ => Plan::Nothing,
        };
        records.map(plan).collect()
    }

    /// How often the model had answered when the caller's own condition ended the conversation, if it did.
    fn halted_after(&self) -> Option<usize> {
        let records = &self.records;
        let halts = |kept: &RecordedFact| match kept.fact() {
            Fact::Completed(end) | Fact::FinalizeStarted { conversation: end, .. } => {
                end.reason == HaltReason::HaltWhen
            }
            // It was stopped before its answer was formatted.
            Fact::Failed(end) => end
                .metadata
                .get("structured_finalize")
                .is_some_and(|told| told["pass_1_halted"] == HaltReason::HaltWhen.as_str()),
            _ => false,
        };
        const ENDS: [Kind; 3] = [Kind::Completed, Kind::FinalizeStarted, Kind::Failed];
        let may_halt = |kept: &RecordedFact| ENDS.iter().any(|kind| kept.is(*kind));
        let place = records.iter().position(|kept| may_halt(kept) && halts(kept))?;
        Some(records[..place].iter().filter(|kept| kept.is(Kind::AssistantCompleted)).count())
    }
}

impl Options {
    /// A call's recorded options, without code, which only its caller has.
    pub(crate) fn of(about: &About) -> Result<Self> {
        let mut values = about.options.clone();
        values.retain(|name, value| !is_code(name, value));
        Self::from_json(Value::Object(values))
    }
}

fn engine(about: &About) -> Engine {
    let adapter = Unneeded { name: about.adapter.clone(), finalizes: about.finalizes };
    let tools = about.tools.iter().map(|spec| Tool::from_spec((**spec).clone()));
    Engine::new(adapter).tools(tools).with(|parts| {
        parts.model = about.model.clone().map(ModelRef::from);
        parts.options.values = Values::from_json(about.params.clone());
    })
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
