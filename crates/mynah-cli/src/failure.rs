//! Exit codes other than 0, and their messages.

use std::{
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use mynah::{Error, ErrorKind, LogReason, Metadata};
use serde_json::{Value, json};

use crate::{input, text};

/// Why the command ends with something other than 0.
pub(crate) struct Failure {
    code: u8,
    message: String,
    cause: Cause,
}

/// What a failure is, for `--json`.
enum Cause {
    /// Already printed by the verb.
    Told,
    /// An error of the library.
    Library(Error),
    /// An error of this program: its reason, and more of it.
    Program(&'static str, Metadata),
}

impl Cause {
    fn program(reason: &'static str) -> Self {
        Self::Program(reason, Metadata::new())
    }
}

impl Failure {
    /// What failed, in words.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// A problem that the verb looked for. It prints its own line.
    pub(crate) fn finding(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into(), cause: Cause::Told }
    }

    /// A run that waits. The verb prints its own line.
    pub(crate) fn waits(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into(), cause: Cause::Told }
    }

    /// Something that this program did not do as it should.
    pub(crate) fn unexpected(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into(), cause: Cause::program("unexpected") }
    }

    /// Whether it is wrong usage, or a bad input file.
    pub(crate) fn is_bad_input(&self) -> bool {
        self.code == 2
    }

    /// Wrong usage, or a bad input file.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into(), cause: Cause::program("bad_input") }
    }

    /// A file that could not be used.
    pub(crate) fn file(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into(), cause: Cause::program("unusable") }
    }

    /// A person ended the program, during this run if one is recorded.
    pub(crate) fn interrupted(message: impl Into<String>, run: Option<&str>) -> Self {
        let run = run.map(|run| ("run_id".to_owned(), run.into()));
        let cause = Cause::Program("interrupted", run.into_iter().collect());
        Self { code: 130, message: message.into(), cause }
    }

    /// The exit code of a library error.
    pub(crate) fn of(error: &Error) -> Self {
        let failure = match error.kind() {
            ErrorKind::Log(
                LogReason::RunNotFound
                | LogReason::AmbiguousRun
                | LogReason::OwnLoop
                | LogReason::Sealed
                | LogReason::Pruned
                | LogReason::Redacted,
            )
            | ErrorKind::Session(_) => Self::input(error.to_string()),
            ErrorKind::Validation(_) => Self::input(format!("{error}{}", advice(error))),
            ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew) => {
                Self::finding(error.to_string())
            }
            ErrorKind::Log(_) => Self::file(error.to_string()),
            _ if error.is_unreachable() => Self::file(error.to_string()),
            _ => Self::finding(error.to_string()),
        };
        failure.because(error.clone())
    }

    /// The exit code of a failed model call, with the number of attempts.
    pub(crate) fn of_call(error: &Error, tries: u32) -> Self {
        let failure = match error.kind() {
            ErrorKind::Adapter(_) | ErrorKind::Stream(_) if !error.is_unreachable() => {
                let tries = (tries > 1).then(|| format!(" (tried {tries} times)"));
                Self::finding(format!("{error}{}", tries.unwrap_or_default()))
            }
            ErrorKind::Adapter(_) => {
                Self::file(format!("the server could not be reached: {error}"))
            }
            _ => return Self::of(error),
        };
        failure.because(error.clone())
    }

    /// Whether a run is missing.
    pub(crate) fn is_of_absence(&self) -> bool {
        let Cause::Library(error) = &self.cause else { return false };
        error.kind() == ErrorKind::Log(LogReason::RunNotFound)
    }

    /// The same failure with a longer message.
    pub(crate) fn adding(self, more: &str) -> Self {
        Self { message: self.message + more, ..self }
    }

    /// The same failure, with the name of the file.
    pub(crate) fn in_file(self, file: &Path) -> Self {
        Self { message: format!("{}: {}", input::name(file), self.message), ..self }
    }

    /// The same failure, which is an error of the library in other words.
    pub(crate) fn because(self, error: Error) -> Self {
        Self { cause: Cause::Library(error), ..self }
    }

    /// The same failure, of something that was to be used.
    pub(crate) fn unusable(self) -> Self {
        Self { code: 4, ..self }
    }

    /// The same failure, already printed by the verb.
    pub(crate) fn told(self) -> Self {
        Self { cause: Cause::Told, ..self }
    }

    /// Its `--json` form: `{"type", "reason", "message", "metadata"}`; none if it was already
    /// printed.
    pub(crate) fn err(&self) -> Option<Value> {
        let message = &self.message;
        match &self.cause {
            Cause::Told => None,
            Cause::Library(error) => Some(error.clone().with_message(message).to_value()),
            Cause::Program(reason, metadata) => Some(json!({
                "type": "cli_error", "reason": reason, "message": message, "metadata": metadata
            })),
        }
    }

    /// The same as an error of the library.
    #[cfg(feature = "serve")]
    pub(crate) fn into_error(self) -> Error {
        match self.cause {
            Cause::Library(error) => error,
            _ => Error::engine(mynah::EngineReason::InvalidEngine).with_message(self.message),
        }
    }

    /// Prints it for people, and with `--json` for programs too. This is the only place that does.
    pub(crate) fn tell(&self, json: bool) -> ExitCode {
        // The output may be closed. The exit code still reports the failure.
        if let Some(err) = self.err().filter(|_| json) {
            let _ = writeln!(io::stdout(), "{}", json!({"err": err}));
        }
        let _ = writeln!(io::stderr(), "mynah: {}", text::plain(&self.message));
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

/// What to do about a model that cannot do what the request needs.
fn advice(error: &Error) -> String {
    let told = error.field_errors().into_iter().filter_map(|broken| match broken.code.as_str() {
        "tools_disabled" => Some(known_not_to("call tools")),
        "json_native_disabled" => Some(known_not_to("answer by a JSON schema")),
        "vision_disabled" => Some(known_not_to("see images")),
        _ => None,
    });
    told.collect()
}

fn known_not_to(act: &str) -> String {
    format!(
        "; the model is known not to {act} (see `mynah models`); choose another model, or pass a --catalog with other facts"
    )
}
