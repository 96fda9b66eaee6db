//! Which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// Why an address is not on the public internet, in words; none if it is.
///
/// The ranges are those of the IANA registries of special-purpose addresses. IPv6 is refused outside of global unicast,
/// `2000::/3`, so that ranges which are assigned later are refused too.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let (_, why) = V4.iter().find(|(range, _)| range.contains(&address))?;
    Some(why)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    // A translator connects to the IPv4 address inside.
    if NAT64.contains(&address) {
        let [.., a, b, c, d] = address.octets();
        return special_v4(Ipv4Addr::new(a, b, c, d));
    }
    if let Some((_, why)) = V6.iter().find(|(range, _)| range.contains(&address)) {
        return Some(why);
    }
    (!GLOBAL_UNICAST.contains(&address)).then_some("not a global unicast address")
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(segments: [u16; 8], length: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), length)
}

const V4: [(Ipv4Net, &str); 17] = [
    (v4(0, 0, 0, 0, 8), "an address of this network"),
    (v4(10, 0, 0, 0, 8), "a private address"),
    (v4(100, 64, 0, 0, 10), "an address shared behind a carrier's NAT"),
    (v4(127, 0, 0, 0, 8), "a loopback address"),
    (v4(168, 63, 129, 16, 32), "a cloud provider's metadata address"),
    (v4(169, 254, 0, 0, 16), "a link-local address"),
    (v4(172, 16, 0, 0, 12), "a private address"),
    (v4(192, 0, 0, 0, 24), "an address of a protocol assignment"),
    (v4(192, 0, 2, 0, 24), "a documentation address"),
    (v4(192, 88, 99, 0, 24), "a 6to4 relay address"),
    (v4(192, 168, 0, 0, 16), "a private address"),
    (v4(198, 18, 0, 0, 15), "a benchmarking address"),
    (v4(198, 51, 100, 0, 24), "a documentation address"),
    (v4(203, 0, 113, 0, 24), "a documentation address"),
    (v4(224, 0, 0, 0, 4), "a multicast address"),
    (v4(255, 255, 255, 255, 32), "the broadcast address"),
    (v4(240, 0, 0, 0, 4), "a reserved address"),
];

const V6: [(Ipv6Net, &str); 12] = [
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "the unspecified address"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "a loopback address"),
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), "an IPv4-mapped address"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "an IPv4-compatible address"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "a local NAT64 address"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "an address of a protocol assignment"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "a documentation address"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "a 6to4 address"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "a documentation address"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "a private address"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "a link-local address"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "a multicast address"),
];

const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

#[cfg(test)]
mod tests {
    use super::special;

    #[test]
    fn public_addresses_are_allowed_up_to_the_edge_of_each_special_range() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:200::",
            "2003::1",
            "64:ff9b::1.1.1.1",
        ] {
            assert_eq!(special(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn special_addresses_are_named_from_edge_to_edge_of_their_range() {
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.255.255",
            "198.19.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "::2",
            "::ffff:1.1.1.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:a00:1::",
            "3fff::1",
            "4000::",
            "5f00::1",
            "fc00::",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(special(address.parse().unwrap()).is_some(), "{address}");
        }
    }
}
