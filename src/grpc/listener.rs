//! Accepting gRPC connections: bounds for silent peers, an age limit, and an orderly end.
//!
//! A connection must begin to speak HTTP/2 within `PREFACE_DEADLINE`, and is asked whether it is alive when it
//! is idle. One that has lived for [`AGE_MAX`] is told to open another, so that callers look their name up again
//! and spread over regions that were added; calls that run may end within `AGE_GRACE`. On shutdown the listener
//! stops accepting, connections are told the same, running calls are finished, and what has not ended by then is
//! dropped.

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use crate::domain::time::Span;
use crate::http::accept::accept;
use crate::region::timers::stopped;

/// Connections of this listener at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 4_096;
/// Calls of one connection at once.
const STREAMS_MAX: u32 = 1_000;
/// The headers of one call.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// A connection must have begun to speak HTTP/2 this long after it was accepted.
const PREFACE_DEADLINE: Span = Span::from_seconds(10);
/// A connection is asked whether it is alive this often.
const KEEP_ALIVE_INTERVAL: Span = Span::from_seconds(30);
/// It must say so within this time.
const KEEP_ALIVE_TIMEOUT: Span = Span::from_seconds(20);
/// How long a connection lives, less up to a tenth, so that those that began together do not end together.
pub const AGE_MAX: Span = Span::from_seconds(30 * 60);
/// How long its running calls may take after that.
const AGE_GRACE: Span = Span::from_seconds(10);

/// Serves `routes` on `listener` until `stop` turns true; then waits for running calls up to `grace`.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    stop: watch::Receiver<bool>,
    grace: Span,
) {
    let mut connections = JoinSet::new();
    let mut accepted_until_now: u32 = 0;
    let stops = stop.clone();
    let take = |stream, _, place| {
        // Those that ended are forgotten as others come.
        while connections.try_join_next().is_some() {}
        accepted_until_now = accepted_until_now.wrapping_add(1);
        let age = age_of(accepted_until_now);
        let (routes, stop) = (routes.clone(), stops.clone());
        connections.spawn(async move {
            converse(stream, routes, age, stop).await;
            drop(place);
        });
    };
    accept(listener, CONNECTIONS_MAX, stop, take).await;
    let ended = tokio::time::timeout(grace.to_std(), async {
        while connections.join_next().await.is_some() {}
    });
    if ended.await.is_err() {
        tracing::warn!("some calls did not end within {grace}; their connections are dropped");
    }
}

/// The age of the `number`th connection: spread over the last tenth below the most.
fn age_of(number: u32) -> Span {
    let tenths = AGE_MAX.as_nanos() / 10;
    // The golden ratio spreads neighbours evenly.
    let part = u64::from(number.wrapping_mul(0x9e37_79b9) >> 16);
    AGE_MAX.minus(Span::from_nanos((tenths >> 16) * part))
}

/// One connection, from its first byte to its end.
async fn converse(stream: TcpStream, routes: Routes, age: Span, mut stop: watch::Receiver<bool>) {
    let mut first = [0];
    let spoke = tokio::time::timeout(PREFACE_DEADLINE.to_std(), stream.peek(&mut first));
    if !matches!(spoke.await, Ok(Ok(1))) {
        return;
    }
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        // Routes are always ready.
        routes.clone().call(request.map(Body::new))
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL.to_std())
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT.to_std());
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = tokio::time::sleep(age.to_std()) => None,
        () = stopped(&mut stop) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(AGE_GRACE.to_std(), connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_over_the_last_tenth() {
        let ages: Vec<Span> = (1..=1000).map(age_of).collect();
        let least = AGE_MAX.minus(Span::from_nanos(AGE_MAX.as_nanos() / 10));
        assert!(ages.iter().all(|age| *age <= AGE_MAX && *age >= least));
        let early = ages
            .iter()
            .filter(|age| age.plus(Span::from_seconds(90)) < AGE_MAX);
        assert!((400..600).contains(&early.count()));
    }
}
