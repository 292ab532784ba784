//! A configuration that does not hold, and a store that cannot be trusted, are refused at start with a text that says
//! what, where and what to do; and `check` says the same as `serve`.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use nevertwice_testkit::{DOC, Gateway, Setup, Upstream, gateway, r400};

use crate::bench::{post, settle};

const GOOD: &str = "\
listen: 127.0.0.1:0
tenants:
  - { id: dev_1, key: env:KEY_1 }
  - { id: dev_2, key: env:KEY_2 }
negative_cache:
  enabled: true
  statuses: [400, 413, 415, 422]
upstreams:
  - name: one
    base_url: http://127.0.0.1:1
    sync_paths: [/classify]
  - name: two
    base_url: http://127.0.0.1:2
";

struct Checked {
    serve: Output,
    check: Output,
}

impl Checked {
    /// What both commands say about a configuration.
    async fn of(text: &str, dir: &Path) -> Self {
        let file = dir.join("nevertwice.yaml");
        std::fs::write(&file, text).unwrap_or_else(|error| unreachable!("{error}"));
        let env = [("KEY_1", "a-1"), ("KEY_2", "a-2"), ("NEVERTWICE_ENABLD", "true")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let name = file.display().to_string();
        let check = gateway::run(&["check", "--config", &name, "--resolve"], &env, dir).await;
        // A configuration that is good would be served until the end of time.
        let serve = match check.status.success() {
            true => check.clone(),
            false => gateway::run(&["serve", "--config", &name], &env, dir).await,
        };
        Self { serve, check }
    }

    fn is_refused_with(&self, case: &str, parts: &[&str]) {
        for (command, output) in [("check", &self.check), ("serve", &self.serve)] {
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{case}: {command}: {text}");
            assert!(text.contains("nevertwice.yaml"), "{case}: {command} names the file: {text}");
            for part in parts {
                assert!(text.contains(part), "{case}: {command} says {part:?}: {text}");
            }
            assert!(!text.contains("panicked"), "{case}: {command}: {text}");
        }
    }
}

async fn with(from: &str, to: &str, dir: &Path) -> Checked {
    assert!(GOOD.contains(from), "{from:?}");
    Checked::of(&GOOD.replacen(from, to, 1), dir).await
}

#[tokio::test]
async fn cf_01_misspelt_and_misplaced_keys_are_refused_with_the_place_and_the_nearest_name() {
    let dir = temp();
    let good = Checked::of(GOOD, dir.path()).await.check;
    assert!(good.status.success(), "{good:?}");
    for (case, from, to, parts) in [
        ("in the block", "  enabled: true", "  enabld: true", &["enabld", "`enabled`", ":6:"][..]),
        ("the block", "negative_cache:", "negative_cahe:", &["negative_cahe", "`negative_cache`", ":5:"]),
        ("singular", "  statuses:", "  status:", &["status", "`statuses`", ":7:"]),
        ("a level too high", "negative_cache:\n", "statuses: [400]\nnegative_cache:\n", &["statuses", ":5:"]),
        ("in a list item", "    sync_paths:", "    sync_path:", &["sync_path", "`sync_paths`", ":11:"]),
        (
            "a level too deep",
            "    base_url: http://127.0.0.1:2",
            "    base_url: http://127.0.0.1:2\n    tenants: []",
            &["tenants", ":14:"],
        ),
        ("letter case", "listen:", "Listen:", &["Listen", "`listen`", ":1:"]),
        ("anchors", "  enabled: true", "  enabled: &on true", &[":6:"]),
        ("merge keys", "negative_cache:\n", "negative_cache:\n  <<: {enabled: true}\n", &["<<"]),
        ("tags", "  enabled: true", "  enabled: !!str true", &[":6:"]),
        ("a missing variable", "env:KEY_2", "env:KEY_TWO", &["KEY_TWO", ":4:"]),
        ("a template that nobody fills in", "env:KEY_2", "\"${KEY_2}\"", &["env:", ":4:"]),
        ("a key for a later issue", "upstreams:\n", "upstreams:\n", &[]),
    ] {
        if !parts.is_empty() {
            with(from, to, dir.path()).await.is_refused_with(case, parts);
        }
    }
    // All problems at once.
    let two = GOOD.replace("enabled", "enabld").replace("sync_paths", "sync_path");
    Checked::of(&two, dir.path()).await.is_refused_with("two", &["`enabled`", "`sync_paths`"]);
    Checked::of("", dir.path()).await.is_refused_with("an empty file", &["upstreams"]);
    Checked::of("- a\n", dir.path()).await.is_refused_with("a list", &[]);
    Checked::of("listen: [\n", dir.path()).await.is_refused_with("no YAML", &[]);
    let missing = gateway::run(&["check", "--config", "nowhere.yaml"], &[], dir.path()).await;
    let text = String::from_utf8_lossy(&missing.stderr);
    assert!(missing.status.code() == Some(2) && text.contains("nowhere.yaml"), "{missing:?}");
}

#[tokio::test]
async fn cf_02_statuses_follow_one_written_rule() {
    let dir = temp();
    let line = "statuses: [400, 413, 415, 422]";
    for barred in [401, 403, 404, 408, 429] {
        let checked = with(line, &format!("statuses: [400, {barred}]"), dir.path()).await;
        checked.is_refused_with(&barred.to_string(), &[&barred.to_string(), ":7:", "never"]);
    }
    for wrong in [
        "[200]",
        "[500]",
        "[399]",
        "[\"4xx\"]",
        "[\"400\"]",
        "[400.0]",
        "[0x190]",
        "[4_00]",
        "[0o620]",
        "[]",
        "\"400\"",
        "400",
        "[400, 400]",
        "null",
        "~",
        "[null]",
        "[[400]]",
        "[-400]",
        "[99999999999999999999]",
        "[true]",
        "{400: 1}",
        "",
    ] {
        let checked = with(line, &format!("statuses: {wrong}"), dir.path()).await;
        checked.is_refused_with(&format!("statuses: {wrong}"), &["statuses", ":7:"]);
    }
    for fine in ["[418]", "[400]", "[424, 422]", "[410]"] {
        let checked = with(line, &format!("statuses: {fine}"), dir.path()).await.check;
        assert!(checked.status.success(), "{fine}: {checked:?}");
    }
    for odd in [402, 405, 407, 409, 411, 412, 421, 423, 425, 426, 428, 431, 451, 499] {
        let checked = with(line, &format!("statuses: [400, {odd}]"), dir.path()).await.check;
        let text = String::from_utf8_lossy(&checked.stderr);
        assert!(
            checked.status.success() && text.contains(&odd.to_string()),
            "{odd} is warned of: {checked:?}"
        );
    }
}

#[tokio::test]
async fn cf_04_duplicates_are_refused_with_both_places() {
    let dir = temp();
    for (case, from, to, parts) in [
        ("upstreams", "name: two", "name: one", &["line 9", ":12:"][..]),
        ("upstreams by case", "name: two", "name: One", &["line 9", ":12:"]),
        ("upstreams by a blank", "name: two", "name: \"one \"", &[":12:"]),
        ("keys in a map", "  enabled: true", "  enabled: true\n  enabled: false", &["enabled", ":7:"]),
        ("top-level keys", "upstreams:", "listen: 127.0.0.1:1\nupstreams:", &["listen", ":8:"]),
        ("mounts", "name: two", "name: two\n    mount: /one", &["mount", "line 9"]),
        ("tenants", "id: dev_2", "id: dev_1", &["line 3", ":4:"]),
        ("tenants by case", "id: dev_2", "id: DEV_1", &["line 3", ":4:"]),
        ("tokens", "env:KEY_2", "env:KEY_1", &["line 3", ":4:"]),
        ("paths", "[/classify]", "[/classify, /classify]", &["line 11", ":11:"]),
        (
            "a route to nowhere",
            "key: env:KEY_2",
            "key: env:KEY_2, routes: [thre]",
            &["no upstream of this name", ":4:"],
        ),
    ] {
        with(from, to, dir.path()).await.is_refused_with(case, parts);
    }
}

#[tokio::test]
async fn cf_07_a_store_that_cannot_be_trusted_is_refused_and_left_as_it_is() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let mut gateway = Gateway::simple(&upstream.url()).await;
    assert_eq!(post(&gateway, "/doc-classifier/classify", &DOC[..]).await.status, 400);
    settle(&gateway, 1).await;
    let config = gateway.config_file().display().to_string();

