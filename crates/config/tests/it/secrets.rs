//! Secrets: by reference alone, never blank, and never in anything that is printed.

use std::io::Write as _;

use nevertwice_config::secret::{Given, Process, SECRET_MAX_BYTES, SecretSource as _, Unresolved};
use nevertwice_config::{from_text, read};
use secrecy::ExposeSecret;

use super::{load, top, up};

/// Must be in no output.
const LITERAL: &str = "sk-hunter2-0815-abcdef";

#[test]
fn a_literal_secret_is_refused_without_an_echo() {
    for text in [
        top(&format!("admin: {{token: {LITERAL}}}")),
        top(&format!("admin:\n  token: |\n    {LITERAL}\n")),
        top(&format!("admin: {{token: \"Bearer {LITERAL}\"}}")),
        top(&format!("admin: {{token: env:{LITERAL}}}")),
        top(&format!("admin: {{token: [{LITERAL}]}}")),
        top(&format!("admin: {{token: {{env: {LITERAL}}}}}")),
        top(&format!("admin: {{token: *{LITERAL}}}")),
        top(&format!("admin: {{token: &{LITERAL} x}}")),
        top(&format!("admin: {{token: !{LITERAL} x}}")),
        top(&format!("admin: {{{LITERAL}: x}}")),
        top(&format!("{LITERAL}: x")),
        top(&format!("admin: {{token: \"{LITERAL}}}")),
        top(&format!("admin:\n  token: {LITERAL}: x")),
        top(&format!("admin:\n  token: @{LITERAL}")),
        top(&format!("admin:\n  token: env:ONE\n {LITERAL}\n")),
        top(&format!("tenants: [{{id: a, key: {LITERAL}}}]")),
        top(&format!("tenants: [{{id: a, key_sha256: {LITERAL}}}]")),
        top(&format!("jobs: {{webhooks: {{secret: {LITERAL}}}}}")),
        top(&format!("jobs: {{webhooks: {LITERAL}}}")),
        top(&format!("public_base_url: 'https://user:{LITERAL}@h'")),
        top(&format!("public_base_url: 'https://h?key={LITERAL}'")),
        top(&format!("trusted_hops: ['{LITERAL}']")),
        up(&format!("adapter: azure-di\npoll_hosts: ['user:{LITERAL}@h', '{LITERAL} x']")),
        top(&format!("tenants: [{LITERAL}]")),
        top(&format!("drain_s: {LITERAL}")),
        top(&format!("negative_cache: {{enabled: {LITERAL}}}")),
        top(&format!("negative_cache: {{enabled: true, key_secret: {LITERAL}}}")),
        top(&format!("identity: {{tenant_header: \"x {LITERAL}\"}}")),
        up(&format!("credential: {{header: Authorization, value: {LITERAL}}}")),
        up(&format!("credential: {{header: \"Authorization: Bearer {LITERAL}\", value: env:ONE}}")),
        up(&format!("credential: {LITERAL}")),
        up(&format!("adapter: {LITERAL}")),
        up(&format!("mount: {LITERAL}")),
        up(&format!("negative_cache: {{profile: {LITERAL}, key_headers: [\"{LITERAL}:\"]}}")),
        format!("upstreams: [{{name: a, base_url: 'http://user:{LITERAL}@h'}}]"),
        format!("upstreams: [{{name: a, base_url: 'http://h?key={LITERAL}'}}]"),
        format!("upstreams: [{{name: a, base_url: '{LITERAL}'}}]"),
    ] {
        let problems = match load(&text) {
            Ok(_) => unreachable!("this was taken:\n{text}"),
            Err(problems) => problems,
        };
        for printed in [problems.to_string(), format!("{problems:?}")] {
            assert!(!printed.contains("hunter2"), "{text}\n{printed}");
        }
    }
}

#[test]
fn a_resolved_secret_is_in_no_output() {
    let text = format!(
        "admin: {{token: env:A}}\njobs: {{webhooks: {{secret: env:W}}}}\ntenants: [{{id: t, key: env:B}}]\nnegative_cache: {{enabled: true, key_secret: file:k}}\n{}",
        up("credential: {header: X-Key, value: env:C}")
    );
    let secrets = Given::default()
        .with_env("A", "hunter2-a")
        .with_env("B", "hunter2-b")
        .with_env("C", "hunter2-c")
        .with_env("W", "hunter2-hunter2-hunter2-hunter2")
        .with_file("k", "hunter2-hunter2-hunter2\n");
    let loaded = from_text(&text, "gw.yaml", &secrets).unwrap_or_else(|e| unreachable!("{e}"));
    let key = loaded
        .checked
        .memory
        .as_ref()
        .and_then(|m| m.key_secret.as_ref())
        .map(|s| s.expose_secret().to_vec());
    assert_eq!(key, Some(b"hunter2-hunter2-hunter2".to_vec()));
    assert!(!format!("{loaded:?} {secrets:?}").contains("hunter2"));
    // wrong ones are told by their reference
    let wrong = Given::default()
        .with_env("A", "hunter2 a")
        .with_env("B", "hunter2\tb")
        .with_env("C", "hunter2\nc")
        .with_env("W", "hunter2-too-short")
        .with_file("k", " \n");
    let problems = match from_text(&text, "gw.yaml", &wrong) {
        Ok(_) => unreachable!(),
        Err(problems) => problems,
    };
    assert_eq!(problems.errors(), 5, "{problems}");
    assert!(!format!("{problems} {problems:?}").contains("hunter2"));
}

