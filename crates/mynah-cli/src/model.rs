//! Which model is called, and how.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use clap::Args;
use mynah::{
    Adapter, BoxFuture, Catalog, Engine, EngineReason, Error, ErrorKind, Metadata, ModelCall,
    ModelRef, ModelStream, Options, Request, RetryPolicy,
    adapters::{
        http::HttpAdapter,
        keys::Keys,
        presets::{PRESETS, Preset},
    },
    log::About,
};
use serde_json::Value;

use crate::{Failure, input, play, text::quoted};

/// How a model is called: what every verb that calls one takes.
#[derive(Args, Clone, Default)]
pub(crate) struct CallArgs {
    /// Call this server instead of the provider's.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Do not add a version segment, such as v1, to the base URL.
    #[arg(long, requires = "base_url")]
    exact_base_url: bool,
    /// Read the API key from this environment variable instead of the provider's.
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Look for the API key in a file too [default file: .env].
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = ".env")]
    dotenv: Option<PathBuf>,
    /// Retry this often after a failure that may be temporary [default: 2].
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Limit the time of the call, in seconds. By default a server is given up that is silent for 5 minutes, or sends only keep-alives
    /// for 30.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    catalog: CatalogArgs,
}

/// What every verb that knows models takes.
#[derive(Args, Clone, Default)]
pub(crate) struct CatalogArgs {
    /// Take limits and prices of models from this file first.
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
}

impl CatalogArgs {
    /// The model catalog.
    pub(crate) fn catalog(&self) -> Result<Catalog, Failure> {
        let built_in = Catalog::built_in();
        let Some(file) = &self.catalog else { return Ok(built_in) };
        let known = built_in.with_json(&input::read_json(file)?);
        known.map_err(|error| Failure::input(format!("{}: {error}", file.display())))
    }

    /// The adapter and the model that a name means. One without an adapter is refused, with that of a model that is known.
    fn model(&self, name: &str) -> Result<(HttpAdapter, ModelRef), Failure> {
        HttpAdapter::for_model(name).or_else(|error| {
            let catalog = self.catalog()?;
            // The id of a model may have a colon in it.
            let ids = [Some(name), name.split_once(':').map(|(_, id)| id)].into_iter().flatten();
            let mut models = ids
                .flat_map(|id| PRESETS.iter().map(move |preset| ModelRef::from((preset.name, id))));
            Err(match models.find(|model| catalog.find(model).is_some()) {
                Some(known) => Failure::input(format!(
                    "{name:?} does not name a model and its adapter; did you mean {known}?"
                ))
                .because(error),
                None => Failure::of(&error),
            })
        })
    }
}

/// Where a run keeps the server among the options of the adapter.
const BASE_URL: &str = "base_url";
const EXACT: &str = "exact_base_url";

/// How often a model was called.
#[derive(Clone, Default)]
pub(crate) struct Tries(Arc<AtomicU32>);

impl Tries {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An adapter that counts how often it is called.
struct Counted(Arc<HttpAdapter>, Tries);

impl Adapter for Counted {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn preflight(&self, request: &Request, call: &ModelCall) -> mynah::Result<()> {
        self.0.preflight(request, call)
    }

    fn open(
        self: Arc<Self>,
        request: Request,
        call: ModelCall,
    ) -> BoxFuture<mynah::Result<ModelStream>> {
        self.1.0.fetch_add(1, Ordering::Relaxed);
        Arc::clone(&self.0).open(request, call)
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        self.0.needs_structured_finalize(request)
    }

    fn schema_fit(&self) -> Option<u32> {
        self.0.schema_fit()
    }

    fn default_retry(&self) -> RetryPolicy {
        self.0.default_retry()
    }