    // A second process on the same directory, while the first one lives.
    let yaml = std::fs::read_to_string(&config).unwrap_or_default();
    let data = gateway.dir().join("data").display().to_string();
    let other =
        yaml.replace(&gateway.addr.to_string(), "@LISTEN@").replace(&gateway.admin.to_string(), "@ADMIN@");
    let reason = Setup::new(&other).try_start().await.err().unwrap_or_default();
    refused(&reason, &["another process uses", &data]);
    assert!(post(&gateway, "/doc-classifier/classify", &DOC[..]).await.is_hit(), "the first is unharmed");

    gateway.signal("TERM");
    gateway.wait_exit(Duration::from_secs(20)).await;
    let file = gateway.dir().join("data/refusals.sqlite3");
    let sound = std::fs::read(&file).unwrap_or_else(|error| unreachable!("{error}"));
    let mut newer = sound.clone();
    newer[60..64].copy_from_slice(&9_999_u32.to_be_bytes());
    let mut foreign = sound.clone();
    foreign[68..72].copy_from_slice(&7_u32.to_be_bytes());
    let mut flipped = sound.clone();
    let last = flipped.len() - 1;
    flipped[last - 40..].fill(0xff);
    for (case, bytes, parts) in [
        ("no database", b"hello, this is not a database".to_vec(), &["is not a database"][..]),
        ("an empty file", Vec::new(), &["is empty"]),
        ("newer", newer, &["format 9999", "newer"]),
        ("of another program", foreign, &["another program"]),
        ("cut", sound[..sound.len() / 2].to_vec(), &["damaged"]),
        ("bytes changed", flipped, &["damaged"]),
    ] {
        std::fs::write(&file, &bytes).unwrap_or_else(|error| unreachable!("{error}"));
        let output = gateway.run(&["serve", "--config", &config]).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{case}: {text}");
        for part in parts.iter().chain(&["refusals.sqlite3"]) {
            assert!(text.contains(part), "{case} says {part:?}: {text}");
        }
        assert!(!text.contains("panicked"), "{case}: {text}");
        assert!(std::fs::read(&file).is_ok_and(|now| now == bytes), "{case}: the file is left as it is");
    }
    std::fs::write(&file, &sound).unwrap_or_else(|error| unreachable!("{error}"));
    gateway.restart().await;
    assert!(
        post(&gateway, "/doc-classifier/classify", &DOC[..]).await.is_hit(),
        "the good file still serves"
    );
    assert_eq!(upstream.calls(), 1);
    settle(&gateway, 3).await;
}

