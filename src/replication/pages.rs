//! Writes counters of the ledger into frames: what changed, what is urgent, what was asked for.

use bytes::Bytes;

use crate::catalogue::intern::Interner;
use crate::domain::time::Span;
use crate::ledger::Ledger;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Told;
use crate::ledger::counter::Unsent;
use crate::ledger::exchange::Reference;
use crate::ledger::shard::Name;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::usage::actor::ActorId;

/// What stands before the windows of an entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryHead<'a> {
    /// The limit.
    pub limit: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The key, or nothing.
    pub key: &'a str,
    /// This region's demand.
    pub gossip: Option<[u8; 2]>,
}

/// Writes one counter.
pub fn put(
    writer: &mut FrameWriter,
    head: &EntryHead<'_>,
    counter: &Counter,
    told: Told,
    unsent: Unsent,
    own: ActorId,
) {
    let near = counter.is_near();
    writer.begin_entry(
        head.limit,
        head.tenant,
        head.key,
        counter.epoch,
        counter.dead_at,
        near,
        head.gossip,
    );
    counter.show(told, unsent, own, |window, slots| {
        writer.window(window);
        for slot in slots {
            writer.slot(slot.actor, slot.p, slot.n);
        }
    });
    writer.end_entry();
}

/// Frames that are being written, each with the counters in it.
#[derive(Debug)]
pub struct Pages {
    own: ActorId,
    /// Whether all is to be in one frame, however long.
    is_one: bool,
    full: Vec<(FrameWriter, Vec<Reference>)>,
    writer: FrameWriter,
    references: Vec<Reference>,
}

impl Pages {
    /// The counters at `references` as they stand now; in one frame, however long, if `is_one`.
    pub fn of(ledger: &Ledger, names: &Interner, references: &[Reference], is_one: bool) -> Self {
        let mut pages = Self {
            is_one,
            ..Self::new(ledger.actors().own())
        };
        for reference in references {
            ledger.at(*reference, |name, counter| {
                if let Some(limit) = names.name(name.limit) {
                    let head = EntryHead {
                        limit: limit.as_str(),
                        tenant: name.tenant(),
                        key: name.key(),
                        gossip: None,
                    };
                    pages.put(*reference, &head, counter, Told::Everything, Unsent::ALL);
                }
            });
        }
        pages
    }

    /// All that changed since it was last gathered, for `round`; at least one frame, as a sign of life.
    pub fn changed(ledger: &Ledger, names: &Interner, round: u64, boot: Span) -> Self {
        // What is urgent is among it.
        drop(ledger.take_urgent());
        let mut pages = Self::new(ledger.actors().own());
        for shard in 0..ledger.shards() {
            ledger.gather(shard, |reference, name, counter| {
                if let Some(limit) = names.name(name.limit) {
                    pages.gather(reference, limit.as_str(), name, counter, (round, boot));
                }
            });
        }
        if pages.full.is_empty() && pages.writer.is_empty() {
            pages.turn();
        }
        pages
    }

    /// What is near a limit and changed since it was last gathered, for `round`.
    pub fn urgent(ledger: &Ledger, names: &Interner, round: u64, boot: Span) -> Self {
        let mut pages = Self::new(ledger.actors().own());
        for reference in ledger.take_urgent() {
            ledger.at(reference, |name, counter| {
                if counter.is_unsent()
                    && let Some(limit) = names.name(name.limit)
                {
                    pages.gather(reference, limit.as_str(), name, counter, (round, boot));
                }
            });
        }
        pages
    }

    fn new(own: ActorId) -> Self {
        Self {
            own,
            is_one: false,
            full: Vec::new(),
            writer: FrameWriter::new(own),
            references: Vec::new(),
        }
    }

    fn put(
        &mut self,
        reference: Reference,
        head: &EntryHead<'_>,
        counter: &Counter,
        told: Told,
        unsent: Unsent,
    ) {
        put(&mut self.writer, head, counter, told, unsent, self.own);
        self.references.push(reference);
        if self.writer.is_full() && !self.is_one {
            self.turn();
        }
    }

    fn gather(
        &mut self,
        reference: Reference,
        limit: &str,
        name: &Name,
        counter: &mut Counter,
        (round, boot): (u64, Span),
    ) {
        let gossip = counter.tell(round, boot);
        let head = EntryHead {
            limit,
            tenant: name.tenant(),
            key: name.key(),
            gossip: gossip.map(|gossip| [gossip.demand, gossip.peak]),
        };
        let unsent = counter.take_unsent();
        let told = if counter.is_near() || unsent.with_others() {
            Told::ChangedWithAll
        } else {
            Told::Changed
        };
        self.put(reference, &head, counter, told, unsent);
    }

    fn turn(&mut self) {
        let writer = std::mem::replace(&mut self.writer, FrameWriter::new(self.own));
        let references = std::mem::take(&mut self.references);
        self.full.push((writer, references));
    }

    /// The frames, each with the counters in it.
    pub fn finish(
        mut self,
        ledger: &Ledger,
        kind: Kind,
        round: u64,
    ) -> Vec<(Bytes, Vec<Reference>)> {
        if !self.writer.is_empty() {
            self.turn();
        }
        let parts = u16::try_from(self.full.len()).unwrap_or(u16::MAX).max(1);
        let pages = self.full.into_iter().enumerate();
        pages
            .map(|(part, (writer, references))| {
                let part = u16::try_from(part).unwrap_or(u16::MAX).min(parts - 1);
                let head = Head {
                    kind,
                    round,
                    part,
                    parts,
                };
                (finish(ledger, writer, &head), references)
            })
            .collect()
    }

    /// The one frame of pages that are to be one.
    pub fn single(self, ledger: &Ledger, kind: Kind, round: u64) -> Bytes {
        finish(ledger, self.writer, &Head::single(kind, round))
    }
}

/// The bytes of a frame of this process.
pub fn finish(ledger: &Ledger, writer: FrameWriter, head: &Head) -> Bytes {
    let roster = ledger.roster();
    writer.finish(head, |id| roster.actor(id))
}
