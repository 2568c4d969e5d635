//! The health service: the region's readiness, as `/readyz` tells it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream;
use tokio::sync::watch;
use tonic::Request;
use tonic::Response;
use tonic::Status;
use tonic::server::NamedService;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::HealthCheckResponse;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;

use crate::domain::time::Span;
use crate::grpc::check::RateLimits;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use crate::region::state::Region;
use crate::region::timers::stopped;

/// How often a watched state is looked at.
const LOOK_INTERVAL: Span = Span::from_ms(200);

/// See the module.
pub struct Readiness {
    region: Arc<Region>,
    stopped: watch::Receiver<bool>,
}

impl Readiness {
    /// The readiness of `region`; what is watched ends when `stopped` turns true.
    pub const fn new(region: Arc<Region>, stopped: watch::Receiver<bool>) -> Self {
        Self { region, stopped }
    }
}

fn status(region: &Region) -> ServingStatus {
    if region.readiness().iter().all(|(_, met)| *met) {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

fn is_known(service: &str) -> bool {
    service.is_empty() || service == <RateLimitServiceServer<RateLimits> as NamedService>::NAME
}

type Watched = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Readiness {
    type WatchStream = Watched;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if is_known(&request.get_ref().service) {
            Ok(Response::new(response(status(&self.region))))
        } else {
            Err(Status::not_found("there is no such service here"))
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Watched>, Status> {
        let is_known = is_known(&request.get_ref().service);
        let start = (Arc::clone(&self.region), self.stopped.clone(), None);
        let changes = stream::unfold(start, move |(region, mut stop, told)| async move {
            loop {
                let now = if is_known {
                    status(&region)
                } else {
                    ServingStatus::ServiceUnknown
                };
                if told != Some(now) {
                    return Some((Ok(response(now)), (region, stop, Some(now))));
                }
                tokio::select! {
                    () = stopped(&mut stop) => return None,
                    () = tokio::time::sleep(LOOK_INTERVAL.to_std()) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
