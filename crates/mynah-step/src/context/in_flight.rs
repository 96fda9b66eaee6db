//! What is in flight in a run, and when nothing more begins.

use mynah_data::{Error, Result};
use tokio::sync::watch;

/// What is in flight in a run that may have to wait: its process leaves it only when everything else has its record.
#[derive(Default)]
pub(super) struct InFlight(watch::Sender<State>);

#[derive(Default)]
struct State {
    /// How many effects, calls of tools and models, and facts of the loop.
    count: usize,
    /// Until when branches sleep, in milliseconds since 1970.
    sleeps: Vec<u64>,
    /// Why nothing begins any more.
    closed: Option<Error>,
}

impl State {
    /// Whether nothing happens before a sleep ends.
    fn is_idle_until(&self, until: u64) -> bool {
        self.count == 0 && self.sleeps.iter().all(|other| *other >= until)
    }
}

impl InFlight {
    /// Something begins, and is in flight until the guard is dropped.
    ///
    /// # Errors
    /// Why nothing begins any more.
    pub(super) fn begin(&self) -> Result<Guard<'_>> {
        let mut refused = None;
        self.0.send_if_modified(|state| {
            refused.clone_from(&state.closed);
            state.count += usize::from(refused.is_none());
            false
        });
        match refused {
            None => Ok(Guard { all: self, sleeps_until: None }),
            Some(why) => Err(why),
        }
    }

    /// A branch sleeps until this time, or until the guard is dropped.
    pub(super) fn sleep(&self, until: u64) -> Guard<'_> {
        self.0.send_modify(|state| state.sleeps.push(until));
        Guard { all: self, sleeps_until: Some(until) }
    }

    /// Whether nothing begins any more. What is dropped then was not given up by the loop.
    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().closed.is_some()
    }

    /// Nothing begins from now on, for this reason. What is in flight is recorded.
    pub(super) fn close(&self, why: &Error) {
        self.0.send_modify(|state| _ = state.closed.get_or_insert_with(|| why.clone()));
    }

    /// Waits until nothing happens before a sleep ends that is long enough to leave the run, and lets nothing begin from then on.
    ///
    /// # Errors
    /// Why nothing begins any more, if something else closed the run.
    pub(super) async fn close_for_sleep(
        &self,
        until: u64,
        is_long: impl Fn() -> bool,
        why: &Error,
    ) -> Result<()> {
        let is_over =
            |state: &State| state.closed.is_some() || state.is_idle_until(until) && is_long();
        let mut states = self.0.subscribe();
        loop {
            let closed = match states.wait_for(is_over).await {
                Ok(state) => state.closed.clone(),
                // The sender is this.
                Err(_) => return Ok(()),
            };
            if let Some(closed) = closed {
                return Err(closed);
            }
            let is_closed = self.0.send_if_modified(|state| {
                let closes = state.closed.is_none() && is_over(state);
                if closes {
                    state.closed = Some(why.clone());
                }
                closes
            });
            if is_closed {
                return Ok(());
            }
        }
    }
}

/// Something in flight, until this is dropped.
pub(super) struct Guard<'a> {
    all: &'a InFlight,
    /// The end of a sleep.
    sleeps_until: Option<u64>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.all.0.send_if_modified(|state| match self.sleeps_until {
            None => {
                state.count -= 1;
                state.count == 0
            }
            Some(until) => {
                let place = state.sleeps.iter().position(|other| *other == until);
                place.map(|place| state.sleeps.swap_remove(place)).is_some()
            }
        });
    }
}
