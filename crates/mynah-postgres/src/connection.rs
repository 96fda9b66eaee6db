//! Connections: opened when they are needed, and again when they are lost.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mynah_data::{LogReason, Result};
use tokio::time::{Instant, timeout};
use tokio_postgres::{
    AsyncMessage, Client, Error, Row, Statement,
    error::{Severity, SqlState},
    types::{ToSql, Type},
};

use crate::{
    PostgresLog,
    fail::{failure, log_error, unavailable},
    target::Target,
};

/// How long a statement may take before the server is taken for lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The first pause between attempts to connect to a server that is down, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The time of the server, in nanoseconds since 1970.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000000)::int8";

/// How long commits are kept for readers of changes, and beats after their last sign of life.
const KEPT: Duration = Duration::from_secs(HOURS.unsigned_abs() * 3_600);

/// The same in hours. A cursor names the hour of its last read, so it counts as too old after 23 to 24 hours.
pub(crate) const HOURS: i64 = 24;

/// Connects. While the server is known to be down, attempts fail at once, so that no caller waits for it. All connections of a log
/// share what is known of that, and one task finds out when the server is back.
#[derive(Clone)]
pub(crate) struct Connector {
    target: Target,
    /// Whether it makes the tables where there are none.
    pub(crate) creates: bool,
    /// Why the server could not be reached the last time, while it is down.
    outage: Arc<Mutex<Option<mynah_data::Error>>>,
    /// What the server warned of.
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Connector {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, creates: true, outage: Arc::default(), warnings: Arc::default() }
    }

    /// One that has its own warnings.
    pub(crate) fn another(&self) -> Self {
        Self { warnings: Arc::default(), ..self.clone() }
    }

    fn outage(&self) -> MutexGuard<'_, Option<mynah_data::Error>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails while the server is known to be down.
    pub(crate) fn check(&self) -> Result<()> {
        self.outage().clone().map_or(Ok(()), Err)
    }

    pub(crate) async fn connect(&self) -> Result<Client> {
        self.check()?;
        let connected = self.attempt().await;
        if let Err(error) = &connected
            && self.outage().replace(error.clone()).is_none()
        {
            tokio::spawn(self.another().probe());
        }
        connected
    }

    /// Attempts to connect until the server is back.
    async fn probe(self) {
        let mut pause = PAUSES.0;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            let failed = self.attempt().await.err();
            let is_back = failed.is_none();
            *self.outage() = failed;
            if is_back {
                return;
            }
        }
    }

    /// What the server warned of since this was called last.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn attempt(&self) -> Result<Client> {
        let Target { config, tls, name } = &self.target;
        let connecting = timeout(PATIENCE, config.connect(tls.clone()));
        let late = |_| unavailable(format!("{name}: the server does not answer"));
        let (client, mut connection) = connecting.await.map_err(late)?.map_err(failure)?;
        let warnings = Arc::clone(&self.warnings);
        tokio::spawn(async move {
            // Pending requests get the error that ends it.
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    let mut warnings = warnings.lock().unwrap_or_else(PoisonError::into_inner);
                    warnings.truncate(9);
                    warnings.push(notice.message().to_owned());
                }
            }
        });
        // An administrator's default must not make commits less safe than they say they are.
        let settings = "SELECT set_config('synchronous_commit', 'on', false) \
                        WHERE current_setting('synchronous_commit') = 'off'";
        client.batch_execute(settings).await.map_err(failure)?;
        let known = PostgresLog::SCHEMA;
        let version = match client.query_typed("SELECT version FROM mynah_schema", &[]).await {
            Ok(rows) => rows.first().and_then(|row| row.try_get::<_, i32>(0).ok()),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                if !self.creates {
                    let why = format!(
                        "{name}: there is no log in this database, or not in this schema; name another, or run `mynah log init`"
                    );
                    return Err(log_error(LogReason::Unusable, why).caused_by(error));
                }
                create(&client).await?;
                return Ok(client);
            }
            Err(error) => return Err(failure(error)),
        };
        match version {
            Some(version) if version.cast_unsigned() == known => Ok(client),
            version => {
                let version = version.unwrap_or_default();
                let why = format!(
                    "{name} was made by another version of Mynah: it has tables of version {version}, and this one reads \
                     {known}; use the version that made it, or another database"
                );
                Err(log_error(LogReason::SchemaTooNew, why))
            }
        }
    }
}

