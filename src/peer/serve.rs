//! Reading one link: frames come in, the handler is called in their order, replies go out when they are
//! ready.

use std::pin::Pin;
use std::sync::Arc;

use axum::BoxError;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::StreamExt;

use crate::peer::BODY_BYTES_MAX;
use crate::peer::PeerError;
use crate::peer::Service;
use crate::peer::Shared;
use crate::peer::frame;
use crate::peer::frame::Decline;
use crate::peer::frame::Decoder;
use crate::peer::frame::Greeting;
use crate::peer::frame::Head;
use crate::peer::identity;
use crate::peer::identity::Identity;
use crate::peer::identity::Refusal;
use crate::peer::link::Link;
use crate::peer::link::Side;
use crate::peer::outbox::Full;
use crate::peer::outbox::add;
use crate::peer::state::Peer;

/// The bytes that come in on a link.
pub struct Incoming {
    chunks: Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>,
    decoder: Decoder,
}

impl Incoming {
    /// Nothing was read yet.
    pub fn new(chunks: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Self {
        Self {
            chunks: Box::pin(chunks),
            decoder: Decoder::new(),
        }
    }

    /// The next frame; `None` at the end. `note` is told how many bytes came in.
    async fn frame(&mut self, note: impl Fn(usize)) -> Result<Option<Bytes>, BoxError> {
        loop {
            if let Some(frame) = self.decoder.frame()? {
                return Ok(Some(frame));
            }
            match self.chunks.next().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error),
                Some(Ok(chunk)) => {
                    note(chunk.len());
                    self.decoder.push(&chunk);
                }
            }
        }
    }

    /// The greeting, which comes first; the inner error: it is of a version that cannot be read.
    pub async fn greeting(&mut self) -> Result<Result<Greeting, Refusal>, BoxError> {
        let frame = self.frame(|_| {}).await?.ok_or("no greeting")?;
        let greeting = frame::decode_greeting(&frame)?;
        self.decoder.greeted();
        Ok(greeting)
    }
}

/// Closes a link, and takes it out of its place, however its reader ends.
struct Standing<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
    link: &'a Arc<Link>,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.link.close();
        if self.peer.withdraw(self.link) {
            tracing::info!(peer = %self.peer.region, side = ?self.link.side, "a link ended");
            self.shared.tick();
        }
    }
}

/// Reads a link that was admitted until it ends.
pub async fn run(shared: &Arc<Shared>, peer: &Arc<Peer>, link: &Arc<Link>, mut incoming: Incoming) {
    let _standing = Standing { shared, peer, link };
    tracing::info!(peer = %peer.region, side = ?link.side, "a link is up");
    shared.tick();
    let note = |bytes| {
        if !peer.faults.borrow().blocks_in {
            link.heard();
            add(&peer.traffic.bytes_in, bytes);
        }
    };
    loop {
        let frame = tokio::select! {
            biased;
            () = link.closed() => return,
            frame = incoming.frame(note) => frame,
        };
        let taken = match frame {
            Ok(None) => return,
            Ok(Some(_)) if peer.faults.borrow().blocks_in => continue,
            Ok(Some(frame)) => frame::decode(frame).map_err(BoxError::from),
            Err(error) => Err(error),
        };
        let taken = taken.and_then(|(head, body)| {
            add(&peer.traffic.frames_in, 1);
            take(shared, peer, link, head, body)
        });
        if let Err(error) = taken {
            tracing::debug!(peer = %peer.region, %error, "a link broke off");
            return;
        }
    }
}

fn take(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    link: &Arc<Link>,
    head: Head,
    body: Bytes,
) -> Result<(), BoxError> {
    match (head, link.side) {
        (Head::Request { id, service }, Side::Inbound) => {
            request(shared, peer, link, id, service, body);
        }
        (Head::Tell { service }, Side::Inbound) => {
            tell(shared, peer, link, service, body);
        }
        (Head::Reply { id }, Side::Outbound) => link.settle(id, Ok(body)),
        (Head::Declined { id, why }, Side::Outbound) => {
            let error = match why {
                Decline::Unserved => PeerError::Unserved,
                Decline::Busy => PeerError::Full,
            };
            link.settle(id, Err(error));
        }
        (Head::Ping { id, sent }, _) => {
            let now = shared.time.now();
            link.signal(&Head::Pong {
                id,
                sent,
                received: now,
                answered: now,
            });
        }
        (
            Head::Pong {
                id,
                sent,
                received,
                answered,
            },
            side,
        ) => {
            if let Some(exchange) = link.pong(id, sent, received, answered) {
                if side == Side::Outbound {
                    peer.breaker(|breaker| breaker.succeeded());
                }
                peer.measured(exchange, shared.time.elapsed());
            }
        }
        (Head::Identity(identity), _) => return renamed(shared, peer, link, identity),
        (Head::Request { .. } | Head::Tell { .. }, Side::Outbound)
        | (Head::Reply { .. } | Head::Declined { .. }, Side::Inbound) => {
            return Err("a frame on the wrong side of a link".into());
        }
    }
    Ok(())
}

fn tell(shared: &Shared, peer: &Peer, link: &Link, service: u8, body: Bytes) {
    let (Some(service), Some(from)) = (Service::from_number(service), link.identity()) else {
        return;
    };
    let Some(work) = shared.handler.handle(&from, service, body) else {
        return;
    };
    let Ok(place) = Arc::clone(&shared.requests).try_acquire_owned() else {
        return add(&peer.traffic.dropped, 1);
    };
    tokio::spawn(async move {
        work.await;
        drop(place);
    });
}

fn request(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    link: &Arc<Link>,
    id: u64,
    service: u8,
    body: Bytes,
) {
    let decline = |why| link.signal(&Head::Declined { id, why });
    let (Some(service), Some(from)) = (Service::from_number(service), link.identity()) else {
        return decline(Decline::Unserved);
    };
    let Ok(place) = Arc::clone(&shared.requests).try_acquire_owned() else {
        return decline(Decline::Busy);
    };
    let Some(work) = shared.handler.handle(&from, service, body) else {
        return decline(Decline::Unserved);
    };
    let (peer, link) = (Arc::clone(peer), Arc::clone(link));
    tokio::spawn(async move {
        let body = work.await;
        drop(place);
        if body.len() > BODY_BYTES_MAX {
            tracing::error!(
                ?service,
                bytes = body.len(),
                "a reply is longer than a frame may be"
            );
            return link.signal(&Head::Declined {
                id,
                why: Decline::Busy,
            });
        }
        if let Err(Full) = link.send(&Head::Reply { id }, body) {
            add(&peer.traffic.dropped, 1);
        }
    });
}

/// The peer tells who it is by now.
fn renamed(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    link: &Arc<Link>,
    identity: Identity,
) -> Result<(), BoxError> {
    let is_same_process = link.identity().is_some_and(|known| {
        known.region == identity.region && known.incarnation == identity.incarnation
    });
    if !is_same_process {
        return Err("a peer became another one".into());
    }
    if let Err(refusal) = identity::check_cluster(&shared.identity.borrow(), &identity) {
        peer.refuse(refusal, "us", shared.time.elapsed());
        return Err(refusal.as_str().into());
    }
    if link.set_identity(identity) {
        shared.tick();
    }
    Ok(())
}

impl Shared {
    /// Says that a peer connected, disconnected or changed who it is.
    pub fn tick(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}