#[test]
fn what_a_secret_may_not_be() {
    let text = top("admin: {token: env:T}");
    for (value, words) in [
        ("", "the secret is empty or blank"),
        ("  \t", "the secret is empty or blank"),
        ("\n", "the secret is empty or blank"),
        ("${ADMIN}", "a `${...}` that nobody replaced"),
        ("a b", "cannot be sent in a header"),
        ("a\n\n", "cannot be sent in a header"),
        ("pässword", "cannot be sent in a header"),
        (&"x".repeat(SECRET_MAX_BYTES + 1), "more than 65536 bytes"),
    ] {
        match from_text(&text, "gw.yaml", &Given::default().with_env("T", value)) {
            Ok(_) => unreachable!("{value:?} was taken"),
            Err(problems) => assert!(problems.to_string().contains(words), "{value:?}: {problems}"),
        }
    }
    for value in ["token", "token\n", "token\r\n"] {
        let loaded = from_text(&text, "gw.yaml", &Given::default().with_env("T", value));
        let admin = loaded.unwrap_or_else(|e| unreachable!("{e}")).checked.admin;
        let token = admin.and_then(|a| a.token).map(|t| t.expose_secret().to_vec());
        assert_eq!(token, Some(b"token".to_vec()));
    }
}

#[test]
fn references_have_a_form() {
    for (value, words) in [
        ("'env:'", "not the name of an environment variable"),
        ("env:A-B", "not the name of an environment variable"),
        ("env:1A", "not the name of an environment variable"),
        ("'env: A'", "not the name of an environment variable"),
        ("'file:'", "no path follows `file:`"),
        ("'file: '", "no path follows `file:`"),
        ("$TOKEN", "variables are not replaced"),
        ("ENV:A", "a secret must not stand in the configuration itself"),
        ("123456", "expected a reference to a secret, found a number"),
        ("", "found nothing"),
        ("{env: A}", "without a blank after the colon"),
        ("file:missing", "the file of the secret cannot be read: entity not found"),
        ("env:MISSING", "the environment variable MISSING is not set"),
    ] {
        super::refused(&top(&format!("admin: {{token: {value}}}")), "admin.token", words);
    }
}

#[test]
fn stand_ins_hold_for_every_purpose() {
    let text = format!(
        "admin: {{token: env:A}}\ntenants: [{{id: t, key: file:b}}]\nnegative_cache: {{enabled: true, key_secret: env:K}}\n{}",
        up("credential: {header: X-Key, value: env:C}")
    );
    let loaded = from_text(&text, "gw.yaml", &Unresolved).unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn a_configuration_file_and_its_secrets() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
    let write = |name: &str, bytes: &[u8]| {
        let file = std::fs::File::create(dir.path().join(name)).and_then(|mut f| f.write_all(bytes));
        file.unwrap_or_else(|e| unreachable!("{e}"));
        dir.path().join(name)
    };
    write("token", b"from-a-file\n");
    let config = write("gw.yaml", top("admin: {token: file:token}").as_bytes());
    let loaded = read(&config, &Process).unwrap_or_else(|e| unreachable!("{e}"));
    let token = loaded.checked.admin.and_then(|a| a.token).map(|t| t.expose_secret().to_vec());
    assert_eq!(token, Some(b"from-a-file".to_vec()));
    let refused = |path: &std::path::Path, words: &str| match read(path, &Process) {
        Ok(_) => unreachable!("{} was taken", path.display()),
        Err(problems) => assert!(problems.to_string().contains(words), "{problems}"),
    };
    refused(
        &dir.path().join("none.yaml"),
        "none.yaml: error: the file cannot be read: entity not found; check the path",
    );
    refused(dir.path(), "this is not a regular file");
    refused(
        &write("latin1.yaml", b"drain_s: 5\nname: \xe4\n"),
        "line 2 is not UTF-8; save the file as UTF-8",
    );
    refused(&write("long.yaml", &vec![b'#'; 1024 * 1024 + 1]), "more than 1048576 bytes");
    refused(&write("bom.yaml", "\u{feff}drain_s: 5\n".as_bytes()), "`upstreams` is missing");
    let silent = dir.path().join("silent");
    let made = std::process::Command::new("mkfifo").arg(&silent).status();
    assert!(made.is_ok_and(|status| status.success()));
    refused(&silent, "this is not a regular file");
    let strange =
        [silent, dir.path().to_owned(), "/dev/zero".into(), "/dev/null".into(), "/dev/stdin".into()];
    for strange in strange.iter().filter(|path| !path.is_file()) {
        let text = top(&format!("admin: {{token: 'file:{}'}}", strange.display()));
        refused(
            &write("strange.yaml", text.as_bytes()),
            "error: admin.token: the file of the secret is not a regular file; write the secret into a file",
        );
    }
    // as Kubernetes lays them out
    let link = dir.path().join("link");
    assert!(std::os::unix::fs::symlink("token", &link).is_ok());
    assert_eq!(Process.file(&link).ok(), Some(b"from-a-file\n".to_vec()));
    let long = Process.file(&write("secret", &vec![b'x'; SECRET_MAX_BYTES * 2]));
    assert_eq!(long.map(|bytes| bytes.len()).ok(), Some(SECRET_MAX_BYTES + 1));
    assert_eq!(Process.env("NEVERTWICE_SURELY_NOT_SET"), None);
}
