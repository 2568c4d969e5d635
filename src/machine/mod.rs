//! The replicated machine: what the log of the cluster drives, the same on every region.
//!
//! ```text
//!   Payload { log_time, command } ──► apply ──► Reply          (and the same state everywhere)
//!     Found, Enroll, Depart, Prefer    members: who started when, who has gone, who should lead
//!     Change                           catalogue: limits, plans, tenants, tokens, resets, audit
//!     Transfer                         book: units of strict windows, between pool and regions
//!     Charge, GiveBack, Renew          checks that the log itself decides
//!     Begin                            a term: see `Machine::apply_in`
//!     Lapse                            book: a region's lease on units of buckets has ended
//! ```
//!
//! Strict limits of kinds that have windows, and token buckets, are spent from reservations; their book is
//! [`crate::grants::book`]. All other strict kinds (sliding windows, logs, concurrency) are decided
//! here, entry by entry, by a [`Ledger`] whose clock is log time: the same machine that decides regional
//! limits, fed by the log instead of by calls.
//!
//! Invariants, with the tests that hold them (`tests`):
//! - the same entries give the same state and the same replies, also over a snapshot
//!   (`a_snapshot_goes_on_like_the_original`);
//! - log time never falls (`log_time_never_falls`);
//! - buckets earn nothing from the last entry of a term to the first of another, over which log time may have
//!   jumped (`a_bucket_earns_nothing_between_two_terms`);
//! - a request is charged once however often its entry is repeated (`a_request_counts_once`), also when a copy
//!   comes long after its answer (`a_copy_of_a_request_that_was_answered_counts_no_more`), and so is an
//!   `Idempotency-Key` in whichever region it is sent (`a_key_counts_once_everywhere`);
//! - how a strict window was used can be looked up after it has ended (`an_ended_window_stays_in_the_ledger`);
//! - a check of several limits charges all or none (`a_check_charges_all_or_none`).
//!
//! Not here: who proposes when, clocks, the network, disks.

pub mod answers;
mod by_ledger;
pub mod charge;
pub mod closed;
pub mod command;
pub mod give;
pub mod inherited;
pub mod lead;
mod snapshot;
pub mod strict;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::catalogue::change::Entry;
use crate::catalogue::view::LimitView;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::book;
use crate::grants::book::Book;
use crate::grants::book::Proof;
use crate::ledger::Bounds;
use crate::ledger::Ledger;
use crate::machine::answers::Remembered;
use crate::machine::closed::Closed;
use crate::machine::command::AuditRow;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::command::Reply;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorTable;

