//! What every backend shares: checking a batch, the rules for leases, tombstones and summaries, and waiting for records.
//!
//! A backend stores records, an [`IndexEntry`] for each run, and the beats of owners. It makes no
//! decisions: it checks a batch with [`Checked::new`], changes an entry by its methods, and stores
//! the result in one commit. The [suite](crate::conformance) checks that.

pub use crate::{
    clock::{Clock, nanos},
    entry::{
        Checked, Holder, IndexEntry, beat, check_message_id, check_missing, check_name, ended,
        invalid_cursor, not_found, process, pruned, sealed, still_needed, wrong_tombstone,
    },
    removal::previous_run,
    runs::Place,
    waiters::{Waiter, Waiters},
};
