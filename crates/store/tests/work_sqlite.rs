//! The embedded store of operations and jobs does what the traits say.

use std::sync::{Arc, Mutex, PoisonError};

use nevertwice_store::work::sqlite::SqliteWork;
use nevertwice_store::work::suite;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_on_sqlite_conforms() {
    let directories = Mutex::new(Vec::new());
    suite::conformance(async |clock| {
        let directory = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
        let store = SqliteWork::open(directory.path(), clock).unwrap_or_else(|e| unreachable!("{e}"));
        directories.lock().unwrap_or_else(PoisonError::into_inner).push(directory);
        Arc::new(store)
    })
    .await;
}
