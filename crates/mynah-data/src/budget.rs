//! Budgets: what a run may spend, and the error when it would spend more.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Number, Value};

use crate::FieldError;

/// The limits of a run, over all its model calls and all its processes. A limit that is not set
/// does not apply.
///
/// A limit is passed by more than its value, not by exactly its value. Zero allows nothing; `None`
/// is no limit. Tokens are counted as the provider reports them. Until it does, they are estimated
/// at three characters per token.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::Budget;
/// use serde_json::json;
///
/// let budget = Budget::new().max_turns(3).max_usd(0.5);
/// assert_eq!(json!(budget), json!({"max_usd": 0.5, "max_turns": 3}));
/// assert_eq!(Budget::from_json(&json!({"max_turns": 3, "max_usd": 0.5})), Ok(budget));
///
/// let errors = Budget::from_json(&json!({"max_turns": -1})).unwrap_err();
/// assert_eq!(errors[0].to_string(), "max_turns: out_of_range");
/// ```
#[doc(alias = "BudgetConfig")]
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Budget {
    /// Tokens of all prompts. Before a call its prompt is estimated; the provider's count then
    /// replaces the estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// Tokens of all answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Tokens of all prompts and answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_total_tokens: Option<u64>,
    /// US dollars. Tokens count at their list prices, unless the provider reports what a call cost.
    /// Other charges do not count.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "dollars")]
    pub max_usd: Option<f64>,
    /// Milliseconds in which the run is active. Time spent waiting for a person does not count.
    ///
    /// A process measures its own time. For earlier processes it uses the times of their records:
    /// work after the last record does not count, and a clock that was changed while they ran does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wall_clock_ms: Option<u64>,
    /// Model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u64>,
    /// Tool calls. A call that is retried, or re-executed by another process, counts once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u64>,
    /// Allows `max_usd` for a model whose price is unknown. Then only costs that the provider
    /// reports count.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_unknown_price: bool,
}

/// JSON cannot express NaN. It must not be mistaken for an absent limit.
fn dollars<S: Serializer>(amount: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match amount {
        Some(amount) if !amount.is_finite() => serializer.collect_str(amount),
        amount => amount.serialize(serializer),
    }
}

impl Budget {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the narrower of two budgets, limit by limit.
    #[must_use]
    #[doc(hidden)]
    pub fn narrowed(self, other: &Self) -> Self {
        self.by_limit(other, true)
    }

    /// Returns the wider of two budgets, limit by limit.
    #[must_use]
    #[doc(hidden)]
    pub fn widened(self, other: &Self) -> Self {
        self.by_limit(other, false)
    }

    fn by_limit(mut self, other: &Self, is_narrow: bool) -> Self {
        let choose = |a: bool, b: bool| if is_narrow { a && b } else { a || b };
        fn limit<T: PartialOrd>(own: &mut Option<T>, other: Option<T>, is_narrow: bool) {
            let is_less = match (&*own, &other) {
                (Some(own), Some(other)) => other < own,
                (own, _) => own.is_none(),
            };
            if is_less == is_narrow {
                *own = other;
            }
        }
        limit(&mut self.max_input_tokens, other.max_input_tokens, is_narrow);
        limit(&mut self.max_output_tokens, other.max_output_tokens, is_narrow);
        limit(&mut self.max_total_tokens, other.max_total_tokens, is_narrow);
        limit(&mut self.max_usd, other.max_usd, is_narrow);
        limit(&mut self.max_wall_clock_ms, other.max_wall_clock_ms, is_narrow);
        limit(&mut self.max_turns, other.max_turns, is_narrow);
        limit(&mut self.max_tool_calls, other.max_tool_calls, is_narrow);
        self.allow_unknown_price = choose(self.allow_unknown_price, other.allow_unknown_price);
        self
    }

