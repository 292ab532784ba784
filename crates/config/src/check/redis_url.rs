//! The address of a Redis. Its text is never shown: people write passwords into URLs.

use std::net::Ipv6Addr;

use crate::checked::{RedisHost, RedisTopology};
use crate::problem::{Findings, Place};

/// What a URL says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redis {
    pub(super) topology: RedisTopology,
    pub(super) db: u32,
    pub(super) tls: bool,
}

/// The servers, the database, and whether TLS is spoken; `None` after a problem.
pub(super) fn parse(text: &str, place: &Place, found: &mut Findings) -> Option<Redis> {
    match read(text) {
        Ok(redis) => Some(redis),
        Err((cause, cure)) => {
            found.error(place, cause, cure);
            None
        }
    }
}

type Wrong = (&'static str, &'static str);

const FORM: &str = "write it as in redis://127.0.0.1:6379/0";
const SCHEMES: &str = "begin with redis://, redis-sentinel:// or redis-cluster://, or with rediss for TLS; they stand for Valkey too";
const DB_MAX: u32 = 65_535;
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

fn read(text: &str) -> Result<Redis, Wrong> {
    let (scheme, rest) = text.split_once("://").ok_or(("the URL has no scheme", SCHEMES))?;
    let scheme = scheme.to_ascii_lowercase();
    // before anything else is said about the rest: it may be a password
    if rest.contains('@') {
        return Err((
            "secrets come from `env:` or `file:`, and a URL here has no user name or password",
            "remove what stands before the `@`, and write `username: NAME` and `password: env:NAME`",
        ));
    }
    let (tls, kind) = match scheme.strip_prefix("rediss") {
        Some(kind) => (true, kind),
        None => match scheme.strip_prefix("redis") {
            Some(kind) => (false, kind),
            None if scheme.contains("unix") => return Err(UNIX),
            None => return Err(("this is not the scheme of a Redis", SCHEMES)),
        },
    };
    if rest.contains('\\') || !rest.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
        return Err(("the URL holds blanks or characters that a URL cannot have", FORM));
    }
    if rest.contains(['?', '#']) {
        let cure =
            "remove the `?` or `#` and what follows; `password`, `tls` and time-outs are keys of their own";
        return Err(("a URL here has no query or fragment", cure));
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (topology, db) = match kind {
        "" => {
            if hosts.contains(',') {
                let cure = "begin with redis-sentinel:// or redis-cluster:// if there are several servers";
                return Err(("redis:// names one server", cure));
            }
            (RedisTopology::One(host(hosts, PORT)?), db(path)?)
        }
        "-sentinel" => {
            const CURE: &str =
                "write it as in redis-sentinel://HOST,HOST/PRIMARY, with the name of `sentinel monitor`";
            let sentinels = self::hosts(hosts, SENTINEL_PORT)?;
            let (primary, path) = path.split_once('/').unwrap_or((path, ""));
            if primary.is_empty() {
                return Err(("the URL does not name the primary", CURE));
            }
            if primary.len() > 256
                || !primary.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            {
                return Err(("the name of a primary has letters, digits, `.`, `_` and `-`", CURE));
            }
            (RedisTopology::Sentinel { sentinels, primary: primary.to_owned() }, db(path)?)
        }
        "-cluster" => {
            let nodes = self::hosts(hosts, PORT)?;
            if db(path)? != 0 {
                return Err((
                    "a cluster has database 0 alone",
                    "remove what follows the hosts, and use another `prefix`",
                ));
            }
            (RedisTopology::Cluster(nodes), 0)
        }
        kind if kind.contains("unix") || kind.contains("socket") => return Err(UNIX),
        _ => return Err(("this is not the scheme of a Redis", SCHEMES)),
    };
    Ok(Redis { topology, db, tls })
}

const UNIX: Wrong =
    ("a Unix socket is not supported", "write the address of a TCP port, as in redis://127.0.0.1:6379");

fn db(path: &str) -> Result<u32, Wrong> {
    match path {
        "" => Ok(0),
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => match digits.parse() {
            Ok(db) if db <= DB_MAX => Ok(db),
            _ => Err(("the number of the database is not from 0 to 65535", FORM)),
        },
        _ => Err(("what follows the last `/` is not the number of a database", FORM)),
    }
}

fn hosts(text: &str, port: u16) -> Result<Vec<RedisHost>, Wrong> {
    let mut hosts: Vec<RedisHost> = Vec::new();
    for one in text.split(',') {
        let host = host(one, port)?;
        if hosts.contains(&host) {
            return Err(("a server stands there twice", "name each once"));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn host(text: &str, default_port: u16) -> Result<RedisHost, Wrong> {
    const PORT: Wrong = ("the port is not a number from 1 to 65535", FORM);
    let (host, port) = if let Some(inner) = text.strip_prefix('[') {
        let (address, after) =
            inner.split_once(']').ok_or(("a bracket is not closed", "write it as in redis://[::1]:6379"))?;
        if address.contains('%') {
            return Err(("zone ids are not supported", "use an address without `%`"));
        }
        let address: Ipv6Addr =
            address.parse().map_err(|_| ("there is no IPv6 address in the brackets", FORM))?;
        let port = match after {
            "" => None,
            after => Some(after.strip_prefix(':').ok_or(("only a port may follow a bracket", FORM))?),
        };
        (address.to_string(), port)
    } else if text.matches(':').count() > 1 {
        return Err(("an IPv6 address in a URL needs brackets", "write it as in redis://[::1]:6379"));
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        if host.is_empty() {
            return Err(("a host is missing", FORM));
        }
        if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
            return Err(("a host holds characters that a host name cannot have", FORM));
        }
        (host.to_ascii_lowercase(), port)
    };
    let port = match port {
        None => default_port,
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().ok().filter(|port| *port > 0).ok_or(PORT)?
        }
        Some(_) => return Err(PORT),
    };
    Ok(RedisHost { host, port })
}
