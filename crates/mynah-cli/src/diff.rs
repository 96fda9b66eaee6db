//! `mynah diff`: two runs side by side.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Write},
};

use clap::Args;
use mynah::{
    ToolCall, differences,
    log::{About, Fact, Hash, Log, Record, RunSummary, SUMMARY_STARTED},
};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs,
    describe::changes,
    replay::write_fields,
    runtime,
    store::{self, LogLocation},
    text::{count, line, short},
    written,
};

pub(crate) const EXAMPLES: &str = "The runs of agents are compared after the runs that started them.

Not compared: ids of requests, answers and calls (calls are compared by tool and arguments), parents, roots, how answers were cut into pieces, durations, model calls that were lost with their process, and where another process continued with the same agent. Redacted records cannot be compared; they are marked with a ?.

Examples:
  mynah fork last --at 5                   branch a run
  mynah runs                               list the ids of both
  mynah diff RUN last                      compare a run with the newest one
  mynah diff RUN last --json               print every difference in full

Exit codes: 0 equal; 1 different, or not comparable; 2 no such run; 4 the log cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// First run: its id, the beginning of it, or `last`.
    left: String,
    /// Second run.
    right: String,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, left, right } = arguments;
    let log = LogLocation::parse(&log)?.open_to_read()?;
    runtime()?.block_on(async {
        let runs =
            [store::find(log.as_ref(), &left).await?, store::find(log.as_ref(), &right).await?];
        let (mut pairs, mut next, mut first) = (vec![runs], 0, None);
        let mut out = BufWriter::new(io::stdout().lock());
        while let Some(runs) = pairs.get(next).cloned() {
            let left = entries(log.as_ref(), &runs[0].run_id).await?;
            let right = entries(log.as_ref(), &runs[1].run_id).await?;
            let rows = align(&left, &right);
            let found = Found::of(&rows);
            let done = match json {
                true => write_json(&runs, &rows, &found, &mut out),
                false if next > 0 => writeln!(out, "\nruns of agents")
                    .and_then(|()| write_text(&runs, &rows, &found, &mut out)),
                false => write_text(&runs, &rows, &found, &mut out),
            };
            written(done)?;
            first = first.or_else(|| found.failure(&rows, &runs, next > 0));
            // The runs that two calls started are compared too.
            for (left, right) in rows.iter().filter_map(Row::sub_runs) {
                let both = (log.run(left).await?, log.run(right).await?);
                if let (Some(left), Some(right)) = both
                    && !pairs.iter().any(|[known, _]| known.run_id == left.run_id)
                {
                    pairs.push([left, right]);
                }
            }
            next += 1;
        }
        written(out.flush())?;
        first.map_or(Ok(()), Err)
    })
}

/// The part of a record that can be equal in two runs.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    seq: u64,
    kind: String,
    /// The commitment to what it holds.
    body: Hash,
    /// None if it was removed.
    fact: Option<Value>,
    /// The fact with the tool and arguments of a call in place of its id.
    compared: Option<Value>,
    summary: String,
    /// The run that a tool started, if the record is about one.
    sub_run: Option<String>,
}

async fn entries(log: &dyn Log, run: &str) -> Result<Vec<Entry>, Failure> {
    let mut facts = store::facts(log, run).await?;
    // A resume is no difference, unless it changed the engine.
    facts.retain(|(_, fact)| match fact {
        Some(Fact::Resumed { about: Some(_), .. }) | None => true,
        Some(fact) => !fact.is_seam(),
    });
    // Nor is that a model call was lost with its process, and made again.
    while let Some(lost) =
        facts.iter().position(|(_, fact)| matches!(fact, Some(Fact::TurnLost { .. })))
    {
        facts.remove(lost);
        let is_turn = |(_, fact): &(Record, Option<Fact>)| match fact {
            Some(Fact::SideEffect { inside: None, name, .. }) => name == SUMMARY_STARTED,
            fact => matches!(fact, Some(Fact::TurnStarted { .. })),
        };
        if let Some(turn) = facts[..lost].iter().rposition(is_turn) {
            facts.remove(turn);
        }
    }
    for fact in facts.iter_mut().filter_map(|(_, fact)| fact.as_mut()) {
        fact.set_duration_ms(None);
        fact.set_first_token_ms(None);
    }
    let (mut before, mut calls) = (None, Calls::default());
    let entry = |(record, fact): (Record, Option<Fact>)| {
        let told = fact.as_ref().map(|fact| {
            calls.learn(fact);
            calls.named(fact, told(fact, &mut before))
        });
        let comparable = fact.as_ref().map(comparable);
        Entry {
            seq: record.seq(),
            kind: record.kind().to_string(),
            body: record.envelope().body,
            summary: told.unwrap_or_else(|| "(redacted)".to_owned()),
            sub_run: fact.as_ref().and_then(Fact::sub_run).map(|(run, _)| run.to_owned()),
            compared: comparable.clone().map(|fact| calls.resolved(fact)),
            fact: comparable,
        }
    };
    Ok(facts.into_iter().map(entry).collect())
}

