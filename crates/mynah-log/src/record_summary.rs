//! What totals and indexes learn from a record, without decoding the rest of it.

use std::sync::Arc;

use mynah_data::{Response, Usage};
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    Fact, Hash, Kind, Totals,
    cbor::{self, major},
};

/// The part of a record that the index counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordSummary {
    /// What it adds to the totals of its run.
    pub(crate) adds: Totals,
    /// The model that it names.
    pub(crate) model: Option<Arc<str>>,
    /// The session whose turn it begins.
    pub(crate) session: Option<Arc<str>>,
}

impl RecordSummary {
    pub(crate) fn of(fact: &Fact) -> Self {
        match fact {
            Fact::RunStarted { about: Some(about), .. } => {
                let is_branch = about.parent.as_ref().is_some_and(|from| from.continues.is_none());
                let session = about.session.as_ref().and_then(|session| session.id.as_deref());
                Self::naming(about.model.as_deref(), session, is_branch)
            }
            Fact::TurnStarted { .. } => Self::turn(),
            Fact::TurnLost { input_tokens, cost, .. } => {
                Self::spending(Some(*input_tokens), None, *cost)
            }
            Fact::AssistantCompleted { response, .. } => {
                let model = response.model.as_deref().map(Arc::from);
                Self { model, ..Self::answer(response) }
            }
            Fact::BudgetExceeded { partial: Some(answer), .. }
            | Fact::Cancelled { partial: Some(answer), .. }
            | Fact::ContextTruncated { summary: Some(answer), .. } => Self::answer(answer),
            Fact::ToolScheduled { attempt, .. } => Self::call(*attempt),
            Fact::RunStarted { about: None, .. }
            | Fact::BudgetExceeded { partial: None, .. }
            | Fact::Cancelled { partial: None, .. }
            | Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::ToolCompleted { .. }
            | Fact::ToolFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Sealed(_)
            | Fact::Removed(_) => Self::default(),
        }
    }

    /// A branch is not a turn of the session, though it keeps its link. A run that continues another is.
    fn naming(model: Option<&str>, session: Option<&str>, is_branch: bool) -> Self {
        let session = session.filter(|_| !is_branch).map(Arc::from);
        Self { model: model.map(Arc::from), session, ..Self::default() }
    }

    fn turn() -> Self {
        Self { adds: Totals { turns: 1, ..Totals::default() }, ..Self::default() }
    }

    fn call(attempt: u32) -> Self {
        let tool_calls = u64::from(attempt == 1);
        Self { adds: Totals { tool_calls, ..Totals::default() }, ..Self::default() }
    }

    fn answer(answer: &Response) -> Self {
        let Usage { input_tokens, output_tokens, total_cost, .. } = answer.usage;
        Self::spending(input_tokens, output_tokens, total_cost)
    }

    fn spending(input: Option<u64>, output: Option<u64>, cost: Option<f64>) -> Self {
        let (input_tokens, output_tokens) = (input.unwrap_or(0), output.unwrap_or(0));
        let cost = cost.unwrap_or(0.0);
        let adds = Totals { input_tokens, output_tokens, cost, ..Totals::default() };
        Self { adds, ..Self::default() }
    }

