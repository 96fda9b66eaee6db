//! Typed access to an error's metadata.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::{Breach, Error, ErrorKind, HaltReason, MismatchClass, Response, RunId};

impl Error {
    /// The provider whose call failed.
    pub fn provider(&self) -> Option<&str> {
        self.text("provider")
    }

    /// The address of the called server, if it could not be reached or did not answer as its
    /// provider does.
    pub fn server(&self) -> Option<&str> {
        self.text("server")
    }

    /// The HTTP status that the provider answered with.
    pub fn status(&self) -> Option<u16> {
        self.number("status")?.try_into().ok()
    }

    /// The provider's id of the failed call.
    pub fn request_id(&self) -> Option<&str> {
        self.text("request_id")
    }

    /// How long the provider asks to wait before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        self.number("retry_after_ms").map(Duration::from_millis)
    }

    /// Whether no connection to the server could be made.
    pub fn is_unreachable(&self) -> bool {
        self.metadata().get("connected") == Some(&Value::Bool(false))
    }

    /// The tool that the error is about.
    pub fn tool_name(&self) -> Option<&str> {
        self.text("tool_name")
    }

    /// The tool call that the error is about.
    pub fn tool_call_id(&self) -> Option<&str> {
        self.text("tool_call_id")
    }

    /// The tool calls of a run whose results are missing, though all are needed at once.
    pub fn missing_tool_calls(&self) -> Vec<String> {
        self.read("missing_tool_calls").unwrap_or_default()
    }

    /// The first field that broke a rule; [`field_errors`](Self::field_errors) has all.
    pub fn field(&self) -> Option<&str> {
        self.text("field")
    }

    /// The run that the error is about, or that recorded the call which failed with it. The latter is not in the JSON.
    pub fn run_id(&self) -> Option<RunId> {
        self.text("run_id").map(RunId::from).or_else(|| self.failed_run().cloned())
    }

    /// The number of the record that the error is about, from 1.
    pub fn seq(&self) -> Option<u64> {
        self.number("seq")
    }

    /// What is wrong with a corrupt run or log.
    pub fn damage(&self) -> Option<&str> {
        self.text("what")
    }

    /// The limit of a budget that was passed.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{Breach, BreachTime, Error, Limit};
    /// let breach = Breach::new(Limit::Turns, 3u64, 4u64, BreachTime::PreCall);
    /// assert_eq!(Error::budget_exceeded(&breach, None).breach(), Some(breach));
    /// ```
    pub fn breach(&self) -> Option<Breach> {
        self.read("budget")
    }

    /// Why the chat halted, if it has no answer.
    pub fn halted_reason(&self) -> Option<HaltReason> {
        self.read("halted_reason")
    }

    /// The answer that could not be used, or that was cut off.
    pub fn response(&self) -> Option<Response> {
        self.read("response").or_else(|| self.read("partial"))
    }

    /// Where the input or the behaviour of a run differs from its record.
    pub fn differences(&self) -> Vec<Difference> {
        self.read("diff").unwrap_or_default()
    }

    /// How a replayed run differs from its record; none for every other kind of error.
    pub fn mismatch(&self) -> Option<Mismatch> {
        let ErrorKind::Replay(class) = self.kind() else { return None };
        Some(Mismatch {
            class,
            run_id: self.run_id()?,
            seq: self.seq()?,
            produced: self.text("kind").map(str::to_owned),
            recorded: self.text("expected_kind").map(str::to_owned),
            differences: self.differences(),
        })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.metadata().get(name)?.as_str()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.metadata().get(name)?.as_u64()
    }

    fn read<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        T::deserialize(self.metadata().get(name)?).ok()
    }
}

/// The first difference between a replayed run and its record; see [`Error::mismatch`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Mismatch {
    /// Which kind of difference.
    pub class: MismatchClass,
    /// The run.
    pub run_id: RunId,
    /// The number of the record, from 1.
    pub seq: u64,
    /// The kind of what the replay produced; none if it produced nothing.
    pub produced: Option<String>,
    /// The kind of what is recorded; none if nothing is.
    pub recorded: Option<String>,
    /// Where the two differ, if they are of one kind.
    pub differences: Vec<Difference>,
}

/// One place at which two values differ.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// The members and indices on the way to the place, with dots between them.
    pub path: String,
    /// What is recorded there; none if nothing is, or null where the other has something.
    pub recorded: Option<Value>,
    /// What was produced there; none if nothing was, or null where the other has something.
    pub produced: Option<Value>,
}

impl<'de> Deserialize<'de> for Difference {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A member that is null is there.
        fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
            Value::deserialize(value).map(Some)
        }
        #[derive(Deserialize)]
        struct Wire {
            path: String,
            #[serde(default, deserialize_with = "present")]
            recorded: Option<Value>,
            #[serde(default, deserialize_with = "present")]
            produced: Option<Value>,
        }
        let Wire { path, mut recorded, mut produced } = Wire::deserialize(deserializer)?;
        if recorded.is_some() && produced.is_some() {
            recorded = recorded.filter(|value| !value.is_null());
            produced = produced.filter(|value| !value.is_null());
        }
        Ok(Self { path, recorded, produced })
    }
}
