//! The model catalog: limits, capabilities, prices.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};

use crate::{Error, FieldError, Metadata, ModelRef, Pricing, Result, ValidationReason};

/// Facts about one model. Unknown ones are `None` or absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The model's id as the provider spells it, without a date.
    pub id: String,
    /// The company or server.
    pub provider: String,
    /// How many tokens a prompt and its answer may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// How many tokens an answer may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// What the model can do, as in [`ModelRef::capabilities`].
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub capabilities: Metadata,
    /// What tokens cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<Pricing>,
    /// Other ids of the same model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The date of these figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dated: Option<String>,
    /// The day on which the provider ends the model, as YYYY-MM-DD, if that is announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_date: Option<String>,
}

impl ModelInfo {
    /// A model without further facts.
    pub fn new(provider: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            provider: provider.into(),
            context_window: None,
            max_output_tokens: None,
            capabilities: Metadata::new(),
            pricing: None,
            aliases: Vec::new(),
            dated: None,
            shutdown_date: None,
        }
    }

    /// The same model with prices.
    pub fn with_pricing(mut self, pricing: Pricing) -> Self {
        self.pricing = Some(pricing);
        self
    }

    /// The same model under one more id.
    pub fn with_alias(mut self, id: impl Into<String>) -> Self {
        self.aliases.push(id.into());
        self
    }
}

/// A catalog of models. Cheap to clone.
///
/// A model is found by its id or an alias, with its provider before it or without, and with the date of a snapshot behind it:
/// `gpt-4.1-mini`, `openai:gpt-4.1-mini`, `gpt-4.1-mini-2025-04-14`.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Catalog, ModelInfo, Pricing};
///
/// let mini = Catalog::built_in().get("gpt-4.1-mini-2025-04-14").cloned().unwrap();
/// assert_eq!((mini.provider.as_str(), mini.context_window), ("openai", Some(1_047_576)));
///
/// let own = ModelInfo::new("local", "llama3:8b").with_pricing(Pricing::new(0.0, 0.0));
/// let catalog = Catalog::built_in().with_model(own)?;
/// assert!(catalog.get("llama3:8b").is_some());
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Catalog(Arc<Entries>);

#[derive(Clone, Debug, Default)]
struct Entries {
    sources: Vec<String>,
    models: Vec<ModelInfo>,
    /// Ids and aliases, alone and after their provider.
    index: HashMap<String, usize>,
}

/// A server that has the models of many makers.
const ROUTER: &str = "openrouter";

/// A catalog as a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The date of models that have none of their own.
    #[serde(default)]
    dated: Option<String>,
    #[serde(default)]
    sources: Vec<String>,
    models: Vec<ModelInfo>,
}

impl Catalog {
    /// An empty catalog.
    pub fn new() -> Self {
        Self::default()
    }

    /// The current models of the large providers, as of [`ModelInfo::dated`]. `mynah models` lists them.
    pub fn built_in() -> Self {
        static BUILT_IN: LazyLock<Catalog> = LazyLock::new(|| {
            Catalog::new().with_json(include_str!("catalog.json")).unwrap_or_default()
        });
        BUILT_IN.clone()
    }

    /// Adds the models of a file in the format of the built-in one: `{"dated": "2026-11-15",
    /// "models": [{"id": …, "provider": …, "pricing": {"input": …, "output": …}}]}`. A known model
    /// is replaced.
    ///
    /// # Errors
    /// Text that is not such a file, or a model that [`Catalog::with_model`] rejects.
    pub fn with_json(mut self, text: &str) -> Result<Self> {
        let file: File = serde_json::from_str(text)?;
        for (place, mut model) in file.models.into_iter().enumerate() {
            model.dated = model.dated.or_else(|| file.dated.clone());
            self.add(model).map_err(|errors| {
                let place = |error: FieldError| error.under(["models".into(), place.into()]);
                invalid(errors.into_iter().map(place).collect())
            })?;
        }
        Arc::make_mut(&mut self.0).sources.extend(file.sources);
        Ok(self)
    }

    /// Adds one model. A known one is replaced.
    ///
    /// # Errors
    /// A model without an id or a provider, or with a price that is not a non-negative number.
    pub fn with_model(mut self, model: ModelInfo) -> Result<Self> {
        self.add(model).map_err(invalid)?;
        Ok(self)
    }

