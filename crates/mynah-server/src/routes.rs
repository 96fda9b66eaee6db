//! Every route with its description.

use axum::{
    handler::Handler,
    http::{Method, StatusCode, Uri},
    routing::MethodRouter,
};

use crate::{
    App, actions, agents, changes, events, log_routes, openapi,
    problem::{Problem, Result},
    records, runs, sessions, signals, stats,
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
    /// The content type of its answer, if it is not JSON only.
    pub(crate) also: Option<&'static str>,
    /// The members of its body, and what they are.
    pub(crate) body: &'static [(&'static str, &'static str)],
}

const FILTER: [(&str, &str); 6] = [
    ("status", "running, suspended, completed, failed, cancelled, abandoned, queued or sleeping"),
    ("model", "the model of the runs, its whole name or the part after the provider"),
    ("session", "the session of the runs, its whole id"),
    ("since", "started at this time or later, in nanoseconds since 1970"),
    ("before", "started before this time, in nanoseconds since 1970"),
    ("prefix", "how the ids of the runs begin"),
];

const LIST: [(&str, &str); 14] = with_filter([
    ("order", "newest or oldest"),
    ("limit", "how many, 1 to 1000"),
    ("after", "the end of the page before"),
    ("text", "only runs in which this was said, in any case"),
    ("agent", "only runs that this agent could have begun"),
    ("min_cost", "only runs that cost this much or more, in US dollars"),
    ("input", "true adds the first words of each run's input"),
    ("min_seconds", "only runs that took this long or longer, in seconds"),
]);

const STATS: [(&str, &str); 7] = with_filter([("buckets", "how many spans of time, 1 to 1000")]);

const EVENTS: &str = "text/event-stream";
const TEXT: &str = "text/plain";

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
    fn at(path: &'static str) -> Self {
        Self { path, handler: MethodRouter::new(), methods: Vec::new() }
    }

    fn get<H: Handler<T, App>, T: 'static>(self, summary: &'static str, handler: H) -> Self {
        let routed = self.handler.get(handler);
        Self { handler: routed, ..self }.described("get", summary)
    }

    fn post<H: Handler<T, App>, T: 'static>(self, summary: &'static str, handler: H) -> Self {
        let routed = self.handler.post(handler);
        Self { handler: routed, ..self }.described("post", summary)
    }

    fn described(mut self, method: &'static str, summary: &'static str) -> Self {
        self.methods.push(Described { method, summary, query: &[], also: None, body: &[] });
        self
    }

    /// The parameters of the last method.
    fn query(mut self, query: &'static [(&'static str, &'static str)]) -> Self {
        self.methods.iter_mut().next_back().into_iter().for_each(|method| method.query = query);
        self
    }

    /// The members of the body of the last method.
    fn body(mut self, body: &'static [(&'static str, &'static str)]) -> Self {
        self.methods.iter_mut().next_back().into_iter().for_each(|method| method.body = body);
        self
    }

    /// The type of an answer of the last method besides JSON, or instead of it.
    fn also(mut self, kind: &'static str) -> Self {
        self.methods.iter_mut().next_back().into_iter().for_each(|method| method.also = Some(kind));
        self
    }
}

const AGENT: (&str, &str) = ("agent", "the name of the agent; may be left out if there is one");

const ALLOW: (&str, &str) =
    ("allow_changed_agent", "continue although the agent is not the one that began the run");

const WAIT: [(&str, &str); 1] =
    [("wait", "seconds to wait until the run ends or waits, up to 600")];

