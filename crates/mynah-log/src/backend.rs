//! What every backend shares: checking a batch, the rules for leases, tombstones and summaries, and waiting for records.
//!
//! A backend stores records, an [`IndexEntry`] for each run, and the beats of owners. It makes no
//! decisions: it checks a batch with [`Checked::new`], changes an entry by its methods, and stores
//! the result in one commit. The [suite](crate::conformance) checks that.

pub use crate::{
    clock::{Clock, nanos},
    entry::{
        Checked, Holder, IndexEntry, absent, beat, check_id, check_message, ended, needed,
        not_a_cursor, not_found, process, pruned, sealed, strange,
    },
    removal::goes_on_from,
    runs::Place,
    waiters::{Waiter, Waiters},
};
