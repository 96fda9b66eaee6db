//! Which model, and what is known of it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Metadata, Usage};

/// A model by its id, with what a catalog knows of it.
///
/// An id given as text is kept as it is: `gpt-4.1-mini`, `openai:gpt-4.1-mini`, `llama3:8b`.
///
/// ```
/// use mynah_data::ModelRef;
/// assert_eq!(ModelRef::from("fake:m").to_string(), "fake:m");
/// assert_eq!(ModelRef::from(("openai", "gpt-x")).to_string(), "openai:gpt-x");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelRef {
    /// The company or server.
    #[serde(default)]
    pub provider: Option<String>,
    /// The model's id as the provider spells it.
    pub id: String,
    /// What the model can do, such as `{"tools": {"enabled": true}, "json_native": true, "vision": false}`.
    #[serde(default)]
    pub capabilities: Metadata,
    /// Limits in tokens: `context`, `output`.
    #[serde(default)]
    pub limits: Metadata,
    /// What tokens cost.
    #[serde(default)]
    pub pricing: Option<Pricing>,
    /// Anything else.
    #[serde(default)]
    pub metadata: Metadata,
}

impl ModelRef {
    /// A model of which only the id is known.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            provider: None,
            id: id.into(),
            capabilities: Metadata::new(),
            limits: Metadata::new(),
            pricing: None,
            metadata: Metadata::new(),
        }
    }

    /// The same model with prices.
    pub fn with_pricing(mut self, pricing: Pricing) -> Self {
        self.pricing = Some(pricing);
        self
    }

    /// The same model with one more capability.
    pub fn with_capability(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.capabilities.insert(name.to_owned(), value.into());
        self
    }
}

impl From<&str> for ModelRef {
    fn from(id: &str) -> Self {
        Self::new(id)
    }
}

impl From<String> for ModelRef {
    fn from(id: String) -> Self {
        Self::new(id)
    }
}

impl From<(&str, &str)> for ModelRef {
    fn from((provider, id): (&str, &str)) -> Self {
        Self { provider: Some(provider.to_owned()), ..Self::new(id) }
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.provider {
            Some(provider) => write!(f, "{provider}:{}", self.id),
            None => f.write_str(&self.id),
        }
    }
}

/// Prices in US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Pricing {
    /// Input tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Input tokens read from the provider's cache; as `input` where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Input tokens written to the provider's cache; as `input` where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl Pricing {
    /// Prices without a cache discount.
    pub fn new(input: f64, output: f64) -> Self {
        Self { input, output, cached_input: None, cache_write: None }
    }

    /// The same prices with that of cached input.
    pub fn with_cached_input(mut self, cached_input: f64) -> Self {
        self.cached_input = Some(cached_input);
        self
    }

    /// Fills in the costs that the provider did not report.
    ///
    /// ```
    /// use mynah_data::{Pricing, Usage};
    /// let mut usage = Usage { input_tokens: Some(1000), output_tokens: Some(500), ..Usage::default() };
    /// Pricing::new(0.15, 0.6).apply(&mut usage);
    /// assert_eq!(usage.total_cost, Some(0.00045));
    /// ```
    pub fn apply(&self, usage: &mut Usage) {
        const MILLION: f64 = 1_000_000.0;
        if let (None, Some(input)) = (usage.input_cost, usage.input_tokens) {
            let cached = usage.cached_input_tokens.unwrap_or(0).min(input);
            let written = usage.cache_write_tokens.unwrap_or(0).min(input - cached);
            let fresh = input - cached - written;
            let cost = fresh as f64 * self.input
                + cached as f64 * self.cached_input.unwrap_or(self.input)
                + written as f64 * self.cache_write.unwrap_or(self.input);
            usage.input_cost = Some(cost / MILLION);
        }
        if let (None, Some(output)) = (usage.output_cost, usage.output_tokens) {
            usage.output_cost = Some(output as f64 * self.output / MILLION);
        }
        if let (None, Some(input), Some(output)) =
            (usage.total_cost, usage.input_cost, usage.output_cost)
        {
            usage.total_cost = Some(input + output);
        }
    }
}
