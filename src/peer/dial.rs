//! Opening the link to one peer, again and again.

use std::sync::Arc;

use axum::BoxError;
use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::StatusCode;
use reqwest::header;

use crate::domain::time::Span;
use crate::peer::Shared;
use crate::peer::backoff::Backoff;
use crate::peer::frame;
use crate::peer::frame::Greeting;
use crate::peer::identity;
use crate::peer::identity::Hello;
use crate::peer::identity::Identity;
use crate::peer::identity::Refusal;
use crate::peer::link::Link;
use crate::peer::link::Side;
use crate::peer::outbox::Outbox;
use crate::peer::outbox::Weight;
use crate::peer::serve;
use crate::peer::serve::Incoming;
use crate::peer::state::Peer;

/// The path of a link.
pub const PATH: &str = "/peer/v1/link";
/// How much may be on its way to a reader that does not read yet.
pub const WINDOW_BYTES: u32 = 4 << 20;

/// A connection must be made within this time.
const CONNECT_WITHIN: Span = Span::from_seconds(3);
/// A link must be up within this time, injected delays included.
const OPEN_WITHIN: Span = Span::from_seconds(10);
/// When the peer has just reached us, an attempt that is older than this is given up for a new one.
const STALE_AFTER: Span = Span::from_seconds(1);
/// What was sent and is not acknowledged for so long ends the connection.
const UNACKNOWLEDGED_MAX: Span = Span::from_seconds(10);

enum Failure {
    Refused(Refusal, &'static str),
    Broken(BoxError),
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// A link that is up, and what must live as long as it does.
struct Opened {
    link: CloseOnDrop,
    incoming: Incoming,
    _client: reqwest::Client,
}

/// Closes a link that was given up.
pub struct CloseOnDrop(pub Arc<Link>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Keeps a link to `peer` open until it is removed or the region stops.
pub async fn keep_open(shared: Arc<Shared>, peer: Arc<Peer>) {
    let mut stopped = shared.stopped.subscribe();
    let mut removed = peer.removed.subscribe();
    tokio::select! {
        _ = stopped.wait_for(|stopped| *stopped) => {}
        _ = removed.wait_for(|removed| *removed) => {}
        () = open_forever(&shared, &peer) => {}
    }
}

async fn open_forever(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    let mut backoff = Backoff::new(shared.seeds.lock().draw());
    loop {
        match attempt(shared, peer).await {
            None => continue,
            Some(Ok(opened)) => {
                backoff.reset();
                peer.breaker(|breaker| breaker.succeeded());
                serve::run(shared, peer, &opened.link.0, opened.incoming).await;
            }
            Some(Err(Failure::Refused(refusal, by))) => {
                peer.refuse(refusal, by, shared.time.elapsed());
            }
            Some(Err(Failure::Broken(error))) => {
                tracing::debug!(peer = %peer.region, url = %peer.url, %error, "no link yet");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause().to_std()) => {}
            () = peer.kick.notified() => {}
        }
    }
}

/// One attempt; `None`: there is reason to begin anew at once.
async fn attempt(shared: &Arc<Shared>, peer: &Arc<Peer>) -> Option<Result<Opened, Failure>> {
    let mut faults = peer.faults.subscribe();
    let blocks = {
        // What we would send vanishes, so nothing is sent.
        let begun = faults.wait_for(|faults| !faults.blocks_out).await.ok()?;
        (begun.blocks_in, begun.blocks_out)
    };
    let stale_after = STALE_AFTER
        .plus(peer.faults.borrow().delay)
        .plus(peer.faults.borrow().delay);
    let stale = tokio::time::sleep(stale_after.to_std());
    let opening = tokio::time::timeout(OPEN_WITHIN.to_std(), open(shared, peer));
    tokio::pin!(stale, opening);
    let mut is_kicked = false;
    loop {
        tokio::select! {
            opened = &mut opening => return match opened {
                Ok(opened) => Some(opened),
                Err(_) => Some(Err(Failure::Broken("no answer".into()))),
            },
            _ = faults.wait_for(|now| (now.blocks_in, now.blocks_out) != blocks) => return None,
            () = peer.kick.notified(), if !is_kicked => is_kicked = true,
            () = &mut stale, if is_kicked => return None,
        }
    }
}

async fn open(shared: &Arc<Shared>, peer: &Arc<Peer>) -> Result<Opened, Failure> {
    let we = shared.identity.borrow().clone();
    let outbox = Outbox::new(
        Arc::clone(&shared.time),
        shared.bounds,
        shared.seeds.lock().draw(),
    );
    outbox.lead(peer.road());
    let link = Link::new(Side::Outbound, outbox, Arc::clone(&shared.time));
    let link = CloseOnDrop(link);
    let greeting = frame::encode_greeting(
        &Greeting::Hello(Hello {
            identity: we.clone(),
            to: peer.region.clone(),
        }),
        we.wire_version,
    );
    // There is always room for a first frame.
    let _ = link.0.outbox.push(greeting, Bytes::new(), Weight::Greeting);
    let alive = Arc::clone(&link.0);
    let identity = shared.identity.subscribe();
    tokio::spawn(async move { alive.keep_alive(identity).await });

    let client = client()?;
    let body = reqwest::Body::wrap_stream(link.0.outbox.stream::<std::io::Error>());
    let mut request = client.post(format!("{}{PATH}", peer.url)).body(body);
    if let Some(secret) = &shared.secret {
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", secret.expose()));
    }
    let response = request.send().await?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => return Err(Failure::Refused(Refusal::WrongSecret, "the peer")),
        status => return Err(Failure::Broken(format!("status {status}").into())),
    }
    let chunks = response
        .bytes_stream()
        .map(|chunk| chunk.map_err(BoxError::from));
    let mut incoming = Incoming::new(chunks);
    let greeting = incoming.greeting().await?;
    if peer.faults.borrow().blocks_in {
        // It vanishes; the attempt ends when the fault does, or in vain.
        std::future::pending::<()>().await;
    }
    let identity = match greeting {
        Err(refusal) => return Err(Failure::Refused(refusal, "us")),
        Ok(Greeting::Refused(refusal)) => return Err(Failure::Refused(refusal, "the peer")),
        Ok(Greeting::Hello(hello)) => {
            check(&we, peer, &hello).map_err(|refusal| Failure::Refused(refusal, "us"))?;
            hello.identity
        }
    };
    peer.compare_zones(&we, &identity, shared.time.elapsed());
    link.0.heard();
    link.0.set_identity(identity);
    peer.admit(&link.0)
        .await
        .map_err(|refusal| Failure::Refused(refusal, "us"))?;
    Ok(Opened {
        link,
        incoming,
        _client: client,
    })
}

fn check(we: &Identity, peer: &Peer, hello: &Hello) -> Result<(), Refusal> {
    if hello.identity.region != peer.region && hello.identity.region != we.region {
        return Err(Refusal::WrongRegion);
    }
    identity::check_hello(we, hello)
}

/// A client for one connection: a pool would hand out a connection whose network is gone.
fn client() -> reqwest::Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(WINDOW_BYTES)
        .http2_initial_connection_window_size(WINDOW_BYTES)
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_WITHIN.to_std());
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let builder = builder.tcp_user_timeout(UNACKNOWLEDGED_MAX.to_std());
    builder.build()
}
