//! Times, CPU times and memory of this process.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};

use crate::Result;

/// Wall-clock and CPU time since a start.
pub struct Stopwatch {
    start: Instant,
    cpu: Duration,
}

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
    pub fn start() -> Result<Self> {
        Ok(Self { start: Instant::now(), cpu: cpu()? })
    }

    /// Milliseconds for each of this many things that were done.
    pub fn each(&self, count: usize) -> Result<[f64; 2]> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3 / count as f64;
        Ok([ms(self.start.elapsed()), ms(cpu()? - self.cpu)])
    }
}

/// User and system time of all threads.
fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

/// How many bytes of memory this process has in use.
pub fn memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?;
    Ok(kib.parse::<u64>()? << 10)
}
