//! A model for when another cannot be had.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mynah::{
    AdapterReason, Engine, Error, ErrorKind, Event, Fallback, ModelCall, ModelRef, Pricing,
    RetryPolicy,
    log::MemoryLog,
    testing::{self, Scripted},
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::param::Param as _;

#[tokio::test]
async fn the_next_model_answers_where_another_provider_can_help() {
    let helped = AdapterReason::ALL.iter().filter(|reason| {
        use AdapterReason::*;
        !matches!(reason, InvalidRequest | ContentFilter | Unknown)
    });
    for reason in helped {
        let (first, second) = (scripted([refusal(*reason)]), scripted([says("second")]));
        let engine = engine(Fallback::new(first.clone()).or(second.clone(), "small"));
        assert_eq!(engine.generate("hi").await.unwrap().text(), "second", "{reason}");
        assert_eq!(first.requests()[0].model, Some("large".into()));
        assert_eq!(second.requests()[0].model, Some("small".into()));
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_request_is_asked_nobody_else() {
    use AdapterReason::*;
    for reason in [InvalidRequest, ContentFilter, Unknown] {
        let (first, second) = (scripted([refusal(reason)]), scripted([says("second")]));
        let engine = engine(Fallback::new(first).or(second.clone(), "small"));
        let error = engine.generate("hi").await.unwrap_err();
        assert_eq!((error.kind(), second.calls()), (ErrorKind::Adapter(reason), 0));
    }
}

#[tokio::test]
async fn a_stream_that_fails_with_its_first_event_is_replaced_and_a_later_failure_is_not() {
    let early = json!([{"preflight_error": "overloaded"}]);
    let late = json!([{"text": "half"}, {"error": "overloaded"}]);
    let second = scripted([says("second")]);
    let engine = engine(Fallback::new(scripted([early, late])).or(second.clone(), "small"));
    assert_eq!(engine.generate("hi").await.unwrap().text(), "second");
    let broken = engine.generate("hi").await.unwrap();
    assert_eq!((broken.text().as_ref(), second.calls()), ("half", 1));
    assert!(broken.error().is_some());
}

#[tokio::test]
async fn the_last_error_counts_and_retries_begin_anew() {
    let refused = |reason| scripted([refusal(reason), refusal(reason)]);
    let (first, second) =
        (refused(AdapterReason::RateLimited), refused(AdapterReason::ProviderUnavailable));
    let mut policy = RetryPolicy::attempts(2);
    (policy.base_delay_ms, policy.jitter_ms) = (1, 0);
    let engine = engine(Fallback::new(first.clone()).or(second.clone(), "small")).retry(policy);
    let error = engine.generate("hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ProviderUnavailable));
    assert_eq!((first.calls(), second.calls()), (2, 2));
}

#[tokio::test]
async fn an_error_names_what_the_other_models_failed_with() {
    use AdapterReason::*;
    let model = |reason| scripted([refusal(reason)]);
    let two = || Fallback::new(model(RateLimited)).or(model(Timeout), "b");
    // The last one's error, and one that no other provider can avoid.
    for fallback in
        [two().or(model(Overloaded), "c"), two().or(model(Unknown), "c").or(model(Timeout), "d")]
    {
        let error = engine(fallback).retry(RetryPolicy::never()).generate("hi").await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Adapter(Overloaded | Unknown)), "{error}");
        let before = "; other models: scripted:large: rate_limited, scripted:b: timeout";
        assert!(error.to_string().ends_with(before), "{error}");
        let others = error.metadata()["others"].as_array().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|one| (&one["provider"], Error::deserialize(&one["error"]).unwrap().kind()))
            .collect();
        let scripted = &json!("scripted");
        let kinds = [RateLimited, Timeout].map(|reason| (scripted, ErrorKind::Adapter(reason)));
        assert_eq!(others, kinds);
    }
    // Each detail belongs to the model that the error is of, which it names.
    let limited = |name| {
        Described(name, Error::adapter(RateLimited).with("status", 429).with("retry_after_ms", 900))
    };
    let down = Described(
        "chat",
        Error::adapter(ProviderUnavailable).with_message("flaky").with("status", 503),
    );
    let fallback = Fallback::new(down).or(limited("chat"), "small");
    let error = engine(fallback).retry(RetryPolicy::never()).generate("hi").await.unwrap_err();
    let told = "chat:small: adapter error: rate_limited (status 429, retry after 1 s); other models: chat:large: provider_unavailable";
    assert_eq!(error.to_string(), told);
    assert_eq!(error.message(), told);
    let fallback = Fallback::new(limited("chat")).or(limited("chat"), "small");
    let error = engine(fallback).retry(RetryPolicy::never()).generate("hi").await.unwrap_err();
    let told = "chat:small: adapter error: rate_limited (status 429, retry after 1 s); other models: chat:large: rate_limited";
    assert_eq!(error.to_string(), told);
    let only = engine(Fallback::new(model(Overloaded))).retry(RetryPolicy::never());
    assert!(!only.generate("hi").await.unwrap_err().metadata().contains_key("others"));
}