/// The tool and the arguments of each call, by its id. Providers invent the ids, and use them again.
#[derive(Default)]
struct Calls(HashMap<String, (String, String)>);

impl Calls {
    /// Learns the calls of a fact.
    fn learn(&mut self, fact: &Fact) {
        let mut learn = |call: &ToolCall| {
            let told = (call.name.clone(), call.raw_arguments.clone());
            self.0.insert(call.id.clone(), told);
        };
        match fact {
            Fact::RunStarted { thread, .. } => {
                thread.messages.iter().flat_map(|message| message.tool_calls()).for_each(learn);
            }
            Fact::AssistantCompleted { response, .. } => {
                response.message.tool_calls().for_each(learn);
            }
            Fact::ToolScheduled { call_id, call: Some(call), .. } => {
                learn(&ToolCall::new(call_id.clone(), call.name.clone(), call.arguments.clone()));
            }
            Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::ToolScheduled { call: None, .. }
            | Fact::ToolCompleted { .. }
            | Fact::ToolFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Cancelled { .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
    }

    /// A description with the name of the tool in place of the call's id.
    fn named(&self, fact: &Fact, told: String) -> String {
        let Some((id, (name, _))) = fact.attempt().and_then(|(id, _)| self.0.get_key_value(id))
        else {
            return told;
        };
        told.replacen(&format!("[{id}]"), &format!("[{name}]"), 1)
    }

    /// A fact with the tool and arguments of a call in place of its id.
    fn resolved(&self, value: Value) -> Value {
        match value {
            Value::String(text) => match self.0.get(&text) {
                Some((name, arguments)) => format!("{name} {arguments}").into(),
                None => text.into(),
            },
            Value::Array(items) => items.into_iter().map(|item| self.resolved(item)).collect(),
            Value::Object(members) => {
                let is_call = members.contains_key("raw_arguments");
                let members = members.into_iter().filter(|(name, _)| !is_call || name != "id");
                members.map(|(name, value)| (name, self.resolved(value))).collect()
            }
            value => value,
        }
    }
}

/// A short description of a record, with the changed engine that the run continues with.
fn told(fact: &Fact, before: &mut Option<Box<About>>) -> String {
    let (Fact::RunStarted { about: Some(about), .. } | Fact::Resumed { about: Some(about), .. }) =
        fact
    else {
        return fact.summary();
    };
    let changed = before.replace(about.clone()).map(|before| changes(&before, about));
    let changed = changed.into_iter().flatten().map(|change| format!("({change})"));
    changed.chain([fact.summary()]).collect::<Vec<_>>().join(" ")
}

/// A fact without what each run has for itself.
fn comparable(fact: &Fact) -> Value {
    let mut value = json!(fact);
    let forget = |members: Option<&mut Value>, names: &[&str]| {
        if let Some(Value::Object(members)) = members {
            members.retain(|name, _| !names.contains(&name.as_str()));
        }
    };
    forget(value.get_mut("about"), &["request_id", "parent"]);
    forget(value.get_mut("response"), &["request_id", "id"]);
    forget(value.get_mut("partial"), &["request_id", "id"]);
    forget(Some(&mut value), &["cuts", "root"]);
    if fact.sub_run().is_some() {
        forget(value.pointer_mut("/effect/done"), &["run_id"]);
    }
    // A custom loop has nothing there, and its fork only its parent.
    if matches!(fact, Fact::RunStarted { about: Some(about), .. } if about.is_bare()) {
        forget(Some(&mut value), &["about"]);
    }
    value
}

/// Two corresponding records, or one that only one run has.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    left: Option<&'a Entry>,
    right: Option<&'a Entry>,
    /// Where the two differ; none if that is unknown.
    fields: Option<Vec<Value>>,
}

impl<'a> Row<'a> {
    fn of(left: &'a Entry, right: &'a Entry) -> Self {
        let fields = match (&left.compared, &right.compared) {
            (Some(left), Some(right)) => Some(differences(left, right)),
            // Nothing but the same has the same commitment.
            _ => (left.body == right.body).then(Vec::new),
        };
        Self { left: Some(left), right: Some(right), fields }
    }

