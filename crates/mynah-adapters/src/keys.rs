//! Where API keys come from.

use std::{
    collections::BTreeMap,
    env, fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use mynah_data::{EngineReason, Error, Result};
use secrecy::{ExposeSecret, SecretString};

/// Finds the key for a call. Clones share what was [set](Keys::set).
///
/// The first of these that is not empty: the key of the call itself, a key that was set here under the provider's name, the
/// provider's environment variables, and the same variables in a `.env` file if one was allowed.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::keys::Keys;
///
/// let keys = Keys::new().with_environment(|name| (name == "MY_KEY").then(|| "from the environment".to_owned()));
/// let found = |keys: &Keys| keys.find("acme", &["MY_KEY"], None).map(|key| key.source().to_owned());
/// assert_eq!(found(&keys)?, "MY_KEY");
/// keys.set("acme", "another");
/// assert_eq!(found(&keys)?, "set");
/// let missing = keys.find("umbrella", &["UMBRELLA_API_KEY"], None).unwrap_err();
/// assert_eq!(missing.metadata()["checked"], serde_json::json!(["call", "set", "UMBRELLA_API_KEY"]));
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone)]
pub struct Keys {
    set: Arc<RwLock<BTreeMap<String, SecretString>>>,
    environment: Arc<Environment>,
    variable: Option<String>,
    dotenv: Option<PathBuf>,
}

type Environment = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A key, and where it was found.
#[derive(Clone)]
pub struct FoundKey {
    key: SecretString,
    source: String,
    is_stored: bool,
}

impl FoundKey {
    /// The key in the clear: for the header that needs it, and nothing else.
    pub fn expose(&self) -> &str {
        self.key.expose_secret()
    }

    /// Where it was found: `call`, `set`, the name of a variable, or that and the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What a variable would hold, found in the files of the provider's own tools.
    #[cfg(feature = "http")]
    pub(crate) fn stored(variable: &str, key: String) -> Self {
        let source = format!("{variable} in the provider's own files");
        Self { key: key.into(), source, is_stored: true }
    }

    /// Whether it was found in the files of the provider's own tools, which also hold the settings
    /// that belong to it.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }
}

impl fmt::Debug for FoundKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoundKey").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Default for Keys {
    fn default() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is where keys enter")]
        let environment = |name: &str| env::var(name).ok();
        Self {
            set: Arc::default(),
            environment: Arc::new(environment),
            variable: None,
            dotenv: None,
        }
    }
}

impl Keys {
    /// Keys from the call and from the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks in this variable instead of the provider's own. A server that needs no key then needs one.
    pub fn with_variable(mut self, name: impl Into<String>) -> Self {
        self.variable = Some(name.into());
        self
    }

    /// Also reads this file, usually `.env`, when a key is needed and was not found before.
    pub fn with_dotenv(mut self, path: impl Into<PathBuf>) -> Self {
        self.dotenv = Some(path.into());
        self
    }

    /// Takes variables from elsewhere than the process's environment.
    pub fn with_environment(
        mut self,
        environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.environment = Arc::new(environment);
        self
    }

    /// Sets the key of a provider, from now on.
    pub fn set(&self, provider: impl Into<String>, key: impl Into<String>) {
        let key = SecretString::from(key.into());
        self.set.write().unwrap_or_else(PoisonError::into_inner).insert(provider.into(), key);
    }

    /// Forgets a key that was set.
    pub fn remove(&self, provider: &str) {
        self.set.write().unwrap_or_else(PoisonError::into_inner).remove(provider);
    }

    /// A variable of the environment, or of the `.env` file if one was allowed, without blanks around it; none if it is empty.
    #[doc(hidden)]
    pub fn variable(&self, name: &str) -> Option<String> {
        let found = (self.environment)(name).map(SecretString::from).and_then(trimmed);
        let found = found.or_else(|| in_file(self.dotenv.as_deref()?, name).and_then(trimmed));
        found.map(|value| value.expose_secret().to_owned())
    }

    #[cfg(feature = "http")]
    pub(crate) fn wants_key(&self) -> bool {
        self.variable.is_some()
    }

