//! A gateway's side: a channel to the gRPC listener, and requests in few words.

use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use highwater::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use serde_json::Value;
use serde_json::json;
use tonic::Request;
use tonic::Status;
use tonic::transport::Channel;
use tonic::transport::Endpoint;

use crate::calls::RUNTIME;
use crate::server::Server;

/// A server with a gRPC listener and a manual clock.
pub fn server() -> Server {
    Server::with(&[("listen.grpc", "\"127.0.0.1:0\"")])
}

/// The same with the tenant `edge`, whose limits these are.
pub fn server_with(limits: &Value) -> Server {
    let server = server();
    set(&server, limits);
    server
}

/// The catalogue becomes the tenant `edge` with these limits.
pub fn set(server: &Server, limits: &Value) {
    server.catalogue(&json!({ "limits": limits, "tenants": { "edge": {} } }));
}

/// A channel to the gRPC listener.
pub fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(server.grpc_url().to_owned()).expect("an address");
    // The channel connects when it is first used, on the runtime that it was made on.
    let _on = RUNTIME.enter();
    endpoint.connect_lazy()
}

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|(key, value)| Entry {
                key: (*key).to_owned(),
                value: (*value).to_owned(),
            })
            .collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The same with a number of hits of its own.
pub fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(hits),
        ..descriptor(entries)
    }
}

/// The same with units that go back.
pub fn back(entries: &[(&str, &str)], units: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(entries, units)
    }
}

/// The same with a limit that travels with it.
pub fn own(entries: &[(&str, &str)], requests: u32, unit: RateLimitUnit) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: requests,
            unit: unit.into(),
        }),
        ..descriptor(entries)
    }
}

/// A request of the domain `edge`.
pub fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

/// What the server says to a request.
pub fn ask(server: &Server, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    ask_with(server, &[], request)
}

/// The same with metadata.
pub fn ask_with(
    server: &Server,
    metadata: &[(&'static str, &str)],
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let mut request = Request::new(request);
    for (name, value) in metadata {
        let value = value.parse().expect("metadata");
        request.metadata_mut().insert(*name, value);
    }
    let mut client = RateLimitServiceClient::new(channel(server));
    RUNTIME
        .block_on(client.should_rate_limit(request))
        .map(tonic::Response::into_inner)
}

/// What is said to a request of the domain `edge`, which must be decided.
pub fn decided(server: &Server, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
    // A strict limit may be undecided while the disk stands still, and then it has charged nothing.
    let mut told = ask(server, request(descriptors));
    for _ in 0..100 {
        if !told
            .as_ref()
            .is_err_and(|error| error.code() == tonic::Code::Unavailable)
        {
            break;
        }
        told = ask(server, request(descriptors));
    }
    let response = told.expect("a decision");
    assert_eq!(
        response.statuses.len(),
        descriptors.len(),
        "a status for each descriptor: {response:?}"
    );
    response
}

/// Whether a request of one descriptor passes.
pub fn passes(server: &Server, entries: &[(&str, &str)]) -> bool {
    let response = decided(server, &[descriptor(entries)]);
    assert_eq!(response.overall_code, response.statuses[0].code);
    response.overall_code() == Code::Ok
}

/// How many of `calls` of one descriptor pass.
pub fn passed(server: &Server, entries: &[(&str, &str)], calls: usize) -> usize {
    (0..calls).filter(|_| passes(server, entries)).count()
}

/// The name of the limit that a descriptor is told of.
pub fn limit_of(server: &Server, entries: &[(&str, &str)]) -> Option<String> {
    let response = decided(server, &[hits(entries, 0)]);
    response.statuses[0]
        .current_limit
        .clone()
        .map(|limit| limit.name)
}
