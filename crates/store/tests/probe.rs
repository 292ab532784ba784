//! What the probe says of a real server, and that it says nothing of a good one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::{Clock, Millis, SystemClock};
use nevertwice_store::redis::{Finding, RedisOptions, RedisStore, Severity, Topology, probe};
use nevertwice_store::{RefusalStore, suite};
use nevertwice_testkit::tls::Authority;
use nevertwice_testkit::{Redis, TlsFiles};

const PLAIN: [&str; 4] = ["--save", "", "--appendonly", "no"];
const PREFIX: &str = "nevertwice";

fn options(server: &Redis) -> RedisOptions {
    RedisOptions {
        topology: Topology::One { host: server.addr().ip().to_string(), port: server.addr().port() },
        tls: false,
        ca: None,
        client_cert: None,
        username: None,
        password: None,
        db: 0,
        prefix: PREFIX.to_owned(),
        // a busy machine is not what is tested
        read: Duration::from_secs(10),
        write: Duration::from_secs(10),
        near_bytes: 1 << 20,
    }
}

fn as_user(server: &Redis, rights: &str) -> RedisOptions {
    let rules: Vec<_> = rights.split(' ').collect();
    let set = server.ask(&[&["acl", "setuser", "gateway", "reset", "on", ">secret"], &rules[..]].concat());
    assert_eq!(set, "OK", "{rights}");
    let (username, password) = (Some("gateway".to_owned()), Some("secret".to_owned().into()));
    RedisOptions { username, password, ..options(server) }
}

/// The rules of the ACL line in docs/operating.md.
fn documented() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| unreachable!("{error}"));
    let line = text.lines().find_map(|line| line.strip_prefix("user gateway on >PASSWORD "));
    line.unwrap_or_else(|| unreachable!("docs/operating.md has no line for an ACL")).to_owned()
}

async fn look(options: &RedisOptions) -> Vec<Finding> {
    probe(options, &SystemClock).await
}

/// Exactly one finding, with these words in cause or cure.
#[track_caller]
fn one(found: &[Finding], severity: Severity, words: &[&str]) {
    let [finding] = found else { unreachable!("not one finding: {found:#?}") };
    assert_eq!(finding.severity, severity, "{finding:?}");
    let told = format!("{}; {}", finding.cause, finding.cure);
    for words in words {
        assert!(told.contains(words), "{told}\nlacks: {words}");
    }
    assert!(!told.ends_with('.') && !told.contains('\n'), "{told}");
}

#[tokio::test]
async fn of_a_good_server_there_is_nothing_to_say_and_nothing_stays_behind() {
    let server = Redis::start();
    assert_eq!(look(&options(&server)).await, []);
    assert_eq!(server.ask(&["dbsize"]), "0");
    let store = RedisStore::start(options(&server), Arc::new(SystemClock)).await;
    assert_eq!(look(&options(&server)).await, [], "also when a store is at work");
    store.close().await.unwrap_or_else(|error| unreachable!("{error}"));
}

