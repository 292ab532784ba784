//! Addresses, TLS, the admin listener, the store, audit (NW-04, OB-07).

use std::path::Path;

use nevertwice_config::checked::{AuditSink, StoreConfig};

use super::{good, refused, top, warned};

#[test]
fn listen_takes_addresses_and_nothing_that_has_to_be_looked_up() {
    for (value, addr) in [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("\"[::]:8080\"", "[::]:8080"),
        ("'[::ffff:127.0.0.1]:1'", "[::ffff:127.0.0.1]:1"),
        ("localhost:80", "127.0.0.1:80"),
        ("{addr: 0.0.0.0:0}", "0.0.0.0:0"),
    ] {
        assert_eq!(good(&top(&format!("listen: {value}"))).listen[0].addr.to_string(), addr);
    }
    for (value, words) in [
        ("8080", "expected an address, found a number; write an IP address and a port"),
        ("\":8080\"", "write 127.0.0.1:8080 for this machine alone, 0.0.0.0:8080 for all"),
        ("\"*:8080\"", "0.0.0.0:8080 for all"),
        ("\"8080\"", "the address has no host"),
        ("127.0.0.1", "the address has no port"),
        ("localhost", "the address has no port"),
        ("\"[::1]\"", "the address has no port"),
        ("\"::1\"", "needs brackets"),
        ("\"::1:8080\"", "needs brackets"),
        ("\"[fe80::1%eth0]:80\"", "zone ids are not supported"),
        ("http://127.0.0.1:80", "this is a URL"),
        ("127.0.0.1:99999", "the port is not a number from 0 to 65535"),
        ("127.0.0.1:http", "the port is not a number"),
        ("gateway.internal:8080", "names are not looked up"),
        ("''", "not an IP address"),
    ] {
        refused(&top(&format!("listen: {value}")), "listen", words);
    }
    refused(&top("listen: []"), "listen", "the list is empty");
    refused(&top("listen: [127.0.0.1:1, 127.0.0.1:1]"), "listen[1]", "collides with the one at line 1");
    refused(&top("listen: [127.0.0.1:1, 0.0.0.0:1]"), "listen[1]", "collides");
    refused(&top("listen: {tls: {cert: a, key: b}}"), "listen.addr", "`addr` is missing");
    refused(&top("listen: [127.0.0.1:1, {addr: nowhere}]"), "listen[1].addr", "not an IP address");
}

#[test]
fn tls_is_for_all_addresses_or_for_one() {
    let checked = good(&top(
        "tls: {cert: c, key: k}\nlisten: [127.0.0.1:1, {addr: 127.0.0.1:2, tls: {cert: d, key: /l}}]",
    ));
    let cert = |i: usize| checked.listen[i].tls.as_ref().map(|t| t.cert.display().to_string());
    assert_eq!((cert(0), cert(1)), (Some("c".to_owned()), Some("d".to_owned())));
    refused(&top("tls: {cert: c}"), "tls.key", "`key` is missing; name the PEM file");
    refused(&top("tls: {key: c}"), "tls.cert", "`cert` is missing");
}

#[test]
fn the_admin_api_is_never_open_by_omission() {
    assert_eq!(
        good(&top("admin: {}")).admin.map(|a| a.listen.to_string()),
        Some("127.0.0.1:9090".to_owned())
    );
    good(&top("admin: {listen: \"[::1]:9090\"}"));
    good(&top("admin: {listen: 0.0.0.0:9090, token: env:ONE}"));
    for address in ["0.0.0.0:9090", "10.0.0.1:9090", "\"[::]:9090\"", "\"[::ffff:10.0.0.1]:9090\""] {
        let text = top(&format!("admin: {{listen: {address}}}"));
        refused(
            &text,
            "admin.listen",
            "the admin address is not loopback and there is no token; add `token: env:NAME`",
        );
    }
    refused(&top("admin: {listen: 0.0.0.0:9090, token: env:GONE}"), "admin.token", "GONE is not set");
    refused(&top("admin: {listen: 0.0.0.0:9090, token: ''}"), "admin.token", "a secret must not stand");
    refused(&top("admin: {token: \"${ADMIN}\"}"), "admin.token", "write `env:NAME` instead of `${NAME}`");
    refused(&top("admin: {token: }"), "admin.token", "found nothing");
    refused(&top("listen: 127.0.0.1:9090\nadmin: {}"), "admin.listen", "collides with `listen` (line 1)");
    refused(&top("listen: 0.0.0.0:9090\nadmin: {listen: 127.0.0.1:9090}"), "admin.listen", "collides");
    refused(&top("admin: {listen: nowhere}"), "admin.listen", "not an IP address");
}

#[test]
fn audit_goes_to_one_place() {
    assert_eq!(good(&top("audit: {stdout: true}")).audit.map(|a| a.sink), Some(AuditSink::Stdout));
    let text = top("audit: {file: /a, stdout: false, rotate_bytes: 4096, keep: 0, on_full: refuse}");
    assert_eq!(good(&text).audit.and_then(|a| a.rotate_bytes), Some(4096));
    refused(&top("audit: {}"), "audit.file", "`audit` does not say where lines go");
    refused(&top("audit: {stdout: false}"), "audit.file", "does not say where lines go");
    refused(&top("audit: {file: a, stdout: true}"), "audit", "not to both");
    refused(&top("audit: {file: a, on_full: block}"), "audit.on_full", "drop, refuse");
    refused(&top("audit: {file: a, rotate_bytes: 5}"), "audit.rotate_bytes", "out of bounds");
    warned(
        &top("audit: {stdout: true, rotate_bytes: 4096}"),
        "audit.rotate_bytes",
        "no effect on standard output",
    );
    warned(&top("audit: {file: a, keep: 4}"), "audit.keep", "no effect without `rotate_bytes`");
}

#[test]
fn paths_are_relative_to_the_file() {
    let text = top("store: {embedded: {path: data}}\nlimits: {spill_dir: spill}\naudit: {file: /var/log/a}");
    let loaded = nevertwice_config::from_text(&text, "/etc/nevertwice/gw.yaml", &super::given());
    let checked = loaded.unwrap_or_else(|e| unreachable!("{e}")).checked;
    assert!(
        matches!(&checked.store, StoreConfig::Embedded { path } if path == Path::new("/etc/nevertwice/data"))
    );
    assert_eq!(checked.limits.spill_dir, Some("/etc/nevertwice/spill".into()));
    assert_eq!(checked.audit.map(|a| a.sink), Some(AuditSink::File("/var/log/a".into())));
}