#[tokio::test]
async fn cf_07_a_store_directory_that_cannot_be_used_is_named() {
    let yaml = Gateway::simple_yaml("http://127.0.0.1:1", &[]);
    for (case, path) in [
        ("a file", "@DIR@/nevertwice.yaml"),
        ("below a file", "@DIR@/nevertwice.yaml/data"),
        ("proc", "/proc/nevertwice"),
    ] {
        let reason =
            Setup::new(&yaml.replace("@DIR@/data", path)).try_start().await.err().unwrap_or_default();
        refused(&reason, &["store directory", &path.replace("@DIR@", "")]);
        assert!(!reason.contains("panicked"), "{case}: {reason}");
    }
}

/// A pipe that nobody writes to would hold the start up for ever, and a device has no end.
#[tokio::test]
async fn cf_08_a_secret_or_a_certificate_that_is_no_regular_file_is_refused_at_once() {
    const NOT: &str = "the file of the secret is not a regular file";
    let dir = temp();
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let upstreams = "upstreams: [{name: a, base_url: 'http://127.0.0.1:1', sync_paths: [/x]}]\n";
    let redis = "negative_cache: {enabled: true}\nstore: {redis: {url: 'rediss://127.0.0.1:1', ";
    let (check, serve) = (["check", "--config", "gw.yaml", "--resolve"], ["serve", "--config", "gw.yaml"]);
    let both = &[(&check[..], 2), (&serve[..], 2)][..];
    for (keys, words, runs) in [
        ("admin: {token: 'file:pipe'}", &["admin.token", NOT][..], both),
        ("admin: {token: 'file:/dev/zero'}", &["admin.token", NOT], both),
        ("tenants: [{id: t, key: 'file:pipe'}]", &["tenants[0].key", NOT], both),
        (&format!("{redis}password: 'file:pipe'}}}}"), &["store.redis.password", NOT], both),
        (
            &format!("{redis}tls: {{ca: pipe}}}}}}"),
            &["store.redis.tls.ca: pipe: is not a regular file"],
            both,
        ),
        (
            &format!("{redis}tls: {{ca: /dev/zero}}}}}}"),
            &["store.redis.tls.ca", "is not a regular file"],
            both,
        ),
        // the listener's own are read when it is served
        ("tls: {cert: pipe, key: pipe}", &["pipe: not a regular file"], &[(&serve[..], 1)]),
    ] {
        let text = format!("listen: '127.0.0.1:0'\n{upstreams}{keys}\n");
        std::fs::write(dir.path().join("gw.yaml"), text).unwrap_or_else(|error| unreachable!("{error}"));
        for (args, code) in runs {
            let began = Instant::now();
            let output = gateway::run(args, &[], dir.path()).await;
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(*code), "{args:?} {keys}: {told}");
            assert!(words.iter().all(|words| told.contains(words)), "{args:?} {keys}: {told}");
            assert!(began.elapsed() < Duration::from_secs(10), "{args:?} {keys}");
        }
    }
}

fn refused(reason: &str, parts: &[&str]) {
    assert!(reason.contains("exit status: 1"), "{reason}");
    for part in parts {
        assert!(reason.contains(part), "{part:?}: {reason}");
    }
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"))
}
