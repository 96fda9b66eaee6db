//! Hashes in outputs that are compared: counters.

use serde_json::Value;

/// How hashes of records are printed. They depend on a salt.
pub(super) enum Hashes {
    /// As they are.
    Shown,
    /// As counters: the same for the same hash.
    Counted(Vec<String>),
}

impl Hashes {
    pub(super) fn counted() -> Self {
        Self::Counted(Vec::new())
    }

    /// The same value with printable hashes.
    pub(super) fn name(&mut self, mut told: Value) -> Value {
        if let Self::Counted(known) = self {
            count(&mut told, known);
        }
        told
    }
}

fn count(told: &mut Value, known: &mut Vec<String>) {
    const MEMBERS: [&str; 3] = ["root", "fingerprint", "hash"];
    let Value::Object(members) = told else { return };
    for (name, value) in members {
        match value {
            Value::String(hash) if MEMBERS.contains(&name.as_str()) => {
                let place = known.iter().position(|seen| seen == hash).unwrap_or_else(|| {
                    known.push(hash.clone());
                    known.len() - 1
                });
                *hash = format!("hash-{place}");
            }
            value => count(value, known),
        }
    }
}
