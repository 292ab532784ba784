//! The example of the design, and the defaults.

use std::path::Path;
use std::time::Duration;

use nevertwice_config::checked::{
    Adapter, AuditSink, ClientTls, Http, Limits, Mode, OnFull, Pool, RouteRights, ScopeRule, StoreConfig,
};
use nevertwice_config::secret::{Given, Unresolved};
use nevertwice_config::{DEFAULT_ADMIN, for_upstream, from_text};
use nevertwice_domain::canonical::form::FileNameRule;
use nevertwice_domain::guard::GuardPolicy;
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::{Ladder, LifePolicy};
use secrecy::ExposeSecret;

const EXAMPLE: &str = r#"
listen: 127.0.0.1:8080              # one address or a list; `tls: {cert: file, key: file}` optional
identity:                            # who is asking
  tenant_header: X-Tenant-Id
tenants:
  - id: dev_1
    key: env:DEV_1_KEY
    routes: ["*"]
admin:
  listen: 127.0.0.1:9090
  token: env:NEVERTWICE_ADMIN_TOKEN
store:
  embedded: { path: ./nevertwice-data }
audit: { file: ./audit.jsonl }
limits: { body_max_bytes: 536870912, buffer_memory_bytes: 268435456 }
negative_cache:
  enabled: true
  ttl_s: 86400
  max_entries: 10000
  max_body_bytes: 65536
  statuses: [400, 413, 415, 422]
upstreams:
  - name: doc-classifier
    adapter: sync-facade
    base_url: http://127.0.0.1:9001
    mount: /doc-classifier
    sync_paths: [/classify]
    credential: { header: Authorization, value: env:CLASSIFIER_AUTH }
    pool: { max_in_flight: 8, max_queue: 64, queue_timeout_ms: 5000 }
    timeout_ms: 60000
    idle_timeout_ms: 60000
    negative_cache: { profile: status, scope: fleet, generation: "", filename: keyed, key_headers: [], ignored_query: [] }
"#;

#[test]
fn the_example_of_the_design_loads() {
    let secrets = Given::default()
        .with_env("DEV_1_KEY", "dev-1-key")
        .with_env("NEVERTWICE_ADMIN_TOKEN", "admin-token")
        .with_env("CLASSIFIER_AUTH", "Bearer upstream");
    let loaded = from_text(EXAMPLE, "conf/gw.yaml", &secrets).unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(loaded.warnings, []);
    let checked = loaded.checked;
    assert_eq!(checked.identity.tenant_header.map(|h| h.to_string()), Some("x-tenant-id".to_owned()));
    assert_eq!(checked.identity.tenants[0].id.as_str(), "dev_1");
    assert_eq!(checked.identity.tenants[0].routes, RouteRights::All);
    assert!(
        matches!(&checked.store, StoreConfig::Embedded { path } if path == Path::new("conf/./nevertwice-data"))
    );
    let audit = checked.audit.unwrap_or_else(|| unreachable!());
    assert_eq!(audit.sink, AuditSink::File("conf/./audit.jsonl".into()));
    assert_eq!((audit.on_full, audit.rotate_bytes, audit.keep), (OnFull::Drop, None, 5));
    assert_eq!(checked.digest.len(), 16);
    let upstream = &checked.upstreams[0];
    assert_eq!(upstream.mount.as_deref(), Some("/doc-classifier"));
    assert_eq!(upstream.sync_paths, ["/classify"]);
    assert_eq!(upstream.base_urls[0].to_string(), "http://127.0.0.1:9001/");
    let credential = upstream.credential.as_ref().map(|c| c.value.expose_secret());
    assert_eq!(credential, Some(&b"Bearer upstream"[..]));
    assert!(upstream.memory.is_some() && !upstream.all_paths);

    let unresolved = from_text(EXAMPLE, "gw.yaml", &Unresolved).unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(unresolved.checked.digest, checked.digest);
}

