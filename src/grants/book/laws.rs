//! The book under random entries: any bytes' worth of nonsense, and regions that spend all they are told of.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::prop_oneof;
use proptest::proptest;
use proptest::test_runner::TestCaseError;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Bounds;
use crate::grants::book::Charge;

fn account(key: u8, epoch: u64) -> Account {
    Account {
        tenant: "acme".into(),
        limit: LimitName::new("exports").expect("a limit's name"),
        key: format!("{key}").into(),
        epoch,
    }
}

fn holder(region: u8, incarnation: u64) -> Holder {
    let name = format!("r{region}");
    Holder {
        region: RegionName::new(&name).expect("a region's name"),
        incarnation,
    }
}

fn window(place: u8, seconds: u64) -> Window {
    let start = Timestamp::EPOCH.plus(Span::from_seconds(u64::from(place) * 10));
    Window {
        id: WindowId(start.as_nanos()),
        start,
        end: start.plus(Span::from_seconds(seconds)),
    }
}

/// Small numbers that meet, and those at the ends.
fn units() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..20, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 3)]
}

fn totals() -> impl Strategy<Value = Totals> {
    (units(), units()).prop_map(|(spent, returned)| Totals { spent, returned })
}

fn any_holder() -> impl Strategy<Value = Holder> {
    (0_u8..3, 0_u64..3).prop_map(|(region, incarnation)| holder(region, incarnation))
}

fn place() -> impl Strategy<Value = (Account, Window)> {
    (
        0_u8..2,
        0_u64..3,
        0_u8..3,
        prop_oneof![Just(10_u64), Just(25), Just(0)],
    )
        .prop_map(|(key, epoch, place, seconds)| (account(key, epoch), window(place, seconds)))
}

#[derive(Clone, Debug)]
enum Entry {
    Enroll(Holder),
    Depart(Holder),
    Transfer(Transfer, u64),
    Charge(Vec<(Charge, u64)>),
    Refund(Charge),
    Wait(u64),
    Expire,
}

fn transfer() -> impl Strategy<Value = Entry> {
    let returns = vec((any_holder(), totals()), 0..3);
    let grants = vec((any_holder(), units()), 0..3);
    (place(), returns, grants, units()).prop_map(|((account, window), returns, grants, quota)| {
        let transfer = Transfer {
            account,
            window,
            returns,
            grants,
        };
        Entry::Transfer(transfer, quota)
    })
}