    /// Returns the part of this budget that one of several consumers may spend, by its place from 0. All parts together are at most the budget.
    /// Time is not divided.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::Budget;
    ///
    /// let budget = Budget::new().max_turns(5).max_usd(1.0);
    /// let turns = [0, 1].map(|place| budget.clone().share(place, 2).max_turns);
    /// assert_eq!(turns, [Some(3), Some(2)]);
    /// assert_eq!(budget.share(0, 2).max_usd, Some(0.5));
    /// ```
    #[must_use]
    pub fn share(mut self, place: usize, of: usize) -> Self {
        let of = of.max(1);
        let (place, count) = (place as u64, of as u64);
        let part = |cap: u64| cap / count + u64::from(place < cap % count);
        self.max_input_tokens = self.max_input_tokens.map(part);
        self.max_output_tokens = self.max_output_tokens.map(part);
        self.max_total_tokens = self.max_total_tokens.map(part);
        self.max_usd = self.max_usd.map(|usd| usd / of as f64);
        self.max_turns = self.max_turns.map(part);
        self.max_tool_calls = self.max_tool_calls.map(part);
        self
    }

    crate::setters! { self => self;
        /// The same budget with this limit on the tokens of all prompts.
        max_input_tokens(tokens: u64) = Some(tokens);

        /// The same budget with this limit on the tokens of all answers.
        max_output_tokens(tokens: u64) = Some(tokens);

        /// The same budget with this limit on all tokens.
        max_total_tokens(tokens: u64) = Some(tokens);

        /// The same budget with this limit in US dollars.
        max_usd(dollars: f64) = Some(dollars);

        /// The same budget with this limit on the time in which the run does something.
        max_wall_clock_ms(milliseconds: u64) = Some(milliseconds);

        /// The same budget with this limit on model calls.
        max_turns(turns: u64) = Some(turns);

        /// The same budget with this limit on tool calls.
        max_tool_calls(calls: u64) = Some(calls);
    }

    /// The same budget, also for a model whose price is unknown.
    pub fn allow_unknown_price(mut self) -> Self {
        self.allow_unknown_price = true;
        self
    }

    /// Whether this budget permits an amount that passed a limit of another budget.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{Breach, BreachTime, Budget, Limit};
    ///
    /// let breach = Breach::new(Limit::Turns, 2u64, 3u64, BreachTime::PreCall);
    /// assert!(Budget::new().max_turns(3).admits(&breach));
    /// assert!(!Budget::new().max_turns(2).admits(&breach));
    /// assert!(Budget::new().max_tool_calls(1).admits(&breach));
    /// ```
    #[doc(hidden)]
    pub fn admits(&self, breach: &Breach) -> bool {
        let count = |cap: Option<u64>| cap.map(|cap| cap as f64);
        let cap = match breach.limit {
            Limit::InputTokens => count(self.max_input_tokens),
            Limit::OutputTokens => count(self.max_output_tokens),
            Limit::TotalTokens => count(self.max_total_tokens),
            Limit::Usd => self.max_usd,
            Limit::Turns => count(self.max_turns),
            Limit::ToolCalls => count(self.max_tool_calls),
            Limit::WallClock => count(self.max_wall_clock_ms),
        };
        let above = |cap: f64, number: &Number| number.as_f64().is_some_and(|number| cap >= number);
        cap.is_none_or(|cap| {
            above(cap, &breach.actual) && breach.cap.as_f64().is_none_or(|old| cap > old)
        })
    }

    /// The names of its members in JSON.
    pub(crate) const NAMES: [&str; 8] = [
        "max_input_tokens",
        "max_output_tokens",
        "max_total_tokens",
        "max_usd",
        "max_wall_clock_ms",
        "max_turns",
        "max_tool_calls",
        "allow_unknown_price",
    ];

    /// Reads a budget from a JSON object with the names of the fields. Null is an absent limit.
    ///
    /// # Errors
    /// Every member that is invalid, by its name: `unknown_field`, `invalid_shape`, `out_of_range`.
    pub fn from_json(value: &Value) -> Result<Self, Vec<FieldError>> {
        let Value::Object(members) = value else {
            return Err(vec![FieldError { path: Vec::new(), code: "not_a_map".to_owned() }]);
        };
        let (mut budget, mut errors) = (Self::new(), Vec::new());
        for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
            let read = match name.as_str() {
                "max_input_tokens" => count(value).map(|n| budget.max_input_tokens = Some(n)),
                "max_output_tokens" => count(value).map(|n| budget.max_output_tokens = Some(n)),
                "max_total_tokens" => count(value).map(|n| budget.max_total_tokens = Some(n)),
                "max_usd" => amount(value).map(|n| budget.max_usd = Some(n)),
                "max_wall_clock_ms" => count(value).map(|n| budget.max_wall_clock_ms = Some(n)),
                "max_turns" => count(value).map(|n| budget.max_turns = Some(n)),
                "max_tool_calls" => count(value).map(|n| budget.max_tool_calls = Some(n)),
                "allow_unknown_price" => {
                    let flag = value.as_bool().ok_or("not_a_boolean");
                    flag.map(|flag| budget.allow_unknown_price = flag)
                }
                _ => Err("unknown_field"),
            };
            errors.extend(read.err().map(|code| FieldError::new(name.as_str(), code)));
        }
        if errors.is_empty() { Ok(budget) } else { Err(errors) }
    }
}

