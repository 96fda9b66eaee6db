//! `mynah agent`: checks agent files and writes new ones; what other verbs need to use them.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use mynah::{Approval, Engine, Message, Options, RunId, Tool, log::Log};
use mynah_agent::{Agent, AgentFile, FileError};
use serde_json::{Value, json};

use crate::{
    Failure,
    model::script,
    play, resume, runtime, store,
    text::{line, plain, quoted},
    tty::{Entered, Looks, Prompt, Reads},
    written,
};

pub(crate) const EXAMPLES: &str = "docs/agents.md describes every key.

Examples:
  mynah agent new                          answer three questions, get agent.toml
  mynah agent check agent.toml             check it, and warn about likely failures
  mynah agent schema > agent.schema.json   for editors; `#:schema agent.schema.json` in a file names it
  mynah run agent.toml 'What is in this folder?'

Exit codes: 0 done, also with warnings; 2 a file that does not fit, with its line and key; 4 a file that cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Check an agent file: keys, values, and everything that it names.
    Check {
        /// The agent file.
        file: PathBuf,
        #[command(flatten)]
        vars: VarArgs,
        /// Print JSON, one value per line.
        #[arg(long)]
        json: bool,
    },
    /// Write an agent file from the answers to three questions.
    New {
        /// The file to write.
        #[arg(default_value = "agent.toml")]
        file: PathBuf,
    },
    /// Print the JSON Schema of agent files.
    Schema,
}

/// Variables of an agent file.
#[derive(Args, Clone, Default)]
pub(crate) struct VarArgs {
    /// Set a variable of the agent file's prompt. Repeatable.
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = var)]
    vars: Vec<(String, String)>,
    /// Another model than that of the file.
    #[arg(skip)]
    model: Option<String>,
}

fn var(said: &str) -> Result<(String, String), String> {
    let (name, value) = said.split_once('=').ok_or("give a name, =, and a value")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl VarArgs {
    /// The same, with another model than that of the file.
    pub(crate) fn with_model(self, model: Option<&str>) -> Self {
        Self { model: model.map(str::to_owned), ..self }
    }

    /// The flags that set the same variables.
    pub(crate) fn flags(&self) -> String {
        let flag = |(name, value): &(String, String)| {
            format!(" --var {}", quoted(&format!("{name}={value}")))
        };
        self.vars.iter().map(flag).collect()
    }
}

/// Whether a file is an agent file, and not a scenario.
pub(crate) fn is_agent_file(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "toml")
}

/// What scripted models have answered: a list for each run, the earliest first.
#[derive(Default)]
pub(crate) struct Answered {
    own: Vec<Vec<Arc<Message>>>,
    /// Those of its agents, by the names of their tools.
    agents: BTreeMap<String, Vec<Vec<Arc<Message>>>>,
    /// Whether each run begins with the first script.
    per_run: bool,
}

impl Answered {
    /// Nothing was answered, and each run begins with the first script.
    pub(crate) fn per_run() -> Self {
        Self { per_run: true, ..Self::default() }
    }

    /// What was answered in a run, in the runs that it continues, and in those of agents.
    pub(crate) async fn until(log: &dyn Log, run: &str) -> Result<Self, Failure> {
        let mut agents: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for run in store::needed(log, run).await?.iter().rev().map(RunId::as_str).chain([run]) {
            for started in mynah::log::sub_runs(log, run).await? {
                // The id ends with the name of the tool and a digest.
                let name = started.rsplit_once('+').and_then(|(_, end)| end.rsplit_once('-'));
                let Some((name, _)) = name else { continue };
                let answers = resume::answers(log, &started).await?;
                agents.entry(name.to_owned()).or_default().extend(answers);
            }
        }
        Ok(Self { own: resume::answers(log, run).await?, agents, per_run: false })
    }

    fn of(&self, file: &AgentFile) -> &[Vec<Arc<Message>>] {
        match file.called() {
            None => &self.own,
            Some(name) => self.agents.get(name).map_or(&[], Vec::as_slice),
        }
    }
}

/// The engine of an agent file or a scenario. A scripted model continues after these answers.
pub(crate) async fn load(
    file: &Path,
    vars: &VarArgs,
    answers: &Answered,
) -> Result<Engine, Failure> {
    if is_agent_file(file) {
        return Ok(read(file, vars, answers).await?.engine);
    }
    match vars.vars.first() {
        Some((name, _)) => {
            let why = format!("--var {name}: only agent files (.toml) have variables");
            Err(Failure::input(why))
        }
        None => play::agent(file, &answers.own, answers.per_run),
    }
}

