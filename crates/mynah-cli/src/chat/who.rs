//! Who answers in a conversation.

use std::{fs, path::PathBuf, sync::Arc};

use mynah::{
    Engine,
    log::{Fact, Log as _, RunFilter},
};
use mynah_agent::{AgentFile, default_context};

use crate::{
    Failure,
    agent::{self, VarArgs},
    ledger::Ledger,
    model::{CallArgs, Tries, script},
    store,
    text::quoted,
};

/// The member of a session's metadata that names the agent file.
pub(super) const AGENT: &str = "agent_file";

/// Who answers.
pub(super) enum Who {
    /// An agent file, or a scenario.
    File(PathBuf, VarArgs),
    /// A model without tools.
    Model(String, Box<CallArgs>),
}

impl Who {
    /// The engine, with its own model or another one. A scripted model continues after these answers.
    pub(super) async fn engine(
        &self,
        model: Option<&str>,
        answers: &agent::Answered,
    ) -> Result<Engine, Failure> {
        match self {
            Self::File(file, _) if model.is_some() && !agent::is_agent_file(file) => {
                Err(Failure::input("the model of a scenario cannot be changed"))
            }
            Self::File(file, vars) => {
                agent::load(file, &vars.clone().with_model(model), answers).await
            }
            Self::Model(own, call) => {
                let name = model.unwrap_or(own);
                let call = call.as_for(own, name);
                let engine = call.engine(name, &Tries::default())?.defaults(call.options());
                let policy = default_context(&call.catalog()?, engine.get_model());
                Ok(engine.context_policy(policy))
            }
        }
    }

    /// What will probably fail with this model.
    pub(super) fn warnings(&self, model: &str) -> Vec<String> {
        match self {
            _ if script(model).is_some() => Vec::new(),
            Self::File(file, _) => {
                let odd = AgentFile::read(file).map(|file| file.with_model(model).odd_models());
                odd.into_iter().flatten().map(|warning| warning.message).collect()
            }
            Self::Model(own, call) => {
                call.as_for(own, model).missing_key(model).into_iter().collect()
            }
        }
    }

    /// The agent file, from the root.
    pub(super) fn file(&self) -> Option<String> {
        let Self::File(file, _) = self else { return None };
        let path = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
        Some(path.to_string_lossy().into_owned())
    }

    /// The words and the flags that name it on the command line.
    pub(super) fn words(&self) -> (String, String) {
        match self {
            Self::File(file, vars) => (quoted(&file.to_string_lossy()), vars.flags()),
            Self::Model(model, call) => (format!("-m {}", quoted(model)), call.flags()),
        }
    }
}

/// The name of the newest conversation of a log that this agent file, or no file, began.
pub(super) async fn newest(log: &Arc<Ledger>, file: Option<&str>) -> Result<String, Failure> {
    let mut filter = RunFilter::new().limit(256);
    loop {
        let page = log.runs(filter.clone()).await?;
        for run in &page.runs {
            let Some(id) = &run.session_id else { continue };
            let first = log.read(&run.run_id, 1, 1).await?;
            let fact = first.first().map(store::fact).transpose()?.flatten();
            let began = match &fact {
                Some(Fact::RunStarted { about: Some(about), .. }) => {
                    about.session.as_ref().and_then(|link| link.metadata.get(AGENT))
                }
                _ => None,
            };
            if began.is_none_or(|began| began.as_str() == file) {
                return Ok(id.to_string());
            }
        }
        let Some(next) = page.next else {
            let why = "there is no conversation of this agent in the log to continue";
            return Err(Failure::input(why));
        };
        filter = filter.after(next);
    }
}
