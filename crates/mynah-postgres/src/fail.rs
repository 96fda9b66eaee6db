//! What a failure of PostgreSQL means, and what to do.

use std::{error::Error as _, io};

use mynah_data::{Error, LogReason};
use tokio_postgres::error::SqlState;

/// What to do about a role that lacks rights.
pub(crate) const GRANT: &str = "grant the role what docs/postgres.md names";

/// An error with this reason.
pub(crate) fn log_error(reason: LogReason, why: impl std::fmt::Display) -> Error {
    Error::log(reason).with_message(format!("log error: {reason}: {why}"))
}

/// The log may be available later.
pub(crate) fn unavailable(why: impl std::fmt::Display) -> Error {
    log_error(LogReason::Unavailable, why)
}

/// Whether another transaction was faster: the same work may succeed after reading the rows again.
/// The check in our statement divides by zero if a row is not as expected.
pub(crate) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    let codes = [
        SqlState::DIVISION_BY_ZERO,
        SqlState::UNIQUE_VIOLATION,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
    ];
    error.code().is_some_and(|code| codes.contains(code))
}

/// Whether the server refused a statement, which therefore had no effect, for a reason that lies in the statement itself.
pub(crate) fn is_refusal(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        ["22", "23", "42", "54"].iter().any(|class| code.code().starts_with(class))
    })
}

/// Whether a pooler in transaction mode is between us and the server: a prepared statement is unknown, or another one has its name,
/// or our statement found that it is not in the session of its connection.
fn is_of_another_session(code: &SqlState) -> bool {
    [
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
        SqlState::INVALID_TEXT_REPRESENTATION,
    ]
    .contains(code)
}

/// What a failure means to those who use the log.
pub(crate) fn failure(error: tokio_postgres::Error) -> Error {
    let Some(refusal) = error.as_db_error() else {
        let (reason, advice) = outage(&error);
        return log_error(reason, format!("PostgreSQL: {}; {advice}", chain(&error)))
            .caused_by(error);
    };
    let code = refusal.code().clone();
    let (reason, advice) = match &code {
        code if *code == SqlState::UNDEFINED_TABLE => {
            (LogReason::Unusable, "run `mynah log init` with a role that may create tables")
        }
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => (LogReason::Unusable, GRANT),
        code if is_of_another_session(code) => (
            LogReason::Unusable,
            "statements reach more than one session of the server; let the pooler use session mode, or connect without it",
        ),
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => (
            LogReason::Unavailable,
            "the server only reads; it may be a standby that is not promoted yet",
        ),
        code if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]
            .contains(code) =>
        {
            (LogReason::Unusable, "give the right user and password")
        }
        code if *code == SqlState::INVALID_SCHEMA_NAME => {
            (LogReason::Unusable, "create the schema that search_path names first")
        }
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            (LogReason::Unusable, "create the database, or give another name")
        }
        code if ["53", "57", "08", "25", "40", "55", "58"]
            .iter()
            .any(|class| code.code().starts_with(class)) =>
        {
            (LogReason::Unavailable, "the server cannot do it now")
        }
        code if code.code().starts_with("XX") => {
            (LogReason::Corrupt, "the database is damaged; restore it from a copy")
        }
        _ => (LogReason::Unusable, "this is not a statement that the server takes"),
    };
    let why = format!("PostgreSQL: {} ({}): {advice}", refusal.message(), code.code());
    log_error(reason, why).caused_by(error)
}

/// What it means that there is no answer of the server. Waiting helps against a lost connection, and not against wrong settings.
fn outage(error: &tokio_postgres::Error) -> (LogReason, &'static str) {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    // Certificates and names that TLS does not accept are reported as such.
    let is_setting = cause.is_none_or(|cause| {
        matches!(cause.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)
    });
    // The client does not tell kinds of errors apart in any other way.
    match &*error.to_string() {
        "invalid configuration" => (
            LogReason::Unusable,
            "correct the URL; the password may also be in PGPASSWORD or in the password file",
        ),
        "error performing TLS handshake" if is_setting => {
            (LogReason::Unusable, "give an sslmode and certificates that fit the server")
        }
        _ => (LogReason::Unavailable, "see that the server runs and can be reached"),
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}
