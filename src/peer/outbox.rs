//! What one region has to send on one link: a bounded queue in which injected faults act.
//!
//! A frame enters in the order of the calls that made it and leaves in that order: under latency it waits
//! for its own moment and for that of all frames before it. What a partition or a loss takes vanishes when
//! it would have left. The stream that carries the frames out pulls from here, so that a slow network fills
//! this queue and nothing else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use bytes::BytesMut;
use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::watch;

use crate::domain::draws::Draws;
use crate::domain::time::Span;
use crate::peer::Time;
use crate::peer::faults::LinkFaults;

/// Small frames leave together, up to this many bytes.
const CHUNK_BYTES: usize = 32 * 1024;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Frames.
    pub frames_max: usize,
    /// Bytes of all frames.
    pub bytes_max: usize,
}

/// What went over the links with one peer.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Frames received.
    pub frames_in: AtomicU64,
    /// Frames sent.
    pub frames_out: AtomicU64,
    /// Bytes received.
    pub bytes_in: AtomicU64,
    /// Bytes sent.
    pub bytes_out: AtomicU64,
    /// Messages that were dropped because a queue was full or no link was there. What a fault takes is not
    /// among them.
    pub dropped: AtomicU64,
}

/// What a link needs to know of its peer.
#[derive(Clone, Debug)]
pub struct Road {
    /// The faults that act.
    pub faults: watch::Receiver<LinkFaults>,
    /// The counts.
    pub traffic: Arc<Traffic>,
}

/// No room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Whether a frame counts against the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It does, and is refused over them.
    Bounded,
    /// It is small and one of few: a heartbeat.
    Free,
    /// It is the first one. A loss does not take it: a network would have it sent again, and whoever waits
    /// for it would wait long.
    Greeting,
}

#[derive(Debug)]
struct Queued {
    due: Span,
    weight: Weight,
    head: Bytes,
    body: Bytes,
}

impl Queued {
    fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// What waits is still sent.
    Ending,
    Closed,
}

#[derive(Debug)]
struct Queue {
    frames: VecDeque<Queued>,
    bytes: usize,
    last_due: Span,
    phase: Phase,
    draws: Draws,
    /// The rest of a large frame whose head has left.
    rest: Option<Bytes>,
}

/// The queue.
pub struct Outbox {
    time: Arc<dyn Time>,
    bounds: Bounds,
    road: OnceLock<Road>,
    queue: Mutex<Queue>,
    wake: Notify,
}

impl Outbox {
    /// An empty queue. Nothing may be pushed before [`Outbox::lead`].
    pub fn new(time: Arc<dyn Time>, bounds: Bounds, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            time,
            bounds,
            road: OnceLock::new(),
            queue: Mutex::new(Queue {
                frames: VecDeque::new(),
                bytes: 0,
                last_due: Span::ZERO,
                phase: Phase::Open,
                draws: Draws::new(seed),
                rest: None,
            }),
            wake: Notify::new(),
        })
    }

    /// Says to which peer the frames go. Until then none are delayed or lost.
    pub fn lead(&self, road: Road) {
        // A queue leads to one peer; a second answer would be the same.
        let _ = self.road.set(road);
    }

    fn faults(&self) -> LinkFaults {
        self.road
            .get()
            .map_or_else(LinkFaults::default, |road| *road.faults.borrow())
    }

    /// Puts a frame at the end.
    ///
    /// # Errors
    /// When there is no room. A closed queue takes frames and forgets them.
    pub fn push(&self, head: Bytes, body: Bytes, weight: Weight) -> Result<(), Full> {
        let faults = self.faults();
        let now = self.time.elapsed();
        {
            let mut queue = self.queue.lock();
            if queue.phase != Phase::Open {
                return Ok(());
            }
            let bytes = head.len() + body.len();
            let is_full = queue.frames.len() >= self.bounds.frames_max
                || queue.bytes.saturating_add(bytes) > self.bounds.bytes_max;
            if is_full && weight == Weight::Bounded {
                return Err(Full);
            }
            let jitter = if faults.jitter.is_zero() {
                Span::ZERO
            } else {
                queue.draws.up_to(faults.jitter)
            };
            let due = now.plus(faults.delay).plus(jitter).max(queue.last_due);
            queue.last_due = due;
            queue.bytes += bytes;
            queue.frames.push_back(Queued {
                due,
                weight,
                head,
                body,
            });
        }
        self.wake.notify_one();
        Ok(())
    }

    /// Takes no more frames, and ends once those that wait are sent.
    pub fn end(&self) {
        let mut queue = self.queue.lock();
        if queue.phase == Phase::Open {
            queue.phase = Phase::Ending;
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Forgets what waits, and ends.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.phase = Phase::Closed;
        queue.frames = VecDeque::new();
        queue.bytes = 0;
        drop(queue);
        self.wake.notify_one();
    }

    /// The bytes to send. To be called once.
    pub fn stream<E: Send + 'static>(
        self: &Arc<Self>,
    ) -> impl Stream<Item = Result<Bytes, E>> + Send + 'static + use<E> {
        futures_util::stream::unfold(Arc::clone(self), |outbox| async move {
            let chunk = outbox.chunk().await?;
            Some((Ok(chunk), outbox))
        })
    }

    async fn chunk(&self) -> Option<Bytes> {
        loop {
            let wait = match self.take(self.time.elapsed()) {
                Taken::Chunk(chunk) => {
                    if let Some(road) = self.road.get() {
                        add(&road.traffic.bytes_out, chunk.len());
                    }
                    return Some(chunk);
                }
                Taken::End => return None,
                Taken::Wait(wait) => wait,
            };
            match wait {
                None => self.wake.notified().await,
                Some(wait) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep(wait.to_std()) => {}
                },
            }
        }
    }

    fn take(&self, now: Span) -> Taken {
        let faults = self.faults();
        let mut queue = self.queue.lock();
        if let Some(rest) = queue.rest.take() {
            return Taken::Chunk(rest);
        }
        let mut chunk = BytesMut::new();
        let mut wait = None;
        while let Some(first) = queue.frames.front() {
            if first.due > now {
                wait = Some(first.due.minus(now));
                break;
            }
            if !chunk.is_empty() && chunk.len() + first.bytes() > CHUNK_BYTES {
                break;
            }
            let Some(frame) = queue.frames.pop_front() else {
                break;
            };
            queue.bytes = queue.bytes.saturating_sub(frame.bytes());
            let is_lost = frame.weight != Weight::Greeting && queue.draws.hits(faults.loss_percent);
            if faults.blocks_out || is_lost {
                continue;
            }
            if let Some(road) = self.road.get() {
                add(&road.traffic.frames_out, 1);
            }
            if frame.bytes() > CHUNK_BYTES {
                // A large body is not copied.
                queue.rest = Some(frame.body);
                return Taken::Chunk(frame.head);
            }
            chunk.extend_from_slice(&frame.head);
            chunk.extend_from_slice(&frame.body);
        }
        if !chunk.is_empty() {
            return Taken::Chunk(chunk.freeze());
        }
        match queue.phase {
            Phase::Closed => Taken::End,
            Phase::Ending if queue.frames.is_empty() => Taken::End,
            Phase::Open | Phase::Ending => Taken::Wait(wait),
        }
    }
}

enum Taken {
    Chunk(Bytes),
    Wait(Option<Span>),
    End,
}

/// Adds to a count.
pub fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
}
