//! Scripted scenes: what the leader proposes, tells and refuses, step by step.

mod buckets;
mod charges;
mod credit;
mod grants;
mod recalls;
mod told;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Charge;
use crate::grants::book::NotTaken;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Part;
use crate::grants::message::Answer;
use crate::grants::message::Ask;
use crate::grants::message::Recall;
use crate::grants::message::Report;
use crate::grants::message::ToRegion;

/// Regions a, b and c, their round trips to the leader 0, 100 and 200 ms.
const REGIONS: [(&str, u64); 3] = [("a", 0), ("b", 100), ("c", 200)];

fn account(epoch: u64) -> Account {
    Account {
        tenant: "acme".into(),
        limit: LimitName::new("exports").expect("a limit's name"),
        key: "user-1".into(),
        epoch,
    }
}

fn holder(region: &str) -> Holder {
    Holder {
        region: RegionName::new(region).expect("a region's name"),
        incarnation: 1,
    }
}

fn told(spent: u64, returned: u64) -> Totals {
    Totals { spent, returned }
}

fn minute() -> Window {
    Window::aligned(Timestamp::EPOCH, Span::from_seconds(60))
}

/// A leader over a book, and what it said since it was last asked.
struct Scene {
    book: Book,
    leader: Leader,
    now: Now,
    quota: u64,
    epoch: u64,
    out: Vec<Action>,
}

impl Scene {
    fn new(quota: u64) -> Self {
        let mut scene = Self {
            book: Book::default(),
            leader: Leader::new(7),
            now: Now {
                boot: Span::from_seconds(1_000),
                log: Timestamp::EPOCH.plus(Span::from_seconds(1)),
            },
            quota,
            epoch: 1,
            out: Vec::new(),
        };
        for (region, round_trip_ms) in REGIONS {
            let holder = holder(region);
            scene.book.enroll(Timestamp::EPOCH, &holder);
            let round_trip = Span::from_ms(round_trip_ms);
            scene.leader.set_round_trip(&holder.region, round_trip);
            scene.leader.peers.hear(&holder.region, scene.now.boot);
        }
        scene
    }

    /// Time goes on, and all regions are heard.
    fn wait_ms(&mut self, ms: u64) -> Vec<Action> {
        self.now.boot = self.now.boot.plus(Span::from_ms(ms));
        self.now.log = self.now.log.plus(Span::from_ms(ms));
        for (region, _) in REGIONS {
            let region = holder(region).region;
            self.leader.peers.hear(&region, self.now.boot);
        }
        self.leader.tick(self.now, &self.book, &mut self.out);
        std::mem::take(&mut self.out)
    }

    fn ask(&mut self, region: &str, need_to: u64, want_to: u64, totals: Totals) -> Vec<Action> {
        let ask = Ask {
            holder: holder(region),
            account: account(self.epoch),
            at: None,
            need_to,
            want_to,
            demand: 1_000,
            totals,
            sent_boot: Span::from_nanos(need_to),
        };
        let Self {
            book,
            leader,
            now,
            quota,
            out,
            ..
        } = self;
        leader.ask(*now, book, &ask, minute(), *quota, out);
        std::mem::take(out)
    }

    fn report(&mut self, region: &str, totals: Totals, recall: u64) -> Vec<Action> {
        let report = Report {
            holder: holder(region),
            account: account(self.epoch),
            window: minute().id,
            totals,
            demand: 1_000,
            recall,
        };
        self.leader
            .report(self.now, &self.book, &report, &mut self.out);
        std::mem::take(&mut self.out)
    }

    fn charge(&mut self, ticket: u64, region: &str, units: u64, totals: Totals) -> Vec<Action> {
        let part = Part {
            charge: Charge {
                account: account(self.epoch),
                window: minute(),
                holder: holder(region),
                totals,
                units,
            },
            quota: self.quota.into(),
        };
        let Self {
            book,
            leader,
            now,
            out,
            ..
        } = self;
        leader.charge(*now, book, ticket, vec![part], out);
        std::mem::take(out)
    }

    /// Applies an entry; the leader has not heard of it yet.
    fn commit(
        &mut self,
        entry: &(u64, Transfer),
    ) -> Result<crate::grants::book::Transferred, NotTaken> {
        let taken = self.book.transfer(self.now.log, &entry.1, self.quota);
        assert_eq!(self.book.imbalances(), []);
        taken
    }

    /// Applies an entry and lets the leader know.
    fn apply(&mut self, entry: &(u64, Transfer)) -> Vec<Action> {
        let outcome = self.commit(entry);
        self.leader
            .applied(self.now, &self.book, entry.0, &outcome, &mut self.out);
        std::mem::take(&mut self.out)
    }

    /// Asks and applies, so that `region` is granted `to`.
    fn give(&mut self, region: &str, to: u64) {
        let out = self.ask(region, to, to, Totals::default());
        let entry = proposed(&out).pop().expect("an entry");
        let out = self.apply(&entry);
        assert_eq!(answers(&out)[0].granted, to);
    }

    fn granted(&self, region: &str) -> u64 {
        self.book
            .tally(&account(self.epoch), minute().id, &holder(region))
            .granted
    }
}

fn proposed(out: &[Action]) -> Vec<(u64, Transfer)> {
    out.iter()
        .filter_map(|action| match action {
            Action::Propose { ticket, transfer } => Some((*ticket, transfer.clone())),
            _ => None,
        })
        .collect()
}

/// The one entry that is proposed.
fn the_entry(out: &[Action]) -> (u64, Transfer) {
    let mut entries = proposed(out);
    assert_eq!(entries.len(), 1, "{out:?}");
    entries.remove(0)
}

fn grants_of(entry: &(u64, Transfer)) -> Vec<(String, u64)> {
    let grants = entry.1.grants.iter();
    grants
        .map(|(holder, to)| (holder.region.to_string(), *to))
        .collect()
}

fn told_all(out: &[Action]) -> Vec<ToRegion> {
    out.iter()
        .filter_map(|action| match action {
            Action::Tell(_, message) => Some(message.clone()),
            _ => None,
        })
        .collect()
}

fn answers(out: &[Action]) -> Vec<Answer> {
    told_all(out)
        .into_iter()
        .filter_map(|message| match message {
            ToRegion::Answer(answer) => Some(answer),
            _ => None,
        })
        .collect()
}

/// The one answer.
fn the_answer(out: &[Action]) -> Answer {
    let mut answers = answers(out);
    assert_eq!(answers.len(), 1, "{out:?}");
    answers.remove(0)
}

fn recalls(out: &[Action]) -> Vec<Recall> {
    told_all(out)
        .into_iter()
        .filter_map(|message| match message {
            ToRegion::Recall(recall) => Some(recall),
            _ => None,
        })
        .collect()
}