pub(crate) async fn read(
    file: &Path,
    vars: &VarArgs,
    answers: &Answered,
) -> Result<Agent, Failure> {
    let mut agent = AgentFile::read(file)?;
    for (name, value) in &vars.vars {
        agent = agent.var(name, value);
    }
    if let Some(model) = &vars.model {
        agent = agent.with_model(model);
    }
    let scripted = |file: &AgentFile| match script(file.model()) {
        Some(script) => {
            let played = play::agent(&file.path(script), answers.of(file), answers.per_run);
            played.map(Some).map_err(|failure| {
                let mut error = file.unusable_model(failure.message());
                error.is_unreachable = !failure.is_bad_input();
                Failure::from(error)
            })
        }
        None => Ok(None),
    };
    agent.build_with(&scripted).await
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error.is_unreachable {
            true => Self::file(error.to_string()),
            false => Self::input(error.to_string()),
        }
    }
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    match arguments.act {
        Act::Check { file, vars, json } => check(&file, &vars, json),
        Act::New { file } => new(&file),
        Act::Schema => written(writeln!(io::stdout(), "{}", schema_text())),
    }
}

fn check(file: &Path, vars: &VarArgs, json: bool) -> Result<(), Failure> {
    let agent = runtime()?.block_on(read(file, vars, &Answered::default()))?;
    let mut out = io::stdout().lock();
    if json {
        let mut told = described(&agent);
        told["warnings"] = json!(warnings(&agent));
        return written(writeln!(out, "{}", json!({"ok": told})));
    }
    written(writeln!(out, "{}: ok", file.display()).and_then(|()| {
        writeln!(out, "  name   {}", line(&agent.name))?;
        writeln!(out, "  model  {}", line(&agent.model))?;
        write_tools(&agent, 2, &mut out)?;
        warnings(&agent).iter().try_for_each(|warning| writeln!(out, "warning: {}", line(warning)))
    }))
}

/// What will probably fail in an agent and in those beneath it.
pub(crate) fn warnings(agent: &Agent) -> Vec<String> {
    let own = agent.warnings.iter().map(ToString::to_string);
    own.chain(agent.agents.iter().flat_map(warnings)).collect()
}

fn schema_text() -> String {
    format!("{:#}", mynah_agent::schema())
}

fn described(agent: &Agent) -> Value {
    let tools = agent.engine.resolve_tools(&Options::new());
    let tools = tools.iter().map(|tool| json!({"name": tool.name(), "asks": asks(tool)}));
    let tools: Vec<_> = tools.collect();
    let agents: Vec<_> = agent.agents.iter().map(described).collect();
    json!({"name": agent.name, "model": agent.model, "tools": tools, "agents": agents})
}

/// Writes the tools of an agent, and beneath them its agents.
fn write_tools(agent: &Agent, indent: usize, out: &mut impl io::Write) -> io::Result<()> {
    let mark = |tool: &Tool| if asks(tool) { " (asks)" } else { "" };
    let tools = agent.engine.resolve_tools(&Options::new());
    let tools = tools.iter().map(|tool| format!("{}{}", tool.name(), mark(tool)));
    let tools = tools.collect::<Vec<_>>().join(", ");
    let tools = if tools.is_empty() { "none".to_owned() } else { tools };
    writeln!(out, "{:indent$}tools  {tools}", "")?;
    agent.agents.iter().try_for_each(|agent| {
        writeln!(out, "{:indent$}agent  {} ({})", "", line(&agent.name), line(&agent.model))?;
        write_tools(agent, indent + 2, out)
    })
}

/// Whether a person approves the calls of a tool.
fn asks(tool: &Tool) -> bool {
    tool.spec().manual || tool.spec().approval == Approval::Ask
}

/// The model that is proposed.
const MODEL: &str = "anthropic:claude-sonnet-5-5";

/// The ready-made tools, and what stands in a file for each.
const TOOLS: [(&str, &str); 6] = [
    ("files", "files = { root = \".\", write = \"ask\" }"),
    ("shell", "shell = \"ask\""),
    ("fetch", "fetch = true"),
    ("calculator", "calculator = true"),
    ("now", "now = true"),
    ("ask_user", "ask_user = true"),
];

/// The file with the schema, beside an agent file that names it.
const SCHEMA: &str = "agent.schema.json";

