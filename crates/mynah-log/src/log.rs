//! Storage for records.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use mynah_data::{Result, RunId};

use crate::{
    AnswerPart, Changes, Hash, Head, InboxMessage, Limits, Queue, Record, RunFilter, RunPage,
    RunSummary, merkle,
};

/// How long the id of a run may be, in bytes. It has at least one.
pub const MAX_RUN_ID: usize = 255;

/// A future that can be sent to another thread.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a log gives, in time.
pub type LogFuture<'a, T> = BoxFuture<'a, Result<T>>;

/// Storage for records. One trait, several backends, one [suite](crate::conformance) over all of
/// them.
///
/// The records of a run form a chain. An append names the head that it expects, and is refused if
/// another writer was faster, if the run has its seal, or if the writer's lease was taken over. A
/// batch is stored whole or not at all. A run that waits or has ended has no holder. When the
/// future of an append is ready, the records are as safe as the log makes them. A dropped append
/// may or may not have taken effect. Appends and leases take effect in the order in which their
/// futures were first polled.
///
/// An append is idempotent: if the run ends with the last record of the batch, it succeeds and changes nothing. So a writer that
/// did not get an answer appends the same batch again. An error with the reason `unavailable` means that this is worth an
/// attempt; any other is final.
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_log as log}; }
/// use mynah::Thread;
/// use mynah::log::{Append, Chain, Extent, Fact, Log, MemoryLog};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// let log = MemoryLog::new();
/// let mut chain = Chain::new("run-1");
/// let fact = Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
/// let first = chain.append(0, [7; 16], &fact)?;
/// let head = log.append(Append::new("run-1", None, vec![first.clone()])).await?;
/// assert_eq!(Some(head), chain.head());
/// assert_eq!(log.read("run-1", 1, 100).await?, [first]);
/// # Ok(()) }
/// ```
pub trait Log: Send + Sync + 'static {
    /// Appends records to a run, and gives its new head. Records that are there already are not appended twice.
    ///
    /// Records of the [maintenance run](crate::MAINTENANCE) are tombstones: with each of them the
    /// log removes what it names, in the same commit. The named data must exist as described. Its
    /// bytes may stay in the log's files for a while; see [`wipe`](Self::wipe).
    fn append(&self, batch: Append) -> LogFuture<'_, Head>;

    /// The records of a run from a place on, in order, at most this many. Fewer do not mean that
    /// there are no more, as large records come in smaller portions: none does.
    fn read(&self, run: &str, from: u64, limit: usize) -> LogFuture<'_, Vec<Record>>;

    /// Where a run's chain ends; none if there is no such run.
    fn head(&self, run: &str) -> LogFuture<'_, Option<Head>>;

    /// Waits until a run has records beyond a place, from any writer. For a sealed run without
    /// further records it returns an error at once.
    fn wait(&self, run: &str, beyond: u64) -> LogFuture<'_, ()> {
        // No answer has so many events.
        let records = self.parts(run, beyond, u64::MAX);
        Box::pin(async move { records.await.map(drop) })
    }

    /// The index entry of a run; none if there is no such run.
    fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>>;

    /// Runs from the newest on, from an index: no run is read. The maintenance run is not among them.
    fn runs(&self, filter: RunFilter) -> LogFuture<'_, RunPage>;

    /// The leaves of the log's own tree, in the order in which they came, from a place (from 0) on,
    /// at most this many: the seal of each run that has one, and each tombstone.
    fn seals(&self, from: u64, limit: usize) -> LogFuture<'_, Vec<SealedRun>>;

    /// Checks what only the log itself can see: that its storage is sound, that everything in it
    /// belongs to a run, and that the ids it does not reuse are those of removed runs.
    fn check(&self) -> LogFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Checks that this process has the rights to begin, continue and claim runs. Nothing is written, so a full disk is not noticed.
    fn check_writable(&self) -> LogFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Erases the bytes of removed data from the log's files, and waits a moment for concurrent
    /// readers of the old data. It fails if they continue to read; then the next writer erases
    /// them.
    fn wipe(&self) -> LogFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Takes the right to append to a run that no living owner holds, or renews it. The call is also a [`beat`](Self::beat) of the
    /// owner. An owner that asks again gets the same lease, so a name must not be shared.
    ///
    /// An owner whose last beat is older than its term by the log's time has no right to the run any more. Where owners may be on
    /// several machines, or the clock may be set, use [`take`](Self::take) for a run that another holds.
    fn lease(&self, run: &str, owner: &str, term: Duration) -> LogFuture<'_, Lease>;

    /// Takes a run from an owner that has shown no sign of life. The time of day does not count.
    ///
    /// `seen` is the [`held_until`](RunSummary::held_until) that the caller saw before it waited for a beat. If it has
    /// changed, the owner lives, and the error is `leased`. Each beat changes it. A run without an owner is given to the
    /// caller in any case.
    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease>;

    /// Keeps all leases of an owner for this long from now on, by the log's time.
    ///
    /// An owner's name may have two parts, `PROCESS/HOLDER`. The beat is the process's: it keeps the leases of all its holders, so
    /// that a process writes one row however many runs it has. A name without a slash is a process of its own.
    fn beat(&self, owner: &str, term: Duration) -> LogFuture<'_, ()>;

    /// Gives the right to append back. Nothing happens if it was lost already.
    ///
    /// It needs no runtime and does not block, so it can be called in `drop`. It takes effect
    /// before any later operation on this log. An unavailable log releases the run later.
    fn release(&self, lease: &Lease);

    /// Takes the right to append to runs of these [queues](Queue) that can continue and that no
    /// living owner holds, at most this many.
    ///
    /// A run can continue if messages wait in its [`inbox`](Self::inbox), if the time of its [`wake_at`](Append::wake_at) has come, or,
    /// without such a time, if it is neither suspended nor ended. The greatest priority comes first, then the oldest run. Limits of
    /// [concurrency keys](Queue::concurrency) are kept. Whether an owner lives is judged by the log's time, as by
    /// [`lease`](Self::lease).
    ///
    /// An owner also gets the runs that it has, with new tokens. So a caller that did not get an answer claims again with the same
    /// name, and one that has runs to perform takes another name for the next claim. A claim that is dropped gives its runs back.
    fn claim(
        &self,
        owner: &str,
        term: Duration,
        queues: &[&str],
        limit: usize,
    ) -> LogFuture<'_, Vec<Lease>>;

    /// Puts a message into the inbox of a run, and returns whether it is new: one with an id that the run got before is dropped, even
    /// if that was consumed since.
    ///
    /// # Errors
    /// `sealed` if the run has ended, `run_not_found` if there is none.
    fn deliver(&self, run: &str, id: &str, payload: Vec<u8>) -> LogFuture<'_, bool>;

    /// The messages that wait for a run in the order of their arrival, at most this many.
    /// [`Append::consume`] removes them.
    fn inbox(&self, run: &str, limit: usize) -> LogFuture<'_, Vec<InboxMessage>>;

    /// Whether a run ever got a message with this id.
    fn was_delivered(&self, run: &str, id: &str) -> LogFuture<'_, bool>;

    /// Keeps a part of the answer in flight of a run, relaxed and outside the chain, for readers in other processes.
    ///
    /// It is kept if the lease is the run's and the part follows the run's last record; otherwise nothing happens, because it came too
    /// late. A part with the same first event replaces the one before. The next append to the run removes all of them in its commit.
    fn keep_part(&self, lease: &Lease, part: AnswerPart) -> LogFuture<'_, ()>;

    /// Waits until a run has records beyond a place, or parts of the answer that follows it with events from `first` on. Returns the
    /// parts in order, or none if there are records. A run that has its seal at that place is not waited for: it gives an error.
    fn parts(&self, run: &str, seq: u64, first: u64) -> LogFuture<'_, Vec<AnswerPart>>;

    /// The runs that got records or messages after a cursor, about this many, and the next cursor.
    /// Without a cursor, what comes from now on is meant, and no run is returned. A run may be
    /// returned although nothing changed since; none is left out, unless [`Changes::missed`] says so: a
    /// log need not remember what changed more than 23 hours ago.
    fn changes(&self, cursor: Option<&str>, limit: usize) -> LogFuture<'_, Changes>;

    /// The largest record and batch that this log takes.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Equal for handles of the same log in this process: leases that are taken through them share
    /// one [`beat`](Self::beat). By default a log equals only itself.
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }
}

