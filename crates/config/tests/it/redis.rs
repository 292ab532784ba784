//! The store on Redis: the forms of its address, its other keys, and every way to get them wrong.

use std::time::Duration;

use nevertwice_config::checked::{ClientTls, Redis, RedisTopology, StoreConfig, TlsFiles};
use nevertwice_config::from_text;
use secrecy::ExposeSecret;

use super::{given, good, problems, refused, top};

#[track_caller]
fn redis(keys: &str) -> Redis {
    match good(&top(&format!("store: {{redis: {{{keys}}}}}"))).store {
        StoreConfig::Redis(redis) => *redis,
        other => unreachable!("{other:?}"),
    }
}

#[track_caller]
fn wrong(keys: &str, key: &str, words: &str) {
    let path = if key.is_empty() { "store.redis".to_owned() } else { format!("store.redis.{key}") };
    refused(&top(&format!("store: {{redis: {{{keys}}}}}")), &path, words);
}

#[test]
fn an_address_has_one_full_form() {
    for (url, full) in [
        ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("REDIS://Cache.Internal:7000/15", "redis://cache.internal:7000/15"),
        ("redis://cache_1/", "redis://cache_1:6379/0"),
        ("redis://[::1]", "redis://[::1]:6379/0"),
        ("redis://[2001:DB8:0::1]:7/3", "redis://[2001:db8::1]:7/3"),
        ("rediss://h", "rediss://h:6379/0"),
        ("redis-sentinel://a,b:1,[::1]/mymaster", "redis-sentinel://a:26379,b:1,[::1]:26379/mymaster/0"),
        ("redis-sentinel://a/my.master-1/4", "redis-sentinel://a:26379/my.master-1/4"),
        ("rediss-sentinel://a/m", "rediss-sentinel://a:26379/m/0"),
        ("redis-cluster://a,b:7001", "redis-cluster://a:6379,b:7001"),
        ("redis-cluster://a/0", "redis-cluster://a:6379"),
        ("rediss-cluster://a/", "rediss-cluster://a:6379"),
    ] {
        let redis = redis(&format!("url: '{url}'"));
        assert_eq!(redis.address.to_string(), full, "{url}");
        assert_eq!(redis.address.tls.is_some(), url.starts_with("rediss"), "{url}");
    }
    let RedisTopology::One(host) = redis("url: 'redis://[::1]'").address.topology else { unreachable!() };
    assert_eq!(host.host, "::1", "without brackets, as a resolver takes it");
}

#[test]
fn what_is_not_said_has_its_default() {
    let redis = redis("url: redis://h");
    assert_eq!((redis.address.db, redis.prefix.as_str()), (0, "nevertwice"));
    assert_eq!((redis.read, redis.write), (Duration::from_millis(25), Duration::from_millis(50)));
    assert!(redis.credential.is_none() && redis.address.tls.is_none());
    assert!(matches!(good(&top("store: {}")).store, StoreConfig::Embedded { .. }));
}

#[test]
fn all_keys_are_taken() {
    let text = top(
        "store: {redis: {url: rediss://h, prefix: a.B_1-c, read_ms: 5, write_ms: 10000, username: gateway, \
                    password: env:ONE, tls: {ca: ca.pem, client_cert: c.pem, client_key: k.pem}}}",
    );
    let loaded = from_text(&text, "/etc/nevertwice/gw.yaml", &given());
    let StoreConfig::Redis(redis) = loaded.unwrap_or_else(|e| unreachable!("{e}")).checked.store else {
        unreachable!()
    };
    assert_eq!(redis.prefix, "a.B_1-c");
    assert_eq!((redis.read, redis.write), (Duration::from_millis(5), Duration::from_secs(10)));
    let printed = format!("{redis:?}");
    assert!(!printed.contains("first-secret"), "{printed}");
    let credential = redis.credential.unwrap_or_else(|| unreachable!());
    assert_eq!(credential.username.as_deref(), Some("gateway"));
    assert_eq!(credential.password.expose_secret(), "first-secret-value-0001");
    let path = |name: &str| format!("/etc/nevertwice/{name}").into();
    let client = Some(TlsFiles { cert: path("c.pem"), key: path("k.pem") });
    assert_eq!(redis.address.tls, Some(ClientTls { ca: Some(path("ca.pem")), client }));
    assert!(super::load(&top("store: {redis: {url: redis://h, password: file:p}}")).is_err(), "no such file");
    let password = given().with_file("p", "blanks and umläüts: fine\n");
    let loaded = from_text(&top("store: {redis: {url: redis://h, password: file:p}}"), "gw.yaml", &password);
    let StoreConfig::Redis(redis) = loaded.unwrap_or_else(|e| unreachable!("{e}")).checked.store else {
        unreachable!()
    };
    let password = redis.credential.map(|c| c.password.expose_secret().to_owned());
    assert_eq!(password.as_deref(), Some("blanks and umläüts: fine"));
}

