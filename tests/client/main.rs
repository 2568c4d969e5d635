//! Black-box tests of the client: the real binary, or something that only seems to be one, asked as programs ask it.

#[path = "../api/answer.rs"]
mod answer;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/calls.rs"]
mod calls;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/counter.rs"]
mod counter;
#[allow(dead_code, reason = "its own program begins it")]
mod example;
#[allow(dead_code, reason = "each test binary uses its part of the harness")]
#[path = "../api/server.rs"]
mod server;

mod documents;
mod failures;
mod layer;
mod verdicts;
mod web;
