//! Claiming runs. No lock is held between statements, so a process that stops in the middle holds up no other: a claim names the
//! versions that it expects, as every write does.

use std::{collections::HashMap, time::Duration};

use mynah_log::{
    Lease,
    backend::{nanos, process},
};
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::{
    connection::{NOW, NUMBERS, TEXTS, sought},
    writer::{Failed, Writer},
};

/// How many runs are looked at for each that is wanted, as limits may rule out some.
const MANY: usize = 4;

/// How often a claim is attempted while others are faster each time.
const ATTEMPTS: u32 = 8;

/// The server's time when the statement arrived, which an index can be searched by.
const TIME: &str = "(extract(epoch FROM statement_timestamp()) * 1000000000)::int8";

/// A claim.
pub(crate) struct Claim<'a> {
    pub(crate) owner: &'a str,
    pub(crate) term: Duration,
    pub(crate) queues: &'a [String],
    pub(crate) limit: usize,
}

/// The runs that are to be claimed, with their versions.
#[derive(Default)]
struct Chosen {
    runs: Vec<String>,
    versions: Vec<i64>,
    /// Whether another owner has each of them.
    taken_over: Vec<bool>,
    /// How many claims with a limit there were when the runs were counted, if a limit applies.
    turn: Option<i64>,
}

pub(crate) async fn perform(writer: &mut Writer, claim: &Claim<'_>) -> Result<Vec<Lease>, Failed> {
    let Some(line) = &writer.line else { return Err(Failed::Conflict) };
    for _ in 0..ATTEMPTS {
        let chosen = claim.choose(&line.client).await?;
        if chosen.runs.is_empty() {
            break;
        }
        let leases = claim.take(&line.client, &chosen).await?;
        for lease in &leases {
            writer.known.remove(&lease.run_id);
        }
        if !leases.is_empty() {
            return Ok(leases);
        }
    }
    Ok(Vec::new())
}

/// The runs of these queues that can continue and have no other living owner, the first to be claimed first. Those that can
/// continue at once are in an index of their order; those whose time has come are few.
fn ready() -> String {
    let free = format!(
        "FROM mynah_runs r LEFT JOIN mynah_beats b ON b.process = split_part(r.owner, '/', 1) \
         WHERE r.queue = q.name AND r.status < 2 AND NOT r.sealed \
         AND (r.owner IS NULL OR r.owner = $2 OR coalesce(b.until, 0) <= {TIME})"
    );
    format!(
        "SELECT r.id, h.version, r.shared, r.at_most, (SELECT next FROM mynah_turns WHERE name = 'claims'), \
         r.owner IS NOT NULL AND r.owner <> $2 \
         FROM (SELECT DISTINCT unnest($1::text[])) AS q(name) CROSS JOIN LATERAL (\
         (SELECT r.* {free} AND r.wake <= 0 ORDER BY r.priority DESC, r.started, r.key LIMIT $3::int8 + $4::int8) UNION ALL \
         SELECT r.* {free} AND r.wake > 0 AND r.wake <= {TIME}) AS r JOIN mynah_heads h ON h.run = r.id \
         ORDER BY r.priority DESC, r.started, r.key LIMIT $3 OFFSET $4"
    )
}