#[test]
fn what_is_no_address() {
    for (url, words) in [
        ("127.0.0.1:6379", "no scheme; begin with redis://"),
        ("", "no scheme"),
        ("http://h", "not the scheme of a Redis"),
        ("valkey://h", "they stand for Valkey too"),
        ("redis+sentinel://h/m", "begin with redis://, redis-sentinel://"),
        ("redis-sentinels://h/m", "not the scheme of a Redis"),
        ("redis+unix:///run/redis.sock", "a Unix socket is not supported"),
        ("unix:///run/redis.sock", "a Unix socket is not supported"),
        ("redis://", "a host is missing"),
        ("redis:///0", "a host is missing"),
        ("redis://:6379", "a host is missing"),
        ("redis://a,b", "redis:// names one server; begin with redis-sentinel:// or redis-cluster://"),
        ("redis://h:0", "the port is not a number from 1 to 65535"),
        ("redis://h:65536", "the port is not a number"),
        ("redis://h:x", "the port is not a number"),
        ("redis://h:+1", "the port is not a number"),
        ("redis://h:", "the port is not a number"),
        ("redis://::1", "an IPv6 address in a URL needs brackets"),
        ("redis://[::1", "a bracket is not closed"),
        ("redis://[x]", "no IPv6 address in the brackets"),
        ("redis://[fe80::1%25lo]", "zone ids are not supported"),
        ("redis://[::1]6379", "only a port may follow a bracket"),
        ("redis://h/x", "not the number of a database"),
        ("redis://h/-1", "not the number of a database"),
        ("redis://h/0/1", "not the number of a database"),
        ("redis://h/65536", "not from 0 to 65535"),
        ("redis://h/99999999999", "not from 0 to 65535"),
        ("redis://h?db=1", "no query or fragment"),
        ("redis://h/0#x", "no query or fragment"),
        ("redis://h h", "blanks"),
        ("redis://bücher", "blanks"),
        ("redis://h\\x", "blanks"),
        ("redis://a^b", "a host name cannot have"),
        (
            "redis-sentinel://a,b",
            "does not name the primary; write it as in redis-sentinel://HOST,HOST/PRIMARY",
        ),
        ("redis-sentinel://a/", "does not name the primary"),
        ("redis-sentinel://a/m:1", "the name of a primary"),
        ("redis-sentinel://a/m/x", "not the number of a database"),
        ("redis-sentinel://a,/m", "a host is missing"),
        ("redis-sentinel://a,a:26379/m", "a server stands there twice"),
        ("redis-cluster://a,,b", "a host is missing"),
        ("redis-cluster://a/1", "a cluster has database 0 alone"),
        ("redis-cluster://a/m", "not the number of a database"),
    ] {
        wrong(&format!("url: '{url}'"), "url", words);
    }
    wrong("url: [redis://a, redis://b]", "url", "expected a text, found a list");
}

#[test]
fn a_secret_in_the_address_is_refused_without_an_echo() {
    for url in [
        "redis://user:hunter2@h",
        "redis://:hunter2@h:6379/0",
        "redis://hunter2@h",
        "redis://:hunter2/x?#y@h",
        "redis://:hunter2 x@h",
        "rediss-cluster://user:hunter2@a,b",
        "redis-sentinel://:hunter2@a/m",
        "http://user:hunter2@h",
        "redis://h?password=hunter2",
        "redis://h/hunter2",
        "hunter2",
    ] {
        let text = top(&format!("store: {{redis: {{url: '{url}'}}}}"));
        let all = problems(&text);
        let told = format!("{all:?}");
        assert!(all.len() == 1 && !told.contains("hunter2"), "{told}");
        if url.contains('@') {
            assert!(told.contains("secrets come from `env:` or `file:`"), "{told}");
            assert!(told.contains("`password: env:NAME`"), "{told}");
        }
    }
}