    /// The same, from the payload of a record of this kind (none if unknown) and name. The payload
    /// must be deterministic CBOR throughout; members that are not needed are skipped.
    ///
    /// # Errors
    /// What is wrong with the payload, in words.
    pub(crate) fn read(payload: &[u8], kind: Option<Kind>, name: &str) -> Result<Self, String> {
        let mut reader = cbor::Reader::new(payload);
        let said = reader.variant().map_err(wrong)?;
        if said != name {
            return Err(format!("the envelope says {name}, the payload {said}"));
        }
        let used = |answer: Option<Answer<'_>>| {
            let usage = answer.and_then(|answer| answer.usage).unwrap_or_default();
            Self::spending(usage.input_tokens, usage.output_tokens, usage.total_cost)
        };
        let summary = match kind {
            Some(Kind::RunStarted) => {
                let about = members::<Seen<'_>>(&mut reader)?.about.unwrap_or_default();
                let is_branch = about.parent.is_some_and(|from| from.continues.is_none());
                let session = about.session.and_then(|session| session.id);
                Self::naming(about.model, session, is_branch)
            }
            Some(Kind::TurnLost) => {
                let seen = members::<Seen<'_>>(&mut reader)?;
                Self::spending(seen.input_tokens, None, seen.cost)
            }
            Some(Kind::AssistantCompleted) => {
                let answer = members::<Seen<'_>>(&mut reader)?.response;
                let model = answer.as_ref().and_then(|answer| answer.model).map(Arc::from);
                Self { model, ..used(answer) }
            }
            Some(Kind::BudgetExceeded | Kind::Cancelled) => {
                used(members::<Seen<'_>>(&mut reader)?.partial)
            }
            Some(Kind::ContextTruncated) => used(members::<Seen<'_>>(&mut reader)?.summary),
            Some(Kind::ToolScheduled) => {
                Self::call(members::<Seen<'_>>(&mut reader)?.attempt.unwrap_or(0))
            }
            Some(Kind::TurnStarted) => {
                members::<IgnoredAny>(&mut reader)?;
                Self::turn()
            }
            None
            | Some(
                Kind::Resumed
                | Kind::UserMessage
                | Kind::FinalizeStarted
                | Kind::FinalizeFailed
                | Kind::ToolCompleted
                | Kind::ToolFailed
                | Kind::SideEffect
                | Kind::Suspended
                | Kind::Completed
                | Kind::Failed
                | Kind::Sealed
                | Kind::Removed,
            ) => {
                members::<IgnoredAny>(&mut reader)?;
                Self::default()
            }
        };
        reader.end().map_err(wrong)?;
        Ok(summary)
    }

    /// A commitment to the model and the session, in a record with this commitment to its body. The
    /// body's commitment is salted, so names cannot be guessed without the record.
    pub(crate) fn names(&self, body: &Hash) -> Hash {
        cbor::Writer::with(|writer| {
            writer.head(major::ARRAY, 2);
            for name in [&self.model, &self.session] {
                match name {
                    Some(name) => writer.text(name),
                    None => writer.head(major::SIMPLE, NULL),
                }
            }
            Hash::of(&[NAMES_DOMAIN, &body.0, writer.bytes()])
        })
    }
}

fn members<'a, T: Deserialize<'a>>(payload: &mut cbor::Reader<'a>) -> Result<T, String> {
    T::deserialize(payload).map_err(wrong)
}

fn wrong(error: cbor::CborError) -> String {
    format!("payload: {error}")
}

const NAMES_DOMAIN: &[u8] = b"mynah record names 1\n";

const NULL: u64 = 22;

/// The members of payloads that count, under the names that facts have for them.
#[derive(Default, Deserialize)]
struct Seen<'a> {
    #[serde(borrow)]
    response: Option<Answer<'a>>,
    partial: Option<Answer<'a>>,
    summary: Option<Answer<'a>>,
    attempt: Option<u32>,
    input_tokens: Option<u64>,
    cost: Option<f64>,
    about: Option<Start<'a>>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    usage: Option<Used>,
    #[serde(borrow)]
    model: Option<&'a str>,
}

#[derive(Default, Deserialize)]
struct Used {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    total_cost: Option<f64>,
}

#[derive(Default, Deserialize)]
struct Start<'a> {
    #[serde(borrow)]
    model: Option<&'a str>,
    session: Option<Linked<'a>>,
    parent: Option<Origin>,
}

#[derive(Deserialize)]
struct Origin {
    continues: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Linked<'a> {
    #[serde(borrow)]
    id: Option<&'a str>,
}