#[test]
fn the_defaults() {
    let checked = super::good(super::LEAST);
    assert_eq!(checked.listen[0].addr, nevertwice_config::DEFAULT_LISTEN);
    assert!(checked.admin.is_none() && checked.audit.is_none() && checked.memory.is_none());
    assert!(checked.identity.tenants.is_empty() && checked.identity.tenant_header.is_none());
    assert!(
        matches!(&checked.store, StoreConfig::Embedded { path } if path == Path::new("./nevertwice-data"))
    );
    assert_eq!(checked.drain, Duration::from_secs(30));
    let limits = Limits { body_max_bytes: 536_870_912, buffer_memory_bytes: 268_435_456, spill_dir: None };
    assert_eq!(checked.limits, limits);
    let http = Http {
        header_max_bytes: 65_536,
        header_max_count: 200,
        header_timeout: Duration::from_secs(10),
        body_idle_timeout: Duration::from_secs(30),
        body_min_rate: 256,
        write_stall_timeout: Duration::from_secs(60),
        keep_alive: Duration::from_secs(75),
        max_connections: 10_000,
        h2: true,
    };
    assert_eq!(checked.http, http);
    let upstream = &checked.upstreams[0];
    assert_eq!(upstream.adapter, Adapter::SyncFacade);
    assert_eq!(upstream.mount.as_deref(), Some("/a"));
    let pool = Pool {
        max_in_flight: 64,
        max_queue: 1024,
        queue_timeout: Duration::from_secs(5),
        connection_idle: Duration::from_secs(4),
    };
    assert_eq!(upstream.pool, pool);
    assert_eq!(upstream.timeout, Duration::from_secs(60));
    assert_eq!(upstream.idle_timeout, Duration::from_secs(60));
    assert_eq!(upstream.connect_timeout, Duration::from_secs(5));
    assert_eq!((upstream.stream_max, upstream.strict_paths), (None, false));
    assert_eq!(upstream.tls, ClientTls::default());
    assert!(upstream.memory.is_none());
}

#[test]
fn the_defaults_of_the_memory() {
    let checked = super::good(&super::top("negative_cache: {enabled: true}"));
    let memory = checked.memory.unwrap_or_else(|| unreachable!());
    assert_eq!(memory.ttl, Duration::from_secs(86_400));
    assert_eq!((memory.max_entries, memory.max_body_bytes), (10_000, 65_536));
    assert_eq!(memory.statuses.to_string(), "[400 413 415 422]");
    assert!(memory.key_secret.is_none());
    let here = checked.upstreams[0].memory.as_ref().unwrap_or_else(|| unreachable!());
    assert_eq!(here.profile.name(), "status");
    assert_eq!((here.mode, &here.scope), (Mode::Enforce, &ScopeRule::Fleet));
    assert_eq!((here.generation.as_str(), here.filename), ("", FileNameRule::Keyed));
    assert_eq!(here.life, LifePolicy::flat(86_400_000));
    assert_eq!(here.single_flight_wait, Duration::from_secs(10));
    assert_eq!(here.judge_wait, Duration::from_secs(5));
    assert!(here.honor_cache_control);
    assert_eq!((here.guard, here.loop_breaker), (GuardPolicy::default(), None));
}

