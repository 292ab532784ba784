//! The store on Redis does what the trait says, on real servers, and what becomes of it when those fail.
#![expect(clippy::panic, reason = "a test that is broken should stop loudly")]

use std::sync::Arc;

use nevertwice_store::redis::RedisStore;
use nevertwice_store::{RefusalStore, suite};
use nevertwice_testkit::Redis;

mod bench;
mod errors;
mod faults;
mod fleet;
mod late;
mod leases;
mod topologies;
mod versions;
mod work;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_redis_store_conforms() {
    let server = Redis::start();
    let case = std::cell::Cell::new(0);
    suite::conformance(async |clock| {
        case.set(case.get() + 1);
        let options = bench::options(server.addr(), &format!("case-{}", case.get()));
        Arc::new(RedisStore::start(options, clock).await) as Arc<dyn RefusalStore>
    })
    .await;
}
