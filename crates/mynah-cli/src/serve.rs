//! `mynah serve` and `mynah inspect`: the runs of a log over HTTP.

use std::{
    env, fs,
    io::{self, IsTerminal as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use mynah::{
    ErrorKind, LogReason,
    log::{Log, MemoryLog, RunFilter, bundle},
};
use mynah_agent::AgentFile;
use mynah_server::{Agent, Server};
use serde_json::json;
use tokio::{net::TcpListener, time::timeout};
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    input,
    interrupt::interrupted,
    model::script,
    store::LogLocation,
    written,
};

pub(crate) const EXAMPLES: &str = "The API is described in docs/server.md.

Examples:
  mynah serve agent.toml --log sqlite:mynah.db
                                           offer an agent and its runs at http://127.0.0.1:7878
  mynah serve --listen 127.0.0.1:0         on any free port; the first line of the output names it
  mynah serve --listen 0.0.0.0:7878 --token-file token --host runs.example.org
                                           to other machines, with a token
  curl http://127.0.0.1:7878/v1/runs       list the runs

Exit codes: 0 it was stopped; 2 wrong usage; 4 a log, file or address that could not be used.";

pub(crate) const INSPECT_EXAMPLES: &str = "On a terminal with a display a browser opens. Nothing is changed unless --allow-actions is given.

Examples:
  mynah inspect                            the runs of the log of this folder
  mynah inspect --allow-actions            the same, and runs can be cancelled and forked
  mynah inspect run.ndjson                 a run that `mynah export` wrote, without its log
  mynah inspect --no-open                  print the address, and open no browser

Exit codes: 0 it was stopped; 2 wrong usage; 4 a log, file or address that could not be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Agents that execute runs: agent files (.toml) or scenarios.
    agents: Vec<PathBuf>,
    #[command(flatten)]
    vars: VarArgs,
    /// Execute runs of this queue. Repeatable. By default the queue is `default`.
    #[arg(long = "queue", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    queues: Vec<String>,
    /// Execute at most this many runs of the queues at once, and as many for requests.
    #[arg(long, value_name = "RUNS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Keep answers in the log while they stream, so that other servers of the log show them.
    #[arg(long)]
    durable_events: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args)]
pub(crate) struct InspectArguments {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Show the run of a file that `mynah export` wrote, instead of a log.
    file: Option<PathBuf>,
    /// Allow the page to cancel and fork runs.
    #[arg(long, conflicts_with = "file")]
    allow_actions: bool,
    /// Print the address, and open no browser.
    #[arg(long)]
    no_open: bool,
}

/// Where the server listens, and to whom.
#[derive(Args)]
struct ServerArgs {
    /// Listen on this address and port; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7878")]
    listen: SocketAddr,
    /// Require the token in the first line of this file: at least 16 characters. Needed beyond loopback.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Accept requests to this host name. Repeatable. Addresses and localhost need none.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Refuse bodies of more bytes than this.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_body: usize,
    /// Wait this many seconds for requests in progress when the server is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, agents, vars, server, .. } = arguments;
    let (queues, concurrency) = (arguments.queues, arguments.concurrency);
    let place = LogLocation::parse(&log)?;
    server.serve(json, false, async || {
        let mut loaded: Vec<(String, Agent)> = Vec::new();
        for file in agents {
            let (name, agent) = load(&file, &vars).await?;
            if loaded.iter().any(|(other, _)| *other == name) {
                let why = format!("{}: another agent is called {name:?} too", file.display());
                return Err(Failure::input(why));
            }
            loaded.push((name, agent));
        }
        let log = place.open()?;
        check(log.as_ref(), !loaded.is_empty()).await?;
        let server = Server::new(log).concurrency(concurrency as usize);
        let server = queues.into_iter().fold(server, Server::queue);
        let server = if arguments.durable_events { server.durable_events() } else { server };
        Ok(loaded.into_iter().fold(server, |server, (_, agent)| server.agent(agent)))
    })
}

/// Refuses a log that cannot be used, or not be written by a server that performs runs. One that cannot be reached may be there soon.
async fn check(log: &dyn Log, writes: bool) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let used = async {
        log.runs(RunFilter::new().limit(1)).await?;
        if writes { log.check_writable().await } else { Ok(()) }
    };
    match timeout(PATIENCE, used).await {
        Ok(Err(error)) if error.kind() != ErrorKind::Log(LogReason::Unavailable) => {
            Err(Failure::of(&error).unusable())
        }
        Ok(Err(error)) => {
            eprintln!("warning: the log cannot be used yet: {error}");
            Ok(())
        }
        Ok(Ok(())) => Ok(()),
        Err(_) => {
            eprintln!("warning: the log does not answer yet");
            Ok(())
        }
    }
}

/// Writes warnings and errors to the standard error stream, or what `RUST_LOG` asks for.
fn write_diagnostics() {
    let asked = env::var_os("RUST_LOG");
    let asked = asked.and_then(|asked| asked.to_str()?.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter);
    tracing_subscriber::registry().with(lines).init();
}

