//! What a group of appends and leases changes, written by a single statement.

use std::collections::{BTreeMap, BTreeSet};

use mynah_data::RunId;
use mynah_log::{AnswerPart, Durability, Hash, Record};
use tokio_postgres::{
    Error,
    types::{Kind, ToSql, Type},
};

use crate::{
    connection::{BYTES, Line, NOW, NUMBERS, TEXTS, sought},
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

/// A statement with its parameters. Its text depends on the tables that are written, and for each on whether it is one row or
/// more.
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

    /// Adds a column of rows, with the type of an array of its values.
    fn column<T: ToSql + Sync + Send + 'a>(
        &mut self,
        values: impl IntoIterator<Item = T>,
        type_: Type,
    ) -> String {
        let mut values: Vec<T> = values.into_iter().collect();
        match (type_.kind(), values.len()) {
            (Kind::Array(of), 1) => {
                let of = of.clone();
                values.pop().map_or_else(String::new, |value| self.add(value, of))
            }
            _ => self.add(values, type_),
        }
    }

    async fn perform(self, line: &mut Line, last: &str) -> Result<i64, Error> {
        let text = format!("WITH {} {last}", self.parts.join(", "));
        let types: Vec<Type> = self.values.iter().map(|(_, type_)| type_.clone()).collect();
        let values: Vec<&(dyn ToSql + Sync)> =
            self.values.iter().map(|(value, _)| &**value as &(dyn ToSql + Sync)).collect();
        line.query_one(text, &types, &values).await?.try_get(1)
    }
}

/// So many rows of columns, named `v`. `unnest` in the list of what is selected gives one row after the other; in `FROM`, the server
/// would store all of them first.
fn rows(count: usize, columns: &[String], names: &str) -> String {
    let named = columns.iter().zip(names.split(", ")).map(|(value, name)| match count {
        1 => format!("{value} AS {name}"),
        _ => format!("unnest({value}) AS {name}"),
    });
    format!("(SELECT {}) AS v", named.collect::<Vec<_>>().join(", "))
}

/// A column as an array, also of one row.
fn array(count: usize, column: &str) -> String {
    if count == 1 { format!("ARRAY[{column}]") } else { column.to_owned() }
}

/// Whether a part of the statement returned so many rows.
fn is_count(count: usize, part: &str, column: &str) -> String {
    // The number itself is not part of the text.
    let wanted = if count == 1 { "1".to_owned() } else { format!("cardinality({column})") };
    format!("(SELECT count(*) FROM {part}) = {wanted}")
}

/// The columns of the head of a run, the version that is expected among them.
const HEAD: &str = "run, version, updated, records, hash";

/// The id of a run, and its columns that change less often than its head.
const CHANGING: &str = "id, status, model, turns, tool_calls, input_tokens, output_tokens, cost, sealed, token, owner, wake, delivered, \
                        queue, priority, shared, at_most";