/// Changes that the audit keeps.
pub const AUDIT_ROWS_MAX: usize = 20_000;
/// After so many entries every dead counter goes. All at once, so that regions that came by their state in
/// different ways keep the same counters.
const ENTRIES_PER_SWEEP: u64 = 1024;
/// Ended windows that one entry closes at most.
const CLOSED_PER_ENTRY: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Machine {
    log_time: Timestamp,
    /// The term of the last entry.
    term: u64,
    cluster: Option<u64>,
    preference: Option<RegionName>,
    catalogue: Catalogue,
    /// Entries of the catalogue so far: its version is the number of the last one that changed it.
    catalogue_index: u64,
    audit: VecDeque<AuditRow>,
    book: Book,
    closed: Closed,
    ledger: Ledger,
    /// Entries so far.
    entries: u64,
    remembered: Remembered,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// The one writer of the log's own counters.
fn log_actor() -> ActorTable {
    // Its name is never seen outside: use that the log counts is told by the log.
    let region = RegionName::new("log").ok();
    ActorTable::alone(Actor {
        region: region.unwrap_or_else(|| unreachable!("a constant name is a name")),
        incarnation: 0,
    })
}

fn empty_ledger() -> Ledger {
    // The leader bounds what is proposed; a bound here would make regions differ that have swept differently.
    let bounds = Bounds {
        keys_max: usize::MAX,
        keys_per_tenant_max: usize::MAX,
    };
    Ledger::new(bounds, log_actor(), 0, [0x6869_6768, 0x7761_7465])
}

impl Machine {
    /// A machine that has applied nothing.
    pub fn new() -> Self {
        Self {
            log_time: Timestamp::from_nanos(i64::MIN),
            term: 0,
            cluster: None,
            preference: None,
            catalogue: Catalogue::new(),
            catalogue_index: 0,
            audit: VecDeque::new(),
            book: Book::new(book::Bounds::default()),
            closed: Closed::default(),
            ledger: empty_ledger(),
            entries: 0,
            remembered: Remembered::default(),
        }
    }

    /// Applies one entry of `term`. Before the first of a term nothing is earned since the last of another: a
    /// leader whose clock is ahead would make units.
    pub fn apply_in(&mut self, term: u64, payload: &Payload) -> Reply {
        if term > self.term {
            self.term = term;
            self.book.skip(self.log_time.max(payload.log_time));
        }
        self.apply(payload)
    }

    /// Applies one entry of the term of the last one.
    pub fn apply(&mut self, payload: &Payload) -> Reply {
        self.log_time = self.log_time.max(payload.log_time);
        self.remembered.forget(self.log_time);
        let reply = match &payload.command {
            Command::Found { cluster, adopted } => self.found(*cluster, adopted.as_deref()),
            Command::Enroll(holder) => self.enroll(holder),
            Command::Depart(region) => {
                self.book.depart(self.log_time, region);
                Reply::Done
            }
            Command::Prefer(region) => {
                self.preference.clone_from(region);
                Reply::Done
            }
            Command::Change(entry) => self.change(entry),
            Command::Transfer(transfer) => self.transfer(transfer),
            Command::Charge(charge) => Reply::Charged(self.charge(charge)),
            Command::GiveBack(give) => Reply::Given(self.give_back(give)),
            Command::Renew(renew) => Reply::Given(self.renew(renew)),
            Command::Begin => {
                #[cfg(feature = "planted-faults")]
                self.forget_book();
                Reply::Done
            }
            Command::Lapse(holder) => {
                self.book.lapse(self.log_time, holder);
                Reply::Done
            }
        };
        // Not before: a bucket that this entry is about is in use again.
        let mut ended = self.book.expire(self.log_time, CLOSED_PER_ENTRY);
        // A bucket that was forgotten was full: there is nothing to look up.
        ended.retain(|proof| !proof.window.is_endless());
        self.closed.keep(ended, self.log_time);
        self.entries += 1;
        if self.entries.is_multiple_of(ENTRIES_PER_SWEEP) {
            self.ledger.sweep_all(self.log_time);
        }
        reply
    }

    #[cfg(feature = "planted-faults")]
    fn forget_book(&mut self) {
        use crate::domain::planted;

        if planted::is(planted::Planted::LeaderForgetsBook) {
            let enrolled: Vec<Holder> = self.book.enrolled().collect();
            self.book = Book::new(book::Bounds::default());
            for holder in enrolled {
                self.book.enroll(self.log_time, &holder);
            }
        }
    }

    fn found(&mut self, cluster: u64, adopted: Option<&[u8]>) -> Reply {
        if self.cluster.is_some() {
            return Reply::Invalid("the cluster is founded already".to_owned());
        }
        if let Some(adopted) = adopted {
            match serde_json::from_slice::<Catalogue>(adopted) {
                Ok(catalogue) => {
                    self.catalogue_index = catalogue.version();
                    self.catalogue = catalogue;
                }
                Err(error) => return Reply::Invalid(error.to_string()),
            }
        }
        self.cluster = Some(cluster);
        Reply::Done
    }

    fn enroll(&mut self, holder: &Holder) -> Reply {
        self.book.enroll(self.log_time, holder);
        // A doubled enrolment of an earlier process changes nothing.
        if self.book.is_newest(holder) {
            self.remembered.enroll(holder);
        }
        Reply::Done
    }

    fn change(&mut self, entry: &[u8]) -> Reply {
        let entry: Entry = match serde_json::from_slice(entry) {
            Ok(entry) => entry,
            Err(error) => return Reply::Invalid(error.to_string()),
        };
        let index = self.catalogue_index + 1;
        let book = &self.book;
        let applied = self
            .catalogue
            .apply_beside(index, self.log_time, &entry, &|tenant, key| match key {
                Some((limit, key)) => book.counts(tenant.as_str(), limit, key.as_str()),
                None => book.counts_tenant(tenant.as_str()),
            });
        match applied {
            Ok(applied) => {
                self.catalogue_index = index;
                if self.audit.len() == AUDIT_ROWS_MAX {
                    self.audit.pop_front();
                }
                self.audit.push_back(AuditRow {
                    index,
                    at: self.log_time,
                    author: entry.author.to_string(),
                    summary: entry.change.summary(),
                });
                Reply::Changed(applied)
            }
            Err(refused) => Reply::Refused(refused),
        }
    }

    /// Accounts with open windows that the change `entry` would end, at most `max`: it begins a new epoch of
    /// them, or lets nothing strict of their name be. Changes nothing.
    pub fn ended_by(&self, entry: &[u8], max: usize) -> Vec<Account> {
        let Ok(entry) = serde_json::from_slice::<Entry>(entry) else {
            return Vec::new();
        };
        let mut trial = self.catalogue.clone();
        if trial
            .apply(self.catalogue_index + 1, self.log_time, &entry)
            .is_err()
        {
            return Vec::new();
        }
        let mut open: Vec<Account> = self.book.accounts().collect();
        open.dedup();
        open.retain(|account| {
            let is_known = self.limit_of(account, self.log_time).is_some();
            is_known && limit_in(&trial, account, self.log_time).is_none()
        });
        open.truncate(max);
        open
    }

    /// The catalogue.
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The cluster has so many regions; only what a region falls back to without a leader depends on it.
    pub fn set_regions(&mut self, regions: u32) {
        self.catalogue.set_regions(regions);
    }

    /// The book of strict windows.
    pub const fn book(&self) -> &Book {
        &self.book
    }

    /// How the window was used that contains `at`, of a counter of a strict limit with windows; of several
    /// epochs the newest one's. `None`: nothing was asked of it, or it ended too long ago.
    pub fn proof(&self, tenant: &str, limit: &str, key: &str, at: Timestamp) -> Option<Proof> {
        let open = self.book.proof_at(tenant, limit, key, at);
        let closed = self.closed.find(tenant, limit, key, at);
        match (open, closed) {
            (Some(open), Some(closed)) if closed.account.epoch > open.account.epoch => {
                Some(closed.clone())
            }
            (Some(open), _) => Some(open),
            (None, closed) => closed.cloned(),
        }
    }

    /// The newest log time.
    pub const fn log_time(&self) -> Timestamp {
        self.log_time
    }

    /// The cluster's id, once it is founded.
    pub const fn cluster(&self) -> Option<u64> {
        self.cluster
    }

    /// The region that should lead.
    pub const fn preference(&self) -> Option<&RegionName> {
        self.preference.as_ref()
    }

    /// Changes after number `after`, oldest first, at most `page_size`.
    pub fn audit(&self, after: u64, page_size: usize) -> Vec<AuditRow> {
        let rows = self.audit.iter().filter(|row| row.index > after);
        rows.take(page_size).cloned().collect()
    }

    /// The strict limit of `account` as it is in force at `at`; `None`: there is no such limit any more, or it
    /// is in another epoch.
    pub fn limit_of(&self, account: &Account, at: Timestamp) -> Option<(&LimitView, Arc<Limit>)> {
        limit_in(&self.catalogue, account, at)
    }

    fn transfer(&mut self, transfer: &crate::grants::account::Transfer) -> Reply {
        let Some((_, limit)) = self.limit_of(&transfer.account, self.log_time) else {
            // What was returned is taken in all the same: the units are needed by the next epoch.
            let (account, window) = (&transfer.account, transfer.window.id);
            self.book
                .returns(self.log_time, account, window, &transfer.returns);
            return Reply::Stale {
                version: self.catalogue.version(),
            };
        };
        match self
            .book
            .transfer(self.log_time, transfer, Quota::of(&limit.rule))
        {
            Ok(transferred) => Reply::Transferred(transferred),
            Err(not_taken) => Reply::NotTaken(not_taken),
        }
    }
}

fn limit_in<'a>(
    catalogue: &'a Catalogue,
    account: &Account,
    at: Timestamp,
) -> Option<(&'a LimitView, Arc<Limit>)> {
    let view = catalogue.view().tenant(&account.tenant)?;
    let found = view.limit(account.limit.as_str())?;
    let (limit, epoch) = found.at(&account.key, at);
    let is_it = epoch == account.epoch && limit.mode == Mode::Strict;
    is_it.then(|| (found, Arc::clone(limit)))
}
