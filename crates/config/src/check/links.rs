//! By which address callers know this gateway, and whose word counts on it.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

use super::{Context, base_url, listen};
use crate::checked::{Facade, Listen, Upstream};
use crate::problem::{Findings, Place};
use crate::raw::Config;
use crate::raw::read::At;

pub(super) fn public_base_url(raw: Option<&At<String>>, cx: &mut Context<'_>) -> Option<Uri> {
    let At { value: text, place } = raw?;
    base_url::public(text, place, cx.found)
}

pub(super) fn trusted_hops(raw: Option<&At<Vec<At<String>>>>, cx: &mut Context<'_>) -> Vec<IpNet> {
    let mut seen: Vec<(IpNet, &Place)> = Vec::new();
    for At { value: text, place } in raw.iter().flat_map(|list| &list.value) {
        let Some(net) = hop(text, place, cx.found) else { continue };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == net) {
            let cause = format!("the same is listed at {} already", first.word());
            cx.found.error(place, cause, "keep one of them");
            continue;
        }
        if net.prefix_len() == 0 {
            let cause = "every address is in this: whoever connects is believed";
            cx.found.warning(place, cause, "list the addresses of your own proxies alone");
        }
        seen.push((net, place));
    }
    seen.into_iter().map(|(net, _)| net).collect()
}

/// An address, or a block of addresses in CIDR notation. What is no address is not shown.
fn hop(text: &str, place: &Place, found: &mut Findings) -> Option<IpNet> {
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let Some(net) = net else {
        let cause = "this is not an IP address or a block of addresses";
        found.error(place, cause, "write it as in 192.0.2.7 or 10.0.0.0/8; names are not looked up");
        return None;
    };
    // peers are compared in their IPv4 form
    if let IpNet::V6(v6) = net
        && v6.addr().to_ipv4_mapped().is_some()
    {
        found.error(
            place,
            "this is an IPv4 address in the clothes of an IPv6 one",
            "write it as an IPv4 address",
        );
        return None;
    }
    if net.addr() != net.network() {
        let cause = "the address has digits behind the length of its prefix";
        found.error(
            place,
            cause,
            format!("write {} for the whole block, or {} for one address", net.trunc(), net.addr()),
        );
        return None;
    }
    Some(net)
}

/// Links that callers of other machines get, and that their own `Host` decides on.
pub(super) fn made_of_host(
    config: &Config,
    block: &Place,
    listen: &[(Listen, Place)],
    upstreams: &[Upstream],
    cx: &mut Context<'_>,
) {
    let links = upstreams.iter().any(|u| u.mount.is_some() && u.adapter.facade() == Facade::AzureDi);
    let open = listen.iter().any(|(listen, _)| !listen::loopback(listen.addr.ip()));
    if config.public_base_url.is_none() && links && open && !cx.found.explains("public_base_url") {
        let cause = "links to operations will be made of the `Host` header of each request";
        let cure = "add `public_base_url: https://HOST`, the address by which callers know this gateway";
        cx.found.warning(&block.missing("public_base_url"), cause, cure);
    }
}