fn charge() -> impl Strategy<Value = Charge> {
    (place(), any_holder(), totals(), units()).prop_map(
        |((account, window), holder, totals, units)| Charge {
            account,
            window,
            holder,
            totals,
            units,
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        2 => any_holder().prop_map(Entry::Enroll),
        1 => any_holder().prop_map(Entry::Depart),
        8 => transfer(),
        3 => vec((charge(), units()), 1..3).prop_map(Entry::Charge),
        2 => charge().prop_map(Entry::Refund),
        2 => (0_u64..8).prop_map(Entry::Wait),
        1 => Just(Entry::Expire),
    ]
}

fn bounds() -> Bounds {
    Bounds {
        counters_per_tenant_max: 2,
        counters_max: 2,
    }
}

fn apply(book: &mut Book, log: &mut Timestamp, entry: &Entry) -> Result<(), TestCaseError> {
    match entry {
        Entry::Enroll(holder) => book.enroll(*log, holder),
        Entry::Depart(holder) => book.depart(*log, &holder.region),
        Entry::Transfer(transfer, quota) => {
            let (account, window) = (&transfer.account, transfer.window);
            book.returns(*log, account, window.id, &transfer.returns);
            let preview = book.preview(*log, account, window, *quota);
            let before = book.clone();
            let outcome = book.transfer(*log, transfer, *quota);
            if transfer.grants.is_empty() {
                return Ok(());
            }
            // What a preview promises is what the entry finds.
            match (preview, &outcome) {
                (Err(foreseen), Err(why)) => prop_assert_eq!(foreseen, *why),
                (Ok(foreseen), Ok(taken)) => {
                    let granted = |book: &Book| -> u128 {
                        let tallies = book.tallies(account, window.id);
                        tallies.map(|(_, tally)| u128::from(tally.granted)).sum()
                    };
                    let given = granted(book) - granted(&before);
                    let proof = book.proof(account, window.id).expect("an open window");
                    prop_assert_eq!(foreseen.free - given as i128, proof.free);
                    prop_assert_eq!(foreseen.window, taken.window);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            // Once more changes nothing, if the tellings were of units that had been granted.
            let is_true = |(holder, said): &(Holder, Totals)| {
                let granted = before.tally(account, window.id, holder).granted;
                said.spent
                    .checked_add(said.returned)
                    .is_some_and(|sum| sum <= granted)
            };
            if transfer.returns.iter().all(is_true) {
                let once = book.clone();
                prop_assert!(book.transfer(*log, transfer, *quota).is_ok() || outcome.is_err());
                prop_assert_eq!(&*book, &once);
            }
        }
        Entry::Charge(parts) => {
            let parts: Vec<(&Charge, u64)> =
                parts.iter().map(|(part, quota)| (part, *quota)).collect();
            let mut tried = book.clone();
            let fits = tried.charge_fits(*log, &parts);
            prop_assert_eq!(book.charge(*log, &parts).map(|_| ()), fits);
        }
        Entry::Refund(refund) => {
            let (window, units) = (refund.window.id, refund.units);
            let account = &refund.account;
            let given = book.refund(*log, account, window, &refund.holder, refund.totals, units);
            prop_assert!(given <= units);
        }
        Entry::Wait(seconds) => *log = log.plus(Span::from_seconds(*seconds)),
        Entry::Expire => {
            book.expire(*log, 2);
        }
    }
    Ok(())
}

fn check(book: &Book) -> Result<(), TestCaseError> {
    prop_assert_eq!(book.imbalances(), []);
    prop_assert!(book.counters() <= 2);
    for (account, window) in (0..2)
        .flat_map(|key| (0..3).map(move |epoch| account(key, epoch)))
        .flat_map(|account| (0..3).map(move |place| (account.clone(), window(place, 1).id)))
    {
        let Some(proof) = book.proof(&account, window) else {
            continue;
        };
        let is_low = proof.quota < proof.quota_max || proof.withheld > 0;
        prop_assert!(proof.free >= 0 || is_low, "{:?}", proof);
        let mut standing_out = 0_u64;
        for row in &proof.rows {
            let sum = row.spent + row.held + row.returned + row.stranded;
            prop_assert_eq!(row.granted, sum);
            prop_assert!(
                u128::from(row.refunded) <= u128::from(row.spent) + u128::from(row.charged)
            );
            standing_out += row.stranded;
        }
        let standing = book.standing(&account, window, None);
        prop_assert_eq!(
            standing.map(|standing| standing.stranded),
            Some(standing_out + proof.withheld)
        );
    }
    Ok(())
}

proptest! {
    /// Whatever the entries say, the units of every window add up, and a copy made of bytes goes on alike.
    #[test]
    fn units_add_up_after_any_entries(entries in vec(entry(), 1..60)) {
        let mut log = Timestamp::EPOCH;
        let mut book = Book::new(bounds());
        for entry in &entries {
            apply(&mut book, &mut log, entry)?;
            check(&book)?;
        }
        let bytes = postcard::to_allocvec(&book).expect("bytes");
        let copy: Book = postcard::from_bytes(&bytes).expect("a book");
        prop_assert_eq!(&copy, &book);
        let (mut one, mut other, mut later) = (book, copy, log);
        for entry in &entries {
            apply(&mut one, &mut later, entry)?;
            apply(&mut other, &mut log, entry)?;
        }
        prop_assert_eq!(one, other);
    }
}

/// A process that spends all it is told of and keeps the rules otherwise.
#[derive(Clone, Debug, Default)]
struct Spender {
    received: u64,
    totals: Totals,
    charged: u64,
    refunded: u64,
}

impl Spender {
    fn held(&self) -> u64 {
        self.received - self.totals.spent - self.totals.returned
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The leader grants `more` to a region, and the entry carries tellings of any age.
    Grant {
        region: u8,
        more: u64,
        tellings: Vec<usize>,
    },
    /// An answer of any age arrives; the process spends all.
    Answer {
        answer: usize,
        spends: bool,
    },
    /// A process returns some of what it holds.
    Return {
        region: u8,
        units: u64,
    },
    Charge {
        region: u8,
        units: u64,
    },
    Refund {
        region: u8,
        units: u64,
    },
    Restart {
        region: u8,
    },
    Quota(u64),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..3, 1_u64..12, vec(0_usize..64, 0..4))
            .prop_map(|(region, more, tellings)| Step::Grant { region, more, tellings }),
        6 => (0_usize..64, proptest::bool::ANY)
            .prop_map(|(answer, spends)| Step::Answer { answer, spends }),
        4 => (0_u8..3, 1_u64..12).prop_map(|(region, units)| Step::Return { region, units }),
        2 => (0_u8..3, 1_u64..6).prop_map(|(region, units)| Step::Charge { region, units }),
        2 => (0_u8..3, 1_u64..6).prop_map(|(region, units)| Step::Refund { region, units }),
        1 => (0_u8..3).prop_map(|region| Step::Restart { region }),
        1 => (0_u64..30).prop_map(Step::Quota),
        1 => Just(Step::Reset),
    ]
}

/// The world beside the book: what every process truly did.
struct World {
    book: Book,
    quota: u64,
    quota_max: u64,
    epoch: u64,
    incarnations: [u64; 3],
    spenders: BTreeMap<(Holder, u64), Spender>,
    answers: Vec<(Holder, u64, u64)>,
    tellings: Vec<(Holder, u64, Totals)>,
    /// Spent in all epochs when the present one began.
    spent_before: u64,
}

impl World {
    fn new() -> Self {
        let mut book = Book::default();
        for region in 0..3 {
            book.enroll(Timestamp::EPOCH, &holder(region, 0));
        }
        Self {
            book,
            quota: 20,
            quota_max: 20,
            epoch: 1,
            incarnations: [0; 3],
            spenders: BTreeMap::new(),
            answers: Vec::new(),
            tellings: Vec::new(),
            spent_before: 0,
        }
    }

    fn holder(&self, region: u8) -> Holder {
        holder(region, self.incarnations[usize::from(region)])
    }

    fn spender(&mut self, region: u8) -> (Holder, &mut Spender) {
        let holder = self.holder(region);
        let place = (holder.clone(), self.epoch);
        (holder, self.spenders.entry(place).or_default())
    }

    fn transfer(&mut self, returns: Vec<(Holder, Totals)>, grants: Vec<(Holder, u64)>) {
        let transfer = Transfer {
            account: account(0, self.epoch),
            window: window(0, 60),
            returns,
            grants,
        };
        let taken = self.book.transfer(Timestamp::EPOCH, &transfer, self.quota);
        for (holder, total) in taken.expect("a window that runs").granted {
            self.answers.push((holder, self.epoch, total));
        }
    }

    fn go(&mut self, step: &Step) {
        match step {
            Step::Grant {
                region,
                more,
                tellings,
            } => {
                let mut returns = Vec::new();
                for place in tellings {
                    let count = self.tellings.len();
                    if let Some((holder, epoch, totals)) = self.tellings.get(place % count.max(1)) {
                        if *epoch == self.epoch {
                            returns.push((holder.clone(), *totals));
                        } else {
                            let said = [(holder.clone(), *totals)];
                            let account = account(0, *epoch);
                            let id = window(0, 60).id;
                            self.book.returns(Timestamp::EPOCH, &account, id, &said);
                        }
                    }
                }
                let holder = self.holder(*region);
                let account = account(0, self.epoch);
                let tally = self.book.tally(&account, window(0, 60).id, &holder);
                self.transfer(returns, vec![(holder, tally.granted + more)]);
            }
            Step::Answer { answer, spends } => {
                let count = self.answers.len().max(1);
                let Some((holder, epoch, total)) = self.answers.get(answer % count).cloned() else {
                    return;
                };
                let lives = (0..3).any(|region| self.holder(region) == holder);
                if lives {
                    let spender = self.spenders.entry((holder, epoch)).or_default();
                    spender.received = spender.received.max(total);
                    if *spends {
                        spender.totals.spent += spender.held();
                    }
                }
            }
            Step::Return { region, units } => {
                let epoch = self.epoch;
                let (holder, spender) = self.spender(*region);
                spender.totals.returned += spender.held().min(*units);
                let totals = spender.totals;
                self.tellings.push((holder, epoch, totals));
            }
            Step::Charge { region, units } => {
                let (account, quota) = (account(0, self.epoch), self.quota);
                let (holder, spender) = self.spender(*region);
                spender.totals.returned += spender.held().min(*units);
                let charge = Charge {
                    account,
                    window: window(0, 60),
                    holder: holder.clone(),
                    totals: spender.totals,
                    units: *units,
                };
                let outcome = self.book.charge(Timestamp::EPOCH, &[(&charge, quota)]);
                if outcome.is_ok() {
                    self.spender(*region).1.charged += units;
                }
            }
            Step::Refund { region, units } => {
                let account = account(0, self.epoch);
                let (holder, spender) = self.spender(*region);
                let totals = spender.totals;
                let id = window(0, 60).id;
                let given =
                    self.book
                        .refund(Timestamp::EPOCH, &account, id, &holder, totals, *units);
                self.spender(*region).1.refunded += given;
            }
            Step::Restart { region } => {
                self.incarnations[usize::from(*region)] += 1;
                let holder = self.holder(*region);
                self.book.enroll(Timestamp::EPOCH, &holder);
            }
            Step::Quota(quota) => {
                self.quota = *quota;
                self.quota_max = self.quota_max.max(*quota);
                self.transfer(Vec::new(), Vec::new());
            }
            Step::Reset => {
                self.epoch += 1;
                self.spent_before = self.used_where(|_| true);
                self.transfer(Vec::new(), Vec::new());
            }
        }
    }

    fn used_where(&self, epoch: impl Fn(u64) -> bool) -> u64 {
        self.spenders
            .iter()
            .filter(|((_, of), _)| epoch(*of))
            .map(|(_, spender)| spender.totals.spent + spender.charged - spender.refunded)
            .sum()
    }
}

proptest! {
    /// Processes that spend every unit at once, hear and tell late, twice or never, and die, admit no more
    /// than the largest quota: in an epoch, and in it together with what lives on of the ones before.
    #[test]
    fn no_more_is_admitted_than_the_largest_quota(steps in vec(step(), 1..150)) {
        let mut world = World::new();
        for step in &steps {
            world.go(step);
            prop_assert_eq!(world.book.imbalances(), []);
            let epoch = world.epoch;
            prop_assert!(world.used_where(|of| of == epoch) <= world.quota_max);
            // A refund in an old epoch can only lower the sum.
            let since = world.used_where(|_| true).saturating_sub(world.spent_before);
            prop_assert!(since <= world.quota_max, "{} since the reset", since);
            for ((holder, epoch), spender) in &world.spenders {
                let tally = world.book.tally(&account(0, *epoch), window(0, 60).id, holder);
                prop_assert!(spender.received <= tally.granted);
                prop_assert!(tally.spent <= spender.totals.spent);
                prop_assert!(tally.returned <= spender.totals.returned);
            }
        }
    }

    /// Tellings of processes that keep the rules may come in any order, any number of times.
    #[test]
    fn tellings_come_in_any_order(
        growth in vec((0_usize..3, 0_u64..4, 0_u64..4), 1..20),
        order in vec(0_usize..64, 0..40),
    ) {
        let mut start = Book::default();
        let holders = [0_u8, 1, 2].map(|region| holder(region, 0));
        let mut transfer = Transfer {
            account: account(0, 1),
            window: window(0, 60),
            returns: Vec::new(),
            grants: Vec::new(),
        };
        for holder in &holders {
            start.enroll(Timestamp::EPOCH, holder);
            transfer.grants.push((holder.clone(), 200));
        }
        start.transfer(Timestamp::EPOCH, &transfer, 700).expect("taken");
        let mut sums = [Totals::default(); 3];
        let mut tellings = Vec::new();
        for (place, spent, returned) in growth {
            sums[place].spent += spent;
            sums[place].returned += returned;
            tellings.push((holders[place].clone(), sums[place]));
        }
        let id = window(0, 60).id;
        let mut in_order = start.clone();
        in_order.returns(Timestamp::EPOCH, &account(0, 1), id, &tellings);
        let mut shuffled = start;
        for place in order {
            let telling = tellings[place % tellings.len()].clone();
            shuffled.returns(Timestamp::EPOCH, &account(0, 1), id, &[telling]);
        }
        for telling in tellings.iter().rev() {
            shuffled.returns(Timestamp::EPOCH, &account(0, 1), id, std::slice::from_ref(telling));
        }
        prop_assert_eq!(in_order, shuffled);
    }
}
