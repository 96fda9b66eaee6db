//! The output of the demonstration: text, or one JSON value a line.

use std::{
    collections::HashMap,
    env,
    io::{self, Write},
    path::Path,
};

use mynah::{Error, Event, log::VerifyReport};
use serde_json::{Value, json};

use crate::{
    DEFAULT_LOG, Failure, log_flag,
    text::{count, quoted},
    written,
};

/// A part of the story.
pub(super) enum Scene<'a> {
    Begins {
        log: &'a Path,
        goal: &'a str,
    },
    Killed {
        status: String,
        records: u64,
        charges: usize,
    },
    Resumes,
    Resumed {
        charges: usize,
    },
    Replayed {
        records: u64,
    },
    Verified {
        report: &'a VerifyReport,
    },
    Found {
        from: &'a str,
        to: &'a str,
        error: &'a Error,
    },
    Ends {
        folder: &'a Path,
    },
    #[cfg(feature = "serve")]
    Offers,
}

pub(super) struct Story {
    pub(super) json: bool,
    out: io::Stdout,
    /// How often the model was asked since the part before.
    model_calls: u64,
    /// What was asked for, by the call's id.
    calls: HashMap<String, String>,
    /// The current call.
    open: Option<String>,
}

impl Story {
    pub(super) fn new(json: bool) -> Self {
        let calls = HashMap::new();
        Self { json, out: io::stdout(), model_calls: 0, calls, open: None }
    }

    /// Prints a section.
    pub(super) fn tell(&mut self, told: &Scene<'_>) -> Result<(), Failure> {
        let model_calls = match told {
            Scene::Killed { .. } | Scene::Resumed { .. } => std::mem::take(&mut self.model_calls),
            _ => 0,
        };
        let told = if self.json {
            told.json(model_calls).map_or(Ok(()), |line| writeln!(self.out, "{line}"))
        } else {
            if let (Scene::Killed { .. }, Some(open)) = (told, self.open.take()) {
                self.say("tool", &format!("{open}  …"))?;
            }
            self.out.write_all(told.text(model_calls).as_bytes())
        };
        written(told.and_then(|()| self.out.flush()))
    }

