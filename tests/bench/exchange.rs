//! What it costs a region to tell its peers of its counters and to hear theirs, without the sockets.

use std::time::Instant;

use bytes::Bytes;
use highwater::catalogue::intern::LimitId;
use highwater::domain::limit::Limit;
use highwater::domain::limit::Mode;
use highwater::domain::limit::Rule;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::Bounds;
use highwater::ledger::Ledger;
use highwater::ledger::counter;
use highwater::ledger::counter::Counter;
use highwater::ledger::exchange::Heard;
use highwater::ledger::exchange::News;
use highwater::ledger::exchange::Told;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::mesh::Peer;
use highwater::ledger::sharing::Gossip;
use highwater::region::exchange::tell::EntryHead;
use highwater::region::exchange::tell::put;
use highwater::replication::wire::Frame;
use highwater::replication::wire::FrameWriter;
use highwater::replication::wire::Head;
use highwater::replication::wire::Kind;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorTable;
use highwater::usage::window::Slot;

use crate::Row;
use crate::ledger::check;
use crate::ledger::limit;
use crate::median;
use crate::storage::resident;

const KEYS: usize = 100_000;
const SECONDS: i64 = 9;
const REGIONS: [&str; 3] = ["ap-south-1", "eu-west-1", "us-east-1"];

struct Region {
    name: RegionName,
    ledger: Ledger,
}

impl Region {
    fn new(index: usize) -> Self {
        let name = RegionName::new(REGIONS[index]).expect("a name");
        let bounds = Bounds {
            keys_max: 1_000_000,
            keys_per_tenant_max: 1_000_000,
        };
        let incarnation = 77 + index as u64;
        let actor = Actor {
            region: name.clone(),
            incarnation,
        };
        let ledger = Ledger::new(bounds, ActorTable::alone(actor), 1, [1, 2]);
        Self { name, ledger }
    }

    /// Knows the others as regions that are in touch.
    fn meet(&self) {
        let others = REGIONS.iter().filter(|other| **other != self.name.as_str());
        let peers = others.map(|other| Peer {
            site: self
                .ledger
                .site(&RegionName::new(other).expect("a name"))
                .expect("few regions"),
            heard: Span::ZERO,
            is_in_touch: true,
            is_reachable: true,
            acked_round: 0,
            latency: Span::from_ms(40),
        });
        self.ledger.set_mesh(Mesh {
            peers: peers.collect(),
            regions: 3,
            order: 0,
        });
    }

    fn gather(&self, round: u64, boot: Span) -> Vec<Bytes> {
        let own = self.ledger.actors().own();
        let mut writers = vec![FrameWriter::new(own)];
        for shard in 0..self.ledger.shards() {
            self.ledger.gather(shard, |_, name, counter| {
                let gossip = counter.tell(round, boot);
                let head = EntryHead {
                    limit: "api",
                    tenant: name.tenant(),
                    key: name.key(),
                    gossip: gossip.map(|gossip| [gossip.demand, gossip.peak]),
                };
                let unsent = counter.take_unsent();
                if writers.last().is_none_or(FrameWriter::is_full) {
                    writers.push(FrameWriter::new(own));
                }
                if let Some(writer) = writers.last_mut() {
                    put(writer, &head, counter, counter::Told::Changed, unsent, own);
                }
            });
        }
        let roster = self.ledger.roster();
        let head = Head::single(Kind::Round, round);
        let writers = writers.into_iter();
        writers
            .map(|writer| writer.finish(&head, |id| roster.actor(id)))
            .collect()
    }

    fn hear(&self, frames: &[Bytes], now: Timestamp, boot: Span) -> usize {
        let mut heard = 0;
        for bytes in frames {
            let frame = Frame::read(bytes).expect("a frame");
            let number = |actor: highwater::replication::wire::NamedActor<'_>| {
                self.ledger.number(&Actor {
                    region: RegionName::new(actor.region).expect("a name"),
                    incarnation: actor.incarnation,
                })
            };
            let numbers: Vec<_> = frame.actors().map(number).collect();
            let site = numbers[0].expect("few actors").1;
            for entry in frame.entries() {
                let news = News {
                    limit: LimitId(0),
                    tenant: entry.tenant,
                    key: entry.key,
                    epoch: entry.epoch,
                    dead_at: entry.dead_at,
                    since: now,
                };
                let slots = entry.windows().flat_map(|window| {
                    let numbers = &numbers;
                    window.slots().map(move |counts| {
                        let (actor, site) = numbers[counts.actor as usize].expect("few actors");
                        let (p, n) = (counts.p, counts.n);
                        Told {
                            window: window.start,
                            slot: Slot { actor, p, n, site },
                            speaks: true,
                            is_fresh: true,
                        }
                    })
                });
                let gossip = entry.gossip.map(|[demand, peak]| Gossip { demand, peak });
                let then = |counter: &mut Counter| counter.hear_demand(boot, site, gossip);
                let kept = self.ledger.hear(&news, now, slots, |_| (), then);
                heard += usize::from(kept == Heard::Kept);
            }
        }
        heard
    }
}

