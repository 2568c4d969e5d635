//! Ports for listeners whose addresses others must know before they are bound.
//!
//! They are picked below the range from which systems give out ports by themselves (from 32 768 on Linux), so that
//! no connection that is being made takes one before its listener does, or while its process is being started again.

use std::net::Ipv4Addr;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering;

const PORTS: Range<u16> = 10_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// `count` ports in a row that nobody listens on, and that nobody else in this process was given.
pub fn free_ports_in_a_row(count: u16) -> Range<u16> {
    // Test binaries that run at once begin at different places.
    let own = std::process::id().wrapping_mul(61) % 20_000;
    let own = u16::try_from(own).expect("less than the span");
    let spans = (PORTS.end - PORTS.start) / count;
    for _ in 0..spans {
        let given = NEXT.fetch_add(count, Ordering::Relaxed);
        let start = (own + given % 20_000) % 20_000;
        let row = PORTS.start + start..PORTS.start + start + count;
        if row.end <= PORTS.end && row.clone().all(is_free) {
            return row;
        }
    }
    panic!("no {count} free ports in a row in {PORTS:?}");
}

/// `count` ports that nobody listens on, and that nobody else in this process was given.
pub fn free_ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| free_ports_in_a_row(1).start).collect()
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
