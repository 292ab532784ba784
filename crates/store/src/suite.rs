//! What every store must do, as tests: one suite that all of them pass. A fault found in one store becomes a case here.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use nevertwice_store::{RefusalStore, memory::MemoryStore, suite};
//! # async fn test() {
//! suite::conformance(async |clock| Arc::new(MemoryStore::new(clock)) as Arc<dyn RefusalStore>).await;
//! # }
//! ```
#![expect(clippy::expect_used, reason = "a suite fails by panicking")]

use std::sync::Arc;

use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::entry::{Candidate, Entry};
use nevertwice_domain::tenant::{TenantId, UpstreamName};

use crate::{Fence, ListQuery, Recorded, RefusalStore, Summary};

mod counting;
mod crowds;
mod forgetting;
mod lists;
mod lives;
mod moving;
mod records;
pub mod samples;

/// A store under test, empty at the beginning of a case, and the clock that it reads.
struct Bench {
    store: Arc<dyn RefusalStore>,
    clock: Arc<ManualClock>,
}

/// Runs every case on a store of its own, which `make` opens, empty, on the clock it is given. Needs a runtime with at least
/// two threads.
///
/// # Panics
/// When the store does not do what the trait says.
pub async fn conformance(make: impl AsyncFn(Arc<ManualClock>) -> Arc<dyn RefusalStore>) {
    macro_rules! cases {
        ($($file:ident: $($case:ident)*;)*) => {$($({
            let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
            let store = make(Arc::clone(&clock)).await;
            tracing::debug!(case = stringify!($case), "conformance");
            $file::$case(&Bench { store, clock }).await;
        })*)*};
    }
    cases! {
        records: what_was_recorded_is_recalled_as_it_was bodies_and_fields_are_bytes the_first_writer_wins
            a_present_entry_that_is_too_old_for_the_rule_is_replaced near_agrees_with_recall
            an_entry_of_another_schema_is_replaced a_failed_operation_is_kept_like_any_refusal
            a_reduced_body_is_known_as_one close_is_the_end;
        lives: an_entry_ends_with_its_life reads_do_not_extend_a_life a_clock_that_steps_back_does_not_stretch_a_life
            an_expired_entry_is_replaced confirmations_come_first another_verdict_starts_the_row_again
            the_ladder_climbs a_capped_status_ends_earlier_and_the_others_do_not strikes_end_after_thirty_days
            strikes_are_bounded_oldest_first first_refused_is_the_first_of_the_row;
        crowds: eviction_is_in_the_order_of_recording an_evicted_key_comes_back_as_the_youngest
            expired_entries_make_room_first a_smaller_bound_holds_from_the_next_record many_tasks_at_once
            one_of_many_writers_wins
            a_forget_beats_every_older_attempt no_replay_is_lost_to_a_renewal;
        forgetting: each_condition_selects conditions_are_anded a_forget_fences_attempts_under_way
            an_unrelated_forget_fences_nobody a_forget_of_the_past_does_not_fence_a_fresh_refusal
            a_fence_that_is_too_old_bars forgets_of_keys_do_not_crowd_out_the_others a_forget_resets_strikes
            a_forget_of_one_key_leaves_the_other_strikes an_acceptance_removes_and_is_remembered
            an_acceptance_fences_nobody suspects_are_seen_and_not_served;
        counting: replays_are_counted_and_named replays_go_on_across_renewals
            another_document_or_status_starts_a_new_tally the_first_refusal_goes_on_with_the_tally nothing_counts_for_what_is_gone;
        lists: filters_select orders_are_total pages_are_complete cursors_survive_change
            the_oldest_first_each_once_whatever_changes a_summary_has_no_body many_entries_are_listed;
        moving: what_was_imported_is_as_it_was a_live_entry_stays_as_it_is what_is_over_is_not_imported
            an_expired_entry_makes_room_for_an_imported_one imports_count_like_records_in_their_order
            a_forget_bars_what_is_imported_after_it an_imported_entry_is_like_any_other a_memory_moves_as_a_whole;
    }
}

impl Bench {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    async fn fence(&self) -> Fence {
        self.store.recall(&samples::fingerprint(u64::MAX)).await.expect("recall").fence
    }

    async fn record(&self, candidate: Candidate) -> Recorded {
        let fence = self.fence().await;
        self.store.record(candidate, fence).await.expect("record")
    }

    /// Records the `n`th sample, which must be new.
    async fn store(&self, n: u64) -> Arc<Entry> {
        stored(self.record(samples::candidate(n)).await).expect("the sample is new")
    }

    async fn recall(&self, n: u64) -> Option<Arc<Entry>> {
        self.store.recall(&samples::fingerprint(n)).await.expect("recall").entry
    }

    async fn accept(&self, n: u64) -> bool {
        self.store.accept(&samples::fingerprint(n), &samples::upstream("ocr")).await.expect("accept")
    }

    async fn suspect(&self, upstream: &str, since: Millis) -> u64 {
        self.store.suspect(&samples::upstream(upstream), since).await.expect("suspect")
    }

    fn replay(&self, n: u64, tenant: &TenantId) -> u64 {
        self.store.count_replay(&samples::fingerprint(n), tenant, self.now())
    }

    /// All entries that match, page by page.
    async fn list(&self, query: &ListQuery) -> Vec<Summary> {
        let mut query = query.clone();
        let mut items = Vec::new();
        loop {
            let page = self.store.list(&query).await.expect("list");
            assert!(page.items.len() <= query.limit, "a page is at most as long as was asked for");
            items.extend(page.items);
            assert!(items.len() < 10_000, "paging comes to an end");
            match page.next {
                Some(next) => query.after = Some(next),
                None => return items,
            }
        }
    }

    async fn entries(&self) -> u64 {
        self.store.entries().await.expect("entries")
    }

    /// Which of the samples `0..n` can be recalled.
    async fn present(&self, n: u64) -> Vec<u64> {
        let mut present = Vec::new();
        for i in 0..n {
            if self.recall(i).await.is_some() {
                present.push(i);
            }
        }
        present
    }
}

fn stored(recorded: Recorded) -> Option<Arc<Entry>> {
    match recorded {
        Recorded::Stored(entry) => Some(entry),
        _ => None,
    }
}

fn is_fenced(recorded: &Recorded) -> bool {
    matches!(recorded, Recorded::Fenced)
}

fn everything() -> ListQuery {
    ListQuery { limit: 1000, ..ListQuery::default() }
}

fn upstream_is(name: &str) -> Option<UpstreamName> {
    Some(samples::upstream(name))
}