    fn first_event_timeout(&self, call: &ModelCall) -> Option<Duration> {
        self.0.first_event_timeout(call)
    }
}

/// The file whose scripts a model of this name plays, if it is one that does.
pub(crate) fn script(name: &str) -> Option<&Path> {
    name.strip_prefix("scripted:").map(Path::new)
}

/// Why no model can continue a run, neither the given one nor the run's own; none if one can.
pub(crate) fn cannot_go_on(about: &About, name: Option<&str>) -> Option<String> {
    if name.is_none() && Preset::named(&about.adapter).is_none() {
        return Some(format!("no server is known for its model, which is {:?}", about.adapter));
    }
    // Those that were only described to its model are in its records.
    let is_code = |name: &&str| !about.described.iter().any(|described| described == name);
    let tools = about.tools.iter().map(|tool| tool.name.as_str()).filter(is_code);
    let tools: Vec<&str> = tools.collect();
    let told = || format!("only the program that began it has its tools: {}", tools.join(", "));
    (!tools.is_empty()).then(told)
}

impl CallArgs {
    /// The engine that calls a model of this name, and counts its attempts.
    pub(crate) fn engine(&self, name: &str, tries: &Tries) -> Result<Engine, Failure> {
        let engine = match script(name) {
            Some(file) => play::agent(file, &[], false)?,
            None => {
                let (adapter, model) = self.catalog.model(name)?;
                Engine::new(Counted(Arc::new(self.reach(adapter)?), tries.clone())).model(model)
            }
        };
        Ok(engine.catalog(self.catalog.catalog()?))
    }

    /// The model catalog.
    pub(crate) fn catalog(&self) -> Result<Catalog, Failure> {
        self.catalog.catalog()
    }

    /// The engine that resumes a run: with the given model, or else with its own.
    pub(crate) fn engine_of(
        &self,
        about: &About,
        name: Option<&str>,
        tries: &Tries,
    ) -> Result<Engine, Failure> {
        let (adapter, model) = match name {
            Some(name) => {
                let (adapter, model) = self.catalog.model(name)?;
                (adapter, Some(model))
            }
            None => {
                let model = about.model.as_deref().map(ModelRef::from);
                (HttpAdapter::named(&about.adapter)?, model)
            }
        };
        let adapter = self.reach(adapter)?;
        // Without one the call would fail, and the run with it.
        adapter.check_key().map_err(|error| {
            let error = self.spoken(error);
            Failure::input(error.to_string()).because(error)
        })?;
        let mut engine =
            Engine::new(Counted(Arc::new(adapter), tries.clone())).catalog(self.catalog.catalog()?);
        if let Some(model) = model {
            engine = engine.model(model);
        }
        Ok(engine.defaults(Options::from_json(Value::Object(about.params.clone()))?))
    }

    /// The adapter with the flags for its server and its key.
    fn reach(&self, mut adapter: HttpAdapter) -> Result<HttpAdapter, Failure> {
        if let Some(url) = &self.base_url {
            adapter = adapter.with_base_url(url)?;
        }
        if self.exact_base_url {
            adapter = adapter.with_version("");
        }
        let mut keys = Keys::new();
        if let Some(variable) = &self.api_key_env {
            keys = keys.with_variable(variable);
        }
        if let Some(path) = &self.dotenv {
            keys = keys.with_dotenv(path);
        }
        Ok(adapter.with_keys(keys))
    }

    /// That a call of this model would find no key; none if it would find one.
    pub(crate) fn missing_key(&self, name: &str) -> Option<String> {
        let (adapter, _) = self.catalog.model(name).ok()?;
        let error = self.reach(adapter).ok()?.check_key().err()?;
        Some(self.spoken(error).to_string())
    }

    /// The flags of a model for another one. They are about the server of one provider: another provider has its own server and key.
    pub(crate) fn as_for(&self, own: &str, other: &str) -> Self {
        let adapter = |name: &str| name.split_once(':').map(|(adapter, _)| adapter.to_owned());
        if adapter(own) == adapter(other) {
            return self.clone();
        }
        Self {
            base_url: None,
            exact_base_url: false,
            api_key_env: None,
            dotenv: self.dotenv.clone(),
            retries: self.retries,
            timeout: self.timeout,
            catalog: CatalogArgs { catalog: self.catalog.catalog.clone() },
        }
    }

    /// Refuses a prompt that was probably meant as the file of `--dotenv`.
    pub(crate) fn check_said(&self, said: &str) -> Result<(), Failure> {
        let is_file = || said.ends_with(".env") || Path::new(said).is_file();
        match &self.dotenv {
            Some(file) if file == Path::new(".env") && is_file() => Err(Failure::input(format!(
                "{said} would be said to the model; as a file of keys it is --dotenv={}",
                quoted(said)
            ))),
            _ => Ok(()),
        }
    }

    /// The recorded settings of the call itself.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new();
        if let Some(retries) = self.retries {
            options = options.retry(RetryPolicy::attempts(retries.saturating_add(1)));
        }
        if let Some(limit) = self.timeout {
            options = options.request_timeout(limit);
        }
        options
    }

