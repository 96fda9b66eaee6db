//! The `mynah` command. One module for each verb.

mod agent;
mod cancel;
mod chat;
mod completions;
mod demo;
mod diff;
mod doctor;
mod export;
mod failure;
mod fork;
mod generate;
mod gist;
mod import;
mod input;
mod interrupt;
mod kin;
mod ledger;
mod model;
mod models;
mod near;
mod play;
mod prune;
mod redact;
mod replay;
mod resume;
mod run;
mod runs;
mod screen;
#[cfg(feature = "serve")]
mod serve;
mod show;
mod steady;
mod store;
mod teller;
mod text;
mod tree;
mod verify;
mod waiting;

use std::{
    env,
    ffi::OsStr,
    io::{self, Write as _},
    path::PathBuf,
    pin::pin,
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
use tokio::runtime::{Builder, Runtime};

pub(crate) use self::failure::Failure;

/// A runtime for language-model work.
#[derive(Parser)]
#[command(name = "mynah", version, about, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    // Verbs have these themselves where they say more of them. Here they stand so that they may be said before the verb, and
    // of a verb to which they change nothing but how its errors are told.
    /// Where runs are kept: memory: or sqlite:PATH.
    #[arg(id = "log", long = "log", value_name = "URL", global = true)]
    _log: Option<String>,
    /// One JSON value a line.
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
    /// Talk to an agent, line by line.
    #[command(after_help = chat::EXAMPLES)]
    Chat(chat::Arguments),
    /// Let an agent work on a goal.
    #[command(after_help = run::EXAMPLES)]
    Run(run::Arguments),
    /// End a run that has no end: one that waits, or whose process ended.
    #[command(after_help = cancel::EXAMPLES)]
    Cancel(cancel::Arguments),
    /// Print what a shell needs to complete the words of this command.
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::Arguments),
    /// See what this is good for: an agent is killed in the middle of its work, goes on, and can prove what it did.
    ///
    /// Needs no key and takes a few seconds.
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::Arguments),
    /// Compare two runs, record by record.
    ///
    /// Marks the first thing that is different. Ids, times and hashes are not compared: a run and its fork are the same up
    /// to where one of them went on differently.
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::Arguments),
    /// Look whether everything is in order: versions, the log, a sample of its runs, keys.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Arguments),
    /// Branch a run: copy it up to a record into a new run, to go on differently.
    #[command(after_help = fork::EXAMPLES)]
    Fork(fork::Arguments),
    /// Call a model once.
    ///
    /// Tools are described to it and never run. The call is kept only where --log says.
    #[command(after_help = generate::EXAMPLES)]
    Generate(generate::Arguments),
    /// Look at the runs of a log in a browser.
    ///
    /// Serves the same pages and API as `mynah serve`, and changes nothing.
    #[cfg(feature = "serve")]
    #[command(after_help = serve::INSPECT_EXAMPLES)]
    Inspect(serve::InspectArguments),
    /// List the models that are known: limits, what they can do, prices.
    #[command(after_help = models::EXAMPLES)]
    Models(models::Arguments),
    /// Perform a scenario: scripted answers, simulated tools, a list of operations.
    ///
    /// Prints one JSON value a line: each event of a streamed operation, then what the operation came to.
    #[command(after_help = play::EXAMPLES)]
    Play {
        /// The scenario; `-` reads standard input.
        file: PathBuf,
        /// Keep every run in this log: memory: or sqlite:PATH. Without it nothing is kept.
        #[arg(long, value_name = "URL")]
        log: Option<String>,
        /// Replace ids and times with counters, so that two outputs can be compared as text.
        #[arg(long)]
        stable: bool,
    },
    /// Perform a run again from its records, and compare.
    ///
    /// The model is never called. Without an agent every tool answers from its record: a check that the records are what
    /// this version makes of them. With one it tells the first thing that this agent would do differently.
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Arguments),
    /// Go on with a run that has no end: after a crash, or with what it waits for.
    ///
    /// Completed model calls and tools are not repeated.
    #[command(after_help = resume::EXAMPLES)]
    Resume(resume::Arguments),
    /// List runs, newest first.
    #[command(after_help = runs::EXAMPLES)]
    Runs(runs::Arguments),
    /// Offer the runs of a log over HTTP.
    ///
    /// Listens on loopback. Other addresses need --token-file.
    #[cfg(feature = "serve")]
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Arguments),
    /// Show one run as a transcript, as a timeline, or by its records.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Arguments),
    /// Check that runs are what they were: chain, seals, totals, index.
    ///
    /// Names the first record that is wrong, and how. A run that has no end yet is in progress, which is not an error.
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Arguments),
    /// Write one run to a file that can be checked without the log.
    #[command(after_help = export::EXAMPLES)]
    Export(export::Arguments),
    /// Take the run of such a file into a log.
    #[command(after_help = import::EXAMPLES)]
    Import(import::Arguments),
    /// Take old runs out of a log. Without --yes it only says which.
    ///
    /// What is left still verifies: of each run that went, a tombstone says who took it out, when and why.
    #[command(after_help = prune::EXAMPLES)]
    Prune(prune::Arguments),
    /// Take away what records of a run hold. Without --yes it only says which.
    ///
    /// The run still verifies; it cannot be performed again.
    #[command(after_help = redact::EXAMPLES)]
    Redact(redact::Arguments),
}