#[tokio::test(start_paused = true)]
async fn a_fallback_without_a_key_is_passed_over() -> mynah::Result<()> {
    let down = || refusal(AdapterReason::ProviderUnavailable);
    for is_first in [false, true] {
        let model = scripted([down(), down(), says("up again")]);
        let fallback = match is_first {
            true => Fallback::new(Keyless).or(model.clone(), "small"),
            false => Fallback::new(model.clone()).or(Keyless, "small"),
        };
        // A short outage is retried.
        let engine = engine(fallback).retry(RetryPolicy::attempts(3));
        assert_eq!(engine.generate("hi").await?.text(), "up again");
        assert_eq!(model.calls(), 3);
    }

    // And a long one is resumed.
    let model = scripted([down(), says("up again")]);
    let engine = engine(Fallback::new(model).or(Keyless, "small")).retry(RetryPolicy::never());
    let log = MemoryLog::new();
    let chat = || engine.chat("hi").record(&log).run_id("k");
    let error = chat().await.unwrap_err();
    assert!(error.is_resumable(), "{error}");
    assert!(error.to_string().ends_with("; other models: keyless:small: missing_key"), "{error}");
    assert_eq!(chat().start_or_resume().await?.into_result().text(), "up again");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_silent_model_is_not_waited_for_longer_than_its_patience() {
    let silent = json!([{"delay_ms": 60_000}, {"text": "first"}, {"finish": "stop"}]);
    let begun = tokio::time::Instant::now();
    // A scripted stream begins before its pause, so what is silent here is the opening.
    let fallback = Fallback::new(Slow(scripted([silent]))).or(scripted([says("second")]), "small");
    let engine = engine(fallback.patience(Duration::from_secs(2)));
    assert_eq!(engine.generate("hi").await.unwrap().text(), "second");
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn each_model_may_be_silent_for_as_long_as_the_first() {
    let begun = tokio::time::Instant::now();
    let silent = || Slow(scripted([says("too late")]));
    let fallback = Fallback::new(silent()).or(silent(), "b").or(scripted([says("third")]), "c");
    let call = engine(fallback).generate("hi").param("stream_timeout", 2_000);
    assert_eq!(call.await.unwrap().text(), "third");
    assert_eq!(begun.elapsed(), Duration::from_secs(4));
    let last = engine(Fallback::new(silent()).or(silent(), "b")).retry(RetryPolicy::never());
    let error = last.generate("hi").param("stream_timeout", 2_000).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(begun.elapsed(), Duration::from_secs(8));
}

#[tokio::test]
async fn tokens_cost_what_the_answering_model_costs() {
    let counted =
        json!([{"usage": {"input_tokens": 1_000_000, "output_tokens": 0}}, {"finish": "stop"}]);
    let small = ModelRef::new("small").with_pricing(Pricing::new(2.0, 0.0));
    let fallback = Fallback::new(scripted([refusal(AdapterReason::Overloaded)]));
    let engine = Engine::new(fallback.or(scripted([counted]), small))
        .model(ModelRef::new("large").with_pricing(Pricing::new(9.0, 0.0)));
    let events = testing::collect(engine.generate("hi").stream()).await.unwrap();
    let costs = events.iter().filter_map(|event| match event {
        Event::Usage { usage } => usage.total_cost,
        _ => None,
    });
    assert_eq!(costs.collect::<Vec<_>>(), [2.0]);
}

#[tokio::test]
async fn tokens_of_a_model_without_a_price_have_no_costs() {
    let counted =
        json!([{"usage": {"input_tokens": 1_000_000, "output_tokens": 0}}, {"finish": "stop"}]);
    let fallback = Fallback::new(scripted([refusal(AdapterReason::Overloaded)]));
    let engine = Engine::new(fallback.or(scripted([counted]), "small"))
        .model(ModelRef::new("large").with_pricing(Pricing::new(9.0, 0.0)));
    let usage = engine.generate("hi").await.unwrap().usage;
    assert_eq!((usage.input_cost, usage.output_cost, usage.total_cost), (None, None, None));
    assert_eq!(json!(usage.extra), json!({"unpriced_model": "small"}));
}

#[tokio::test]
async fn what_is_meant_for_the_first_provider_reaches_no_other() {
    let (first, second) = (Calls::default(), Calls::default());
    let engine = engine(
        Fallback::new(Listening(
            Arc::clone(&first),
            scripted([refusal(AdapterReason::Overloaded)]),
        ))
        .or(Listening(Arc::clone(&second), scripted([says("second")])), "small"),
    );
    let call = engine.generate("hi").api_key("sk-first").param("request_id", "r1");
    let call = call.param("adapter_opts", json!({"base_url": "http://first"}));
    assert_eq!(call.await.unwrap().text(), "second");
    let told = |calls: &Calls| -> Vec<_> {
        let told = |call: &ModelCall| {
            (
                call.exposed_api_key().map(str::to_owned),
                Value::Object(call.adapter_opts.clone()),
                call.request_id.clone(),
            )
        };
        calls.lock().unwrap().iter().map(told).collect()
    };
    let opts = json!({"base_url": "http://first"});
    assert_eq!(told(&first), [(Some("sk-first".to_owned()), opts, "r1".to_owned())]);
    assert_eq!(told(&second), [(None, json!({}), "r1".to_owned())]);
}

type Calls = Arc<Mutex<Vec<ModelCall>>>;

/// Keeps the data of each call.
struct Listening(Calls, Scripted);

impl mynah::Adapter for Listening {
    fn name(&self) -> &str {
        "listening"
    }

    fn open(
        self: Arc<Self>,
        request: mynah::Request,
        call: ModelCall,
    ) -> mynah::BoxFuture<mynah::Result<mynah::ModelStream>> {
        self.0.lock().unwrap().push(call.clone());
        Arc::new(self.1.clone()).open(request, call)
    }
}

/// Waits a minute before it opens a stream.
struct Slow(Scripted);

impl mynah::Adapter for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn open(
        self: Arc<Self>,
        request: mynah::Request,
        call: ModelCall,
    ) -> mynah::BoxFuture<mynah::Result<mynah::ModelStream>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Arc::new(self.0.clone()).open(request, call).await
        })
    }
}

