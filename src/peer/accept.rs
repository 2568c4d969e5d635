//! Taking the links that peers open.
//!
//! HTTP/2 alone, without TLS. A connection carries one link. Until its link is up it holds one of a few
//! places and has a few seconds, so that whoever connects and is silent, slow or speaks something else costs
//! little and is gone soon; a link that is up is bounded by the number of configured peers.

use std::sync::Arc;

use axum::BoxError;
use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Request;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use futures_util::StreamExt;
use hyper::body::Incoming as HyperBody;
use hyper::server::conn::http2;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::domain::time::Span;
use crate::peer::Shared;
use crate::peer::dial::CloseOnDrop;
use crate::peer::dial::PATH;
use crate::peer::dial::WINDOW_BYTES;
use crate::peer::frame;
use crate::peer::frame::Greeting;
use crate::peer::identity;
use crate::peer::identity::Hello;
use crate::peer::identity::Refusal;
use crate::peer::link::Link;
use crate::peer::link::Side;
use crate::peer::outbox::Outbox;
use crate::peer::outbox::Weight;
use crate::peer::peers::Peers;
use crate::peer::serve;
use crate::peer::serve::Incoming;
use crate::peer::state::Peer;

/// Connections that have no link yet, at once; more wait to be accepted.
pub const HANDSHAKES_MAX: usize = 64;
/// A connection must ask for a link within this time, and then say who it is within this time.
pub const GREETING_WITHIN: Span = Span::from_seconds(5);
/// Once asked for, a link must be up within this time; longer than the greeting, because the links of another process of
/// that region may have to be asked for a sign.
const LINK_WITHIN: Span = Span::from_seconds(7);
/// A connection without a link may still send what it has for so long.
const LINGER: Span = Span::from_seconds(5);
/// Pause after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Span = Span::from_ms(20);
/// The largest head of a request.
const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// Streams of one connection at once: a link and what is refused beside it.
const STREAMS_MAX: u32 = 4;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Silent,
    Greeting,
    Linked,
    Ended,
}

/// One connection, as its link sees it.
#[derive(Clone, Debug)]
struct Visit(watch::Sender<Phase>);

/// Ends a visit, however its link ends.
struct EndVisit(Visit);

impl Drop for EndVisit {
    fn drop(&mut self) {
        self.0.0.send_replace(Phase::Ended);
    }
}

/// Accepts links on `listener` until `stop` turns true.
pub async fn serve(peers: Peers, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let router = router(peers);
    let ended = async {
        // Whoever could say stop is gone: stop as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    tokio::pin!(ended);
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = &mut ended => return,
            accepted = accepted => accepted,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, _))) => {
                tokio::spawn(converse(stream, router.clone(), place));
            }
            (Ok(_), Err(error)) => {
                tracing::warn!(%error, "a peer's connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE.to_std()).await;
            }
            (Err(_), _) => return,
        }
    }
}

fn router(peers: Peers) -> Router {
    Router::new().route(PATH, post(open)).with_state(peers)
}

