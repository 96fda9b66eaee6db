//! Being ended from outside.

#[cfg(unix)]
use std::{
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// How many futures of [`interrupted`] there are.
#[cfg(unix)]
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How many of them have ended.
#[cfg(unix)]
static HEEDED: AtomicUsize = AtomicUsize::new(0);

/// Waits until the program is interrupted: by control-C, by a shutdown, or by a closed terminal. Until what it returns is dropped,
/// a signal does not end the program by itself.
#[cfg(unix)]
pub(crate) fn interrupted() -> impl Future<Output = ()> {
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            WAITING.fetch_sub(1, SeqCst);
        }
    }
    WAITING.fetch_add(1, SeqCst);
    let waits = Waits;
    let signalled = signalled();
    end_if_nothing_waits();
    async move {
        let _waits = waits;
        signalled.await;
        HEEDED.fetch_add(1, SeqCst);
    }
}

/// Waits for the next signal, and returns its number.
#[cfg(unix)]
fn signalled() -> impl Future<Output = i32> {
    use futures_util::future::select_all;
    use tokio::signal::unix::{SignalKind, signal};

    let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
    if !ignores_hangup() {
        kinds.push(SignalKind::hangup());
    }
    let signals = kinds.into_iter().filter_map(|kind| Some((kind, signal(kind).ok()?)));
    let waiting = signals.map(|(kind, mut signal)| {
        Box::pin(async move {
            signal.recv().await;
            kind.as_raw_value()
        })
    });
    let waiting: Vec<_> = waiting.collect();
    async move {
        match waiting {
            none if none.is_empty() => std::future::pending().await,
            some => select_all(some).await.0,
        }
    }
}

/// Ends the program at a signal that nothing waits for, as it would end if none had been waited for before.
#[cfg(unix)]
fn end_if_nothing_waits() {
    static WATCH: Mutex<Option<tokio::task::AbortHandle>> = Mutex::new(None);
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    // A task ends with its runtime.
    if watch.as_ref().is_none_or(|task| task.is_finished()) {
        let task = tokio::spawn(async {
            loop {
                let before = HEEDED.load(SeqCst);
                let number = signalled().await;
                // Those who waited for it come first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                if WAITING.load(SeqCst) == 0 && HEEDED.load(SeqCst) == before {
                    process::exit(128 + number);
                }
            }
        });
        *watch = Some(task.abort_handle());
    }
}

/// Whether SIGHUP is ignored, as `nohup` does. If that is unknown, it stays as it is.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask & 1 == 1)
}

/// Waits for control-C.
#[cfg(not(unix))]
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
