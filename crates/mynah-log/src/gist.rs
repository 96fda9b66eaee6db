//! What totals and indexes learn from a record, without decoding the rest of it.

use std::sync::Arc;

use mynah_data::Response;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    Fact, Hash, Totals,
    cbor::{self, major},
};

/// What is to be known of a record whoever counts it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gist {
    /// What it adds to the totals of its run.
    pub(crate) adds: Totals,
    /// The model that it names.
    pub(crate) model: Option<Arc<str>>,
    /// The session whose turn it begins.
    pub(crate) session: Option<Arc<str>>,
}

impl Gist {
    pub(crate) fn of(fact: &Fact) -> Self {
        let (answer, model) = match fact {
            Fact::RunStarted { about: Some(about), .. } => (None, &about.model),
            Fact::AssistantCompleted { response, .. } => (Some(response), &response.model),
            Fact::BudgetExceeded { partial: Some(partial), .. }
            | Fact::Cancelled { partial: Some(partial), .. } => (Some(partial), &None),
            _ => (None, &None),
        };
        let usage = match fact {
            Fact::TurnLost { input_tokens, cost, .. } => Some((Some(*input_tokens), None, *cost)),
            _ => answer.map(|answer| {
                let Response { usage, .. } = &**answer;
                (usage.input_tokens, usage.output_tokens, usage.total_cost)
            }),
        };
        let session = match fact {
            // A branch is not a turn of the session, though it keeps its link.
            Fact::RunStarted { about: Some(about), .. } if about.parent.is_none() => {
                about.session.as_ref().and_then(|session| session.id.as_deref())
            }
            _ => None,
        };
        let (model, session) = (model.as_deref().map(Arc::from), session.map(Arc::from));
        let is_call = matches!(fact, Fact::ToolScheduled { attempt: 1, .. });
        Self { adds: adds(fact.kind(), is_call, usage), model, session }
    }

    /// From the payload of a record of this kind. All of it is read, and has to be deterministic CBOR; what is not needed is
    /// passed over.
    ///
    /// # Errors
    /// What is wrong with the payload, in words.
    pub(crate) fn read(payload: &[u8], kind: &str) -> Result<Self, String> {
        let wrong = |error: cbor::Error| format!("payload: {error}");
        let is_counted = matches!(
            kind,
            "run_started"
                | "turn_lost"
                | "assistant_completed"
                | "tool_scheduled"
                | "budget_exceeded"
                | "cancelled"
        );
        let mut reader = cbor::Reader::new(payload);
        let said = reader.variant().map_err(wrong)?;
        if said != kind {
            return Err(format!("the envelope says {kind}, the payload {said}"));
        }
        let seen = match is_counted {
            true => Seen::deserialize(&mut reader),
            false => IgnoredAny::deserialize(&mut reader).map(|_| Seen::default()),
        };
        let seen = seen.and_then(|seen| reader.end().map(|()| seen)).map_err(wrong)?;
        let answer = seen.response.or(seen.partial).unwrap_or_default();
        let usage =
            answer.usage.map(|usage| (usage.input_tokens, usage.output_tokens, usage.total_cost));
        let lost = (kind == "turn_lost").then_some((seen.input_tokens, None, seen.cost));
        let usage = lost.or(usage);
        // A run that went on with another engine is listed as what it began with.
        let about = seen.about.filter(|_| kind == "run_started").unwrap_or_default();
        let session = about.session.filter(|_| about.parent.is_none());
        let session = session.and_then(|session| session.id);
        let model = about.model.or(answer.model);
        let (model, session) = (model.map(Arc::from), session.map(Arc::from));
        let is_call = kind == "tool_scheduled" && seen.attempt == Some(1);
        Ok(Self { adds: adds(kind, is_call, usage), model, session })
    }

    /// Whether records of this kind name a model or a session.
    pub(crate) fn is_named_by(kind: &str) -> bool {
        matches!(kind, "run_started" | "assistant_completed")
    }

    /// A commitment to the model and the session, in a record with this commitment to its body. That one hides them, for
    /// nobody who has not the record can try names out.
    pub(crate) fn names(&self, body: &Hash) -> Hash {
        let mut writer = cbor::Writer::default();
        writer.start();
        writer.head(major::ARRAY, 2);
        for name in [&self.model, &self.session] {
            match name {
                Some(name) => writer.text(name),
                None => writer.head(major::SIMPLE, NULL),
            }
        }
        Hash::of(&[NAMES_DOMAIN, &body.0, writer.bytes()])
    }
}

const NAMES_DOMAIN: &[u8] = b"mynah record names 1\n";

const NULL: u64 = 22;

type Spent = (Option<u64>, Option<u64>, Option<f64>);

fn adds(kind: &str, is_call: bool, spent: Option<Spent>) -> Totals {
    let (input, output, cost) = spent.unwrap_or_default();
    Totals {
        turns: (kind == "turn_started").into(),
        tool_calls: is_call.into(),
        input_tokens: input.unwrap_or(0),
        output_tokens: output.unwrap_or(0),
        cost: cost.unwrap_or(0.0),
    }
}

/// The members of payloads that count, under the names that facts have for them.
#[derive(Default, Deserialize)]
struct Seen<'a> {
    #[serde(borrow)]
    response: Option<Answer<'a>>,
    partial: Option<Answer<'a>>,
    attempt: Option<u32>,
    input_tokens: Option<u64>,
    cost: Option<f64>,
    about: Option<Start<'a>>,
}

#[derive(Default, Deserialize)]
struct Answer<'a> {
    usage: Option<Usage>,
    #[serde(borrow)]
    model: Option<&'a str>,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    total_cost: Option<f64>,
}

#[derive(Default, Deserialize)]
struct Start<'a> {
    #[serde(borrow)]
    model: Option<&'a str>,
    session: Option<Linked<'a>>,
    parent: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Linked<'a> {
    #[serde(borrow)]
    id: Option<&'a str>,
}
