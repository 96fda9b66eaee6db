//! `mynah diff`: two runs side by side.

use std::io::{self, BufWriter, Write};

use clap::Args;
use mynah::{
    differences,
    log::{Fact, Log, RunSummary},
};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs,
    gist::gist,
    replay::write_fields,
    runtime,
    store::{self, Place},
    text::{count, short},
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah fork last --at 5                   branch a run
  mynah runs                               see the ids of both
  mynah diff RUN last                      a run, by its id, and the newest one
  mynah diff RUN last --json               every difference, whole

What each run has for itself is not compared: ids of requests and answers, its parent, its root,
and the pieces in which answers came.
Exit codes: 0 the same; 1 different; 2 no such run; 4 a log that could not be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The one run: its id, the beginning of it, or `last`.
    left: String,
    /// The other run.
    right: String,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, left, right } = arguments;
    let log = Place::parse(&log)?.open_to_read()?;
    runtime()?.block_on(async {
        let runs =
            [store::find(log.as_ref(), &left).await?, store::find(log.as_ref(), &right).await?];
        let left = entries(log.as_ref(), &runs[0].run_id).await?;
        let right = entries(log.as_ref(), &runs[1].run_id).await?;
        let rows = align(&left, &right);
        let first = rows.iter().position(Row::differs);
        let mut out = BufWriter::new(io::stdout().lock());
        let done = match json {
            true => write_json(&runs, &rows, first, &mut out),
            false => write_text(&runs, &rows, first, &mut out),
        };
        written(done.and_then(|()| out.flush()))?;
        match first {
            None => Ok(()),
            Some(first) => {
                Err(Failure::finding(format!("the runs differ {}", rows[first].place())))
            }
        }
    })
}

/// A record, as far as it can be the same in two runs.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    seq: u64,
    kind: String,
    /// Null if it was taken away.
    fact: Value,
    gist: String,
}

async fn entries(log: &dyn Log, run: &str) -> Result<Vec<Entry>, Failure> {
    let facts = store::facts(log, run).await?;
    let entry = |(record, fact): (mynah::log::Record, Option<Fact>)| Entry {
        seq: record.seq(),
        kind: record.envelope().kind.to_string(),
        gist: fact.as_ref().map_or("(redacted)".to_owned(), gist),
        fact: fact.as_ref().map(comparable).unwrap_or_default(),
    };
    Ok(facts.into_iter().map(entry).collect())
}

/// A fact without what each run has for itself.
fn comparable(fact: &Fact) -> Value {
    let mut value = json!(fact);
    let forget = |members: Option<&mut Value>, names: [&str; 2]| {
        if let Some(Value::Object(members)) = members {
            members.retain(|name, _| !names.contains(&name.as_str()));
        }
    };
    forget(value.get_mut("about"), ["request_id", "parent"]);
    forget(value.get_mut("response"), ["request_id", "id"]);
    forget(value.get_mut("partial"), ["request_id", "id"]);
    forget(Some(&mut value), ["cuts", "root"]);
    value
}

/// Two records that stand for the same, or one that only one run has.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    left: Option<&'a Entry>,
    right: Option<&'a Entry>,
    /// Where the two differ.
    fields: Vec<Value>,
}

impl Row<'_> {
    fn differs(&self) -> bool {
        self.left.is_none() || self.right.is_none() || !self.fields.is_empty()
    }

    /// Where it stands in both runs, in words.
    fn place(&self) -> String {
        match (self.left, self.right) {
            (Some(left), Some(right)) if left.seq == right.seq => {
                format!("from record {} on", left.seq)
            }
            (Some(left), Some(right)) => {
                format!("from records {} and {} on", left.seq, right.seq)
            }
            (Some(left), None) => {
                format!("from record {} on, which only the left one has", left.seq)
            }
            (None, right) => {
                let seq = right.map_or(0, |right| right.seq);
                format!("from record {seq} on, which only the right one has")
            }
        }
    }
}

/// How far is looked ahead for two records of one kind.
const WINDOW: usize = 32;