/// Writes the methods of a [`Log`] that leaves them to another log: all but `append`, or all but those that are named.
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_log as log}; }
/// use mynah::{Error, LogReason};
/// use mynah::log::{Append, Head, Log, LogFuture, MemoryLog, forward_log};
///
/// /// A log that is full.
/// struct Full(MemoryLog);
///
/// impl Log for Full {
///     fn append(&self, _: Append) -> LogFuture<'_, Head> {
///         Box::pin(async { Err(Error::log(LogReason::Unavailable)) })
///     }
///
///     forward_log!(self => self.0);
/// }
///
/// /// A log without files to erase.
/// struct Unchecked(MemoryLog);
///
/// impl Log for Unchecked {
///     fn check(&self) -> LogFuture<'_, ()> {
///         Box::pin(async { Ok(()) })
///     }
///
///     fn wipe(&self) -> LogFuture<'_, ()> {
///         Box::pin(async { Ok(()) })
///     }
///
///     forward_log!(self => self.0, except check, wipe);
/// }
/// ```
#[macro_export]
macro_rules! forward_log {
    ($self:ident => $log:expr) => {
        $crate::forward_log!($self => $log, except append);
    };
    ($self:ident => $log:expr, except $($own:ident),*) => {
        $crate::forward_log! { @each $self, $log, [$($own)*]
            append(batch: $crate::Append) -> $crate::Head;
            read(run: &str, from: u64, limit: usize) -> Vec<$crate::Record>;
            head(run: &str) -> Option<$crate::Head>;
            wait(run: &str, beyond: u64) -> ();
            run(run: &str) -> Option<$crate::RunSummary>;
            runs(filter: $crate::RunFilter) -> $crate::RunPage;
            seals(from: u64, limit: usize) -> Vec<$crate::SealedRun>;
            check() -> ();
            check_writable() -> ();
            wipe() -> ();
            lease(run: &str, owner: &str, term: ::std::time::Duration) -> $crate::Lease;
            take(run: &str, owner: &str, term: ::std::time::Duration, seen: Option<i64>) -> $crate::Lease;
            beat(owner: &str, term: ::std::time::Duration) -> ();
            claim(owner: &str, term: ::std::time::Duration, queues: &[&str], limit: usize) -> Vec<$crate::Lease>;
            deliver(run: &str, id: &str, payload: Vec<u8>) -> bool;
            inbox(run: &str, limit: usize) -> Vec<$crate::InboxMessage>;
            was_delivered(run: &str, id: &str) -> bool;
            keep_part(lease: &$crate::Lease, part: $crate::AnswerPart) -> ();
            parts(run: &str, seq: u64, first: u64) -> Vec<$crate::AnswerPart>;
            changes(cursor: Option<&str>, limit: usize) -> $crate::Changes;
        }
        $crate::forward_log! { @ release [$($own)*]
            fn release(&$self, lease: &$crate::Lease) {
                $crate::Log::release(&$log, lease);
            }
        }
        $crate::forward_log! { @ limits [$($own)*]
            fn limits(&$self) -> $crate::Limits {
                $crate::Log::limits(&$log)
            }
        }
    };
    (@each $self:ident, $log:expr, $own:tt $($name:ident($($given:ident: $type:ty),*) -> $gives:ty;)*) => {
        $($crate::forward_log! { @ $name $own
            fn $name(&$self $(, $given: $type)*) -> $crate::LogFuture<'_, $gives> {
                $crate::Log::$name(&$log $(, $given)*)
            }
        })*
    };
    // A name that is already among its own is not written.
    (@ append [append $($own:ident)*] $($written:tt)*) => {};
    (@ read [read $($own:ident)*] $($written:tt)*) => {};
    (@ head [head $($own:ident)*] $($written:tt)*) => {};
    (@ wait [wait $($own:ident)*] $($written:tt)*) => {};
    (@ run [run $($own:ident)*] $($written:tt)*) => {};
    (@ runs [runs $($own:ident)*] $($written:tt)*) => {};
    (@ seals [seals $($own:ident)*] $($written:tt)*) => {};
    (@ check [check $($own:ident)*] $($written:tt)*) => {};
    (@ check_writable [check_writable $($own:ident)*] $($written:tt)*) => {};
    (@ wipe [wipe $($own:ident)*] $($written:tt)*) => {};
    (@ lease [lease $($own:ident)*] $($written:tt)*) => {};
    (@ take [take $($own:ident)*] $($written:tt)*) => {};
    (@ release [release $($own:ident)*] $($written:tt)*) => {};
    (@ beat [beat $($own:ident)*] $($written:tt)*) => {};
    (@ claim [claim $($own:ident)*] $($written:tt)*) => {};
    (@ deliver [deliver $($own:ident)*] $($written:tt)*) => {};
    (@ inbox [inbox $($own:ident)*] $($written:tt)*) => {};
    (@ was_delivered [was_delivered $($own:ident)*] $($written:tt)*) => {};
    (@ keep_part [keep_part $($own:ident)*] $($written:tt)*) => {};
    (@ parts [parts $($own:ident)*] $($written:tt)*) => {};
    (@ changes [changes $($own:ident)*] $($written:tt)*) => {};
    (@ limits [limits $($own:ident)*] $($written:tt)*) => {};
    (@ $name:ident [$other:ident $($own:ident)*] $($written:tt)*) => {
        $crate::forward_log! { @ $name [$($own)*] $($written)* }
    };
    (@ $name:ident [] $($written:tt)*) => { $($written)* };
}

