//! The id of a run.

use std::{borrow::Borrow, convert::Infallible, fmt, ops::Deref, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// The id of a run in a log.
///
/// Cheap to clone, and a plain string in JSON. Functions that take a run's id take a `&str` as well. Any text can be an id
/// here; a log refuses one that is empty or too long.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::RunId;
///
/// let id = RunId::from("invoice-17");
/// assert_eq!(id, "invoice-17");
/// assert_eq!(id.to_string().parse(), Ok(id.clone()));
/// assert_eq!(serde_json::to_string(&id)?, r#""invoice-17""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Arc<str>);

impl RunId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RunId {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text))
    }
}

impl Deref for RunId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for RunId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for RunId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RunId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<&String> for RunId {
    fn from(text: &String) -> Self {
        Self(text.as_str().into())
    }
}

impl From<String> for RunId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Arc<str>> for RunId {
    fn from(text: Arc<str>) -> Self {
        Self(text)
    }
}

impl From<&Self> for RunId {
    fn from(id: &Self) -> Self {
        id.clone()
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.as_str().to_owned()
    }
}

impl From<RunId> for serde_json::Value {
    fn from(id: RunId) -> Self {
        id.as_str().into()
    }
}

impl From<&RunId> for serde_json::Value {
    fn from(id: &RunId) -> Self {
        id.as_str().into()
    }
}

impl PartialEq<str> for RunId {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for RunId {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for RunId {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}