/// Puts the records of two runs side by side: in order, those of one kind together.
fn align<'a>(left: &'a [Entry], right: &'a [Entry]) -> Vec<Row<'a>> {
    let mut rows = Vec::with_capacity(left.len().max(right.len()));
    let (mut i, mut j) = (0, 0);
    while i < left.len() || j < right.len() {
        let (only_left, only_right) = lead(&left[i..], &right[j..]);
        let alone = |entry| Row { left: Some(entry), right: None, fields: Vec::new() };
        rows.extend(left[i..i + only_left].iter().map(alone));
        let alone = |entry| Row { left: None, right: Some(entry), fields: Vec::new() };
        rows.extend(right[j..j + only_right].iter().map(alone));
        (i, j) = (i + only_left, j + only_right);
        if let (Some(left), Some(right)) = (left.get(i), right.get(j)) {
            let fields = differences(&left.fact, &right.fact);
            rows.push(Row { left: Some(left), right: Some(right), fields });
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
    first: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let told = |run: &RunSummary| json!({"run_id": run.run_id, "records": run.records});
    let summary = json!({
        "status": if first.is_some() { "different" } else { "equal" },
        "left": told(&runs[0]),
        "right": told(&runs[1]),
        "shared": first.unwrap_or(rows.len()),
        "differences": rows.iter().filter(|row| row.differs()).count(),
    });
    writeln!(out, "{summary}")?;
    for row in rows.iter().filter(|row| row.differs()) {
        let told =
            |entry: &Entry| json!({"seq": entry.seq, "kind": entry.kind, "fact": entry.fact});
        let (left, right) = (row.left.map(told), row.right.map(told));
        writeln!(out, "{}", json!({"left": left, "right": right, "diff": sides(&row.fields)}))?;
    }
    Ok(())
}

/// The same differences, named after the sides.
fn sides(fields: &[Value]) -> Vec<Value> {
    let side = |field: &Value| json!({"path": field["path"], "left": field["recorded"], "right": field["produced"]});
    fields.iter().map(side).collect()
}

fn write_text(
    runs: &[RunSummary; 2],
    rows: &[Row<'_>],
    first: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    for (side, run) in ["left ", "right"].into_iter().zip(runs) {
        writeln!(out, "{side}  {}  {}", run.run_id, count(run.records, "record"))?;
    }
    let shared = first.unwrap_or(rows.len());
    match (first, shared) {
        (None, _) => writeln!(out, "the same")?,
        (Some(_), 0) => writeln!(out, "nothing is the same\n")?,
        (Some(_), shared) => writeln!(out, "the same up to record {shared}\n")?,
    }
    for (index, row) in rows.iter().enumerate().skip(shared) {
        let mark = match row {
            Row { right: None, .. } => '<',
            Row { left: None, .. } => '>',
            row if row.differs() => '|',
            _ => ' ',
        };
        let line = format!("{} {mark} {}", cell(row.left), cell(row.right));
        writeln!(out, "{}", line.trim_end())?;
        if first == Some(index) {
            write_fields(&sides(&row.fields), ["left", "right"], out)?;
            writeln!(out, "^ the first difference\n")?;
        }
    }
    Ok(())
}

fn cell(entry: Option<&Entry>) -> String {
    const WIDTH: usize = 56;
    let text = entry.map_or_else(String::new, |Entry { seq, kind, gist, .. }| {
        short(&format!("{seq:>4}  {kind}  {gist}"), WIDTH - 1)
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
        assert_eq!(sides(&rows[1].fields), [json!({"path": "value", "left": 1, "right": 2})]);
        assert_eq!(rows[1].place(), "from record 2 on");
    }

    #[test]
    fn a_record_that_only_one_run_has_does_not_shift_the_others() {
        let left = [entry(1, "run_started", 0), entry(2, "completed", 7)];
        let right = [entry(1, "run_started", 0), entry(2, "resumed", 0), entry(3, "completed", 7)];
        let rows = align(&left, &right);
        assert_eq!(places(&rows), [(Some(1), Some(1)), (None, Some(2)), (Some(2), Some(3))]);
        assert!(!rows[2].differs());
        assert_eq!(rows[1].place(), "from record 2 on, which only the right one has");
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
        let (fact, gist) = (json!({"kind": kind, "value": value}), value.to_string());
        Entry { seq, kind: kind.to_owned(), fact, gist }
    }

    fn places(rows: &[Row<'_>]) -> Vec<(Option<u64>, Option<u64>)> {
        let seq = |entry: Option<&Entry>| entry.map(|entry| entry.seq);
        rows.iter().map(|row| (seq(row.left), seq(row.right))).collect()
    }
}
