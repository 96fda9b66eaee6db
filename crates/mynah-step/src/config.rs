//! What a loop of one's own runs with.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use mynah_data::{Budget, Catalog};
use mynah_log::{Log, Record};

use crate::{Adapter, MetricsSink, RetryPolicy, SideEffectErrors, SystemWorld, Tool, World};

/// How many tools [`Context::call_tools`](crate::Context::call_tools) runs side by side unless told otherwise.
pub const DEFAULT_MAX_PARALLEL_TOOLS: usize = 8;

/// What a [`Context`](crate::Context) needs for a run. It does not change while the run goes on.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where records are kept.
    pub log: Arc<dyn Log>,
    /// The run.
    pub run_id: String,
    /// Whether the run happens, goes on, or is performed again.
    pub mode: Mode,
    /// Who answers; needed for model calls.
    pub adapter: Option<Arc<dyn Adapter>>,
    /// The tools that can be called.
    pub tools: Registry,
    /// What the run may spend, its resumption included. Time is for the loop to keep: `max_wall_clock_ms` is refused.
    pub budget: Option<Budget>,
    /// What models cost that come without a price of their own.
    pub catalog: Catalog,
    /// Where time and chance come from. A replay never asks.
    pub world: Arc<dyn World>,
    /// How many tools run side by side.
    pub max_parallel_tools: usize,
    /// The time limit of a try of a tool, unless the tool has its own.
    pub tool_timeout: Duration,
    /// When a model call that failed before its first event is tried again; the adapter's own policy unless said.
    pub retry: Option<RetryPolicy>,
    /// Who is told how long things take. A replay tells nobody.
    pub metrics: Option<Arc<dyn MetricsSink>>,
    /// Whether an answer must come with the hash of what the provider sent.
    pub require_raw_response_hash: bool,
    /// The longest that a record may take to be safe.
    pub emit_timeout: Option<Duration>,
    /// What becomes of side effects that fail.
    pub side_effect_errors: SideEffectErrors,
}

/// Whether a run happens, goes on, or is performed again.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Mode {
    /// A new run happens.
    #[default]
    Live,
    /// A run that has these records, and no end, goes on.
    Resume(Vec<Record>),
    /// These records are performed again; nothing is written.
    Replay(Vec<Record>),
}

impl Config {
    /// A new run in this log, with nothing to call.
    pub fn new<L: Log + Clone>(log: &L, run_id: impl Into<String>) -> Self {
        Self {
            log: Arc::new(log.clone()),
            run_id: run_id.into(),
            mode: Mode::Live,
            adapter: None,
            tools: Registry::default(),
            budget: None,
            catalog: Catalog::built_in(),
            world: Arc::new(SystemWorld),
            max_parallel_tools: DEFAULT_MAX_PARALLEL_TOOLS,
            tool_timeout: Duration::from_secs(30),
            retry: None,
            metrics: None,
            require_raw_response_hash: false,
            emit_timeout: None,
            side_effect_errors: SideEffectErrors::default(),
        }
    }

    /// The same, answered by this adapter.
    pub fn adapter(mut self, adapter: impl Adapter) -> Self {
        self.adapter = Some(Arc::new(adapter));
        self
    }

    /// The same with these tools. Of two with one name the later counts.
    pub fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools = Registry::new(tools);
        self
    }

    /// The same with this budget.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The same in this mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("run_id", &self.run_id)
            .field("tools", &self.tools)
            .field("max_parallel_tools", &self.max_parallel_tools)
            .finish_non_exhaustive()
    }
}

/// Tools by their names. It does not change once it is made, and is cheap to share.
///
/// ```
/// use mynah_step::{Registry, Tool};
/// use serde_json::json;
///
/// let registry = Registry::new(["write", "read"].map(|name| Tool::new(name, "", json!({}))));
/// assert_eq!(registry.names(), ["read", "write"]);
/// assert!(registry.get("delete").is_none());
/// ```
#[derive(Clone, Default)]
pub struct Registry(Arc<HashMap<String, Tool>>);

impl Registry {
    /// These tools. Of two with one name the later counts.
    pub fn new(tools: impl IntoIterator<Item = Tool>) -> Self {
        Self(Arc::new(tools.into_iter().map(|tool| (tool.name().to_owned(), tool)).collect()))
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.get(name)
    }

    /// All names, in alphabetical order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.names()).finish()
    }
}
