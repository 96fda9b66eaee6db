//! Which model is called, and how.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use mynah::{
    Catalog, Engine, RetryPolicy,
    adapters::{http::HttpAdapter, keys::Keys},
};

use crate::{Failure, input, play};

/// What every verb that calls a model takes.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// The model: ADAPTER:MODEL such as openai-chat:gpt-4.1-mini, or scripted:FILE, which plays a scenario's scripts.
    #[arg(long, short, value_name = "ADAPTER:MODEL", env = "MYNAH_MODEL")]
    model: Option<String>,
    /// Call this server instead of the adapter's own.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Add no version such as v1 to the base URL.
    #[arg(long, requires = "base_url")]
    exact_base_url: bool,
    /// Take the key from this environment variable instead of the adapter's own.
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Look for the key in a file too: .env, or the one that is named.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = ".env")]
    dotenv: Option<PathBuf>,
    /// Try again so many times after a failure that may pass; 2 unless told otherwise.
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// The longest that the call may take. A server that sends nothing for 5 minutes is given up without it.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    catalog: CatalogArgs,
}

/// What every verb that knows models takes.
#[derive(Args)]
pub(crate) struct CatalogArgs {
    /// Take limits and prices of models from this file first; docs/cli.md shows its form.
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
}

impl CatalogArgs {
    /// What is known of models.
    pub(crate) fn catalog(&self) -> Result<Catalog, Failure> {
        let built_in = Catalog::built_in();
        let Some(file) = &self.catalog else { return Ok(built_in) };
        let known = built_in.with_json(&input::read(file)?);
        known.map_err(|error| Failure::input(format!("{}: {error}", file.display())))
    }
}

impl ModelArgs {
    /// The engine that calls it.
    pub(crate) fn engine(&self) -> Result<Engine, Failure> {
        let Some(name) = self.model.as_deref().filter(|name| !name.is_empty()) else {
            return Err(Failure::input(
                "no model: give --model ADAPTER:MODEL, such as --model anthropic:claude-sonnet-5, or set MYNAH_MODEL",
            ));
        };
        let mut engine = match name.strip_prefix("scripted:") {
            Some(file) => play::agent(file.as_ref(), &[])?,
            None => self.call_server(name)?,
        };
        engine = engine.catalog(self.catalog.catalog()?);
        if let Some(retries) = self.retries {
            engine = engine.retry(RetryPolicy::attempts(retries.saturating_add(1)));
        }
        if let Some(limit) = self.timeout {
            let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            engine = engine.param("request_timeout", millis.max(1));
        }
        Ok(engine)
    }

    fn call_server(&self, name: &str) -> Result<Engine, Failure> {
        let (mut adapter, model) = HttpAdapter::for_model(name)?;
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
        Ok(Engine::new(adapter.with_keys(keys)).model(model))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|limit| !limit.is_zero());
    seconds.ok_or_else(|| "give seconds, such as 30 or 0.5".to_owned())
}