/// The log of the folder.
const DEFAULT_LOG: &str = "sqlite:mynah.db";

/// What every verb that reads runs takes.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// Where runs are kept: memory: or sqlite:PATH.
    #[arg(long, value_name = "URL", env = "MYNAH_LOG", default_value = DEFAULT_LOG)]
    pub(crate) log: String,
    /// One JSON value a line.
    #[arg(long)]
    pub(crate) json: bool,
}

impl LogArgs {
    /// The command that does something with a run of this log.
    pub(crate) fn command(&self, verb: &str, run: &str, rest: &str) -> String {
        format!("mynah {verb} {}{rest}{}", text::quoted(run), log_flag(&self.log))
    }
}

/// What names this log in a command; nothing where it is the one that is meant without a word.
pub(crate) fn log_flag(log: &str) -> String {
    let other = env::var_os("MYNAH_LOG").filter(|other| !other.is_empty() && other != log);
    match log {
        DEFAULT_LOG if other.is_none() => String::new(),
        log => format!(" --log {}", text::quoted(log)),
    }
}

const EXAMPLES: &str = "Examples:
  mynah demo                                   see what it is for, without a key
  mynah generate -m anthropic:claude-sonnet-5 'What is a mynah?'
                                               ask a model
  mynah play agent.json                        perform a scenario; the demo leaves one
  mynah play --log sqlite:mynah.db agent.json  keep its runs
  mynah runs                                   list them
  mynah show last                              read the newest
  mynah replay last                            perform it again from its records
  mynah verify                                 see that they are what they were
  mynah export last -o run.ndjson              take one along, in a file that can be checked
  mynah prune --older-than 30d --reason age    see what would go

Exit codes: 0 done; 1 something was found wrong, or a run failed; 2 wrong usage or a bad input
file; 3 a run that waits; 4 a store, file or server that could not be used; 130 interrupted.";

/// What every verb that takes something away takes.
#[derive(Args)]
pub(crate) struct RemovalArgs {
    /// Why, in a few words; it is kept.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Who does it; it is kept.
    #[arg(
        long,
        value_name = "NAME",
        env = "USER",
        hide_env_values = true,
        default_value = "unknown"
    )]
    by: String,
    /// Do it. Without this, nothing is changed.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl RemovalArgs {
    pub(crate) fn warrant(&self) -> Warrant {
        Warrant::new(&*self.by, &*self.reason, now())
    }

    /// The log: to write only if something is to go.
    pub(crate) fn open(&self, log: &str) -> Result<Arc<dyn Log>, Failure> {
        let place = store::Place::parse(log)?;
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

/// What runs the library's futures.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::file(format!("the runtime could not start: {error}")))
}

/// What work comes to; nothing if somebody ends the program before. Work that is left keeps what is recorded.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(interrupt::interrupted()), pin!(work)).await {
        Either::Left(_) => None,
        Either::Right((done, _)) => Some(done),
    }
}

/// What writing to standard output came to.
pub(crate) fn written(done: io::Result<()>) -> Result<(), Failure> {
    match done {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| Failure::file(format!("standard output: {error}"))),
    }
}

/// What was asked for. A variable that is empty says nothing.
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
        // The parser tells people, and ends the program.
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
        Verb::Chat(arguments) => chat::main(arguments),
        Verb::Run(arguments) => run::main(arguments),
        Verb::Cancel(arguments) => cancel::main(arguments),
        Verb::Completions(arguments) => completions::main(arguments),
        Verb::Demo(arguments) => demo::main(arguments),
        Verb::Diff(arguments) => diff::main(arguments),
        Verb::Doctor(arguments) => doctor::main(arguments),
        Verb::Fork(arguments) => fork::main(arguments),
        Verb::Generate(arguments) => generate::main(arguments),
        #[cfg(feature = "serve")]
        Verb::Inspect(arguments) => serve::inspect(arguments),
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
        Verb::Play { file, log, stable } => play::main(&file, log.as_deref(), stable),
    }
}
