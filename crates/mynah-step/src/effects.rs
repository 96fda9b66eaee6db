//! Time, chance and side effects, as a run keeps them.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::pin,
    ptr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mynah_data::{Error, MAX_ERROR, Result, StreamReason, ToolCall, ToolReason, excess};
use mynah_log::{Effect, Fact, Inside};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    World,
    journal::{EffectQueue, Journal, Origin, PendingEffect, Query},
    since_1970,
};

/// What becomes of a side effect that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SideEffectErrors {
    /// The failure is recorded; a replay gives the same error without doing anything.
    #[default]
    Recorded,
    /// Nothing is recorded; a replay performs it again.
    Unrecorded,
}

/// Where time, chance and side effects enter one place of a run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Effects {
    pub(crate) world: Arc<dyn World>,
    pub(crate) errors: SideEffectErrors,
    /// Where facts go; none in a run that is not recorded.
    pub(crate) journal: Option<Arc<Journal>>,
    /// The call that they are part of; none where the loop itself acts.
    pub(crate) call: Option<Arc<ToolCall>>,
    /// The attempt of that call, from 1.
    pub(crate) attempt: u32,
    /// What was asked for at this place.
    pub(crate) queue: Arc<EffectQueue>,
    /// Whether the records answer first: in a replayed or resumed run.
    pub(crate) replaying: bool,
}

impl Effects {
    /// In an unrecorded run.
    pub(crate) fn unkept(world: Arc<dyn World>) -> Self {
        let (errors, queue) = (SideEffectErrors::default(), Arc::default());
        Self { world, errors, journal: None, call: None, attempt: 1, queue, replaying: false }
    }

    /// Moves on to the next attempt, if nothing was requested yet.
    pub(crate) fn begin(&mut self, attempt: u32) {
        (self.attempt, self.queue) = (attempt, Arc::default());
    }