#[tokio::test]
async fn a_server_that_evicts_forgets_refusals() {
    let args = [&PLAIN[..], &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]].concat();
    let server = Redis::with(&args);
    let words = ["allkeys-lru", "is sent to the upstream again", "noeviction"];
    one(&look(&options(&server)).await, Severity::Warning, &words);
    for harmless in [["maxmemory", "0"], ["maxmemory-policy", "noeviction"]] {
        assert_eq!(server.ask(&["config", "set", "maxmemory", "100mb"]), "OK");
        assert_eq!(server.ask(&[&["config", "set"], &harmless[..]].concat()), "OK");
        assert_eq!(look(&options(&server)).await, [], "{harmless:?}");
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_told_with_what_grants_them() {
    let server = Redis::start();
    let all = documented();
    assert_eq!(look(&as_user(&server, &all)).await, [], "what the documentation lists is enough");
    let without = |rights: &[&str]| {
        let kept: Vec<_> = all.split(' ').filter(|word| !rights.contains(word)).collect();
        kept.join(" ")
    };
    for (rights, words) in [
        (without(&["+hset", "+zadd"]), &["may not run HSET, ZADD", "ACL SETUSER gateway +hset +zadd"][..]),
        (without(&["+script|load"]), &["may not run SCRIPT LOAD", "+script|load"]),
        (without(&["+evalsha"]), &["may not run EVALSHA", "+evalsha"]),
        (without(&["+time"]), &["may not run TIME", "+time"]),
        (without(&["+subscribe", "+publish"]), &["may not run PUBLISH, SUBSCRIBE"]),
        (
            all.replace("~{nevertwice}:*", "~other:*"),
            &["use the keys under the prefix", "ACL SETUSER gateway ~{nevertwice}:*"],
        ),
        (
            all.replace("&{nevertwice}:*", "&other:*"),
            &["use the channel under the prefix", "gateway &{nevertwice}:*"],
        ),
    ] {
        one(&look(&as_user(&server, &rights)).await, Severity::Error, words);
    }
    let without_streams = look(&as_user(&server, &without(&["+xadd", "+xgroup|create"]))).await;
    let words = ["may not run XADD, XGROUP CREATE", "no jobs are taken in", "gateway +xadd +xgroup|create"];
    one(&without_streams, Severity::Warning, &words);
    let without_info = look(&as_user(&server, &without(&["+info"]))).await;
    one(&without_info, Severity::Warning, &["does not say its version", "+info"]);
    // every other right is needed
    for right in all.split(' ').filter(|right| right.starts_with('+')) {
        let found = look(&as_user(&server, &without(&[right]))).await;
        let optional = ["+select", "+role", "+cluster|slots", "+asking"].contains(&right);
        assert!(optional || found.len() == 1, "without {right}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_store_conforms_with_the_rights_that_the_documentation_lists() {
    let server = Redis::start();
    let (rights, case) = (documented(), std::cell::Cell::new(0));
    suite::conformance(async |clock| {
        case.set(case.get() + 1);
        let prefix = format!("case-{}", case.get());
        let rights = rights.replace("{nevertwice}", &format!("{{{prefix}}}"));
        let options = RedisOptions { prefix, ..as_user(&server, &rights) };
        Arc::new(RedisStore::start(options, clock).await) as Arc<dyn RefusalStore>
    })
    .await;
}

#[tokio::test]
async fn who_is_not_let_in_is_told_why() {
    let server = Redis::start();
    let good = as_user(&server, &documented());
    let wrong = RedisOptions { password: Some("hunter2".to_owned().into()), ..good.clone() };
    let found = look(&wrong).await;
    one(&found, Severity::Error, &["no connection to the server", "check `username` and `password`"]);
    assert!(!format!("{found:?}").contains("hunter2"));
    assert_eq!(server.ask(&["acl", "setuser", "default", "off"]), "OK");
    one(&look(&options(&server)).await, Severity::Error, &["NOAUTH", "check `username` and `password`"]);
}

#[tokio::test]
async fn keys_of_others_under_the_prefix_are_told() {
    let server = Redis::start();
    assert_eq!(server.ask(&["set", "{nevertwice}:schema", "9"]), "OK");
    let words = ["under the prefix `nevertwice` have layout 9, this version knows 1", "`prefix` of its own"];
    one(&look(&options(&server)).await, Severity::Error, &words);
    assert_eq!(server.ask(&["set", "{nevertwice}:schema", "1"]), "OK");
    assert_eq!(server.ask(&["lpush", "{nevertwice}:index", "x"]), "1");
    assert_eq!(server.ask(&["lpush", "{nevertwice}:epoch", "x"]), "1");
    let words = ["{nevertwice}:epoch, {nevertwice}:index belong to another program", "`prefix` of their own"];
    one(&look(&options(&server)).await, Severity::Error, &words);
}

#[tokio::test]
async fn clocks_that_differ_are_told() {
    struct Off(i64);
    impl Clock for Off {
        fn now(&self) -> Millis {
            Millis(SystemClock.now().0 + self.0)
        }
    }
    let server = Redis::start();
    let ahead = probe(&options(&server), &Off(61_500)).await;
    one(&ahead, Severity::Warning, &["is 61.", "s ahead of the server's", "NTP"]);
    one(&probe(&options(&server), &Off(-61_500)).await, Severity::Warning, &["s behind the server's"]);
    assert_eq!(probe(&options(&server), &Off(1000)).await, []);
}

#[tokio::test]
async fn a_server_that_is_far_is_told() {
    let server = Redis::start();
    let hasty = RedisOptions { read: Duration::from_nanos(2), ..options(&server) };
    one(&look(&hasty).await, Severity::Warning, &["more than half of `read_ms`", "raise `read_ms`"]);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_told() {
    let server = Redis::start();
    assert_eq!(server.ask(&["replicaof", "127.0.0.1", "1"]), "OK");
    one(&look(&options(&server)).await, Severity::Error, &["ReadOnly", "the server is a replica"]);
    assert_eq!(server.ask(&["replicaof", "no", "one"]), "OK");
    let full = Redis::with(&[&PLAIN[..], &["--maxmemory", "1", "--maxmemory-policy", "noeviction"]].concat());
    one(&look(&options(&full)).await, Severity::Error, &["OOM", "raise `maxmemory`"]);
}

#[tokio::test]
async fn a_server_that_is_not_there_or_says_nothing_is_told_in_bounded_time() {
    let mut server = Redis::start();
    server.pause();
    let began = Instant::now();
    let found = look(&options(&server)).await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    one(&found, Severity::Error, &["no connection to the server"]);
    server.kill();
    one(&look(&options(&server)).await, Severity::Error, &["no connection", "that the server is up"]);
}

#[tokio::test]
async fn a_server_without_the_commands_is_told() {
    let server = Redis::with(&[&PLAIN[..], &["--rename-command", "EVALSHA", ""]].concat());
    one(
        &look(&options(&server)).await,
        Severity::Error,
        &["does not know EVALSHA", "with all commands and Lua"],
    );
    let old = Redis::with(&[&PLAIN[..], &["--rename-command", "HELLO", ""]].concat());
    one(&look(&options(&old)).await, Severity::Error, &["it takes Redis 6.2 or newer, or Valkey"]);
}

#[tokio::test]
async fn a_cluster_and_one_server_are_told_apart() {
    let server = Redis::with(&[&PLAIN[..], &["--cluster-enabled", "yes"]].concat());
    let add = |slots: std::ops::Range<u16>| {
        let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
        let slots: Vec<_> = slots.iter().map(String::as_str).collect();
        server.try_ask(&[&["cluster", "addslots"], &slots[..]].concat())
    };
    assert_eq!(add(0..8001), Ok("OK".to_owned()));
    let began = Instant::now();
    let busy = |said: Result<String, String>| said.is_err_and(|error| error.contains("already busy"));
    while !busy(add(8001..16384)) {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    while !server.ask(&["cluster", "info"]).contains("cluster_state:ok") {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", server.ask(&["cluster", "info"]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let node = (server.addr().ip().to_string(), server.addr().port());
    let cluster = |server: &RedisOptions, node: (String, u16)| RedisOptions {
        topology: Topology::Cluster { nodes: vec![node] },
        ..server.clone()
    };
    assert_eq!(look(&cluster(&options(&server), node.clone())).await, []);
    let user = as_user(&server, &documented());
    assert_eq!(look(&cluster(&user, node)).await, [], "with the documented rights");
    let single = Redis::start();
    let node = (single.addr().ip().to_string(), single.addr().port());
    one(&look(&cluster(&options(&single), node)).await, Severity::Error, &["begin `url` with redis://"]);
    let half = Redis::with(&[&PLAIN[..], &["--cluster-enabled", "yes"]].concat());
    let found = look(&options(&half)).await;
    assert!(found.iter().all(|finding| finding.severity == Severity::Error), "{found:?}");
    assert!(found.iter().any(|finding| finding.cure.contains("cluster")), "{found:?}");
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
async fn over_tls_both_sides_show_certificates() {
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let authority = Authority::new();
    let ca = authority.write(dir.path(), "ca");
    let (cert, key) = authority.issue(&["127.0.0.1"]).write(dir.path(), "server");
    let (client_cert, client_key) = authority.issue(&["gateway"]).write(dir.path(), "client");
    let other = Authority::new().write(dir.path(), "other");
    let text = |path: &std::path::Path| path.display().to_string();
    let (ca_file, cert, key) = (text(&ca), text(&cert), text(&key));
    let Some(server) = Redis::with_tls(TlsFiles { certificate: &cert, key: &key, authority: &ca_file }, &[])
    else {
        eprintln!("skipped: this redis-server was built without TLS");
        return;
    };
    let read = |path: &std::path::Path| std::fs::read(path).unwrap_or_else(|error| unreachable!("{error}"));
    let client_key = String::from_utf8(read(&client_key)).unwrap_or_else(|error| unreachable!("{error}"));
    let good = RedisOptions {
        tls: true,
        ca: Some(read(&ca)),
        client_cert: Some((read(&client_cert), client_key.into())),
        ..options(&server)
    };
    assert_eq!(look(&good).await, []);
    let nobody = RedisOptions { client_cert: None, ..good.clone() };
    one(&look(&nobody).await, Severity::Error, &["no connection"]);
    let distrustful = RedisOptions { ca: Some(read(&other)), ..good };
    one(&look(&distrustful).await, Severity::Error, &["no connection", "certificate"]);
}