impl Batch {
    /// Whether there is nothing to write but, maybe, rows of runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.beats.is_empty()
            && self.consumed.is_empty()
            && self.delivered.is_empty()
            && self.parts.is_empty()
    }

    /// Writes all of it and the rows of these runs, or nothing if one of the runs is not of the expected version.
    pub(crate) async fn write(&self, line: &mut Line, runs: &[&Known]) -> Result<(), Error> {
        let mut statement = Statement::default();
        let (mut checks, mut ids) = (Vec::new(), Vec::new());
        let (new, changed): (Vec<&Known>, Vec<&Known>) =
            runs.iter().partition(|known| known.version == 0);
        if !changed.is_empty() {
            let columns = head_columns(&mut statement, &changed);
            // First, so that the runs are locked in the same order by all.
            statement.parts.push(format!(
                "heads AS (UPDATE mynah_heads AS h SET version = v.version + 1, updated = v.updated, records = v.records, \
                 hash = v.hash FROM {} WHERE h.run = v.run AND h.version = v.version RETURNING 1)",
                rows(changed.len(), &columns, HEAD)
            ));
            checks.push(is_count(changed.len(), "heads", &columns[0]));
            ids.push(array(changed.len(), &columns[0]));
        }
        let changed: Vec<&Known> = changed.into_iter().filter(|known| !known.is_stored()).collect();
        if !changed.is_empty() {
            let columns = columns(&mut statement, &changed);
            let sets = CHANGING.split(", ").skip(1).map(|column| format!("{column} = v.{column}"));
            statement.parts.push(format!(
                "changed AS (UPDATE mynah_runs AS r SET {} FROM {} WHERE r.id = v.id RETURNING 1)",
                sets.collect::<Vec<_>>().join(", "),
                rows(changed.len(), &columns, CHANGING)
            ));
            checks.push(is_count(changed.len(), "changed", &columns[0]));
        }
        if !new.is_empty() {
            let columns_of_heads = head_columns(&mut statement, &new);
            ids.push(array(new.len(), &columns_of_heads[0]));
            statement.parts.push(format!(
                "begun AS (INSERT INTO mynah_heads ({HEAD}) SELECT v.run, 1, v.updated, v.records, v.hash FROM {})",
                rows(new.len(), &columns_of_heads, HEAD)
            ));
            let mut columns = columns(&mut statement, &new);
            columns.extend(fixed_columns(&mut statement, &new));
            let names = format!("{CHANGING}, {FIXED}");
            let values = names.split(", ").map(|column| format!("v.{column}"));
            statement.parts.push(format!(
                "new AS (INSERT INTO mynah_runs ({names}) SELECT {} FROM {} \
                 WHERE NOT EXISTS (SELECT 1 FROM mynah_pruned p WHERE p.id = v.id) RETURNING 1)",
                values.collect::<Vec<_>>().join(", "),
                rows(new.len(), &columns, &names)
            ));
            checks.push(is_count(new.len(), "new", &columns[0]));
        }
        if !self.records.is_empty() || !self.delivered.is_empty() {
            let writer = statement.add(line.writer, Type::INT8);
            self.add_records(&mut statement);
            self.add_messages(&mut statement);
            line.no += 1;
            let no = statement.add(line.no, Type::INT8);
            // A run that got nothing but a lease is named in vain.
            statement.parts.push(format!(
                "news AS (INSERT INTO mynah_commits (writer, no, runs) VALUES ({writer}, {no}, {}))",
                ids.join(" || ")
            ));
            // One that was silent for long may have been cleared away, or be so right now.
            let mut is_known = format!("SELECT 1 FROM mynah_writers WHERE key = {writer}");
            if line.is_sign_due() {
                statement.parts.push(format!(
                    "sign AS (UPDATE mynah_writers SET at = {NOW} WHERE key = {writer} RETURNING 1)"
                ));
                is_known = "SELECT 1 FROM sign".to_owned();
            }
            checks.push(format!("EXISTS ({is_known})"));
        }
        self.add_consumed(&mut statement);
        self.add_parts(&mut statement);
        if !self.leaves.is_empty() {
            let columns = [
                statement.column(self.leaves.iter().map(|(run, _)| &**run), TEXTS),
                statement.column(self.leaves.iter().map(|(_, hash)| &hash.0[..]), BYTES),
            ];
            statement.parts.push(format!(
                "leaves AS (INSERT INTO mynah_seals (id, hash) SELECT v.id, v.hash FROM {})",
                rows(self.leaves.len(), &columns, "id, hash")
            ));
        }
        if !self.beats.is_empty() {
            let columns = [
                statement.column(self.beats.keys().map(String::as_str), TEXTS),
                statement.column(self.beats.values().copied(), NUMBERS),
            ];
            statement.parts.push(format!(
                "beats AS (INSERT INTO mynah_beats AS b (process, until) SELECT v.process, v.until FROM {} \
                 ON CONFLICT (process) DO UPDATE SET until = excluded.until)",
                rows(self.beats.len(), &columns, "process, until")
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
        let session = statement.add(line.session, Type::INT4);
        // A prepared statement is that of the session in which it was prepared.
        let last = format!(
            "SELECT 1 / (CASE WHEN {checks} THEN 1 ELSE 0 END), {NOW}, CASE WHEN pg_backend_pid() = {session} THEN 1 \
             ELSE (pg_backend_pid() || ' is another session')::int4 END{commit}"
        );
        let now = statement.perform(line, &last).await?;
        line.set_clock(now);
        Ok(())
    }

    fn add_records<'a>(&'a self, statement: &mut Statement<'a>) {
        if self.records.is_empty() {
            return;
        }
        let records = || self.records.iter();
        let columns = [
            statement.column(records().map(|record| &*record.envelope().run_id), TEXTS),
            statement.column(records().map(|record| record.seq().cast_signed()), NUMBERS),
            statement.column(records().map(|record| &record.envelope_bytes()[..]), BYTES),
            statement
                .column(records().map(|record| record.body().map(|body| &body.salt[..])), BYTES),
            statement
                .column(records().map(|record| record.body().map(|body| &body.payload[..])), BYTES),
        ];
        statement.parts.push(format!(
            "kept AS (INSERT INTO mynah_records (run, seq, envelope, salt, payload) \
             SELECT v.run, v.seq, v.envelope, v.salt, v.payload FROM {})",
            rows(self.records.len(), &columns, "run, seq, envelope, salt, payload")
        ));
    }

    fn add_messages<'a>(&'a self, statement: &mut Statement<'a>) {
        if self.delivered.is_empty() {
            return;
        }
        let messages = || self.delivered.iter();
        let columns = [
            statement.column(messages().map(|message| &*message.run), TEXTS),
            statement.column(messages().map(|message| &*message.id), TEXTS),
            statement.column(messages().map(|message| message.n), NUMBERS),
            statement.column(messages().map(|message| &message.payload[..]), BYTES),
        ];
        statement.parts.push(format!(
            "messages AS (INSERT INTO mynah_inbox (run, id, n, at, payload) \
             SELECT v.run, v.id, v.n, {NOW}, v.payload FROM {})",
            rows(self.delivered.len(), &columns, "run, id, n, payload")
        ));
    }

    fn add_consumed<'a>(&'a self, statement: &mut Statement<'a>) {
        if self.consumed.is_empty() {
            return;
        }
        let columns = [
            statement.column(self.consumed.iter().map(|(run, _)| &**run), TEXTS),
            statement.column(self.consumed.iter().map(|(_, id)| sought(id)), TEXTS),
        ];
        statement.parts.push(format!(
            "consumed AS (UPDATE mynah_inbox AS i SET payload = NULL FROM {} WHERE i.run = v.run AND i.id = v.id)",
            rows(self.consumed.len(), &columns, "run, id")
        ));
    }

    fn add_parts<'a>(&'a self, statement: &mut Statement<'a>) {
        if !self.without_parts.is_empty() {
            let columns = [statement.column(self.without_parts.iter().map(|run| &**run), TEXTS)];
            statement.parts.push(format!(
                "unkept AS (DELETE FROM mynah_parts AS p USING {} WHERE p.run = v.run)",
                rows(self.without_parts.len(), &columns, "run")
            ));
        }
        if !self.parts.is_empty() {
            let (keys, parts) = (|| self.parts.keys(), || self.parts.values());
            let columns = [
                statement.column(keys().map(|(run, ..)| &**run), TEXTS),
                statement.column(keys().map(|(_, seq, _)| *seq), NUMBERS),
                statement.column(keys().map(|(.., first)| *first), NUMBERS),
                statement.column(parts().map(|part| part.count.cast_signed()), NUMBERS),
                statement.column(parts().map(|part| &part.payload[..]), BYTES),
            ];
            statement.parts.push(format!(
                "parts AS (INSERT INTO mynah_parts AS p (run, seq, first, count, payload) \
                 SELECT v.run, v.seq, v.first, v.count, v.payload FROM {} \
                 ON CONFLICT (run, seq, first) DO UPDATE SET count = excluded.count, payload = excluded.payload)",
                rows(self.parts.len(), &columns, "run, seq, first, count, payload")
            ));
        }
    }
}

