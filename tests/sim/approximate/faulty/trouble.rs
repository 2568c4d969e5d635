//! What goes wrong, and what is asked when all is well again.

use super::BUCKET_LIMIT;
use super::Disk;
use super::END;
use super::Event;
use super::Faulty;
use super::HEALED;
use super::KEYS;
use super::QUIET;
use crate::approximate::node::Outbox;
use crate::model::MS;
use crate::model::SECOND;

impl Faulty {
    pub(super) fn fault(&mut self, at: u64) {
        let regions = self.places.len();
        let region = self.rng.between(0, regions as u64) as usize;
        match self.rng.between(0, 8) {
            0 | 1 => {
                // One side from the other.
                let side = self.rng.between(1, 1 << (regions - 1));
                let is_one_way = self.rng.chance(0.3);
                let until = at + self.rng.between(200 * MS, 14 * SECOND);
                self.audit
                    .count(if is_one_way { "one way cuts" } else { "cuts" });
                for from in 0..regions {
                    for to in 0..regions {
                        let (here, there) = (side >> from & 1, side >> to & 1);
                        if here != there && (here == 1 || !is_one_way) {
                            self.net.cut(from, to, true);
                            self.push(until, Event::Heal(from, to));
                        }
                    }
                }
            }
            2..=4 => {
                if self.places[region].node.is_some() {
                    let is_wiped = self.rng.chance(0.3);
                    self.audit.count(if is_wiped { "wipes" } else { "crashes" });
                    let place = &mut self.places[region];
                    place.node = None;
                    place.unsaved_holds.clear();
                    if is_wiped {
                        place.disk = Disk::default();
                    }
                    self.audit.crashed(&self.places);
                    let back = at + self.rng.between(50 * MS, 6 * SECOND);
                    self.push(back.min(HEALED), Event::Start(region));
                }
            }
            5 => {
                self.audit.count("pauses");
                let until = at + self.rng.between(50 * MS, 4 * SECOND);
                self.places[region].paused_until = until.min(HEALED);
            }
            _ => {
                let limit = self.rng.between(0, self.catalogue.limits.len() as u64) as usize;
                if limit == BUCKET_LIMIT {
                    return;
                }
                self.audit.count("resets");
                let epoch = 2 + at / MS;
                for region in 0..regions {
                    let late = at + self.rng.between(0, SECOND);
                    self.push(
                        late.min(HEALED),
                        Event::Epoch {
                            region,
                            limit,
                            epoch,
                        },
                    );
                }
            }
        }
    }

    /// Asks one region for all that is left, the others for nothing; before that each for what it would give without
    /// a word from the others.
    pub(super) fn use_up(&mut self) {
        let equal = self.catalogue.names.get("equal").expect("known").0 as usize;
        for key in KEYS {
            let left = self.audit.left(&self.places, QUIET, equal, key);
            let mut given = 0;
            for region in 0..self.places.len() {
                let mut out = Outbox::new();
                // More than any share, and never heard of by anybody: the messages go nowhere.
                for _ in 0..2_100 {
                    if !self.charge(QUIET, region, (equal, key, 1), None, &mut out) {
                        break;
                    }
                    given += 1;
                }
            }
            assert!(
                given <= left,
                "A2: {given} of {left} were dealt out for {key}"
            );
        }
        let asked = ["hour", "open", "most"];
        let mut at = QUIET;
        while at < END {
            at += 50 * MS;
            self.run_until(at);
            for name in asked {
                let limit = self.catalogue.names.get(name).expect("known").0 as usize;
                for _ in 0..20 {
                    let mut out = Outbox::new();
                    self.charge(at, 0, (limit, KEYS[0], 1), None, &mut out);
                    self.send(at, 0, out);
                }
            }
        }
    }
}
