//! The parameters of a request.

use std::str::FromStr;

use axum::{
    extract::{FromRequestParts, Path},
    http::{Uri, request::Parts},
};

use crate::problem::{Problem, Result};

/// The parameters of a request. Each is taken once, and what is left in the end is refused.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// A parameter; none if it is absent.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>> {
        let Some(place) = self.0.iter().position(|(given, _)| given == name) else {
            return Ok(None);
        };
        let (_, value) = self.0.swap_remove(place);
        match self.0.iter().any(|(given, _)| given == name) {
            true => Err(Problem::bad(format!("{name}: it is given twice"))),
            false => Ok(Some(value)),
        }
    }

    /// A parameter that is read; `kind` names what it must be.
    pub(crate) fn parsed<T: FromStr>(&mut self, name: &str, kind: &str) -> Result<Option<T>> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        let parsed = value.parse().ok();
        parsed.map(Some).ok_or_else(|| Problem::bad(format!("{name}={value}: give {kind}")))
    }

    /// An amount, 0 or more.
    pub(crate) fn amount(&mut self, name: &str, kind: &str) -> Result<Option<f64>> {
        let amount = self.parsed::<f64>(name, kind)?;
        match amount.filter(|amount| amount.is_nan() || *amount < 0.0) {
            Some(amount) => Err(Problem::bad(format!("{name}={amount}: give {kind}, 0 or more"))),
            None => Ok(amount),
        }
    }

    /// A time in nanoseconds since 1970.
    pub(crate) fn time(&mut self, name: &str) -> Result<Option<i64>> {
        self.parsed(name, "nanoseconds since 1970")
    }

    /// How many are wanted, within bounds.
    pub(crate) fn count(&mut self, name: &str, default: usize, most: usize) -> Result<usize> {
        let count = self.parsed(name, "a whole number")?.unwrap_or(default);
        match count {
            count if (1..=most).contains(&count) => Ok(count),
            _ => Err(Problem::bad(format!("{name}={count}: give a number from 1 to {most}"))),
        }
    }

    /// A switch, off unless it is given.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(value) => Err(Problem::bad(format!("{name}={value}: give true or false"))),
        }
    }

    /// Refuses what was not taken.
    pub(crate) fn end(self) -> Result<()> {
        match self.0.first() {
            Some((name, _)) => Err(Problem::bad(format!("{name}: there is no such parameter"))),
            None => Ok(()),
        }
    }
}

/// The id in a path.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Path::<String>::from_request_parts(parts, state).await {
            // No log has such an id, and some cannot look for it.
            Ok(Path(id)) if id.contains('\0') => Err(Problem::absent("no id has a NUL character")),
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => Err(Problem::bad("the id in the path is not percent-encoded UTF-8")),
        }
    }
}
