//! The `mynah` command. One module for each verb.

mod agent;
mod best_effort;
mod cancel;
mod chat;
mod completions;
mod demo;
mod describe;
mod diff;
mod doctor;
mod event_printer;
mod export;
mod failure;
mod fork;
mod form;
mod generate;
mod golden;
mod import;
mod input;
mod interrupt;
mod ledger;
mod log;
mod model;
mod models;
mod near;
mod play;
mod prune;
mod redact;
mod reference;
mod related;
mod replay;
mod resume;
mod run;
mod runs;
mod screen;
#[cfg(feature = "serve")]
mod serve;
mod show;
mod store;
mod text;
mod tree;
mod tty;
mod verify;
mod waiting;

use std::{
    env,
    ffi::OsStr,
    io::{self, Write as _},
    path::PathBuf,
    pin::{Pin, pin},
    process::ExitCode,
    sync::Arc,
    time::SystemTime,
};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    builder::NonEmptyStringValueParser,
};
use futures_util::future::{Either, select};
use mynah::{
    SystemWorld, World as _,
    log::{Log, Warrant},
};
use serde_json::json;
use tokio::runtime::Builder;

pub(crate) use self::failure::Failure;

/// Run, record, verify, replay and resume language-model agents.
#[derive(Parser)]
#[command(name = "mynah", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    // Verbs repeat these where they document more. Here they are accepted before the verb, and for verbs whose errors alone
    // they change.
    /// Log that keeps the runs: memory:, sqlite:PATH or postgres://USER@HOST/DATABASE.
    #[arg(id = "log", long = "log", value_name = "URL", global = true)]
    _log: Option<String>,
    /// Print JSON, one value per line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Check an agent file, or write a new one.
    #[command(after_help = agent::EXAMPLES)]
    Agent(agent::Arguments),
    /// Compare an agent with its goldens.
    #[command(after_help = golden::CHECK_EXAMPLES)]
    Check(golden::CheckArguments),
    /// Talk to an agent or a model in the terminal.
    #[command(after_help = chat::EXAMPLES)]
    Chat(chat::Arguments),
    /// Let an agent work on a goal.
    #[command(after_help = run::EXAMPLES)]
    Run(run::Arguments),
    /// Cancel a run that waits or was abandoned.
    #[command(after_help = cancel::EXAMPLES)]
    Cancel(cancel::Arguments),
    /// Print a completion script for a shell.
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::Arguments),
    /// Watch an agent that is killed, resumed, replayed and verified.
    ///
    /// Needs no API key and takes a few seconds.
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::Arguments),
    /// Compare two runs, record by record.
    ///
    /// Marks the first difference. Ids, times and hashes are not compared: a run and its fork are equal up to the point where
    /// they diverge.
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::Arguments),
    /// Check the installation: versions, log, a sample of runs, API keys.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Arguments),
    /// Branch a run: copy it up to a record into a new run.
    #[command(after_help = fork::EXAMPLES)]
    Fork(fork::Arguments),
    /// Call a model once.
    ///
    /// Tools are described to the model and never run. The call is recorded only with --log.
    #[command(after_help = generate::EXAMPLES)]
    Generate(generate::Arguments),
    /// Keep runs as goldens: regression tests for agents.
    #[command(after_help = golden::GOLDEN_EXAMPLES)]
    Golden(golden::GoldenArguments),
    /// Show the runs of a log in a browser.
    ///
    /// Serves the same pages and API as `mynah serve`, without agents.
    #[cfg(feature = "serve")]
    #[command(after_help = serve::INSPECT_EXAMPLES)]
    Inspect(serve::InspectArguments),
    /// Prepare a log: create its file or its tables.
    #[command(after_help = log::EXAMPLES)]
    Log(log::Arguments),
    /// List known models: limits, capabilities, prices.
    #[command(after_help = models::EXAMPLES)]
    Models(models::Arguments),
    /// Run a scenario: scripted answers, simulated tools, a list of operations.
    ///
    /// Prints one JSON value per line: each event of a streamed operation, then the result of the operation.
    #[command(after_help = play::EXAMPLES)]
    Play {
        /// Scenario file; `-` reads standard input.
        file: PathBuf,
        /// Record every run in this log: memory: or sqlite:PATH. By default nothing is recorded.
        #[arg(long, value_name = "URL")]
        log: Option<String>,
        /// Replace ids and times with counters, so that two outputs can be compared as text.
        #[arg(long)]
        stable: bool,
    },
    /// Execute a run again from its records, and compare.
    ///
    /// The model is never called. Without an agent, this checks that the records are what this version would produce. With
    /// one, it shows the first thing that this agent would do differently.
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Arguments),
    /// Resume a run that has not ended.
    ///
    /// It continues after a crash, or with what it waits for. Completed model calls and tools are not repeated.
    #[command(after_help = resume::EXAMPLES)]
    Resume(resume::Arguments),
    /// List runs, newest first.
    #[command(after_help = runs::EXAMPLES)]
    Runs(runs::Arguments),
    /// Offer agents and the runs of a log over HTTP.
    ///
    /// Listens on loopback. Other addresses need --token-file.
    #[cfg(feature = "serve")]
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Arguments),
    /// Show one run as a transcript, as a timeline, or by its records.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Arguments),
    /// Verify that runs were not changed: chain, seals, totals, index.
    ///
    /// Names the first wrong record and the reason. A run without an end is in progress, which is no error.
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Arguments),
    /// Write a run to a file that can be verified without the log.
    #[command(after_help = export::EXAMPLES)]
    Export(export::Arguments),
    /// Import an exported run into a log.
    #[command(after_help = import::EXAMPLES)]
    Import(import::Arguments),
    /// Remove old runs from a log. Without --yes, only list them.
    ///
    /// The rest still verifies: for each removed run, a tombstone says who removed it, when and why.
    #[command(after_help = prune::EXAMPLES)]
    Prune(prune::Arguments),
    /// Remove the content of records. Without --yes, only list them.
    ///
    /// The run still verifies; it can no longer be replayed or resumed.
    #[command(after_help = redact::EXAMPLES)]
    Redact(redact::Arguments),
    /// Write the reference of this command: Markdown, man pages and shell completions.
    #[command(after_help = reference::EXAMPLES)]
    Reference(reference::Arguments),
}

