//! Black-box tests of joined regions: real `highwater serve` processes on loopback, with links between them that
//! are slow, cut or silent on purpose.
//!
//! Each module is one group of cases; a test's name tells the behaviour, its comment names the case of the public
//! reports it comes from (LDR-2, REP-8, …) where there is one.

#[path = "../api/answer.rs"]
mod answer;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/calls.rs"]
mod calls;
#[path = "../api/counter.rs"]
mod counter;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/ports.rs"]
mod ports;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/redis_client.rs"]
mod redis_client;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/server.rs"]
mod server;

mod amounts;
mod approximate;
mod buckets;
mod catalogue;
mod clock;
mod failover;
mod group;
mod holds;
mod idempotency;
mod joining;
mod leases;
mod load;
mod mixed;
mod moves;
mod odd;
mod outage;
mod policies;
mod race;
mod restart;
mod returning;
mod throttle;
mod windows;