#[test]
fn the_other_keys_have_their_rules() {
    for (keys, key, words) in [
        ("prefix: p", "url", "`url` is missing; add `url: redis://HOST:PORT`"),
        ("url: redis://h, prefix: ''", "prefix", "write 1 to 48 letters"),
        ("url: redis://h, prefix: 'a b'", "prefix", "write 1 to 48 letters"),
        ("url: redis://h, prefix: 'a:b'", "prefix", "a colon are added"),
        ("url: redis://h, prefix: '{a}'", "prefix", "write 1 to 48 letters"),
        ("url: redis://h, prefix: 5", "prefix", "put it in quotes"),
        ("url: redis://h, read_ms: 0", "read_ms", "write a number from 1 to 10000"),
        ("url: redis://h, write_ms: 10001", "write_ms", "write a number from 1 to 10000"),
        ("url: redis://h, write_ms: 50ms", "write_ms", "without a unit"),
        ("url: redis://h, username: u", "password", "`username` needs `password`; add `password: env:NAME`"),
        ("url: redis://h, username: '', password: env:ONE", "username", "not the name of an ACL user"),
        ("url: redis://h, username: 'a b', password: env:ONE", "username", "not the name of an ACL user"),
        ("url: redis://h, username: env:ONE, password: env:ONE", "username", "write the name itself"),
        ("url: redis://h, password: hunter2", "password", "must not stand in the configuration"),
        ("url: redis://h, password: env:NONE", "password", "NONE is not set"),
        ("url: redis://h, tls: {}", "tls", "`url` does not ask for TLS; begin `url` with rediss"),
        ("url: redis-cluster://h, tls: {ca: c}", "tls", "begin `url` with rediss, or remove `tls`"),
        ("url: rediss://h, tls: {client_cert: c}", "tls.client_key", "`client_cert` needs `client_key`"),
        ("url: rediss://h, tls: {client_key: c}", "tls.client_cert", "`client_key` needs `client_cert`"),
    ] {
        wrong(keys, key, words);
    }
    let long = "p".repeat(49);
    wrong(&format!("url: redis://h, prefix: {long}"), "prefix", "write 1 to 48 letters");
    assert_eq!(redis(&format!("url: redis://h, prefix: {}", &long[1..])).prefix.len(), 48);
    let binary = given().with_file("p", b"a\xff".to_vec());
    let told = from_text(&top("store: {redis: {url: redis://h, password: file:p}}"), "gw.yaml", &binary);
    assert!(told.is_err_and(|e| {
        e.to_string().contains("store.redis.password: the secret is not a text of one line")
    }));
}

#[test]
fn there_is_one_store() {
    let both = top("store:\n  embedded: {path: d}\n  redis: {url: redis://h}");
    refused(&both, "store.redis", "`embedded` stands at line 2; remove one of them");
}

#[test]
fn the_keys_of_other_programs_are_told_as_what_they_are_here() {
    for (keys, key, words) in [
        ("addr: 'h:1'", "addr", "it is part of `url`: redis://HOST:PORT/DB"),
        ("host: h", "host", "it is part of `url`"),
        ("url: redis://h, port: 1", "port", "it is part of `url`"),
        ("url: redis://h, db: 1", "db", "it is part of `url`"),
        ("nodes: [a, b]", "nodes", "redis-cluster://HOST,HOST"),
        ("urls: [redis://h]", "urls", "did you mean `url`?"),
        ("uri: redis://h", "uri", "did you mean `url`?"),
        ("url: redis://h, user: u", "user", "did you mean `username`?"),
        ("url: redis://h, key_prefix: p", "key_prefix", "did you mean `prefix`?"),
        ("url: redis://h, read_timeout_ms: 5", "read_timeout_ms", "`read_ms`"),
        ("url: redis://h, timeout_ms: 5", "timeout_ms", "`read_ms` bounds a look-up and `write_ms` a record"),
        ("url: redis://h, ssl: true", "ssl", "write `url: rediss://...`"),
        ("url: redis://h, ca: f", "ca", "`ca` belongs under `tls`"),
        ("url: redis://h, path: d", "path", "belongs under `store.embedded`"),
    ] {
        wrong(keys, key, words);
    }
    refused(&top("redis: {url: redis://h}"), "redis", "`redis` belongs under `store`");
    refused(&top("store: {url: redis://h}"), "store.url", "`url` belongs under `redis`");
    refused(&top("store: {redis: redis://h}"), "store.redis", "write keys such as `url:`");
    refused(&top("store: {valkey: {}}"), "store.valkey", "the keys here are embedded, redis");
}
