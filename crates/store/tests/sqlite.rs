//! The embedded store does what the trait says, with and without bodies in memory.

use std::sync::{Arc, Mutex, PoisonError};

use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::{RefusalStore, suite};

async fn conforms(near_bytes: u64) {
    let directories = Mutex::new(Vec::new());
    suite::conformance(async |clock| {
        let directory = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
        let options = SqliteOptions { near_bytes, ..SqliteOptions::default() };
        let store =
            SqliteStore::open(directory.path(), clock, options).unwrap_or_else(|e| unreachable!("{e}"));
        directories.lock().unwrap_or_else(PoisonError::into_inner).push(directory);
        Arc::new(store) as Arc<dyn RefusalStore>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sqlite_store_conforms() {
    conforms(64 * 1024 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sqlite_store_conforms_without_bodies_in_memory() {
    conforms(0).await;
}