impl<L: Log + ?Sized> Log for Arc<L> {
    fn identity(&self) -> usize {
        (**self).identity()
    }

    forward_log!(self => **self, except);
}

/// Records to be kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Append {
    /// The run.
    pub run_id: RunId,
    /// Where the writer thinks that the chain ends; none for a new run.
    pub expected: Option<Head>,
    /// What follows.
    pub records: Vec<Record>,
    /// The token of the writer's lease, where it has one.
    pub fence: Option<u64>,
    /// Who holds the run from this append on: a new run, which gets the token 1, or a run whose lease the writer has. It is also a
    /// [`beat`](Log::beat) of the owner.
    pub hold: Option<Hold>,
    /// The requested durability; none leaves it to the log.
    pub durability: Option<Durability>,
    /// The queue of a run that has none yet, if workers should claim it.
    pub queue: Option<Queue>,
    /// When a run that is parked with this append can continue; see [`wake_at`](Self::wake_at).
    pub wake_at: Option<i64>,
    /// The messages that are removed with this append; see [`consume`](Self::consume).
    pub consumed: Vec<String>,
    /// Whether nothing waits for this append; see [`deferrable`](Self::deferrable).
    pub deferrable: bool,
}

/// Who holds a run, and for how long from the append on, by the log's time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// A name that no other owner has.
    pub owner: String,
    /// How long it is held if it is not renewed.
    pub term: Duration,
}

