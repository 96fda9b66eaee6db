//! Retries of failed model calls.

use std::time::Duration;

use mynah_data::{AdapterReason, Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{World, world::fraction};

/// When a model call that failed before its first event is retried, and after what delay.
///
/// In JSON it is an object with any of these fields, `false` for a single attempt, or `"default"`.
///
/// ```
/// # use mynah_step as mynah;
/// use mynah::RetryPolicy;
/// use serde_json::json;
///
/// let mut policy = RetryPolicy::attempts(5);
/// policy.base_delay_ms = 100;
/// let read: RetryPolicy = serde_json::from_value(json!({"max_attempts": 5, "base_delay_ms": 100}))?;
/// assert_eq!(read, policy);
/// assert_eq!(serde_json::from_value::<RetryPolicy>(json!(false))?, RetryPolicy::never());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The number of attempts, including the first. 0 and 1 both mean one.
    pub max_attempts: u32,
    /// The wait after the first failure; it doubles with each.
    pub base_delay_ms: u64,
    /// The longest wait of our own choosing.
    pub max_delay_ms: u64,
    /// Up to so much is added to every wait by chance.
    pub jitter_ms: u64,
    /// Which failures are retried, unless the provider decides (`should_retry` in an error's
    /// metadata).
    pub retry_on: Vec<AdapterReason>,
    /// Whether a wait that the provider asks for is kept.
    pub respect_retry_after: bool,
    /// The longest wait that the provider may ask for. If it asks for more, the call fails.
    pub max_retry_after_ms: u64,
    /// No attempt begins later than this after the first.
    pub max_elapsed_ms: Option<u64>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        use AdapterReason::*;
        Self {
            max_attempts: 3,
            base_delay_ms: 500,
            max_delay_ms: 30_000,
            jitter_ms: 250,
            retry_on: vec![RateLimited, ProviderUnavailable, Overloaded, Timeout, NetworkError],
            respect_retry_after: true,
            max_retry_after_ms: 60_000,
            max_elapsed_ms: None,
        }
    }
}

impl RetryPolicy {
    /// A single attempt.
    pub fn never() -> Self {
        Self { max_attempts: 1, ..Self::default() }
    }

    /// This many attempts.
    pub fn attempts(max_attempts: u32) -> Self {
        Self { max_attempts, ..Self::default() }
    }

    /// The wait after attempt number `attempt` (from 1) failed; none if it was the last.
    #[doc(hidden)]
    pub fn delay(&self, attempt: u32, error: &Error, world: &dyn World) -> Option<Duration> {
        let ErrorKind::Adapter(reason) = error.kind() else {
            return None;
        };
        let told = error.metadata().get("should_retry").and_then(Value::as_bool);
        let is_worth_it = told.unwrap_or_else(|| self.retry_on.contains(&reason));
        if attempt >= self.max_attempts || !is_worth_it {
            return None;
        }
        let asked = error.retry_after().filter(|time| self.respect_retry_after && !time.is_zero());
        if asked.is_some_and(|time| time > Duration::from_millis(self.max_retry_after_ms)) {
            return None;
        }
        let doubled =
            self.base_delay_ms.saturating_mul(1u64.checked_shl(attempt - 1).unwrap_or(u64::MAX));
        let wait = asked.unwrap_or(Duration::from_millis(doubled.min(self.max_delay_ms)));
        let jitter = (fraction(world) * (self.jitter_ms as f64 + 1.0)) as u64;
        Some(wait.saturating_add(Duration::from_millis(jitter)))
    }
}

/// The fields of a policy, for its JSON.
#[derive(Deserialize)]
#[serde(remote = "RetryPolicy", default = "RetryPolicy::default", deny_unknown_fields)]
struct Fields {
    max_attempts: u32,
    base_delay_ms: u64,
    max_delay_ms: u64,
    jitter_ms: u64,
    retry_on: Vec<AdapterReason>,
    respect_retry_after: bool,
    max_retry_after_ms: u64,
    max_elapsed_ms: Option<u64>,
}

impl<'de> Deserialize<'de> for RetryPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(false) => Ok(Self::never()),
            Value::Bool(true) => Ok(Self::default()),
            Value::String(text) if text == "default" => Ok(Self::default()),
            fields @ Value::Object(_) => Fields::deserialize(fields).map_err(D::Error::custom),
            _ => Err(D::Error::custom("expected an object, a boolean or \"default\"")),
        }
    }
}
