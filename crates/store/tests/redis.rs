//! The store on Redis does what the trait says, on a real server.

use std::sync::Arc;
use std::time::Duration;

use nevertwice_store::redis::{RedisOptions, RedisStore, Topology};
use nevertwice_store::{RefusalStore, suite};
use nevertwice_testkit::Redis;

fn options(server: &Redis, prefix: &str) -> RedisOptions {
    RedisOptions {
        topology: Topology::One { host: server.addr().ip().to_string(), port: server.addr().port() },
        tls: false,
        ca: None,
        client_cert: None,
        username: None,
        password: None,
        db: 0,
        prefix: prefix.to_owned(),
        // a busy machine is not what is tested
        read: Duration::from_secs(10),
        write: Duration::from_secs(10),
        near_bytes: 1 << 20,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_redis_store_conforms() {
    let server = Redis::start();
    let case = std::cell::Cell::new(0);
    suite::conformance(async |clock| {
        case.set(case.get() + 1);
        let options = options(&server, &format!("case-{}", case.get()));
        Arc::new(RedisStore::start(options, clock).await) as Arc<dyn RefusalStore>
    })
    .await;
}