/// The columns of heads, in the order of their names.
fn head_columns<'a>(statement: &mut Statement<'a>, runs: &[&'a Known]) -> [String; 5] {
    let each = || runs.iter().map(|known| &known.entry.summary);
    [
        statement.column(each().map(|summary| &*summary.run_id), TEXTS),
        statement.column(runs.iter().map(|known| known.version), NUMBERS),
        statement.column(each().map(|summary| summary.updated), NUMBERS),
        statement.column(each().map(|summary| summary.records.cast_signed()), NUMBERS),
        statement.column(each().map(|summary| &summary.hash.0[..]), BYTES),
    ]
}

/// The columns that change, in the order of their names.
fn columns<'a>(statement: &mut Statement<'a>, runs: &[&'a Known]) -> Vec<String> {
    let each = || runs.iter().copied();
    let summary = |known: &'a Known| &known.entry.summary;
    let numbers = |statement: &mut Statement<'a>, of: &dyn Fn(&'a Known) -> i64| {
        statement.column(each().map(of), NUMBERS)
    };
    let owner = |known: &'a Known| known.entry.holder.as_ref().map(|holder| &*holder.owner);
    let queue = || each().map(|known| known.entry.summary.queue.as_deref());
    vec![
        statement.column(each().map(|known| &*summary(known).run_id), TEXTS),
        statement.column(each().map(|known| summary(known).status as i16), Type::INT2_ARRAY),
        statement.column(each().map(|known| summary(known).model.as_deref()), TEXTS),
        numbers(statement, &|known| summary(known).totals.turns.cast_signed()),
        numbers(statement, &|known| summary(known).totals.tool_calls.cast_signed()),
        numbers(statement, &|known| summary(known).totals.input_tokens.cast_signed()),
        numbers(statement, &|known| summary(known).totals.output_tokens.cast_signed()),
        statement.column(each().map(|known| summary(known).totals.cost), Type::FLOAT8_ARRAY),
        statement.column(each().map(|known| summary(known).seal.is_some()), Type::BOOL_ARRAY),
        numbers(statement, &|known| known.entry.token.cast_signed()),
        statement.column(each().map(owner), TEXTS),
        numbers(statement, &Known::wake),
        numbers(statement, &|known| known.delivered),
        statement.column(queue().map(|queue| queue.map(|queue| &*queue.name)), TEXTS),
        statement.column(queue().map(|queue| queue.map(|queue| queue.priority)), Type::INT4_ARRAY),
        statement.column(queue().map(|queue| queue.and_then(|queue| queue.key.as_deref())), TEXTS),
        statement.column(queue().map(|queue| queue.map(|queue| i64::from(queue.limit))), NUMBERS),
    ]
}

/// The columns that a run has from its beginning.
const FIXED: &str = "started, session";

/// These columns, in the order of their names.
fn fixed_columns<'a>(statement: &mut Statement<'a>, runs: &[&'a Known]) -> [String; 2] {
    let each = || runs.iter().map(|known| &known.entry.summary);
    [
        statement.column(each().map(|summary| summary.started), NUMBERS),
        statement.column(each().map(|summary| summary.session_id.as_deref()), TEXTS),
    ]
}
