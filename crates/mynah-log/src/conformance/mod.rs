//! What every log must do: one suite over all backends.
//!
//! A backend passes if [`run`] returns. It panics at the first violation. One that several processes can share passes [`run_shared`] too.
//!
//! ```
//! # mod mynah { pub use mynah_log as log; }
//! use std::sync::Arc;
//! use mynah::log::{Log, MemoryLog, conformance};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! conformance::run(async || Arc::new(MemoryLog::new()) as Arc<dyn Log>).await;
//! # }
//! ```

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test suite says what is wrong by panicking"
)]

mod append;
mod index;
mod lease;
mod parts;
mod queue;
mod removal;
mod sample;
mod tail;
mod turns;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use mynah_data::{Error, ErrorKind, LogReason};

use crate::{Log, log::BoxFuture};

pub use sample::Sample;

/// Longer than the suite takes.
const HOUR: Duration = Duration::from_secs(3_600);

/// A term that is over as soon as it begins.
const OVER: Duration = Duration::ZERO;

/// Runs the whole suite. Each case gets a log of its own, without runs.
///
/// # Panics
/// At the first thing that is not right.
pub async fn run(fresh: impl AsyncFn() -> Arc<dyn Log>) {
    append::records_come_back_as_they_were(&*fresh().await).await;
    append::an_append_names_the_head_that_it_expects(&*fresh().await).await;
    append::a_batch_is_kept_whole_or_not_at_all(&*fresh().await).await;
    append::a_run_has_an_id_that_can_be_told(&*fresh().await).await;
    append::texts_with_nul_are_kept_and_names_with_it_refused(&*fresh().await).await;
    append::names_that_the_index_is_searched_by_are_short(&*fresh().await).await;
    append::nothing_follows_a_seal(&*fresh().await).await;
    append::of_those_who_append_after_one_head_one_wins(&*fresh().await).await;
    append::the_same_batch_twice_is_kept_once(&*fresh().await).await;
    append::an_answer_that_was_lost_is_given_again(&*fresh().await).await;
    append::a_batch_that_is_not_the_end_any_more_is_refused(&*fresh().await).await;
    append::a_refused_append_does_not_trouble_its_neighbours(&*fresh().await).await;
    index::a_summary_adds_up_what_the_records_say(&*fresh().await).await;
    index::a_suspended_run_goes_on(&*fresh().await).await;
    index::each_filter_picks_its_runs(&*fresh().await).await;
    index::the_turns_of_a_session_are_listed_without_its_branches(&*fresh().await).await;
    index::pages_stay_whole_while_runs_come_and_go_on(&*fresh().await).await;
    index::the_seals_are_the_leaves_of_the_logs_tree(&*fresh().await).await;
    lease::a_run_belongs_to_one_at_a_time(&*fresh().await).await;
    lease::a_lease_is_taken_from_an_owner_that_was_not_seen_to_renew_it(&*fresh().await).await;
    lease::who_lost_a_run_is_fenced_off(&*fresh().await).await;
    lease::a_lease_needs_a_run_that_goes_on(&*fresh().await).await;
    lease::a_new_run_belongs_to_whoever_began_it(&*fresh().await).await;
    queue::a_beat_keeps_all_leases_of_its_process(&*fresh().await).await;
    queue::a_release_takes_effect_before_what_is_asked_next(&*fresh().await).await;
    queue::runs_of_a_queue_are_claimed_once_by_priority_and_age(&*fresh().await).await;
    queue::a_claim_whose_answer_is_lost_keeps_no_run_from_others(&*fresh().await).await;
    queue::a_run_without_a_queue_gets_one_later(&*fresh().await).await;
    queue::runs_that_wait_are_claimed_when_they_can_continue(&*fresh().await).await;
    queue::a_concurrency_key_limits_how_many_are_held(&*fresh().await).await;
    queue::a_message_is_delivered_once_and_consumed_with_a_fact(&*fresh().await).await;
    queue::what_changed_is_returned_once_for_each_cursor(&*fresh().await).await;
    queue::whoever_follows_changes_misses_none_of_those_who_append_at_once(fresh().await).await;
    queue::limits_hold_what_they_promise(&*fresh().await).await;
    parts::parts_of_an_answer_are_kept_until_the_next_append(&*fresh().await).await;
    removal::a_redacted_run_still_verifies(&*fresh().await).await;
    removal::what_a_tombstone_names_must_be_there(&*fresh().await).await;
    removal::the_maintenance_run_has_tombstones_and_nothing_else(&*fresh().await).await;
    removal::records_may_come_without_bodies_if_a_tombstone_says_so(&*fresh().await).await;
    removal::pruned_runs_are_gone_and_their_seals_stay(&*fresh().await).await;
    removal::what_is_pruned_is_chosen(&*fresh().await).await;
    removal::a_run_that_somebody_goes_on_with_is_not_pruned_and_the_others_are(&*fresh().await)
        .await;
    removal::what_a_run_that_stays_goes_on_from_is_not_taken_out(&*fresh().await).await;
    removal::of_those_who_remove_at_once_none_is_lost(&*fresh().await).await;
    tail::waiting_ends_when_there_is_more(&*fresh().await).await;
    tail::a_reader_that_waits_gets_each_record_once_until_the_seal(fresh().await).await;
}

/// Runs the whole suite with two handles of each log, as two processes have that share it. Each call goes to the other handle than the
/// call before.
///
/// # Panics
/// At the first thing that is not right.
pub async fn run_shared(fresh: impl AsyncFn() -> [Arc<dyn Log>; 2]) {
    run(async || Arc::new(turns::Turns::new(fresh().await)) as Arc<dyn Log>).await;
}

/// The reason of a log's refusal.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> LogReason {
    let error = result.expect_err("a refusal");
    match error.kind() {
        ErrorKind::Log(reason) => reason,
        kind => panic!("{kind}: {error}"),
    }
}

/// Performs all of them side by side. What they give comes in their order.
async fn all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Starts a future, and returns its output if it is ready at once.
async fn begin<T>(future: &mut BoxFuture<'_, T>) -> Option<T> {
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
