//! Addresses of this machine: where tenants connect, and where operators do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Context;
use crate::checked::{Admin, Listen, TlsFiles};
use crate::problem::{Findings, Place};
use crate::raw::read::At;
use crate::raw::{self, Config};
use crate::secret::{self, Purpose};

/// Where tenants connect when nothing is said.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Where operators connect when nothing is said.
pub const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

pub(super) fn listen(config: &Config, block: &Place, cx: &mut Context<'_>) -> Vec<(Listen, Place)> {
    let shared = config.tls.as_ref().and_then(|tls| tls_files(tls, cx));
    let mut out: Vec<(Listen, Place)> = Vec::new();
    let Some(entries) = &config.listen else {
        return vec![(Listen { addr: DEFAULT_LISTEN, tls: shared }, block.missing("listen"))];
    };
    if entries.value.0.is_empty() {
        cx.found.missing(
            block,
            "listen",
            "the list is empty",
            "give at least one address, or remove the key",
        );
    }
    for entry in &entries.value.0 {
        let (text, place, tls) = match &entry.value {
            raw::Listen::Address(text) => (text, &entry.place, None),
            raw::Listen::Block(block) => {
                let own = block.tls.as_ref().and_then(|tls| tls_files(tls, cx));
                let cure = "write `addr: IP:PORT`";
                let Some(addr) = cx.required(block.addr.as_ref(), &entry.place, "addr", cure) else {
                    continue;
                };
                (&addr.value, &addr.place, own)
            }
        };
        let Some(addr) = address(text, place, cx.found) else { continue };
        if let Some((_, first)) = out.iter().find(|(other, _)| collide(other.addr, addr)) {
            let cause = format!("this address collides with the one at {}", first.word());
            cx.found.error(place, cause, "keep one of them, or use another port");
            continue;
        }
        out.push((Listen { addr, tls: tls.or_else(|| shared.clone()) }, place.clone()));
    }
    out
}

pub(super) fn admin(
    raw: Option<&At<raw::Admin>>,
    listen: &[(Listen, Place)],
    cx: &mut Context<'_>,
) -> Option<(Admin, Option<Place>)> {
    let At { value: raw, place } = raw?;
    let addr = match &raw.listen {
        Some(text) => address(&text.value, &text.place, cx.found)?,
        None => DEFAULT_ADMIN,
    };
    let here = raw.listen.as_ref().map_or_else(|| place.missing("listen"), |l| l.place.clone());
    if let Some((_, other)) = listen.iter().find(|(l, _)| collide(l.addr, addr)) {
        let cause = format!("the admin address collides with `listen` ({})", other.word());
        cx.found.error(&here, cause, "use another port, so that tenants never reach the admin API");
    }
    if raw.token.is_none() && !loopback(addr.ip()) && !cx.found.explains(&place.key_path("token")) {
        let cure = "add `token: env:NAME`, or listen on 127.0.0.1";
        cx.found.error(&here, "the admin address is not loopback and there is no token", cure);
    }
    let token = raw
        .token
        .as_ref()
        .and_then(|token| secret::resolve(token, Purpose::Token, cx.base, cx.secrets, cx.found));
    Some((Admin { listen: addr, token }, raw.token.as_ref().map(|t| t.place.clone())))
}

pub(super) fn tls_files(raw: &At<raw::TlsFiles>, cx: &mut Context<'_>) -> Option<TlsFiles> {
    let At { value: raw, place } = raw;
    let cert = cx.required(raw.cert.as_ref(), place, "cert", "name the PEM file with the certificate chain");
    let key = cx.required(raw.key.as_ref(), place, "key", "name the PEM file with the private key");
    Some(TlsFiles { cert: cx.path(&cert?.value), key: cx.path(&key?.value) })
}

pub(super) fn loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether one machine cannot listen on both.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let (one, other) = (a.ip().to_canonical(), b.ip().to_canonical());
    // a wildcard takes the port on every address; that of IPv6 takes it for IPv4 too
    let takes = |wild: IpAddr, other: IpAddr| wild.is_unspecified() && (wild.is_ipv6() || other.is_ipv4());
    a.port() != 0 && a.port() == b.port() && (one == other || takes(one, other) || takes(other, one))
}

/// Parses `IP:PORT`. Names are not looked up, apart from `localhost`: what a gateway listens on must not depend on a
/// resolver.
pub(super) fn address(text: &str, place: &Place, found: &mut Findings) -> Option<SocketAddr> {
    if text.contains('%') {
        found.error(place, "zone ids are not supported", "use an address without `%`");
        return None;
    }
    if let Ok(addr) = text.parse() {
        return Some(addr);
    }
    if let Some(Ok(port)) = text.strip_prefix("localhost:").map(str::parse) {
        return Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    let port = text.strip_prefix("*:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
    let (cause, cure) = if text.contains("://") {
        ("this is a URL", "write the IP address and the port alone, as in 127.0.0.1:8080".to_owned())
    } else if let Ok(port) = port.parse::<u16>() {
        (
            "the address has no host",
            format!("write 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} for all"),
        )
    } else if text.parse::<Ipv4Addr>().is_ok()
        || text == "localhost"
        || text.starts_with('[') && text.ends_with(']')
    {
        ("the address has no port", "add a port, as in 127.0.0.1:8080".to_owned())
    } else if text.parse::<Ipv6Addr>().is_ok() || !text.starts_with('[') && text.matches(':').count() > 1 {
        (
            "an IPv6 address needs brackets before the port",
            "write it in quotes, as in \"[::1]:8080\"".to_owned(),
        )
    } else if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
        ("the port is not a number from 0 to 65535", "write an address as in 127.0.0.1:8080".to_owned())
    } else {
        (
            "this is not an IP address and a port",
            "write an IP address as in 127.0.0.1:8080; names are not looked up".to_owned(),
        )
    };
    found.error(place, cause, cure);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_on_one_port_collide() {
        let hit = |a: &str, b: &str| match (a.parse(), b.parse()) {
            (Ok(a), Ok(b)) => collide(a, b) && collide(b, a),
            _ => unreachable!("{a} {b}"),
        };
        assert!(hit("127.0.0.1:1", "127.0.0.1:1"));
        assert!(hit("0.0.0.0:1", "127.0.0.1:1"));
        assert!(hit("[::]:1", "127.0.0.1:1"));
        assert!(hit("[::ffff:127.0.0.1]:1", "127.0.0.1:1"));
        assert!(!hit("127.0.0.1:1", "127.0.0.2:1"));
        assert!(!hit("127.0.0.1:1", "127.0.0.1:2"));
        assert!(!hit("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!hit("0.0.0.0:1", "[::1]:1"));
    }
}
