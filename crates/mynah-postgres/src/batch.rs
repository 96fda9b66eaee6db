//! What a group of appends and leases changes, written by a single statement.

use std::collections::{BTreeMap, BTreeSet};

use mynah_data::RunId;
use mynah_log::{AnswerPart, Durability, Hash, Record};
use tokio_postgres::{
    Error,
    types::{ToSql, Type},
};

use crate::{
    connection::{BYTES, Line, NOW, NUMBERS, TEXTS},
    row::Known,
};

/// Changes other than the rows of the runs.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) records: Vec<Record>,
    pub(crate) beats: BTreeMap<String, i64>,
    pub(crate) leaves: Vec<(RunId, Hash)>,
    /// Messages that are removed, by run and id.
    pub(crate) consumed: BTreeSet<(RunId, String)>,
    pub(crate) delivered: Vec<Message>,
    /// Parts of answers, by run, record and first event, and the runs whose parts are removed.
    pub(crate) parts: BTreeMap<(RunId, i64, i64), AnswerPart>,
    pub(crate) without_parts: BTreeSet<RunId>,
    pub(crate) durability: Durability,
}

/// A message that comes in.
pub(crate) struct Message {
    pub(crate) run: RunId,
    pub(crate) id: String,
    pub(crate) n: i64,
    pub(crate) payload: Vec<u8>,
}

/// A statement with its parameters.
#[derive(Default)]
struct Statement<'a> {
    parts: Vec<String>,
    values: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
}

impl<'a> Statement<'a> {
    fn add(&mut self, value: impl ToSql + Sync + Send + 'a, type_: Type) -> String {
        let name = type_.name();
        // An array's type has an underscore before the name.
        let cast = name.strip_prefix('_').map_or(name.to_owned(), |of| format!("{of}[]"));
        self.values.push((Box::new(value), type_));
        format!("${}::{cast}", self.values.len())
    }

    async fn perform(self, line: &mut Line, last: &str) -> Result<i64, Error> {
        let text = format!("WITH {} {last}", self.parts.join(", "));
        let types: Vec<Type> = self.values.iter().map(|(_, type_)| type_.clone()).collect();
        let values: Vec<&(dyn ToSql + Sync)> =
            self.values.iter().map(|(value, _)| &**value as &(dyn ToSql + Sync)).collect();
        line.query_one(text, &types, &values).await?.try_get(1)
    }
}

/// The columns of a run that change, with their types.
const CHANGING: &str = "status, updated, records, hash, model, turns, tool_calls, input_tokens, output_tokens, cost, sealed, \
                        token, owner, wake, delivered";

