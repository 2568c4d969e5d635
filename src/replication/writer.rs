//! Writes the frames that [`crate::replication::wire`] reads.

use std::ops::Range;

use ahash::RandomState;
use bytes::Bytes;
use hashbrown::HashMap;

use crate::domain::name::is_limit_name;
use crate::domain::name::is_tenant_name;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::replication::bytes::put;
use crate::replication::bytes::put_step;
use crate::replication::bytes::put_text;
use crate::replication::wire::FORMAT;
use crate::replication::wire::FRAME_BYTES_MAX;
use crate::replication::wire::Head;
use crate::replication::wire::flag;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;

/// The most bytes of an actor in a frame: a name with its length, and an incarnation.
const ACTOR_BYTES_MAX: usize = 1 + 64 + 8;
/// The most bytes of a head.
const HEAD_BYTES_MAX: usize = 2 + 10 + 3 + 3 + 5;

/// A frame that is being written: entry by entry, each with its windows and their slots.
///
/// Actors are named by their numbers in this process; which names belong to them is asked for once, when
/// the frame is finished.
#[derive(Debug)]
pub struct FrameWriter {
    body: Vec<u8>,
    /// Position 0 is the own process.
    actors: Vec<ActorId>,
    positions: HashMap<ActorId, u32, RandomState>,
    entries: usize,
    limit: Range<usize>,
    tenant: Range<usize>,
    epoch: Option<u64>,
    dead_at: i64,
    start: i64,
    /// Where the flags of the entry stand that is being written.
    flags_at: usize,
    /// Where the slot count of the window stands that is being written.
    count_at: Option<usize>,
}

