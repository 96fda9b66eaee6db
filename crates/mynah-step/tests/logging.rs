//! What a custom loop and its tools log is bound to their run.

#![allow(clippy::expect_used, reason = "a helper may fail the test that calls it")]

mod common;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use common::*;
use mynah_log::MemoryLog;
use mynah_step::{Context, Tool, ToolContext};
use serde_json::json;
use tracing::{
    Event, Instrument as _, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_loop_and_its_tools_log_is_in_the_span_of_the_run() {
    let logged = Logged::default();
    tracing::subscriber::set_global_default(logged.clone()).expect("the only subscriber");
    let log = Arc::new(MemoryLog::new());
    let spawns = tool("spawn", |context: ToolContext| async move {
        tracing::info!("in a tool");
        let task = async { tracing::info!("in a task of a tool") };
        json!(tokio::spawn(task.instrument(context.span())).await.is_ok())
    });
    let blocks = Tool::new("block", "", json!({})).blocking(|_, _| {
        tracing::info!("in a thread");
        json!(true)
    });
    let context = Context::new(plain(&log).tools([spawns, blocks])).expect("a run");
    begin(&context).await.expect("a beginning");
    tracing::info!("outside");
    async { tracing::info!("in the loop") }.instrument(context.span()).await;
    context.call_tool(call("c0", "spawn")).await.expect("a call");
    context.call_tool(call("c1", "block")).await.expect("a call");
    let logs = async {
        tracing::info!("in an effect");
        Ok::<_, std::io::Error>(())
    };
    context.side_effect("log", logs).await.expect("an effect");
    end(&context).await.expect("an end");
    let run = Some(RUN.to_owned());
    let told: Vec<_> = logged.0.lock().expect("what was logged").events.clone();
    let call = |id: &str| Some(id.to_owned());
    let expected = [
        ("outside", None, None),
        ("in the loop", run.clone(), None),
        ("in a tool", run.clone(), call("c0")),
        ("in a task of a tool", run.clone(), call("c0")),
        ("in a thread", run.clone(), call("c1")),
        ("in an effect", run, None),
    ];
    assert_eq!(told, expected.map(|(text, run, call)| (text.to_owned(), run, call)));
}

/// A subscriber that keeps the run and the call of each event of this file.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// The fields of each span, its parent's among them.
    spans: Vec<BTreeMap<String, String>>,
    events: Vec<(String, Option<String>, Option<String>)>,
}

thread_local! {
    static ENTERED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Subscriber for Logged {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() || metadata.target().starts_with("logging")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut kept = self.0.lock().expect("what was logged");
        let parent = ENTERED.with_borrow(|entered| entered.last().copied());
        let mut fields = parent.map(|parent| kept.spans[parent].clone()).unwrap_or_default();
        span.record(&mut Write(&mut fields));
        kept.spans.push(fields);
        Id::from_u64(kept.spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut kept = self.0.lock().expect("what was logged");
        let mut fields = BTreeMap::new();
        event.record(&mut Write(&mut fields));
        let inside = ENTERED.with_borrow(|entered| entered.last().copied());
        let inside = inside.map(|span| kept.spans[span].clone()).unwrap_or_default();
        let text = fields.remove("message").unwrap_or_default();
        kept.events.push((text, inside.get("run_id").cloned(), inside.get("call").cloned()));
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64() as usize - 1));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| _ = entered.pop());
    }
}

struct Write<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Write<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
