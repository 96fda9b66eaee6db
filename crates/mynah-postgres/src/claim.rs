//! Claiming runs. Processes that claim take turns, so that limits hold and no run is claimed twice.

use std::{collections::HashMap, time::Duration};

use mynah_log::{
    Lease,
    backend::{nanos, process},
};
use tokio_postgres::types::Type;

use crate::{
    connection::{NOW, NUMBERS, TEXTS},
    writer::{Failed, Writer},
};

/// How many runs are looked at for each that is wanted, as limits may rule out some.
const MANY: usize = 4;

/// The runs of these queues that can continue and have no living owner, the first to be claimed first.
fn ready(more: &str) -> String {
    format!(
        "SELECT r.id, r.version, r.owner IS NOT NULL, r.shared, r.at_most FROM mynah_runs r \
         LEFT JOIN mynah_beats b ON b.process = split_part(r.owner, '/', 1) \
         WHERE r.queue = ANY($1::text[]) AND r.status < 2 AND NOT r.sealed AND r.wake <= {NOW} \
         AND (r.owner IS NULL OR coalesce(b.until, 0) <= {NOW}) {more}"
    )
}

pub(crate) async fn perform(
    writer: &mut Writer,
    owner: &str,
    term: Duration,
    queues: &[String],
    limit: usize,
) -> Result<Vec<Lease>, Failed> {
    let Some(line) = &writer.line else { return Err(Failed::Conflict) };
    let client = &line.client;
    if limit == 0 || client.query_typed(&ready("LIMIT 1"), &[(&queues, TEXTS)]).await?.is_empty() {
        return Ok(Vec::new());
    }
    client
        .batch_execute("BEGIN; SELECT next FROM mynah_turns WHERE name = 'claims' FOR UPDATE")
        .await?;
    let claimed = claim(writer, owner, term, queues, limit).await;
    let end = if claimed.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client_of(writer)?.batch_execute(end).await?;
    claimed
}

fn client_of(writer: &Writer) -> Result<&tokio_postgres::Client, Failed> {
    writer.line.as_ref().map(|line| &line.client).ok_or(Failed::Conflict)
}

async fn claim(
    writer: &mut Writer,
    owner: &str,
    term: Duration,
    queues: &[String],
    limit: usize,
) -> Result<Vec<Lease>, Failed> {
    let client = client_of(writer)?;
    let (mut held, mut chosen) =
        (HashMap::<String, i64>::new(), (Vec::new(), Vec::new(), Vec::new()));
    let mut seen = 0_i64;
    let page = i64::try_from(limit.saturating_mul(MANY).max(64)).unwrap_or(i64::MAX);
    loop {
        let select = ready("ORDER BY r.priority DESC, r.started, r.key LIMIT $2 OFFSET $3");
        let found = client
            .query_typed(&select, &[(&queues, TEXTS), (&page, Type::INT8), (&seen, Type::INT8)])
            .await?;
        seen += found.len() as i64;
        let is_last = (found.len() as i64) < page;
        let keys = found.iter().filter_map(|row| row.get::<_, Option<String>>(3));
        let keys: Vec<String> = keys.filter(|key| !held.contains_key(key)).collect();
        if !keys.is_empty() {
            let count = format!(
                "SELECT r.shared, count(*) FROM mynah_runs r JOIN mynah_beats b ON b.process = split_part(r.owner, '/', 1) \
                 WHERE r.shared = ANY($1::text[]) AND r.owner IS NOT NULL AND b.until > {NOW} GROUP BY r.shared"
            );
            held.extend(keys.iter().map(|key| (key.clone(), 0)));
            for row in client.query_typed(&count, &[(&keys, TEXTS)]).await? {
                held.insert(row.get(0), row.get(1));
            }
        }
        for row in found {
            if chosen.0.len() == limit {
                break;
            }
            if let Some(key) = row.get::<_, Option<String>>(3) {
                let held = held.entry(key).or_default();
                if *held >= row.get::<_, i64>(4) {
                    continue;
                }
                *held += 1;
            }
            chosen.0.push(row.get::<_, String>(0));
            chosen.1.push(row.get::<_, i64>(1));
            chosen.2.push(row.get::<_, bool>(2));
        }
        if is_last || chosen.0.len() == limit {
            break;
        }
    }
    let (ids, versions, taken_over) = chosen;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let term = nanos(term);
    // A time that cannot be counted is the last that can.
    let until = format!(
        "CASE WHEN $5::int8 > 9223372036854775807 - {NOW} THEN 9223372036854775807 ELSE {NOW} + $5::int8 END"
    );
    let update = format!(
        "WITH beat AS (INSERT INTO mynah_beats AS b (process, until) VALUES ($4::text, {until}) \
         ON CONFLICT (process) DO UPDATE SET until = CASE WHEN b.until = excluded.until THEN b.until - 1 ELSE excluded.until END \
         RETURNING until), \
         taken AS (UPDATE mynah_runs r SET owner = $3::text, token = r.token + 1, version = r.version + 1 \
         FROM unnest($1::text[], $2::int8[]) AS v(id, version) WHERE r.id = v.id AND r.version = v.version \
         RETURNING r.id, r.token) \
         SELECT taken.id, taken.token, beat.until FROM taken, beat"
    );
    let given: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 5] = [
        (&ids, TEXTS),
        (&versions, NUMBERS),
        (&owner, Type::TEXT),
        (&process(owner), Type::TEXT),
        (&term, Type::INT8),
    ];
    let taken = client.query_typed(&update, &given).await?;
    let taken: HashMap<String, (i64, i64)> =
        taken.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    let mut leases = Vec::new();
    for (id, taken_over) in ids.into_iter().zip(taken_over) {
        writer.known.remove(id.as_str());
        // One that changed meanwhile is left to the next who claims.
        if let Some((token, until)) = taken.get(&id) {
            let lease = Lease::new(id, owner, token.cast_unsigned(), *until);
            leases.push(lease.taken_over(taken_over));
        }
    }
    Ok(leases)
}
