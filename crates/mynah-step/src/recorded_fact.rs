//! A record with its decoded fact.

use std::sync::OnceLock;

use mynah_log::{Corrupt, Fact, Kind, Record};

/// A record and the fact in it.
#[derive(Debug)]
pub struct RecordedFact {
    record: Record,
    /// Boxed, as most are read when they are due: until then there are only their records.
    fact: OnceLock<Box<Fact>>,
}

impl RecordedFact {
    /// Reads a record; none if its body was removed.
    pub fn read(record: &Record) -> Result<Option<Self>, Corrupt> {
        let fact = record.fact()?;
        let read = |fact| Self { record: record.clone(), fact: OnceLock::from(Box::new(fact)) };
        Ok(fact.map(read))
    }

    /// The same for a replay. Facts that the loop always makes are decoded when they are due, and
    /// may have another encoding: their payload is compared with that of the loop's fact.
    pub fn to_compare(record: &Record) -> Result<Option<Self>, Corrupt> {
        match record.kind() {
            Kind::TurnStarted | Kind::AssistantCompleted | Kind::ToolScheduled
                if record.body().is_some() =>
            {
                Ok(Some(Self { record: record.clone(), fact: OnceLock::new() }))
            }
            _ => Self::read(record),
        }
    }

    /// The record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether its fact is of this kind, which is known without reading it.
    pub fn is(&self, kind: Kind) -> bool {
        self.record.kind() == kind
    }

    /// Whether a running tool may have made it, as far as that is known without decoding it: the
    /// loop announces first attempts.
    pub(crate) fn may_be_of_tool(&self) -> bool {
        match self.record.kind() {
            Kind::ToolScheduled => self.record.adds().tool_calls == 0,
            kind => matches!(kind, Kind::ToolCompleted | Kind::ToolFailed | Kind::SideEffect),
        }
    }

    /// Its fact.
    pub fn fact(&self) -> &Fact {
        self.fact.get_or_init(|| Box::new(due(&self.record)))
    }

    /// Its fact, by value.
    pub fn into_fact(self) -> Fact {
        let Self { record, fact } = self;
        fact.into_inner().map_or_else(|| due(&record), |fact| *fact)
    }
}

/// A placeholder for a fact that cannot be decoded. It matches nothing that a loop makes.
const UNREADABLE: Fact = Fact::ContextTruncated {
    strategy: String::new(),
    tokens_before: 0,
    tokens_after: 0,
    messages_before: 0,
    messages_after: 0,
    dropped: 0,
    cleared: 0,
    summary: None,
};

/// The fact of a record that is compared.
fn due(record: &Record) -> Fact {
    record.loose_fact().ok().flatten().unwrap_or(UNREADABLE)
}