impl Batch {
    /// Whether there is nothing to write but, maybe, rows of runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.beats.is_empty()
            && self.consumed.is_empty()
            && self.delivered.is_empty()
            && self.parts.is_empty()
    }

    /// Writes all of it and the rows of these runs, or nothing if one of the rows is not of the expected version.
    pub(crate) async fn write(&self, line: &mut Line, runs: &[&Known]) -> Result<(), Error> {
        let mut statement = Statement::default();
        let mut checks = Vec::new();
        let (new, changed): (Vec<&Known>, Vec<&Known>) =
            runs.iter().partition(|known| known.version == 0);
        if !changed.is_empty() {
            let (ids, columns) = columns(&mut statement, &changed);
            let sets: Vec<String> =
                CHANGING.split(", ").map(|column| format!("{column} = v.{column}")).collect();
            statement.parts.push(format!(
                "changed AS (UPDATE mynah_runs AS r SET version = v.version + 1, {} \
                 FROM unnest({columns}) AS v(id, version, {CHANGING}) \
                 WHERE r.id = v.id AND r.version = v.version RETURNING 1)",
                sets.join(", ")
            ));
            checks.push(format!("(SELECT count(*) FROM changed) = cardinality({ids})"));
        }
        if !new.is_empty() {
            let (ids, columns) = columns(&mut statement, &new);
            let more = fixed_columns(&mut statement, &new);
            statement.parts.push(format!(
                "new AS (INSERT INTO mynah_runs (id, version, {CHANGING}, started, session, queue, priority, shared, at_most) \
                 SELECT v.id, 1, {}, v.started, v.session, v.queue, v.priority, v.shared, v.at_most \
                 FROM unnest({columns}, {more}) AS v(id, version, {CHANGING}, started, session, queue, priority, shared, at_most) \
                 WHERE NOT EXISTS (SELECT 1 FROM mynah_pruned p WHERE p.id = v.id) RETURNING 1)",
                CHANGING.split(", ").map(|column| format!("v.{column}")).collect::<Vec<_>>().join(", ")
            ));
            checks.push(format!("(SELECT count(*) FROM new) = cardinality({ids})"));
        }
        let from = line.no;
        self.add_records(&mut statement, line);
        self.add_messages(&mut statement, line);
        self.add_parts(&mut statement);
        if line.no > from {
            let no = statement.add(line.no, Type::INT8);
            let writer = line.writer;
            statement.parts.push(format!(
                "told AS (UPDATE mynah_writers SET no = {no}, at = {NOW} WHERE key = {writer} RETURNING 1)"
            ));
            // One that was silent for long may have been cleared away.
            checks.push("(SELECT count(*) FROM told) = 1".to_owned());
        }
        if !self.leaves.is_empty() {
            let ids: Vec<&str> = self.leaves.iter().map(|(run, _)| &**run).collect();
            let hashes: Vec<&[u8]> = self.leaves.iter().map(|(_, hash)| &hash.0[..]).collect();
            let (ids, hashes) = (statement.add(ids, TEXTS), statement.add(hashes, BYTES));
            statement.parts.push(format!(
                "leaves AS (INSERT INTO mynah_seals (id, hash) SELECT * FROM unnest({ids}, {hashes}))"
            ));
        }
        if !self.beats.is_empty() {
            let processes: Vec<&str> = self.beats.keys().map(String::as_str).collect();
            let ends: Vec<i64> = self.beats.values().copied().collect();
            let (processes, ends) = (statement.add(processes, TEXTS), statement.add(ends, NUMBERS));
            statement.parts.push(format!(
                "beats AS (INSERT INTO mynah_beats AS b (process, until) SELECT * FROM unnest({processes}, {ends}) \
                 ON CONFLICT (process) DO UPDATE SET until = excluded.until)"
            ));
        }
        if statement.parts.is_empty() {
            return Ok(());
        }
        let checks = if checks.is_empty() { "true".to_owned() } else { checks.join(" AND ") };
        let commit = match self.durability {
            Durability::Relaxed => ", set_config('synchronous_commit', 'off', true)",
            _ => "",
        };
        let last = format!("SELECT 1 / (CASE WHEN {checks} THEN 1 ELSE 0 END), {NOW}{commit}");
        let now = statement.perform(line, &last).await?;
        line.set_clock(now);
        Ok(())
    }

    fn add_records<'a>(&'a self, statement: &mut Statement<'a>, line: &mut Line) {
        if self.records.is_empty() {
            return;
        }
        let records = || self.records.iter();
        let first = line.no + 1;
        line.no += self.records.len() as i64;
        let numbers: Vec<i64> = (first..=line.no).collect();
        let runs: Vec<&str> = records().map(|record| &*record.envelope().run_id).collect();
        let seqs: Vec<i64> = records().map(|record| record.seq().cast_signed()).collect();
        let envelopes: Vec<&[u8]> = records().map(|record| &record.envelope_bytes()[..]).collect();
        let salts: Vec<Option<&[u8]>> =
            records().map(|record| record.body().map(|body| &body.salt[..])).collect();
        let payloads: Vec<Option<&[u8]>> =
            records().map(|record| record.body().map(|body| &body.payload[..])).collect();
        let columns = [
            statement.add(runs, TEXTS),
            statement.add(seqs, NUMBERS),
            statement.add(envelopes, BYTES),
            statement.add(salts, BYTES),
            statement.add(payloads, BYTES),
            statement.add(numbers, NUMBERS),
        ];
        statement.parts.push(format!(
            "kept AS (INSERT INTO mynah_records (run, seq, envelope, salt, payload, writer, no) \
             SELECT v.run, v.seq, v.envelope, v.salt, v.payload, {}, v.no \
             FROM unnest({}) AS v(run, seq, envelope, salt, payload, no))",
            line.writer,
            columns.join(", ")
        ));
    }

    fn add_messages<'a>(&'a self, statement: &mut Statement<'a>, line: &mut Line) {
        if !self.delivered.is_empty() {
            let messages = || self.delivered.iter();
            let first = line.no + 1;
            line.no += self.delivered.len() as i64;
            let numbers: Vec<i64> = (first..=line.no).collect();
            let columns = [
                statement.add(messages().map(|message| &*message.run).collect::<Vec<_>>(), TEXTS),
                statement.add(messages().map(|message| &*message.id).collect::<Vec<_>>(), TEXTS),
                statement.add(messages().map(|message| message.n).collect::<Vec<_>>(), NUMBERS),
                statement
                    .add(messages().map(|message| &message.payload[..]).collect::<Vec<_>>(), BYTES),
                statement.add(numbers, NUMBERS),
            ];
            statement.parts.push(format!(
                "messages AS (INSERT INTO mynah_inbox (run, id, n, at, payload, writer, no) \
                 SELECT v.run, v.id, v.n, {NOW}, v.payload, {}, v.no \
                 FROM unnest({}) AS v(run, id, n, payload, no))",
                line.writer,
                columns.join(", ")
            ));
        }
        if !self.consumed.is_empty() {
            let runs: Vec<&str> = self.consumed.iter().map(|(run, _)| &**run).collect();
            let ids: Vec<&str> = self.consumed.iter().map(|(_, id)| &**id).collect();
            let (runs, ids) = (statement.add(runs, TEXTS), statement.add(ids, TEXTS));
            statement.parts.push(format!(
                "consumed AS (UPDATE mynah_inbox AS i SET payload = NULL FROM unnest({runs}, {ids}) AS v(run, id) \
                 WHERE i.run = v.run AND i.id = v.id)"
            ));
        }
    }

    fn add_parts<'a>(&'a self, statement: &mut Statement<'a>) {
        if !self.without_parts.is_empty() {
            let runs: Vec<&str> = self.without_parts.iter().map(|run| &**run).collect();
            let runs = statement.add(runs, TEXTS);
            statement
                .parts
                .push(format!("unkept AS (DELETE FROM mynah_parts WHERE run = ANY({runs}))"));
        }
        if !self.parts.is_empty() {
            let keys = || self.parts.keys();
            let parts = || self.parts.values();
            let columns = [
                statement.add(keys().map(|(run, ..)| &**run).collect::<Vec<_>>(), TEXTS),
                statement.add(keys().map(|(_, seq, _)| *seq).collect::<Vec<_>>(), NUMBERS),
                statement.add(keys().map(|(.., first)| *first).collect::<Vec<_>>(), NUMBERS),
                statement
                    .add(parts().map(|part| part.count.cast_signed()).collect::<Vec<_>>(), NUMBERS),
                statement.add(parts().map(|part| &part.payload[..]).collect::<Vec<_>>(), BYTES),
            ];
            statement.parts.push(format!(
                "parts AS (INSERT INTO mynah_parts AS p (run, seq, first, count, payload) SELECT * FROM unnest({}) \
                 ON CONFLICT (run, seq, first) DO UPDATE SET count = excluded.count, payload = excluded.payload)",
                columns.join(", ")
            ));
        }
    }
}

