//! The rate limit service of Envoy, version 3, over gRPC: what gateways ask before they let a call pass.
//!
//! ```text
//! descriptors ──► select (limits by `match`, costs) ──► one check, all or none ──► answer (a status each) ──► bytes
//! ```
//!
//! The domain is a tenant, or what the catalogue's `domains` says that it is. [`select`] turns a request into the
//! limits of one check, [`check`] has the region decide it, [`answer`] writes down what it said, [`health`] follows
//! the region's readiness, [`listener`] accepts connections, bounds their age and drains. [`proto`] is made by a
//! program.
//!
//! What goes wrong here is told as `UNAVAILABLE`, never as `UNKNOWN`: gateways take that for an answer and let
//! the call pass whatever they were told to do about failures.

pub mod answer;
pub mod check;
pub mod health;
pub mod listener;
pub mod proto;
pub mod select;

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::grpc::check::RateLimits;
use crate::grpc::health::Readiness;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use crate::region::state::Region;

/// The largest request.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// The services of the gRPC listener. Streams of theirs end when `stopped` turns true.
///
/// # Errors
/// When the messages cannot describe themselves.
pub fn routes(region: &Arc<Region>, stopped: &watch::Receiver<bool>) -> anyhow::Result<Routes> {
    let limits = RateLimitServiceServer::new(RateLimits::new(Arc::clone(region)))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let health = HealthServer::new(Readiness::new(Arc::clone(region), stopped.clone()));
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection = described()
        .build_v1()
        .context("the gRPC services cannot be described")?;
    let earlier = described()
        .build_v1alpha()
        .context("the gRPC services cannot be described")?;
    Ok(Routes::new(limits)
        .add_service(health)
        .add_service(reflection)
        .add_service(earlier)
        .prepare())
}
