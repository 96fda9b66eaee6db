//! Being ended from outside.

/// Waits until the program is interrupted: by control-C, by a shutdown, or by a closed terminal. From the call on, a signal does
/// not end the program by itself.
#[cfg(unix)]
pub(crate) fn interrupted() -> impl Future<Output = ()> {
    use futures_util::future::select_all;
    use tokio::signal::unix::{SignalKind, signal};

    let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
    if !ignores_hangup() {
        kinds.push(SignalKind::hangup());
    }
    let signals = kinds.into_iter().filter_map(|kind| signal(kind).ok());
    let waiting = signals.map(|mut signal| Box::pin(async move { signal.recv().await }));
    let waiting: Vec<_> = waiting.collect();
    async move {
        match waiting {
            none if none.is_empty() => std::future::pending().await,
            some => drop(select_all(some).await),
        }
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