    /// The server that is called, if a flag or the environment names one. A query, which may hold a
    /// key, is left out.
    fn server(&self, adapter: &str) -> Option<String> {
        let url = match &self.base_url {
            Some(url) => url.clone(),
            // What the environment says wrong fails the call.
            None => self.reached(adapter)?.environment_url().ok()??,
        };
        Some(url.split_once(['?', '#']).map_or(url.clone(), |(url, _)| format!("{url}?...")))
    }

    fn reached(&self, adapter: &str) -> Option<HttpAdapter> {
        self.reach(HttpAdapter::named(adapter).ok()?).ok()
    }

    /// The adapter options, completed with endpoint settings of flags or the environment. A run
    /// records them, so it stays in its region.
    pub(crate) fn adapter_opts(&self, adapter: &str, known: Option<&Value>) -> Option<Metadata> {
        let known = known.and_then(Value::as_object).cloned().unwrap_or_default();
        let mut opts = self.reached(adapter).map(|adapter| adapter.environment_opts())?;
        opts.extend(known.clone());
        if let Some(url) = self.server(adapter) {
            opts.insert(BASE_URL.to_owned(), url.into());
            opts.insert(EXACT.to_owned(), self.exact_base_url.into());
        }
        (opts != known).then_some(opts)
    }

    /// The server that a run keeps; none if it was the adapter's own.
    pub(crate) fn kept(about: &About) -> Self {
        let opt = |name| about.options.get("adapter_opts").and_then(|opts| opts.get(name));
        Self {
            base_url: opt(BASE_URL).and_then(Value::as_str).map(str::to_owned),
            exact_base_url: opt(EXACT).and_then(Value::as_bool).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The flags that name the server of a run again, if neither these flags nor the environment do
    /// and the model is the run's own.
    pub(crate) fn missing_server(&self, about: &About, name: Option<&str>) -> Option<String> {
        let adapter = name.and_then(|name| Some(name.split_once(':')?.0));
        let is_its_own = adapter.is_none_or(|adapter| adapter == about.adapter);
        let kept = Self::kept(about);
        let address = |url: Option<String>| url.map(|url| url.trim_end_matches('/').to_owned());
        // The environment names no exact address.
        let is_named = || {
            self.base_url.is_some()
                || (!kept.exact_base_url
                    && address(self.server(&about.adapter)) == address(kept.base_url.clone()))
        };
        let is_missing = is_its_own && kept.base_url.is_some() && !is_named();
        is_missing.then(|| kept.flags())
    }

    /// The same error, in the words of these flags.
    pub(crate) fn spoken(&self, error: Error) -> Error {
        let said = error.message().into_owned();
        if error.kind() == ErrorKind::Engine(EngineReason::MissingKey) {
            // A key cannot be given in these places from here.
            let said = said.replace("the call, what the program set, ", "");
            let flags = "--api-key-env VAR names another variable, --dotenv=FILE a file with it";
            return error.with_message(format!("{said}; {flags}"));
        }
        // The server is named if its error did not name it.
        let is_nowhere = error.server().is_some() && error.status() == Some(404);
        if is_nowhere && self.base_url.is_some() {
            return error.with_message(format!("{said}; is that the path for --base-url?"));
        }
        match self.timeout {
            Some(_) => error.with_message(said.replace("request_timeout", "--timeout")),
            None => error,
        }
    }

    /// The flags that say how the server is reached.
    pub(crate) fn flags(&self) -> String {
        let exact = self.exact_base_url.then(|| " --exact-base-url".to_owned());
        let said = [
            (" --base-url ", self.base_url.as_deref().map(Cow::from)),
            (" --api-key-env ", self.api_key_env.as_deref().map(Cow::from)),
            (" --dotenv=", self.dotenv.as_deref().map(Path::to_string_lossy)),
            (" --catalog ", self.catalog.catalog.as_deref().map(Path::to_string_lossy)),
        ];
        let said = said.into_iter();
        said.filter_map(|(flag, value)| Some(format!("{flag}{}", quoted(&value?))))
            .chain(exact)
            .collect()
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|limit| !limit.is_zero());
    seconds.ok_or_else(|| "give seconds, such as 30 or 0.5".to_owned())
}
