//! Connections: opened when they are needed, and again when they are lost.

use std::{collections::HashMap, time::Duration};

use mynah_data::{LogReason, Result};
use tokio::time::{Instant, timeout};
use tokio_postgres::{
    Client, Error, Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};

use crate::{
    PostgresLog,
    fail::{failure, log_error, unavailable},
    target::Target,
};

/// How long a statement may take before the server is taken for lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The pause after the first attempt to connect that failed, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// The time of the server, in nanoseconds since 1970.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000000)::int8";

/// How long beats and writers are kept after their last sign of life, in nanoseconds.
pub(crate) const KEPT: i64 = 86_400_000_000_000;

/// Connects. Attempts that come soon after one that failed wait a little.
pub(crate) struct Connector {
    target: Target,
    pause: Duration,
    failed: Option<Instant>,
}

impl Connector {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, pause: PAUSES.0, failed: None }
    }

    pub(crate) async fn connect(&mut self) -> Result<Client> {
        if let Some(failed) = self.failed {
            tokio::time::sleep_until(failed + self.pause).await;
        }
        let connected = self.attempt().await;
        match &connected {
            Ok(_) => (self.failed, self.pause) = (None, PAUSES.0),
            Err(_) => {
                let longer = if self.failed.is_some() { self.pause * 2 } else { PAUSES.0 };
                (self.failed, self.pause) = (Some(Instant::now()), longer.min(PAUSES.1));
            }
        }
        connected
    }

    async fn attempt(&self) -> Result<Client> {
        let Target { config, tls, name } = &self.target;
        let connecting = timeout(PATIENCE, config.connect(tls.clone()));
        let late = |_| unavailable(format!("{name}: the server does not answer"));
        let (client, connection) = connecting.await.map_err(late)?.map_err(failure)?;
        tokio::spawn(async move {
            // Pending requests get the error that ends it.
            let _ = connection.await;
        });
        // An administrator's default must not make commits less safe than they say they are.
        let settings = "SELECT set_config('synchronous_commit', 'on', false) \
                        WHERE current_setting('synchronous_commit') = 'off'";
        client.batch_execute(settings).await.map_err(failure)?;
        let known = PostgresLog::SCHEMA;
        let version = match client.query_typed("SELECT version FROM mynah_schema", &[]).await {
            Ok(rows) => rows.first().and_then(|row| row.try_get::<_, i32>(0).ok()),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
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
        if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
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

/// A connection that writes.
pub(crate) struct Line {
    pub(crate) client: Client,
    /// By which what it writes is found by those who follow changes.
    pub(crate) writer: i64,
    /// The number of the last thing that it wrote.
    pub(crate) no: i64,
    /// The server's time at a moment.
    clock: (i64, Instant),
    /// Statements by their text. There are few: a text says which tables are written, and not how many rows.
    statements: HashMap<String, SentStatement>,
    /// Whether the server keeps statements from one transaction to the next. A pooler may not.
    keeps_statements: bool,
}

/// A statement that was sent before.
enum SentStatement {
    /// Once.
    Text,
    /// Prepared, and when.
    Prepared(Statement, Instant),
}

/// For how long a prepared statement is used. Its plan is that of the tables as they were.
const PLANNED: Duration = Duration::from_secs(30);

impl Line {
    pub(crate) async fn open(connector: &mut Connector) -> Result<Self> {
        let client = connector.connect().await?;
        let insert = format!(
            "WITH gone AS (DELETE FROM mynah_writers WHERE at < {NOW} - {KEPT}), \
             silent AS (DELETE FROM mynah_beats WHERE until < {NOW} - {KEPT}) \
             INSERT INTO mynah_writers (no, at) VALUES (0, {NOW}) RETURNING key, at"
        );
        let row = client.query_typed_one(&insert, &[]).await.map_err(failure)?;
        let (writer, now) = (row.get(0), row.get(1));
        let (clock, statements) = ((now, Instant::now()), HashMap::new());
        Ok(Self { client, writer, no: 0, clock, statements, keeps_statements: true })
    }

    /// Sends a statement that returns one row. One that was sent before is prepared, which saves the server most of the work.
    pub(crate) async fn query_one(
        &mut self,
        text: String,
        types: &[Type],
        values: &[&(dyn ToSql + Sync)],
    ) -> std::result::Result<Row, Error> {
        if let Some(statement) = self.prepared(&text, types).await? {
            match self.client.query_one(&statement, values).await {
                Err(error) if is_forgotten(&error) => self.keeps_statements = false,
                done => return done,
            }
        }
        let values: Vec<_> = values.iter().copied().zip(types.iter().cloned()).collect();
        self.client.query_typed_one(&text, &values).await
    }

    async fn prepared(
        &mut self,
        text: &str,
        types: &[Type],
    ) -> std::result::Result<Option<Statement>, Error> {
        match self.statements.get(text) {
            _ if !self.keeps_statements => return Ok(None),
            None => {
                self.statements.insert(text.to_owned(), SentStatement::Text);
                return Ok(None);
            }
            Some(SentStatement::Prepared(statement, since)) if since.elapsed() < PLANNED => {
                return Ok(Some(statement.clone()));
            }
            Some(_) => {}
        }
        let statement = self.client.prepare_typed(text, types).await?;
        let known = SentStatement::Prepared(statement.clone(), Instant::now());
        self.statements.insert(text.to_owned(), known);
        Ok(Some(statement))
    }

    /// The server's time, if known.
    pub(crate) fn now(&self) -> i64 {
        let (then, moment) = self.clock;
        then.saturating_add(mynah_log::backend::nanos(moment.elapsed()))
    }

    pub(crate) fn set_clock(&mut self, now: i64) {
        self.clock = (now, Instant::now());
    }
}

/// Whether the server does not know a prepared statement any more, or knows another one of its name. Nothing was written then.
fn is_forgotten(error: &Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::INVALID_SQL_STATEMENT_NAME)
        || code == Some(&SqlState::DUPLICATE_PSTATEMENT)
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

    #[tokio::test]
    async fn a_statement_that_the_server_forgot_is_sent_whole() -> Result<()> {
        let Some(server) = server::start() else { return Ok(()) };
        let mut line = Line::open(&mut Connector::new(Target::parse(&server.fresh())?)).await?;
        let text = "SELECT $1::int8 + 1";
        for given in 0..6_i64 {
            if given == 3 {
                // As a pooler does that gives another connection to each transaction.
                line.client.batch_execute("DEALLOCATE ALL").await.map_err(failure)?;
            }
            let row = line.query_one(text.to_owned(), &[Type::INT8], &[&given]).await;
            assert_eq!(row.map_err(failure)?.get::<_, i64>(0), given + 1);
            assert_eq!(line.keeps_statements, given < 3);
        }
        assert!(matches!(line.statements[text], SentStatement::Prepared(..)));
        Ok(())
    }
}
