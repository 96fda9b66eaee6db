//! What happened in a run, as data, and where it is stored.
//!
//! A [`Fact`] is one event of a run, and the only input of its state. The facts of a run, in order,
//! are all that it needs to resume. A [`Record`] is a fact as bytes (CBOR), chained to the
//! record before it by hash. The last record of an ended run, its [`Seal`], holds the root of a
//! [`merkle`] tree over all of them. [`verify`] checks all of it without trusting the log's keeper.
//!
//! A [`Log`] keeps records. [`Prune`] and [`Redact`] take some away again, so that what is left still verifies; a [`bundle`] is
//! one run as a file.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod about;
mod audit;
pub mod backend;
pub mod bundle;
#[doc(hidden)]
pub mod cbor;
mod clock;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
mod cuts;
mod end;
mod entry;
mod fact;
mod hash;
mod kind;
mod log;
mod memory;
pub mod merkle;
mod queue;
mod record;
mod record_summary;
mod removal;
mod runs;
mod sub_runs;
mod verify;
mod view;
mod waiters;

pub use about::{
    About, BEHAVIOUR, Continues, LeftOut, Parent, Previous, RECORDED_TOOLS, SessionLink,
};
pub use audit::{Auditor, verify_run, verify_seals, walk};
pub use cuts::Cut;
#[doc(hidden)]
pub use cuts::{CutRecorder, expand};
pub use end::End;
#[doc(hidden)]
pub use end::UNCERTAIN_CALLS;
pub use fact::{
    DirectCall, Effect, Extent, Fact, Inside, Interruption, OnUncertain, Plan, Resolution, SUB_RUN,
    SUB_RUN_STARTED, SUMMARY_STARTED, Seal, Totals,
};
pub use hash::Hash;
pub use kind::Kind;
pub use log::{Append, Durability, Hold, Lease, Log, LogFuture, MAX_RUN_ID, SealedRun};
pub use memory::MemoryLog;
pub use queue::{AnswerPart, Changes, InboxMessage, Limits, Queue, RunChange};
#[doc(hidden)]
pub use record::payload_of;
pub use record::{Body, Chain, Envelope, FORMAT, Head, MAX_PAYLOAD, Record};
pub use removal::{
    MAINTENANCE, Prune, PruneReport, Pruned, Redact, Redactable, Removals, Removed, Stripped,
    Tombstone, Warrant,
};
pub use runs::{RunFilter, RunPage, RunStatus, RunSummary};
pub use sub_runs::{agents_totals, sub_runs};
pub use verify::{Corrupt, Verifier, VerifyReport, VerifyStatus, verify};
pub use view::{RecordView, parent};
