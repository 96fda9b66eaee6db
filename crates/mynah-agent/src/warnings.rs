//! What will probably fail when an agent runs, though its file fits.

use mynah::{Catalog, ModelRef, Options, adapters::presets::Preset};

use crate::{
    AgentFile, FileError,
    file::{Model, ModelTable},
    place::near,
};

/// Settings that many providers know by these names.
const PROVIDER_PARAMS: [&str; 8] = [
    "top_p",
    "top_k",
    "stop",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "parallel_tool_calls",
];

impl AgentFile {
    /// Params whose names look misspelt.
    pub(crate) fn odd_params(&self) -> Vec<FileError> {
        let known: Vec<&str> = Options::NAMES.iter().chain(&PROVIDER_PARAMS).copied().collect();
        let names = self.spec.params.keys().filter(|name| !known.contains(&name.as_str()));
        let odd = names.filter_map(|name| {
            let why = format!(
                "did you mean `{}`? As it is, it goes to the provider",
                near(name, &known)?
            );
            Some(self.source.error(&["params", name], why))
        });
        odd.collect()
    }

    /// Fallbacks of a script, which needs none.
    pub(crate) fn unused_fallback(&self) -> Option<FileError> {
        let why = "not used: a scripted model has no fallback";
        (!self.spec.fallback.is_empty()).then(|| self.source.error(&["fallback"], why))
    }

    /// Warnings about the models: keys that are not set, models that end, and names that no provider may know. [`Agent::warnings`] has them too.
    ///
    /// [`Agent::warnings`]: crate::Agent::warnings
    pub fn odd_models(&self) -> Vec<FileError> {
        let first = std::iter::once((&self.spec.model, "model"));
        let models = first.chain(self.spec.fallback.iter().map(|model| (model, "fallback")));
        let odd = models.flat_map(|(model, key)| {
            let found = [self.missing_key(model, key), catalogued(model.name())];
            let warn =
                move |why: String| self.source.error(&[key], format!("{}: {why}", model.name()));
            found.into_iter().flatten().map(warn)
        });
        odd.collect()
    }

    fn missing_key(&self, model: &Model, key: &str) -> Option<String> {
        let (adapter, _) = self.adapter(model, key).ok()?;
        let own = match model {
            Model::Table(ModelTable { api_key_env: Some(variable), .. }) => Some(variable.clone()),
            // A server of one's own may need none.
            Model::Table(ModelTable { base_url: Some(_), .. }) => return None,
            _ => None,
        };
        let (provider, _) = model.name().split_once(':')?;
        let variables = || Preset::named(provider).map(|it| it.key_variables.join(" or "));
        adapter.check_key().err()?;
        Some(format!("no key is set; set the environment variable {}", own.or_else(variables)?))
    }
}

/// What the catalog has against a model.
fn catalogued(name: &str) -> Option<String> {
    let catalog = Catalog::built_in();
    if let Some(known) = catalog.find(&ModelRef::from(name)) {
        let date = known.shutdown_date.as_ref()?;
        return Some(format!("its provider ends it on {date}; `mynah models` lists others"));
    }
    let (provider, id) = name.split_once(':')?;
    let ids: Vec<&str> = catalog
        .models()
        .filter(|model| model.provider == provider)
        .map(|model| model.id.as_str())
        .collect();
    // Of servers that host the models of others, the catalog lists none.
    let hint = near(id, &ids).map(|near| format!("; did you mean `{provider}:{near}`?"));
    let hint = hint.unwrap_or_else(|| "; `mynah models` lists those that it knows".to_owned());
    (!ids.is_empty()).then(|| format!("the model catalog does not know it{hint}"))
}