/// Serves one connection until its link ends.
async fn converse(stream: TcpStream, router: Router, place: OwnedSemaphorePermit) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let visit = Visit(watch::Sender::new(Phase::Silent));
    let mut phase = visit.0.subscribe();
    let service = hyper::service::service_fn(move |request: Request<HyperBody>| {
        let (router, visit) = (router.clone(), visit.clone());
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(visit);
            router.oneshot(request).await
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let linked = async {
        let asked = phase.wait_for(|phase| *phase != Phase::Silent);
        tokio::time::timeout(GREETING_WITHIN.to_std(), asked)
            .await
            .is_ok()
            && tokio::time::timeout(
                LINK_WITHIN.to_std(),
                phase.wait_for(|phase| matches!(phase, Phase::Linked | Phase::Ended)),
            )
            .await
            .is_ok()
    };
    tokio::select! {
        _ = &mut connection => return,
        has_linked = linked => if !has_linked {
            return;
        },
    }
    drop(place);
    tokio::select! {
        _ = &mut connection => return,
        _ = phase.wait_for(|phase| *phase == Phase::Ended) => {}
    }
    connection.as_mut().graceful_shutdown();
    // What a black hole has swallowed is not waited for.
    let _ = tokio::time::timeout(LINGER.to_std(), connection).await;
}

/// Opens a link.
async fn open(
    State(peers): State<Peers>,
    Extension(visit): Extension<Visit>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let shared = peers.shared();
    let is_first = visit.0.send_if_modified(|phase| {
        let is_first = *phase == Phase::Silent;
        if is_first {
            *phase = Phase::Greeting;
        }
        is_first
    });
    if !is_first {
        return (StatusCode::CONFLICT, "a connection carries one link").into_response();
    }
    let end = EndVisit(visit);
    if !is_member(shared, &headers) {
        shared.refuse_stranger(Refusal::WrongSecret);
        return (StatusCode::UNAUTHORIZED, "the peer secret is another one").into_response();
    }
    let outbox = Outbox::new(
        Arc::clone(&shared.time),
        shared.bounds,
        shared.seeds.lock().draw(),
    );
    let link = Link::new(Side::Inbound, Arc::clone(&outbox), Arc::clone(&shared.time));
    let chunks = body
        .into_data_stream()
        .map(|chunk| chunk.map_err(BoxError::from));
    tokio::spawn(greet(peers.clone(), link, Incoming::new(chunks), end));
    Body::from_stream(outbox.stream::<BoxError>()).into_response()
}

/// Whether the request bears the secret; without one of ours it must bear none.
fn is_member(shared: &Shared, headers: &HeaderMap) -> bool {
    let borne = headers.get(header::AUTHORIZATION);
    match (&shared.secret, borne) {
        (None, None) => true,
        (Some(secret), Some(borne)) => borne
            .to_str()
            .ok()
            .and_then(|borne| borne.strip_prefix("Bearer "))
            .is_some_and(|borne| secret.matches(borne)),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Hears who opened the link, and reads it when the other may speak to us.
async fn greet(peers: Peers, link: Arc<Link>, mut incoming: Incoming, end: EndVisit) {
    let shared = Arc::clone(peers.shared());
    let mut stopped = shared.stopped.subscribe();
    let admitted = tokio::select! {
        _ = stopped.wait_for(|stopped| *stopped) => return link.close(),
        admitted = admit(&peers, &link, &mut incoming) => admitted,
    };
    let Some(peer) = admitted else {
        // A refusal that waits is still sent.
        return link.outbox.end();
    };
    let _close = CloseOnDrop(Arc::clone(&link));
    end.0.0.send_replace(Phase::Linked);
    let mut removed = peer.removed.subscribe();
    tokio::select! {
        _ = stopped.wait_for(|stopped| *stopped) => {}
        _ = removed.wait_for(|removed| *removed) => {}
        () = serve::run(&shared, &peer, &link, incoming) => {}
    }
}

async fn admit(peers: &Peers, link: &Arc<Link>, incoming: &mut Incoming) -> Option<Arc<Peer>> {
    let shared = peers.shared();
    let greeting = tokio::time::timeout(GREETING_WITHIN.to_std(), incoming.greeting()).await;
    let hello = match greeting {
        Ok(Ok(Ok(Greeting::Hello(hello)))) => hello,
        Ok(Ok(Err(refusal))) => {
            refuse(shared, None, link, refusal);
            return None;
        }
        Ok(Ok(Ok(Greeting::Refused(_)))) | Err(_) => return None,
        Ok(Err(error)) => {
            tracing::debug!(%error, "whoever opened a link did not say who it is");
            return None;
        }
    };
    let we = shared.identity.borrow().clone();
    let peer = peers.get(&hello.identity.region);
    if let Some(peer) = &peer {
        link.outbox.lead(peer.road());
        let mut faults = peer.faults.subscribe();
        if faults.borrow().blocks_in {
            // It did not arrive: no answer, until the opener tries again.
            let healed = faults.wait_for(|faults| !faults.blocks_in);
            let _ = tokio::time::timeout(GREETING_WITHIN.to_std(), healed).await;
            return None;
        }
    }
    let checked = identity::check_hello(&we, &hello);
    let known = peer.clone().ok_or(Refusal::UnknownRegion);
    let peer = match checked.and(known) {
        Ok(peer) => peer,
        Err(refusal) => {
            refuse(shared, peer.as_deref(), link, refusal);
            return None;
        }
    };
    peer.compare_zones(&we, &hello.identity, shared.time.elapsed());
    link.heard();
    link.set_identity(hello.identity);
    if let Err(refusal) = peer.admit(link).await {
        refuse(shared, Some(&peer), link, refusal);
        return None;
    }
    let welcome = Greeting::Hello(Hello {
        identity: we.clone(),
        to: peer.region.clone(),
    });
    answer(shared, link, &welcome);
    let alive = Arc::clone(link);
    let identity = shared.identity.subscribe();
    tokio::spawn(async move { alive.keep_alive(identity).await });
    peer.kick.notify_one();
    Some(peer)
}

fn answer(shared: &Shared, link: &Link, greeting: &Greeting) {
    let version = shared.identity.borrow().wire_version;
    let frame = frame::encode_greeting(greeting, version);
    // There is always room for a first frame.
    let _ = link.outbox.push(frame, Bytes::new(), Weight::Greeting);
}

fn refuse(shared: &Shared, peer: Option<&Peer>, link: &Link, refusal: Refusal) {
    match peer {
        Some(peer) => peer.refuse(refusal, "us", shared.time.elapsed()),
        None => shared.refuse_stranger(refusal),
    }
    answer(shared, link, &Greeting::Refused(refusal));
}