/// The agent of a file, and its name.
async fn load(file: &Path, vars: &VarArgs) -> Result<(String, Agent), Failure> {
    let engine = agent::load(file, vars, &agent::Answered::default()).await?;
    let (name, is_scripted) = if agent::is_agent_file(file) {
        let read = AgentFile::read(file)?;
        (read.name(), script(read.model()).is_some())
    } else {
        let name = file.file_stem().unwrap_or(file.as_os_str());
        (name.to_string_lossy().into_owned(), true)
    };
    let agent = Agent::new(&*name, engine);
    if !is_scripted {
        return Ok((name, agent));
    }
    let (file, vars) = (file.to_owned(), vars.clone());
    let agent = agent.made_by(move |log, run| {
        let (file, vars) = (file.clone(), vars.clone());
        Box::pin(async move {
            let answers = match run {
                Some(run) => {
                    let answered = agent::Answered::until(log.as_ref(), &run).await;
                    answered.map_err(Failure::into_error)?
                }
                None => agent::Answered::default(),
            };
            agent::load(&file, &vars, &answers).await.map_err(Failure::into_error)
        })
    });
    Ok((name, agent))
}

pub(crate) fn inspect(arguments: InspectArguments) -> Result<(), Failure> {
    let InspectArguments { log: LogArgs { log, json }, server, file, allow_actions, no_open } =
        arguments;
    server.serve(json, !no_open && !json && has_display(), async || {
        let place = LogLocation::parse(&log)?;
        Ok(match &file {
            Some(file) => Server::new(imported(file).await?),
            None if allow_actions => Server::new(place.open_to_write()?).allow_actions(),
            None => Server::new(place.open_to_read()?),
        })
    })
}

/// Inspects a log on a free port, until the program is interrupted.
pub(crate) fn inspect_place(place: &LogLocation) -> Result<(), Failure> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server =
        ServerArgs { listen, token_file: None, hosts: Vec::new(), max_body: 4 << 20, drain: 30 };
    server.serve(false, has_display(), async || Ok(Server::new(place.open_to_read()?)))
}

/// Whether a page that opens would be seen by the person at the terminal.
fn has_display() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_display =
        cfg!(any(windows, target_os = "macos")) || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    io::stdout().is_terminal() && has_display && !is_set("SSH_CONNECTION")
}

/// A log with the runs of a file.
async fn imported(file: &Path) -> Result<Arc<dyn Log>, Failure> {
    let log = MemoryLog::new();
    for bundle in input::bundles(file)? {
        let imported = bundle::import(&log, bundle).await;
        imported.map_err(|error| Failure::of(&error).in_file(file))?;
    }
    Ok(Arc::new(log))
}

impl ServerArgs {
    /// Serves until the program is interrupted. With `opens` a browser shows the page.
    fn serve(
        self,
        json: bool,
        opens: bool,
        make: impl AsyncFnOnce() -> Result<Server, Failure>,
    ) -> Result<(), Failure> {
        let token = self.token()?;
        write_diagnostics();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Failure::file(format!("the runtime could not start: {error}")))?;
        runtime.block_on(async {
            let drain = Duration::from_secs(self.drain);
            let mut server = make().await?.max_body(self.max_body).drain(drain);
            server = self.hosts.iter().fold(server, |server, host| server.host(host));
            if let Some(token) = token {
                server = server.token(token);
            }
            let failed = |error| Failure::file(format!("{}: {error}", self.listen));
            let listener = TcpListener::bind(self.listen).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            // From here on a signal stops the server instead of the program.
            let stop = interrupted();
            let mut out = io::stdout().lock();
            written(match json {
                true => writeln!(out, "{}", json!({"listening": format!("http://{address}/")})),
                false => writeln!(out, "listening on http://{address}/"),
            })?;
            written(out.flush())?;
            drop(out);
            if opens {
                // The address is printed, so a browser that does not open is no failure.
                let _ = open::that_detached(format!("http://{address}/"));
            }
            server.serve(listener, stop).await.map_err(failed)
        })
    }

    /// The token, which a server needs that other machines can reach.
    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.token_file else {
            return match self.listen.ip().is_loopback() {
                true => Ok(None),
                false => Err(Failure::input(format!(
                    "--listen {}: other machines can reach it; give --token-file FILE",
                    self.listen
                ))),
            };
        };
        let text = fs::read_to_string(file)
            .map_err(|error| Failure::file(format!("{}: {error}", file.display())))?;
        match text.lines().next().map(str::trim) {
            Some(token) if token.len() >= 16 && token.bytes().all(is_of_token) => {
                Ok(Some(token.to_owned()))
            }
            _ => Err(Failure::input(format!(
                "{}: its first line must be a token: at least 16 letters, digits, and -._~+/=",
                file.display()
            ))),
        }
    }
}

/// Whether a token may have this byte: headers and cookies must be able to carry it.
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)
}
