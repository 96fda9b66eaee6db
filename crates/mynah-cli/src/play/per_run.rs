//! A scripted model for several runs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use mynah::{
    Adapter, BoxFuture, ModelCall, ModelStream, Request, Result, RetryPolicy,
    testing::{Script, Scripted},
};

/// A scripted model with which each run begins with the first script. A run and the runs of its agents share the scripts.
pub(super) struct ScriptedPerRun {
    scripts: Vec<Script>,
    runs: Mutex<HashMap<String, Arc<Scripted>>>,
}

impl ScriptedPerRun {
    pub(super) fn new(scripts: Vec<Script>) -> Self {
        Self { scripts, runs: Mutex::default() }
    }
}

impl Adapter for ScriptedPerRun {
    fn name(&self) -> &str {
        "scripted"
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        // The id of an agent's run begins with that of the run that called it.
        let run = call.run_id.as_deref().unwrap_or_default().split('+').next();
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let model = runs
            .entry(run.unwrap_or_default().to_owned())
            .or_insert_with(|| Arc::new(Scripted::play(self.scripts.iter().cloned())));
        Arc::clone(model).open(request, call)
    }

    fn default_retry(&self) -> RetryPolicy {
        RetryPolicy::never()
    }
}
