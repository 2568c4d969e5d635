//! One link: a stream of frames to a peer and one back, with what is known of the other side.
//!
//! Whoever opened the link sends requests on it, the other side answers them on it. Both sides ping, so that
//! each hears of the other while a large frame goes one way. A link that is silent for too long is closed.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::watch;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::peer::PeerError;
use crate::peer::Time;
use crate::peer::exchange::Exchange;
use crate::peer::exchange::Stamps;
use crate::peer::frame;
use crate::peer::frame::Head;
use crate::peer::identity::Identity;
use crate::peer::outbox::Full;
use crate::peer::outbox::Outbox;
use crate::peer::outbox::Weight;

/// A ping goes out this often.
pub const PING_INTERVAL: Span = Span::from_ms(250);
/// A link without any sign of the peer for so long is closed.
pub const SILENCE_MAX: Span = Span::from_ms(1_500);
/// Requests of one link that wait for their replies.
const PENDING_MAX: usize = 65_536;
/// Pings that wait for their answers.
const PINGS_MAX: usize = 64;
/// The identity is told again with every so many pings, in case it got lost.
const PINGS_PER_IDENTITY: u64 = 4;

/// Who opened a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We did: we ask on it.
    Outbound,
    /// The peer did: we answer on it.
    Inbound,
}

type Pending = HashMap<u64, oneshot::Sender<Result<Bytes, PeerError>>>;

/// A link.
pub struct Link {
    /// Who opened it.
    pub side: Side,
    /// What goes out.
    pub outbox: Arc<Outbox>,
    time: Arc<dyn Time>,
    identity: Mutex<Option<Arc<Identity>>>,
    pending: Mutex<Option<Pending>>,
    next_id: AtomicU64,
    heard_nanos: AtomicU64,
    pings: Mutex<VecDeque<(u64, Span)>>,
    answered: watch::Sender<u64>,
    is_closed: watch::Sender<bool>,
}

impl Link {
    /// A link on which nothing was said yet.
    pub fn new(side: Side, outbox: Arc<Outbox>, time: Arc<dyn Time>) -> Arc<Self> {
        let heard = time.elapsed().as_nanos();
        Arc::new(Self {
            side,
            outbox,
            time,
            identity: Mutex::new(None),
            pending: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU64::new(1),
            heard_nanos: AtomicU64::new(heard),
            pings: Mutex::new(VecDeque::new()),
            answered: watch::Sender::new(0),
            is_closed: watch::Sender::new(false),
        })
    }

