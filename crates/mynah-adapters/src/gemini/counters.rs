//! What the provider counted: all of it, again with every piece of an answer.

use std::mem::take;

use mynah_data::Usage;
use serde_json::Value;

use crate::{
    draft::Draft,
    json::Json,
    loose::{self, MAX_COUNTERS, Slot, telling},
};

/// The counters so far: some are left out now and then. What is written as it was before is not
/// read again.
#[derive(Default)]
pub(super) struct Counters {
    known: Vec<Counter>,
    /// The values of [`TOKENS`].
    tokens: [Option<u64>; TOKENS.len()],
    searches: Option<u64>,
    news: CounterChanges,
}

struct Counter {
    name: String,
    value: Value,
    /// Name and value, as they stood in the answer.
    written: String,
}

/// Values that were not emitted yet.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum CounterChanges {
    #[default]
    None,
    Tokens,
    /// Also counters that have no place in [`Usage`].
    Others,
}

/// The counters that have a place in [`Usage`], where they are numbers.
const TOKENS: [&str; 7] = [
    "totalTokenCount",
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "thoughtsTokenCount",
    "candidatesTokenCount",
    "responseTokenCount",
    "cachedContentTokenCount",
];

/// Anything but an object is ignored.
impl<'a> Slot<'a> for Counters {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        if json.peek() != b'{' {
            return json.skip().map(drop);
        }
        let mut place = 0;
        json.members(|json| {
            let last_time = self.known.get(place);
            if !last_time.is_some_and(|counter| json.repeats(&counter.written)) {
                self.count(place, json)?;
            }
            place += 1;
            Ok(())
        })
    }
}

impl Counters {
    /// Reads a counter. It is nearly always in the same position as the last time.
    fn count(&mut self, place: usize, json: &mut Json<'_>) -> serde_json::Result<()> {
        let (name, value, written) = json.member()?;
        if value.is_null() {
            return Ok(());
        }
        let is_it = |counter: &Counter| counter.name == name;
        let place = match self.known.get(place) {
            Some(counter) if is_it(counter) => Some(place),
            _ => self.known.iter().position(is_it),
        };
        if place.is_none() && self.known.len() >= MAX_COUNTERS {
            return Ok(());
        }
        let mut news = CounterChanges::Others;
        if let Some(tokens) = token_place(&name).map(|place| &mut self.tokens[place]) {
            let was_other = tokens.is_none() && place.is_some();
            *tokens = loose::count(&value);
            if tokens.is_some() && !was_other {
                news = CounterChanges::Tokens;
            }
        }
        self.news = self.news.max(news);
        match place.map(|place| &mut self.known[place]) {
            Some(counter) => {
                counter.value = value;
                written.clone_into(&mut counter.written);
            }
            None => {
                let (name, written) = (name.into_owned(), written.to_owned());
                self.known.push(Counter { name, value, written });
            }
        }
        Ok(())
    }

    /// Adds the searches of an answer so far. The provider bills them and does not count them.
    /// Empty ones are free.
    pub(super) fn searched(&mut self, queries: &[Value]) {
        let queries = queries.iter().filter(|query| loose::tells(query)).count() as u64;
        if Some(queries) > self.searches.or(Some(0)) {
            self.searches = Some(queries);
            self.news = self.news.max(CounterChanges::Tokens);
        }
    }

    /// Emits new values.
    pub(super) fn tell(&mut self, draft: &mut Draft) {
        let news = take(&mut self.news);
        if news == CounterChanges::None {
            return;
        }
        draft.recount(|usage| {
            let mut is_new = self.put_tokens(usage);
            if news == CounterChanges::Others {
                is_new |= put(&mut usage.extra, telling(self.others()).into());
            }
            is_new
        });
    }

    fn others(&self) -> impl Iterator<Item = (String, Value)> {
        let is_other = |counter: &&Counter| {
            token_place(&counter.name).is_none_or(|place| self.tokens[place].is_none())
        };
        let others = self.known.iter().filter(is_other);
        others.map(|counter| (counter.name.clone(), counter.value.clone()))
    }

    /// The provider counts thoughts beside the rest of the output, and what its own tools put into
    /// the prompt beside the rest of the prompt; we count them as parts. Counters that are zero are
    /// left out.
    fn put_tokens(&self, usage: &mut Usage) -> bool {
        let [total, prompt, tool_prompt, thoughts, answer, response, cached] = self.tokens;
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            _ => one.or(other).or(total.map(|_| 0)),
        };
        let mut is_new = put(&mut usage.input_tokens, sum(prompt, tool_prompt));
        is_new |= put(&mut usage.output_tokens, sum(answer.or(response), thoughts));
        is_new |= put(&mut usage.cached_input_tokens, cached);
        is_new |= put(&mut usage.reasoning_tokens, thoughts);
        is_new |= put(&mut usage.total_tokens, total);
        let tools = [("prompt_tokens", tool_prompt), ("web_search_queries", self.searches)];
        let told = |name: &str| usage.tool_usage.get(name).and_then(Value::as_u64);
        if tools.iter().any(|(name, count)| told(name) != *count) {
            let counts = tools.into_iter();
            let counts = counts.filter_map(|(name, count)| Some((name.to_owned(), count?.into())));
            usage.tool_usage = counts.collect();
            is_new = true;
        }
        is_new
    }
}

fn token_place(name: &str) -> Option<usize> {
    TOKENS.iter().position(|known| *known == name)
}

/// Stores a value, and returns whether it is new.
fn put<T: PartialEq>(place: &mut T, value: T) -> bool {
    let is_new = *place != value;
    *place = value;
    is_new
}
