//! What this region holds of strict limits: all its reservations, the checks that wait for units, and what
//! it knows of the leader.
//!
//! Reservations stand in shards behind short locks. A check locks the shards of all its strict limits in
//! index order, and under them the ledger's: so units of several limits and the counters beside them are
//! taken all or none. Effects leave the shards before they are carried out: [`Effect::Send`] to the outbox,
//! [`Effect::Wake`] to the check that waits.
//!
//! A reservation is kept as long as its window may still run: a process that forgot what it spent would
//! spend it twice.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use parking_lot::MutexGuard;
use parking_lot::RwLock;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use crate::catalogue::view::View;
use crate::domain::limit::Mode;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::exchange::Exchange;
use crate::grants::message::ToRegion;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Verdict;
use crate::machine::charge::has_reservations;
use crate::machine::strict::Seats;
use crate::machine::strict::Want;
use crate::machine::strict::window_length;

const SHARDS: usize = 64;
/// Verdicts that may wait for one check: each of its limits has one at a time, and a check has at most 16.
const VERDICTS_MAX: usize = 64;
/// Strict counters that this region may have open at once.
const ACCOUNTS_MAX: u64 = 1_000_000;

#[derive(Debug, Default)]
struct Shard {
    accounts: HashMap<Account, Box<Reservation>, RandomState>,
    /// Nothing in the shard is due before this boot time.
    due: Span,
}

/// See the module.
#[derive(Debug)]
pub struct Reservations {
    holder: Holder,
    exchange: RwLock<Exchange>,
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    waiters: Mutex<HashMap<Ticket, mpsc::Sender<(Ticket, Verdict)>>>,
    tickets: AtomicU64,
    accounts: AtomicU64,
    /// Of the exchange at the last tick.
    revision: AtomicU64,
}

/// The shards of a check's reservations, locked.
pub struct Locked<'a> {
    reservations: &'a Reservations,
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
}

impl Reservations {
    /// None yet, of the process `holder`.
    pub fn new(holder: Holder, seed: [u64; 2]) -> Self {
        Self {
            holder,
            exchange: RwLock::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::with_seeds(seed[0], seed[1], 5, 6),
            waiters: Mutex::default(),
            tickets: AtomicU64::new(0),
            accounts: AtomicU64::new(0),
            revision: AtomicU64::new(0),
        }
    }

    /// This process.
    pub const fn holder(&self) -> &Holder {
        &self.holder
    }

    /// What is known of the leader.
    pub fn exchange(&self) -> Exchange {
        *self.exchange.read()
    }

    /// Log time follows this region's clock, which is set by hand and shows `time`.
    pub fn follow(&self, time: Timestamp) {
        self.exchange.write().follow(time);
    }

    /// The leader charged something for a check in `took`, with the commit: a refill takes as long.
    pub fn charged(&self, took: Span) {
        self.exchange.write().refilled(took);
    }

    /// Strict counters that are open here.
    pub fn len(&self) -> u64 {
        self.accounts.load(Ordering::Relaxed)
    }

