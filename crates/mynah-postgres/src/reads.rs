//! What is read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use mynah_data::{Error, LogReason, Result, RunId};
use mynah_log::{
    AnswerPart, Body, Changes, Corrupt, Fact, Hash, InboxMessage, MAINTENANCE, Record, Removed,
    RunChange, RunFilter, RunPage, RunStatus, RunSummary, SealedRun, Tombstone,
    backend::{invalid_cursor, sealed},
};
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use crate::{
    connection::{HOURS, NUMBERS, TEXTS, sought},
    fail::{GRANT, failure, log_error},
    row::{Known, SELECT, get},
};

/// How many bytes of records are read at once, about.
const PORTION: i64 = 16 << 20;

/// How many rows are read at once.
const ROWS: usize = 1_000;

/// What beginning, continuing and claiming runs does with tables: the names are without `mynah_`. The server demands a right also
/// where no row is changed.
const RIGHTS: [(&str, &str); 4] = [
    ("SELECT", "beats commits heads inbox parts pruned records runs schema seals turns writers"),
    ("INSERT", "beats commits heads inbox parts records runs seals writers"),
    ("UPDATE", "beats heads inbox parts runs seals turns writers"),
    ("DELETE", "beats commits parts writers"),
];

/// Refuses a role without these rights.
pub(crate) async fn check_rights(client: &Client) -> Result<()> {
    let (rights, tables): (Vec<&str>, Vec<&str>) = RIGHTS.into_iter().unzip();
    let select = "SELECT r || ' on ' || string_agg('mynah_' || t, ', ') FROM unnest($1::text[], $2::text[]) AS n(r, ts), \
                  unnest(string_to_array(ts, ' ')) AS t WHERE NOT has_table_privilege('mynah_' || t, r) GROUP BY r ORDER BY r";
    let given: [(&(dyn ToSql + Sync), Type); 2] = [(&rights, TEXTS), (&tables, TEXTS)];
    let rows = client.query_typed(select, &given).await.map_err(failure)?;
    let lacking: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let lacking = lacking.join(", and ");
    let why = format!("PostgreSQL: the role has no right to {lacking}: {GRANT}");
    Err(log_error(LogReason::Unusable, why))
}

