//! Ready-made tools for a model, safe by default.
//!
//! Each tool is a feature of the crate. All but `shell` are on by default.
//!
//! | feature | tools | effect | idempotent | runs again in a replay with `rerun_tools()` |
//! |---|---|---|---|---|
//! | `fetch` | `fetch` | reads a web page | yes | no: its record answers |
//! | `files` | `read_file`, `list_dir`, `search_files` | reads files of one folder | yes | no: its record answers |
//! | `files` | `write_file`, `edit_file` | changes files of one folder | no | no: its record answers |
//! | `shell` | `shell` | runs a command | no | no: its record answers |
//! | `ask-user` | `ask_user` | suspends the conversation with a question | yes | yes |
//! | `now` | `now` | reads the run's clock, which is recorded | yes | yes |
//! | `calculator` | `calculator` | none | yes | yes |
//!
//! ```
//! # #[cfg(all(feature = "ask-user", feature = "calculator", feature = "fetch", feature = "files", feature = "now"))]
//! # fn main() -> Result<(), mynah_data::Error> {
//! # let folder = tempfile::tempdir().map_err(|error| mynah_data::Error::invalid_option("root", error.to_string()))?;
//! use mynah_step::Tool;
//!
//! let mut tools: Vec<Tool> = mynah_tools::files(folder.path())?.read_only();
//! tools.push(mynah_tools::fetch().max_bytes(1 << 20).tool()?);
//! tools.push(mynah_tools::calculator());
//! tools.push(mynah_tools::now());
//! tools.push(mynah_tools::ask_user());
//! let names: Vec<_> = tools.iter().map(Tool::name).collect();
//! assert_eq!(names, ["read_file", "list_dir", "search_files", "fetch", "calculator", "now", "ask_user"]);
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "ask-user", feature = "calculator", feature = "fetch", feature = "files", feature = "now")))]
//! # fn main() {}
//! ```
//!
//! The arguments of a call come from a model, and a model repeats what it read. Every argument is therefore treated as hostile.
//! `docs/tools-hostile.md` lists the inputs that are tested, with the error that the model gets for each.
//!
//! Where a result is cut, it says so in `truncated`, with a way to read the rest.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "ask-user")]
mod ask_user;
#[cfg(feature = "calculator")]
mod calculator;
#[cfg(feature = "fetch")]
mod fetch;
#[cfg(feature = "files")]
mod files;
#[cfg(feature = "now")]
mod now;
#[cfg(all(feature = "shell", unix))]
mod shell;
mod text;
#[cfg(any(
    feature = "ask-user",
    feature = "calculator",
    feature = "fetch",
    feature = "files",
    feature = "now",
    all(feature = "shell", unix)
))]
mod typed;

#[cfg(feature = "ask-user")]
pub use ask_user::ask_user;
#[cfg(feature = "calculator")]
pub use calculator::calculator;
#[cfg(feature = "fetch")]
pub use fetch::{Fetch, fetch};
#[cfg(feature = "files")]
pub use files::{Files, files};
#[cfg(feature = "now")]
pub use now::now;
#[cfg(all(feature = "shell", unix))]
pub use shell::{Shell, shell};
