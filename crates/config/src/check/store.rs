//! Where entries live: the embedded database, or a Redis.

use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use super::redis_url::{self, Redis as Url};
use super::{Context, upstreams};
use crate::bounds;
use crate::checked::{ClientTls, Redis, RedisAddress, RedisCredential, RedisPlaces, StoreConfig};
use crate::problem::Place;
use crate::raw;
use crate::raw::read::At;
use crate::secret::{self, Purpose};

/// The folder of the embedded store when nothing is said.
const DEFAULT_STORE: &str = "./nevertwice-data";
/// What all keys in a Redis begin with when nothing is said.
const DEFAULT_PREFIX: &str = "nevertwice";
/// With a longer one, keys would take more room than what they hold.
const PREFIX_MAX: usize = 48;
/// Nobody has a longer one.
const USERNAME_MAX: usize = 256;

pub(super) fn store(raw: Option<&At<raw::Store>>, cx: &mut Context<'_>) -> StoreConfig {
    let embedded = raw.and_then(|store| store.value.embedded.as_ref());
    let redis = raw.and_then(|store| store.value.redis.as_ref());
    if let (Some(embedded), Some(redis)) = (embedded, redis) {
        let cause = format!("entries live in one store, and `embedded` stands at {}", embedded.place.word());
        cx.found.error(&redis.place, cause, "remove one of them");
    }
    if let Some(redis) = redis.and_then(|raw| self::redis(raw, cx)) {
        return StoreConfig::Redis(Box::new(redis));
    }
    let path = embedded.and_then(|embedded| embedded.value.path.as_ref());
    StoreConfig::Embedded { path: cx.path(path.map_or(Path::new(DEFAULT_STORE), |path| &path.value)) }
}

/// `None` after a problem.
fn redis(raw: &At<raw::Redis>, cx: &mut Context<'_>) -> Option<Redis> {
    let At { value: raw, place } = raw;
    let cure = "add `url: redis://HOST:PORT`";
    let url = cx.required(raw.url.as_ref(), place, "url", cure);
    let url = url.and_then(|url| redis_url::parse(&url.value, &url.place, cx.found));
    let prefix = prefix(raw.prefix.as_ref(), cx);
    let read = cx.millis(&bounds::READ_MS, raw.read_ms.as_ref());
    let write = cx.millis(&bounds::WRITE_MS, raw.write_ms.as_ref());
    let credential = credential(raw, place, cx);
    let tls = raw.tls.as_ref().map(|tls| (upstreams::client_tls(tls, cx), &tls.place));
    let Url { topology, db, tls: secured } = url?;
    let tls = match (secured, tls) {
        (true, Some((tls, _))) => Some(tls),
        (true, None) => Some(ClientTls::default()),
        (false, Some((_, place))) => {
            let cause = "`tls` is given, and `url` does not ask for TLS";
            cx.found.error(place, cause, "begin `url` with rediss, or remove `tls`");
            None
        }
        (false, None) => None,
    };
    let address = RedisAddress { topology, db, tls };
    Some(Redis { address, credential, prefix: prefix?, read, write, places: places(raw, place) })
}

fn places(raw: &raw::Redis, block: &Place) -> RedisPlaces {
    fn of<T>(key: Option<&At<T>>, otherwise: &Place) -> Place {
        key.map_or(otherwise, |key| &key.place).clone()
    }
    let password = of(raw.password.as_ref(), block);
    RedisPlaces {
        url: of(raw.url.as_ref(), block),
        username: of(raw.username.as_ref(), &password),
        password,
        prefix: of(raw.prefix.as_ref(), block),
        read_ms: of(raw.read_ms.as_ref(), block),
    }
}

fn prefix(raw: Option<&At<String>>, cx: &mut Context<'_>) -> Option<String> {
    let Some(At { value: prefix, place }) = raw else { return Some(DEFAULT_PREFIX.to_owned()) };
    let name = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if (1..=PREFIX_MAX).contains(&prefix.len()) && prefix.bytes().all(name) {
        return Some(prefix.clone());
    }
    let cause = "this is not the beginning of a key";
    let cure =
        format!("write 1 to {PREFIX_MAX} letters, digits, `_`, `-` and `.`; braces and a colon are added");
    cx.found.error(place, cause, cure);
    None
}

fn credential(raw: &raw::Redis, block: &Place, cx: &mut Context<'_>) -> Option<RedisCredential> {
    let username = raw.username.as_ref().and_then(|At { value: name, place }| {
        let (cause, cure) = if name.starts_with("env:") || name.starts_with("file:") {
            (
                "a user name is no secret and is not looked up",
                "write the name itself; `password` is a reference",
            )
        } else if name.is_empty()
            || name.len() > USERNAME_MAX
            || name.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            ("this is not the name of an ACL user", "write it as `ACL LIST` shows it, without blanks")
        } else {
            return Some(name.clone());
        };
        cx.found.error(place, cause, cure);
        None
    });
    let Some(password) = &raw.password else {
        if raw.username.is_some() {
            let cause = "`username` needs `password`";
            cx.found.missing(block, "password", cause, "add `password: env:NAME`, or remove `username`");
        }
        return None;
    };
    let password = secret::resolve(password, Purpose::Password, cx.base, cx.secrets, cx.found)?;
    let password = std::str::from_utf8(password.expose_secret()).ok()?;
    Some(RedisCredential { username, password: SecretString::from(password) })
}
