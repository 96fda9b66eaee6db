//! `mynah completions`: what a shell needs to complete the words of this command.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use crate::{Cli, Failure, written};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah completions bash > ~/.local/share/bash-completion/completions/mynah
  mynah completions zsh > \"${fpath[1]}/_mynah\"
  mynah completions fish > ~/.config/fish/completions/mynah.fish";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Shell to generate for.
    shell: Shell,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    // Written at once, as the generator takes a closed pipe for a defect.
    let mut script = Vec::new();
    generate(arguments.shell, &mut Cli::command(), "mynah", &mut script);
    written(io::stdout().write_all(&script))
}
