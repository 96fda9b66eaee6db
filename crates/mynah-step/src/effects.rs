//! Time, chance and side effects, as a run keeps them.

use std::{
    cell::Cell,
    fmt,
    future::poll_fn,
    pin::pin,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use mynah_data::{Error, Result, ToolCall, ToolReason, excess};
use mynah_log::{Effect, Fact, Inside};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    World,
    desk::{Asked, Desk, Line, Place, Want},
};

/// What becomes of a side effect that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SideEffectErrors {
    /// The failure is recorded; a replay gives the same error without doing anything.
    #[default]
    Recorded,
    /// Nothing is recorded; a replay tries again.
    Unrecorded,
}

/// Where time, chance and side effects enter one place of a run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Effects {
    pub(crate) world: Arc<dyn World>,
    pub(crate) errors: SideEffectErrors,
    /// Where facts go; nowhere in a run that nobody keeps.
    pub(crate) desk: Option<Arc<Desk>>,
    /// The call that they are part of; none where the loop itself acts.
    pub(crate) call: Option<Arc<ToolCall>>,
    /// The try of that call, from 1.
    pub(crate) attempt: u32,
    /// What was asked for at this place.
    pub(crate) line: Arc<Line>,
    /// How long it was waited for there.
    pub(crate) waits: Arc<Waits>,
    /// Whether the records are asked first: in a run that is performed again, or goes on.
    pub(crate) replaying: bool,
}

/// How long a try waited for its turn, in whichever of its branches and tasks.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Waited>);

#[derive(Default)]
struct Waited {
    /// How many wait now, and since when the first of them does.
    now: usize,
    since: Option<Instant>,
    over: Duration,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Waited> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that waits, until it is dropped.
struct Waiting<'w>(&'w Waits);

impl<'w> Waiting<'w> {
    fn begin(waits: &'w Waits) -> Self {
        let mut waited = waits.lock();
        waited.now += 1;
        waited.since.get_or_insert_with(Instant::now);
        Self(waits)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waited = self.0.lock();
        waited.now -= 1;
        if waited.now == 0 {
            let last = waited.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            waited.over += last;
        }
    }
}

impl Effects {
    /// In a run that nobody keeps.
    pub(crate) fn unkept(world: Arc<dyn World>) -> Self {
        let errors = SideEffectErrors::default();
        let (line, waits) = (Arc::default(), Arc::default());
        Self { world, errors, desk: None, call: None, attempt: 1, line, waits, replaying: false }
    }