/// Makes the tables, unless another process does so at the same time.
async fn create(client: &Client) -> Result<()> {
    let tables = format!("BEGIN; {} COMMIT;", include_str!("schema.sql"));
    let Err(error) = client.batch_execute(&tables).await else { return Ok(()) };
    // What is left of the transaction.
    let _ = client.batch_execute("ROLLBACK").await;
    for _ in 0..50 {
        if client
            .query_typed("SELECT version FROM mynah_schema", &[])
            .await
            .is_ok_and(|rows| !rows.is_empty())
        {
            return Ok(());
        }
        if [&SqlState::INSUFFICIENT_PRIVILEGE, &SqlState::INVALID_SCHEMA_NAME]
            .iter()
            .any(|code| error.code() == Some(code))
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        let why = "there are no tables in this database, and the role may not create them; \
                   run `mynah log init` with one that may";
        return Err(log_error(LogReason::Unusable, why).caused_by(error));
    }
    Err(failure(error))
}

/// How often a connection that writes shows that it lives.
const SIGN: Duration = Duration::from_secs(3_600);

/// Whether a row of `mynah_writers` is that of a connection whose commits are all too old for readers of changes.
fn is_silent() -> String {
    format!("at < {NOW} - {}", (KEPT + SIGN).as_nanos())
}

/// Removes the commits of a connection before this one, and those of silent connections. There may be many, so this has a connection
/// of its own and takes some at a time. What it leaves if it fails is removed by the next one.
async fn clear(connector: Connector, writer: i64, no: i64) -> Result<()> {
    let client = connector.connect().await?;
    let silent = format!("SELECT key FROM mynah_writers WHERE {}", is_silent());
    let silent = client.query_typed(&silent, &[]).await.map_err(failure)?;
    let silent = silent.iter().map(|row| (row.get(0), i64::MAX));
    let part = "DELETE FROM mynah_commits WHERE writer = $1 AND no <= (SELECT max(no) FROM (SELECT no FROM mynah_commits \
                WHERE writer = $1 AND no < $2 ORDER BY no LIMIT 10000) AS part)";
    for (writer, no) in silent.chain([(writer, no)]) {
        let given: [(&(dyn ToSql + Sync), Type); 2] = [(&writer, Type::INT8), (&no, Type::INT8)];
        while client.execute_typed(part, &given).await.map_err(failure)? > 0 {}
    }
    let silent = format!(
        "DELETE FROM mynah_writers w WHERE {} AND NOT EXISTS (SELECT 1 FROM mynah_commits c WHERE c.writer = w.key)",
        is_silent()
    );
    client.execute_typed(&silent, &[]).await.map(drop).map_err(failure)
}

/// A connection that writes.
pub(crate) struct Line {
    pub(crate) client: Client,
    /// By which what it writes is found by those who follow changes.
    pub(crate) writer: i64,
    /// The number of its last commit.
    pub(crate) no: i64,
    /// The server's process that serves it.
    pub(crate) session: i32,
    /// The server's time at a moment.
    clock: (i64, Instant),
    /// When it last showed that it lives.
    signed: Instant,
    /// The numbers of the commits with which it did, and when, but for those that were removed since.
    signs: VecDeque<(Instant, i64)>,
    /// Statements by their text, prepared if they were sent before. There are few: a text says which tables are written, and not
    /// how many rows.
    statements: HashMap<String, Option<Statement>>,
}

impl Line {
    pub(crate) async fn open(connector: &Connector) -> Result<Self> {
        let client = connector.connect().await?;
        // A plan is made once, and holds however the tables grow: everything is looked up in an index. A server that does not know
        // such a setting makes its own plans.
        for (setting, value) in [
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            // What is switched off counts as so expensive that the server would compile it.
            ("jit", "off"),
        ] {
            let _ = client.batch_execute(&format!("SET {setting} = {value}")).await;
        }
        let insert = format!(
            "WITH old AS (DELETE FROM mynah_beats WHERE until < {NOW} - {}) \
             INSERT INTO mynah_writers (at) VALUES ({NOW}) \
             RETURNING key, at, pg_backend_pid(), EXISTS (SELECT 1 FROM mynah_writers WHERE {})",
            KEPT.as_nanos(),
            is_silent()
        );
        let row = client.query_typed_one(&insert, &[]).await.map_err(failure)?;
        let (writer, now, session) = (row.get(0), row.get(1), row.get(2));
        if row.get(3) {
            tokio::spawn(clear(connector.another(), writer, 0));
        }
        let (signed, signs, statements) = (Instant::now(), VecDeque::new(), HashMap::new());
        Ok(Self { client, writer, no: 0, session, clock: (now, signed), signed, signs, statements })
    }