/// The ids; and with them the versions and the columns that change, as arrays.
fn columns<'a>(statement: &mut Statement<'a>, runs: &[&'a Known]) -> (String, String) {
    let each = || runs.iter().copied();
    let summary = |known: &'a Known| &known.entry.summary;
    let numbers = |statement: &mut Statement<'a>, of: &dyn Fn(&'a Known) -> i64| {
        statement.add(each().map(of).collect::<Vec<i64>>(), NUMBERS)
    };
    let owner = |known: &'a Known| known.entry.holder.as_ref().map(|holder| &*holder.owner);
    let columns = [
        statement.add(each().map(|known| &*summary(known).run_id).collect::<Vec<_>>(), TEXTS),
        numbers(statement, &|known| known.version),
        statement.add(
            each().map(|known| summary(known).status as i16).collect::<Vec<_>>(),
            Type::INT2_ARRAY,
        ),
        numbers(statement, &|known| summary(known).updated),
        numbers(statement, &|known| summary(known).records.cast_signed()),
        statement.add(each().map(|known| &summary(known).hash.0[..]).collect::<Vec<_>>(), BYTES),
        statement
            .add(each().map(|known| summary(known).model.as_deref()).collect::<Vec<_>>(), TEXTS),
        numbers(statement, &|known| summary(known).totals.turns.cast_signed()),
        numbers(statement, &|known| summary(known).totals.tool_calls.cast_signed()),
        numbers(statement, &|known| summary(known).totals.input_tokens.cast_signed()),
        numbers(statement, &|known| summary(known).totals.output_tokens.cast_signed()),
        statement.add(
            each().map(|known| summary(known).totals.cost).collect::<Vec<_>>(),
            Type::FLOAT8_ARRAY,
        ),
        statement.add(
            each().map(|known| summary(known).seal.is_some()).collect::<Vec<_>>(),
            Type::BOOL_ARRAY,
        ),
        numbers(statement, &|known| known.entry.token.cast_signed()),
        statement.add(each().map(owner).collect::<Vec<_>>(), TEXTS),
        numbers(statement, &Known::wake),
        numbers(statement, &|known| known.delivered),
    ];
    let all = columns.join(", ");
    let [ids, ..] = columns;
    (ids, all)
}

/// The columns that a run has from its beginning, as arrays.
fn fixed_columns<'a>(statement: &mut Statement<'a>, runs: &[&'a Known]) -> String {
    let each = || runs.iter().map(|known| &known.entry.summary);
    let queue = || each().map(|summary| summary.queue.as_deref());
    let columns = [
        statement.add(each().map(|summary| summary.started).collect::<Vec<_>>(), NUMBERS),
        statement
            .add(each().map(|summary| summary.session_id.as_deref()).collect::<Vec<_>>(), TEXTS),
        statement
            .add(queue().map(|queue| queue.map(|queue| &*queue.name)).collect::<Vec<_>>(), TEXTS),
        statement.add(
            queue().map(|queue| queue.map(|queue| queue.priority)).collect::<Vec<_>>(),
            Type::INT4_ARRAY,
        ),
        statement.add(
            queue().map(|queue| queue.and_then(|queue| queue.key.as_deref())).collect::<Vec<_>>(),
            TEXTS,
        ),
        statement.add(
            queue().map(|queue| queue.map(|queue| i64::from(queue.limit))).collect::<Vec<_>>(),
            NUMBERS,
        ),
    ];
    columns.join(", ")
}
