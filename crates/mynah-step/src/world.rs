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

    /// Two unpredictable numbers, as bytes.
    #[doc(hidden)]
    fn random_bytes(&self) -> [u8; 16] {
        two(self.random(), self.random())
    }

    /// A fresh id: 128 bits of chance in 22 URL-safe characters.
    fn new_id(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.random_bytes())
    }

    /// A fresh id for a run: 26 characters that sort by time, as a ULID does.
    fn new_run_id(&self) -> RunId {
        sorted_id(self.now(), u128::from_be_bytes(self.random_bytes())).into()
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

fn two(first: u64, second: u64) -> [u8; 16] {
    (u128::from(first) << 64 | u128::from(second)).to_be_bytes()
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

    fn random_bytes(&self) -> [u8; 16] {
        (**self).random_bytes()
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
        number(std::process::id())
    }

    fn random_bytes(&self) -> [u8; 16] {
        // To ask for it is a system call.
        let process = std::process::id();
        two(number(process), number(process))
    }
}

/// An unpredictable number for this process.
fn number(process: u32) -> u64 {
    let number = NUMBERS.try_with(|numbers| numbers.borrow_mut().next(process));
    // Without the system's source, the seeds of the standard library's maps are as random as it gets.
    number.ok().flatten().unwrap_or_else(|| RandomState::new().hash_one(0))
}

thread_local! {
    static NUMBERS: RefCell<Numbers> = const { RefCell::new(Numbers { process: 0, left: Vec::new() }) };
}

/// Numbers that a thread drew. A system call for each would be a noticeable part of what a record costs.
struct Numbers {
    /// Another process that was forked has a copy of them.
    process: u32,
    left: Vec<u64>,
}

impl Numbers {
    /// The next number; none if the system's source has failed.
    #[expect(clippy::disallowed_methods, reason = "this is where chance enters")]
    fn next(&mut self, process: u32) -> Option<u64> {
        if self.process != process || self.left.is_empty() {
            let mut bytes = [[0; 8]; 32];
            getrandom::fill(bytes.as_flattened_mut()).ok()?;
            *self = Self { process, left: bytes.map(u64::from_ne_bytes).into() };
        }
        self.left.pop()
    }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_number_comes_twice_and_a_forked_process_has_its_own() {
        let mut numbers = Numbers { process: 1, left: vec![7, 8] };
        assert_eq!([numbers.next(1), numbers.next(1)], [Some(8), Some(7)]);
        let drawn: HashSet<u64> = (0..100).filter_map(|_| numbers.next(1)).collect();
        assert_eq!(drawn.len(), 100);
        let (before, left) = (numbers.left.clone(), numbers.left.len());
        assert!(left > 0);
        let forked: Vec<u64> = (0..left).filter_map(|_| numbers.next(2)).collect();
        assert!(forked.len() == left && forked.iter().all(|number| !before.contains(number)));
    }
}
