//! When a model call that failed is made again, and how long after.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use mynah::{
    Adapter, AdapterReason, BoxFuture, Engine, Error, ErrorKind, ModelCall, ModelStream, Request,
    RetryPolicy, ValidationReason, World,
    testing::{self, Scripted},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    common::{call, echo, events, says, scripted},
    param::Param as _,
};

#[tokio::test(start_paused = true)]
async fn y01_a_call_that_fails_twice_succeeds_at_the_third_try() {
    let (engine, model) = engine([refused("rate_limited"), refused("rate_limited"), says("hi")]);
    let response = engine.generate("hello").retry(RetryPolicy::default()).await.unwrap();
    assert_eq!(response.text(), "hi");
    assert_eq!(model.calls(), 3);
    let requests = model.requests();
    assert!(requests.iter().all(|request| *request == requests[0]));
}

#[tokio::test(start_paused = true)]
async fn y01_the_last_error_is_the_callers_when_every_try_fails() {
    let scripts = [refused("rate_limited"), refused("timeout"), refused("overloaded"), says("hi")];
    let (engine, model) = engine(scripts);
    let error = engine.chat("hello").retry(RetryPolicy::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Overloaded));
    assert_eq!(model.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn y02_what_another_try_cannot_mend_is_tried_once() {
    for reason in AdapterReason::ALL {
        let (engine, model) = engine([refused(reason.as_str()), says("hi")]);
        let outcome = engine.generate("hello").retry(RetryPolicy::default()).await;
        let is_retryable = Error::adapter(*reason).is_retryable();
        assert_eq!(outcome.is_ok(), is_retryable, "{reason}");
        assert_eq!(model.calls(), if is_retryable { 2 } else { 1 }, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn y03_a_wait_that_the_provider_asks_for_is_kept_with_jitter_on_top() {
    for (chance, waited) in [(Chance::LEAST, 2000), (Chance::MOST, 2250)] {
        let limited = json!([{"preflight_error": "rate_limited", "retry_after_ms": 2000}]);
        let engine = engine([limited, says("hi")]).0.world(chance);
        let begun = Instant::now();
        engine.generate("hello").retry(RetryPolicy::default()).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_millis(waited));
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_calls_time_limit_does_not_have_is_not_begun() {
    for (asked, calls) in [(4_000, 2), (6_000, 1)] {
        let limited = json!([{"preflight_error": "rate_limited", "retry_after_ms": asked}]);
        let (engine, model) = engine([limited, says("hi")]);
        let begun = Instant::now();
        let call = engine.generate("hello").retry(RetryPolicy::default());
        let outcome = call.param("request_timeout", 5_000).await;
        assert_eq!(model.calls(), calls);
        if calls == 1 {
            assert_eq!(outcome.unwrap_err().reason(), "rate_limited");
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waits_between_tries_are_no_silence() {
    let limited = json!([{"preflight_error": "rate_limited", "retry_after_ms": 6_000}]);
    let (engine, model) = engine([limited, says("hi")]);
    let call = engine.generate("hello").retry(RetryPolicy::default());
    assert_eq!(call.param("stream_timeout", 500).await.unwrap().text(), "hi");
    assert_eq!(model.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_try_may_be_silent_for_as_long_as_the_first() {
    for (retries, expected) in [(1, "hi"), (0, "timeout")] {
        let model = Slow(scripted([says("lost"), says("hi")]), [5_000, 400]);
        let heard = model.0.clone();
        let begun = Instant::now();
        let policy = serde_json::from_value::<RetryPolicy>(
            json!({"max_attempts": retries + 1, "jitter_ms": 0}),
        );
        let call = Engine::new(model).generate("hello").retry(policy.unwrap());
        let outcome = call.param("stream_timeout", 500).await;
        let told = outcome.map(|response| response.text().into_owned());
        assert_eq!(told.unwrap_or_else(|error| error.reason().to_owned()), expected);
        assert_eq!(heard.calls(), retries + 1);
        let elapsed = if retries == 1 { 500 + 500 + 400 } else { 500 };
        assert_eq!(begun.elapsed(), Duration::from_millis(elapsed));
    }
}

#[tokio::test(start_paused = true)]
async fn the_whole_call_with_all_its_tries_has_one_limit() {
    let model = Slow(scripted([says("lost"), says("too late")]), [900, 900]);
    let begun = Instant::now();
    let call = Engine::new(model).generate("hello").retry(RetryPolicy::default());
    let error = call.param("stream_timeout", 800).param("request_timeout", 2_000).await;
    assert!(error.unwrap_err().is_timeout());
    assert!(begun.elapsed() <= Duration::from_millis(2_000));
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_policys_bound_is_not_begun() {
    for (asked, calls) in [(60_000, 2), (60_001, 1), (u64::MAX, 1)] {
        let limited = json!([{"preflight_error": "rate_limited", "retry_after_ms": asked}]);
        let (engine, model) = engine([limited, says("hi")]);
        let begun = Instant::now();
        let outcome = engine.generate("hello").retry(RetryPolicy::default()).await;
        assert_eq!((outcome.is_ok(), model.calls()), (calls == 2, calls), "{asked}");
        assert_eq!(begun.elapsed().is_zero(), calls == 1, "{asked}");
    }
    let policy = serde_json::from_value::<RetryPolicy>(json!({"max_retry_after_ms": 1})).unwrap();
    let limited = Error::adapter(AdapterReason::RateLimited).with("retry_after_ms", 2);
    assert_eq!(policy.delay(1, &limited, &Chance::LEAST), None);
}

#[test]
fn y03_a_wait_that_the_provider_asks_for_can_be_ignored() {
    let policy =
        serde_json::from_value::<RetryPolicy>(json!({"respect_retry_after": false})).unwrap();
    let limited = Error::adapter(AdapterReason::RateLimited).with("retry_after_ms", 2000);
    assert_eq!(policy.delay(1, &limited, &Chance::LEAST), Some(Duration::from_millis(500)));
}

#[test]
fn what_the_provider_says_of_another_try_counts() {
    let policy = RetryPolicy::default();
    let delay = |reason, told: bool| {
        let error = Error::adapter(reason).with("should_retry", told);
        policy.delay(1, &error, &Chance::LEAST).is_some()
    };
    assert!(!delay(AdapterReason::RateLimited, false));
    assert!(delay(AdapterReason::InvalidRequest, true));
}

#[tokio::test(start_paused = true)]
async fn y04_no_retries_means_a_single_try() {
    for retry in [json!(false), json!({"max_attempts": 0}), json!({"max_attempts": 1})] {
        let (engine, model) = engine([refused("timeout"), says("hi")]);
        let error = engine.generate("hello").param("retry", retry.clone()).await.unwrap_err();
        assert!(error.is_timeout(), "{retry}");
        assert_eq!(model.calls(), 1, "{retry}");
    }
}

#[tokio::test]
async fn y05_a_policy_that_does_not_fit_is_refused_before_anything_happens() {
    let misfits = [
        json!({"max_tries": 3}),
        json!({"max_attempts": -1}),
        json!({"retry_on": ["bad_weather"]}),
        json!("sometimes"),
        json!(3),
    ];
    for misfit in misfits {
        let (engine, model) = engine([says("hi")]);
        let error = engine.chat("hello").param("retry", misfit.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidOptions));
        assert_eq!(error.metadata()["field"], "retry", "{misfit}");
        assert_eq!(model.calls(), 0, "{misfit}");
    }
}

#[test]
fn y06_the_wait_doubles_up_to_its_limit() {
    let policy = RetryPolicy::attempts(u32::MAX);
    let failed = Error::adapter(AdapterReason::ProviderUnavailable);
    let cases = [
        (1, 500),
        (2, 1000),
        (3, 2000),
        (6, 16_000),
        (7, 30_000),
        (64, 30_000),
        (65, 30_000),
        (u32::MAX - 1, 30_000),
    ];
    for (attempt, wait) in cases {
        let wait = Duration::from_millis(wait);
        assert_eq!(policy.delay(attempt, &failed, &Chance::LEAST), Some(wait), "{attempt}");
        let most = wait + Duration::from_millis(250);
        assert_eq!(policy.delay(attempt, &failed, &Chance::MOST), Some(most), "{attempt}");
    }
}

#[tokio::test(start_paused = true)]
async fn y08_a_chat_stream_is_retried_before_its_first_event_in_every_turn() {
    let unavailable = || refused("provider_unavailable");
    let scripts = [unavailable(), call("c0", "echo"), unavailable(), says("done")];
    let (engine, model) = engine(scripts);
    let retried = events(engine.chat("hello").retry(RetryPolicy::default()).stream()).await;
    let smooth = Engine::new(scripted([call("c0", "echo"), says("done")])).tool(echo());
    let smooth = events(smooth.chat("hello").stream()).await;
    assert_eq!(testing::names(&retried), testing::names(&smooth));
    assert_eq!(model.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn y10_a_call_that_fails_after_its_first_word_is_never_retried() {
    let broken = json!([{"text": "par"}, {"error": "rate_limited", "retry_after_ms": 1}]);
    let (engine, model) = engine([broken, says("whole")]);
    let result = engine.chat("hello").retry(RetryPolicy::default()).await.unwrap();
    assert_eq!(result.halted_reason.as_str(), "error");
    assert_eq!(result.text(), "par");
    assert_eq!(model.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_calls_policy_wins_over_the_engines_and_that_over_the_adapters() {
    let tries = async |engine: Engine, model: Scripted, policy: Option<RetryPolicy>| {
        let call = engine.generate("hello");
        let call = match policy {
            Some(policy) => call.retry(policy),
            None => call,
        };
        call.await.unwrap_err();
        model.calls()
    };
    let failing = || engine([(); 9].map(|()| refused("timeout")));

    let (engine, model) = failing();
    assert_eq!(tries(engine, model, None).await, 1, "a scripted model is not retried by itself");
    let (engine, model) = failing();
    assert_eq!(tries(engine.retry(RetryPolicy::attempts(2)), model, None).await, 2);
    let (engine, model) = failing();
    let engine = engine.retry(RetryPolicy::attempts(2));
    assert_eq!(tries(engine, model, Some(RetryPolicy::attempts(4))).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_wait_for_another_try() {
    let limited = json!([{"preflight_error": "rate_limited", "retry_after_ms": 60_000}]);
    let (engine, model) = engine([limited, says("too late")]);
    let begun = Instant::now();
    let chat = engine.chat("hello").retry(RetryPolicy::default());
    let result = chat.deadline(Duration::from_secs(1)).await.unwrap();
    assert_eq!(result.halted_reason.as_str(), "deadline");
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    assert_eq!(model.calls(), 1);
}

/// Waits so many milliseconds before it opens the stream of its first and its second call.
struct Slow(Scripted, [u64; 2]);

impl Adapter for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn open(
        self: Arc<Self>,
        request: Request,
        call: ModelCall,
    ) -> BoxFuture<mynah::Result<ModelStream>> {
        let wait = Duration::from_millis(self.1[self.0.calls().min(1)]);
        let opening = Arc::new(self.0.clone()).open(request, call);
        Box::pin(async move {
            let stream = opening.await?;
            tokio::time::sleep(wait).await;
            Ok(stream)
        })
    }
}

/// A world in which chance always gives the same.
struct Chance(u64);

impl Chance {
    const LEAST: Self = Self(0);
    const MOST: Self = Self(u64::MAX);
}

impl World for Chance {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn random(&self) -> u64 {
        self.0
    }
}

fn engine<const N: usize>(scripts: [Value; N]) -> (Engine, Scripted) {
    let model = scripted(scripts);
    (Engine::new(model.clone()).tool(echo()), model)
}

fn refused(reason: &str) -> Value {
    json!([{"preflight_error": reason}])
}
