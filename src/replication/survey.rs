//! The frames of [`crate::replication::repair`].
//!
//! ```text
//! Digest:  │ from │ 4096 × (count, sum when count > 0) │
//! Listing: │ next + 1, or 0 │ 64 × 8 bytes: ranges │ count │ count × (identity, state), by identity │
//! Want:    │ count │ count × identity │
//! ```

use bytes::Bytes;

use crate::replication::bytes::Cursor;
use crate::replication::bytes::WireError;
use crate::replication::bytes::put;
use crate::replication::repair::Identity;
use crate::replication::repair::RANGES;
use crate::replication::repair::RangeSet;
use crate::replication::repair::WANT_MAX;
use crate::replication::wire::Frame;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::replication::writer::put_head;
use crate::usage::actor::Actor;

/// Words of a set of ranges.
const WORDS: usize = 64;

fn begin(own: &Actor, kind: Kind, round: u64) -> Vec<u8> {
    let mut frame = Vec::with_capacity(128);
    put_head(&mut frame, &Head::single(kind, round), [own].into_iter());
    frame
}

fn body<'a>(frame: &Frame<'a>, kind: Kind) -> Result<Cursor<'a>, WireError> {
    if frame.head().kind == kind {
        Ok(frame.body())
    } else {
        Err(WireError("another kind"))
    }
}

fn end(cursor: Cursor<'_>) -> Result<(), WireError> {
    if cursor.0.is_empty() {
        Ok(())
    } else {
        Err(WireError("bytes behind its end"))
    }
}

fn range(cursor: &mut Cursor<'_>) -> Result<(u32, u64), WireError> {
    let count = u32::try_from(cursor.number()?).map_err(|_| WireError("a count out of range"))?;
    let sum = if count == 0 { 0 } else { cursor.fixed()? };
    Ok((count, sum))
}

/// The sums of a region.
#[derive(Clone, Copy, Debug)]
pub struct Digest<'a> {
    from: u16,
    ranges: Cursor<'a>,
}

impl<'a> Digest<'a> {
    pub(crate) fn write(own: &Actor, round: u64, from: u16, ranges: &[(u32, u64)]) -> Bytes {
        let mut frame = begin(own, Kind::Digest, round);
        put(&mut frame, u64::from(from));
        for (count, sum) in ranges {
            put(&mut frame, u64::from(*count));
            if *count > 0 {
                frame.extend_from_slice(&sum.to_le_bytes());
            }
        }
        Bytes::from(frame)
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// When it is no digest.
    pub fn read(frame: &Frame<'a>) -> Result<Self, WireError> {
        let mut cursor = body(frame, Kind::Digest)?;
        let from = cursor.short()?;
        if from >= RANGES {
            return Err(WireError("a range beyond the last"));
        }
        let ranges = cursor;
        for _ in 0..RANGES {
            range(&mut cursor)?;
        }
        end(cursor)?;
        Ok(Self { from, ranges })
    }

    /// The range to begin at.
    pub const fn from(&self) -> u16 {
        self.from
    }

    /// The count and the sum of each range.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u64)> + 'a {
        let mut cursor = self.ranges;
        (0..RANGES).map_while(move |_| range(&mut cursor).ok())
    }
}

/// The counters in some ranges of a region.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    next: Option<u16>,
    ranges: &'a [u8],
    items: &'a [[u8; 16]],
}

impl<'a> Listing<'a> {
    pub(crate) fn write(
        own: &Actor,
        round: u64,
        next: Option<u16>,
        ranges: &RangeSet,
        items: impl ExactSizeIterator<Item = (Identity, u64)>,
    ) -> Bytes {
        let mut frame = begin(own, Kind::Listing, round);
        put(&mut frame, next.map_or(0, |next| u64::from(next) + 1));
        for word in ranges.words() {
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.reserve(10 + 16 * items.len());
        put(&mut frame, items.len() as u64);
        for (identity, sum) in items {
            frame.extend_from_slice(&identity.0.to_le_bytes());
            frame.extend_from_slice(&sum.to_le_bytes());
        }
        Bytes::from(frame)
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// When it is no listing.
    pub fn read(frame: &Frame<'a>) -> Result<Self, WireError> {
        let mut cursor = body(frame, Kind::Listing)?;
        let next = cursor.short()?.checked_sub(1);
        if next.is_some_and(|next| next >= RANGES) {
            return Err(WireError("a range beyond the last"));
        }
        let ranges = cursor.take(8 * WORDS)?;
        let count = cursor.count(16)?;
        let (items, rest) = cursor.take(16 * count)?.as_chunks::<16>();
        debug_assert!(rest.is_empty(), "a multiple of 16");
        end(cursor)?;
        let listing = Self {
            next,
            ranges,
            items,
        };
        if !listing.items().is_sorted_by(|a, b| a.0 <= b.0) {
            return Err(WireError("a listing out of order"));
        }
        Ok(listing)
    }

    /// Where the next turn goes on; `None`: every range that differs is here.
    pub const fn next(&self) -> Option<u16> {
        self.next
    }

    /// The ranges that are listed.
    pub fn ranges(&self) -> RangeSet {
        let (words, _) = self.ranges.as_chunks::<8>();
        RangeSet::from_words(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    /// The counters in them with their states, by identity.
    pub fn items(&self) -> impl ExactSizeIterator<Item = (Identity, u64)> + 'a {
        self.items.iter().map(|item| {
            let (halves, _) = item.as_chunks::<8>();
            let half = |at: usize| halves.get(at).map_or(0, |half| u64::from_le_bytes(*half));
            (Identity(half(0)), half(1))
        })
    }
}

/// Counters that a region wants to be told.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    identities: &'a [[u8; 8]],
}

impl<'a> Want<'a> {
    /// The frame that asks for them; those beyond [`WANT_MAX`] are left out.
    pub fn write(own: &Actor, round: u64, identities: &[Identity]) -> Bytes {
        let mut frame = begin(own, Kind::Want, round);
        let identities = identities.iter().take(WANT_MAX);
        put(&mut frame, identities.len() as u64);
        for identity in identities {
            frame.extend_from_slice(&identity.0.to_le_bytes());
        }
        Bytes::from(frame)
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// When it is not that.
    pub fn read(frame: &Frame<'a>) -> Result<Self, WireError> {
        let mut cursor = body(frame, Kind::Want)?;
        let count = cursor.count(8)?;
        if count > WANT_MAX {
            return Err(WireError("too much is wanted"));
        }
        let (identities, rest) = cursor.take(8 * count)?.as_chunks::<8>();
        debug_assert!(rest.is_empty(), "a multiple of 8");
        end(cursor)?;
        Ok(Self { identities })
    }

    /// The counters.
    pub fn identities(&self) -> impl ExactSizeIterator<Item = Identity> + 'a {
        self.identities
            .iter()
            .map(|identity| Identity(u64::from_le_bytes(*identity)))
    }
}