/// The log of the folder.
const DEFAULT_LOG: &str = "sqlite:mynah.db";

/// What every verb that reads runs takes.
#[derive(Args, Clone)]
pub(crate) struct LogArgs {
    /// Log that keeps the runs: memory:, sqlite:PATH or postgres://USER@HOST/DATABASE.
    #[arg(long, value_name = "URL", env = "MYNAH_LOG", default_value = DEFAULT_LOG)]
    pub(crate) log: String,
    /// Print JSON, one value per line.
    #[arg(long)]
    pub(crate) json: bool,
}

impl LogArgs {
    /// Whether nothing of it is left when the program ends.
    pub(crate) fn is_lost(&self) -> bool {
        self.log == "memory:"
    }

    /// The command that does something with a run of this log.
    pub(crate) fn command(&self, verb: &str, run: &str, rest: &str) -> String {
        format!("mynah {verb} {}{rest}{}", text::quoted(run), log_flag(&self.log))
    }
}

/// The flag that names this log in a command; none for the default log.
pub(crate) fn log_flag(log: &str) -> String {
    let other = env::var_os("MYNAH_LOG").filter(|other| !other.is_empty() && other != log);
    match log {
        DEFAULT_LOG if other.is_none() => String::new(),
        log => format!(" --log {}", text::quoted(&store::shown(log))),
    }
}

const EXAMPLES: &str = "Examples:
  mynah demo                                   see what it does, without a key
  mynah generate -m anthropic:claude-sonnet-5 'What is a mynah?'
                                               call a model
  mynah play agent.json                        run a scenario; the demo leaves one
  mynah play --log sqlite:mynah.db agent.json  record its runs
  mynah runs                                   list runs
  mynah show last                              read the newest run
  mynah replay last                            execute it again from its records
  mynah verify                                 verify all runs
  mynah export last -o run.ndjson              write a run to a file that can be verified
  mynah prune --older-than 30d --reason age    list runs that could be removed

Exit codes: 0 done; 1 a problem was found, or a run failed; 2 wrong usage or a bad input file; 3 a run waits; 4 a log, file, folder or server is missing or cannot be used; 130 interrupted.";

