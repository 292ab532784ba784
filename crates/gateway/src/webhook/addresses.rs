//! Which addresses are public: what is left when all that is somebody's own is taken away (IANA special-purpose registries).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is one that everybody reaches alike. The gateway may reach others that its callers cannot: its own machine, its
/// network, a cloud's metadata service.
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, d] = ip.octets();
    let special = match (a, b, c) {
        (0 | 10 | 127, ..) | (169, 254, _) | (192, 168, _) | (198, 18 | 19, _) => true,
        (100, 64..=127, _) | (172, 16..=31, _) => true,
        (192, 0, 0 | 2) | (198, 51, 100) | (203, 0, 113) => true,
        // the server of Azure's own that every machine there can reach
        (168, 63, 129) => d == 16,
        // multicast, reserved, broadcast
        (224.., ..) => true,
        _ => false,
    };
    !special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // mapped, and the address behind a translator, are IPv4 addresses in other clothes
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // all of the public ones are in here; Teredo, benchmarks and documentation are too
        [0x2001, 0x0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [0x2000..=0x3fff, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_somebodys_own_is_not_public() {
        for own in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.9.9",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "100.100.100.200",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "100::1",
        ] {
            assert!(own.parse().is_ok_and(|ip| !is_public(ip)), "{own}");
        }
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "198.17.0.1",
            "223.255.255.254",
            "168.63.129.17",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2001:4860:4860::8888",
        ] {
            assert!(public.parse().is_ok_and(is_public), "{public}");
        }
    }
}
