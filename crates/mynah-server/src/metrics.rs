//! Counters of the server, in the text format of Prometheus.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use axum::http::StatusCode;

/// What the server counts.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Answers, by the first digit of their status.
    answers: [AtomicU64; 5],
    streams: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) runs_started: AtomicU64,
    pub(crate) runs_live: AtomicU64,
    pub(crate) runs_failed: AtomicU64,
}

/// What the log says of runs that wait for a process.
pub(crate) struct Waiting {
    pub(crate) runs: u64,
    /// How long ago the oldest of them moved, in seconds.
    pub(crate) oldest: u64,
}

/// A stream that is open; dropping it counts it out.
pub(crate) struct OpenStream(Arc<Metrics>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}

impl Metrics {
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(count) = self.answers.get(class) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.streams.fetch_add(1, Relaxed);
        OpenStream(Arc::clone(self))
    }

    /// All of them, as text.
    pub(crate) fn text(&self, waiting: Option<&Waiting>) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        family("mynah_build_info", "gauge", "The version of the server.", &[(version, 1)]);
        let up = [(String::new(), u64::from(waiting.is_some()))];
        family("mynah_log_up", "gauge", "Whether the log can be used.", &up);
        let answers = self
            .answers
            .iter()
            .zip(1..)
            .map(|(count, class)| (format!("{{status=\"{class}xx\"}}"), count.load(Relaxed)));
        let answers: Vec<_> = answers.collect();
        let one = |count: &AtomicU64| [(String::new(), count.load(Relaxed))];
        family("mynah_http_responses_total", "counter", "Responses by class of status.", &answers);
        family("mynah_streams_open", "gauge", "Event streams that are open.", &one(&self.streams));
        family(
            "mynah_events_sent_total",
            "counter",
            "Events of runs sent to clients.",
            &one(&self.events),
        );
        family(
            "mynah_runs_started_total",
            "counter",
            "Runs started or continued.",
            &one(&self.runs_started),
        );
        family(
            "mynah_runs_live",
            "gauge",
            "Runs that this process performs.",
            &one(&self.runs_live),
        );
        family(
            "mynah_runs_unperformed_total",
            "counter",
            "How often a run that was claimed could not be performed.",
            &one(&self.runs_failed),
        );
        // Without the log they are not known.
        if let Some(Waiting { runs, oldest }) = waiting {
            let one = |value: &u64| [(String::new(), *value)];
            let help = "Runs of queues that no process performs, up to 1000.";
            family("mynah_runs_waiting", "gauge", help, &one(runs));
            let help = "How long ago the oldest of them moved, in seconds.";
            family("mynah_runs_waiting_seconds", "gauge", help, &one(oldest));
        }
        text
    }
}
