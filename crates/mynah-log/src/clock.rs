//! The time by which a log counts leases.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// A clock that counts nanoseconds since 1970: by default, the system's.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// A clock that this function reads.
    pub fn new(tell: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// The time, in nanoseconds since 1970.
    pub fn now(&self) -> i64 {
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

/// A duration in nanoseconds; the longest if it is longer than can be counted.
pub const fn nanos(duration: Duration) -> i64 {
    let nanos = duration.as_nanos();
    if nanos > i64::MAX as u128 { i64::MAX } else { nanos as i64 }
}
