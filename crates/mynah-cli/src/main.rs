//! The `mynah` command. One module for each verb.

mod export;
mod import;
mod play;
mod prune;
mod redact;
mod runs;
mod show;
mod store;
mod text;
mod verify;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::SystemTime,
};

use clap::{Args, Parser, Subcommand};
use mynah::{
    SystemWorld, World as _,
    log::{Log, Warrant},
};

/// A runtime for language-model work.
#[derive(Parser)]
#[command(name = "mynah", version, about, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
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
    /// List runs, newest first.
    #[command(after_help = runs::EXAMPLES)]
    Runs(runs::Arguments),
    /// Show one run as a transcript, or its records.
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

/// What every verb that reads runs takes.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// Where runs are kept: memory: or sqlite:PATH.
    #[arg(long, value_name = "URL", env = "MYNAH_LOG", default_value = "sqlite:mynah.db")]
    pub(crate) log: String,
    /// One JSON value a line.
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "Examples:
  mynah play scenarios/chat/tool_turn.json     perform a scenario
  mynah play --stable FILE.json > FILE.out     an output that can be compared as text
  mynah play --log sqlite:mynah.db FILE.json   keep its runs
  mynah runs                                   list them
  mynah show last                              read the newest
  mynah verify                                 see that they are what they were
  mynah export last -o run.ndjson              take one along, in a file that can be checked
  mynah prune --older-than 30d --reason age    see what would go

Exit codes: 0 done; 1 something was found wrong; 2 wrong usage or a bad input file; 4 a store or file that could not be used.";

/// What every verb that takes something away takes.
#[derive(Args)]
pub(crate) struct RemovalArgs {
    /// Why, in a few words; it is kept.
    #[arg(long, value_name = "TEXT")]
    reason: String,
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
        if self.yes { place.open_existing() } else { place.open_to_read() }
    }
}

/// The time, in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemWorld.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Why the command ends with something other than 0.
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Something that was looked for and found wrong.
    pub(crate) fn finding(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// A bad input file.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// A file that could not be used.
    pub(crate) fn file(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into() }
    }
}

/// What runs the library's futures.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| Failure::file(format!("the runtime could not start: {error}")))
}

/// What writing to standard output came to.
pub(crate) fn written(done: io::Result<()>) -> Result<(), Failure> {
    match done {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| Failure::file(format!("standard output: {error}"))),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Runs(arguments) => runs::main(arguments),
        Verb::Show(arguments) => show::main(arguments),
        Verb::Verify(arguments) => verify::main(arguments),
        Verb::Export(arguments) => export::main(arguments),
        Verb::Import(arguments) => import::main(arguments),
        Verb::Prune(arguments) => prune::main(arguments),
        Verb::Redact(arguments) => redact::main(arguments),
        Verb::Play { file, log, stable } => play::main(&file, log.as_deref(), stable),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody may be left to read it; the exit code still tells.
            let _ = writeln!(io::stderr(), "mynah: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
