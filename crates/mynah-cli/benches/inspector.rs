//! The inspector over a large log: the first page of many runs, a long run in Chromium, and the memory of the server.
//!
//! `cargo xtask bench inspector`. Prints each number with its goal, and their ratio. `MYNAH_BENCH_RUNS` is the number of runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench that cannot measure stops")]

#[path = "../tests/chromium/mod.rs"]
mod chromium;

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use chromium::Browser;
use futures_util::{StreamExt as _, stream};
use mynah::log::{Durability, Log as _, SqliteLog, conformance::Sample};

const TRIES: usize = 40;
const PAGES: usize = 1_000;

fn main() {
    // `cargo test --benches` runs it too.
    if !env::args().any(|argument| argument == "--bench") {
        return;
    }
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("runs.db");
    let runs = number("MYNAH_BENCH_RUNS", 1_000_000);
    let began = now();
    fill(&path, runs);
    println!("{runs} runs written in {:.0?}\n", began.elapsed());
    println!("{:<58} {:>10} {:>10} {:>6}", "", "measured", "goal", "ratio");
    let server = Server::start(&path);
    let runs_page = "/v1/runs?limit=100&input=true";
    first_page(&server, "first page of the runs", runs_page, Some(50.0));
    let filtered = "/v1/runs?limit=100&input=true&status=failed";
    first_page(&server, "first page, a filter without a match", filtered, Some(50.0));
    first_page(&server, "sums of the last day, for the charts", "/v1/stats?buckets=48", None);
    first_page(&server, "text search, one request", "/v1/runs?text=unheard&limit=100", None);
    memory(&server, runs_page);
    if let Some(browser) = Browser::start() {
        let page = format!("http://{}/", server.address);
        painted(&browser, "the list of runs", &page, "tr[data-run]");
        for (view, row) in [
            ("conversation", ".message"),
            ("timeline", ".span-row"),
            ("records", ".record-row.row"),
        ] {
            let page = format!("http://{}/?run=long&view={view}", server.address);
            painted(&browser, &format!("10,000 records, {view}"), &page, row);
            scrolled(&browser, view);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the variable is that of the bench")]
fn number(name: &str, default: i64) -> i64 {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Prints a number, what it should not exceed, and by how much it does.
fn report(what: &str, measured: f64, unit: &str, goal: Option<f64>) {
    let shown = format!("{measured:.1} {unit}");
    match goal {
        Some(goal) => {
            let wanted = format!("{goal:.0} {unit}");
            println!("{what:<58} {shown:>10} {wanted:>10} {:>6.2}", measured / goal);
        }
        None => println!("{what:<58} {shown:>10} {:>10} {:>6}", "–", "–"),
    }
}

/// A log with so many short runs of the last days, and one of 10,003 records.
fn fill(path: &Path, runs: i64) {
    const SECOND: i64 = 1_000_000_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open_with(path, Durability::Relaxed).unwrap();
        let since = mynah::World::now(&mynah::SystemWorld)
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        let end = i64::try_from(since.as_nanos()).unwrap();
        let all = stream::iter(0..runs).map(|n| {
            let log = &log;
            async move {
                let mut run =
                    Sample::new(format!("run-{n:07}"), end - (runs - n) * SECOND).sealed();
                log.append(run.batch()).await.unwrap();
            }
        });
        all.buffer_unordered(512).collect::<Vec<()>>().await;
        let long = (0..2000).fold(Sample::new("long", end), |run, _| run.tool_turn());
        log.append(long.sealed().batch()).await.unwrap();
    });
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(path: &Path) -> Self {
        let log = format!("sqlite:{}", path.display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_mynah"))
            .args(["inspect", "--json", "--listen", "127.0.0.1:0", "--log", &log])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        Self { child, address }
    }

    /// Sends a request, and leaves the answer to be read.
    fn ask(&self, path: &str, accept: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.ask(path, "application/json").read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {}", &answer[..answer.len().min(400)]);
        answer
    }

    /// A line of what the system knows of the server's process.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim_end_matches("kB").trim().parse().unwrap()
    }

    /// The processor time that the server has taken.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(10 * ticks)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The time until an answer is there, and the processor time that it took.
fn first_page(server: &Server, what: &str, path: &str, goal: Option<f64>) {
    server.get(path);
    let before = server.cpu();
    let mut times: Vec<f64> = (0..TRIES)
        .map(|_| {
            let began = now();
            server.get(path);
            began.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let cpu = (server.cpu() - before).as_secs_f64() * 1e3 / TRIES as f64;
    report(&format!("{what}, median of {TRIES}"), times[TRIES / 2], "ms", goal);
    report(&format!("{what}, processor time"), cpu, "ms", goal);
}

/// Opens pages as a browser does, each with a stream of changes: all at once, then again and again.
fn memory(server: &Server, path: &str) {
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let open: Vec<TcpStream> = (0..PAGES)
            .map(|_| {
                server.get(path);
                let mut stream = server.ask("/v1/changes", "text/event-stream");
                let mut first = [0; 12];
                stream.read_exact(&mut first).unwrap();
                stream
            })
            .collect();
        rounds.push(server.status("VmRSS") as f64 / 1024.0);
        drop(open);
    }
    report("server with 1,000 open pages, first time", rounds[0], "MB", None);
    report("the same for the fifth time", rounds[4], "MB", Some(rounds[0] * 1.1));
}

/// The time to the first paint, and until rows are there.
fn painted(browser: &Browser, what: &str, page: &str, row: &str) {
    let mut times: Vec<(f64, f64)> = (0..5)
        .map(|_| {
            browser.open(page);
            let shown = format!("document.querySelector({row:?}) !== null && performance.now()");
            let rows = browser.wait(&shown).as_f64().unwrap();
            let paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime";
            (browser.wait(paint).as_f64().unwrap(), rows)
        })
        .collect();
    times.sort_by(|one, two| one.0.total_cmp(&two.0));
    report(&format!("{what}: first paint, median of 5"), times[2].0, "ms", Some(300.0));
}

/// The longest task of the page while its rows are scrolled through.
fn scrolled(browser: &Browser, view: &str) {
    browser.wait("document.querySelector('.run-facts')?.innerText.includes('10,003')");
    let script = "const frame = () => new Promise((ok) => requestAnimationFrame(ok)); \
        for (let n = 0; n < 30; n += 1) await frame(); \
        const long = []; const observer = new PerformanceObserver((list) => long.push(...list.getEntries().map((task) => task.duration))); \
        observer.observe({ type: 'longtask' }); \
        const box = document.querySelector('.rows') ?? document.scrollingElement; \
        for (let n = 0; n < 200; n += 1) { box.scrollTop += 1500; await frame(); } \
        await new Promise((ok) => setTimeout(ok, 300)); observer.disconnect(); \
        return Math.max(0, ...long)";
    let longest = browser.run(&format!("return (async () => {{ {script} }})()"));
    let what = format!("10,000 records, {view}: longest task over 50 ms");
    report(&what, longest.as_f64().unwrap(), "ms", Some(50.0));
}
