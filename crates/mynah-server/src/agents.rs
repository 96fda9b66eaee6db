//! The agents that perform runs.

use std::{fmt, sync::Arc};

use axum::{extract::State, http::Uri};
use mynah::{
    BoxFuture, Engine, ModelRef, Options, RecordedTools, Result as MynahResult, RunId,
    log::{About, Fact, Log},
};
use serde_json::{Value, json};

use crate::{
    App,
    problem::{Problem, Result},
    query::Query,
    reply,
};

/// Makes the engine for a run of a log, or for a new run.
type Make = dyn Fn(Arc<dyn Log>, Option<RunId>) -> BoxFuture<MynahResult<Engine>> + Send + Sync;

/// An engine with a name, by which requests choose it.
#[derive(Clone)]
pub struct Agent {
    pub(crate) name: String,
    engine: Engine,
    make: Option<Arc<Make>>,
    pub(crate) keeps_events: bool,
}

impl Agent {
    /// An agent that performs every run with this engine.
    pub fn new(name: impl Into<String>, engine: Engine) -> Self {
        Self { name: name.into(), engine, make: None, keeps_events: false }
    }

    /// Builds a new engine for each run: for the run with this id, or for a new one. A scripted
    /// model needs this, because it continues after the answers that a run has.
    pub fn made_by(
        mut self,
        make: impl Fn(Arc<dyn Log>, Option<RunId>) -> BoxFuture<MynahResult<Engine>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.make = Some(Arc::new(make));
        self
    }

    /// The engine for a run, or for a new one.
    pub(crate) async fn engine(
        &self,
        log: &Arc<dyn Log>,
        run: Option<&str>,
    ) -> MynahResult<Engine> {
        let engine = match &self.make {
            Some(make) => make(Arc::clone(log), run.map(RunId::from)).await?,
            None => self.engine.clone(),
        };
        let mut options = Options::new();
        if self.keeps_events {
            options = options.durable_events();
        }
        // A run whose tools do not run stays one.
        if let Some(run) = run
            && let Some(answers) = RecordedTools::named_in(log.as_ref(), run).await?
        {
            options = options.tool_executor(RecordedTools::of_run(log.as_ref(), &answers).await?);
        }
        Ok(engine.defaults(options))
    }

    fn described(&self) -> Value {
        let tools = self.engine.resolve_tools(&Options::new());
        let tools = tools.iter().map(|tool| {
            let spec = tool.spec();
            json!({"name": spec.name, "description": spec.description, "asks": spec.manual})
        });
        let tools: Vec<Value> = tools.collect();
        json!({"name": self.name, "model": self.model(), "tools": tools})
    }

    pub(crate) fn model(&self) -> Option<String> {
        self.engine.get_model().map(ToString::to_string)
    }

    /// Another model of the agent's provider: `NAME`, or `PROVIDER:NAME`.
    pub(crate) fn other_model(&self, name: &str) -> Result<ModelRef> {
        let own = self.engine.get_model().and_then(|model| model.provider.as_deref());
        match (own, name.split_once(':')) {
            (Some(own), None) => Ok((own, name).into()),
            (Some(own), Some((provider, id))) if provider == own && !id.is_empty() => {
                Ok((own, id).into())
            }
            (Some(own), Some(_)) => Err(Problem::bad(format!(
                "model: agent {} calls {own}, so {name} cannot be called; give {own}:NAME",
                self.name
            ))),
            (None, None) if self.engine.get_model().is_some() => Ok(name.into()),
            // Its answers are not of the model that such a run would name.
            (None, _) => Err(Problem::bad(format!(
                "model: the model of agent {} has no provider, so {name} cannot be called",
                self.name
            ))),
        }
    }

    /// Whether a run that ran with this could be its own: the same tools, and the same model if the records name one.
    fn is_of(&self, about: &About) -> bool {
        let tools = self.engine.resolve_tools(&Options::new());
        let is_model = match (&about.model, self.engine.get_model()) {
            (Some(recorded), Some(own)) => {
                recorded.ends_with(&own.to_string()) || own.to_string().ends_with(recorded)
            }
            _ => true,
        };
        // A branch may have been continued with another model.
        (is_model || about.parent.is_some())
            && tools.iter().map(|tool| tool.name()).eq(about.tools.iter().map(|tool| &*tool.name))
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The agents of a server.
#[derive(Debug, Default)]
pub(crate) struct Agents(pub(crate) Vec<Agent>);

impl Agents {
    /// The agent with this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Agent> {
        let found = self.0.iter().find(|agent| agent.name == name);
        found.ok_or_else(|| {
            Problem::absent(match self.0.is_empty() {
                true => "this server has no agents".to_owned(),
                false => format!("there is no agent {name}; give one of {}", self.names()),
            })
        })
    }

    fn names(&self) -> String {
        self.0.iter().map(|agent| &*agent.name).collect::<Vec<_>>().join(", ")
    }

    /// The agent with this name, or the only one.
    pub(crate) fn chosen(&self, name: Option<&str>) -> Result<&Agent> {
        match (name, &self.0[..]) {
            (Some(name), _) => self.named(name),
            (None, [only]) => Ok(only),
            (None, []) => self.named(""),
            (None, _) => Err(Problem::bad("agent: this server has several; name one")),
        }
    }

    /// The agent with this name, or the one that could have begun the run.
    pub(crate) async fn of_run(
        &self,
        name: Option<&str>,
        log: &dyn Log,
        run: &str,
    ) -> Result<&Agent> {
        match (name, &self.0[..]) {
            (None, [_, _, ..]) => {
                let first = log.read(run, 1, 1).await?;
                let first = first.first().and_then(|record| record.fact().ok().flatten());
                first.as_ref().and_then(|fact| self.likely(fact)).ok_or_else(|| {
                    let names = self.names();
                    Problem::bad(format!(
                        "agent: none of this server fits the run; name one of {names}"
                    ))
                })
            }
            _ => self.chosen(name),
        }
    }

    /// The name of the agent that could have begun a run with this first record.
    pub(crate) fn name_of(&self, first: Option<&Fact>) -> Option<&str> {
        self.likely(first?).map(|agent| &*agent.name)
    }

    /// The agent that the first record names; if it names none, the one with the run's model and tools.
    pub(crate) fn likely(&self, first: &Fact) -> Option<&Agent> {
        let Fact::RunStarted { about: Some(about), .. } = first else { return None };
        match named(first) {
            Some(name) => self.0.iter().find(|agent| agent.name == name),
            None => self.0.iter().find(|agent| agent.is_of(about)),
        }
    }
}

/// The agent that a first record names.
fn named(first: &Fact) -> Option<&str> {
    let Fact::RunStarted { about: Some(about), .. } = first else { return None };
    about.options.get("agent").and_then(Value::as_str)
}

/// `GET /v1/agents`
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result {
    Query::of(&uri).end()?;
    let agents: Vec<Value> = app.agents.0.iter().map(Agent::described).collect();
    Ok(reply::ok(&json!({"actions": app.allows_actions, "agents": agents})))
}