/// Refuses each call with this error.
struct Described(&'static str, Error);

impl mynah::Adapter for Described {
    fn name(&self) -> &str {
        self.0
    }

    fn open(
        self: Arc<Self>,
        _: mynah::Request,
        _: ModelCall,
    ) -> mynah::BoxFuture<mynah::Result<mynah::ModelStream>> {
        let error = self.1.clone();
        Box::pin(async { Err(error) })
    }
}

/// Has no key.
struct Keyless;

impl mynah::Adapter for Keyless {
    fn name(&self) -> &str {
        "keyless"
    }

    fn open(
        self: Arc<Self>,
        _: mynah::Request,
        _: ModelCall,
    ) -> mynah::BoxFuture<mynah::Result<mynah::ModelStream>> {
        Box::pin(async { Err(Error::engine(mynah::EngineReason::MissingKey)) })
    }
}

fn engine(fallback: Fallback) -> Engine {
    Engine::new(fallback).model("large")
}

fn scripted(scripts: impl IntoIterator<Item = Value>) -> Scripted {
    Scripted::new(scripts).unwrap()
}

fn refusal(reason: AdapterReason) -> Value {
    json!([{"preflight_error": reason.as_str()}])
}

fn says(text: &str) -> Value {
    json!([{"text": text}, {"finish": "stop"}])
}
