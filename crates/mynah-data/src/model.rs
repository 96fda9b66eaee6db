//! Model references: an id and facts about the model.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CacheRetention, FieldError, Metadata, Usage};

/// A model by its id, with facts from a catalog.
///
/// An id given as text is kept as it is: `gpt-4.1-mini`, `openai:gpt-4.1-mini`, `llama3:8b`.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::ModelRef;
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
    /// A model with only an id.
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
///
/// Tokens read from a cache or written to one are parts of the prompt, and cost what is said for
/// them; as `input` by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Pricing {
    /// Input tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Input tokens read from the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Input tokens written to the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Input tokens written to the provider's cache for an hour, where that has a price of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<f64>,
    /// The prices of a call with a long prompt, where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_prompt: Option<LongPrompt>,
    /// How long input is cached if the provider does not report it.
    #[serde(default, skip_serializing_if = "is_short")]
    pub cache_retention: CacheRetention,
}

fn is_short(retention: &CacheRetention) -> bool {
    *retention == CacheRetention::Short
}

/// What all tokens of a call cost whose prompt is longer than `above` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LongPrompt {
    /// The longest prompt that is not long.
    pub above: u64,
    /// Input tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Input tokens read from the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Input tokens written to the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Input tokens written to the provider's cache for an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<f64>,
}

impl Pricing {
    /// Prices without a cache discount.
    pub fn new(input: f64, output: f64) -> Self {
        Self {
            input,
            output,
            cached_input: None,
            cache_write: None,
            cache_write_1h: None,
            long_prompt: None,
            cache_retention: CacheRetention::Short,
        }
    }

    /// The same prices with that of cached input.
    pub fn with_cached_input(mut self, cached_input: f64) -> Self {
        self.cached_input = Some(cached_input);
        self
    }

    /// The same prices with that of input written to the cache.
    pub fn with_cache_write(mut self, cache_write: f64) -> Self {
        self.cache_write = Some(cache_write);
        self
    }

    /// The same prices for calls that cache for this long. If the provider reports both durations,
    /// each has its own price.
    pub fn for_retention(mut self, retention: CacheRetention) -> Self {
        self.cache_retention = retention;
        self
    }

    /// Prices that are not finite numbers from 0 up, by name.
    #[doc(hidden)]
    pub fn errors(&self) -> Vec<FieldError> {
        let named = [
            ("input", Some(self.input)),
            ("output", Some(self.output)),
            ("cached_input", self.cached_input),
            ("cache_write", self.cache_write),
            ("cache_write_1h", self.cache_write_1h),
        ];
        let legal = |price: f64| price.is_finite() && price >= 0.0;
        let broken = named.into_iter().filter(|(_, price)| price.is_some_and(|p| !legal(p)));
        let long = self.long_prompt.iter().flat_map(|long| long.prices().errors());
        broken
            .map(|(name, _)| FieldError::new(name, "out_of_range"))
            .chain(long.map(|error| error.under(["long_prompt".into()])))
            .collect()
    }

    /// Whether list prices apply to a call with these options or this report of the provider. They
    /// do not if it is served in a separate tier, faster, or in one region alone (`service_tier`,
    /// `speed`, `inference_geo`).
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{Metadata, Pricing};
    /// let tier = |tier: &str| Metadata::from_iter([("service_tier".to_owned(), tier.into())]);
    /// assert!(Pricing::is_listed(&tier("default")) && !Pricing::is_listed(&tier("flex")));
    /// ```
    #[doc(hidden)]
    pub fn is_listed(said: &Metadata) -> bool {
        const NAMES: [&str; 4] = ["service_tier", "serviceTier", "speed", "inference_geo"];
        const LISTED: [&str; 8] = [
            "",
            "auto",
            "default",
            "global",
            "not_available",
            "on_demand",
            "standard",
            "standard_only",
        ];
        let said = NAMES.iter().filter_map(|name| said.get(*name));
        let mut words = said.filter_map(|said| said.get("type").unwrap_or(said).as_str());
        words.all(|word| LISTED.iter().any(|listed| word.eq_ignore_ascii_case(listed)))
    }