fn count(value: &Value) -> Result<u64, &'static str> {
    match value {
        Value::Number(number) => number.as_u64().ok_or("out_of_range"),
        _ => Err("invalid_shape"),
    }
}

fn amount(value: &Value) -> Result<f64, &'static str> {
    let amount = value.as_f64().ok_or("invalid_shape")?;
    if amount.is_finite() && amount >= 0.0 { Ok(amount) } else { Err("out_of_range") }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(&Value::deserialize(deserializer)?).map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            de::Error::custom(errors.join(", "))
        })
    }
}

crate::words! {
    /// A quantity that a budget limits. If several limits are passed at once, the first in this order
    /// is reported.
    #[derive(PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Limit {
        /// Tokens of prompts.
        InputTokens => "input_tokens",
        /// Tokens of answers.
        OutputTokens => "output_tokens",
        /// All tokens.
        TotalTokens => "total_tokens",
        /// US dollars.
        Usd => "usd",
        /// Model calls.
        Turns => "turns",
        /// Tool calls.
        ToolCalls => "tool_calls",
        /// Milliseconds of activity.
        WallClock => "wall_clock",
    }
}

crate::words! {
    /// When a passed limit was detected.
    #[non_exhaustive]
    pub enum BreachTime {
        /// Before the model or the tools were called. They were not called.
        PreCall => "pre_call",
        /// While the model answered or tools ran. They were cancelled.
        MidStream => "mid_stream",
    }
}

/// A limit that was passed.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Breach, BreachTime, Limit};
/// use serde_json::json;
///
/// let breach = Breach::new(Limit::Turns, 3u64, 4u64, BreachTime::PreCall);
/// assert_eq!(json!(breach), json!({"limit": "turns", "cap": 3, "actual": 4, "where": "pre_call"}));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Breach {
    /// The limit.
    pub limit: Limit,
    /// The allowed amount.
    pub cap: Number,
    /// The amount that was spent, or would have been.
    pub actual: Number,
    /// When it was detected.
    #[serde(rename = "where")]
    pub when: BreachTime,
}

impl Breach {
    /// More than `cap` of `limit`: tokens, calls, milliseconds.
    pub fn new(
        limit: Limit,
        cap: impl Into<Number>,
        actual: impl Into<Number>,
        when: BreachTime,
    ) -> Self {
        Self { limit, cap: cap.into(), actual: actual.into(), when }
    }

    /// More than `cap` US dollars.
    pub fn usd(cap: f64, actual: f64, when: BreachTime) -> Self {
        let number = |amount: f64| Number::from_f64(amount).unwrap_or_else(|| 0.into());
        Self::new(Limit::Usd, number(cap), number(actual), when)
    }

    /// The amount with six decimals, unless it would then look allowed.
    fn rounded(&self) -> Number {
        let rounded = self.actual.as_f64().map(|actual| (actual * 1e6).round() / 1e6);
        let rounded = rounded.filter(|rounded| self.cap.as_f64().is_some_and(|cap| *rounded > cap));
        rounded.and_then(Number::from_f64).unwrap_or_else(|| self.actual.clone())
    }
}

/// Which limit was passed, and by how much.
impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, cap, actual, when } = self;
        match (limit, when) {
            (Limit::WallClock, _) => write!(f, "{limit}: {actual} ms, of at most {cap} ms"),
            (Limit::Usd, _) if self.rounded() != self.actual => {
                Self { actual: self.rounded(), ..self.clone() }.fmt(f)
            }
            (_, BreachTime::PreCall) => write!(f, "{limit} would be {actual}, of at most {cap}"),
            _ => write!(f, "{limit}: {actual}, of at most {cap}"),
        }
    }
}
