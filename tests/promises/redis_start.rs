//! A gateway on Redis starts whether or not the server is there, says what it uses, and joins later; `check --resolve` says
//! beforehand what the server is not fit for. No secret is in anything that is printed.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use nevertwice_testkit::tls::Authority;
use nevertwice_testkit::{
    DOC, DOC2, Gateway, Redis, Setup, TlsFiles, Upstream, gateway, r400, random_document,
};

use crate::bench::{post, settle};
use crate::caller::{CLASSIFY, until};

const EMBEDDED: &str = "embedded:\n    path: \"@DIR@/data\"";
const PASSWORD: &str = "hunter2-of-redis";

/// The budgets are for a machine that does nothing else.
fn on_redis(upstream: &Upstream, keys: &str) -> Setup {
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    assert!(yaml.contains(EMBEDDED), "{yaml}");
    let redis = format!("redis: {{read_ms: 2000, write_ms: 2000, {keys}}}");
    Setup::new(&yaml.replace(EMBEDDED, &redis)).env("REDIS_PASSWORD", PASSWORD)
}

async fn check(dir: &Path, keys: &str, resolve: bool) -> Output {
    let text = format!(
        "store: {{redis: {{{keys}}}}}\nnegative_cache: {{enabled: true}}\n\
         upstreams: [{{name: a, base_url: 'http://127.0.0.1:1', sync_paths: [/x]}}]\n"
    );
    std::fs::write(dir.join("gw.yaml"), text).unwrap_or_else(|error| unreachable!("{error}"));
    let args = ["check", "--config", "gw.yaml", "--resolve"];
    let env = [("REDIS_PASSWORD".to_owned(), PASSWORD.to_owned())];
    gateway::run(&args[..if resolve { 4 } else { 3 }], &env, dir).await
}

#[track_caller]
fn says(output: &Output, code: i32, words: &[&str]) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    for words in words {
        assert!(told.contains(words), "{told}\nlacks: {words}");
    }
    assert!(!told.contains("hunter2") && !told.contains("panicked"), "{told}");
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"))
}

#[tokio::test]
async fn slow_a_gateway_starts_without_its_redis_and_joins_when_it_comes() {
    let mut redis = Redis::start();
    redis.kill();
    let upstream = Upstream::start().await;
    upstream.by(|_, _| r400());
    let url = redis.url();
    let late = on_redis(&upstream, &format!("url: '{url}'")).start().await;
    for _ in 0..2 {
        let answer = post(&late, CLASSIFY, &DOC[..]).await;
        assert_eq!((answer.status, answer.is_hit()), (400, false), "the upstream's own answer");
    }
    let log = late.log();
    assert_eq!(log.matches("no connection to the refusal store").count(), 1, "{log}");
    assert!(
        log.contains(&format!("the refusal store is on Redis url={url}/0 prefix=\"nevertwice\"")),
        "{log}"
    );

    redis.restart();
    until("the gateway to join", Duration::from_secs(10), async || {
        late.log().contains("tending: connected to the refusal store").then_some(())
    })
    .await;
    assert!(!post(&late, CLASSIFY, &DOC2[..]).await.is_hit());
    let calls = upstream.calls();
    assert!(post(&late, CLASSIFY, &DOC2[..]).await.is_hit(), "{}", late.log());
    // one that comes later finds what the others have learned, and has nothing of its own on disk
    let next = on_redis(&upstream, &format!("url: '{url}'")).start().await;
    assert!(post(&next, CLASSIFY, &DOC2[..]).await.is_hit());
    assert_eq!(upstream.calls(), calls);
    assert!(!next.dir().join("data").exists() && !next.dir().join("nevertwice-data").exists());
    assert!(!next.log().contains("no connection"), "{}", next.log());
    settle(&late, 4).await;
    settle(&next, 1).await;
}

