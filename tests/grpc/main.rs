//! Black-box tests of the rate limit service: the real binary, asked over gRPC as gateways ask it.
//!
//! A test's name tells the behaviour, its comment names the case of the public reports it comes from (API-1, CF-1)
//! where there is one.

#[path = "../api/answer.rs"]
mod answer;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/calls.rs"]
mod calls;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/counter.rs"]
mod counter;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../cluster/group.rs"]
mod group;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/ports.rs"]
mod ports;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/server.rs"]
mod server;

mod client;
mod configurations;
mod descriptors;
mod failures;
mod services;
mod units;