    /// Who is on the other side; `None` before its greeting.
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.lock().clone()
    }

    /// Notes who is on the other side; true when that is news.
    pub fn set_identity(&self, identity: Identity) -> bool {
        let mut known = self.identity.lock();
        if known.as_deref() == Some(&identity) {
            return false;
        }
        *known = Some(Arc::new(identity));
        true
    }

    /// Notes a sign of the other side.
    pub fn heard(&self) {
        self.heard_nanos
            .store(self.time.elapsed().as_nanos(), Ordering::Relaxed);
    }

    /// When the other side was last heard.
    pub fn last_heard(&self) -> Span {
        Span::from_nanos(self.heard_nanos.load(Ordering::Relaxed))
    }

    /// Ends the link: what waits is forgotten, and calls fail.
    pub fn close(&self) {
        self.is_closed.send_replace(true);
        self.outbox.close();
        // Dropping the senders tells the callers.
        drop(self.pending.lock().take());
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Waits for the end of the link.
    pub async fn closed(&self) {
        // It cannot fail: the sender is in `self`.
        let _ = self.is_closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Errors
    /// When there is no room, or the link has ended.
    pub fn ask(self: &Arc<Self>, service: u8, body: Bytes) -> Result<Asked, PeerError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            let Some(pending) = pending.as_mut() else {
                return Err(PeerError::NotConnected);
            };
            if pending.len() >= PENDING_MAX {
                return Err(PeerError::Full);
            }
            pending.insert(id, sender);
        }
        let asked = Asked {
            link: Arc::clone(self),
            id,
            reply,
        };
        let head = frame::encode_head(&Head::Request { id, service }, body.len());
        match self.outbox.push(head, body, Weight::Bounded) {
            Ok(()) => Ok(asked),
            Err(Full) => Err(PeerError::Full),
        }
    }

    /// Puts a frame with a body at the end of the queue.
    ///
    /// # Errors
    /// When there is no room.
    pub fn send(&self, head: &Head, body: Bytes) -> Result<(), Full> {
        let head = frame::encode_head(head, body.len());
        self.outbox.push(head, body, Weight::Bounded)
    }

    /// Puts a small frame at the end of the queue.
    pub fn signal(&self, head: &Head) {
        let head = frame::encode_head(head, 0);
        // There is always room for these.
        let _ = self.outbox.push(head, Bytes::new(), Weight::Free);
    }

    /// Hands a reply to whoever waits for it.
    pub fn settle(&self, id: u64, reply: Result<Bytes, PeerError>) {
        let waiting = self
            .pending
            .lock()
            .as_mut()
            .and_then(|pending| pending.remove(&id));
        if let Some(waiting) = waiting {
            // Whoever waited may have given up at this moment.
            let _ = waiting.send(reply);
        }
    }

    /// Sends a ping and gives its name.
    pub fn ping(&self) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let sent = self.time.elapsed();
        {
            let mut pings = self.pings.lock();
            if pings.len() >= PINGS_MAX {
                pings.pop_front();
            }
            pings.push_back((id, sent));
        }
        self.signal(&Head::Ping {
            id,
            sent: self.time.now(),
        });
        id
    }

    /// Takes a pong; `None` when its ping is not known.
    pub fn pong(
        &self,
        id: u64,
        sent: Timestamp,
        received: Timestamp,
        answered: Timestamp,
    ) -> Option<Exchange> {
        let sent_at = {
            let mut pings = self.pings.lock();
            let place = pings.iter().position(|(known, _)| *known == id)?;
            // The link keeps the order, so an older ping will not be answered any more.
            let (_, sent_at) = pings.drain(..=place).next_back()?;
            sent_at
        };
        self.answered.send_replace(id);
        let stamps = Stamps {
            sent,
            received,
            answered,
            returned: self.time.now(),
        };
        Some(Exchange::new(stamps, self.time.elapsed().minus(sent_at)))
    }

    /// Asks the other side for a sign now; whether one came within `patience`.
    pub async fn is_alive(&self, patience: Span) -> bool {
        if self.is_closed() {
            return false;
        }
        let mut answered = self.answered.subscribe();
        let id = self.ping();
        tokio::select! {
            () = self.closed() => false,
            waited = tokio::time::timeout(patience.to_std(), answered.wait_for(|last| *last >= id)) => {
                matches!(waited, Ok(Ok(_)))
            }
        }
    }

    /// Pings until the link ends, tells the other side who `we` are by then, and closes the link when it is
    /// silent. Silence does not count before the greeting.
    pub async fn keep_alive(&self, we: watch::Receiver<Identity>) {
        let mut ticks = tokio::time::interval(PING_INTERVAL.to_std());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_tick = self.time.elapsed();
        let mut number: u64 = 0;
        loop {
            tokio::select! {
                () = self.closed() => return,
                _ = ticks.tick() => {}
            }
            let now = self.time.elapsed();
            // After a pause of this process, what the peer sent meanwhile is still to be read.
            let was_paused = now.minus(last_tick) > PING_INTERVAL.plus(PING_INTERVAL);
            last_tick = now;
            let is_silent = now.minus(self.last_heard()) > SILENCE_MAX;
            if is_silent && !was_paused && self.identity.lock().is_some() {
                tracing::debug!(side = ?self.side, "a link is silent");
                self.close();
                return;
            }
            self.ping();
            number += 1;
            if number.is_multiple_of(PINGS_PER_IDENTITY) {
                let identity = we.borrow().clone();
                self.signal(&Head::Identity(identity));
            }
        }
    }
}

/// A request that is on its way.
pub struct Asked {
    link: Arc<Link>,
    id: u64,
    reply: oneshot::Receiver<Result<Bytes, PeerError>>,
}

impl Asked {
    /// Waits for the reply, at most `deadline`.
    pub async fn reply(mut self, deadline: Span) -> Result<Bytes, PeerError> {
        match tokio::time::timeout(deadline.to_std(), &mut self.reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(PeerError::Closed),
            Err(_) => Err(PeerError::TimedOut),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(pending) = self.link.pending.lock().as_mut() {
            pending.remove(&self.id);
        }
    }
}
