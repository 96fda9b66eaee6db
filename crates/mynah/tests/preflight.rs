//! What an adapter knows to fail before a call is made.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures_util::StreamExt as _;
use mynah::{
    Adapter, BoxFuture, Engine, EngineReason, Error, Fallback, ModelCall, ModelStream, Request,
    Result, Session,
    log::{Log as _, MemoryLog, RunFilter},
    testing::Scripted,
};
use serde_json::json;

use crate::common::{echo, says, scripted};

#[tokio::test]
async fn it_is_known_when_the_stream_is_made() {
    let (engine, opened) = keyless();
    let mut streams =
        [engine.generate("hi").stream(), engine.step("hi").stream(), engine.chat("hi").stream()];
    for stream in &mut streams {
        assert_eq!(stream.refusal(), Some(&missing()));
        assert_eq!(stream.next().await, Some(Err(missing())));
        assert_eq!(stream.next().await, None);
    }
    let turn = engine.reply(&Session::from("hi"), "more").stream();
    assert_eq!(turn.refusal(), Some(&missing()));
    assert_eq!(turn.finish().0, Session::from("hi"), "the session stays as it was");
    assert_eq!(engine.chat("hi").await, Err(missing()));
    assert_eq!(opened.load(Relaxed), 0, "nobody is asked");
}

#[tokio::test]
async fn a_call_with_what_was_missing_is_made() -> Result<()> {
    let (engine, opened) = keyless();
    let stream = engine.tool(echo()).chat("hi").api_key("key").stream();
    assert_eq!(stream.refusal(), None);
    assert_eq!(mynah::testing::collect(stream).await?.len(), 6);
    assert_eq!(opened.load(Relaxed), 1);
    Ok(())
}

#[tokio::test]
async fn what_is_refused_is_not_kept_and_what_was_kept_is_replayed_without_a_key() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let (engine, opened) = keyless();
    assert_eq!(engine.chat("hi").record(&log).await, Err(missing()));
    assert!(log.runs(RunFilter::new()).await?.sound()?.is_empty());
    let run = engine.chat("hi").api_key("key").record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    assert_eq!(opened.load(Relaxed), 1);
    Ok(())
}

#[tokio::test]
async fn one_of_several_models_is_enough() -> Result<()> {
    let adapter = || Keyed(scripted([says("first")]), Arc::default());
    let both = Engine::new(Fallback::new(adapter()).or(scripted([says("second")]), "small"));
    let stream = both.chat("hi").stream();
    assert_eq!(stream.refusal(), None);
    assert_eq!(both.chat("hi").await?.text(), "second");
    let neither = Engine::new(Fallback::new(adapter()).or(adapter(), "small")).model("large");
    let refused = neither.chat("hi").stream().refusal().cloned();
    assert_eq!(refused.clone(), neither.chat("hi").await.err());
    // The first model's error names its key.
    let others = refused.map(|error| error.metadata()["others"].clone());
    let second = json!({"provider": "keyed", "model": "small", "error": missing()});
    assert_eq!(others, Some(json!([second])));
    Ok(())
}

/// An engine whose calls need a key of their own, and how many of them were made.
fn keyless() -> (Engine, Arc<AtomicUsize>) {
    let opened = Arc::default();
    (Engine::new(Keyed(scripted([says("hello")]), Arc::clone(&opened))), opened)
}

fn missing() -> Error {
    Error::engine(EngineReason::MissingKey).with_provider("keyed")
}

struct Keyed(Scripted, Arc<AtomicUsize>);

impl Adapter for Keyed {
    fn name(&self) -> &str {
        "keyed"
    }

    fn preflight(&self, _: &Request, call: &ModelCall) -> Result<()> {
        call.api_key.as_ref().map(drop).ok_or_else(missing)
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let checked = self.preflight(&request, &call);
        Box::pin(async move {
            checked?;
            self.1.fetch_add(1, Relaxed);
            Arc::new(self.0.clone()).open(request, call).await
        })
    }
}
