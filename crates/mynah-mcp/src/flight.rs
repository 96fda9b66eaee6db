//! The calls in flight, and which of them a question of the server belongs to.
//!
//! Over HTTP a question arrives on the stream of its call. On standard input and output the older
//! protocol does not name the call. A question then waits until one call is left, and calls that
//! begin meanwhile wait for it. If all calls wait for an answer, each is given up and made again alone.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{
        CancelledNotification, CancelledNotificationParam, ElicitRequestParams, ElicitResult,
        ProgressNotificationParam, ProgressToken, RequestId,
    },
    service::{InboundStreamOrigin, RequestHandle},
};
use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc, oneshot};

/// What a server says about a call in flight.
pub(crate) enum Note {
    Progress(ProgressNotificationParam),
    Elicit(ElicitRequestParams, oneshot::Sender<ElicitResult>),
    /// It asks, and so do others. It must be made again while no other call is in flight.
    Again,
}

/// The calls in flight.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Calls share it. A call that must be alone holds it exclusively.
    room: RwLock<()>,
    /// Held while a call is sent and registered: the server may ask before the sender returns.
    sending: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    flights: HashMap<ProgressToken, (RequestId, mpsc::Sender<Note>)>,
    /// Questions that wait until their call is known.
    held: usize,
    /// How many calls were given up. One of them may have asked a held question.
    given_up: u64,
}

impl Calls {
    /// Sends a call and registers it.
    pub(crate) async fn begin(
        &self,
        alone: bool,
        peer: &Peer<RoleClient>,
        send: impl Future<Output = Result<RequestHandle<RoleClient>, ServiceError>>,
    ) -> Result<(RequestHandle<RoleClient>, mpsc::Receiver<Note>, Flight<'_>), ServiceError> {
        let room = match alone {
            true => Room::Alone(self.room.write().await),
            false => Room::Shared(self.room.read().await),
        };
        let _sending = loop {
            let changed = self.changed.notified();
            let sending = self.sending.lock().await;
            if !self.is_holding() {
                break sending;
            }
            drop(sending);
            changed.await;
        };
        let handle = send.await?;
        let (sender, notes) = mpsc::channel(16);
        let (token, id) = (handle.progress_token.clone(), handle.id.clone());
        self.lock().flights.insert(token.clone(), (id.clone(), sender));
        let cancel = Some((peer.clone(), id));
        Ok((handle, notes, Flight { calls: self, token, cancel, _room: room }))
    }

    /// The call that a progress notification is about.
    pub(crate) async fn of_token(&self, token: &ProgressToken) -> Option<mpsc::Sender<Note>> {
        drop(self.sending.lock().await);
        self.lock().flights.get(token).map(|(_, notes)| notes.clone())
    }

    /// The call that asks a question; none if it cannot be known.
    pub(crate) async fn asking(
        &self,
        origin: Option<&InboundStreamOrigin>,
    ) -> Option<mpsc::Sender<Note>> {
        drop(self.sending.lock().await);
        if let Some(InboundStreamOrigin::OutboundRequest(asking)) = origin {
            let state = self.lock();
            let found = state.flights.values().find(|(id, _)| id == asking);
            return found.map(|(_, notes)| notes.clone());
        }
        let held = Held::new(self);
        loop {
            let changed = self.changed.notified();
            let (questions, mut flights) = {
                let state = self.lock();
                if state.given_up != held.given_up {
                    return None;
                }
                let notes = |(_, notes): &(RequestId, mpsc::Sender<Note>)| notes.clone();
                (state.held, state.flights.values().map(notes).collect::<Vec<_>>())
            };
            match flights.len() {
                0 | 1 => return flights.pop(),
                calls if questions < calls => changed.await,
                _ => {
                    for asking in flights {
                        // This fails only if the call has just ended.
                        let _ = asking.send(Note::Again).await;
                    }
                    return None;
                }
            }
        }
    }

    /// Whether a question waits until its call is known.
    pub(crate) fn is_holding(&self) -> bool {
        self.lock().held > 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that waits until its call is known.
struct Held<'a> {
    calls: &'a Calls,
    given_up: u64,
}

impl<'a> Held<'a> {
    fn new(calls: &'a Calls) -> Self {
        let mut state = calls.lock();
        state.held += 1;
        let given_up = state.given_up;
        drop(state);
        calls.changed.notify_waiters();
        Self { calls, given_up }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.calls.lock().held -= 1;
        self.calls.changed.notify_waiters();
    }
}

#[expect(dead_code, reason = "the guards are held, not read")]
enum Room<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
}

/// A call in flight. Dropping it cancels the call at the server, unless it was answered.
pub(crate) struct Flight<'a> {
    calls: &'a Calls,
    token: ProgressToken,
    cancel: Option<(Peer<RoleClient>, RequestId)>,
    _room: Room<'a>,
}

impl Flight<'_> {
    /// The server answered: there is nothing to cancel.
    pub(crate) fn answered(&mut self) {
        self.cancel = None;
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.calls.lock();
        state.flights.remove(&self.token);
        state.given_up += u64::from(self.cancel.is_some());
        drop(state);
        self.calls.changed.notify_waiters();
        let Some((peer, id)) = self.cancel.take() else { return };
        let reason = "the caller dropped the call".to_owned();
        let params = CancelledNotificationParam::new(Some(id), Some(reason));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = peer.send_notification(CancelledNotification::new(params).into()).await;
            });
        }
    }
}
