//! `mynah demo`: shows a crash and its recovery, without a key.

mod agent;
mod story;

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use clap::Args;
use mynah::{
    Error, ErrorKind, LogReason, SystemWorld, World as _,
    log::{RunSummary, VerifyReport, verify_run},
    replay_run,
};

use self::{
    agent::{Act, AgentMessage},
    story::{Scene, Story},
};
use crate::{
    Failure, runtime,
    store::{self, LogLocation},
};

pub(crate) const EXAMPLES: &str = "The examples of the other commands work in the folder of the demo: mynah.db is the log, agent.json the agent.

Examples:
  mynah demo                               use a temporary folder
  mynah demo --dir trip                    use a folder of yours; it is created
  mynah demo --json | jq -c .              print the steps as JSON";

/// What the demonstration leaves in its folder.
///
/// The log is where every verb looks for one in the folder.
const LOG: &str = "mynah.db";
const CHANGED: &str = "changed.db";
const AGENT: &str = "agent.json";
const CHARGES: &str = "charges.txt";
const TICKETS: &str = "tickets.txt";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Folder for its files [default: a temporary folder].
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Print JSON, one value per line.
    #[arg(long)]
    json: bool,
    /// Act as the agent of the demonstration.
    #[arg(long, hide = true, requires = "dir")]
    act: Option<Act>,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { dir, json, act } = arguments;
    let folder = dir.unwrap_or_else(|| {
        env::temp_dir().join(format!("mynah-demo-{}", SystemWorld.new_run_id().to_lowercase()))
    });
    if let Some(act) = act {
        return agent::perform(act, &folder);
    }
    if folder.join(LOG).exists() {
        let folder = folder.display();
        return Err(Failure::input(format!(
            "{folder}: there is a {LOG} in it already; give another folder"
        )));
    }
    fs::create_dir_all(&folder).map_err(|error| unusable(&folder, &error))?;
    Demo { folder, story: Story::new(json) }.perform()
}

struct Demo {
    folder: PathBuf,
    story: Story,
}

impl Demo {
    fn perform(mut self) -> Result<(), Failure> {
        self.story.tell(&Scene::Begins { log: &self.folder.join(LOG), goal: agent::GOAL })?;
        self.run_and_kill()?;
        self.resume()?;
        let run = self.replay()?;
        let report = self.verify(&run, LOG)?;
        self.story.tell(&Scene::Verified { report: &report? })?;
        self.tamper(&run)?;
        let agent = self.folder.join(AGENT);
        fs::write(&agent, format!("{:#}\n", agent::scenario()))
            .map_err(|error| unusable(&agent, &error))?;
        self.story.tell(&Scene::Ends { folder: &self.folder })?;
        #[cfg(feature = "serve")]
        self.offer_inspector()?;
        Ok(())
    }

    /// Shows the run in a browser, if the person at the terminal wants that.
    #[cfg(feature = "serve")]
    fn offer_inspector(&mut self) -> Result<(), Failure> {
        use std::io::IsTerminal as _;

        if !self.story.json && io::stdin().is_terminal() && io::stdout().is_terminal() {
            let mut answer = String::new();
            self.story.tell(&Scene::Offers)?;
            let read = io::stdin().read_line(&mut answer);
            let is_yes = ["", "y", "yes"].contains(&&*answer.trim().to_lowercase());
            if read.is_ok_and(|length| length > 0) && is_yes {
                return crate::serve::inspect_place(&self.place(LOG));
            }
        }
        Ok(())
    }

    /// Runs the agent until it is inside a tool, and kills it there.
    fn run_and_kill(&mut self) -> Result<(), Failure> {
        let mut agent = self.start(Act::Begin)?;
        let in_the_middle = self.listen(&mut agent)?;
        agent.kill().map_err(|error| unusable(&self.folder, &error))?;
        let status = agent.wait().map_err(|error| unusable(&self.folder, &error))?;
        if !in_the_middle {
            return Err(unexpected(&format!("the agent ended before it was killed: {status}")));
        }
        let (records, charges) = (self.run()?.records, self.charges()?);
        self.story.tell(&Scene::Killed { status: status.to_string(), records, charges })
    }