#[test]
fn everything_that_can_be_said_about_one_upstream() {
    let text = "
negative_cache: {enabled: true, ttl_s: 1000, key_secret: env:ONE}
tenants: [{id: t1, key: env:ONE}, {id: t2, key: env:TWO, routes: [a]}]
upstreams:
  - name: a
    base_url: [https://h1/p/, https://h2:8443]
    mount: /
    sync_paths: [/x, /y/z]
    strict_paths: true
    stream_max_ms: 5
    tls: {ca: ca.pem, client_cert: /c.pem, client_key: k.pem}
    negative_cache:
      mode: observe
      scope: domain
      trust_domains: [{name: d, tenants: [t1, t2]}]
      generation: 7
      filename: neutral
      key_headers: [X-Model, x-lang]
      ignored_query: [_]
      ttl_s: 2000
      status_ttl_s: {413: 60, '422': 2000}
      ttl_ladder: {first_s: 10}
      confirmations: 2
      single_flight_wait_ms: 0
      judge_wait_ms: 1
      honor_cache_control: false
      mass_refusal_guard: {enabled: false, distinct: 5, window_s: 6, share: 1}
      loop_breaker: {enabled: true, failures: 2, window_s: 3, hold_s: 4, one_tenant_suffices: true}
  - name: chat
    adapter: openai
    base_url: http://h
";
    let checked = super::good(text);
    let a = &checked.upstreams[0];
    assert_eq!(
        a.base_urls.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["https://h1/p", "https://h2:8443/"]
    );
    assert_eq!(a.mount.as_deref(), Some(""));
    assert!(a.strict_paths && a.stream_max == Some(Duration::from_millis(5)));
    assert_eq!(a.tls.client.as_ref().map(|c| c.cert.as_path()), Some(Path::new("/c.pem")));
    let m = a.memory.as_ref().unwrap_or_else(|| unreachable!());
    assert_eq!((m.mode, m.filename), (Mode::Observe, FileNameRule::Neutral));
    assert!(matches!(&m.scope, ScopeRule::Domains(d) if d[0].tenants.len() == 2 && &*d[0].name == "d"));
    assert_eq!(m.generation, "7");
    assert_eq!(m.key_headers, ["x-model", "x-lang"]);
    assert_eq!(m.ignored_query, ["_"]);
    let ladder = Ladder { first_ms: 10_000, factor: 4 };
    let capped = [(413, 60_000), (422, 2_000_000)];
    let life = LifePolicy::flat(2_000_000).confirmed_by(2).climbing(ladder);
    let life = capped.into_iter().fold(life, |life, (status, ms)| {
        life.capped_for(RefusalStatus::new(status).unwrap_or_else(|e| unreachable!("{e}")), ms)
    });
    assert_eq!(m.life, life);
    assert_eq!(m.guard, GuardPolicy { enabled: false, distinct: 5, window_ms: 6000, share: 1.0 });
    assert!(checked.upstreams[1].memory.is_none());
    assert!(checked.identity.tenants[1].routes.allow(&a.name));
    assert!(!checked.identity.tenants[1].routes.allow(&checked.upstreams[1].name));
}

#[test]
fn one_url_is_enough() {
    let listen = "127.0.0.1:8080".parse().unwrap_or_else(|_| unreachable!());
    let checked = for_upstream("http://localhost:9000", listen, None).unwrap_or_else(|e| unreachable!("{e}"));
    let upstream = &checked.upstreams[0];
    assert_eq!(
        (upstream.name.as_str(), upstream.mount.as_deref(), upstream.all_paths),
        ("upstream", Some(""), true)
    );
    assert!(upstream.memory.is_some() && checked.memory.is_some() && checked.audit.is_none());
    assert_eq!(checked.admin.map(|a| a.listen), Some(DEFAULT_ADMIN));
    assert!(
        matches!(&checked.store, StoreConfig::Embedded { path } if path == Path::new("./nevertwice-data"))
    );
    assert!(checked.identity.tenants.is_empty());

    let audited =
        for_upstream("http://h", listen, Some(Path::new("a.jsonl"))).unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(audited.audit.map(|a| a.sink), Some(AuditSink::File("a.jsonl".into())));

    let problems = for_upstream("localhost:9000", listen, None).map(|_| ()).unwrap_err_or_panic();
    let expected = "command line: error: --upstream: the URL has no scheme; begin with http:// or https://";
    assert_eq!(problems, expected);
    let problems = for_upstream("http://h", DEFAULT_ADMIN, None).map(|_| ()).unwrap_err_or_panic();
    assert!(problems.contains("the admin address collides with `listen` (--listen)"), "{problems}");
}

trait Refused {
    fn unwrap_err_or_panic(self) -> String;
}

impl Refused for Result<(), nevertwice_config::problem::Problems> {
    fn unwrap_err_or_panic(self) -> String {
        match self {
            Ok(()) => unreachable!("this was taken"),
            Err(problems) => problems.to_string(),
        }
    }
}