    /// Goes over to a try, where nothing was asked for yet.
    pub(crate) fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        (self.line, self.waits) = (Arc::default(), Arc::default());
    }

    /// The try begins in which this is. It is over when this is dropped.
    pub(crate) fn under_way(&self) -> UnderWay<'_> {
        if let (Some(desk), Some(call)) = (&self.desk, &self.call) {
            desk.begin(call, self.attempt);
        }
        UnderWay(self)
    }

    /// Whether the attempt waits for nothing but its turn.
    pub(crate) fn is_alone(&self, is_alone: bool) {
        if let (true, Some(desk), Some(call)) = (self.replaying, &self.desk, &self.call) {
            desk.set_alone(&call.id, is_alone);
        }
    }

    /// How long the try waited for its turn in a run that is performed again.
    pub(crate) fn waited(&self) -> Duration {
        let waits = self.waits.lock();
        waits.over + waits.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Asks the records, or the log.
    async fn ask(&self, desk: &Desk, want: Want) -> Result<Option<Fact>> {
        let _waiting = self.replaying.then(|| Waiting::begin(&self.waits));
        desk.ask(self.place(), want).await
    }

    fn place(&self) -> Place {
        let call_id = self.call.as_ref()?.id.clone();
        Some(Inside { call_id, attempt: self.attempt })
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.desk.is_some()
    }

    pub(crate) async fn now(&self) -> Result<SystemTime> {
        let nanos = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        };
        let world = &self.world;
        let nanos = self.perform("now", async { Ok(nanos(world.now())) }).await?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))
    }

    pub(crate) async fn random(&self) -> Result<u64> {
        self.perform("random", async { Ok(self.world.random()) }).await
    }

    pub(crate) async fn side_effect<T, E>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
    {
        self.perform(name, async { effect.await.map_err(|error| error.to_string()) }).await
    }

    async fn perform<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, String>>,
    ) -> Result<T> {
        self.refuse_nested()?;
        let asked = self.line.ask(name);
        if self.replaying
            && let Some(recorded) = self.recall(&asked).await?
        {
            let Fact::SideEffect { effect, .. } = recorded else {
                return Err(failed(name, "what is recorded is not understood"));
            };
            return match effect {
                Effect::Failed(why) => Err(failed(name, &why)),
                Effect::Done(value) => T::deserialize(&value)
                    .map_err(|why| failed(name, &format!("what is recorded does not fit: {why}"))),
            };
        }
        let mut done = self.do_it(effect).await;
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
                    self.keep(asked, Effect::Done(kept)).await?;
                }
                Ok(value)
            }
            Err(why) => {
                if self.errors == SideEffectErrors::Recorded {
                    self.keep(asked, Effect::Failed(why.clone())).await?;
                }
                Err(failed(name, &why))
            }
        }
    }

    /// Does what a side effect does, and is known to do it.
    async fn do_it<T>(&self, effect: impl Future<Output = T>) -> T {
        let mut effect = pin!(effect);
        poll_fn(move |cx| {
            let _doing = Doing::begin(&self.line);
            effect.as_mut().poll(cx)
        })
        .await
    }

    /// Refuses what is asked for inside a side effect of the same place: a replay has the value of that, and does nothing inside it.
    fn refuse_nested(&self) -> Result<()> {
        if DOING.get() != Arc::as_ptr(&self.line) {
            return Ok(());
        }
        Err(Error::invalid_option("side_effect", "nested").with_message(
            "validation failed: side_effect: something of the run is asked for inside a side effect, which a replay does not do",
        ))
    }

    async fn recall(&self, asked: &Asked) -> Result<Option<Fact>> {
        let Some(desk) = &self.desk else { return Ok(None) };
        let required = self.errors == SideEffectErrors::Recorded;
        self.ask(desk, Want::Recall { asked: asked.clone(), required }).await
    }

    async fn keep(&self, asked: Asked, effect: Effect) -> Result<()> {
        let Some(desk) = &self.desk else { return Ok(()) };
        let (inside, name) = (self.place(), asked.name.to_string());
        let fact = Fact::SideEffect { inside, name, ahead: 0, effect };
        let want = Want::Commit { fact, asked: Some(asked), durable: false };
        self.ask(desk, want).await.map(drop)
    }

    /// Commits a fact that was made here; waits until it is safe, if it must be.
    pub(crate) async fn commit(&self, fact: Fact, durable: bool) -> Result<()> {
        let Some(desk) = &self.desk else { return Ok(()) };
        self.refuse_nested()?;
        self.ask(desk, Want::Commit { fact, asked: None, durable }).await.map(drop)
    }
}

thread_local! {
    /// The place of the side effect that is done on this thread at the moment.
    static DOING: Cell<*const Line> = const { Cell::new(ptr::null()) };
}

/// A side effect that is being done; before it another was, or none.
struct Doing(*const Line);

impl Doing {
    fn begin(line: &Arc<Line>) -> Self {
        Self(DOING.replace(Arc::as_ptr(line)))
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        DOING.set(self.0);
    }
}

/// A try of a call that is under way.
pub(crate) struct UnderWay<'a>(&'a Effects);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let (Some(desk), Some(call)) = (&self.0.desk, &self.0.call) {
            desk.end(call, self.0.attempt);
        }
    }
}

/// A side effect that failed; the same live and from its record.
fn failed(name: &str, why: &str) -> Error {
    Error::tool(ToolReason::Failed).with_message(why).with("side_effect", json!(name))
}

/// What is recorded of a value; why it cannot be.
fn recordable(value: &impl Serialize) -> std::result::Result<Value, String> {
    let value =
        serde_json::to_value(value).map_err(|why| format!("its value has no JSON: {why}"))?;
    match excess(&value) {
        Some(excess) => Err(format!("its value is {excess}")),
        None => Ok(value),
    }
}
