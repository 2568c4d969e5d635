//! The frames in which regions tell each other their counts.
//!
//! ```text
//! │ format 1 │ kind │ round │ part │ parts │ actors: count × (region, incarnation) │ body │
//! ```
//!
//! Actor 0 is the sender's own process. The body of [`Kind::carries_entries`] kinds is entry after entry:
//!
//! ```text
//! │ flags │ limit? │ tenant? │ key │ epoch? │ dead at │ gossip? │ window: start, slots: actor, p, n? │ … │
//! ```
//!
//! What an entry shares with the one before it (limit, tenant, epoch) is a flag; times are steps from the
//! last one that was written; a slot tells n only when it is not 0. A window says whether another follows;
//! one with more than 127 slots is told as two of the same start, which merging does not mind. The bodies of
//! the other kinds are in [`crate::replication::repair`].
//!
//! A frame is read whole before anything of it is handed out, so garbage is refused before it can change
//! anything; reading borrows and never allocates.

use crate::domain::name::KEY_BYTES_MAX;
use crate::domain::name::LIMIT_NAME_BYTES_MAX;
use crate::domain::name::RegionName;
use crate::domain::name::TENANT_BYTES_MAX;
use crate::domain::name::is_limit_name;
use crate::domain::name::is_tenant_name;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::replication::bytes::Cursor;
pub use crate::replication::bytes::WireError;
pub use crate::replication::writer::FrameWriter;
pub use crate::replication::writer::bare;

/// A writer is full from here on; the entry that crosses the line is still in.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// The format that is written and read.
pub const FORMAT: u8 = 1;
/// The longest region's name.
const REGION_BYTES_MAX: usize = 64;

/// Flags of an entry.
pub(crate) mod flag {
    /// The limit is that of the entry before.
    pub(crate) const SAME_LIMIT: u8 = 1;
    /// The tenant is that of the entry before.
    pub(crate) const SAME_TENANT: u8 = 1 << 1;
    /// The epoch is that of the entry before.
    pub(crate) const SAME_EPOCH: u8 = 1 << 2;
    /// The counter is near its limit.
    pub(crate) const NEAR: u8 = 1 << 3;
    /// Gossip follows.
    pub(crate) const GOSSIP: u8 = 1 << 4;
    /// At least one window follows.
    pub(crate) const WINDOWS: u8 = 1 << 5;
    /// No other bit is known.
    pub(crate) const ALL: u8 = (1 << 6) - 1;
    /// Of a window's slot count: another window follows.
    pub(crate) const MORE: u8 = 1 << 7;
}

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A part of a round: what changed since it was last gathered. Without entries: a sign of life.
    Round = 1,
    /// What the peer has not acknowledged or may never have seen, as it stands now.
    Backlog = 2,
    /// The sender has told all that it holds, and all of it was acknowledged.
    Everything = 3,
    /// Sums over ranges of counters ([`crate::replication::repair`]).
    Digest = 4,
    /// What stands in the ranges whose sums differ.
    Listing = 5,
    /// Which counters the sender wants to be told.
    Want = 6,
    /// Counters that were found to differ.
    Repair = 7,
    /// The frame it replies to was merged; with what its sender may not know of the counters in it.
    Reply = 8,
}

impl Kind {
    /// The kind with this number on the wire.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Round),
            2 => Some(Self::Backlog),
            3 => Some(Self::Everything),
            4 => Some(Self::Digest),
            5 => Some(Self::Listing),
            6 => Some(Self::Want),
            7 => Some(Self::Repair),
            8 => Some(Self::Reply),
            _ => None,
        }
    }

    /// Its number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether the body is a list of entries; it may be empty.
    pub const fn carries_entries(self) -> bool {
        !matches!(self, Self::Digest | Self::Listing | Self::Want)
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is about.
    pub kind: Kind,
    /// The sender's newest round when it was written; of a reply: the round in the frame it replies to.
    pub round: u64,
    /// Which part of its round, from 0.
    pub part: u16,
    /// How many parts the round has; 1 where there are no rounds.
    pub parts: u16,
}

impl Head {
    /// The head of a frame that is whole by itself.
    pub const fn single(kind: Kind, round: u64) -> Self {
        Self {
            kind,
            round,
            part: 0,
            parts: 1,
        }
    }
}