    /// Fills in the costs that the provider did not report. A cost is never negative. Usage whose `extra` names an
    /// `unpriced_model` gets none: that model answered in the place of the one that has these prices. Nor does usage of a call
    /// that was not served [at list prices](Pricing::is_listed).
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{Pricing, Usage};
    /// let mut usage = Usage::new(1000, 500);
    /// Pricing::new(0.15, 0.6).apply(&mut usage);
    /// assert_eq!(usage.total_cost, Some(0.00045));
    /// ```
    pub fn apply(&self, usage: &mut Usage) {
        const MILLION: f64 = 1_000_000.0;
        // Not a number is not more than nothing either.
        let dollars = |amount: f64| Some((amount / MILLION).max(0.0));
        let legal = |cost: &f64| cost.is_finite() && *cost >= 0.0;
        usage.input_cost = usage.input_cost.filter(legal);
        usage.output_cost = usage.output_cost.filter(legal);
        usage.total_cost = usage.total_cost.filter(legal);
        if usage.extra.contains_key("unpriced_model") || !Self::is_listed(&usage.extra) {
            return;
        }
        let prices = self.for_prompt(usage.input_tokens.unwrap_or(0));
        if let (None, Some(input)) = (usage.input_cost, usage.input_tokens) {
            let cached = usage.cached_input_tokens.unwrap_or(0).min(input);
            let written = usage.cache_write_tokens.unwrap_or(0).min(input - cached);
            let fresh = input - cached - written;
            let for_an_hour = match (written_for_an_hour(usage), self.cache_retention) {
                (None, CacheRetention::Long) => written,
                (told, _) => told.unwrap_or(0).min(written),
            };
            let write = prices.cache_write.unwrap_or(prices.input);
            let cost = fresh as f64 * prices.input
                + cached as f64 * prices.cached_input.unwrap_or(prices.input)
                + (written - for_an_hour) as f64 * write
                + for_an_hour as f64 * prices.cache_write_1h.unwrap_or(write);
            usage.input_cost = dollars(cost);
        }
        if let (None, Some(output)) = (usage.output_cost, usage.output_tokens) {
            usage.output_cost = dollars(output as f64 * prices.output);
        }
        if let (None, Some(input), Some(output)) =
            (usage.total_cost, usage.input_cost, usage.output_cost)
        {
            usage.total_cost = Some(input + output);
        }
    }

    /// The prices of a call whose prompt is this long.
    fn for_prompt(&self, tokens: u64) -> Self {
        match &self.long_prompt {
            Some(long) if tokens > long.above => long.prices(),
            _ => *self,
        }
    }
}

/// The tokens that were cached for an hour, if the provider reports them: a place in the prompt may
/// ask for another duration than the request does. As Anthropic and Bedrock count them.
fn written_for_an_hour(usage: &Usage) -> Option<u64> {
    if let Some(Value::Object(created)) = usage.extra.get("cache_creation") {
        let hour = created.get("ephemeral_1h_input_tokens").and_then(Value::as_u64);
        return hour.or_else(|| created.contains_key("ephemeral_5m_input_tokens").then_some(0));
    }
    let details = usage.extra.get("cacheDetails")?.as_array()?.iter();
    let hours = details.filter(|detail| detail.get("ttl").is_some_and(|ttl| ttl == "1h"));
    let hours = hours.filter_map(|detail| detail.get("inputTokens")?.as_u64());
    Some(hours.fold(0, u64::saturating_add))
}

impl LongPrompt {
    /// Prices of calls with more than `above` input tokens, without a cache discount.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{LongPrompt, Pricing, Usage};
    /// let mut pricing = Pricing::new(1.25, 10.0);
    /// pricing.long_prompt = Some(LongPrompt::new(200_000, 2.5, 15.0));
    /// let cost = |tokens: u64| {
    ///     let mut usage = Usage::new(tokens, 0);
    ///     pricing.apply(&mut usage);
    ///     usage.total_cost
    /// };
    /// assert_eq!((cost(200_000), cost(400_000)), (Some(0.25), Some(1.0)));
    /// ```
    pub fn new(above: u64, input: f64, output: f64) -> Self {
        Self { above, input, output, cached_input: None, cache_write: None, cache_write_1h: None }
    }

    fn prices(&self) -> Pricing {
        Pricing {
            input: self.input,
            output: self.output,
            cached_input: self.cached_input,
            cache_write: self.cache_write,
            cache_write_1h: self.cache_write_1h,
            long_prompt: None,
            cache_retention: CacheRetention::Short,
        }
    }
}
