//! Verification, proofs, and the state of the log and the server.

use std::{
    io::{self, Write},
    sync::mpsc::{SyncSender, sync_channel},
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse as _, Response, sse::Event},
};
use futures_util::stream;
use mynah::{
    ErrorKind, LogReason, Result as MynahResult, RunId,
    log::{
        Auditor, Hash, Log, MAINTENANCE, RunFilter, RunPage, RunStatus, SealedRun, bundle,
        merkle::Tree, sub_runs,
    },
};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};

use crate::{
    App,
    actions::stopping,
    metrics::Waiting,
    now, page,
    problem::{Problem, Result},
    query::{Id, Query},
    records::is_damage,
    reply, runs,
};

/// `GET` and `POST /v1/runs/{id}/verify`
pub(crate) async fn verify(State(app): State<App>, Id(id): Id, uri: Uri) -> Result {
    Query::of(&uri).end()?;
    let found = Auditor::new(app.log.as_ref()).verify_run(&id).await;
    Ok(reply::ok(&verified(&app, &id, found)?))
}

/// What verifying a run found. Damage is a finding; anything else is an error.
fn verified(
    app: &App,
    run: &str,
    found: MynahResult<mynah::log::VerifyReport>,
) -> MynahResult<Value> {
    app.set_damaged(run, found.as_ref().is_err_and(|error| is_damage(error.kind())));
    let mut shown = json!({"run_id": run});
    let found = match found {
        Ok(report) => json!(report),
        Err(error) if is_damage(error.kind()) => json!({"status": error.reason(), "err": error}),
        Err(error) => return Err(error),
    };
    if let (Value::Object(shown), Value::Object(found)) = (&mut shown, found) {
        shown.extend(found);
    }
    Ok(shown)
}

/// `GET /v1/runs/{id}/proof`
pub(crate) async fn proof(State(app): State<App>, Id(id): Id, uri: Uri) -> Result {
    Query::of(&uri).end()?;
    let run = runs::found(&app, &id).await?;
    let Some(place) = run.seal else {
        let detail = format!("run {id} has no seal yet, so the log's tree does not have it");
        return Err(Problem::new(StatusCode::CONFLICT, "not_sealed", detail));
    };
    let inclusion = bundle::inclusion(app.log.as_ref(), &id, place).await?;
    let leaf = SealedRun::new(run.run_id.clone(), run.hash).leaf();
    let mut shown = json!(inclusion);
    shown["run_id"] = json!(run.run_id);
    shown["fingerprint"] = json!(run.hash);
    shown["leaf"] = json!(leaf);
    Ok(reply::ok(&shown))
}