/// All routes except those of the inspector's files.
pub(crate) fn all() -> Vec<Route> {
    let mut all = of_runs();
    all.extend([
        Route::at("/v1/sessions/{id}").get("Describe a session", sessions::one),
        Route::at("/v1/sessions/{id}/messages")
            .post("Perform the next turn of a session", actions::say)
            .query(&WAIT)
            .body(&[AGENT, ("text", "what the user says")])
            .also(EVENTS),
        Route::at("/v1/agents").get("List the agents", agents::list),
        Route::at("/v1/log").get("Describe the log", log_routes::about),
        Route::at("/v1/log/verify")
            .get("Verify the log", log_routes::verify_all)
            .query(&[("root", "an earlier root; whether the log begins with all that had it")])
            .also(EVENTS),
        Route::at("/v1/stats").get("Sum runs over time", stats::stats).query(&STATS),
        Route::at("/v1/changes")
            .get("Follow what changes in the log", changes::changes)
            .query(&[("after", "the cursor of the change before")])
            .also(EVENTS),
        Route::at("/v1/login")
            .post("Store the token in a cookie", actions::login)
            .body(&[("token", "the token of the server")]),
        Route::at("/v1/openapi.json").get("Describe the API", openapi::document),
        Route::at("/healthz").get("Whether the process lives", log_routes::health).also(TEXT),
        Route::at("/readyz").get("Whether requests can be served", log_routes::ready).also(TEXT),
        Route::at("/metrics").get("Counters for Prometheus", log_routes::metrics).also(TEXT),
    ]);
    all
}

fn of_runs() -> Vec<Route> {
    vec![
        Route::at("/v1/runs")
            .get("List runs, newest first", runs::list)
            .query(&LIST)
            .post("Start a run", actions::start)
            .query(&WAIT)
            .body(&[
                AGENT,
                ("input", "a text, or messages, which may have images"),
                ("key", "the id of the run"),
                ("session", "the session that it is a turn of"),
                (
                    "queue",
                    "the queue from which a worker takes it; this server performs it if left out",
                ),
            ])
            .also(EVENTS),
        Route::at("/v1/runs/{id}").get("Describe a run", runs::one),
        Route::at("/v1/runs/{id}/records").get("List the records of a run", records::list).query(
            &[
                ("from", "the first record, from 1"),
                ("limit", "how many, 1 to 1000"),
                ("raw", "whether the bytes are included"),
            ],
        ),
        Route::at("/v1/runs/{id}/events")
            .get("Follow the events of a run", events::events)
            .query(&[
                ("after", "the id of the event before"),
                ("limit", "how many, 1 to 1000; JSON only"),
            ])
            .also(EVENTS),
        Route::at("/v1/runs/{id}/signals")
            .post("Continue or end a run", signals::signal)
            .query(&WAIT)
            .body(&[
                AGENT,
                ("key", "a second signal with the same key changes nothing"),
                ("answer", "the answer to its question"),
                ("approve", "ids of calls that may run"),
                ("approve_with", "ids of calls, each with other arguments to run it with"),
                ("approve_digest", "ids of calls whose tool changed, each with its digest"),
                ("reject", "ids of calls that may not run, each with the reason"),
                ("results", "ids of calls, each with its result"),
                ("message", "what the user says"),
                ("cancel", "true ends the run"),
                ("resume", "true continues a run whose process died"),
                ("on_uncertain", "suspend, rerun or fail: calls whose outcome is unknown"),
                ALLOW,
            ])
            .also(EVENTS),
        Route::at("/v1/runs/{id}/fork").post("Fork a run at a record", actions::fork).body(&[
            AGENT,
            ("at", "the last record that the fork keeps"),
            ("key", "the id of the fork"),
            ("resume", "true continues the fork"),
            ("message", "what the user says to the fork"),
            ("system", "the system prompt that the fork begins with; only at record 1"),
            ("input", "the text of the user that the fork begins with; only at record 1"),
            ("model", "the model that continues the fork"),
            (
                "recorded_tools",
                "true runs no tool: the run answers the calls and questions that it has; other calls fail",
            ),
            ALLOW,
        ]),
        Route::at("/v1/runs/{id}/replay").post("Replay a run and compare", actions::replay).body(
            &[
                ("agent", "the agent to compare with; the records alone if left out"),
                ("system", "other instructions to compare with"),
                ("rerun_tools", "true runs idempotent tools again"),
                ("allow_changed_agent", "pass over what the run ran with"),
            ],
        ),
        Route::at("/v1/runs/{id}/verify")
            .get("Verify a run", log_routes::verify)
            .post("Verify a run", log_routes::verify),
        Route::at("/v1/runs/{id}/proof").get("Prove that the log has a run", log_routes::proof),
        Route::at("/v1/runs/{id}/export")
            .get("Export a run as a bundle", log_routes::export)
            .query(&[
                ("format", "bundle, or html with the runs of its agents"),
                ("agents", "true adds the runs of its agents to a bundle"),
            ])
            .also("application/x-ndjson"),
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