    /// Whether no strict counter is open here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, account: &Account) -> usize {
        usize::try_from(self.hasher.hash_one(account) >> 1).unwrap_or(0) % SHARDS
    }

    /// Locks the shards of `wants`, each once, in index order.
    pub fn lock(&self, wants: &[Want<'_>]) -> Locked<'_> {
        let mut indexes: SmallVec<[usize; 2]> =
            wants.iter().map(|want| self.shard(&want.account)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        Locked {
            reservations: self,
            guards: indexes
                .into_iter()
                .map(|index| (index, self.shards[index].lock()))
                .collect(),
        }
    }

    /// Runs `act` on the reservation of `account`, if there is one.
    pub fn with<T>(
        &self,
        account: &Account,
        boot: Span,
        act: impl FnOnce(&mut Reservation, &Now<'_>) -> T,
    ) -> Option<T> {
        let exchange = self.exchange();
        let now = Now {
            boot,
            exchange: &exchange,
        };
        let mut shard = self.shards[self.shard(account)].lock();
        let reservation = shard.accounts.get_mut(account)?;
        let done = act(reservation, &now);
        let due = reservation.due();
        shard.due = shard.due.min(due);
        Some(done)
    }

    /// Takes in what the leader told this process.
    pub fn hear(&self, told: &ToRegion, boot: Span, out: &mut Vec<Effect>) {
        let holder = match told {
            ToRegion::Answer(answer) => Some(&answer.holder),
            ToRegion::Refused(refused) => Some(&refused.holder),
            ToRegion::Recall(recall) => Some(&recall.holder),
            ToRegion::Pulse(_) => None,
        };
        if holder.is_some_and(|holder| *holder != self.holder) {
            return;
        }
        match told {
            ToRegion::Answer(answer) => {
                self.exchange.write().heard(&answer.stamp, boot);
                let refilled = self.with(&answer.account, boot, |reservation, now| {
                    reservation.answer(answer, now, out)
                });
                if let Some(Some(took)) = refilled {
                    self.exchange.write().refilled(took);
                }
            }
            ToRegion::Refused(refused) => {
                self.exchange.write().heard(&refused.stamp, boot);
                self.with(&refused.account, boot, |reservation, now| {
                    reservation.refused(refused, now, out);
                });
            }
            ToRegion::Recall(recall) => {
                self.with(&recall.account, boot, |reservation, now| {
                    reservation.recall(recall, now, out);
                });
            }
            ToRegion::Pulse(pulse) => {
                self.exchange.write().pulse(pulse, boot);
            }
        }
    }

    /// Lets time pass for every reservation that is due, and drops those that may be forgotten.
    pub fn tick(&self, boot: Span, out: &mut Vec<Effect>) {
        let exchange = self.exchange();
        let now = Now {
            boot,
            exchange: &exchange,
        };
        // Other bounds of log time move every window.
        let revision = u64::from(exchange.revision());
        let moved = self.revision.swap(revision, Ordering::Relaxed) != revision;
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.due > boot && !moved {
                continue;
            }
            let mut due = Span::MAX;
            let before = shard.accounts.len();
            shard.accounts.retain(|_, reservation| {
                if moved || reservation.due() <= boot {
                    reservation.tick(&now, out);
                }
                let keep = !reservation.is_releasable();
                if keep {
                    due = due.min(reservation.due());
                }
                keep
            });
            let gone = before - shard.accounts.len();
            self.accounts
                .fetch_sub(u64::try_from(gone).unwrap_or(0), Ordering::Relaxed);
            shard.due = due;
        }
    }

    /// Closes the reservations whose limit is another one by now.
    pub fn reconcile(&self, view: &View, at: Timestamp, boot: Span, out: &mut Vec<Effect>) {
        let exchange = self.exchange();
        let now = Now {
            boot,
            exchange: &exchange,
        };
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut due = shard.due;
            for (account, reservation) in &mut shard.accounts {
                let limit = view
                    .tenant(&account.tenant)
                    .and_then(|tenant| tenant.limit(account.limit.as_str()))
                    .map(|found| found.at(&account.key, at))
                    .filter(|(limit, epoch)| {
                        *epoch == account.epoch
                            && limit.mode == Mode::Strict
                            && has_reservations(&limit.rule)
                    });
                match limit {
                    Some((limit, _)) => reservation.set_quota(Quota::of(&limit.rule)),
                    None => reservation.close(&now, out),
                }
                due = due.min(reservation.due());
            }
            shard.due = due;
        }
    }

    /// Gives everything back that no check waits for, and holds nothing from now on.
    pub fn give_back_all(&self, boot: Span, out: &mut Vec<Effect>) {
        let exchange = self.exchange();
        let now = Now {
            boot,
            exchange: &exchange,
        };
        for shard in &self.shards {
            let mut shard = shard.lock();
            for reservation in shard.accounts.values_mut() {
                reservation.give_back_all(&now, out);
            }
        }
    }

    /// A place for a check that waits: where its verdicts arrive.
    pub fn waiter(&self) -> (Waiter, mpsc::Receiver<(Ticket, Verdict)>) {
        let (tell, verdicts) = mpsc::channel(VERDICTS_MAX);
        (Waiter { tell }, verdicts)
    }

    /// A new ticket of `waiter`.
    pub fn ticket(&self, waiter: &Waiter) -> Ticket {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        self.waiters.lock().insert(ticket, waiter.tell.clone());
        ticket
    }

    /// The check of `ticket` waits no more.
    pub fn forget(&self, ticket: Ticket) {
        self.waiters.lock().remove(&ticket);
    }

    /// Tells the check of `ticket`; one that has gone is told nothing.
    pub fn wake(&self, ticket: Ticket, verdict: Verdict) {
        if let Some(tell) = self.waiters.lock().get(&ticket) {
            tell.try_send((ticket, verdict)).ok();
        }
    }
}

/// A check that waits.
#[derive(Debug)]
pub struct Waiter {
    tell: mpsc::Sender<(Ticket, Verdict)>,
}

impl Seats for Locked<'_> {
    fn get(&mut self, want: &Want<'_>, boot: Span) -> Option<&mut Reservation> {
        let index = self.reservations.shard(&want.account);
        let (_, shard) = self
            .guards
            .iter_mut()
            .find(|(locked, _)| *locked == index)?;
        if !shard.accounts.contains_key(&want.account) {
            let full = self.reservations.len() >= ACCOUNTS_MAX;
            if want.units == 0 || full {
                return None;
            }
            let reservation = Reservation::new(
                want.account.clone(),
                self.reservations.holder.clone(),
                Quota::of(&want.limit.rule),
                window_length(&want.limit.rule),
                boot,
            );
            shard
                .accounts
                .insert(want.account.clone(), Box::new(reservation));
            self.reservations.accounts.fetch_add(1, Ordering::Relaxed);
        }
        // Whatever is done with it may make it due.
        shard.due = Span::ZERO;
        let found = shard.accounts.get_mut(&want.account)?;
        // A check may know a change before [`Reservations::reconcile`] has come by.
        found.set_quota(Quota::of(&want.limit.rule));
        Some(&mut **found)
    }
}