/// `GET /v1/runs/{id}/export`
pub(crate) async fn export(State(app): State<App>, Id(id): Id, uri: Uri) -> Result {
    let mut query = Query::of(&uri);
    let html = match query.take("format")?.as_deref() {
        None | Some("bundle") => false,
        Some("html") => true,
        Some(other) => {
            return Err(Problem::bad(format!("format={other}: give bundle or html")));
        }
    };
    let agents = query.flag("agents")?;
    query.end()?;
    runs::found(&app, &id).await?;
    let log = runs::log(&app);
    let mut exported = vec![RunId::from(id.as_str())];
    if html || agents {
        exported.extend(sub_runs(log.as_ref(), &id).await?);
    }
    // Damage is an answer, and not a stream that breaks off. Nothing is known of a run before all of it was read.
    for run in &exported {
        bundle::export(log.as_ref(), run, io::sink()).await?;
    }
    let (sender, receiver) = sync_channel(4);
    // A bundle is written by blocking calls, so a client that reads slowly holds it up, and memory does not grow.
    tokio::task::spawn_blocking(move || {
        let out = io::BufWriter::with_capacity(64 << 10, Pipe(sender.clone()));
        let written = Handle::current().block_on(write_export(log.as_ref(), &exported, html, out));
        if let Err(error) = written {
            // The log failed since. Without its last line a bundle does not verify; the broken connection says the same.
            let _ = sender.send(Err(io::Error::other(error.to_string())));
        }
    });
    let chunks = stream::unfold(receiver, async |receiver| {
        let next = move || receiver.recv().map(|chunk| (chunk, receiver));
        tokio::task::spawn_blocking(next).await.ok()?.ok()
    });
    let kind = if html { "text/html; charset=utf-8" } else { "application/x-ndjson" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        // What a run says is never a page of this server.
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    ];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

async fn write_export(
    log: &dyn Log,
    runs: &[RunId],
    html: bool,
    mut out: impl Write,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if let Some(first) = runs.first().filter(|_| html) {
        page::write_head(first, &mut out)?;
    }
    for run in runs {
        match html {
            true => bundle::export(log, run, page::BundleLines::new(&mut out)).await?,
            false => bundle::export(log, run, &mut out).await?,
        };
    }
    if html {
        page::write_tail(&mut out)?;
    }
    Ok(out.flush()?)
}

/// Sends what is written to a client.
struct Pipe(SyncSender<io::Result<Vec<u8>>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.send(Ok(bytes.to_vec())).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The part of the log's tree that was read.
#[derive(Default)]
pub(crate) struct KnownTree {
    tree: Tree,
    removals: u64,
}

impl KnownTree {
    /// Reads the leaves that came since.
    async fn read(&mut self, log: &dyn Log) -> MynahResult<()> {
        loop {
            let leaves = log.seals(self.tree.size(), 1000).await?;
            if leaves.is_empty() {
                return Ok(());
            }
            for leaf in &leaves {
                self.tree.push(leaf.leaf());
                self.removals += u64::from(*leaf.run_id == *MAINTENANCE);
            }
        }
    }
}

/// How many runs are counted at most.
const COUNTED: usize = 10_000;

/// `GET /v1/log`
pub(crate) async fn about(State(app): State<App>, uri: Uri) -> Result {
    Query::of(&uri).end()?;
    let (leaves, removals, root) = {
        let mut known = app.tree.lock().await;
        known.read(app.log.as_ref()).await?;
        (known.tree.size(), known.removals, known.tree.root())
    };
    let words = RunStatus::ALL.iter().map(|status| status.as_str()).chain(runs::WORDS);
    let mut counts: Value = words.map(|word| (word.to_owned(), json!(0))).collect();
    let mut count = |name: &str| counts[name] = json!(counts[name].as_u64().unwrap_or(0) + 1);
    let (mut filter, mut counted, mut complete) = (RunFilter::new().limit(1000), 0, true);
    loop {
        let page = app.log.runs(filter.clone()).await?;
        for run in &page.runs {
            count(run.status_word(now()));
        }
        counted += page.runs.len();
        let Some(next) = page.next else { break };
        if counted >= COUNTED {
            complete = false;
            break;
        }
        filter = filter.after(next);
    }
    Ok(reply::ok(&json!({
        "leaves": leaves, "seals": leaves - removals, "removals": removals, "root": root,
        "counts": counts, "counted": counted, "complete": complete,
    })))
}

/// What verifying a whole log found.
#[derive(Default)]
struct Tally {
    runs: u64,
    wrong: Vec<Value>,
}

/// `GET /v1/log/verify`
pub(crate) async fn verify_all(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Result {
    let mut query = Query::of(&uri);
    let kept = query.parsed::<Hash>("root", "a root, 64 hexadecimal digits")?;
    query.end()?;
    if !reply::wants_stream(&headers) {
        return Ok(reply::ok(&verify_log(&app, kept, None).await?));
    }
    // As many as a client has not read yet wait here.
    let (sender, receiver) = mpsc::channel(16);
    let shared = App::clone(&app);
    tokio::spawn(async move {
        let last = match verify_log(&shared, kept, Some(&sender)).await {
            Ok(found) => reply::event(&found).event("end"),
            Err(error) => reply::event(&Problem::from(error)).event("problem"),
        };
        // A client that left does not need it.
        let _ = sender.send(last).await;
    });
    let events = stream::unfold(receiver, async |mut receiver| {
        let event = receiver.recv().await?;
        Some((event, receiver))
    });
    Ok(reply::stream(&app, events))
}

/// Verifies every run and the list of seals. It stops if the client that watches it has left.
async fn verify_log(
    app: &App,
    kept: Option<Hash>,
    progress: Option<&mpsc::Sender<Event>>,
) -> MynahResult<Value> {
    let log = app.log.as_ref();
    let (mut auditor, mut tally) = (Auditor::new(log), Tally::default());
    let mut filter = RunFilter::new();
    'pages: loop {
        let page = log.runs(filter.clone()).await?;
        let damaged = page.damaged.iter().map(|damaged| &damaged.run_id);
        for run in page.runs.iter().map(|run| &run.run_id).chain(damaged) {
            let found = match auditor.verify_run(run).await {
                // It was there when it was listed.
                Err(error) if error.kind() == ErrorKind::Log(LogReason::Pruned) => continue,
                found => verified(app, run, found)?,
            };
            tally.runs += 1;
            if let Some(progress) = progress
                && progress.send(reply::event(&found).event("run")).await.is_err()
            {
                break 'pages;
            }
            if found.get("err").is_some() {
                tally.wrong.push(found);
            }
        }
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    let mut shown = json!({"runs": tally.runs, "wrong": tally.wrong});
    if let Some(root) = kept {
        let leaves = match auditor.leaves_under(&root).await {
            // What is damaged is reported beside this.
            Err(error) if is_damage(error.kind()) => None,
            leaves => leaves?,
        };
        shown["kept"] = json!({"root": root, "leaves": leaves});
    }
    let seals = match auditor.verify_seals().await {
        Ok(tree) => auditor.removals().await.map(|removals| (tree, removals.head())),
        Err(error) => Err(error),
    };
    match seals {
        Ok((tree, removals)) => {
            let removals = removals.map_or(0, |head| head.seq);
            shown["leaves"] = json!(tree.size());
            shown["seals"] = json!(tree.size().saturating_sub(removals));
            shown["removals"] = json!(removals);
            shown["root"] = json!(tree.root());
            shown["err"] = Value::Null;
        }
        Err(error) if is_damage(error.kind()) => shown["err"] = json!(error),
        Err(error) => return Err(error),
    }
    Ok(shown)
}

/// `GET /healthz`
pub(crate) async fn health() -> &'static str {
    "ok\n"
}

/// `GET /readyz`
pub(crate) async fn ready(State(app): State<App>) -> Result {
    if app.stopping.is_cancelled() {
        return Err(stopping());
    }
    match probe(&app, RunFilter::new().limit(1)).await {
        Ok(_) => Ok("ok\n".into_response()),
        Err(why) => {
            let detail = format!("the log cannot be used: {why}");
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "log_unavailable", detail))
        }
    }
}

/// Reads runs, within the time that a probe has. If this server performs runs, it writes something, and checks that it may write
/// the rest.
async fn probe(app: &App, filter: RunFilter) -> std::result::Result<RunPage, String> {
    const TIME: Duration = Duration::from_secs(3);
    let used = async {
        if !app.agents.0.is_empty() {
            app.log.check_writable().await?;
            app.log.beat("probe", TIME).await?;
        }
        app.log.runs(filter).await
    };
    match timeout(TIME, used).await {
        Ok(used) => used.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it did not answer within {} seconds", TIME.as_secs())),
    }
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let filter = RunFilter::new().abandoned(now()).oldest_first().limit(runs::LARGEST);
    let waiting = match probe(&app, filter).await {
        Ok(page) => {
            let waiting = page.runs.iter().filter(|run| run.queue.is_some());
            let since = waiting.clone().map(|run| run.updated).min();
            let oldest =
                since.map_or(0, |since| now().saturating_sub(since).max(0) / 1_000_000_000);
            Some(Waiting { runs: waiting.count() as u64, oldest: oldest.cast_unsigned() })
        }
        Err(_) => None,
    };
    ([(header::CONTENT_TYPE, kind)], app.metrics.text(waiting.as_ref())).into_response()
}
