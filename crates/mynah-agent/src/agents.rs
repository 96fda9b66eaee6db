//! The agents that an agent can call.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use mynah::{Engine, Tool};

use crate::{
    Agent, AgentFile, FileError,
    file::{Permission, SubAgent},
    place,
};

/// How deep agents may be nested if no file has a limit.
const DEPTH: u32 = 4;

/// The longest name that providers take for a tool or a schema.
const MAX_NAME: usize = 64;

/// Makes the engine of an agent; none if it has the models of its file.
pub type EngineOf<'a, E> = dyn Fn(&AgentFile) -> Result<Option<Engine>, E> + Sync + 'a;

/// Where an agent stands among agents that have each other.
#[derive(Clone, Debug)]
pub(crate) struct Nesting {
    /// The files that are being read, the outermost first.
    files: Vec<PathBuf>,
    /// The name by which the agent above calls it.
    called: Option<String>,
    /// How many levels may follow.
    left: u32,
    /// Whether the budget of an agent above limits dollars.
    pub(crate) limits_usd: bool,
}

impl Nesting {
    /// That of an agent which no other has.
    pub(crate) fn of(file: &Path, limit: Option<u32>) -> Self {
        let (files, left) = (vec![resolved(file)], limit.unwrap_or(DEPTH));
        Self { files, called: None, left, limits_usd: false }
    }

    /// That of an agent beneath it; none if agents may not be nested so deep.
    fn beneath(&self, name: &str, limit: Option<u32>, limits_usd: bool) -> Option<Self> {
        let left = self.left.checked_sub(1)?;
        let left = limit.map_or(left, |limit| limit.min(left));
        let limits_usd = limits_usd || self.limits_usd;
        Some(Self { files: self.files.clone(), called: Some(name.to_owned()), left, limits_usd })
    }
}

impl AgentFile {
    /// Whether no other agent has this one.
    pub fn is_outermost(&self) -> bool {
        self.called().is_none()
    }

    /// The name by which the agent above calls this one; none if no other has it.
    pub fn called(&self) -> Option<&str> {
        self.nesting.called.as_deref()
    }

    /// The agents of this one, each with the tool that calls it.
    pub(crate) async fn agents<E: From<FileError>>(
        &self,
        engine: &EngineOf<'_, E>,
        others: &[(Tool, Permission)],
    ) -> Result<Vec<(Agent, Tool)>, E> {
        let mut agents = Vec::new();
        for (name, table) in &self.spec.agents {
            let wrong = |why: &str| self.source.error(&["agents", name], why);
            if !is_plain(name) {
                let why = "the name of an agent has at most 64 letters, digits, `_` and `-`";
                return Err(wrong(why).into());
            }
            if others.iter().any(|(tool, _)| tool.name() == name) {
                return Err(wrong("a tool has this name already; give the agent another").into());
            }
            let file = self.agent(name, table)?;
            let description = table.description.as_ref().or(file.spec.description.as_ref());
            let Some(description) = description.filter(|text| !text.trim().is_empty()) else {
                let why =
                    "give a `description`: the model reads it to decide when to call the agent";
                return Err(wrong(why).into());
            };
            let mut agent = Box::pin(file.build_with(engine)).await?;
            agent.name.clone_from(name);
            let tool = match table.handoff {
                true => agent.engine.as_handoff(name, description),
                false => agent.engine.as_tool(name, description),
            };
            let tool = match table.timeout {
                Some(seconds) => tool.timeout(Duration::from_secs(seconds.get().into())),
                None => tool,
            };
            agents.push((agent, tool));
        }
        Ok(agents)
    }

    /// The agent of a table: the one that it describes, or that of the file which it names.
    fn agent(&self, name: &str, table: &SubAgent) -> Result<Self, FileError> {
        let wrong = |key: &[&str], why: &str| {
            self.source.error(&[&["agents", name][..], key].concat(), why)
        };
        let too_deep = || {
            wrong(
                &[],
                "agents are nested too deep here; `agent_depth` of the outermost agent permits more",
            )
        };
        let limits_usd = self.spec.budget.usd.is_some();
        let Some(file) = &table.file else {
            let nesting =
                self.nesting.beneath(name, table.agent_depth, limits_usd).ok_or_else(too_deep)?;
            return Ok(self.inline(&["agents", name], table.spec(&self.spec), nesting));
        };
        if table.is_inline() {
            let why = "beside `file` only `description`, `handoff` and `timeout` may stand here; move the other keys to the file";
            return Err(wrong(&[], why));
        }
        let path = self.path(file);
        let text = place::read(&path).map_err(|error| {
            self.source.unreadable_named(&["agents", name, "file"], &path, &error)
        })?;
        let place = resolved(&path);
        if self.nesting.files.contains(&place) {
            let names = self.nesting.files.iter().chain([&place]);
            let names =
                names.filter_map(|file| file.file_name()).map(|name| name.to_string_lossy());
            let circle = names.collect::<Vec<_>>().join(", ");
            return Err(wrong(&["file"], &format!("these agents have each other: {circle}")));
        }
        let mut read = Self::parse(path, text)?;
        read.nesting =
            self.nesting.beneath(name, read.spec.agent_depth, limits_usd).ok_or_else(too_deep)?;
        read.nesting.files.push(place);
        Ok(read)
    }
}

/// Whether providers take this name for a tool or a schema.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_plain)
}

/// The path without links, as far as the file is there.
fn resolved(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}