fn clamped(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The record in a row, if it is the expected one.
pub(crate) fn record(row: &Row, run: &str, seq: u64) -> Result<Record, Corrupt> {
    let wrong = |what: String| Corrupt::new(run, seq, what);
    let envelope: Vec<u8> = get(row, 0, run)?;
    let salt: Option<Vec<u8>> = get(row, 1, run)?;
    let payload: Option<Vec<u8>> = get(row, 2, run)?;
    let body = match (salt, payload) {
        (Some(salt), Some(payload)) => {
            let salt = salt.try_into();
            let salt = salt.map_err(|_| wrong("its row is not as it was written".to_owned()))?;
            Some(Body { salt, payload: Arc::from(payload) })
        }
        (None, None) => None,
        _ => return Err(wrong("its row is not as it was written".to_owned())),
    };
    let record = Record::from_parts(envelope, body).map_err(|corrupt| wrong(corrupt.what))?;
    let envelope = record.envelope();
    if *envelope.run_id != *run || envelope.seq != seq {
        return Err(wrong(format!(
            "record {} of run {} is in its place",
            envelope.seq, envelope.run_id
        )));
    }
    Ok(record)
}

pub(crate) async fn records(
    client: &Client,
    run: &str,
    from: u64,
    limit: usize,
) -> Result<Vec<Record>> {
    let from = from.max(1);
    let (Ok(first), rows) = (i64::try_from(from), clamped(limit.min(ROWS))) else {
        return Ok(Vec::new());
    };
    // Records that were counted before exist when they are read.
    let name: [(&(dyn ToSql + Sync), Type); 1] = [(&sought(run), Type::TEXT)];
    let last = client.query_typed("SELECT records FROM mynah_heads WHERE run = $1", &name);
    let select = "SELECT envelope, salt, payload, seq FROM (SELECT *, sum(coalesce(octet_length(payload), 0)) \
                  OVER (ORDER BY seq) - coalesce(octet_length(payload), 0) AS before FROM (SELECT envelope, salt, payload, seq \
                  FROM mynah_records WHERE run = $1 AND seq >= $2 ORDER BY seq LIMIT $3) AS part) AS sized \
                  WHERE before < $4 ORDER BY seq";
    let given: [(&(dyn ToSql + Sync), Type); 4] = [
        (&sought(run), Type::TEXT),
        (&first, Type::INT8),
        (&rows, Type::INT8),
        (&PORTION, Type::INT8),
    ];
    let (last, found) = tokio::join!(last, client.query_typed(select, &given));
    let Some(last) = last.map_err(failure)?.first().map(|row| row.get::<_, i64>(0)) else {
        return Ok(Vec::new());
    };
    let mut records = Vec::new();
    for (seq, row) in (from..).zip(found.map_err(failure)?) {
        if row.get::<_, i64>(3) != seq.cast_signed() {
            break;
        }
        records.push(record(&row, run, seq)?);
    }
    if records.is_empty() && limit > 0 && first <= last {
        let what = format!("it is missing: the index counts {last} records");
        return Err(Corrupt::new(run, from, what).into());
    }
    Ok(records)
}

/// The runs that a query finds, with the places of their seals.
async fn find(
    client: &Client,
    conditions: &str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<(Row, Result<Known, Corrupt>)>> {
    let select = format!("{SELECT} WHERE {conditions}");
    let mut placed = HashSet::new();
    loop {
        let rows = client.query_typed(&select, values).await.map_err(failure)?;
        let found: Vec<_> = rows.into_iter().map(|row| (Known::read(&row), row)).collect();
        let sealed = found.iter().filter_map(|(known, _)| known.as_ref().ok());
        let sealed = sealed.filter(|known| known.is_unplaced);
        let new: Vec<RunId> = sealed.map(|known| known.entry.summary.run_id.clone()).collect();
        let before = placed.len();
        placed.extend(new);
        // One that has no place after its seal was looked for has no seal.
        if placed.len() == before {
            return Ok(found.into_iter().map(|(known, row)| (row, known)).collect());
        }
        place_seals(client).await?;
    }
}

/// The run, with the place of its seal.
pub(crate) async fn run(client: &Client, run: &str) -> Result<Option<Known>> {
    let mut found = find(client, "r.id = $1", &[(&sought(run), Type::TEXT)]).await?;
    found.pop().map(|(_, known)| known.map_err(Error::from)).transpose()
}

pub(crate) async fn runs(client: &Client, filter: &RunFilter) -> Result<RunPage> {
    let mut conditions = "r.id <> 'log:maintenance'".to_owned();
    let mut values: Vec<(Box<dyn ToSql + Sync + Send>, Type)> = Vec::new();
    let mut and = |condition: &str, value: Box<dyn ToSql + Sync + Send>, type_: Type| {
        values.push((value, type_));
        conditions += &condition.replace('?', &format!("${}", values.len()));
    };
    let text = |text: &str| Box::new(sought(text).map(str::to_owned));
    if let Some(status) = filter.status {
        and(" AND r.status = ?", Box::new(status as i16), Type::INT2);
    }
    if let Some(now) = filter.abandoned {
        let is_it = " AND r.status = 0 AND (r.owner IS NULL OR coalesce(b.until, 0) <= ?)";
        and(is_it, Box::new(now), Type::INT8);
    }
    if let Some(model) = filter.model.as_deref() {
        let is_it = " AND ? IN (r.model, substr(r.model, strpos(r.model, ':') + 1))";
        and(is_it, text(model), Type::TEXT);
    }
    if let Some(session) = filter.session.as_deref() {
        and(" AND r.session = ?", text(session), Type::TEXT);
    }
    if let Some(since) = filter.since {
        and(" AND r.started >= ?", Box::new(since), Type::INT8);
    }
    if let Some(before) = filter.before {
        and(" AND r.started < ?", Box::new(before), Type::INT8);
    }
    if let Some(prefix) = filter.prefix.as_deref() {
        and(" AND r.id >= ?", text(prefix), Type::TEXT);
        if let Some(end) = filter.prefix_end() {
            and(" AND r.id < ?", text(&end), Type::TEXT);
        }
    }
    if let Some(place) = filter.place()? {
        let beyond = ["<", ">"][usize::from(filter.oldest_first)];
        and(&format!(" AND (r.started, r.key) {beyond} (?"), Box::new(place.started), Type::INT8);
        and(", ?)", Box::new(place.key), Type::INT8);
    }
    let size = filter.page_size();
    let order = ["DESC", "ASC"][usize::from(filter.oldest_first)];
    let limit = clamped(size.saturating_add(1));
    and(
        &format!(" ORDER BY r.started {order}, r.key {order} LIMIT ?"),
        Box::new(limit),
        Type::INT8,
    );
    let values: Vec<(&(dyn ToSql + Sync), Type)> = values
        .iter()
        .map(|(value, type_)| (&**value as &(dyn ToSql + Sync), type_.clone()))
        .collect();
    let mut found = Vec::new();
    for (row, known) in find(client, &conditions, &values).await? {
        let place =
            mynah_log::backend::Place { started: get(&row, 4, "")?, key: get(&row, 1, "")? };
        found.push((place, known.map(|known: Known| -> RunSummary { known.entry.to_summary() })));
    }
    Ok(RunPage::cut(found, size))
}

/// Gives seals that have no place yet the next ones, in the order in which they came. Those who do this take turns; those who
/// append do not wait for them.
async fn place_seals(client: &Client) -> Result<()> {
    let select = "SELECT 1 FROM mynah_seals WHERE place IS NULL LIMIT 1";
    if client.query_typed(select, &[]).await.map_err(failure)?.is_empty() {
        return Ok(());
    }
    // The statements of one message are one transaction. The lock comes first, in a statement of its own: the next one then sees
    // what others placed.
    let place = "SELECT next FROM mynah_turns WHERE name = 'seals' FOR UPDATE; \
        WITH u AS (SELECT n, row_number() OVER (ORDER BY n) AS i FROM mynah_seals WHERE place IS NULL), \
        p AS (UPDATE mynah_seals s SET place = t.next + u.i - 1 FROM u, mynah_turns t \
        WHERE s.n = u.n AND t.name = 'seals' RETURNING 1) \
        UPDATE mynah_turns SET next = next + (SELECT count(*) FROM p) WHERE name = 'seals'";
    client.batch_execute(place).await.map_err(failure)
}

pub(crate) async fn seals(client: &Client, from: u64, limit: usize) -> Result<Vec<SealedRun>> {
    let Ok(mut next) = i64::try_from(from) else { return Ok(Vec::new()) };
    place_seals(client).await?;
    let select =
        "SELECT place, id, hash FROM mynah_seals WHERE place >= $1 ORDER BY place LIMIT $2";
    let given: [(&(dyn ToSql + Sync), Type); 2] =
        [(&next, Type::INT8), (&clamped(limit), Type::INT8)];
    let mut seals = Vec::new();
    for row in client.query_typed(select, &given).await.map_err(failure)? {
        let run: String = get(&row, 1, "")?;
        if get::<i64>(&row, 0, &run)? != next {
            let what = format!("the seal of another run is missing before its own: number {next}");
            return Err(Corrupt::new(run, 0, what).into());
        }
        let hash: Vec<u8> = get(&row, 2, &run)?;
        let Ok(hash) = hash.try_into() else {
            return Err(Corrupt::new(run, 0, "its seal's hash is not one").into());
        };
        seals.push(SealedRun::new(run, Hash(hash)));
        next = next.saturating_add(1);
    }
    Ok(seals)
}

pub(crate) async fn inbox(client: &Client, run: &str, limit: usize) -> Result<Vec<InboxMessage>> {
    let select = "SELECT id, at, payload FROM mynah_inbox WHERE run = $1 AND payload IS NOT NULL ORDER BY n LIMIT $2";
    let given: [(&(dyn ToSql + Sync), Type); 2] =
        [(&sought(run), Type::TEXT), (&clamped(limit), Type::INT8)];
    let rows = client.query_typed(select, &given).await.map_err(failure)?;
    let read = |row: &Row| {
        let payload: Vec<u8> = get(row, 2, run)?;
        Ok(InboxMessage::new(get::<String>(row, 0, run)?, get(row, 1, run)?, payload))
    };
    rows.iter().map(read).collect::<Result<_, Corrupt>>().map_err(Error::from)
}

pub(crate) async fn was_delivered(client: &Client, run: &str, id: &str) -> Result<bool> {
    let select = "SELECT 1 FROM mynah_inbox WHERE run = $1 AND id = $2";
    let given: [(&(dyn ToSql + Sync), Type); 2] =
        [(&sought(run), Type::TEXT), (&sought(id), Type::TEXT)];
    Ok(!client.query_typed(select, &given).await.map_err(failure)?.is_empty())
}

/// The parts after a record with events from a place on; an empty list if there are more records, none if there is nothing yet.
pub(crate) async fn parts(
    client: &Client,
    run: &str,
    seq: u64,
    first: u64,
) -> Result<Option<Vec<AnswerPart>>> {
    let select = "SELECT h.records, r.sealed, p.first, p.count, p.payload FROM mynah_runs r JOIN mynah_heads h ON h.run = r.id \
                  LEFT JOIN mynah_parts p ON p.run = r.id AND p.seq = h.records AND h.records = $2 AND p.first + p.count > $3 \
                  WHERE r.id = $1 ORDER BY p.first";
    let [place, from] = [seq, first].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let given: [(&(dyn ToSql + Sync), Type); 3] =
        [(&sought(run), Type::TEXT), (&place, Type::INT8), (&from, Type::INT8)];
    let rows = client.query_typed(select, &given).await.map_err(failure)?;
    let Some(row) = rows.first() else { return Ok(None) };
    if get::<i64>(row, 0, run)? > place {
        return Ok(Some(Vec::new()));
    }
    if get(row, 1, run)? {
        return Err(sealed(run));
    }
    let mut parts = Vec::new();
    for row in &rows {
        let Some(first) = get::<Option<i64>>(row, 2, run)? else { continue };
        let (count, payload): (i64, Vec<u8>) = (get(row, 3, run)?, get(row, 4, run)?);
        parts.push(AnswerPart::new(seq, first.cast_unsigned(), count.cast_unsigned(), payload));
    }
    Ok(Some(parts).filter(|parts| !parts.is_empty()))
}

/// The versions of runs, which every write of one changes.
pub(crate) async fn versions(client: &Client, runs: &[RunId]) -> Result<HashMap<RunId, i64>> {
    let ids: Vec<Option<&str>> = runs.iter().map(|run| sought(run)).collect();
    let select = "SELECT run, version FROM mynah_heads WHERE run = ANY($1)";
    let rows = client.query_typed(select, &[(&ids, TEXTS)]).await.map_err(failure)?;
    Ok(rows.iter().map(|row| (RunId::from(row.get::<_, &str>(0)), row.get(1))).collect())
}

/// Where a reader of changes is.
struct Cursor {
    /// The server's hour, since 1970, at which the reader had seen everything. Cursors that are written in one hour are equal if
    /// nothing changed.
    hour: i64,
    /// The last number that it saw of each connection that writes.
    seen: BTreeMap<i64, i64>,
}

impl Cursor {
    /// The server's hour.
    const HOUR: &str =
        "(SELECT floor(extract(epoch FROM statement_timestamp()) / 3600)::int8 AS hour)";

    fn parse(cursor: &str) -> Option<Self> {
        let mut parts = cursor.strip_prefix("pg")?.split(',');
        let hour = parts.next()?.parse().ok()?;
        let pair = |part: &str| {
            let (writer, no) = part.split_once('.')?;
            Some((writer.parse().ok()?, no.parse().ok()?))
        };
        Some(Self { hour, seen: parts.map(pair).collect::<Option<_>>()? })
    }

    fn written(&self) -> String {
        let parts = self.seen.iter().map(|(writer, no)| format!(",{writer}.{no}"));
        format!("pg{}{}", self.hour, parts.collect::<String>())
    }

    /// The end of all commits.
    async fn end(client: &Client) -> Result<Self> {
        let select = format!(
            "SELECT t.hour, w.key, coalesce((SELECT max(no) FROM mynah_commits WHERE writer = w.key), 0) \
             FROM {} AS t LEFT JOIN mynah_writers w ON true",
            Self::HOUR
        );
        let rows = client.query_typed(&select, &[]).await.map_err(failure)?;
        let seen = rows.iter().filter_map(|row| Some((row.get::<_, Option<i64>>(1)?, row.get(2))));
        let hour = rows.first().map_or(0, |row| row.get(0));
        Ok(Self { hour, seen: seen.collect() })
    }
}

pub(crate) async fn changes(
    client: &Client,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Changes> {
    let Some(cursor) = cursor else {
        return Ok(Changes::new(Vec::new(), Cursor::end(client).await?.written()));
    };
    let Cursor { hour, seen } = Cursor::parse(cursor).ok_or_else(invalid_cursor)?;
    let (writers, from): (Vec<i64>, Vec<i64>) = seen.into_iter().unzip();
    // Numbers grow in the order of the commits of one connection, so everything up to a visible number is committed. A connection
    // without news gives one row.
    let select = format!(
        "SELECT w.key, coalesce(m.no, v.no, 0), m.runs, t.hour FROM {} AS t LEFT JOIN mynah_writers w ON true \
        LEFT JOIN unnest($1::int8[], $2::int8[]) AS v(writer, no) ON v.writer = w.key LEFT JOIN LATERAL (\
        SELECT no, runs FROM (SELECT no, runs, sum(cardinality(runs)) OVER (ORDER BY no) - cardinality(runs) AS before FROM (\
        SELECT no, runs FROM mynah_commits WHERE writer = w.key AND no > coalesce(v.no, 0) ORDER BY no LIMIT $3) AS part) AS sized \
        WHERE before < $3) AS m ON true",
        Cursor::HOUR
    );
    let given: [(&(dyn ToSql + Sync), Type); 3] =
        [(&writers, NUMBERS), (&from, NUMBERS), (&clamped(limit.max(1)), Type::INT8)];
    let rows = client.query_typed(&select, &given).await.map_err(failure)?;
    let now = rows.first().map_or(hour, |row| row.get(3));
    if now >= hour.saturating_add(HOURS) {
        return Ok(Changes::expired(Cursor::end(client).await?.written()));
    }
    let mut next = Cursor { hour, seen: BTreeMap::new() };
    for row in &rows {
        let Some(writer) = row.get(0) else { continue };
        let reached = next.seen.entry(writer).or_default();
        *reached = row.get::<_, i64>(1).max(*reached);
    }
    let ids = rows.iter().filter_map(|row| row.get::<_, Option<Vec<String>>>(2));
    let ids: Vec<String> = ids.flatten().collect();
    if ids.len() < limit {
        // There is no more of any connection.
        next.hour = now;
    }
    let ids: BTreeSet<String> = ids.into_iter().filter(|run| run != MAINTENANCE).collect();
    let ids: Vec<String> = ids.into_iter().collect();
    if ids.is_empty() {
        return Ok(Changes::new(Vec::new(), next.written()));
    }
    let select = "SELECT r.id, h.records, h.hash, r.status, \
                  EXISTS (SELECT 1 FROM mynah_inbox i WHERE i.run = r.id AND i.payload IS NOT NULL) \
                  FROM mynah_runs r JOIN mynah_heads h ON h.run = r.id WHERE r.id = ANY($1)";
    let rows = client.query_typed(select, &[(&ids, TEXTS)]).await.map_err(failure)?;
    let change = |row: &Row| {
        let run: String = get(row, 0, "")?;
        let wrong = || Corrupt::new(&*run, 0, "its row is not as it was written");
        let hash: Vec<u8> = get(row, 2, &run)?;
        let hash = Hash(hash.try_into().map_err(|_| wrong())?);
        let seq = get::<i64>(row, 1, &run)?.cast_unsigned();
        let status = usize::try_from(get::<i16>(row, 3, &run)?).ok();
        let status = status.and_then(|status| RunStatus::ALL.get(status).copied());
        let head = mynah_log::Head { seq, hash };
        Ok::<_, Corrupt>(RunChange::new(&*run, head, status.ok_or_else(wrong)?, get(row, 4, &run)?))
    };
    // A read of the run reports a damaged row.
    let runs = rows.iter().filter_map(|row| change(row).ok()).collect();
    Ok(Changes::new(runs, next.written()))
}

/// Checks that every row belongs to a run, and that the reserved ids are those of the removed runs.
pub(crate) async fn check(client: &Client) -> Result<()> {
    for (table, what) in
        [("mynah_heads", "a head"), ("mynah_records", "a record"), ("mynah_inbox", "a message")]
    {
        let select = format!(
            "SELECT t.run FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM mynah_runs r WHERE r.id = t.run) LIMIT 1"
        );
        if let Some(row) = client.query_typed(&select, &[]).await.map_err(failure)?.first() {
            let what = format!("there is {what} of it, and the index does not have it");
            return Err(Corrupt::new(row.get::<_, String>(0), 0, what).into());
        }
    }
    let select = "SELECT h.run, h.records, count(k.seq) FROM mynah_heads h LEFT JOIN mynah_records k ON k.run = h.run \
                  GROUP BY h.run, h.records HAVING h.records <> count(k.seq) OR h.records <> max(k.seq) LIMIT 1";
    if let Some(row) = client.query_typed(select, &[]).await.map_err(failure)?.first() {
        let (last, found): (i64, i64) = (row.get(1), row.get(2));
        let what = format!("the index counts {last} records, and there are {found}");
        return Err(Corrupt::new(row.get::<_, String>(0), 0, what).into());
    }
    let select = "SELECT r.id FROM mynah_runs r WHERE NOT EXISTS (SELECT 1 FROM mynah_heads h WHERE h.run = r.id) LIMIT 1";
    if let Some(row) = client.query_typed(select, &[]).await.map_err(failure)?.first() {
        return Err(Corrupt::new(row.get::<_, String>(0), 0, "its head is missing").into());
    }
    let early = "SELECT id FROM mynah_seals WHERE place < 0 LIMIT 1";
    if let Some(row) = client.query_typed(early, &[]).await.map_err(failure)?.first() {
        let what = "the log's list of seals has a seal for it before the first place";
        return Err(Corrupt::new(row.get::<_, String>(0), 0, what).into());
    }
    let rows = client.query_typed("SELECT id FROM mynah_pruned", &[]).await.map_err(failure)?;
    let mut ids: HashSet<RunId> =
        rows.iter().map(|row| RunId::from(row.get::<_, &str>(0))).collect();
    let mut seq = 0;
    loop {
        let tombstones = records(client, MAINTENANCE, seq + 1, ROWS).await?;
        if tombstones.is_empty() {
            break;
        }
        for record in &tombstones {
            seq = record.seq();
            if let Ok(Some(Fact::Removed(Tombstone {
                run_id, removed: Removed::Run { .. }, ..
            }))) = record.fact()
                && !ids.remove(&run_id)
            {
                let what = format!("it removes run {run_id}, and its id could be reused");
                return Err(Corrupt::new(MAINTENANCE, seq, what).into());
            }
        }
    }
    let what = "its id is reserved as if it were removed, and no tombstone explains it";
    match ids.into_iter().next() {
        Some(run) => Err(Corrupt::new(run, 0, what).into()),
        None => Ok(()),
    }
}
