//! What stands beside the service: health, reflection, and the end of a connection.

use std::time::Duration;

use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::calls::RUNTIME;
use crate::client::channel;
use crate::client::descriptor;
use crate::client::passed;
use crate::client::request;
use crate::client::server;
use crate::client::server_with;
use crate::server::Server;
use crate::server::Stop;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

fn named(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

/// What the health service says of a service.
pub fn health_of(server: &Server, service: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(channel(server));
    RUNTIME
        .block_on(client.check(named(service)))
        .map(|response| response.into_inner().status())
        .map_err(|status| status.code())
}

/// Health is `/readyz`: a region that drains is not serving, and whoever watches is told.
#[test]
fn health_follows_readiness() {
    let server = server();
    let check = |service: &str| health_of(&server, service);
    assert_eq!(check(""), Ok(ServingStatus::Serving));
    assert_eq!(check(SERVICE), Ok(ServingStatus::Serving));
    assert_eq!(check("nobody"), Err(Code::NotFound));
    let mut client = HealthClient::new(channel(&server));
    let next = async |stream: &mut tonic::Streaming<_>| -> Option<ServingStatus> {
        let next = tokio::time::timeout(Duration::from_secs(10), stream.message());
        let told: Option<tonic_health::pb::HealthCheckResponse> =
            next.await.expect("in time").expect("a word");
        told.map(|told| told.status())
    };
    RUNTIME.block_on(async {
        let mut watched = client.watch(named(SERVICE)).await.expect("it").into_inner();
        assert_eq!(next(&mut watched).await, Some(ServingStatus::Serving));
        let mut unknown = client
            .watch(named("nobody"))
            .await
            .expect("it")
            .into_inner();
        assert_eq!(
            next(&mut unknown).await,
            Some(ServingStatus::ServiceUnknown)
        );
        tokio::task::block_in_place(|| {
            server
                .admin(Method::POST, "/admin/v1/cluster/drain", &Value::Null)
                .succeeded();
        });
        assert_eq!(next(&mut watched).await, Some(ServingStatus::NotServing));
        tokio::task::block_in_place(|| {
            server
                .admin(Method::POST, "/admin/v1/cluster/resume", &Value::Null)
                .succeeded();
        });
        assert_eq!(next(&mut watched).await, Some(ServingStatus::Serving));
    });
}

/// The services describe themselves, so that grpcurl works without files.
#[test]
fn the_services_describe_themselves() {
    let server = server();
    let mut client = ServerReflectionClient::new(channel(&server));
    let ask = |message: MessageRequest| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let asked = vec![
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(SERVICE.to_owned())),
    ];
    let told = RUNTIME.block_on(async {
        let asked = futures_util::stream::iter(asked);
        let mut stream = client
            .server_reflection_info(asked)
            .await
            .expect("reflection")
            .into_inner();
        let mut told = Vec::new();
        while let Some(word) = stream.message().await.expect("a word") {
            told.push(word.message_response.expect("an answer"));
        }
        told
    });
    let [
        MessageResponse::ListServicesResponse(list),
        MessageResponse::FileDescriptorResponse(file),
    ] = told.as_slice()
    else {
        panic!("{told:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|one| one.name.as_str()).collect();
    assert!(names.contains(&SERVICE), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
    assert!(!file.file_descriptor_proto.is_empty());
}

/// A server that stops finishes what runs, tells its connections to go and ends in order, also while somebody
/// watches its health.
#[test]
fn a_stop_ends_connections_in_order() {
    let mut server = server_with(&json!({
        "api": { "algorithm": "fixed_window", "quota": 3, "window": "1m", "match": ["api=1"] },
    }));
    let mut client = RateLimitServiceClient::new(channel(&server));
    let mut health = HealthClient::new(channel(&server));
    let watched = RUNTIME.block_on(async {
        client
            .should_rate_limit(request(&[descriptor(&[("api", "1")])]))
            .await
            .expect("a decision");
        health.watch(named("")).await.expect("it").into_inner()
    });
    let began = std::time::Instant::now();
    assert!(server.stop(Stop::Terminate).success());
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "no connection was waited for: {:?}",
        began.elapsed()
    );
    drop(watched);
    server.start_again();
    assert_eq!(passed(&server, &[("api", "1")], 5), 2, "the count was kept");
}
