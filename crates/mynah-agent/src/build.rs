//! From a file to an engine.

use std::{
    collections::BTreeMap,
    env,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use mynah::{
    Approval, Budget, Catalog, ContextPolicy, Engine, Fallback, ModelRef, OnUnknownTool, Options,
    ResponseFormat, Tool, adapters::http::HttpAdapter,
};
use serde_json::Value;

use crate::{
    Agent, FileError,
    agents::{EngineOf, Nesting, is_plain},
    file::{
        Context, ContextTable, Model, ModelTable, Older, OutputSchema, Permission, Prompt, Shell,
        ShellTable, Spec,
    },
    place::{self, Source, near, suggestion},
    prompt,
};

/// How many model calls a run may make if the file has no limit.
const TURNS: u32 = 50;

/// How many tokens a prompt may have if the context window of the model is not known.
const UNKNOWN_WINDOW: u64 = 32_000;

/// How deep agents may be nested at most.
const MAX_DEPTH: u32 = 8;

/// Names that are no params, and the keys that set them.
const OTHER_KEYS: [(&str, &str); 10] = [
    ("deadline", "budget.seconds"),
    ("context_policy", "context"),
    ("budget_note", "budget.note"),
    ("model", "model"),
    ("system", "system"),
    ("tools", "tools"),
    ("budget", "budget"),
    ("max_turns", "budget.turns"),
    ("response_format", "output"),
    ("api_key", "model = { name, api_key_env }"),
];

/// Names that are no params, because the command or the engine sets them.
const NOT_PARAMS: [&str; 6] = ["messages", "mode", "agent", "session_id", "request_id", "params"];

/// A file that was read, before it is an [`Agent`].
///
/// ```no_run
/// use mynah_agent::AgentFile;
///
/// # async fn f() -> Result<(), mynah_agent::FileError> {
/// let agent = AgentFile::read("agent.toml")?.var("language", "French").build().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct AgentFile {
    pub(crate) source: Source,
    pub(crate) spec: Spec,
    vars: BTreeMap<String, String>,
    /// Where it stands among agents that have each other.
    pub(crate) nesting: Nesting,
}

