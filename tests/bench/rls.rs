//! The rate limit service beside a bare gRPC handler that reads the same requests and answers the same bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use highwater::domain::time::Span;
use highwater::grpc;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use highwater::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use highwater::region::timers;
use rustix::time::ClockId;
use rustix::time::clock_gettime;
use tonic::Request;
use tonic::Response;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::Endpoint;

use crate::Row;
use crate::http::Served;
use crate::http::alone;
use crate::http::config;
use crate::http::on_a_thread;
use crate::median;

const KEYS: u32 = 100_000;
const CONNECTIONS: usize = 4;
/// Calls of each connection at once.
const CALLS: usize = 16;
const TURNS: usize = 7;
const TURN: Duration = Duration::from_millis(1_500);
const GRACE: Span = Span::from_seconds(5);

/// A handler that answers what it was given.
struct Bare(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for Bare {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        assert_eq!(request.get_ref().descriptors.len(), 1);
        Ok(Response::new(self.0.clone()))
    }
}

fn bare(answer: RateLimitResponse) -> Served {
    on_a_thread(move |listener, stop| async move {
        let routes = Routes::new(RateLimitServiceServer::new(Bare(answer))).prepare();
        grpc::listener::serve(listener, routes, stop, GRACE).await;
    })
}

fn region(dir: &std::path::Path) -> Served {
    let config = config(dir, "100ms");
    on_a_thread(move |listener, stop| async move {
        let region = alone(&config, &stop).await;
        timers::start(&region, &stop);
        let flusher = tokio::spawn(timers::flush_until(
            Arc::clone(&region),
            config.flush_interval,
            stop.clone(),
        ));
        let routes = grpc::routes(&region, &stop).expect("the services");
        grpc::listener::serve(listener, routes, stop, GRACE).await;
        flusher.await.expect("the flusher");
        region.store.close().await.expect("the store");
    })
}

fn request(key: u32) -> RateLimitRequest {
    RateLimitRequest {
        domain: "acme".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry {
                key: "remote_address".to_owned(),
                value: format!("user-{key:08x}"),
            }],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    }
}

fn nanos(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// CPU that a thread of this process has used, in nanoseconds.
fn used_by(thread: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"));
    let text = text.expect("the thread runs");
    let first = text.split_whitespace().next().expect("a figure");
    first.parse().expect("nanoseconds")
}

/// What a turn came to.
struct Turn {
    answered: f64,
    seconds: f64,
    /// CPU of the whole process but of the load.
    served: f64,
}

/// One answer, and then as many as there is time for, all over few connections.
fn run(address: SocketAddr) -> (RateLimitResponse, Turn) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let mut first = None;
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let channel = endpoint.connect().await.expect("a connection");
            let mut client = RateLimitServiceClient::new(channel);
            let told = client.should_rate_limit(request(0)).await.expect("it");
            first = Some(told.into_inner());
            clients.push(client);
        }
        let before = (
            nanos(ClockId::ProcessCPUTime),
            nanos(ClockId::ThreadCPUTime),
        );
        let began = Instant::now();
        let calls: Vec<_> = (0..CONNECTIONS * CALLS)
            .map(|caller| {
                let mut client = clients[caller % CONNECTIONS].clone();
                tokio::spawn(async move {
                    let step = KEYS / u32::try_from(CONNECTIONS * CALLS).expect("few");
                    let mut key = step * u32::try_from(caller).expect("few");
                    let mut answered = 0_u32;
                    while began.elapsed() < TURN {
                        let told = client.should_rate_limit(request(key % KEYS)).await;
                        assert_eq!(told.expect("it").into_inner().statuses.len(), 1);
                        answered += 1;
                        key += 1;
                    }
                    answered
                })
            })
            .collect();
        let mut answered = 0.0;
        for call in calls {
            answered += f64::from(call.await.expect("a caller"));
        }
        let seconds = began.elapsed().as_secs_f64();
        let all = nanos(ClockId::ProcessCPUTime) - before.0;
        let own = nanos(ClockId::ThreadCPUTime) - before.1;
        let turn = Turn {
            answered,
            seconds,
            served: all - own,
        };
        (first.expect("an answer"), turn)
    })
}

/// `ShouldRateLimit` beside a bare handler.
pub fn against_bare() -> Vec<Row> {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = region(dir.path());
    let (answer, _) = run(ours.address);
    assert_eq!(
        answer.statuses[0].current_limit.clone().expect("it").name,
        "api"
    );
    let bare = bare(answer);
    run(bare.address);
    let mut pairs = Vec::new();
    for _ in 0..TURNS {
        let idle = used_by(bare.thread_id);
        let (_, own) = run(ours.address);
        // The handler that waits meanwhile is not ours.
        let own_cpu = own.served - (used_by(bare.thread_id) - idle);
        let before = used_by(bare.thread_id);
        let (_, other) = run(bare.address);
        let other_cpu = used_by(bare.thread_id) - before;
        pairs.push((
            own_cpu / own.answered,
            other_cpu / other.answered,
            own.answered / own.seconds,
            other.answered / other.seconds,
        ));
    }
    let of = |part: fn(&(f64, f64, f64, f64)) -> f64| median(pairs.iter().map(part).collect());
    vec![Row {
        what: "`ShouldRateLimit`, 100 k keys, all threads but the load: CPU per request against a bare gRPC handler of the same bytes",
        measured: format!(
            "{:.2} × ({:.1} µs to {:.1} µs; {:.0} k/s to {:.0} k/s)",
            of(|pair| pair.0 / pair.1),
            of(|pair| pair.0) / 1e3,
            of(|pair| pair.1) / 1e3,
            of(|pair| pair.2) / 1e3,
            of(|pair| pair.3) / 1e3,
        ),
        wanted: "≤ 1.4 ×",
    }]
}
