//! Knowing that nothing but the journal can wake a future.

use std::{
    cell::RefCell,
    pin::Pin,
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use crate::journal::lock;

/// Polls a future with a waker of its own, and counts who keeps it.
///
/// A source that a future waits for keeps its waker: a timer, a socket, a channel. If only the
/// journal and questions to it keep the waker, only an answer can wake the future. So a replay that
/// differs is detected at once, without a timeout.
pub(crate) struct Alone {
    waker: Mutex<Waker>,
    is_woken: AtomicBool,
}

impl Default for Alone {
    fn default() -> Self {
        Self { waker: Mutex::new(Waker::noop().clone()), is_woken: AtomicBool::new(false) }
    }
}

impl Wake for Alone {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Relaxed);
        lock(&self.waker).wake_by_ref();
    }
}

thread_local! {
    /// The waker of the future that is being polled, and who of its keepers is known.
    static POLLED: RefCell<(*const (), Vec<u64>)> = const { RefCell::new((ptr::null(), Vec::new())) };
}

/// Polls a future. Returns whether it waits for known sources only.
pub(crate) fn poll_alone<F: Future>(
    alone: &Arc<Alone>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> (Poll<F::Output>, bool) {
    lock(&alone.waker).clone_from(cx.waker());
    alone.is_woken.store(false, Ordering::Relaxed);
    let waker = Waker::from(Arc::clone(alone));
    let before = POLLED.replace((waker.data(), Vec::new()));
    let polled = future.poll(&mut Context::from_waker(&waker));
    let (_, known) = POLLED.replace(before);
    drop(waker);
    // What woke itself is polled again.
    let is_alone = polled.is_pending()
        && !alone.is_woken.load(Ordering::Relaxed)
        && Arc::strong_count(alone) - 1 == known.len();
    (polled, is_alone)
}

/// Something that keeps wakers and wakes them only when the journal answers, until it is dropped.
pub(crate) struct Keeper(u64);

impl Keeper {
    /// The journal itself, for tasks that ask nothing.
    pub(crate) const JOURNAL: u64 = 0;

    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(Keeper::JOURNAL);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn id(&self) -> u64 {
        self.0
    }

    /// It keeps this waker.
    pub(crate) fn keep(&self, waker: &Waker) {
        keeps(waker, self.0);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        POLLED.with_borrow_mut(|(_, known)| known.retain(|known| *known != self.0));
    }
}

/// The keeper of this number keeps this waker, if that is the one that is polled with.
pub(crate) fn keeps(waker: &Waker, keeper: u64) {
    POLLED.with_borrow_mut(|(polled, known)| {
        if *polled == waker.data() && !known.contains(&keeper) {
            known.push(keeper);
        }
    });
}
