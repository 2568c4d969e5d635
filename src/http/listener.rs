//! Accepting connections: bounds for slow senders, coalesced replies, and an orderly end.
//!
//! HTTP/1.1 alone: a connection that has sent nothing yet must be bounded in time too, which a guess at the
//! protocol would not be. A connection must send each request's head within [`HEAD_DEADLINE`]. Replies to pipelined requests are
//! written together. On shutdown the listener stops accepting, running requests are finished, and
//! connections are closed; those that have not ended by then are dropped.

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::Service;
use tower::ServiceExt;

use crate::domain::time::Span;
use crate::http::accept::accept;
use crate::http::gateway;

/// The head of a request must have arrived this long after the connection was ready for it; a connection
/// that is idle for longer is closed.
pub const HEAD_DEADLINE: Span = Span::from_seconds(30);
/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Connections of one listener at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16_384;

/// Serves `router` on `listener` until `stop` turns true; then waits for running requests up to `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: watch::Receiver<bool>,
    grace: Span,
) {
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE.to_std())
        .max_buf_size(HEAD_BYTES_MAX)
        // Who has sent all it will send may still read the answer.
        .half_close(true)
        .pipeline_flush(true);
    let take = |stream, hop, place| {
        let service = router.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let mut service = service.clone();
            // Nobody else asks who sent a request, and most requests are checks.
            if request.uri().path().starts_with(gateway::PATH) {
                request.extensions_mut().insert(gateway::Hop(hop));
            }
            async move {
                // A router is always ready.
                service
                    .as_service::<Body>()
                    .ready()
                    .await?
                    .call(request.map(Body::new))
                    .await
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke off");
            }
            drop(place);
        });
    };
    accept(listener, CONNECTIONS_MAX, stop, take).await;
    if tokio::time::timeout(grace.to_std(), graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some requests did not end within {grace}; their connections are dropped");
    }
}
