//! Accepting connections: bounds for slow senders, coalesced replies, and an orderly end.
//!
//! A connection must send each request's head within [`HEAD_DEADLINE`]. Replies to pipelined requests are
//! written together. On shutdown the listener stops accepting, running requests are finished, and
//! connections are closed; those that have not ended by then are dropped.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tower::Service;
use tower::ServiceExt;

use crate::domain::time::Span;
use crate::region::timers::stopped;

/// The head of a request must have arrived this long after its first byte was waited for.
pub const HEAD_DEADLINE: Span = Span::from_seconds(30);
/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Connections of one listener at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16_384;
/// Pause after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Span = Span::from_ms(20);

/// Serves `router` on `listener` until `stop` turns true; then waits for running requests up to `grace`.
pub async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>, grace: Span) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE.to_std())
        .max_buf_size(HEAD_BYTES_MAX)
        .pipeline_flush(true)
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(Span::from_seconds(30).to_std()))
        .keep_alive_timeout(Span::from_seconds(20).to_std())
        .max_concurrent_streams(1024);
    loop {
        let place = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE.to_std()).await;
                continue;
            }
        };
        // Small replies must not wait for the peer's acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let service = router.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut service = service.clone();
            async move {
                // A router is always ready.
                service.as_service::<Body>().ready().await?.call(request.map(Body::new)).await
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke off");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(grace.to_std(), graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end within {grace}; their connections are dropped");
    }
}
