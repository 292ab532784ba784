//! Clusters, Sentinel, TLS.

use std::cell::Cell;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::entry::Selector;
use nevertwice_store::redis::{RedisOptions, RedisStore, Topology};
use nevertwice_store::suite::samples;
use nevertwice_store::{Lease, RefusalStore, suite};
use nevertwice_testkit::tls::Authority;
use nevertwice_testkit::{Redis, SlotMove, TlsFiles};

use super::bench::*;

fn host_port(addr: SocketAddr) -> (String, u16) {
    (addr.ip().to_string(), addr.port())
}

/// Nodes of a cluster, the first three of which are primaries.
struct Cluster(Vec<Redis>);

impl Cluster {
    async fn start(nodes: usize, replicas: usize) -> Self {
        Self::with(nodes, replicas, &[]).await
    }

    async fn with(nodes: usize, replicas: usize, args: &[&str]) -> Self {
        let common = ["--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let node = |_| Redis::with(&[&common, args].concat());
        Self::of((0..nodes).map(node).collect(), replicas).await
    }

    async fn of(nodes: Vec<Redis>, replicas: usize) -> Self {
        let mut create = Command::new("redis-cli");
        create.args(nodes[0].cli());
        create.args(["--cluster", "create"]).args(nodes.iter().map(|node| node.addr().to_string()));
        create.args(["--cluster-yes", "--cluster-replicas", &replicas.to_string()]);
        let created = create.output().unwrap_or_else(|error| panic!("redis-cli: {error}"));
        assert!(created.status.success(), "{created:?}");
        let cluster = Self(nodes);
        for node in &cluster.0 {
            until("the cluster is complete", LONG, async || {
                let info = node.ask(&["cluster", "info"]);
                info.contains("cluster_state:ok")
                    && info.contains(&format!("known_nodes:{}", cluster.0.len()))
            })
            .await;
        }
        cluster
    }

    /// Nodes that speak TLS alone, among each other too. `None` when the server was built without.
    async fn with_tls(files: TlsFiles<'_>) -> Option<Self> {
        let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--tls-cluster", "yes"];
        let nodes: Option<Vec<Redis>> = (0..3).map(|_| Redis::with_tls(files, &args)).collect();
        Some(Self::of(nodes?, 0).await)
    }

    fn options(&self, prefix: &str) -> RedisOptions {
        let nodes = self.0.iter().map(|node| host_port(node.addr())).collect();
        RedisOptions { topology: Topology::Cluster { nodes }, ..options(self.0[0].addr(), prefix) }
    }

    /// The node that has the keys with this prefix now.
    fn owner(&self, prefix: &str) -> usize {
        let key = format!("{{{prefix}}}:schema");
        let found = self.0.iter().position(|node| {
            node.try_ask(&["role"]).is_ok_and(|role| role.starts_with("master"))
                && node.try_ask(&["get", &key]).is_ok_and(|layout| layout == "1")
        });
        found.unwrap_or_else(|| panic!("nobody has {key}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_cluster_conforms() {
    let cluster = Cluster::start(3, 0).await;
    let case = Cell::new(0);
    suite::conformance(async |clock| {
        case.set(case.get() + 1);
        let options = cluster.options(&format!("case-{}", case.get()));
        Arc::new(RedisStore::start(options, clock).await) as Arc<dyn RefusalStore>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_operations_and_jobs_conform_on_a_cluster_with_the_documented_rights() {
    let cluster = Cluster::start(3, 0).await;
    let case = Cell::new(0);
    nevertwice_store::work::suite::conformance(async |clock| {
        case.set(case.get() + 1);
        let prefix = format!("case-{}", case.get());
        let mut options = cluster.options(&prefix);
        for node in &cluster.0 {
            options = documented_user(node, &prefix, options);
        }
        Arc::new(RedisStore::start(options, clock).await)
    })
    .await;
}

async fn hears(a: &RedisStore, b: &RedisStore, n: u64) {
    until("it is recorded", LONG, async || record(a, n).await.is_ok() && near(a, n)).await;
    until("it is known", LONG, async || recall(b, n).await.is_ok_and(|entry| entry.is_some()) && near(b, n))
        .await;
    assert_eq!(a.forget(&Selector::key(samples::fingerprint(n))).await.ok(), Some(1));
    until("the near copy drops", SECOND, async || !near(b, n)).await;
    let Lease::Held(lease) = look(a, n).await else { panic!("it is free") };
    assert!(matches!(look(b, n).await, Lease::Elsewhere(_)));
    lease.land_without_verdict();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_slot_that_moves_takes_the_memory_with_it() {
    let cluster = Cluster::start(3, 0).await;
    let (a, b) = (start(cluster.options(PREFIX)).await, start(cluster.options(PREFIX)).await);
    for n in 0..100 {
        must_record(&a, n).await;
    }
    hears(&a, &b, 1000).await;
    let from = cluster.owner(PREFIX);
    let to = (from + 1) % 3;
    let moving = SlotMove::new(&cluster.0, PREFIX, from, to);
    moving.begin(&cluster.0);
    let mut known = 0;
    while moving.step(&cluster.0, 10).unwrap_or_else(|error| panic!("{error}")) {
        // what is on its way is a miss or trouble, and never another's
        for n in 0..10 {
            let hasty = tokio::time::timeout(Duration::from_millis(50), recall(&b, n)).await;
            let entry = hasty.ok().and_then(Result::ok).flatten();
            known += u32::from(entry.is_some());
            assert!(entry.is_none_or(|entry| entry.fingerprint == samples::fingerprint(n)));
        }
    }
    moving.finish(&cluster.0);
    until("all are known there", LONG, async || {
        let mut all = true;
        for n in 0..100 {
            all &= recall(&b, n).await.is_ok_and(|entry| entry.is_some());
        }
        all
    })
    .await;
    assert_eq!(cluster.owner(PREFIX), to, "{known} while it moved");
    hears(&a, &b, 1001).await;
    hears(&b, &a, 1002).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_cluster_survives_the_loss_of_a_node() {
    let mut cluster = Cluster::start(6, 1).await;
    let with = |cluster: &Cluster| RedisOptions { read: SECOND, write: SECOND, ..cluster.options(PREFIX) };
    let (a, b) = (start(with(&cluster)).await, start(with(&cluster)).await);
    must_record(&a, 1).await;
    hears(&a, &b, 1000).await;
    let owner = cluster.owner(PREFIX);
    until("its replica has it", LONG, async || {
        cluster.0[owner].ask(&["info", "replication"]).contains("state=online")
            && cluster.0[owner].ask(&["wait", "1", "1000"]) == "1"
    })
    .await;
    cluster.0[owner].kill();
    for store in [&a, &b] {
        until("another node answers", LONG, async || {
            recall(store, 1).await.is_ok_and(|entry| entry.is_some())
        })
        .await;
    }
    hears(&a, &b, 1001).await;
    // one that starts while a node is away
    let fresh = start(with(&cluster)).await;
    until("it is joined", LONG, async || recall(&fresh, 1).await.is_ok_and(|entry| entry.is_some())).await;
    hears(&fresh, &a, 1002).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_sentinel_is_followed() {
    let mut primary = Redis::start();
    let port = primary.addr().port().to_string();
    let replica =
        Redis::with(&["--save", "", "--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let silent = silent.unwrap_or_else(|error| panic!("{error}"));
    let sentinel = Redis::sentinel("memory", primary.addr(), 500);
    let silent = silent.local_addr().map(|addr| (addr, silent)).unwrap_or_else(|error| panic!("{error}"));
    let topology = Topology::Sentinel {
        // the first one takes connections and says nothing
        sentinels: vec![host_port(silent.0), host_port(sentinel.addr())],
        primary: "memory".into(),
    };
    let with = RedisOptions { topology, ..hasty(primary.addr()) };
    let (a, b) = (start(with.clone()).await, start(with).await);
    for store in [&a, &b] {
        until("it is joined", LONG, async || recall(store, 1).await.is_ok()).await;
    }
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await);
    let in_step = || {
        let said = primary.ask(&["wait", "1", "1000"]);
        let known = sentinel.ask(&["sentinel", "replicas", "memory"]);
        said == "1" && known.contains(&replica.addr().port().to_string())
    };
    until("the replica has it", LONG, async || in_step()).await;

    // frozen: the connection does not end
    primary.pause();
    let within = Duration::from_secs(15);
    for store in [&a, &b] {
        until("the new primary is used", within, async || {
            recall(store, 1).await.is_ok_and(|entry| entry.is_some()) && record(store, 2).await.is_ok()
        })
        .await;
    }
    assert!(replica.ask(&["role"]).starts_with("master"));
    hears(&a, &b, 1000).await;

    // the old one comes back and becomes a replica; the new one dies
    primary.resume();
    until("the old one follows", LONG, async || primary.ask(&["role"]).starts_with("slave")).await;
    until("it is in step", LONG, async || replica.ask(&["wait", "1", "1000"]) == "1").await;
    let mut replica = replica;
    replica.kill();
    for store in [&a, &b] {
        until("the old primary is used again", LONG, async || record(store, 3).await.is_ok()).await;
    }
    hears(&b, &a, 1001).await;
    primary.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
async fn a_server_with_tls_shows_its_certificate() {
    let log = Log::start();
    let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let (authority, stranger) = (Authority::new(), Authority::new());
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let read = |path: &std::path::Path| std::fs::read(path).unwrap_or_else(|error| panic!("{error}"));
    let (cert, key) = authority.issue(&["localhost", "127.0.0.1"]).write(dir.path(), "server");
    let (client_cert, client_key) = authority.issue(&["gateway"]).write(dir.path(), "client");
    let ca = authority.write(dir.path(), "ca");
    let files = [path(&cert), path(&key), path(&ca)];
    let files = TlsFiles { certificate: &files[0], key: &files[1], authority: &files[2] };
    let Some(server) = Redis::with_tls(files, &[]) else {
        eprintln!("skipped: this redis-server was built without TLS");
        return;
    };
    let with = |host: &str, ca: &std::path::Path, client: bool| RedisOptions {
        topology: Topology::One { host: host.to_owned(), port: server.addr().port() },
        tls: true,
        ca: Some(read(ca)),
        client_cert: client
            .then(|| (read(&client_cert), String::from_utf8_lossy(&read(&client_key)).into_owned().into())),
        ..options(server.addr(), PREFIX)
    };
    for host in ["localhost", "127.0.0.1"] {
        let store = start(with(host, &ca, true)).await;
        assert_eq!(log.warnings(), [""; 0]);
        let n = u64::from(host == "localhost");
        must_record(&store, n).await;
        assert!(knows(&store, n).await);
    }
    for refused in [
        with("localhost", &stranger.write(dir.path(), "stranger"), true),
        with("localhost", &ca, false),
        with("127.0.0.2", &ca, true),
    ] {
        let store = start(refused).await;
        assert!(recall(&store, 1).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
async fn slow_a_cluster_with_tls_is_used() {
    let log = Log::start();
    let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let authority = Authority::new();
    let (cert, key) = authority.issue(&["localhost", "127.0.0.1"]).write(dir.path(), "server");
    let ca = authority.write(dir.path(), "ca");
    let files = [&cert, &key, &ca].map(|path| path.to_string_lossy().into_owned());
    let files = TlsFiles { certificate: &files[0], key: &files[1], authority: &files[2] };
    let Some(cluster) = Cluster::with_tls(files).await else {
        eprintln!("skipped: this redis-server was built without TLS");
        return;
    };
    let read = |path: &std::path::Path| std::fs::read(path).unwrap_or_else(|error| panic!("{error}"));
    let with = || RedisOptions {
        tls: true,
        ca: Some(read(&ca)),
        client_cert: Some((read(&cert), String::from_utf8_lossy(&read(&key)).into_owned().into())),
        ..cluster.options(PREFIX)
    };
    let (a, b) = (start(with()).await, start(with()).await);
    assert_eq!(log.warnings(), [""; 0]);
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await);
    hears(&a, &b, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
async fn slow_sentinels_and_servers_with_tls_are_followed() {
    let log = Log::start();
    let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let authority = Authority::new();
    let read = |path: &std::path::Path| std::fs::read(path).unwrap_or_else(|error| panic!("{error}"));
    let [(cert, key), (client_cert, client_key)] = [
        authority.issue(&["localhost", "127.0.0.1"]).write(dir.path(), "server"),
        authority.issue(&["gateway"]).write(dir.path(), "client"),
    ];
    let ca = authority.write(dir.path(), "ca");
    let files = [&cert, &key, &ca].map(|path| path.to_string_lossy().into_owned());
    let files = TlsFiles { certificate: &files[0], key: &files[1], authority: &files[2] };
    let Some(mut primary) = Redis::with_tls(files, &[]) else {
        eprintln!("skipped: this redis-server was built without TLS");
        return;
    };
    let port = primary.addr().port().to_string();
    let replica =
        Redis::with_tls(files, &["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    let replica = replica.unwrap_or_else(|| panic!("no replica"));
    let first = primary.addr();
    let sentinel = Redis::sentinel_with_tls("memory", first, 500, files);
    let with = |ca: &std::path::Path, client: bool| RedisOptions {
        topology: Topology::Sentinel {
            sentinels: vec![host_port(sentinel.addr())],
            primary: "memory".into(),
        },
        tls: true,
        ca: Some(read(ca)),
        client_cert: client
            .then(|| (read(&client_cert), String::from_utf8_lossy(&read(&client_key)).into_owned().into())),
        ..options(first, PREFIX)
    };
    let (a, b) = (start(with(&ca, true)).await, start(with(&ca, true)).await);
    assert_eq!(log.warnings(), [""; 0]);
    must_record(&a, 1).await;
    assert!(knows(&b, 1).await);
    hears(&a, &b, 1000).await;
    until("the replica has it", LONG, async || {
        let known = sentinel.ask(&["sentinel", "replicas", "memory"]);
        primary.ask(&["wait", "1", "1000"]) == "1" && known.contains(&replica.addr().port().to_string())
    })
    .await;
    primary.kill();
    for store in [&a, &b] {
        until("the new primary is used", LONG, async || {
            recall(store, 1).await.is_ok_and(|entry| entry.is_some()) && record(store, 2).await.is_ok()
        })
        .await;
    }
    assert!(replica.ask(&["role"]).starts_with("master"));
    hears(&a, &b, 1001).await;

    // who is not trusted, or does not show who it is, gets nothing
    let stranger = Authority::new().write(dir.path(), "stranger");
    for refused in [with(&stranger, true), with(&ca, false)] {
        let store = start(refused).await;
        assert!(recall(&store, 1).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_node_that_comes_back_is_heard_again() {
    let mut cluster = Cluster::with(3, 0, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let with = |cluster: &Cluster| RedisOptions { read: SECOND, write: SECOND, ..cluster.options(PREFIX) };
    let (a, b) = (Arc::new(start(with(&cluster)).await), Arc::new(start(with(&cluster)).await));
    hears(&a, &b, 1000).await;
    let owner = cluster.owner(PREFIX);
    for round in 0..4 {
        // calls under way while it is gone: the library connects anew for them, and does not always subscribe anew
        let mut asking = tokio::task::JoinSet::new();
        for store in [&a, &b, &a, &b] {
            let store = Arc::clone(store);
            asking.spawn(async move {
                loop {
                    let _ = recall(&store, 1).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        cluster.0[owner].kill();
        tokio::time::sleep(Duration::from_millis(200 + 200 * round)).await;
        cluster.0[owner].restart();
        for store in [&a, &b] {
            until("it answers again", LONG, async || recall(store, 1).await.is_ok()).await;
        }
        drop(asking);
        // a store that hears nothing finds out, and connects anew
        tokio::time::sleep(4 * SECOND).await;
        hears(&a, &b, 1001 + round).await;
        hears(&b, &a, 2001 + round).await;
    }
}