    /// Resumes the run in another process.
    fn resume(&mut self) -> Result<(), Failure> {
        self.story.tell(&Scene::Resumes)?;
        let mut agent = self.start(Act::GoOn)?;
        self.listen(&mut agent)?;
        let status = agent.wait().map_err(|error| unusable(&self.folder, &error))?;
        let charges = self.charges()?;
        if !status.success() || charges != 1 {
            return Err(unexpected(&format!(
                "the agent continued unexpectedly: {status}, {charges} charges"
            )));
        }
        self.story.tell(&Scene::Resumed { charges })
    }

    fn replay(&mut self) -> Result<RunSummary, Failure> {
        let run = self.run()?;
        let log = self.place(LOG).open_to_read()?;
        let replayed = runtime()?.block_on(replay_run(&log, &*run.run_id).into_future());
        self.story.tell(&Scene::Replayed { records: replayed?.records })?;
        Ok(run)
    }

    /// Changes a byte in a copy of the log, and checks that it is detected.
    fn tamper(&mut self, run: &RunSummary) -> Result<(), Failure> {
        let (from, to) = ("89 EUR", "80 EUR");
        let path = self.folder.join(LOG);
        let mut bytes = fs::read(&path).map_err(|error| unusable(&path, &error))?;
        let found = bytes.windows(from.len()).position(|window| window == from.as_bytes());
        let place = found.ok_or_else(|| unexpected("the charge is not in the file"))?;
        bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
        let path = self.folder.join(CHANGED);
        fs::write(&path, bytes).map_err(|error| unusable(&path, &error))?;
        match self.verify(run, CHANGED)? {
            Err(error) => self.story.tell(&Scene::Found { from, to, error: &error }),
            Ok(_) => Err(unexpected("the changed byte was not detected")),
        }
    }

    /// Checks the run in one of the files. What is wrong with the run is no failure of the program.
    fn verify(&self, run: &RunSummary, file: &str) -> Result<Result<VerifyReport, Error>, Failure> {
        let log = self.place(file).open_to_read()?;
        match runtime()?.block_on(verify_run(log.as_ref(), &run.run_id)) {
            Err(error) if error.kind() != ErrorKind::Log(LogReason::Corrupt) => {
                Err(Failure::of(&error))
            }
            verified => Ok(verified),
        }
    }

    /// Starts a process that is the agent.
    fn start(&self, act: Act) -> Result<Child, Failure> {
        let act = if act == Act::Begin { "begin" } else { "go-on" };
        let program = env::current_exe().map_err(|error| unusable(Path::new("mynah"), &error))?;
        Command::new(&program)
            .args(["demo", "--act", act, "--dir"])
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| unusable(&program, &error))
    }

    /// Prints the agent's messages, until it ends or is inside a tool.
    fn listen(&mut self, agent: &mut Child) -> Result<bool, Failure> {
        let Some(said) = agent.stdout.take() else { return Ok(false) };
        for line in BufReader::new(said).lines() {
            let line = line.map_err(|error| unusable(Path::new("the agent"), &error))?;
            match serde_json::from_str(&line).map_err(|error| unexpected(&error.to_string()))? {
                AgentMessage::InTheMiddle => return Ok(true),
                AgentMessage::Event(event) => self.story.hear(*event)?,
            }
        }
        Ok(false)
    }

    /// The recorded part of the run.
    fn run(&self) -> Result<RunSummary, Failure> {
        let log = self.place(LOG).open_to_read()?;
        runtime()?.block_on(store::find(log.as_ref(), "last"))
    }

    fn place(&self, file: &str) -> LogLocation {
        LogLocation::Sqlite(self.folder.join(file).display().to_string())
    }

    /// How often the card was really charged.
    fn charges(&self) -> Result<usize, Failure> {
        let path = self.folder.join(CHARGES);
        let charges = fs::read_to_string(&path).map_err(|error| unusable(&path, &error))?;
        Ok(charges.lines().count())
    }
}

fn unusable(what: &Path, error: &io::Error) -> Failure {
    Failure::file(format!("{}: {error}", what.display()))
}

fn unexpected(what: &str) -> Failure {
    Failure::unexpected(format!("the demonstration did not go as it should: {what}"))
}
