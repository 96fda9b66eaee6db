//! Every route, with what its description says of it.

use axum::{
    http::{Method, StatusCode, Uri},
    routing::{MethodRouter, get},
};

use crate::{
    App, changes, events, log_routes, openapi,
    problem::{Problem, Result},
    records, runs, sessions, stats,
};

/// A path of the API.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<App>,
    /// The methods, each with a line on what it does.
    pub(crate) methods: Vec<Described>,
}

/// What a method of a path does.
pub(crate) struct Described {
    pub(crate) method: &'static str,
    pub(crate) summary: &'static str,
    /// The names of its parameters, and what they are.
    pub(crate) query: &'static [(&'static str, &'static str)],
    /// What it answers with besides JSON.
    pub(crate) also: Option<&'static str>,
}

const FILTER: [(&str, &str); 6] = [
    ("status", "running, suspended, completed, failed, cancelled or abandoned"),
    ("model", "the model of the runs"),
    ("session", "the session of the runs"),
    ("since", "started at this time or later, in nanoseconds since 1970"),
    ("before", "started before this time, in nanoseconds since 1970"),
    ("prefix", "how the ids of the runs begin"),
];

const LIST: [(&str, &str); 9] = with_filter([
    ("order", "newest or oldest"),
    ("limit", "how many, 1 to 1000"),
    ("after", "the end of the page before"),
]);

const STATS: [(&str, &str); 7] = with_filter([("buckets", "how many spans of time, 1 to 1000")]);

const EVENTS: &str = "text/event-stream";

/// The parameters of a filter, and others.
const fn with_filter<const N: usize, const M: usize>(
    more: [(&'static str, &'static str); M],
) -> [(&'static str, &'static str); N] {
    let mut all = [("", ""); N];
    let mut place = 0;
    while place < N {
        all[place] = if place < FILTER.len() { FILTER[place] } else { more[place - FILTER.len()] };
        place += 1;
    }
    all
}

impl Route {
    fn get(path: &'static str, summary: &'static str, handler: MethodRouter<App>) -> Self {
        let get = Described { method: "get", summary, query: &[], also: None };
        Self { path, handler, methods: vec![get] }
    }

    /// The same, with these parameters.
    fn query(mut self, query: &'static [(&'static str, &'static str)]) -> Self {
        self.methods.iter_mut().for_each(|method| method.query = query);
        self
    }

    /// The same, which can answer with another type.
    fn also(mut self, kind: &'static str) -> Self {
        self.methods.iter_mut().for_each(|method| method.also = Some(kind));
        self
    }

    /// The same by another method.
    fn and(mut self, method: &'static str, summary: &'static str) -> Self {
        self.methods.push(Described { method, summary, query: &[], also: None });
        self
    }
}

/// Every route but those of the inspector's files.
pub(crate) fn all() -> Vec<Route> {
    vec![
        Route::get("/v1/runs", "List runs, newest first", get(runs::list)).query(&LIST),
        Route::get("/v1/runs/{id}", "Describe a run", get(runs::one)),
        Route::get("/v1/runs/{id}/records", "List the records of a run", get(records::list)).query(
            &[
                ("from", "the first record, from 1"),
                ("limit", "how many, 1 to 1000"),
                ("raw", "whether the bytes are included"),
            ],
        ),
        Route::get("/v1/runs/{id}/events", "Follow the events of a run", get(events::events))
            .query(&[
                ("after", "the id of the event before"),
                ("limit", "how many, 1 to 1000; JSON only"),
            ])
            .also(EVENTS),
        Route::get(
            "/v1/runs/{id}/verify",
            "Verify a run",
            get(log_routes::verify).post(log_routes::verify),
        )
        .and("post", "Verify a run"),
        Route::get("/v1/runs/{id}/proof", "Prove that the log has a run", get(log_routes::proof)),
        Route::get("/v1/runs/{id}/export", "Export a run as a bundle", get(log_routes::export))
            .query(&[("format", "bundle or html")])
            .also("application/x-ndjson"),
        Route::get("/v1/sessions/{id}", "Describe a session", get(sessions::one)),
        Route::get("/v1/log", "Describe the log", get(log_routes::about)),
        Route::get("/v1/log/verify", "Verify the log", get(log_routes::verify_all)).also(EVENTS),
        Route::get("/v1/stats", "Sum runs over time", get(stats::stats)).query(&STATS),
        Route::get("/v1/changes", "Follow what changes in the log", get(changes::changes))
            .query(&[("after", "the cursor of the change before")])
            .also(EVENTS),
        Route::get("/v1/openapi.json", "Describe the API", get(openapi::document)),
        Route::get("/healthz", "Whether the process lives", get(log_routes::health))
            .also("text/plain"),
        Route::get("/readyz", "Whether requests can be served", get(log_routes::ready))
            .also("text/plain"),
        Route::get("/metrics", "Counters for Prometheus", get(log_routes::metrics))
            .also("text/plain"),
    ]
}

/// There is no such path.
pub(crate) async fn absent(uri: Uri) -> Result {
    Err(Problem::absent(format!("{}: there is no such path", uri.path())))
}

/// The path has another method.
pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Result {
    let detail = format!("{} does not take {method}", uri.path());
    Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail))
}
