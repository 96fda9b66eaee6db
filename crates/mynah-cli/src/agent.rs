//! `mynah agent`: checks agent files and writes new ones; what other verbs need to use them.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use mynah::{Approval, Engine, Message, Options, Tool};
use mynah_agent::{Agent, AgentFile, FileError};
use serde_json::{Value, json};

use crate::{
    Failure,
    model::script,
    play, runtime,
    text::{line, quoted},
    tty::{Entered, Looks, Prompt, Reads},
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah agent new                          answer three questions, get agent.toml
  mynah agent check agent.toml             see whether it can be used
  mynah run agent.toml 'What is in this folder?'

docs/agents.md describes every key, and docs/agent.schema.json is their JSON Schema.
Exit codes: 0 done; 2 a file that does not fit, with its line and key; 4 a file that cannot be used.";

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
        /// One JSON value a line.
        #[arg(long)]
        json: bool,
    },
    /// Write an agent file from the answers to three questions.
    New {
        /// The file to write.
        #[arg(default_value = "agent.toml")]
        file: PathBuf,
    },
}

/// Variables of an agent file.
#[derive(Args, Clone, Default)]
pub(crate) struct VarArgs {
    /// Set a variable of the agent file's prompt; may be repeated.
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

/// The engine of an agent file or a scenario. A scripted model continues after these answers.
pub(crate) async fn load(
    file: &Path,
    vars: &VarArgs,
    answers: &[Vec<Arc<Message>>],
) -> Result<Engine, Failure> {
    if is_agent_file(file) {
        return Ok(read(file, vars, answers).await?.1.engine);
    }
    match vars.vars.first() {
        Some((name, _)) => {
            let why = format!("--var {name}: only agent files (.toml) have variables");
            Err(Failure::input(why))
        }
        None => play::agent(file, answers),
    }
}

async fn read(
    file: &Path,
    vars: &VarArgs,
    answers: &[Vec<Arc<Message>>],
) -> Result<(AgentFile, Agent), Failure> {
    let mut agent = AgentFile::read(file)?;
    for (name, value) in &vars.vars {
        agent = agent.var(name, value);
    }
    if let Some(model) = &vars.model {
        agent = agent.with_model(model);
    }
    let scripted = |file: &AgentFile| match script(file.model()) {
        Some(script) => {
            let answers = if file.is_outermost() { answers } else { &[] };
            play::agent(&file.path(script), answers).map(Some)
        }
        None => Ok(None),
    };
    let built = agent.build_with(&scripted).await?;
    Ok((agent, built))
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
    }
}

fn check(file: &Path, vars: &VarArgs, json: bool) -> Result<(), Failure> {
    let (read, agent) = runtime()?.block_on(read(file, vars, &[]))?;
    let mut out = io::stdout().lock();
    if json {
        let mut told = described(&agent);
        told["model"] = json!(read.model());
        return written(writeln!(out, "{}", json!({"ok": told})));
    }
    written(writeln!(out, "{}: ok", file.display()).and_then(|()| {
        writeln!(out, "  name   {}", line(&agent.name))?;
        writeln!(out, "  model  {}", line(read.model()))?;
        write_tools(&agent, 2, &mut out)
    }))
}

fn described(agent: &Agent) -> Value {
    let tools = agent.engine.resolve_tools(&Options::new());
    let tools = tools.iter().map(|tool| json!({"name": tool.name(), "asks": asks(tool)}));
    let tools: Vec<_> = tools.collect();
    let model = agent.engine.get_model().map(ToString::to_string);
    let mut told = json!({"name": agent.name, "model": model, "tools": tools});
    if !agent.agents.is_empty() {
        told["agents"] = agent.agents.iter().map(described).collect();
    }
    told
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
        let model = agent.engine.get_model().map(ToString::to_string).unwrap_or_default();
        writeln!(out, "{:indent$}agent  {} ({})", "", line(&agent.name), line(&model))?;
        write_tools(agent, indent + 2, out)
    })
}

/// Whether a person approves the calls of a tool.
fn asks(tool: &Tool) -> bool {
    tool.spec().manual || tool.spec().approval == Approval::Ask
}

/// The model that is proposed.
const MODEL: &str = "anthropic:claude-sonnet-5-5";

fn new(file: &Path) -> Result<(), Failure> {
    if file.exists() {
        let why = format!("{}: it is there already; name another", file.display());
        return Err(Failure::input(why));
    }
    let prompt = Prompt::new(Looks::detect(), &[]);
    let answers = runtime()?.block_on(async {
        let mut answers = Vec::new();
        for question in [
            "What should the agent do? ".to_owned(),
            format!("Which model? [{MODEL}] "),
            "Which tools: files, shell, fetch, calculator, now, ask_user? [files] ".to_owned(),
        ] {
            match prompt.ask(&question, Reads::Answer).await? {
                Entered::Line(answer) => answers.push(answer.trim().to_owned()),
                Entered::End => answers.push(String::new()),
                Entered::Interrupted => return Err(Failure::interrupted("interrupted", None)),
            }
        }
        Ok::<_, Failure>(answers)
    })?;
    let or = |index: usize, default: &str| match answers.get(index).map(String::as_str) {
        None | Some("") => default.to_owned(),
        Some(answer) => answer.to_owned(),
    };
    let (system, model, tools) =
        (or(0, "You help with the files of this folder."), or(1, MODEL), or(2, "files"));
    let mut text = format!(
        "model = {}\nsystem = {}\nbudget = {{ turns = 30 }}\n\n[tools]\n",
        json!(model),
        json!(system)
    );
    for tool in tools.split([',', ' ']).filter(|tool| !tool.is_empty()) {
        text += &match tool {
            "files" => "files = { root = \".\", write = \"ask\" }\n".to_owned(),
            "shell" => "shell = \"ask\"\n".to_owned(),
            other => format!("{other} = true\n"),
        };
    }
    // What cannot be used is not written. A scenario is looked for when the agent runs.
    let agent = AgentFile::parse(file, &*text)?;
    if script(agent.model()).is_none() {
        runtime()?.block_on(agent.build())?;
    }
    let unusable = |error: io::Error| Failure::file(format!("{}: {error}", file.display()));
    let mut created =
        OpenOptions::new().write(true).create_new(true).open(file).map_err(unusable)?;
    created.write_all(text.as_bytes()).map_err(unusable)?;
    let name = quoted(&file.to_string_lossy());
    written(writeln!(io::stdout(), "wrote {name}; try it:\n  mynah run {name} 'What can you do?'"))
}