    /// The key for a call of this provider: `call`, if the call has one, or what is found elsewhere.
    ///
    /// # Errors
    /// `missing_key`, with `provider` and the places that were `checked`, by name.
    pub fn find(&self, provider: &str, variables: &[&str], call: Option<&str>) -> Result<FoundKey> {
        self.look(provider, variables, call).ok_or_else(|| self.missing(provider, variables))
    }

    /// The same; none if there is no key.
    pub(crate) fn look(
        &self,
        provider: &str,
        variables: &[&str],
        call: Option<&str>,
    ) -> Option<FoundKey> {
        let found = |source: &str, key: Option<SecretString>| {
            let key = key.and_then(trimmed)?;
            Some(FoundKey { key, source: source.to_owned(), is_stored: false })
        };
        let set = || {
            let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
            set.get(provider).cloned()
        };
        let in_environment = |name: &&str| found(name, (self.environment)(name).map(Into::into));
        let in_dotenv = |name: &&str| {
            let path = self.dotenv.as_deref()?;
            found(&in_path(name, path), in_file(path, name))
        };
        let own = self.variable.as_deref();
        let variables = own.as_slice().iter().chain(variables.iter().filter(|_| own.is_none()));
        found("call", call.map(SecretString::from))
            .or_else(|| found("set", set()))
            .or_else(|| variables.clone().find_map(in_environment))
            .or_else(|| variables.clone().find_map(in_dotenv))
    }

    pub(crate) fn missing(&self, provider: &str, variables: &[&str]) -> Error {
        let own = self.variable.as_deref();
        let variables = own.as_ref().map_or(variables, std::slice::from_ref);
        let advice = variables.first().map(|name| format!("; set {name}")).unwrap_or_default();
        let named = variables.iter().map(|name| (*name).to_owned());
        let in_file = self
            .dotenv
            .iter()
            .flat_map(|path| variables.iter().map(|name| in_path(name, path)).collect::<Vec<_>>());
        let named: Vec<String> = named.chain(in_file).collect();
        let told = ["the call", "what the program set"].map(str::to_owned);
        let places: Vec<String> = told.into_iter().chain(named.iter().cloned()).collect();
        let absent = self.dotenv.as_ref().filter(|path| !path.exists());
        let absent = absent.map(|path| format!("; {} does not exist", path.display()));
        let checked: Vec<String> =
            ["call", "set"].map(str::to_owned).into_iter().chain(named).collect();
        Error::engine(EngineReason::MissingKey)
            .with_message(format!(
                "engine error: missing_key: no API key for {provider}{advice} (looked at {}{})",
                places.join(", "),
                absent.unwrap_or_default()
            ))
            .with_provider(provider)
            .with("checked", checked)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("variable", &self.variable)
            .field("dotenv", &self.dotenv)
            .finish_non_exhaustive()
    }
}

/// A variable in a file, as errors name it.
fn in_path(name: &str, path: &Path) -> String {
    format!("{name} in {}", path.display())
}

/// Trims the value, such as the line end of the file that it was read from; none if nothing is
/// left.
fn trimmed(value: SecretString) -> Option<SecretString> {
    let text = value.expose_secret().trim();
    (!text.is_empty()).then(|| text.into())
}

/// The value of a variable in a file of `NAME=VALUE` lines. A file that cannot be read has none.
fn in_file(path: &Path, name: &str) -> Option<SecretString> {
    let text = std::fs::read_to_string(path).ok()?;
    // Some editors begin a file with a mark.
    let mut values = text.trim_start_matches('\u{feff}').lines().filter_map(|line| {
        let line = line.trim();
        let (key, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
        (key.trim() == name && !line.starts_with('#')).then(|| unquoted(value.trim()))
    });
    // As in a shell, the last assignment counts.
    values.next_back().map(|value| SecretString::from(value.to_owned()))
}

/// A quoted value; without quotes, everything until a comment.
fn unquoted(value: &str) -> &str {
    let inner = |quote| Some(value.strip_prefix(quote)?.split_once(quote)?.0);
    let begins_comment = |at: &usize| !value[..*at].ends_with(|c: char| !c.is_whitespace());
    let comment = || value.match_indices('#').map(|(at, _)| at).find(begins_comment);
    inner('"').or_else(|| inner('\'')).unwrap_or_else(|| &value[..comment().unwrap_or(value.len())])
}