impl AgentFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is not TOML, or has keys or values that do not fit.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let text = place::read(path).map_err(|error| Source::unreadable(path, &error))?;
        Self::parse(path, text)
    }

    /// Reads a text as if it were in a file at this path.
    ///
    /// # Errors
    /// Text that is not TOML, or has keys or values that do not fit.
    pub fn parse(path: impl Into<PathBuf>, text: impl Into<String>) -> Result<Self, FileError> {
        let source = Source::new(path, text);
        let spec: Spec = toml::from_str(&source.text).map_err(|error| source.misfit(&error))?;
        let nesting = Nesting::of(&source.file, spec.agent_depth);
        Ok(Self { source, spec, vars: BTreeMap::new(), nesting })
    }

    /// An agent that this file describes in a table.
    pub(crate) fn inline(&self, table: &[&str], spec: Spec, nesting: Nesting) -> Self {
        let mut source = self.source.clone();
        source.table.extend(table.iter().map(|&key| key.to_owned()));
        Self { source, spec, vars: BTreeMap::new(), nesting }
    }

    /// Sets a variable of the system prompt. It overrides the value in the file's `vars`.
    pub fn var(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.vars.insert(name.into(), value.into());
        self
    }

    /// Replaces the model. Its fallbacks stay, and so does its server if the adapter is the same. Agents that take the model of this one
    /// have the new one too.
    ///
    /// ```
    /// use mynah_agent::AgentFile;
    ///
    /// let file = AgentFile::parse("agent.toml", "model = 'openai:gpt-5.4'")?;
    /// assert_eq!(file.with_model("openai:gpt-5.4-mini").model(), "openai:gpt-5.4-mini");
    /// # Ok::<(), mynah_agent::FileError>(())
    /// ```
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        let model = model.into();
        let adapter = |name: &str| name.split_once(':').map(|(adapter, _)| adapter.to_owned());
        self.spec.model = match self.spec.model {
            own if own.name() == model => own,
            Model::Table(table) if adapter(&table.name) == adapter(&model) => {
                Model::Table(ModelTable { name: model, price: None, context_window: None, ..table })
            }
            _ => Model::Short(model),
        };
        self
    }

    /// The agent's name.
    pub fn name(&self) -> String {
        let stem = || self.source.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let table = || self.source.table.last().cloned();
        self.spec.name.clone().or_else(table).or_else(stem).unwrap_or_default()
    }

    /// The name of the first model in the list.
    pub fn model(&self) -> &str {
        self.spec.model.name()
    }

    /// That the model cannot be used, with its place in the file.
    pub fn unusable_model(&self, why: impl Into<String>) -> FileError {
        self.source.unreachable(&["model"], why)
    }

    /// The variables of a prompt in the file that have no value.
    pub fn unset_vars(&self) -> Vec<String> {
        let Some(Prompt::Short(text)) = &self.spec.system else { return Vec::new() };
        let mut vars = self.spec.vars.clone();
        vars.extend(self.vars.clone());
        let mut unset = Vec::new();
        while let Err(name) = prompt::render(text, &vars) {
            vars.insert(name.clone(), String::new());
            unset.push(name);
        }
        unset
    }

    /// A path of the file, relative to its folder.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let folder = self.source.file.parent().filter(|folder| *folder != Path::new(""));
        folder.unwrap_or(Path::new(".")).join(path)
    }

    /// Builds the agent and connects to its MCP servers. The connections live as long as the
    /// agent's engine.
    ///
    /// # Errors
    /// Anything that the file names and that is not there: an adapter, a folder, a file, a variable, a server.
    pub async fn build(&self) -> Result<Agent, FileError> {
        self.build_with(&|_: &Self| Ok::<_, FileError>(None)).await
    }

    /// Makes the agent with an engine that already has its model. The models of the file are not used; those of its agents are.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub async fn build_on(&self, engine: Engine) -> Result<Agent, FileError> {
        let of = |file: &Self| Ok::<_, FileError>(file.is_outermost().then(|| engine.clone()));
        self.build_with(&of).await
    }

    /// Makes the agent with engines that already have their models: the function is called for the agent and for each agent beneath it. If it
    /// returns none, the models are those of the file.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use mynah_agent::{AgentFile, FileError};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), FileError> {
    /// let text = "model = 'x:y'\n[agents.research]\ndescription = 'Looks facts up.'";
    /// let file = AgentFile::parse("agent.toml", text)?;
    /// let scripted = |_: &AgentFile| Ok::<_, FileError>(Some(Engine::new(Scripted::default())));
    /// let agent = file.build_with(&scripted).await?;
    /// assert_eq!(agent.agents[0].name, "research");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`build`](Self::build), and those of the function.
    pub async fn build_with<E: From<FileError>>(
        &self,
        engine: &EngineOf<'_, E>,
    ) -> Result<Agent, E> {
        let mut warnings = self.odd_params();
        if let Some(model) = self.spec.fallback.iter().find(|model| is_scripted(model.name())) {
            let why = format!("{}: a script cannot be a fallback, only the `model`", model.name());
            return Err(self.source.error(&["fallback"], why).into());
        }
        let own = match engine(self)? {
            Some(own) if is_scripted(self.model()) => {
                let own = self.informed(own);
                self.check_price(own.get_model().is_some_and(|it| it.pricing.is_some()))?;
                warnings.extend(self.unused_fallback());
                own
            }
            Some(own) => own,
            None => {
                let model = self.spec.model.informed(ModelRef::from(self.model()));
                let own = self.engine()?;
                self.check_price(model.pricing.is_some())?;
                warnings.extend(self.odd_models());
                own
            }
        };
        let own = self.configured(own)?;
        let mut offered = self.ready_made()?;
        let agents = self.agents(engine, &offered).await?;
        offered.extend(agents.iter().map(|(_, tool)| (tool.clone(), Permission::Allow)));
        // Servers are started last: only for a file that has nothing else wrong.
        offered.extend(self.servers().await?);
        let engine = own.tools(self.permitted(offered)?);
        let agents = agents.into_iter().map(|(agent, _)| agent).collect();
        Ok(Agent { name: self.name(), model: self.model().to_owned(), engine, agents, warnings })
    }

    /// Whether the models can be asked: their adapters are known, and their addresses are ones.
    ///
    /// # Errors
    /// The first that cannot, with its place.
    pub fn check_models(&self) -> Result<(), FileError> {
        self.engine().map(drop)
    }

    /// The engine with the models of the file.
    fn engine(&self) -> Result<Engine, FileError> {
        let (first, id) = self.adapter(&self.spec.model, "model")?;
        if self.spec.fallback.is_empty() {
            return Ok(Engine::new(first).model(id));
        }
        let mut all = Fallback::new(first);
        for model in &self.spec.fallback {
            let (next, id) = self.adapter(model, "fallback")?;
            all = all.or(next, id);
        }
        Ok(Engine::new(all).model(id))
    }

    /// An engine that has its script, with the price and the context window that the file gives it.
    fn informed(&self, engine: Engine) -> Engine {
        match &self.spec.model {
            Model::Table(ModelTable { price, context_window, .. })
                if price.is_some() || context_window.is_some() =>
            {
                let model = engine.get_model().cloned();
                let model = model.unwrap_or_else(|| ModelRef::new("scripted"));
                let model = self.spec.model.informed(model);
                engine.model(model)
            }
            _ => engine,
        }
    }

    /// Refuses a limit in dollars, also one of an agent above, for a model whose price is not known.
    fn check_price(&self, is_known: bool) -> Result<(), FileError> {
        let is_own = self.spec.budget.usd.is_some();
        let name = self.model();
        if is_known || !(is_own || self.nesting.limits_usd) {
            return Ok(());
        }
        let (key, whose): (&[&str], _) = match is_own {
            true => (&["budget", "usd"], "this limit"),
            false => (&["model"], "`budget.usd` of the agent above"),
        };
        let why = format!(
            "the price of {name} is not known, so {whose} cannot be enforced; use a model with a known price (`mynah models` lists them), limit `total_tokens` \
             or `turns` instead, or give the price in the file: model = {{ name = {name:?}, price = {{ input = DOLLARS, output = DOLLARS }} }}, per million tokens"
        );
        Err(self.source.error(key, why))
    }

    /// The engine with everything of the file but its tools.
    fn configured(&self, engine: Engine) -> Result<Engine, FileError> {
        self.check_names()?;
        let mut engine = engine
            .defaults(self.params()?)
            .budget(self.budget()?)
            // The budget counts turns, and a run that it ends can be resumed.
            .max_turns(u32::MAX)
            // A model that guesses a name can correct itself.
            .on_unknown_tool(OnUnknownTool::Answer);
        if self.spec.budget.note {
            engine = engine.budget_note(true);
        }
        if let Some(policy) = self.context() {
            engine = engine.context_policy(policy);
        }
        if let Some(depth) = self.spec.agent_depth {
            if depth > MAX_DEPTH {
                let why = format!("agents may be nested {MAX_DEPTH} deep at most");
                return Err(self.source.error(&["agent_depth"], why));
            }
            engine = engine.max_agent_depth(depth);
        }
        if let Some(system) = self.system()? {
            engine = engine.system(system);
        }
        if let Some(output) = &self.spec.output {
            let name = output.name.as_deref().unwrap_or("answer");
            if !is_plain(name) {
                let why = "the name of a schema has at most 64 letters, digits, `_` and `-`";
                return Err(self.source.error(&["output", "name"], why));
            }
            let schema = self.schema(&output.schema)?;
            engine = engine.response_format(ResponseFormat::lenient_json_schema(name, schema));
        }
        Ok(engine)
    }

    /// Refuses names that nothing could use.
    fn check_names(&self) -> Result<(), FileError> {
        if self.spec.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(self.source.error(&["name"], "the name is empty; leave it out"));
        }
        let is_name = |name: &&String| !name.is_empty() && !name.contains(['=', '\0']);
        let servers = self.spec.mcp.iter().flat_map(|(server, it)| {
            it.env.iter().map(move |name| (vec!["mcp", server.as_str(), "env"], name))
        });
        let own = self.spec.env.iter().map(|name| (vec!["env"], name));
        match own.chain(servers).find(|(_, name)| !is_name(name)) {
            Some((key, _)) => {
                let why = "give names alone; values come from the environment";
                Err(self.source.error(&key, why))
            }
            None => Ok(()),
        }
    }

    /// How the conversation is shortened, unless it is sent whole.
    fn context(&self) -> Option<ContextPolicy> {
        let table = match &self.spec.context {
            None => ContextTable::default(),
            Some(Context::Short(older)) => ContextTable { older: *older, ..Default::default() },
            Some(Context::Table(table)) => table.clone(),
        };
        if table.older == Older::Keep {
            return None;
        }
        let mut policy =
            ContextPolicy::new(table.max_tokens.map_or_else(|| self.window(), NonZeroU64::get))
                .summarise(table.older == Older::Summarise);
        policy.keep_turns = table.keep_turns.unwrap_or(policy.keep_turns);
        policy.clear_tool_results = table.clear_tool_results.unwrap_or(policy.clear_tool_results);
        Some(policy)
    }

    /// How many tokens a prompt may have if the file has no limit.
    fn window(&self) -> u64 {
        let models = std::iter::once(&self.spec.model).chain(&self.spec.fallback);
        let models: Vec<ModelRef> =
            models.map(|model| model.informed(ModelRef::from(model.name()))).collect();
        default_context(&Catalog::built_in(), &models).max_tokens
    }

    /// The adapter of a model that stands at a key, and what is known of the model.
    pub(crate) fn adapter(
        &self,
        model: &Model,
        key: &str,
    ) -> Result<(HttpAdapter, ModelRef), FileError> {
        model.adapter().map_err(|why| self.source.error(&[key], why))
    }

    fn params(&self) -> Result<Options, FileError> {
        for name in self.spec.params.keys() {
            if let Some((_, key)) = OTHER_KEYS.iter().find(|(other, _)| other == name) {
                let why = format!("not a param: the key `{key}` sets it");
                return Err(self.source.error(&["params", name], why));
            }
            if NOT_PARAMS.contains(&name.as_str()) {
                let why = "not a param: it cannot be set in a file";
                return Err(self.source.error(&["params", name], why));
            }
        }
        let params = self.spec.params.clone().into_iter().collect();
        let options = Options::from_json(Value::Object(params));
        options.and_then(|options| options.check_values().map(|()| options)).map_err(|error| {
            match error.field_errors().first() {
                Some(wrong) => {
                    let name = wrong.path_text();
                    self.source.error(&["params", &name], misfit(&name, &wrong.code))
                }
                None => self.source.error(&["params"], error.to_string()),
            }
        })
    }

    fn budget(&self) -> Result<Budget, FileError> {
        let limits = &self.spec.budget;
        if limits.turns == Some(0) {
            let why = "give 1 or more: a turn is a call of the model";
            return Err(self.source.error(&["budget", "turns"], why));
        }
        let mut budget = Budget::new().max_turns(limits.turns.unwrap_or(TURNS).into());
        if let Some(usd) = limits.usd {
            if !usd.is_finite() || usd < 0.0 {
                let why = "give dollars, such as 0.50";
                return Err(self.source.error(&["budget", "usd"], why));
            }
            budget = budget.max_usd(usd);
        }
        budget.max_tool_calls = limits.tool_calls.map(u64::from);
        budget.max_input_tokens = limits.input_tokens;
        budget.max_output_tokens = limits.output_tokens;
        budget.max_total_tokens = limits.total_tokens;
        budget.max_wall_clock_ms = limits.seconds.map(|seconds| u64::from(seconds) * 1000);
        Ok(budget)
    }

    fn system(&self) -> Result<Option<String>, FileError> {
        let (text, key): (_, &[&str]) = match &self.spec.system {
            None => (String::new(), &["system"]),
            Some(Prompt::Short(text)) => (text.clone(), &["system"]),
            Some(Prompt::Table(prompt)) => {
                let key = &["system", "file"];
                (self.read_named(&prompt.file, key)?, key)
            }
        };
        let mut vars = self.spec.vars.clone();
        vars.extend(self.vars.clone());
        let rendered = prompt::render(&text, &vars).map_err(|name| {
            let why = format!(
                "the variable `{name}` has no value; set it under [vars], or give --var {name}=VALUE"
            );
            self.source.error(key, why)
        })?;
        let is_used = |name: &str| {
            let others = vars.iter().filter(|(other, _)| *other != name);
            let others = others.map(|(other, value)| (other.clone(), value.clone())).collect();
            prompt::render(&text, &others).is_err()
        };
        // A misspelt name would otherwise be ignored.
        if let Some(unused) = vars.keys().find(|name| !is_used(name)) {
            let key: &[&str] =
                if self.spec.vars.contains_key(unused) { &["vars", unused] } else { &["system"] };
            let why = format!("the system prompt has no variable `{unused}`");
            return Err(self.source.error(key, why));
        }
        Ok(self.spec.system.is_some().then_some(rendered))
    }

    fn schema(&self, schema: &OutputSchema) -> Result<Value, FileError> {
        let key = ["output", "schema"];
        let schema = match schema {
            OutputSchema::Table(schema) => Value::Object(schema.clone()),
            OutputSchema::Short(file) => serde_json::from_str(&self.read_named(file, &key)?)
                .map_err(|error| self.source.error(&key, format!("{file}: {error}")))?,
        };
        match Tool::new("answer", "", schema.clone()).schema_error() {
            None => Ok(schema),
            Some(why) => {
                let why = why.rsplit_once("cannot be used: ").map_or(why, |(_, why)| why);
                Err(self.source.error(&key, format!("this is no JSON Schema: {why}")))
            }
        }
    }

    fn read_named(&self, file: &str, key: &[&str]) -> Result<String, FileError> {
        let path = self.path(file);
        place::read(&path).map_err(|error| self.source.unreadable_named(key, &path, &error))
    }

    fn ready_made(&self) -> Result<Vec<(Tool, Permission)>, FileError> {
        let spec = &self.spec.tools;
        let mut offered: Vec<(Tool, Permission)> = Vec::new();
        if let Some(files) = &spec.files {
            let wrong = |error: mynah::Error| {
                self.source.unreachable(&["tools", "files", "root"], error.to_string())
            };
            let root = mynah_tools::files(self.path(&files.root)).map_err(wrong)?;
            let reading = root.read_only();
            offered.extend(root.read_write().into_iter().map(|tool| {
                let is_reading = reading.iter().any(|other| other.name() == tool.name());
                (tool, if is_reading { Permission::Allow } else { files.write })
            }));
        }
        if let Some(shell) = &spec.shell {
            let (permission, table) = match shell {
                Shell::Short(permission) => (*permission, None),
                Shell::Table(table) => (table.permission, Some(table)),
            };
            offered.push((self.shell(table)?, permission));
        }
        if spec.fetch != Permission::Deny {
            let wrong =
                |error: mynah::Error| self.source.error(&["tools", "fetch"], error.to_string());
            offered.push((mynah_tools::fetch().tool().map_err(wrong)?, spec.fetch));
        }
        offered.push((mynah_tools::calculator(), spec.calculator));
        offered.push((mynah_tools::now(), spec.now));
        if spec.ask_user {
            offered.push((mynah_tools::ask_user(), Permission::Allow));
        }
        Ok(offered)
    }

    /// The tools that may be used, as their permissions say.
    fn permitted(&self, offered: Vec<(Tool, Permission)>) -> Result<Vec<Tool>, FileError> {
        let all: Vec<&str> = offered.iter().map(|(tool, _)| tool.name()).collect();
        if let Some(name) = self.spec.approvals.keys().find(|name| !all.contains(&name.as_str())) {
            let has = |(_, permission): &&(Tool, Permission)| *permission != Permission::Deny;
            let names: Vec<&str> =
                offered.iter().filter(has).map(|(tool, _)| tool.name()).collect();
            let why = match (near(name, &all), &names[..]) {
                (None, []) => format!("no tool is called `{name}`; the agent has none"),
                (None, names) => format!("no tool is called{}", suggestion(name, names)),
                (Some(_), _) => format!("no tool is called{}", suggestion(name, &all)),
            };
            return Err(self.source.error(&["approvals", name], why));
        }
        let permitted = offered.into_iter().filter_map(|(tool, permission)| {
            match self.spec.approvals.get(tool.name()).copied().unwrap_or(permission) {
                Permission::Allow => Some(tool.approval(Approval::Never)),
                Permission::Ask => Some(tool.approval(Approval::Ask)),
                Permission::Deny => None,
            }
        });
        Ok(permitted.collect())
    }

    fn shell(&self, table: Option<&ShellTable>) -> Result<Tool, FileError> {
        let dir = self.path(table.and_then(|table| table.dir.as_deref()).unwrap_or(""));
        if !dir.is_dir() {
            let why = format!("there is no folder {}", dir.display());
            return Err(self.source.unreachable(&["tools", "shell", "dir"], why));
        }
        let mut shell = mynah_tools::shell().dir(dir);
        let inherited = mynah_mcp::minimal_environment();
        for (name, value) in
            inherited.filter_map(|(name, value)| Some((name, value.into_string().ok()?)))
        {
            shell = shell.env(name, value);
        }
        if let Some(seconds) = table.and_then(|table| table.timeout) {
            shell = shell.timeout(Duration::from_secs(seconds.get().into()));
        }
        for name in &self.spec.env {
            shell = shell.env(name, self.variable(name, &["env"])?);
        }
        Ok(shell.tool())
    }

    /// The value of an environment variable.
    pub(crate) fn variable(&self, name: &str, key: &[&str]) -> Result<String, FileError> {
        let value = env::var_os(name).and_then(|value| value.into_string().ok());
        value.ok_or_else(|| {
            self.source.error(key, format!("the environment variable {name} is not set"))
        })
    }
}