    /// Whether it must show that it lives, with what it writes now.
    pub(crate) fn is_sign_due(&mut self) -> bool {
        let is_due = self.signed.elapsed() >= SIGN;
        if is_due {
            self.signed = Instant::now();
            self.signs.push_back((self.signed, self.no));
        }
        is_due
    }

    /// Removes its commits that are too old for readers of changes, if there are some since it did this the last time. No write waits
    /// for that.
    pub(crate) fn clear(&mut self, connector: &Connector) {
        let old = self.signs.partition_point(|(at, _)| at.elapsed() >= KEPT);
        if let Some((_, no)) = self.signs.drain(..old).next_back() {
            tokio::spawn(clear(connector.another(), self.writer, no));
        }
    }

    /// Sends a statement that returns one row. One that was sent before is prepared, which saves the server most of the work.
    pub(crate) async fn query_one(
        &mut self,
        text: String,
        types: &[Type],
        values: &[&(dyn ToSql + Sync)],
    ) -> std::result::Result<Row, Error> {
        match self.statements.get_mut(&text) {
            Some(Some(statement)) => self.client.query_one(&*statement, values).await,
            Some(unprepared) => {
                let statement = self.client.prepare_typed(&text, types).await?;
                let statement = unprepared.insert(statement);
                self.client.query_one(&*statement, values).await
            }
            None => {
                let given: Vec<_> = values.iter().copied().zip(types.iter().cloned()).collect();
                let row = self.client.query_typed_one(&text, &given).await?;
                self.statements.insert(text, None);
                Ok(row)
            }
        }
    }

    /// The server's time, if known.
    pub(crate) fn now(&self) -> i64 {
        let (then, moment) = self.clock;
        then.saturating_add(mynah_log::backend::nanos(moment.elapsed()))
    }

    /// Lets time pass for the signs of life.
    #[cfg(test)]
    pub(crate) fn age(&mut self, by: Duration) {
        self.signed -= by;
        self.signs.iter_mut().for_each(|(at, _)| *at -= by);
    }

    pub(crate) fn set_clock(&mut self, now: i64) {
        self.clock = (now, Instant::now());
    }
}

/// A text to look for; none, which equals nothing, if no column can hold it.
pub(crate) fn sought(text: &str) -> Option<&str> {
    (!text.contains('\0')).then_some(text)
}

/// The types of parameters.
pub(crate) const TEXTS: Type = Type::TEXT_ARRAY;
pub(crate) const NUMBERS: Type = Type::INT8_ARRAY;
pub(crate) const BYTES: Type = Type::BYTEA_ARRAY;

#[cfg(test)]
#[path = "../tests/server/mod.rs"]
pub(crate) mod server;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;

    /// Writes a sign of life of a process.
    async fn beat(line: &mut Line, until: i64) -> std::result::Result<(), Error> {
        let beats = [("process".to_owned(), until)].into();
        Batch { beats, ..Batch::default() }.write(line, &[]).await
    }

    #[tokio::test]
    async fn a_statement_that_is_sent_often_is_planned_once() -> Result<()> {
        let Some(server) = server::start() else { return Ok(()) };
        let mut line = Line::open(&Connector::new(Target::parse(&server.fresh())?)).await?;
        for until in 0..9 {
            beat(&mut line, until).await.map_err(failure)?;
        }
        let select =
            "SELECT sum(generic_plans)::int8, sum(custom_plans)::int8 FROM pg_prepared_statements";
        let plans = line.client.query_typed_one(select, &[]).await.map_err(failure)?;
        assert_eq!((plans.get::<_, i64>(0), plans.get::<_, i64>(1)), (8, 0));
        Ok(())
    }

    #[tokio::test]
    async fn what_reaches_another_session_is_refused() -> Result<()> {
        let Some(server) = server::start() else { return Ok(()) };
        let mut line = Line::open(&Connector::new(Target::parse(&server.fresh())?)).await?;
        beat(&mut line, 1).await.map_err(failure)?;
        // As it is behind a pooler that gives another session to each transaction.
        line.session += 1;
        let error = failure(beat(&mut line, 2).await.expect_err("another session"));
        assert_eq!(error.reason(), "unusable");
        assert!(error.to_string().contains("session mode"), "{error}");
        let row = line.client.query_typed_one("SELECT until FROM mynah_beats", &[]).await;
        assert_eq!(row.map_err(failure)?.get::<_, i64>(0), 1, "nothing was written");
        Ok(())
    }
}
