//! Reading rows that anyone could have written.

use mynah_log::Corrupt;
use rusqlite::{Error, Row};

/// Ends early with a log's refusal, inside what SQLite gives.
macro_rules! attempt {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Ok(Err(error.into())),
        }
    };
}
pub(crate) use attempt;

/// The values of a row. If they are invalid, the log is corrupt there; any other failure is
/// SQLite's own.
pub(crate) fn sound<T>(
    read: rusqlite::Result<T>,
    run: &str,
    seq: u64,
) -> rusqlite::Result<Result<T, Corrupt>> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(error) if is_unsound(&error) => {
            let what = match error {
                Error::InvalidColumnType(_, column, _) => {
                    format!("its row is not as it was written: {column} is not what it has to be")
                }
                _ => "its row is not as it was written".to_owned(),
            };
            Ok(Err(Corrupt::new(run, seq, what)))
        }
        Err(error) => Err(error),
    }
}

/// Whether values of a row are invalid.
pub(crate) fn is_unsound(error: &Error) -> bool {
    matches!(
        error,
        Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..)
            | Error::Utf8Error(..)
    )
}

/// Bytes, where they lie.
pub(crate) fn blob<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<&'r [u8]> {
    Ok(row.get_ref(column)?.as_blob()?)
}

/// The readable part of a text, to name what cannot be read.
pub(crate) fn lossy(row: &Row<'_>, column: usize) -> String {
    let bytes = row.get_ref(column).ok().and_then(|value| value.as_bytes().ok());
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

/// A number that is never negative.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| Error::IntegralValueOutOfRange(column, value))
}