/// A process that is named in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedActor<'a> {
    /// Its region; a region's name by its rules.
    pub region: &'a str,
    /// Its incarnation.
    pub incarnation: u64,
}

/// The counts of one actor in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCounts {
    /// Whose, as a position in [`Frame::actors`]; always within it.
    pub actor: u32,
    /// Charged.
    pub p: u64,
    /// Given back.
    pub n: u64,
}

/// A frame that was read and found whole.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    head: Head,
    actor_count: u32,
    actors: Cursor<'a>,
    body: Cursor<'a>,
}

impl<'a> Frame<'a> {
    /// Reads a frame.
    ///
    /// # Errors
    /// When any part of it is not a frame of [`FORMAT`], an actor or a name that nobody may have included.
    pub fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor(bytes);
        if cursor.byte()? != FORMAT {
            return Err(WireError("an unknown format"));
        }
        let kind = Kind::from_number(cursor.byte()?).ok_or(WireError("an unknown kind"))?;
        let head = Head {
            kind,
            round: cursor.number()?,
            part: cursor.short()?,
            parts: cursor.short()?,
        };
        if head.part >= head.parts {
            return Err(WireError("a part beyond the last"));
        }
        // A region's name has at least one byte, behind its length, and an incarnation eight.
        let count = cursor.count(10)?;
        let actors = cursor;
        for _ in 0..count {
            let region = cursor.text(REGION_BYTES_MAX)?;
            RegionName::new(region).map_err(|_| WireError("a region's name out of shape"))?;
            cursor.fixed()?;
        }
        if count == 0 {
            return Err(WireError("no sender"));
        }
        let actor_count = u32::try_from(count).map_err(|_| WireError("an actor beyond 32 bits"))?;
        let frame = Self {
            head,
            actor_count,
            actors,
            body: cursor,
        };
        if kind.carries_entries() {
            let mut entries = frame.raw_entries();
            while entries.read(Some(actor_count))?.is_some() {}
        }
        Ok(frame)
    }

    /// Its head.
    pub const fn head(&self) -> Head {
        self.head
    }

    /// The processes that are named in it; the first one is the sender.
    pub const fn actors(&self) -> Actors<'a> {
        Actors {
            left: self.actor_count,
            cursor: self.actors,
        }
    }

    /// Its entries; none for kinds that carry something else.
    pub const fn entries(&self) -> Entries<'a> {
        let mut entries = self.raw_entries();
        if !self.head.kind.carries_entries() {
            entries.cursor = Cursor(&[]);
        }
        entries
    }

    /// The bytes behind the head and the actors.
    pub(crate) const fn body(&self) -> Cursor<'a> {
        self.body
    }

    const fn raw_entries(&self) -> Entries<'a> {
        Entries {
            cursor: self.body,
            limit: "",
            tenant: "",
            epoch: 0,
            dead_at: 0,
            start: 0,
        }
    }
}

/// The processes that are named in a frame, in order.
#[derive(Clone, Copy, Debug)]
pub struct Actors<'a> {
    left: u32,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Actors<'a> {
    type Item = NamedActor<'a>;

    fn next(&mut self) -> Option<NamedActor<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(NamedActor {
            region: self.cursor.text(REGION_BYTES_MAX).ok()?,
            incarnation: self.cursor.fixed().ok()?,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Actors<'_> {}

/// What a frame tells of one counter.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The limit.
    pub limit: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The key; empty: the limit has none.
    pub key: &'a str,
    /// The epoch.
    pub epoch: u64,
    /// Nothing reads the counter from here on, by the sender's view of the limit.
    pub dead_at: Timestamp,
    /// The counter is near its limit at the sender: the reply should tell what its sender may not know.
    pub near: bool,
    /// The sender's demand and peak.
    pub gossip: Option<[u8; 2]>,
    windows: Windows<'a>,
}

impl<'a> Entry<'a> {
    /// Its windows, in the order in which they were written.
    pub const fn windows(&self) -> Windows<'a> {
        self.windows
    }
}

/// The entries of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    cursor: Cursor<'a>,
    limit: &'a str,
    tenant: &'a str,
    epoch: u64,
    dead_at: i64,
    start: i64,
}

