//! Time and chance. The only module that asks the machine for either.

use mynah_data::RunId;
use std::{
    cell::RefCell,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use mynah_log::Hash;

/// Where a run's time and chance come from.
///
/// ```
/// # use mynah_step as mynah;
/// use std::time::{Duration, SystemTime};
/// use mynah::World;
///
/// /// Nothing ever changes here: for tests whose output is compared.
/// struct Frozen;
/// impl World for Frozen {
///     fn now(&self) -> SystemTime {
///         SystemTime::UNIX_EPOCH + Duration::from_secs(1)
///     }
///     fn random(&self) -> u64 {
///         7
///     }
/// }
/// assert_eq!(Frozen.new_id().len(), 22);
/// ```
pub trait World: Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> SystemTime;

    /// An unpredictable number.
    fn random(&self) -> u64;

    /// A fresh id: 128 bits of chance in 22 URL-safe characters.
    fn new_id(&self) -> String {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.random().to_be_bytes());
        bytes[8..].copy_from_slice(&self.random().to_be_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// A fresh id for a run: 26 characters that sort by time, as a ULID does.
    fn new_run_id(&self) -> RunId {
        sorted_id(self.now(), u128::from(self.random()) << 64 | u128::from(self.random())).into()
    }

    /// The id of the run that continues from a place, which was reached at this time. The same place has the same id, so of several
    /// runs that would continue from there a log takes one. It looks like a fresh id.
    #[doc(hidden)]
    fn run_id_at(&self, place: &str, reached: SystemTime) -> RunId {
        let hash = Hash::of(&[place.as_bytes()]).0;
        let number = hash[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
        sorted_id(reached, number).into()
    }
}

/// 26 characters that sort by time, and then by the lower 80 bits of a number.
fn sorted_id(time: SystemTime, number: u128) -> String {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let number = since_1970(time).as_millis() << 80 | number & ((1 << 80) - 1);
    (0..26).rev().map(|place| char::from(DIGITS[(number >> (5 * place)) as usize & 31])).collect()
}

impl<W: World + ?Sized> World for Arc<W> {
    fn now(&self) -> SystemTime {
        (**self).now()
    }

    fn random(&self) -> u64 {
        (**self).random()
    }

    fn new_id(&self) -> String {
        (**self).new_id()
    }

    fn new_run_id(&self) -> RunId {
        (**self).new_run_id()
    }

    fn run_id_at(&self, place: &str, reached: SystemTime) -> RunId {
        (**self).run_id_at(place, reached)
    }
}

/// The machine's own clock and randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWorld;

impl World for SystemWorld {
    #[expect(clippy::disallowed_methods, reason = "this is where time enters")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self) -> u64 {
        let number = NUMBERS.try_with(|numbers| {
            let mut numbers = numbers.borrow_mut();
            if numbers.is_empty() {
                numbers.extend(drawn());
            }
            numbers.pop()
        });
        // Without the system's source, the seeds of the standard library's maps are as random as it gets.
        number.ok().flatten().unwrap_or_else(|| RandomState::new().hash_one(0))
    }
}

thread_local! {
    /// Numbers for this thread. A system call for each would be a noticeable part of what a record costs.
    static NUMBERS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Numbers of the system's source; none if it has failed.
#[expect(clippy::disallowed_methods, reason = "this is where chance enters")]
fn drawn() -> impl Iterator<Item = u64> {
    let mut bytes = [[0; 8]; 32];
    let is_drawn = getrandom::fill(bytes.as_flattened_mut()).is_ok();
    bytes.into_iter().filter(move |_| is_drawn).map(u64::from_ne_bytes)
}

/// The time since 1970.
pub fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A duration in milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// `duration` with up to `share` of itself added by chance.
pub(crate) fn jittered(world: &dyn World, duration: Duration, share: f64) -> Duration {
    duration + duration.mul_f64(share * fraction(world))
}

/// A number from 0 up to 1, by chance.
pub(crate) fn fraction(world: &dyn World) -> f64 {
    (world.random() >> 11) as f64 / (1u64 << 53) as f64
}