impl Append {
    /// These records, after that head.
    pub fn new(run_id: impl Into<RunId>, expected: Option<Head>, records: Vec<Record>) -> Self {
        Self {
            run_id: run_id.into(),
            expected,
            records,
            fence: None,
            hold: None,
            durability: None,
            queue: None,
            wake_at: None,
            consumed: Vec::new(),
            deferrable: false,
        }
    }

    /// The same, by the holder of a lease.
    pub fn fenced(mut self, lease: &Lease) -> Self {
        self.fence = Some(lease.token);
        self
    }

    mynah_data::setters! { self => self;
        /// The same, and as safe as this. A log may make them safer.
        durability(durability: impl Into<Option<Durability>>) = durability.into();

        /// The same, and workers may [claim](Log::claim) the run from this queue. A run that has a queue keeps it.
        queue(queue: impl Into<Option<Queue>>) = queue.into();

        /// The same, and the run is parked: it has no owner afterwards, and it can continue at this time, in nanoseconds since 1970, or as
        /// soon as it gets a message. The next append ends that.
        wake_at(time: impl Into<Option<i64>>) = time.into();

        /// The same, for which nothing waits yet. A log may keep it back for as long as a commit takes, so that it shares the commit of
        /// what comes next.
        deferrable(deferrable: bool) = deferrable;
    }

    /// The same, and this owner holds the run for this long.
    pub fn held(mut self, owner: impl Into<String>, term: Duration) -> Self {
        self.hold = Some(Hold { owner: owner.into(), term });
        self
    }

    /// The same, and the messages with these ids are removed from the run's inbox in the same commit. One that is not there changes
    /// nothing.
    pub fn consume(mut self, ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.consumed.extend(ids.into_iter().map(Into::into));
        self
    }
}

/// The right to append to a run, while its owner [beats](Log::beat). A new owner gets a higher
/// token, and the log refuses lower ones. Until a new owner takes it, a lease stays valid beyond
/// its term.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The run.
    pub run_id: RunId,
    /// Who holds it.
    pub owner: String,
    /// Grows each time that the run changes hands.
    pub token: u64,
    /// When its term is over by the log's time, in nanoseconds since 1970.
    pub until: i64,
    /// Whether another owner had the run until now: its process died, or did not beat in time.
    pub taken_over: bool,
}

impl Lease {
    /// A lease of a run that had no owner, as a backend gives it.
    pub fn new(run_id: impl Into<RunId>, owner: impl Into<String>, token: u64, until: i64) -> Self {
        Self { run_id: run_id.into(), owner: owner.into(), token, until, taken_over: false }
    }

    mynah_data::setters! { self => self;
        /// The same, of a run that another owner may have had until now.
        taken_over(taken_over: bool) = taken_over;
    }
}

/// How safe records are when an append is done: the safer, the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Durability {
    /// With the operating system: they survive the end of the process, and the last of them may be
    /// lost in a power cut. The log stays whole either way.
    Relaxed,
    /// On the disk: they survive a power cut.
    #[default]
    Full,
}

/// A run that has its seal, or a tombstone: a leaf of the log's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealedRun {
    /// The run; the [maintenance run](crate::MAINTENANCE), if it is a tombstone.
    pub run_id: RunId,
    /// The hash of its seal, or of the tombstone's record.
    pub fingerprint: Hash,
}

impl SealedRun {
    /// This run, with that fingerprint.
    pub fn new(run_id: impl Into<RunId>, fingerprint: Hash) -> Self {
        Self { run_id: run_id.into(), fingerprint }
    }

    /// The leaf that stands for the run in the log's tree.
    pub fn leaf(&self) -> Hash {
        merkle::leaf(&self.fingerprint.0)
    }
}