    /// Prints an action of an agent.
    pub(super) fn hear(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::MessageStarted { .. } => self.model_calls += 1,
            Event::MessageCompleted { message, .. } => {
                let calls = message.tool_calls();
                let calls = calls
                    .map(|call| (call.id.clone(), format!("{} {}", call.name, call.arguments)));
                self.calls.extend(calls);
                self.say("assistant", &message.text())?;
            }
            Event::ToolExecutionStarted { id, .. } => self.open = self.calls.get(&id).cloned(),
            Event::ToolResultEncoded { id, content, .. } => {
                self.open = None;
                let call = self.calls.get(&id).cloned().unwrap_or(id);
                self.say("tool", &format!("{call}  ->  {content}"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn say(&mut self, who: &str, what: &str) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        written(writeln!(self.out, "   {who:<9}  {what}"))
    }
}

impl Scene<'_> {
    fn text(&self, model_calls: u64) -> String {
        match self {
            Self::Begins { log, goal } => format!(
                "An agent at work, without a key: the model plays a script, everything else is real.\n\n\
                 1. It books a train. Every step is recorded, in {}.\n\n   {:<9}  {goal}\n",
                log.display(),
                "user"
            ),
            Self::Killed { status, records, charges } => format!(
                "\n2. The process is killed inside that tool ({status}).\n\n   \
                 The card was charged {}, and no ticket was sent. A program that starts over\n   \
                 would charge it again. But {} are safe: they show what was done, and what was not.\n",
                times(*charges as u64),
                count(*records, "record"),
            ),
            Self::Resumes => {
                "\n3. Another process resumes the run from its records.\n\n".to_owned()
            }
            Self::Resumed { charges } => format!(
                "\n   The model was called {} more; its recorded answers were not requested again.\n   \
                 charge_card did not run again: the card was charged {} in all.\n",
                times(model_calls),
                times(*charges as u64),
            ),
            Self::Replayed { records } => format!(
                "\n4. The run is replayed from its records: no model, no tools, no cost.\n\n   \
                 {} reproduced, each the same byte for byte.\n",
                count(*records, "record")
            ),
            Self::Verified { report } => format!(
                "\n5. Each record carries the hash of the one before, and the last one seals them all.\n\n   \
                 {}: {}, fingerprint {}\n",
                report.status,
                count(report.records, "record"),
                report.fingerprint.map(|hash| hash.to_string()).unwrap_or_default(),
            ),
            Self::Found { from, to, error } => format!(
                "\n6. One byte changes in a copy of the file: {from} becomes {to}.\n\n   \
                 corrupt: record {}: {}\n",
                error.seq().unwrap_or_default(),
                error.damage().unwrap_or_default(),
            ),
            Self::Ends { folder } => {
                let mut text = "\nTry next:\n\n".to_owned();
                for (command, what) in commands(folder) {
                    text += &format!("   # {what}\n   {command}\n");
                }
                text
            }
            #[cfg(feature = "serve")]
            Self::Offers => "\nSee the run in a browser now? [Y/n] ".to_owned(),
        }
    }

    /// Nothing for what has no outcome of its own.
    fn json(&self, model_calls: u64) -> Option<Value> {
        Some(match self {
            Self::Begins { log, goal } => json!({"step": "begin", "log": log, "goal": goal}),
            Self::Killed { status, records, charges } => {
                json!({"step": "kill", "status": status, "records": records, "model_calls": model_calls, "charges": charges})
            }
            Self::Resumes => return None,
            #[cfg(feature = "serve")]
            Self::Offers => return None,
            Self::Resumed { charges } => {
                json!({"step": "resume", "model_calls": model_calls, "charges": charges})
            }
            Self::Replayed { records } => {
                json!({"step": "replay", "status": "equal", "records": records})
            }
            Self::Verified { report } => json!({"step": "verify", "report": report}),
            Self::Found { from, to, error } => {
                json!({"step": "tamper", "from": from, "to": to, "err": error})
            }
            Self::Ends { folder } => {
                let commands: Vec<String> = commands(folder).map(|(command, _)| command).collect();
                json!({"step": "end", "next": commands})
            }
        })
    }
}

fn times(number: u64) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{number} times"),
    }
}

fn commands(folder: &Path) -> impl Iterator<Item = (String, &'static str)> {
    let go_there = format!("cd {}", quoted(&folder.display().to_string()));
    let there = [
        ("mynah show last", "read the run"),
        ("mynah show last --tree", "see when what happened"),
        #[cfg(feature = "serve")]
        ("mynah inspect", "see all of it in a browser: conversation, timeline, proof"),
        ("mynah verify --log sqlite:changed.db", "find the changed byte yourself"),
        (
            "mynah replay last --agent agent.json",
            "the same agent is in a file: change it, and see what it would do differently",
        ),
        (
            "mynah fork last --at 5 --agent agent.json",
            "fork it after the payment, and resume the fork",
        ),
        ("mynah play agent.json", "perform the file from its beginning"),
        ("mynah --help", "see what else there is"),
    ];
    let reads_log = |command: &str| command.contains(" last") || command == "mynah inspect";
    let there = there.into_iter().map(move |(command, what)| match reads_log(command) {
        true => (format!("{command}{}", log_flag(DEFAULT_LOG)), what),
        false => (command.to_owned(), what),
    });
    let go_there = (go_there, "all of it is in a folder");
    call_it_mynah().into_iter().chain([go_there]).chain(there)
}

/// What makes `mynah` this program, where it is not on the path.
fn call_it_mynah() -> Option<(String, &'static str)> {
    let path = env::var_os("PATH").unwrap_or_default();
    let name = format!("mynah{}", env::consts::EXE_SUFFIX);
    let is_on_path = env::split_paths(&path).any(|folder| folder.join(&name).is_file());
    let program = env::current_exe().ok().filter(|_| !is_on_path)?;
    let alias = format!("alias mynah={}", quoted(&program.display().to_string()));
    Some((alias, "it is not on your path"))
}
