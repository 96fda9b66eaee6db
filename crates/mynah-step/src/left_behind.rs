//! What a process leaves behind that ended while its tools ran.

use std::collections::{HashMap, HashSet};

use mynah_log::{Fact, Resolution};

use crate::{
    RecordedFact, Try,
    recorded::{inner, of_tool, outcome_of},
};

/// What the loop does not make again: what tries left behind whose process ended before their outcome, and the announcements
/// with which another process began anew.
#[derive(Default)]
pub(crate) struct LeftBehind {
    /// Where it stands.
    pub(crate) places: HashSet<usize>,
    /// The tries that were begun anew.
    pub(crate) anew: HashMap<Nth, Try>,
    /// The tries that would follow the last of calls that never came out.
    pub(crate) open: HashMap<Nth, Try>,
}

/// A call: its id, and how often the id was used before, as ids can be used again.
pub(crate) type Nth = (String, u32);

impl LeftBehind {
    pub(crate) fn of(records: &[RecordedFact]) -> Self {
        let mut left = Self::default();
        let is_inner = |kept: &RecordedFact| kept.may_be_of_tool() && inner(kept.fact()).is_some();
        if !records.iter().any(is_inner) {
            return left;
        }
        // A call came out in one process, whatever is done under its id later.
        let mut process = 0;
        let mut used = HashMap::new();
        let mut places = Vec::with_capacity(records.len());
        let mut came_out = HashMap::new();
        let mut retried = HashSet::new();
        let mut announced_last = HashMap::new();
        for (index, fact) in records.iter().map(RecordedFact::fact).enumerate() {
            process += usize::from(matches!(fact, Fact::Resumed { .. }));
            let call = match fact {
                Fact::ToolScheduled { call_id, attempt: 1, .. } => {
                    *used.entry(call_id.as_str()).or_default() += 1;
                    Some(call_id.as_str())
                }
                _ => of_tool(fact).map(|(call, _)| call),
            };
            let nth: Option<(&str, u32)> =
                call.map(|call| (call, used.get(call).copied().unwrap_or_default()));
            places.push((nth, process));
            let Some(nth) = nth else { continue };
            if let Fact::ToolScheduled { .. } = fact {
                announced_last.insert(nth, index);
            }
            if outcome_of(fact).is_some() {
                came_out.entry(nth).or_insert((process, index));
            } else if let Fact::ToolFailed { attempt, resolution: Resolution::Retried, .. } = fact {
                retried.insert((nth, process, *attempt));
            }
        }
        let mut failures: HashMap<_, Vec<u32>> = HashMap::new();
        for (nth, _, attempt) in &retried {
            failures.entry(*nth).or_default().push(*attempt);
        }
        let a_try = |nth, number| {
            let failed =
                failures.get(&nth).into_iter().flatten().filter(|failed| **failed < number);
            Try { number, failed: failed.count() as u32 }
        };
        for (index, fact) in records.iter().map(RecordedFact::fact).enumerate() {
            let (Some(nth @ (call, count)), process) = places[index] else { continue };
            let owned = || (call.to_owned(), count);
            let end = came_out.get(&nth).copied();
            let elsewhere = end.is_none_or(|(other, _)| other != process);
            let announced = matches!(fact, Fact::ToolScheduled { .. });
            if let Fact::ToolScheduled { attempt, .. } = fact
                && end.is_none()
            {
                left.open.insert(owned(), a_try(nth, attempt.saturating_add(1)));
            }
            let Some((_, attempt)) = inner(fact) else { continue };
            // A loop that gave a call up gives it up again, unless the call was made again later.
            if let Fact::ToolFailed { resolution: Resolution::CutOff, .. } = fact
                && announced_last.get(&nth).is_none_or(|last| *last < index)
            {
                continue;
            }
            // What was never announced, or came out, cannot be announced once more.
            if announced && (count == 0 || end.is_some_and(|(_, end)| end < index)) {
                continue;
            }
            let is_anew = announced && !retried.contains(&(nth, process, attempt - 1));
            if elsewhere || is_anew {
                left.places.insert(index);
            }
            if is_anew && !elsewhere {
                left.anew.insert(owned(), a_try(nth, attempt));
            }
        }
        left
    }
}
