//! `mynah reference`: the documentation of this command, from its definitions.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, Args, Command, CommandFactory as _, ValueEnum as _, builder::StyledStr};
use clap_complete::{Shell, generate_to};

use crate::{Cli, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah reference out                      write out/cli.md, out/man/*.1 and out/completions/*";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Folder to write to; it is created.
    folder: PathBuf,
}

pub(crate) fn main(arguments: &Arguments) -> Result<(), Failure> {
    write(&arguments.folder)
        .map_err(|error| Failure::file(format!("{}: {error}", arguments.folder.display())))
}

fn write(folder: &Path) -> io::Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let mut command = Cli::command();
    command.build();
    fs::write(folder.join("cli.md"), markdown(&command))?;
    for shell in Shell::value_variants() {
        generate_to(*shell, &mut Cli::command(), "mynah", &completions)?;
    }
    clap_mangen::generate_to(Cli::command(), &man)
}

/// The whole reference as one page.
fn markdown(command: &Command) -> String {
    let mut page = format!(
        "# Command reference\n\n\
         <!-- Generated: MYNAH_BLESS=1 cargo test -p mynah-cli --test all reference:: -->\n\n{}\n\n\
         The chapter [The command line](command-line.md) describes what the commands have in common, their output and exit codes.\n\n\
         | command | |\n|---|---|\n",
        text(command.get_about())
    );
    let verbs = || command.get_subcommands().filter(|verb| verb.get_name() != "help");
    for verb in verbs() {
        let name = verb.get_name();
        let _ = writeln!(page, "| [`{name}`](#mynah-{name}) | {} |", text(verb.get_about()));
    }
    for verb in verbs() {
        section(&mut page, "mynah", verb);
    }
    page
}

/// One command, and the commands below it.
fn section(page: &mut String, above: &str, verb: &Command) {
    let about = verb.get_long_about().or(verb.get_about());
    let usage = verb.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let name = format!("{above} {}", verb.get_name());
    let _ = write!(page, "\n## `{name}`\n\n{}\n\n```text\n{usage}\n```\n\n", text(about));
    let shown = || {
        verb.get_arguments()
            .filter(|argument| !argument.is_hide_set() && argument.get_id() != "help")
    };
    for argument in shown().filter(|argument| argument.is_positional()) {
        item(page, argument);
    }
    for argument in shown().filter(|argument| !argument.is_positional()) {
        item(page, argument);
    }
    if let Some(examples) = verb.get_after_help() {
        let _ = write!(page, "\n```text\n{}\n```\n", examples.to_string().trim());
    }
    for verb in verb.get_subcommands().filter(|verb| verb.get_name() != "help") {
        section(page, &name, verb);
    }
}

fn item(page: &mut String, argument: &Arg) {
    let value = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_value = argument.get_action().takes_values();
    let mut names: Vec<String> =
        argument.get_short().map(|short| format!("-{short}")).into_iter().collect();
    names.extend(argument.get_long().map(|long| format!("--{long}")));
    let mut name = names.join(", ");
    if takes_value {
        name = format!("{name} <{value}>").trim_start().to_owned();
    }
    let _ = write!(page, "- `{name}`: {}", text(argument.get_help()));
    let values = argument.get_possible_values();
    if takes_value && !values.is_empty() {
        let names: Vec<String> =
            values.iter().map(|value| format!("`{}`", value.get_name())).collect();
        let _ = write!(page, " One of {}.", names.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(page, " Variable: `{}`.", variable.to_string_lossy());
    }
    let default: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !default.is_empty() {
        let _ = write!(page, " Default: `{}`.", default.join(" "));
    }
    page.push('\n');
}

/// What help says, ending in a period. Placeholders in angle brackets would be HTML.
fn text(help: Option<&StyledStr>) -> String {
    let text = help.map(ToString::to_string).unwrap_or_default().replace('<', "&lt;");
    if text.is_empty() || text.ends_with('.') { text } else { text + "." }
}