#[tokio::test]
async fn slow_a_server_that_loads_its_data_is_as_if_it_were_gone() {
    let dir = temp();
    // a millisecond for each key, during which it answers nothing but that it loads
    let slowly = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let mut redis = Redis::with(&[&["--save", "", "--appendonly", "no"], &slowly[..]].concat());
    let upstream = Upstream::start().await;
    upstream.by(|_, _| r400());
    let url = format!("url: '{}'", redis.url());
    let before = on_redis(&upstream, &url).start().await;
    assert!(!post(&before, CLASSIFY, &DOC[..]).await.is_hit());
    let fill = "for i = 1, 6000 do redis.call('SET', 'other:' .. i, string.rep('x', 100)) end return 1";
    assert_eq!(redis.ask(&["eval", fill, "0"]), "1");
    assert_eq!(redis.ask(&["save"]), "OK");
    redis.restart();
    let is_loading = || redis.try_ask(&["get", "x"]).is_err_and(|said| said.contains("LOADING"));
    assert!(is_loading());
    let calls = upstream.calls();

    // whoever runs, and whoever comes: requests go up
    let checked = check(dir.path(), &url, true).await;
    says(&checked, 2, &["store.redis", "is loading", "wait until the server has loaded its data"]);
    assert!(
        !String::from_utf8_lossy(&checked.stderr).contains("read_ms"),
        "how far it is cannot be told now"
    );
    let meanwhile = on_redis(&upstream, &url).start().await;
    for (n, gateway) in [&before, &meanwhile].into_iter().enumerate() {
        for (m, document) in [&DOC, &DOC2].into_iter().enumerate() {
            let answer = post(gateway, CLASSIFY, &document[..]).await;
            assert_eq!((answer.status, answer.is_hit()), (400, false), "the upstream's own answer");
            assert_eq!(upstream.calls(), calls + (2 * n + m) as u64 + 1);
        }
    }
    assert!(is_loading(), "all of that happened while it loaded");
    let log = meanwhile.log();
    assert_eq!(log.matches("no connection to the refusal store").count(), 1, "{log}");
    assert!(log.contains("the server is loading its data"), "{log}");

    // what it has loaded is known, and what was learned meanwhile is too
    for gateway in [&before, &meanwhile] {
        until("the gateway to join", Duration::from_secs(20), async || {
            let (_, ready) = gateway.admin_get("/readyz").await;
            (ready["store"] == "ok" && !is_loading()).then_some(())
        })
        .await;
    }
    until("both to be remembered", Duration::from_secs(5), async || {
        (before.metric("gateway_negative_cache_entries", &[]).await == 2.0).then_some(())
    })
    .await;
    let calls = upstream.calls();
    for gateway in [&before, &meanwhile] {
        for document in [&DOC, &DOC2] {
            assert!(post(gateway, CLASSIFY, &document[..]).await.is_hit(), "{}", gateway.log());
        }
    }
    assert_eq!(upstream.calls(), calls);
    settle(&before, 5).await;
    settle(&meanwhile, 4).await;
}

