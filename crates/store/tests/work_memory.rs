//! The reference of operations and jobs does what the traits say.

use std::sync::Arc;

use nevertwice_domain::clock::ManualClock;
use nevertwice_store::work::memory::WorkInMemory;
use nevertwice_store::work::suite;

async fn make(clock: Arc<ManualClock>) -> Arc<WorkInMemory> {
    Arc::new(WorkInMemory::new(clock))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_in_memory_conforms() {
    suite::conformance(make).await;
    suite::forgets(make).await;
}
