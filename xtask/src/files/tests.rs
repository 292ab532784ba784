use super::*;

const GATEWAY: &str = "crates/gateway/src/exchange.rs";

#[test]
fn a_crate_is_named_in_its_own_file_only() {
    let yaml = "let raw: Raw = serde_saphyr::from_str(text)?;\n";
    assert!(problems_in("crates/config/src/load.rs", yaml).is_empty());
    assert_eq!(
        problems_in("crates/config/src/check.rs", yaml),
        ["crates/config/src/check.rs:1 names serde_saphyr, which belongs to crates/config/src/load.rs: \
          read configuration through nevertwice_config"]
    );

    let sql = "use rusqlite::Connection;\n";
    for good in
        ["crates/store/src/sqlite.rs", "crates/store/src/sqlite/writer.rs", "crates/store/tests/sqlite.rs"]
    {
        assert!(problems_in(good, sql).is_empty(), "{good}");
    }
    assert_eq!(problems_in("crates/store/src/lib.rs", sql).len(), 1);
}

#[test]
fn the_redis_crate_is_told_from_modules_of_that_name() {
    for bad in [
        "use redis::Client;",
        "use redis::{Client, cmd};",
        "use redis as r;",
        "extern crate redis;",
        "fn f() { redis::cmd(\"PING\") }",
        "use ::redis::Client;",
        "fn f() -> ::redis::Cmd { g() }",
        "use {redis::Client, std::fmt};",
    ] {
        assert_eq!(problems_in("crates/store/src/lib.rs", bad).len(), 1, "{bad}");
        for good in
            ["crates/store/src/redis.rs", "crates/store/src/redis/link.rs", "crates/store/tests/redis.rs"]
        {
            assert!(problems_in(good, bad).is_empty(), "{good}");
        }
    }
    for fine in [
        "pub mod redis;\nfn f() -> redis::HeldLease { g() }",
        "use nevertwice_store::redis;",
        "use nevertwice_store::redis::RedisStore;",
        "use nevertwice_store::{RefusalStore, redis::RedisStore, sqlite::{A, B}};",
        "use nevertwice_store::{sqlite::{A, B}, redis::RedisStore};",
        "use crate::redis::Finding;",
        "let url = config.redis; let redis = 1; f(redis);",
        "match &store.redis { Some(redis) => redis.url(), None => x }",
    ] {
        assert_eq!(problems_in("crates/bin/src/store.rs", fine), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn the_hyper_client_is_found_in_every_spelling() {
    for spelling in [
        "use hyper_util::client::legacy::Client;",
        "use hyper_util::{client::legacy::Client, rt::TokioIo};",
        "use hyper_util::{\n    rt::TokioIo,\n    client::legacy::Client,\n};",
        "use hyper_util::{rt::{TokioIo, TokioExecutor}, client};",
        "let c = hyper_util :: client :: legacy::Client::builder(executor);",
    ] {
        assert_eq!(problems_in(GATEWAY, spelling).len(), 1, "{spelling}");
        assert!(problems_in("crates/gateway/src/upstream/connections.rs", spelling).is_empty(), "{spelling}");
    }
}

#[test]
fn a_like_name_or_a_comment_is_no_breach() {
    for fine in [
        "// rusqlite waits here for up to 5 s",
        "    //! hyper_util::client is named in one file only",
        "use hyper_util::rt::TokioIo;",
        "use hyper_util::{rt::{client, TokioIo}, server};",
        "use hyper_util::server::conn; use client::legacy;",
        "let my_rusqlite_2 = 1;",
    ] {
        assert_eq!(problems_in(GATEWAY, fine), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn the_line_of_a_breach_is_told() {
    let found = problems_in(GATEWAY, "//! a\n\nuse rusqlite::Row;\n");
    assert!(found[0].starts_with("crates/gateway/src/exchange.rs:3 names rusqlite"), "{found:?}");
}

#[test]
fn names_that_say_nothing_are_refused() {
    for bad in [
        "crates/store/src/redis/mod.rs",
        "crates/store/src/util.rs",
        "tests/promises/helpers/a.rs",
        "tests/sdk/common.py",
    ] {
        assert_eq!(problems_in(bad, "").len(), 1, "{bad}");
    }
    assert!(problems_in("crates/gateway/src/model.rs", "").is_empty());
}

#[test]
fn a_long_file_is_refused() {
    assert!(problems_in(GATEWAY, &"\n".repeat(LINES_AT_MOST)).is_empty());
    let found = problems_in(GATEWAY, &"\n".repeat(LINES_AT_MOST + 1));
    assert_eq!(
        found,
        ["crates/gateway/src/exchange.rs has 601 lines, at most 600: split it by what it does"]
    );
    assert!(problems_in("CHANGELOG.md", &"\n".repeat(2000)).is_empty());
}

#[test]
fn a_path_of_one_machine_is_refused() {
    for folder in MACHINE_FOLDERS {
        for line in
            [format!("see `/{folder}/x/notes.md`"), format!("--config=/{folder}/x"), format!("/{folder}/x")]
        {
            let found = problems_in("docs/a.md", &line);
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].contains(&format!("/{folder}/x")), "{found:?}");
        }
    }
}

#[test]
fn other_paths_are_fine() {
    for folder in MACHINE_FOLDERS {
        for line in [
            format!("https://example.com/{folder}/a"),
            format!("docs/{folder}/a.md"),
            format!("../{folder}/a"),
            format!("/{folder}/"),
            format!("/{folder}place/a"),
            format!("$HOME/{folder}/a"),
        ] {
            assert_eq!(problems_in("docs/a.md", &line), Vec::<String>::new(), "{line}");
        }
    }
}

#[test]
fn a_folder_is_walked_in_order_and_what_was_built_is_left_out() -> Result<()> {
    let root = tempfile::tempdir()?;
    for (place, text) in [
        ("crates/store/src/lib.rs", "use rusqlite::Row;"),
        ("crates/config/src/check.rs", "use serde_saphyr as yaml;"),
        ("target/debug/build/mod.rs", "use rusqlite::Row;"),
        ("docs/picture.png", "use rusqlite::Row;"),
    ] {
        let path = root.path().join(place);
        fs::create_dir_all(path.parent().unwrap_or(root.path()))?;
        fs::write(path, text)?;
    }

    let found = problems(root.path())?;

    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("crates/config/src/check.rs:1 names serde_saphyr"), "{found:?}");
    assert!(found[1].starts_with("crates/store/src/lib.rs:1 names rusqlite"), "{found:?}");
    Ok(())
}