impl Claim<'_> {
    /// Finds runs to claim.
    async fn choose(&self, client: &Client) -> Result<Chosen, Failed> {
        let (mut held, mut chosen) = (HashMap::<String, i64>::new(), Chosen::default());
        let (mut seen, mut turn, ready) = (0_i64, None, ready());
        let queues: Vec<Option<&str>> = self.queues.iter().map(|queue| sought(queue)).collect();
        let page = i64::try_from(self.limit.saturating_mul(MANY).max(64)).unwrap_or(1 << 32);
        while chosen.runs.len() < self.limit {
            let given: [(&(dyn ToSql + Sync), Type); 4] = [
                (&queues, TEXTS),
                (&self.owner, Type::TEXT),
                (&page, Type::INT8),
                (&seen, Type::INT8),
            ];
            let found = client.query_typed(&ready, &given).await?;
            seen += found.len() as i64;
            // As it was before anything was counted.
            turn = turn.or_else(|| found.first().map(|row| row.get::<_, i64>(4)));
            let is_last = (found.len() as i64) < page;
            let keys = found.iter().filter_map(|row| row.get::<_, Option<String>>(2));
            let keys: Vec<String> = keys.filter(|key| !held.contains_key(key)).collect();
            self.count(client, keys, &mut held).await?;
            for row in found {
                if chosen.runs.len() == self.limit {
                    break;
                }
                if let Some(key) = row.get::<_, Option<String>>(2) {
                    let held = held.entry(key).or_default();
                    if *held >= row.get::<_, i64>(3) {
                        continue;
                    }
                    *held += 1;
                    chosen.turn = turn;
                }
                chosen.runs.push(row.get(0));
                chosen.versions.push(row.get(1));
                chosen.taken_over.push(row.get(5));
            }
            if is_last {
                break;
            }
        }
        Ok(chosen)
    }

    /// Adds how many runs with these concurrency keys other living owners have.
    async fn count(
        &self,
        client: &Client,
        keys: Vec<String>,
        held: &mut HashMap<String, i64>,
    ) -> Result<(), Failed> {
        if keys.is_empty() {
            return Ok(());
        }
        let count = format!(
            "SELECT r.shared, count(*) FROM mynah_runs r JOIN mynah_beats b ON b.process = split_part(r.owner, '/', 1) \
             WHERE r.shared = ANY($1) AND r.owner <> $2 AND b.until > {TIME} GROUP BY r.shared"
        );
        let given: [(&(dyn ToSql + Sync), Type); 2] = [(&keys, TEXTS), (&self.owner, Type::TEXT)];
        let rows = client.query_typed(&count, &given).await?;
        held.extend(keys.into_iter().map(|key| (key, 0)));
        held.extend(rows.iter().map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1))));
        Ok(())
    }

    /// Takes those of them that are as they were. Where a limit applies, all or none: no other claim with a limit may have come
    /// between.
    async fn take(&self, client: &Client, chosen: &Chosen) -> Result<Vec<Lease>, Failed> {
        // A time that cannot be counted is the last that can.
        let until = format!(
            "CASE WHEN $5::int8 > 9223372036854775807 - {NOW} THEN 9223372036854775807 ELSE {NOW} + $5::int8 END"
        );
        let update = format!(
            "WITH turn AS (UPDATE mynah_turns SET next = next + 1 WHERE name = 'claims' AND next = $6 RETURNING 1), \
             beat AS (INSERT INTO mynah_beats AS b (process, until) VALUES ($4::text, {until}) \
             ON CONFLICT (process) DO UPDATE SET until = CASE WHEN b.until = excluded.until THEN b.until - 1 ELSE excluded.until END \
             RETURNING until), \
             heads AS (UPDATE mynah_heads h SET version = h.version + 1 \
             FROM unnest($1::text[], $2::int8[]) AS v(run, version) WHERE h.run = v.run AND h.version = v.version \
             AND ($6::int8 IS NULL OR EXISTS (SELECT 1 FROM turn)) RETURNING h.run), \
             taken AS (UPDATE mynah_runs r SET owner = $3::text, token = r.token + 1 FROM heads WHERE r.id = heads.run \
             RETURNING r.id, r.token) \
             SELECT taken.id, taken.token, beat.until FROM taken, beat"
        );
        let given: [(&(dyn ToSql + Sync), Type); 6] = [
            (&chosen.runs, TEXTS),
            (&chosen.versions, NUMBERS),
            (&self.owner, Type::TEXT),
            (&process(self.owner), Type::TEXT),
            (&nanos(self.term), Type::INT8),
            (&chosen.turn, Type::INT8),
        ];
        let rows = client.query_typed(&update, &given).await?;
        let mut taken: HashMap<&str, (i64, i64)> =
            rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        let lease = |(run, taken_over): (&String, &bool)| {
            let (token, until) = taken.remove(&**run)?;
            let lease = Lease::new(&**run, self.owner, token.cast_unsigned(), until);
            Some(lease.taken_over(*taken_over))
        };
        Ok(chosen.runs.iter().zip(&chosen.taken_over).filter_map(lease).collect())
    }
}

#[cfg(test)]
mod tests {
    use mynah_data::Result;

    use super::*;
    use crate::{
        connection::{Connector, server},
        fail::failure,
        target::Target,
    };

    #[tokio::test]
    async fn a_claim_reads_few_of_the_runs_that_wait() -> Result<()> {
        let Some(server) = server::start() else { return Ok(()) };
        let client = Connector::new(Target::parse(&server.fresh())?).connect().await?;
        let fill = "INSERT INTO mynah_runs (id, status, started, turns, tool_calls, input_tokens, \
                    output_tokens, cost, sealed, token, queue, priority, at_most, wake, delivered) \
                    SELECT 'run-' || n, 0, n, 0, 0, 0, 0, 0, false, 0, 'q' || n % 3, n % 5, 4294967295, \
                    CASE WHEN n % 2 = 0 THEN -9223372036854775808 ELSE 9223372036854775807 END, 0 \
                    FROM generate_series(1, 20000) AS n; \
                    INSERT INTO mynah_heads SELECT id, 1, started, 1, '' FROM mynah_runs; ANALYZE mynah_runs, mynah_heads";
        client.batch_execute(fill).await.map_err(failure)?;
        let queues = ["q0", "q1"];
        let given: [(&(dyn ToSql + Sync), Type); 4] = [
            (&&queues[..], TEXTS),
            (&"me", Type::TEXT),
            (&64_i64, Type::INT8),
            (&0_i64, Type::INT8),
        ];
        let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {}", ready());
        let plan = client.query_typed(&explain, &given).await.map_err(failure)?;
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let read = |step: &String| {
            let (_, rest) = step.split_once("actual rows=")?;
            let (rows, loops) = rest.trim_end_matches(')').split_once(" loops=")?;
            Some(rows.parse::<f64>().ok()? * loops.parse::<f64>().ok()?)
        };
        let rows: Vec<f64> = plan.iter().filter_map(read).collect();
        assert!(!rows.is_empty() && rows.iter().all(|rows| *rows < 1_000.0), "{plan:#?}");
        assert!(!plan.iter().any(|step| step.contains("Rows Removed")), "{plan:#?}");
        Ok(())
    }
}
