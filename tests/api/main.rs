//! Black-box tests: the real binary over HTTP, with a manual clock where time matters.
//!
//! Each module is one group of cases; a test's name tells the behaviour, its comment names the case of the public
//! reports it comes from (ALG-1, BND-3, …) and, where the documented rule differs from the case's, the rule.

mod admin;
mod algorithm;
mod answer;
mod auth;
mod bad_input;
mod batch;
mod boundary;
mod calendar;
mod calls;
mod checks;
mod clock;
mod cluster;
mod commands;
mod concurrency;
mod configurations;
mod counter;
mod damage;
mod dev;
mod expiry;
mod failure;
mod gateway;
mod header;
mod holds;
mod idempotency;
mod keys;
mod leases;
mod memory;
mod operations;
mod overflow;
mod ports;
mod property;
mod readme;
mod redis;
mod redis_client;
mod refund;
mod regions;
mod restart;
mod server;
mod sockets;
mod unwritable;
