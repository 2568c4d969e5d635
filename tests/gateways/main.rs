//! The recipes of `ops/gateways` with the real programs: what a browser in front of the gateway sees.
//!
//! Each test starts Highwater, an application, and nginx, Caddy, HAProxy or Envoy with the recipe as it stands, on
//! ports that are free. `tests/gateways/install` gets the programs. Without one its tests print `skipped: …`;
//! with `HIGHWATER_GATEWAYS=1` they fail.

#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/answer.rs"]
mod answer;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/calls.rs"]
mod calls;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/ports.rs"]
mod ports;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/server.rs"]
mod server;

mod application;
mod caddy;
mod edge;
mod envoy;
mod haproxy;
mod nginx;
mod program;
mod redis_clients;
