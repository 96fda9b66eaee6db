//! The time by which a log counts leases.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// A clock that tells nanoseconds since 1970.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    pub(crate) fn new(tell: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn now(&self) -> i64 {
        (self.0)()
    }
}

impl Default for Clock {
    #[expect(clippy::disallowed_methods, reason = "this is where a log's time comes from")]
    fn default() -> Self {
        Self::new(|| {
            nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
        })
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
