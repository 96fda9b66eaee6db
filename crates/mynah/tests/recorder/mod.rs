//! A subscriber that keeps the spans and events of the test that runs on this thread.
//!
//! There is one for the whole process: one for each test would race, because `tracing` remembers for each place in the
//! code whether anybody cares, and asks only the threads that are there.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]

use std::{cell::RefCell, collections::BTreeMap, fmt, sync::OnceLock};

use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

thread_local! {
    static RECORDING: RefCell<Recording> = RefCell::default();
}

#[derive(Default)]
struct Recording {
    spans: Vec<SpanRecord>,
    events: Vec<EventRecord>,
    /// Indices of the spans that are entered, the innermost last.
    entered: Vec<usize>,
    closed: Vec<&'static str>,
}

/// The fields of a span or an event, as text.
pub(crate) type Fields = BTreeMap<String, String>;

#[derive(Clone, Debug)]
pub(crate) struct SpanRecord {
    pub(crate) name: &'static str,
    pub(crate) parent: Option<&'static str>,
    pub(crate) fields: Fields,
    handles: usize,
}

impl SpanRecord {
    pub(crate) fn is_closed(&self) -> bool {
        self.handles == 0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EventRecord {
    /// The span that it happened in.
    pub(crate) span: Option<&'static str>,
    pub(crate) fields: Fields,
}

/// What this thread's code logs.
pub(crate) struct Recorder(());

impl Recorder {
    /// Records from here on. Every test of a file that uses this must begin with it.
    pub(crate) fn install() -> Self {
        static INSTALLED: OnceLock<()> = OnceLock::new();
        INSTALLED.get_or_init(|| {
            tracing::subscriber::set_global_default(ThisThread).expect("the only subscriber");
        });
        RECORDING.take();
        Self(())
    }

    /// The spans of this name, in the order of their beginning.
    pub(crate) fn spans(&self, name: &str) -> Vec<SpanRecord> {
        RECORDING.with_borrow(|recording| {
            recording.spans.iter().filter(|span| span.name == name).cloned().collect()
        })
    }

    /// The names of the spans that have ended, in the order of their end.
    pub(crate) fn closed(&self) -> Vec<&'static str> {
        RECORDING.with_borrow(|recording| recording.closed.clone())
    }

    pub(crate) fn events(&self) -> Vec<EventRecord> {
        RECORDING.with_borrow(|recording| recording.events.clone())
    }

    /// Everything, for looking something up that must not be there.
    pub(crate) fn text(&self) -> String {
        RECORDING.with_borrow(|recording| format!("{:?} {:?}", recording.spans, recording.events))
    }
}

struct ThisThread;

/// Ids are indices into the list of spans, from 1.
fn index(id: &Id) -> usize {
    id.into_u64() as usize - 1
}

impl Subscriber for ThisThread {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("mynah")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        RECORDING.with_borrow_mut(|recording| {
            let parent = match span.parent() {
                Some(id) => Some(index(id)),
                None if span.is_contextual() => recording.entered.last().copied(),
                None => None,
            };
            let mut fields = Fields::new();
            span.record(&mut Write(&mut fields));
            let parent = parent.map(|parent| recording.spans[parent].name);
            let name = span.metadata().name();
            recording.spans.push(SpanRecord { name, parent, fields, handles: 1 });
            Id::from_u64(recording.spans.len() as u64)
        })
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        RECORDING.with_borrow_mut(|recording| {
            values.record(&mut Write(&mut recording.spans[index(id)].fields));
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        RECORDING.with_borrow_mut(|recording| {
            let mut fields = Fields::new();
            event.record(&mut Write(&mut fields));
            let span = recording.entered.last().map(|innermost| recording.spans[*innermost].name);
            recording.events.push(EventRecord { span, fields });
        });
    }

    fn enter(&self, id: &Id) {
        RECORDING.with_borrow_mut(|recording| recording.entered.push(index(id)));
    }

    fn exit(&self, id: &Id) {
        RECORDING.with_borrow_mut(|recording| {
            let entered = &mut recording.entered;
            let innermost = entered.iter().rposition(|entered| *entered == index(id));
            innermost.map(|position| entered.remove(position));
        });
    }

    fn clone_span(&self, id: &Id) -> Id {
        RECORDING.with_borrow_mut(|recording| recording.spans[index(id)].handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        RECORDING.with_borrow_mut(|recording| {
            let span = &mut recording.spans[index(&id)];
            span.handles -= 1;
            let (name, is_closed) = (span.name, span.is_closed());
            if is_closed {
                recording.closed.push(name);
            }
            is_closed
        })
    }
}

struct Write<'a>(&'a mut Fields);

impl Visit for Write<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