/// What every verb that takes something away takes.
#[derive(Args)]
pub(crate) struct RemovalArgs {
    /// Reason, in a few words; it is recorded.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Person who does it; recorded.
    #[arg(
        long,
        value_name = "NAME",
        env = "USER",
        hide_env_values = true,
        default_value = "unknown"
    )]
    by: String,
    /// Do it. Without this flag nothing is changed.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl RemovalArgs {
    pub(crate) fn warrant(&self) -> Warrant {
        Warrant::new(&*self.by, &*self.reason, now())
    }

    /// The log, opened for writing only if something will be removed.
    pub(crate) fn open(&self, log: &str) -> Result<Arc<dyn Log>, Failure> {
        let place = store::LogLocation::parse(log)?;
        if self.yes { place.open_to_write() } else { place.open_to_read() }
    }

    /// Sees to it that nothing is left of what went.
    pub(crate) fn wipe(&self, runtime: &Runtime, log: &dyn Log) -> Result<(), Failure> {
        if self.yes { Ok(runtime.block_on(log.wipe())?) } else { Ok(()) }
    }
}

/// The time, in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemWorld.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The runtime of one verb.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime
        .map(Runtime)
        .map_err(|error| Failure::file(format!("the runtime could not start: {error}")))
}

/// Runs the library's futures on this thread.
pub(crate) struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    /// Waits until the work is done.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        // Tokio's method is compiled for each type of future. This is one for each type of result.
        self.0.block_on(Box::pin(work) as Pin<Box<dyn Future<Output = T> + '_>>)
    }
}

/// The result of the work; none if the program is interrupted before. Abandoned work keeps its
/// records.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(interrupt::interrupted()), pin!(work)).await {
        Either::Left(_) => None,
        Either::Right((done, _)) => Some(done),
    }
}

/// The result of writing to standard output.
pub(crate) fn written(done: io::Result<()>) -> Result<(), Failure> {
    match done {
        // The reader closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| Failure::file(format!("standard output: {error}"))),
    }
}

/// The parsed command line. An empty variable counts as unset.
fn parse() -> Result<Cli, clap::Error> {
    let is_empty = |name: &OsStr| env::var_os(name).is_some_and(|value| value.is_empty());
    let command = Cli::command().mut_subcommands(|verb| {
        verb.mut_args(|argument| match argument.get_env() {
            Some(name) if is_empty(name) => argument.env(None::<&str>),
            _ => argument,
        })
    });
    Cli::from_arg_matches(&command.try_get_matches()?)
}

/// Ends the program over arguments that do not fit, or with the help that was asked for.
fn refuse(error: &clap::Error) -> ! {
    let asked_for =
        |flag: &str| env::args_os().take_while(|word| word != "--").any(|word| word == flag);
    if error.use_stderr() && asked_for("--json") {
        let told = error.render().to_string();
        let err = Failure::input(told.trim_start_matches("error: ").trim_end()).err();
        // The parser prints the message and exits.
        let _ = writeln!(io::stdout(), "{}", json!({"err": err}));
    }
    error.exit()
}

fn main() -> ExitCode {
    let Cli { verb, json, .. } = parse().unwrap_or_else(|error| refuse(&error));
    match perform(verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(json),
    }
}

fn perform(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Agent(arguments) => agent::main(arguments),
        Verb::Check(arguments) => golden::check_main(arguments),
        Verb::Chat(arguments) => chat::main(arguments),
        Verb::Run(arguments) => run::main(arguments),
        Verb::Cancel(arguments) => cancel::main(arguments),
        Verb::Completions(arguments) => completions::main(arguments),
        Verb::Demo(arguments) => demo::main(arguments),
        Verb::Diff(arguments) => diff::main(arguments),
        Verb::Doctor(arguments) => doctor::main(arguments),
        Verb::Fork(arguments) => fork::main(arguments),
        Verb::Generate(arguments) => generate::main(arguments),
        Verb::Golden(arguments) => golden::main(arguments),
        #[cfg(feature = "serve")]
        Verb::Inspect(arguments) => serve::inspect(arguments),
        Verb::Log(arguments) => log::main(arguments),
        Verb::Models(arguments) => models::main(arguments),
        Verb::Replay(arguments) => replay::main(arguments),
        Verb::Resume(arguments) => resume::main(arguments),
        Verb::Runs(arguments) => runs::main(arguments),
        #[cfg(feature = "serve")]
        Verb::Serve(arguments) => serve::main(arguments),
        Verb::Show(arguments) => show::main(arguments),
        Verb::Verify(arguments) => verify::main(arguments),
        Verb::Export(arguments) => export::main(arguments),
        Verb::Import(arguments) => import::main(arguments),
        Verb::Prune(arguments) => prune::main(arguments),
        Verb::Redact(arguments) => redact::main(arguments),
        Verb::Reference(arguments) => reference::main(&arguments),
        Verb::Play { file, log, stable } => play::main(&file, log.as_deref(), stable),
    }
}
