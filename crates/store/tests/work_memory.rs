//! The reference of operations and jobs does what the traits say.

use std::sync::Arc;

use nevertwice_store::work::memory::WorkInMemory;
use nevertwice_store::work::suite;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_in_memory_conforms() {
    suite::conformance(async |clock| Arc::new(WorkInMemory::new(clock))).await;
}
