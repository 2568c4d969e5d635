//! A counter's way to disk and back.

use crate::algorithm::bucket::Level;
use crate::domain::stamp::Stamp;
use crate::domain::time::WindowId;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Entries;
use crate::ledger::counter::State;
use crate::ledger::counter::VERSION_MASK;
use crate::ledger::counter::version;
use crate::usage::actor::ActorId;
use crate::usage::actor::Site;
use crate::usage::record::BucketLevel;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;
use crate::usage::window::WindowUse;

impl Counter {
    /// What this process changed, for disk.
    pub fn record(
        &mut self,
        id: CounterId,
        own: ActorId,
        start: u32,
        entries: Entries,
    ) -> CounterRecord {
        let mut record = CounterRecord::empty(id, self.epoch);
        record.dead_at = self.dead_at;
        for window in &self.windows {
            let (p, n) = window.own();
            if p > 0 || n > 0 {
                record.set_slot(window.id, own, p, n);
            }
        }
        match &mut self.state {
            State::Bucket(level) => {
                let stamp = Stamp {
                    start,
                    count: self.version & VERSION_MASK,
                };
                record.bucket = Some(BucketLevel {
                    stamp,
                    at: level.at,
                    drawn: level.drawn,
                });
            }
            State::Log(log) => {
                let entries = match entries {
                    Entries::From(number) => log.charged_from(number, start),
                    Entries::Unsaved => log.changes(start),
                    Entries::TakeUnsaved => log.take_changes(start),
                };
                record.log = entries.into_iter().collect();
            }
            State::Aligned | State::Calendar { .. } | State::Leases(_) => {}
        }
        // The disk forgets what is read no more, or the row of a key that is always in use would grow by
        // every window.
        let ids = self.windows.iter().map(|window| window.id);
        record.windows_from = ids.filter(|id| id.0 != i64::MIN).min();
        if let State::Log(log) = &self.state {
            record.log_from = log.oldest();
        }
        record
    }

    /// Joins a record of earlier processes or other regions; `site` tells an actor's region.
    pub fn merge(
        &mut self,
        record: &CounterRecord,
        own: ActorId,
        own_start: u32,
        site: impl Fn(ActorId) -> Site,
    ) {
        for (id, counter) in &record.windows {
            let Some(window) = self.window_mut(*id) else {
                continue;
            };
            for (actor, p, n) in crate::usage::record::slots(counter) {
                if actor != own {
                    window.merge_slot(crate::usage::window::Slot {
                        actor,
                        p,
                        n,
                        site: site(actor),
                    });
                }
            }
        }
        if let Some(news) = record.bucket {
            let version = version(news.stamp);
            if version > self.version || !matches!(self.state, State::Bucket(_)) {
                self.version = self.version.max(version);
                self.state = State::Bucket(Level {
                    drawn: news.drawn,
                    at: news.at,
                });
            }
        }
        if !record.log.is_empty() {
            if !matches!(self.state, State::Log(_)) {
                self.state = State::Log(Box::default());
            }
            if let State::Log(log) = &mut self.state {
                log.join(record.log.iter().map(|(s, e)| (*s, *e)), own_start);
            }
        }
        self.dead_at = self.dead_at.max(record.dead_at);
    }

    fn window_mut(&mut self, id: WindowId) -> Option<&mut WindowUse> {
        if id > self.windows[0].id {
            if let State::Calendar { .. } = self.state {
                // The bounds that are kept are those of the window that is left.
                self.state = State::Aligned;
            }
            self.enter(id);
        } else if id < self.windows[0].id && id > self.windows[1].id {
            self.windows[1] = WindowUse::new(id);
        }
        self.windows.iter_mut().find(|window| window.id == id)
    }
}