impl<'a> Entries<'a> {
    /// The next entry; names and actors are checked when `actors` says how many there are.
    fn read(&mut self, actors: Option<u32>) -> Result<Option<Entry<'a>>, WireError> {
        if self.cursor.0.is_empty() {
            return Ok(None);
        }
        let flags = self.cursor.byte()?;
        if flags & !flag::ALL != 0 {
            return Err(WireError("an unknown flag"));
        }
        if flags & flag::SAME_LIMIT == 0 {
            self.limit = self.cursor.text(LIMIT_NAME_BYTES_MAX)?;
            if actors.is_some() && !is_limit_name(self.limit) {
                return Err(WireError("a limit's name out of shape"));
            }
        }
        if flags & flag::SAME_TENANT == 0 {
            self.tenant = self.cursor.text(TENANT_BYTES_MAX)?;
            if actors.is_some() && !is_tenant_name(self.tenant) {
                return Err(WireError("a tenant's name out of shape"));
            }
        }
        if self.limit.is_empty() || self.tenant.is_empty() {
            return Err(WireError("a first entry without a name"));
        }
        let key = self.cursor.text(KEY_BYTES_MAX)?;
        if flags & flag::SAME_EPOCH == 0 {
            self.epoch = self.cursor.number()?;
        }
        self.dead_at = self.cursor.step(self.dead_at)?;
        let gossip = if flags & flag::GOSSIP == 0 {
            None
        } else {
            Some([self.cursor.byte()?, self.cursor.byte()?])
        };
        let mut windows = Windows {
            cursor: self.cursor,
            start: self.start,
            more: flags & flag::WINDOWS != 0,
        };
        let told = windows;
        while windows.pass(actors)? {}
        self.cursor = windows.cursor;
        self.start = windows.start;
        Ok(Some(Entry {
            limit: self.limit,
            tenant: self.tenant,
            key,
            epoch: self.epoch,
            dead_at: Timestamp::from_nanos(self.dead_at),
            near: flags & flag::NEAR != 0,
            gossip,
            windows: told,
        }))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        self.read(None).ok().flatten()
    }
}

/// The windows of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    cursor: Cursor<'a>,
    start: i64,
    more: bool,
}

/// One window of an entry.
#[derive(Clone, Copy, Debug)]
pub struct WindowCounts<'a> {
    /// Which window.
    pub start: WindowId,
    slots: Slots<'a>,
}

impl<'a> WindowCounts<'a> {
    /// The slots that are told, each actor at most once unless the sender erred.
    pub const fn slots(&self) -> Slots<'a> {
        self.slots
    }
}

impl<'a> Windows<'a> {
    fn open(&mut self) -> Result<Option<Slots<'a>>, WireError> {
        if !self.more {
            return Ok(None);
        }
        self.start = self.cursor.step(self.start)?;
        let count = self.cursor.byte()?;
        self.more = count & flag::MORE != 0;
        Ok(Some(Slots {
            cursor: self.cursor,
            left: count & !flag::MORE,
        }))
    }

    fn pass(&mut self, actors: Option<u32>) -> Result<bool, WireError> {
        let Some(mut slots) = self.open()? else {
            return Ok(false);
        };
        while let Some(slot) = slots.read()? {
            if actors.is_some_and(|actors| slot.actor >= actors) {
                return Err(WireError("an actor beyond the last"));
            }
        }
        self.cursor = slots.cursor;
        Ok(true)
    }
}

impl<'a> Iterator for Windows<'a> {
    type Item = WindowCounts<'a>;

    fn next(&mut self) -> Option<WindowCounts<'a>> {
        let told = self.open().ok().flatten()?;
        let mut slots = told;
        while slots.read().ok()?.is_some() {}
        self.cursor = slots.cursor;
        Some(WindowCounts {
            start: WindowId(self.start),
            slots: told,
        })
    }
}

/// The slots of a window.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    cursor: Cursor<'a>,
    left: u8,
}

impl Slots<'_> {
    #[inline]
    fn read(&mut self) -> Result<Option<SlotCounts>, WireError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        // The lowest bit says whether n follows.
        let who = self.cursor.number()?;
        let actor = u32::try_from(who >> 1).map_err(|_| WireError("an actor beyond 32 bits"))?;
        let p = self.cursor.number()?;
        let n = if who & 1 == 0 {
            0
        } else {
            self.cursor.number()?
        };
        Ok(Some(SlotCounts { actor, p, n }))
    }
}

impl Iterator for Slots<'_> {
    type Item = SlotCounts;

    fn next(&mut self) -> Option<SlotCounts> {
        self.read().ok().flatten()
    }
}