    fn add(&mut self, model: ModelInfo) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        let names = [("id", &model.id), ("provider", &model.provider)];
        let empty = names.into_iter().filter(|(_, name)| name.is_empty());
        errors.extend(empty.map(|(field, _)| FieldError::new(field, "empty")));
        let prices = model.pricing.iter().flat_map(Pricing::errors);
        errors.extend(prices.map(|error| error.under(["pricing".into()])));
        if !errors.is_empty() {
            return Err(errors);
        }
        let Entries { models, index, .. } = Arc::make_mut(&mut self.0);
        for id in [&model.id].into_iter().chain(&model.aliases) {
            index.insert(id.clone(), models.len());
            index.insert(format!("{}:{id}", model.provider), models.len());
        }
        models.push(model);
        Ok(())
    }

    /// The source of its figures.
    pub fn sources(&self) -> &[String] {
        &self.0.sources
    }

    /// Looks up a model by name.
    pub fn get(&self, name: &str) -> Option<&ModelInfo> {
        let Entries { models, index, .. } = &*self.0;
        let place = index.get(name).or_else(|| index.get(undated(name)?))?;
        models.get(*place)
    }

    /// Looks up a model. If the model names a provider, it must match. An adapter with a name of
    /// its own, such as `openai-chat`, matches its provider. So does a server that has models of
    /// others at their prices: `azure` for a global deployment named after its model, and
    /// `openrouter` for `vendor/model`.
    pub fn find(&self, model: &ModelRef) -> Option<&ModelInfo> {
        // The id may also name the provider.
        let name = model.to_string();
        self.get(&name).or_else(|| {
            let (adapter, id) = name.split_once(':')?;
            let (provider, id) = match adapter {
                "azure" | "azure-responses" | "openai-chat" => ("openai", id.to_owned()),
                "gemini" => ("google", id.to_owned()),
                ROUTER => match id.split_once('/')? {
                    ("anthropic", id) => ("anthropic", id.replace('.', "-")),
                    ("mistralai", id) => ("mistral", id.to_owned()),
                    ("x-ai", id) => ("xai", id.to_owned()),
                    (vendor, id) => (vendor, id.to_owned()),
                },
                _ => return None,
            };
            self.get(&format!("{provider}:{id}"))
        })
    }

    /// Fills in what the model does not state itself. For a model at `openrouter` that is known
    /// from its maker, missing capabilities are not taken over: they may be missing only at the
    /// maker's own server.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::Catalog;
    /// let model = Catalog::built_in().inform("gpt-4.1-mini".into());
    /// assert_eq!(model.limits["context"], 1_047_576);
    /// ```
    #[doc(hidden)]
    pub fn inform(&self, mut model: ModelRef) -> ModelRef {
        let Some(info) = self.find(&model) else { return model };
        let limits = [("context", info.context_window), ("output", info.max_output_tokens)];
        for (name, limit) in limits {
            let limit = limit.filter(|_| !model.limits.contains_key(name));
            model.limits.extend(limit.map(|limit| (name.to_owned(), limit.into())));
        }
        let mut capabilities = info.capabilities.clone();
        if info.provider != ROUTER && model.to_string().starts_with(&format!("{ROUTER}:")) {
            capabilities.retain(|_, value| *value != false && value["enabled"] != false);
        }
        capabilities.extend(std::mem::take(&mut model.capabilities));
        model.capabilities = capabilities;
        model.pricing = model.pricing.or(info.pricing);
        model
    }

    /// All models, in the order in which they were added.
    pub fn models(&self) -> impl Iterator<Item = &ModelInfo> {
        let Entries { models, index, .. } = &*self.0;
        // A replaced model is no longer found.
        let current = |place: &usize, model: &ModelInfo| {
            index.get(&format!("{}:{}", model.provider, model.id)) == Some(place)
        };
        let listed = models.iter().enumerate().filter(move |(place, model)| current(place, model));
        listed.map(|(_, model)| model)
    }
}

fn invalid(errors: Vec<FieldError>) -> Error {
    Error::validation(ValidationReason::InvalidOptions, errors)
}

/// A name without the date of its snapshot: `-2025-04-14`, `-20250929`.
fn undated(name: &str) -> Option<&str> {
    let is_date = |text: &str, pattern: &str| {
        text.len() == pattern.len()
            && text.bytes().zip(pattern.bytes()).all(|(byte, expected)| match expected {
                b'0' => byte.is_ascii_digit(),
                _ => byte == expected,
            })
    };
    ["-0000-00-00", "-00000000"].into_iter().find_map(|pattern| {
        let (model, date) = name.split_at_checked(name.len().checked_sub(pattern.len())?)?;
        is_date(date, pattern).then_some(model)
    })
}
