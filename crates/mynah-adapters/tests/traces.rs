//! What is logged, and what never is.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

#[path = "common/subjects.rs"]
mod subjects;

use std::{
    fmt::{Debug, Write as _},
    sync::{Arc, Mutex},
};

use futures_util::StreamExt as _;
use mynah_adapters::{
    conformance::{Reply, Scenario, TestServer},
    http::HttpAdapter,
    keys::Keys,
    presets::Preset,
};
use mynah_data::{Image, ImageDetail, Message, Part, Request};
use mynah_step::{Adapter, ModelCall};
use subjects::subjects;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

const KEY: &str = "sk-not-to-be-logged-0123456789";

#[test]
fn what_a_model_does_not_take_is_logged_where_it_is_left_away() {
    let heard = |name: &str, model: &str, option: &str, detail: ImageDetail| {
        let image = Image::from_base64("AA==", "image/png");
        let image = Part::Image { image, detail, metadata: Default::default() };
        let mut request = Request::new([Message::user_parts([image])]).with_model(model);
        request.options.insert(option.to_owned(), "low".into());
        let heard = Heard::default();
        tracing::subscriber::with_default(heard.clone(), || {
            let body = Preset::named(name).unwrap().format().body(&request, &ModelCall::default());
            assert!(body.is_ok(), "{name}: {body:?}");
        });
        let heard = heard.0.lock().unwrap();
        heard.clone()
    };
    for (name, option) in [
        ("openai-chat", "reasoning_effort"),
        ("openai", "reasoning_effort"),
        ("openai", "reasoning_summary"),
    ] {
        let told = heard(name, "gpt-4o", option, ImageDetail::High);
        assert!(told.contains(&format!(" option={option:?} model=\"gpt-4o\"\n")), "{name}: {told}");
        assert_eq!(heard(name, "gpt-5", option, ImageDetail::High), "", "{name}");
    }
    let told = heard("openai-chat", "gpt-5", "reasoning_summary", ImageDetail::Auto);
    assert!(told.contains(" option=\"reasoning_summary\" model=\"gpt-5\"\n"), "{told}");
    for name in ["anthropic", "gemini", "ollama", "bedrock"] {
        let told = heard(name, "m", "top_k", ImageDetail::High);
        assert!(told.contains(" option=\"detail\" model=\"m\"\n"), "{name}: {told}");
        assert_eq!(heard(name, "m", "top_k", ImageDetail::Auto), "", "{name}");
    }
}

/// There is one listener for all of the process: no other test may set one.
#[tokio::test]
async fn no_key_is_logged_at_any_level() {
    let heard = Heard::default();
    tracing::subscriber::set_global_default(heard.clone()).unwrap();
    log::set_logger(Box::leak(Box::new(heard.clone()))).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    for (_, subject) in subjects() {
        let body = subject.answer(Scenario::Text).unwrap();
        let body: Vec<Vec<u8>> = body.iter().map(|piece| subject.frame(piece)).collect();
        for reply in [Reply::stream(subject.content_type(), body), Reply::json(401, "{}")] {
            let server = TestServer::start(move |_| reply.clone()).await.unwrap();
            let call = ModelCall::default().with_api_key(KEY);
            listen(subject.adapter(server.url()), call).await;
            let received = server.received().pop().unwrap();
            assert!(received.headers.iter().any(|(_, value)| value.contains(KEY)), "it was sent");
        }
    }
    let keys = Keys::new().with_environment(|name| match name {
        "AWS_REGION" => Some("eu-west-1".to_owned()),
        "AWS_ACCESS_KEY_ID" => Some("AKIDEXAMPLE".to_owned()),
        "AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN" => Some(KEY.to_owned()),
        _ => None,
    });
    let server = TestServer::start(|_| Reply::json(401, "{}")).await.unwrap();
    let adapter = HttpAdapter::named("bedrock").unwrap().with_base_url(server.url()).unwrap();
    listen(Arc::new(adapter.with_keys(keys)), ModelCall::default()).await;
    let heard = heard.0.lock().unwrap();
    assert!(heard.contains("hyper_util"), "{heard}");
    let told = heard.lines().find(|line| line.contains("not-to-be-logged"));
    assert_eq!(told, None);
}

async fn listen(adapter: Arc<dyn Adapter>, call: ModelCall) {
    let opened = adapter.open(Request::from("hi").with_model("model-1"), call).await;
    if let Ok(mut stream) = opened {
        while let Some(event) = stream.next().await {
            event.unwrap();
        }
    }
}

/// Everything that was logged, a line each.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<String>>);

impl Heard {
    fn write(&self, about: &Metadata<'_>, tell: impl FnOnce(&mut Line<'_>)) {
        let mut heard = self.0.lock().unwrap();
        write!(heard, "{} {}", about.target(), about.name()).unwrap();
        tell(&mut Line(&mut heard));
        heard.push('\n');
    }
}

struct Line<'h>(&'h mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.write(span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Line(&mut self.0.lock().unwrap()));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.write(event.metadata(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl log::Log for Heard {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        writeln!(self.0.lock().unwrap(), "{} {}", record.target(), record.args()).unwrap();
    }

    fn flush(&self) {}
}