impl FrameWriter {
    /// An empty frame of the process `own`.
    pub fn new(own: ActorId) -> Self {
        Self {
            body: Vec::new(),
            actors: vec![own],
            positions: HashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4)),
            entries: 0,
            limit: 0..0,
            tenant: 0..0,
            epoch: None,
            dead_at: 0,
            start: 0,
            flags_at: 0,
            count_at: None,
        }
    }

    /// Begins an entry. Names keep the rules of [`crate::domain::name`]; `key` is empty when the limit has
    /// none. `near` asks the receiver to tell in its reply what its own region has used.
    #[expect(
        clippy::too_many_arguments,
        reason = "an entry's head; a struct of borrowed parts would only be taken apart again"
    )]
    pub fn begin_entry(
        &mut self,
        limit: &str,
        tenant: &str,
        key: &str,
        epoch: u64,
        dead_at: Timestamp,
        near: bool,
        gossip: Option<[u8; 2]>,
    ) {
        debug_assert!(
            is_limit_name(limit) && is_tenant_name(tenant),
            "known names"
        );
        self.flags_at = self.body.len();
        self.count_at = None;
        let mut flags = 0;
        self.body.push(0);
        if self.body.get(self.limit.clone()) == Some(limit.as_bytes()) {
            flags |= flag::SAME_LIMIT;
        } else {
            put_text(&mut self.body, limit);
            self.limit = self.body.len() - limit.len()..self.body.len();
        }
        if self.body.get(self.tenant.clone()) == Some(tenant.as_bytes()) {
            flags |= flag::SAME_TENANT;
        } else {
            put_text(&mut self.body, tenant);
            self.tenant = self.body.len() - tenant.len()..self.body.len();
        }
        put_text(&mut self.body, key);
        if self.epoch == Some(epoch) {
            flags |= flag::SAME_EPOCH;
        } else {
            put(&mut self.body, epoch);
            self.epoch = Some(epoch);
        }
        put_step(&mut self.body, self.dead_at, dead_at.as_nanos());
        self.dead_at = dead_at.as_nanos();
        if near {
            flags |= flag::NEAR;
        }
        if let Some(gossip) = gossip {
            flags |= flag::GOSSIP;
            self.body.extend_from_slice(&gossip);
        }
        self.set(self.flags_at, flags);
    }

    fn set(&mut self, at: usize, value: u8) {
        if let Some(byte) = self.body.get_mut(at) {
            *byte = value;
        }
    }

    fn get(&self, at: usize) -> u8 {
        self.body.get(at).copied().unwrap_or_default()
    }

    /// Begins a window of the entry.
    pub fn window(&mut self, start: WindowId) {
        let before = self.count_at.unwrap_or(self.flags_at);
        let mark = if self.count_at.is_some() {
            flag::MORE
        } else {
            flag::WINDOWS
        };
        self.set(before, self.get(before) | mark);
        put_step(&mut self.body, self.start, start.0);
        self.start = start.0;
        self.count_at = Some(self.body.len());
        self.body.push(0);
    }

    /// Adds the counts of `actor` to the window. Without a window there is no effect.
    pub fn slot(&mut self, actor: ActorId, p: u64, n: u64) {
        let Some(mut at) = self.count_at else {
            debug_assert!(false, "a slot stands in a window");
            return;
        };
        if self.get(at) == flag::MORE - 1 {
            self.window(WindowId(self.start));
            at = self.body.len() - 1;
        }
        self.set(at, self.get(at) + 1);
        let position = self.position(actor);
        put(&mut self.body, u64::from(position) << 1 | u64::from(n != 0));
        put(&mut self.body, p);
        if n != 0 {
            put(&mut self.body, n);
        }
    }

    fn position(&mut self, actor: ActorId) -> u32 {
        if self.actors.first() == Some(&actor) {
            return 0;
        }
        let next = u32::try_from(self.actors.len()).unwrap_or(u32::MAX);
        let actors = &mut self.actors;
        *self.positions.entry(actor).or_insert_with(|| {
            actors.push(actor);
            next
        })
    }

    /// Ends the entry.
    pub fn end_entry(&mut self) {
        self.count_at = None;
        self.entries += 1;
    }

    /// Entries that were ended.
    pub const fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes that the frame will have at most.
    pub const fn len(&self) -> usize {
        HEAD_BYTES_MAX + self.actors.len() * ACTOR_BYTES_MAX + self.body.len()
    }

    /// Whether there is no entry in it.
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Whether no further entry should be begun.
    pub const fn is_full(&self) -> bool {
        self.len() >= FRAME_BYTES_MAX
    }

    /// The bytes of the frame. `actor` knows the process behind every number that was given.
    ///
    /// # Panics
    /// When it does not: the slots of a process without a name would be counted for another.
    pub fn finish<'a>(self, head: &Head, actor: impl Fn(ActorId) -> Option<&'a Actor>) -> Bytes {
        let mut frame = Vec::with_capacity(self.len());
        let named = self.actors.iter().map(|id| {
            actor(*id).expect("invariant: counters have slots of actors with names only")
        });
        put_head(&mut frame, head, named);
        frame.extend_from_slice(&self.body);
        Bytes::from(frame)
    }
}

/// Writes all of a frame that stands before its body; the first of `named` is its sender.
pub(crate) fn put_head<'a>(
    out: &mut Vec<u8>,
    head: &Head,
    named: impl ExactSizeIterator<Item = &'a Actor>,
) {
    out.push(FORMAT);
    out.push(head.kind.number());
    put(out, head.round);
    put(out, u64::from(head.part));
    put(out, u64::from(head.parts));
    put(out, named.len() as u64);
    for actor in named {
        put_text(out, actor.region.as_str());
        out.extend_from_slice(&actor.incarnation.to_le_bytes());
    }
}

/// A frame of `own` without a body.
pub fn bare(head: &Head, own: &Actor) -> Bytes {
    let mut frame = Vec::with_capacity(HEAD_BYTES_MAX + ACTOR_BYTES_MAX);
    put_head(&mut frame, head, [own].into_iter());
    Bytes::from(frame)
}