    /// The runs that tools started on both sides.
    fn sub_runs(&self) -> Option<(&'a str, &'a str)> {
        Some((self.left?.sub_run.as_deref()?, self.right?.sub_run.as_deref()?))
    }

    fn differs(&self) -> bool {
        let is_alone = self.left.is_none() || self.right.is_none();
        is_alone || self.fields.as_ref().is_some_and(|fields| !fields.is_empty())
    }

    /// Whether the two cannot be compared.
    fn is_untold(&self) -> bool {
        self.fields.is_none()
    }

    /// Its position in both runs, in words.
    fn place(&self) -> String {
        match (self.left, self.right) {
            (Some(_), Some(_)) => format!("from {} on", self.records()),
            // The other may have a record of that number, which was not compared.
            (Some(_), None) => format!(
                "from {} of the left one on: the right one has nothing like it",
                self.records()
            ),
            (None, _) => format!(
                "from {} of the right one on: the left one has nothing like it",
                self.records()
            ),
        }
    }

    /// Its records, in words.
    fn records(&self) -> String {
        let seq = |entry: &Entry| entry.seq;
        match (self.left.map(seq), self.right.map(seq)) {
            (Some(left), Some(right)) if left != right => format!("records {left} and {right}"),
            (left, right) => format!("record {}", left.or(right).unwrap_or_default()),
        }
    }
}

/// The result of a comparison: the first rows that differ.
struct Found {
    different: Option<usize>,
    redacted: Option<usize>,
    /// How many rows are the same before the first that is not, or cannot be compared.
    shared: usize,
}

impl Found {
    fn of(rows: &[Row<'_>]) -> Self {
        let different = rows.iter().position(Row::differs);
        let redacted = rows.iter().position(Row::is_untold);
        let shared = different.into_iter().chain(redacted).min().unwrap_or(rows.len());
        Self { different, redacted, shared }
    }

    /// What the command fails with.
    fn failure(
        &self,
        rows: &[Row<'_>],
        runs: &[RunSummary; 2],
        are_agents: bool,
    ) -> Option<Failure> {
        let who = match are_agents {
            true => format!("the runs {} and {}", line(&runs[0].run_id), line(&runs[1].run_id)),
            false => "the runs".to_owned(),
        };
        let place = |first: usize| rows[first].place();
        match (self.different, self.redacted) {
            (Some(first), _) => Some(Failure::finding(format!("{who} differ {}", place(first)))),
            (None, Some(first)) => Some(Failure::finding(format!(
                "{who} cannot be compared {}: it was redacted",
                place(first)
            ))),
            (None, None) => None,
        }
    }

    fn status(&self) -> &'static str {
        match (self.different, self.redacted) {
            (Some(_), _) => "different",
            (None, Some(_)) => "incomparable",
            (None, None) => "equal",
        }
    }
}

/// How far is looked ahead for two records of one kind.
const WINDOW: usize = 32;

/// Aligns the records of two runs: in order, those of one kind together.
fn align<'a>(left: &'a [Entry], right: &'a [Entry]) -> Vec<Row<'a>> {
    let mut rows = Vec::with_capacity(left.len().max(right.len()));
    let (mut i, mut j) = (0, 0);
    while i < left.len() || j < right.len() {
        let (only_left, only_right) = lead(&left[i..], &right[j..]);
        let alone = |entry| Row { left: Some(entry), right: None, fields: Some(Vec::new()) };
        rows.extend(left[i..i + only_left].iter().map(alone));
        let alone = |entry| Row { left: None, right: Some(entry), fields: Some(Vec::new()) };
        rows.extend(right[j..j + only_right].iter().map(alone));
        (i, j) = (i + only_left, j + only_right);
        if let (Some(left), Some(right)) = (left.get(i), right.get(j)) {
            rows.push(Row::of(left, right));
            (i, j) = (i + 1, j + 1);
        }
    }
    rows
}

/// How many records of either side come before the next two of one kind.
fn lead(left: &[Entry], right: &[Entry]) -> (usize, usize) {
    let pairs = (0..WINDOW).flat_map(|sum| (0..=sum).map(move |skip| (skip, sum - skip)));
    let mut pairs = pairs.filter(|&(i, j)| i < left.len() && j < right.len());
    pairs.find(|&(i, j)| left[i].kind == right[j].kind).unwrap_or((left.len(), right.len()))
}

fn write_json(
    runs: &[RunSummary; 2],
    rows: &[Row<'_>],
    found: &Found,
    out: &mut impl Write,
) -> io::Result<()> {
    let told = |run: &RunSummary| json!({"run_id": run.run_id, "records": run.records});
    let summary = json!({
        "status": found.status(),
        "left": told(&runs[0]),
        "right": told(&runs[1]),
        "shared": found.shared,
        "differences": rows.iter().filter(|row| row.differs()).count(),
        "redacted": rows.iter().filter(|row| row.is_untold()).count(),
    });
    writeln!(out, "{summary}")?;
    for row in rows.iter().filter(|row| row.differs() || row.is_untold()) {
        let told =
            |entry: &Entry| json!({"seq": entry.seq, "kind": entry.kind, "fact": entry.fact});
        let (left, right) = (row.left.map(told), row.right.map(told));
        let diff = row.fields.as_deref().map(sides);
        writeln!(out, "{}", json!({"left": left, "right": right, "diff": diff}))?;
    }
    Ok(())
}

/// The same differences, named after the sides.
fn sides(fields: &[Value]) -> Vec<Value> {
    let side = |(key, value): (&String, &Value)| match key.as_str() {
        "recorded" => ("left", value.clone()),
        "produced" => ("right", value.clone()),
        _ => ("path", value.clone()),
    };
    fields.iter().map(|field| field.as_object().into_iter().flatten().map(side).collect()).collect()
}

fn write_text(
    runs: &[RunSummary; 2],
    rows: &[Row<'_>],
    found: &Found,
    out: &mut impl Write,
) -> io::Result<()> {
    for (side, run) in ["left ", "right"].into_iter().zip(runs) {
        writeln!(out, "{side}  {}  {}", run.run_id, count(run.records, "record"))?;
    }
    match (found.shared, found.redacted) {
        (shared, _) if shared == rows.len() => writeln!(out, "the same")?,
        (0, Some(0)) => writeln!(out, "nothing is known to be the same\n")?,
        (0, _) => writeln!(out, "nothing is the same\n")?,
        (shared, _) => writeln!(out, "the same up to {}\n", rows[shared - 1].records())?,
    }
    for (index, row) in rows.iter().enumerate().skip(found.shared) {
        let mark = match row {
            row if row.is_untold() => '?',
            Row { right: None, .. } => '<',
            Row { left: None, .. } => '>',
            row if row.differs() => '|',
            _ => ' ',
        };
        let line = format!("{} {mark} {}", cell(row.left), cell(row.right));
        writeln!(out, "{}", line.trim_end())?;
        if found.different == Some(index) {
            let fields = row.fields.as_deref().unwrap_or_default();
            write_fields(&sides(fields), ["left", "right"], out)?;
            writeln!(out, "^ the first difference\n")?;
        }
    }
    Ok(())
}

fn cell(entry: Option<&Entry>) -> String {
    const WIDTH: usize = 56;
    let text = entry.map_or_else(String::new, |Entry { seq, kind, summary, .. }| {
        short(&format!("{seq:>4}  {kind}  {summary}"), WIDTH - 1)
    });
    format!("{text:<WIDTH$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_say_the_same_are_the_same() {
        let run = [entry(1, "run_started", 0), entry(2, "completed", 1)];
        assert!(align(&run, &run).iter().all(|row| !row.differs()));
        assert_eq!(align(&[], &[]), []);
    }

    #[test]
    fn records_of_one_kind_stand_together_and_tell_where_they_differ() {
        let left = [entry(1, "run_started", 0), entry(2, "turn_started", 1)];
        let right = [entry(1, "run_started", 0), entry(2, "turn_started", 2)];
        let rows = align(&left, &right);
        assert_eq!(rows.iter().map(Row::differs).collect::<Vec<_>>(), [false, true]);
        let fields = rows[1].fields.as_deref().expect("both are there");
        assert_eq!(sides(fields), [json!({"path": "value", "left": 1, "right": 2})]);
        let absent = differences(&json!({"a": null}), &json!({}));
        assert_eq!(sides(&absent), [json!({"path": "a", "left": null})]);
        assert_eq!(rows[1].place(), "from record 2 on");
    }

    #[test]
    fn what_was_redacted_is_the_same_only_as_itself() {
        let redacted = |value| Entry { fact: None, compared: None, ..entry(1, "completed", value) };
        for (left, right, untold) in [
            (redacted(1), redacted(2), true),
            (redacted(1), entry(1, "completed", 2), true),
            (redacted(1), redacted(1), false),
            (redacted(1), entry(1, "completed", 1), false),
        ] {
            let row = Row::of(&left, &right);
            assert_eq!((row.is_untold(), row.differs()), (untold, false), "{left:?} {right:?}");
        }
        let runs = [redacted(1), entry(2, "resumed", 1)];
        let others = [redacted(2), entry(2, "resumed", 2)];
        assert_eq!(Found::of(&align(&runs, &others)).status(), "different");
        assert_eq!(Found::of(&align(&runs[..1], &others[..1])).status(), "incomparable");
    }

    #[test]
    fn a_record_that_only_one_run_has_does_not_shift_the_others() {
        let left = [entry(1, "run_started", 0), entry(2, "completed", 7)];
        let right = [entry(1, "run_started", 0), entry(2, "resumed", 0), entry(3, "completed", 7)];
        let rows = align(&left, &right);
        assert_eq!(places(&rows), [(Some(1), Some(1)), (None, Some(2)), (Some(2), Some(3))]);
        assert!(!rows[2].differs());
        assert_eq!(
            rows[1].place(),
            "from record 2 of the right one on: the left one has nothing like it"
        );
    }

    #[test]
    fn a_run_may_go_on_where_the_other_ends() {
        let long =
            [entry(1, "run_started", 0), entry(2, "turn_started", 1), entry(3, "completed", 7)];
        let rows = align(&long[..1], &long);
        assert_eq!(places(&rows), [(Some(1), Some(1)), (None, Some(2)), (None, Some(3))]);
        let rows = align(&long, &long[..2]);
        assert_eq!(places(&rows), [(Some(1), Some(1)), (Some(2), Some(2)), (Some(3), None)]);
    }

    #[test]
    fn nothing_is_lost_where_nothing_fits() {
        let of = |kind: &str| (1..=100).map(|seq| entry(seq, kind, seq)).collect::<Vec<_>>();
        let (left, right) = (of("turn_started"), of("side_effect"));
        let rows = align(&left, &right);
        assert_eq!(rows.iter().filter_map(|row| row.left).count(), 100);
        assert_eq!(rows.iter().filter_map(|row| row.right).count(), 100);
    }

    #[test]
    fn what_each_run_has_for_itself_is_not_compared() {
        let started = |request: &str| {
            serde_json::from_value::<Fact>(json!({
                "kind": "run_started", "thread": {"messages": []}, "extent": "chat",
                "about": {"request_id": request, "adapter": "a", "model": null, "tools": [], "params": {}, "options": {}},
            }))
        };
        let facts = [started("r0"), started("r1")].map(|fact| fact.expect("a fact"));
        assert_ne!(facts[0], facts[1]);
        assert_eq!(comparable(&facts[0]), comparable(&facts[1]));
    }

    fn entry(seq: u64, kind: &str, value: u64) -> Entry {
        let (fact, summary) = (json!({"kind": kind, "value": value}), value.to_string());
        let body = Hash([value as u8; 32]);
        let (kind, compared) = (kind.to_owned(), Some(fact.clone()));
        Entry { seq, kind, body, fact: Some(fact), compared, summary, sub_run: None }
    }

    fn places(rows: &[Row<'_>]) -> Vec<(Option<u64>, Option<u64>)> {
        let seq = |entry: Option<&Entry>| entry.map(|entry| entry.seq);
        rows.iter().map(|row| (seq(row.left), seq(row.right))).collect()
    }
}