    /// Marks the start of an attempt. The attempt ends when this is dropped.
    pub(crate) fn under_way(&self) -> ActiveAttempt<'_> {
        if let (Some(journal), Some(call)) = (&self.journal, &self.call) {
            journal.begin(call, self.attempt, true);
        }
        ActiveAttempt(self)
    }

    /// Whether the attempt waits for nothing but its turn.
    pub(crate) fn is_alone(&self, is_alone: bool) {
        if let (true, Some(journal), Some(call)) = (self.replaying, &self.journal, &self.call) {
            journal.set_alone(&call.id, is_alone);
        }
    }

    /// Since when the attempt has not waited for its turn in a replay; none if it never did.
    pub(crate) fn busy_since(&self) -> Option<Instant> {
        let (true, Some(journal)) = (self.replaying, &self.journal) else { return None };
        journal.busy_since(self.call.as_ref()?)
    }

    fn place(&self) -> Origin {
        let call_id = self.call.as_ref()?.id.clone();
        Some(Inside { call_id, attempt: self.attempt })
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    pub(crate) async fn now(&self) -> Result<SystemTime> {
        let nanos = |time| u64::try_from(since_1970(time).as_nanos()).unwrap_or(u64::MAX);
        let nanos = self.perform("now", async { Ok(nanos(self.world.now())) }).await?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))
    }

    pub(crate) async fn random(&self) -> Result<u64> {
        self.perform("random", async { Ok(self.world.random()) }).await
    }

    /// Does something that depends on the world outside, under a name, or takes its value from its record.
    pub(crate) async fn perform<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, String>>,
    ) -> Result<T> {
        let asked = self.request(name)?;
        let required = self.errors == SideEffectErrors::Recorded;
        if let Some(recorded) = self.recall(&asked, required).await? {
            return Ok(recorded);
        }
        let mut effect = pin!(effect);
        let mut done = poll_fn(|cx| {
            let _doing = ActiveEffect::begin(&self.queue);
            effect.as_mut().poll(cx)
        })
        .await;
        let mut kept = None;
        if self.is_kept() {
            done = done.and_then(|value| {
                T::deserialize(&*kept.insert(recordable(&value)?))
                    .map_err(|why| format!("its value does not come back from its record: {why}"))
            });
        }
        match done {
            Ok(value) => {
                if let Some(kept) = kept {
                    self.keep(&asked, Effect::Done(kept)).await?;
                }
                Ok(value)
            }
            Err(mut why) => {
                if why.len() > MAX_ERROR {
                    why = format!("its error has more than {MAX_ERROR} bytes");
                }
                if required {
                    self.keep(&asked, Effect::Failed(why.clone())).await?;
                }
                Err(failed(name, &why))
            }
        }
    }

    /// Gives a side effect its place among those of its name.
    pub(crate) fn request(&self, name: &str) -> Result<PendingEffect> {
        self.refuse_nested()?;
        Ok(self.queue.push(name))
    }

    /// The recorded value of a side effect; none if it has no record. If it is required, it has one, or its run continues.
    pub(crate) async fn recall<T: DeserializeOwned>(
        &self,
        asked: &PendingEffect,
        required: bool,
    ) -> Result<Option<T>> {
        let (true, Some(journal)) = (self.replaying, &self.journal) else { return Ok(None) };
        let name = &*asked.name;
        let want = Query::Recall { asked: asked.clone(), required };
        match journal.ask(self.place(), want).await? {
            None => Ok(None),
            Some(Fact::SideEffect { effect: Effect::Failed(why), .. }) => Err(failed(name, &why)),
            Some(Fact::SideEffect { effect: Effect::Done(value), .. }) => T::deserialize(&value)
                .map(Some)
                .map_err(|why| failed(name, &format!("what is recorded does not fit: {why}"))),
            Some(Fact::Cancelled { .. }) => Err(Error::stream(StreamReason::Cancelled)),
            Some(_) => Err(failed(name, "what is recorded is not understood")),
        }
    }

    /// Refuses requests inside a side effect of the same place: a replay returns the effect's value
    /// and runs nothing inside it.
    fn refuse_nested(&self) -> Result<()> {
        if DOING.get() != Arc::as_ptr(&self.queue) {
            return Ok(());
        }
        Err(Error::invalid_option("side_effect", "nested").with_message(
            "validation failed: side_effect: something of the run is asked for inside a side effect, which a replay does not do",
        ))
    }

    /// Records the value of a side effect, or how it failed.
    pub(crate) async fn keep(&self, asked: &PendingEffect, effect: Effect) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let (inside, name) = (self.place(), asked.name.to_string());
        let fact = Fact::SideEffect { inside: inside.clone(), name, ahead: 0, effect };
        journal.keep(inside, fact, Some(asked.clone()), false).await
    }

    /// Commits a fact that was made here; waits until it is safe, if it must be.
    pub(crate) async fn commit(&self, fact: Fact, durable: bool) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        self.refuse_nested()?;
        journal.keep(self.place(), fact, None, durable).await
    }
}

thread_local! {
    /// The place of the side effect that is done on this thread at the moment.
    static DOING: Cell<*const EffectQueue> = const { Cell::new(ptr::null()) };
}

/// A side effect that is being done; before it another was, or none.
struct ActiveEffect(*const EffectQueue);

impl ActiveEffect {
    fn begin(queue: &Arc<EffectQueue>) -> Self {
        Self(DOING.replace(Arc::as_ptr(queue)))
    }
}

impl Drop for ActiveEffect {
    fn drop(&mut self) {
        DOING.set(self.0);
    }
}

/// An attempt of a call in progress.
pub(crate) struct ActiveAttempt<'a>(&'a Effects);

impl Drop for ActiveAttempt<'_> {
    fn drop(&mut self) {
        if let (Some(journal), Some(call)) = (&self.0.journal, &self.0.call) {
            journal.end(call, self.0.attempt);
        }
    }
}

/// A side effect that failed; the same live and from its record, which holds the text alone.
fn failed(name: &str, why: &str) -> Error {
    let excess = why.strip_prefix(TOO_LARGE).unwrap_or_default();
    let reason = match excess.starts_with("larger than ") || excess.starts_with("nested deeper ") {
        true => ToolReason::ResultTooLarge,
        false => ToolReason::Failed,
    };
    Error::tool(reason).with_message(why).with("side_effect", json!(name))
}

/// How the text begins of a value that no record could hold.
const TOO_LARGE: &str = "its value is ";

/// What is recorded of a value; why it cannot be.
fn recordable(value: &impl Serialize) -> std::result::Result<Value, String> {
    let value =
        serde_json::to_value(value).map_err(|why| format!("its value has no JSON: {why}"))?;
    excess(&value).map_or(Ok(value), |excess| Err(format!("{TOO_LARGE}{excess}")))
}
