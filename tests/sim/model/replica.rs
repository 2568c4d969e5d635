//! What the log drives: the catalogue as far as it matters here, the book, remembered keys and refunds.

use std::collections::BTreeMap;

use highwater::domain::name::LimitName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::account::Quota;
use highwater::grants::account::Totals;
use highwater::grants::account::Transfer;
use highwater::grants::book::Book;
use highwater::grants::book::Charge;
use highwater::grants::book::NotTaken;
use highwater::grants::book::Transferred;

/// One entry of the log.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A leader's first.
    Begin,
    Enroll(Holder),
    Transfer(Transfer),
    Quota {
        counter: usize,
        quota: Quota,
    },
    Reset {
        counter: usize,
    },
    Keyed {
        key: u64,
        charge: Charge,
    },
    Refund(Refund),
    /// The lease of a process on units of buckets has ended.
    Lapse(Holder),
}

/// Gives units back, once for each id.
#[derive(Clone, Debug)]
pub struct Refund {
    pub id: u64,
    pub account: Account,
    pub window: WindowId,
    pub holder: Holder,
    pub totals: Totals,
    pub units: u64,
}

/// What applying an entry came to.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    Transferred(Result<Transferred, NotTaken>),
    /// Whether it is charged, and whether this entry was the first with its key.
    Keyed {
        is_charged: bool,
        is_first: bool,
    },
    Refunded {
        credited: u64,
    },
}

/// Epoch and quota of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub epoch: u64,
    pub quota: Quota,
}

/// What regions know of the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    pub version: u64,
    pub counters: Vec<Terms>,
    pub window: Span,
}

impl Catalogue {
    pub fn account(&self, counter: usize) -> Account {
        account(counter, self.counters[counter].epoch)
    }
}

pub fn account(counter: usize, epoch: u64) -> Account {
    Account {
        tenant: "acme".into(),
        limit: LimitName::new("exports").expect("a name"),
        key: counter.to_string().as_str().into(),
        epoch,
    }
}

/// The counter that an account is of.
pub fn counter_of(account: &Account) -> usize {
    account.key.parse().expect("a number")
}

/// A member's state.
#[derive(Clone, Debug)]
pub struct Replica {
    pub book: Book,
    pub catalogue: Catalogue,
    term: u64,
    keys: BTreeMap<u64, bool>,
    refunds: BTreeMap<u64, u64>,
}

impl Replica {
    /// A state with counters of these quotas.
    pub fn new(quotas: &[Quota], window: Span) -> Self {
        Self {
            book: Book::default(),
            catalogue: Catalogue {
                version: 1,
                counters: quotas
                    .iter()
                    .map(|quota| Terms {
                        epoch: 1,
                        quota: *quota,
                    })
                    .collect(),
                window,
            },
            term: 0,
            keys: BTreeMap::new(),
            refunds: BTreeMap::new(),
        }
    }

    /// The quota of an account; `None` when it is of an old epoch.
    pub fn quota(&self, account: &Account) -> Option<Quota> {
        let terms = self.catalogue.counters[counter_of(account)];
        (terms.epoch == account.epoch).then_some(terms.quota)
    }

    pub fn key(&self, key: u64) -> Option<bool> {
        self.keys.get(&key).copied()
    }

    /// Applies an entry of `term`; between the last of a term and the first of another buckets earn nothing.
    pub fn apply(&mut self, term: u64, log: Timestamp, entry: &Entry) -> Outcome {
        if term > self.term {
            self.term = term;
            self.book.skip(log);
        }
        let outcome = self.carry_out(log, entry);
        self.book.expire(log, 4);
        outcome
    }

    fn carry_out(&mut self, log: Timestamp, entry: &Entry) -> Outcome {
        match entry {
            Entry::Begin => Outcome::Done,
            Entry::Lapse(holder) => {
                self.book.lapse(log, holder);
                Outcome::Done
            }
            Entry::Enroll(holder) => {
                self.book.enroll(log, holder);
                Outcome::Done
            }
            Entry::Transfer(transfer) => {
                Outcome::Transferred(match self.quota(&transfer.account) {
                    Some(quota) => self.book.transfer(log, transfer, quota),
                    None => {
                        let window = transfer.window.id;
                        self.book
                            .returns(log, &transfer.account, window, &transfer.returns);
                        Err(NotTaken::Superseded)
                    }
                })
            }
            Entry::Quota { counter, quota } => {
                self.catalogue.counters[*counter].quota = *quota;
                self.catalogue.version += 1;
                Outcome::Done
            }
            Entry::Reset { counter } => {
                self.catalogue.version += 1;
                self.catalogue.counters[*counter].epoch = self.catalogue.version;
                Outcome::Done
            }
            Entry::Keyed { key, charge } => {
                if let Some(is_charged) = self.key(*key) {
                    return Outcome::Keyed {
                        is_charged,
                        is_first: false,
                    };
                }
                let is_charged = self
                    .quota(&charge.account)
                    .is_some_and(|quota| self.book.charge(log, &[(charge, quota)]).is_ok());
                self.keys.insert(*key, is_charged);
                Outcome::Keyed {
                    is_charged,
                    is_first: true,
                }
            }
            Entry::Refund(refund) => {
                if self.refunds.contains_key(&refund.id) {
                    return Outcome::Refunded { credited: 0 };
                }
                let credited = self.book.refund(
                    log,
                    &refund.account,
                    refund.window,
                    &refund.holder,
                    refund.totals,
                    refund.units,
                );
                self.refunds.insert(refund.id, credited);
                Outcome::Refunded { credited }
            }
        }
    }
}
