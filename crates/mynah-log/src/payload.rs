//! Reading facts whose kind is known.
//!
//! An enum that names its kind among its members is read twice: into memory, to find the kind, and from there. An envelope
//! names the kind before, so the kinds that every turn has are read at once.

use mynah_data::{Response, ToolOutcome};
use serde::{Deserialize, de::IgnoredAny};

use crate::{Cut, DirectCall, Fact, Hash, Plan, cbor};

macro_rules! payloads {
    ($($kind:literal => $variant:ident { $($(#[$attribute:meta])* $member:ident: $type:ty),+ })+) => {
        /// The fact in the payload of a record of this kind.
        pub(crate) fn read(payload: &[u8], kind: &str) -> Result<Fact, cbor::Error> {
            match kind {
                $($kind => {
                    #[derive(Deserialize)]
                    #[serde(deny_unknown_fields)]
                    struct Payload {
                        #[serde(rename = "kind")]
                        _kind: IgnoredAny,
                        $($(#[$attribute])* $member: $type,)+
                    }
                    let Payload { $($member,)+ .. } = cbor::from_slice(payload)?;
                    Ok(Fact::$variant { $($member),+ })
                })+
                _ => cbor::from_slice(payload),
            }
        }
    };
}

payloads! {
    "turn_started" => TurnStarted {
        turn: u32,
        prompt: Option<Hash>,
        #[serde(default)]
        input_tokens: u64
    }
    "assistant_completed" => AssistantCompleted {
        response: Box<Response>,
        plan: Plan,
        #[serde(default)]
        cuts: Vec<Cut>,
        duration_ms: Option<u64>
    }
    "tool_scheduled" => ToolScheduled {
        call_id: String,
        attempt: u32,
        call: Option<Box<DirectCall>>
    }
    "tool_completed" => ToolCompleted {
        call_id: String,
        attempt: u32,
        outcome: ToolOutcome,
        content: String,
        duration_ms: Option<u64>
    }
}
