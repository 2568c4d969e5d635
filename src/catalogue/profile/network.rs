//! Networks: addresses that share their first bits. Addresses alone, which are plain values: no sockets.

use core::net::IpAddr;
use core::net::Ipv6Addr;

/// Bits by which an IPv4 address is written as an IPv6 one.
const MAPPED_BITS: u8 = 96;

/// Addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// IPv4 addresses as IPv6 ones, the rest zero.
    first: u128,
    bits: u8,
}

impl Network {
    /// Reads `10.0.0.0/8` or a single address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let (most, offset) = match address {
            IpAddr::V4(_) => (32, MAPPED_BITS),
            IpAddr::V6(_) => (128, 0),
        };
        let bits = bits.unwrap_or(most);
        (bits <= most).then(|| Self {
            first: number(address) & mask(bits + offset),
            bits: bits + offset,
        })
    }

    /// Whether `address` belongs to it.
    pub fn contains(&self, address: IpAddr) -> bool {
        number(address) & mask(self.bits) == self.first
    }
}

/// An address as text; an IPv6 address is cut to `bits`, an IPv4 address stays whole.
pub fn cut(address: IpAddr, bits: u8) -> String {
    match address.to_canonical() {
        IpAddr::V6(address) if bits < 128 => {
            let network = Ipv6Addr::from_bits(address.to_bits() & mask(bits));
            format!("{network}/{bits}")
        }
        address => address.to_string(),
    }
}

const fn mask(bits: u8) -> u128 {
    match 128_u32.checked_sub(bits as u32) {
        Some(0) | None => u128::MAX,
        Some(128) => 0,
        Some(zeros) => u128::MAX << zeros,
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_network_has_its_addresses_in_either_writing() {
        let ten = Network::parse("10.1.2.3/8").expect("a network");
        assert!(ten.contains(ip("10.255.0.1")));
        assert!(ten.contains(ip("::ffff:10.0.0.1")));
        assert!(!ten.contains(ip("11.0.0.1")));
        let one = Network::parse("2001:db8::1").expect("an address");
        assert!(one.contains(ip("2001:db8::1")) && !one.contains(ip("2001:db8::2")));
        let all = Network::parse("0.0.0.0/0").expect("a network");
        assert!(all.contains(ip("8.8.8.8")) && !all.contains(ip("2001:db8::1")));
        for bad in ["", "10.0.0.0/33", "::/129", "ten", "10.0.0.0/", "10/8"] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_ipv6_addresses_are_cut() {
        assert_eq!(cut(ip("2001:db8:1:2:3::4"), 64), "2001:db8:1:2::/64");
        assert_eq!(cut(ip("2001:db8::4"), 128), "2001:db8::4");
        assert_eq!(cut(ip("192.0.2.7"), 64), "192.0.2.7");
        assert_eq!(cut(ip("::ffff:192.0.2.7"), 64), "192.0.2.7");
    }
}