/// Returns the context policy of agents that have none of their own: old messages are dropped when a prompt has more than three quarters of the
/// smallest context window among these models, which leaves room for the answer, or more than 32,000 tokens if no window is known.
///
/// ```
/// use mynah::{Catalog, ModelRef};
/// use mynah_agent::default_context;
///
/// let unknown = ModelRef::from("llamacpp:local");
/// assert_eq!(default_context(&Catalog::built_in(), [&unknown]).max_tokens, 32_000);
/// ```
pub fn default_context<'a>(
    catalog: &Catalog,
    models: impl IntoIterator<Item = &'a ModelRef>,
) -> ContextPolicy {
    let window = |model: &ModelRef| catalog.inform(model.clone()).limits.get("context")?.as_u64();
    let windows = models.into_iter().filter_map(window);
    ContextPolicy::new(windows.min().map_or(UNKNOWN_WINDOW, |window| window / 4 * 3))
}

/// Whether a model plays the scripts of a file. Only the command has such models.
pub(crate) fn is_scripted(model: &str) -> bool {
    model.starts_with("scripted:")
}

/// What to give in place of a value that breaks a rule.
fn misfit(name: &str, code: &str) -> String {
    let give = match (name, code) {
        ("retry", "invalid_shape") => "a table, such as { max_attempts = 3 }",
        ("tool_choice", "invalid_shape") => "\"auto\", \"none\" or \"required\", or a table",
        ("prompt_cache", "invalid_shape") => "true, or a table",
        ("temperature", "out_of_range") => "a number from 0 to 2, such as 0.7",
        (_, "must_be_positive") => "a whole number, 1 or more",
        (_, "not_a_string") => "a text",
        (_, "not_a_boolean") => "true or false",
        (_, "not_a_map") => "a table",
        (_, code) => return format!("this value does not fit: {code}"),
    };
    format!("give {give}")
}