fn new(file: &Path) -> Result<(), Failure> {
    let refused = |why: &str| Failure::input(format!("{}: {why}", file.display()));
    if file.exists() {
        return Err(refused("it is there already; name another"));
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    if !folder.as_os_str().is_empty() && !folder.is_dir() {
        return Err(refused("its folder is not there; make it first"));
    }
    let text = runtime()?.block_on(async {
        let prompt = Prompt::new(Looks::detect(), &[]);
        let system = match prompt.ask("What should the agent do? ", Reads::Answer).await? {
            Entered::Line(answer) => answer.trim().to_owned(),
            Entered::End => return Err(refused("no answer came, so nothing was written; answer in a terminal, or pipe a line for each question")),
            Entered::Interrupted => return Err(Failure::interrupted("interrupted", None)),
        };
        let question = format!("Which model? `mynah models` lists them. [{MODEL}] ");
        let model = asked(&prompt, &question, |name| model_line(file, name)).await?;
        let question =
            "Which tools: files, shell, fetch, calculator, now, ask_user, none? [files] ";
        let tools = asked(&prompt, question, tool_lines).await?;
        let system =
            if system.is_empty() { "You help with the files of this folder." } else { &system };
        let head = format!("{model}\nsystem = {}\n", json!(system));
        let vars = var_lines(&AgentFile::parse(file, &*head)?.unset_vars());
        Ok::<_, Failure>(format!(
            "#:schema {SCHEMA}\n{head}{vars}budget = {{ turns = 30 }}\n{tools}"
        ))
    })?;
    create(file, &text)?;
    let schema = folder.join(SCHEMA);
    if !schema.exists() {
        create(&schema, &schema_text())?;
    }
    let name = quoted(&file.to_string_lossy());
    for warning in AgentFile::parse(file, text)?.odd_models() {
        written(writeln!(io::stdout(), "warning: {}", line(&warning.to_string())))?;
    }
    written(writeln!(io::stdout(), "wrote {name}; try it:\n  mynah run {name} 'What can you do?'"))
}

/// Asks until an answer can be used. The end of the input is an empty answer, and the last one.
async fn asked(
    prompt: &Prompt,
    question: &str,
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<String, Failure> {
    let mut wrong = None;
    loop {
        let (answer, is_last) = match (prompt.ask(question, Reads::Answer).await?, wrong) {
            (Entered::Line(answer), _) => (answer, false),
            (Entered::End, None) => (String::new(), true),
            (Entered::End, Some(why)) => return Err(Failure::input(why)),
            (Entered::Interrupted, _) => return Err(Failure::interrupted("interrupted", None)),
        };
        match read(answer.trim()) {
            Ok(read) => return Ok(read),
            Err(why) if is_last => return Err(Failure::input(why)),
            Err(why) => {
                eprintln!("{}", plain(&why));
                wrong = Some(why);
            }
        }
    }
}

/// The line of a model that can be used. A script is looked for when the agent runs.
fn model_line(file: &Path, name: &str) -> Result<String, String> {
    let name = if name.is_empty() { MODEL } else { name };
    let text = format!("model = {}", json!(name));
    let agent = AgentFile::parse(file, &*text).map_err(|error| error.message)?;
    match script(name) {
        Some(_) => {}
        None => agent.check_models().map_err(|error| error.message)?,
    }
    Ok(text)
}

/// The line of variables that a prompt has; none if it has none.
fn var_lines(names: &[String]) -> String {
    let vars: Vec<String> = names.iter().map(|name| format!("{} = \"\"", json!(name))).collect();
    match vars.join(", ") {
        none if none.is_empty() => none,
        vars => format!("vars = {{ {vars} }}\n"),
    }
}

fn tool_lines(names: &str) -> Result<String, String> {
    let names = match names {
        "" => "files",
        "none" => return Ok(String::new()),
        names => names,
    };
    let mut text = "\n[tools]\n".to_owned();
    for name in names.split([',', ' ']).filter(|name| !name.is_empty()) {
        let Some((_, line)) = TOOLS.iter().find(|(tool, _)| *tool == name) else {
            let known = TOOLS.map(|(tool, _)| tool).join(", ");
            return Err(format!("there is no tool {name:?}; give some of {known}, or none"));
        };
        text += &format!("{line}\n");
    }
    Ok(text)
}

/// Writes a file that is not there yet.
fn create(file: &Path, text: &str) -> Result<(), Failure> {
    let created = OpenOptions::new().write(true).create_new(true).open(file);
    created
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::file(format!("{}: {error}", file.display())))
}