#[tokio::test]
async fn a_gateway_presents_its_user_and_says_its_password_nowhere() {
    let redis = Redis::start();
    let rules = ["reset", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"];
    assert_eq!(redis.ask(&[&["acl", "setuser", "gateway"], &rules[..]].concat()), "OK");
    assert_eq!(redis.ask(&["acl", "setuser", "default", "off"]), "OK");
    let upstream = Upstream::start().await;
    upstream.by(|_, _| r400());
    let keys =
        format!("url: '{}/3', prefix: p.1, username: gateway, password: env:REDIS_PASSWORD", redis.url());
    let gateway = on_redis(&upstream, &keys).start().await;
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    assert!(post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    settle(&gateway, 2).await;
    let log = gateway.log();
    assert!(log.contains("connected to the refusal store") && !log.contains("hunter2"), "{log}");

    let wrong =
        on_redis(&upstream, &format!("url: '{}', password: env:REDIS_PASSWORD", redis.url())).start().await;
    let log = wrong.log();
    assert!(log.contains("check `username` and `password`") && !log.contains("hunter2"), "{log}");
    assert!(!post(&wrong, CLASSIFY, &DOC[..]).await.is_hit(), "and it serves");
}

#[tokio::test]
async fn check_says_what_the_server_is_not_fit_for() {
    let dir = temp();
    let evicts = ["--save", "", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let mut redis = Redis::with(&evicts);
    let url = format!("url: '{}', read_ms: 5000", redis.url());
    let warned = check(dir.path(), &url, true).await;
    says(&warned, 0, &["1:22: warning: store.redis.url: the server evicts (maxmemory-policy allkeys-lru)"]);
    assert_eq!(redis.ask(&["config", "set", "maxmemory-policy", "noeviction"]), "OK");
    let good = check(dir.path(), &url, true).await;
    says(&good, 0, &[]);
    assert!(good.stderr.is_empty(), "{good:?}");
    let wrong =
        check(dir.path(), &format!("{url}, username: nobody, password: env:REDIS_PASSWORD"), true).await;
    says(
        &wrong,
        2,
        &["error: store.redis.password: no connection to the server", "check `username` and `password`"],
    );
    assert_eq!(redis.ask(&["acl", "setuser", "default", "-hset"]), "OK");
    let poor = check(dir.path(), &url, true).await;
    says(
        &poor,
        2,
        &["gw.yaml:1:16: error: store.redis: the user default may not run HSET", "ACL SETUSER default +hset"],
    );
    redis.kill();
    says(&check(dir.path(), &url, true).await, 2, &["no connection to the server", "that the server is up"]);
    says(&check(dir.path(), &url, false).await, 0, &[]);
}

#[tokio::test]
async fn check_looks_at_the_server_also_where_it_holds_jobs_or_operations_alone() {
    let dir = temp();
    let mut redis = Redis::start();
    redis.kill();
    let upstream = "name: a, base_url: 'http://127.0.0.1:1'";
    for (rest, code) in [
        (format!("jobs: {{}}\nupstreams: [{{{upstream}, sync_paths: [/x]}}]"), 2),
        (format!("upstreams: [{{{upstream}, adapter: azuredi-facade}}]"), 2),
        (format!("upstreams: [{{{upstream}, sync_paths: [/x]}}]"), 0),
    ] {
        let text = format!("store: {{redis: {{url: '{}'}}}}\n{rest}\n", redis.url());
        std::fs::write(dir.path().join("gw.yaml"), text).unwrap_or_else(|error| unreachable!("{error}"));
        let checked = gateway::run(&["check", "--config", "gw.yaml", "--resolve"], &[], dir.path()).await;
        let words = if code == 2 { &["store.redis.url: no connection to the server"][..] } else { &[] };
        says(&checked, code, words);
    }
}

#[tokio::test]
async fn slow_a_cluster_that_is_down_is_told_in_the_words_of_the_gateway_alone() {
    let mut redis = Redis::with(&["--save", "", "--appendonly", "no", "--cluster-enabled", "yes"]);
    let slots: Vec<_> = (0..16384).map(|slot: u16| slot.to_string()).collect();
    let slots: Vec<_> = slots.iter().map(String::as_str).collect();
    assert_eq!(redis.ask(&[&["cluster", "addslots"], &slots[..]].concat()), "OK");
    until("the cluster", Duration::from_secs(10), async || {
        redis.ask(&["cluster", "info"]).contains("cluster_state:ok").then_some(())
    })
    .await;
    let upstream = Upstream::start().await;
    upstream.by(|_, _| r400());
    let gateway = on_redis(&upstream, &format!("url: 'redis-cluster://{}'", redis.addr())).start().await;
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    redis.kill();
    let mut requests: u32 = 1;
    while !gateway.log().contains("no connection to the refusal store") {
        requests += 1;
        assert!(requests < 3000, "{}", gateway.log());
        post(&gateway, CLASSIFY, random_document(requests.into(), 1000)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let log = gateway.log();
    assert!(!log.contains(" redis::"), "{log}");
    assert!(log.contains("requests go on without the memory, and jobs and operations are refused"), "{log}");
    settle(&gateway, requests as usize).await;
}

#[tokio::test]
async fn what_the_server_says_points_at_the_line_that_is_to_be_changed() {
    let dir = temp();
    let redis = Redis::start();
    let rules = [
        "reset",
        "on",
        ">of-the-gateway",
        "~{nevertwice}:*",
        "resetchannels",
        "&{nevertwice}:*",
        "+@all",
        "-zpopmin",
    ];
    assert_eq!(redis.ask(&[&["acl", "setuser", "gateway"], &rules[..]].concat()), "OK");
    assert_eq!(redis.ask(&["set", "{theirs}:index", "no index"]), "OK");
    let url = redis.url();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr());
    let nobody = nobody.unwrap_or_else(|error| unreachable!("{error}"));
    for (keys, place, words) in [
        // nobody is there; there is no such host; it is no Redis for clusters
        (format!("url: redis://{nobody}"), "5:10: error: store.redis.url: no connection", "check `url`"),
        (
            "url: redis://nowhere.invalid".to_owned(),
            "5:10: error: store.redis.url: no connection",
            "check `url`",
        ),
        (
            format!("url: redis-cluster://{}", redis.addr()),
            "5:10: error: store.redis.url: ",
            "begin `url` with redis://",
        ),
        (
            format!("url: {url}\n    username: gateway\n    password: env:REDIS_PASSWORD"),
            "7:15: error: store.redis.password: no connection",
            "check `username` and `password`",
        ),
        (
            format!("url: {url}\n    username: gateway\n    password: env:OF_GATEWAY"),
            "6:15: error: store.redis.username: the user gateway may not run ZPOPMIN",
            "ACL SETUSER gateway +zpopmin",
        ),
        (
            format!("url: {url}\n    prefix: theirs"),
            "6:13: error: store.redis.prefix: {theirs}:index belong to another program",
            "a `prefix` of their own",
        ),
    ] {
        let text = format!(
            "negative_cache: {{enabled: true}}\nupstreams: [{{name: a, base_url: 'http://127.0.0.1:1', sync_paths: [/x]}}]\n\
             store:\n  redis:\n    {keys}\n"
        );
        std::fs::write(dir.path().join("gw.yaml"), text).unwrap_or_else(|error| unreachable!("{error}"));
        let env = [("REDIS_PASSWORD", PASSWORD), ("OF_GATEWAY", "of-the-gateway")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let checked = gateway::run(&["check", "--config", "gw.yaml", "--resolve"], &env, dir.path()).await;
        says(&checked, 2, &[&format!("gw.yaml:{place}"), words]);
        assert!(!String::from_utf8_lossy(&checked.stderr).contains("of-the-gateway"));
    }
}

#[tokio::test]
async fn files_of_tls_are_read_at_start_and_told_when_they_are_of_no_use() {
    let dir = temp();
    let authority = Authority::new();
    let identity = authority.issue(&["gateway"]);
    identity.write(dir.path(), "one");
    authority.issue(&["gateway"]).write(dir.path(), "other");
    std::fs::write(dir.path().join("empty.pem"), "").unwrap_or_else(|error| unreachable!("{error}"));
    for (tls, words) in [
        ("ca: none.pem", &["store.redis.tls.ca: none.pem: cannot be read: entity not found"][..]),
        ("ca: empty.pem", &["store.redis.tls.ca: empty.pem: holds no certificate in PEM"]),
        ("client_cert: one.crt, client_key: one.crt", &["store.redis.tls.client_key: one.crt: "]),
        ("client_cert: one.crt, client_key: other.key", &["store.redis.tls.client_key: other.key: "]),
    ] {
        let keys = format!("url: 'rediss://127.0.0.1:1', tls: {{{tls}}}");
        says(&check(dir.path(), &keys, true).await, 2, words);
        let serve = gateway::run(&["serve", "--config", "gw.yaml"], &[], dir.path()).await;
        says(&serve, 2, words);
    }
    let fit = check(
        dir.path(),
        "url: 'rediss://127.0.0.1:1', tls: {client_cert: one.crt, client_key: one.key}",
        true,
    )
    .await;
    says(&fit, 2, &["no connection to the server"]);
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
async fn a_gateway_finds_its_server_by_sentinels_with_tls() {
    let dir = temp();
    let authority = Authority::new();
    let (cert, key) = authority.issue(&["127.0.0.1"]).write(dir.path(), "server");
    let (client_cert, client_key) = authority.issue(&["gateway"]).write(dir.path(), "client");
    let ca = authority.write(dir.path(), "ca");
    let stranger = Authority::new().write(dir.path(), "stranger");
    let files = [&cert, &key, &ca].map(|path| path.display().to_string());
    let files = TlsFiles { certificate: &files[0], key: &files[1], authority: &files[2] };
    let Some(server) = Redis::with_tls(files, &[]) else {
        eprintln!("skipped: this redis-server was built without TLS");
        return;
    };
    let sentinel = Redis::sentinel_with_tls("memory", server.addr(), 5000, files);
    let keys = |ca: &Path| {
        format!(
            "url: 'rediss-sentinel://{}/memory', tls: {{ca: {}, client_cert: {}, client_key: {}}}",
            sentinel.addr(),
            ca.display(),
            client_cert.display(),
            client_key.display()
        )
    };
    let checked = check(dir.path(), &format!("read_ms: 5000, {}", keys(&ca)), true).await;
    says(&checked, 0, &[]);
    assert!(checked.stderr.is_empty(), "{checked:?}");
    says(
        &check(dir.path(), &keys(&stranger), true).await,
        2,
        &["store.redis.url: no connection to the server"],
    );
    let upstream = Upstream::start().await;
    upstream.by(|_, _| r400());
    let [one, other] =
        [on_redis(&upstream, &keys(&ca)).start().await, on_redis(&upstream, &keys(&ca)).start().await];
    assert!(!post(&one, CLASSIFY, &DOC[..]).await.is_hit());
    assert!(post(&other, CLASSIFY, &DOC[..]).await.is_hit(), "{}", other.log());
    assert_eq!(upstream.calls(), 1);
    settle(&one, 1).await;
    settle(&other, 1).await;
}
