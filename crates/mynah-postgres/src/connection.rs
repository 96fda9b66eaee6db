//! Connections: opened when they are needed, and again when they are lost.

use std::time::Duration;

use mynah_data::{LogReason, Result};
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, error::SqlState, types::Type};

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
}

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
        Ok(Self { client, writer, no: 0, clock: (now, Instant::now()) })
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

/// The types of parameters.
pub(crate) const TEXTS: Type = Type::TEXT_ARRAY;
pub(crate) const NUMBERS: Type = Type::INT8_ARRAY;
pub(crate) const BYTES: Type = Type::BYTEA_ARRAY;
