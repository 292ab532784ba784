//! The reference store does what the trait says.

use std::sync::Arc;

use nevertwice_store::memory::MemoryStore;
use nevertwice_store::{RefusalStore, suite};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_store_conforms() {
    suite::conformance(async |clock| Arc::new(MemoryStore::new(clock)) as Arc<dyn RefusalStore>).await;
}