fn shared(quota: u64) -> Limit {
    Limit {
        mode: Mode::Approximate,
        rule: Rule::FixedWindow {
            quota,
            window: Span::from_seconds(60),
        },
        ..limit()
    }
}

/// What was measured of 100 000 keys, each charged once a second in each of three regions.
struct Measured {
    /// Seconds that the checks of one second took, with changes not kept for peers and kept.
    off: f64,
    on: f64,
    telling: f64,
    hearing: f64,
    /// Of the frames of one second.
    bytes: f64,
    /// Bytes of memory per key and region.
    kept: f64,
}

#[allow(clippy::cast_precision_loss, reason = "figures to read")]
fn measure(quota: u64) -> Measured {
    let limit = shared(quota);
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user-{key:08x}")).collect();
    let before = resident();
    let regions = [Region::new(0), Region::new(1), Region::new(2)];
    for region in &regions {
        region.meet();
    }
    let (mut off, mut on, mut telling, mut hearing) = (vec![], vec![], vec![], vec![]);
    let mut bytes = 0;
    for second in 0..SECONDS {
        let keeps = second % 3 != 0;
        let now = Timestamp::from_unix_ms(1_800_000_000_000 + second * 1_000);
        let boot = Span::from_seconds(u64::try_from(second).unwrap_or(0) + 10);
        let mut frames = Vec::new();
        for region in &regions {
            region.ledger.keep_for_peers(keeps);
            let began = Instant::now();
            for key in &keys {
                std::hint::black_box(check(&region.ledger, &limit, key, now));
            }
            let took = began.elapsed().as_secs_f64();
            if keeps { &mut on } else { &mut off }.push(took);
            let began = Instant::now();
            let told = region.gather(u64::try_from(second).unwrap_or(0) + 1, boot);
            if keeps {
                telling.push(began.elapsed().as_secs_f64());
                bytes = told.iter().map(Bytes::len).sum::<usize>();
            }
            frames.push(told);
        }
        if keeps {
            let began = Instant::now();
            let heard =
                regions[0].hear(&frames[1], now, boot) + regions[0].hear(&frames[2], now, boot);
            hearing.push(began.elapsed().as_secs_f64());
            assert_eq!(heard, 2 * KEYS, "everything is heard");
            for (hearer, teller) in [(1, 0), (1, 2), (2, 0), (2, 1)] {
                regions[hearer].hear(&frames[teller], now, boot);
            }
        }
    }
    let kept = (resident() - before) / (KEYS * REGIONS.len()) as f64;
    Measured {
        off: median(off),
        on: median(on),
        telling: median(telling),
        hearing: median(hearing),
        bytes: bytes as f64,
        kept,
    }
}

/// The rows.
pub fn telling_and_hearing() -> Vec<Row> {
    let Measured {
        off,
        on,
        telling,
        hearing,
        bytes,
        kept,
    } = measure(1_000);
    let extra = (on - off).max(0.0) + telling + hearing;
    vec![
        Row {
            what: "replication of 100 k keys, each charged once a second in three regions: CPU of one region, without sockets",
            measured: format!(
                "{:.0} % of a core: {:.0} ns to tell a counter, {:.0} ns to hear one, {:.0} bytes each",
                100.0 * extra,
                1e9 * telling / KEYS as f64,
                1e9 * hearing / (2 * KEYS) as f64,
                bytes / KEYS as f64
            ),
            wanted: "≤ 20 %",
        },
        Row {
            what: "memory per key of an approximate limit that three regions charge, in one of them",
            measured: format!("{kept:.0} bytes"),
            wanted: "≤ 300 bytes",
        },
        Row {
            what: "a shared check in the ledger with changes kept for peers against without",
            measured: format!("{:.2} ×", on / off),
            wanted: "≤ 1.05 × of a whole check",
        },
    ]
}
