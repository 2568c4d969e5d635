//! The auditor of runs over the real log: what every node applied, what was acknowledged, what was admitted.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::machine::Machine;
use highwater::machine::charge::Charge;
use highwater::machine::charge::Charged;
use highwater::machine::command::Command;
use highwater::machine::command::Payload;
use highwater::machine::command::Reply;

use super::ROLLING_NANOS;
use super::ROLLING_QUOTA;
use super::types::LogId;
use super::types::Trace;
use crate::model::audit::Audit as Windows;
use crate::model::replica::account;

/// An applied entry, as the first node that applied it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Applied {
    term: u64,
    entry: u64,
    reply: u64,
}

/// See the module.
#[derive(Default)]
pub struct Audit {
    pub windows: Windows,
    counters: usize,
    applied: BTreeMap<u64, Applied>,
    log_time: Option<Timestamp>,
    leaders: BTreeMap<u64, usize>,
    snapshots: BTreeMap<u64, (usize, u64)>,
    granted: BTreeMap<(Account, WindowId, Holder), u64>,
    /// Requests that were charged, and their keys.
    requests: BTreeSet<(Holder, u64)>,
    keys: BTreeSet<String>,
    rolling: Vec<(Timestamp, u64)>,
    /// The newest entry that was acknowledged to anybody.
    acknowledged: u64,
    pub terms: u64,
    pub checks: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
}

impl Audit {
    pub fn new(counters: usize) -> Self {
        Self {
            counters,
            ..Self::default()
        }
    }

    pub fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub fn count(&mut self, kind: &'static str) {
        *self.checks.entry(kind).or_default() += 1;
    }

    pub fn entries(&self) -> usize {
        self.applied.len()
    }

    pub fn windows_used(&self) -> usize {
        self.windows.windows.len()
    }

    /// At most one leader of a term.
    pub fn leads(&mut self, term: u64, node: usize) {
        let leader = *self.leaders.entry(term).or_insert(node);
        assert_eq!(leader, node, "two leaders of term {term}");
        self.terms = self.terms.max(term);
    }

    /// A snapshot holds what its place in the log says, whoever made it.
    pub fn snapshot(&mut self, node: usize, index: u64, body: &[u8]) {
        self.fault("snapshot");
        let hash = Trace::of(body);
        let (first, known) = *self.snapshots.entry(index).or_insert((node, hash));
        assert_eq!(
            known, hash,
            "the machines of nodes {first} and {node} differ at entry {index}"
        );
    }

    fn note(&mut self, place: &LogId, entry: u64, reply: u64) -> bool {
        let now = Applied {
            term: place.leader_id.term,
            entry,
            reply,
        };
        let index = place.index;
        if let Some(known) = self.applied.get(&index) {
            assert_eq!(*known, now, "entry {index} is not the same everywhere");
            return false;
        }
        if let Some((last, known)) = self.applied.last_key_value() {
            assert_eq!(last + 1, index, "an entry was skipped");
            assert!(known.term <= now.term, "terms fell at entry {index}");
        }
        self.applied.insert(index, now);
        true
    }

    /// An entry that no machine sees.
    pub fn passed(&mut self, place: &LogId) {
        self.note(place, 0, 0);
    }

    /// A node applied an entry; what it means is looked at once.
    pub fn applied(
        &mut self,
        place: &LogId,
        written: &[u8],
        payload: &Payload,
        reply: &Reply,
        machine: &Machine,
    ) {
        let said = Trace::of(format!("{reply:?}").as_bytes());
        if !self.note(place, Trace::of(written), said) {
            return;
        }
        let log = machine.log_time();
        assert!(self.log_time <= Some(log), "S6: log time fell");
        self.log_time = Some(log);
        match (&payload.command, reply) {
            (Command::Change(_), Reply::Changed(_)) => self.changed(machine, log),
            (Command::Transfer(transfer), _) => {
                let (account, window) = (&transfer.account, transfer.window.id);
                let book = machine.book();
                if book.window(account, window).is_some() {
                    self.windows.opened(account, window);
                }
                for (holder, _) in &transfer.grants {
                    let granted = book.tally(account, window, holder).granted;
                    let place = (account.clone(), window, holder.clone());
                    let known = self.granted.entry(place).or_default();
                    *known = granted.max(*known);
                }
                assert!(book.imbalances().is_empty(), "S1: {:?}", book.imbalances());
            }
            (Command::Charge(charge), Reply::Charged(charged)) => {
                self.charged(charge, charged, machine);
            }
            _ => {}
        }
    }

    fn changed(&mut self, machine: &Machine, log: Timestamp) {
        let view = machine.catalogue().view();
        let Some(tenant) = view.tenant("acme") else {
            return;
        };
        for counter in 0..self.counters {
            let key = counter.to_string();
            if let Some(limit) = tenant.limit("exports") {
                let (limit, epoch) = limit.at(&key, log);
                let account = account(counter, epoch);
                self.windows.in_force(log, &account, limit.rule.quota());
            }
        }
    }

    /// Every request is charged once, and the book charges what was asked.
    fn charged(&mut self, charge: &Charge, charged: &Charged, machine: &Machine) {
        let book = machine.book();
        let of = |item: &highwater::machine::charge::ChargeItem| Account {
            tenant: charge.tenant.clone(),
            limit: item.limit.clone(),
            key: item.key.clone(),
            epoch: item.epoch,
        };
        for item in &charge.items {
            if let Some(window) = item.window
                && book.window(&of(item), window.id).is_some()
            {
                self.windows.opened(&of(item), window.id);
            }
        }
        let request = (charge.request.holder.clone(), charge.request.number);
        if let Charged::Allowed(_) = charged {
            let is_first = self.requests.insert(request);
            if is_first {
                if let Some(keyed) = &charge.keyed {
                    let is_new = self.keys.insert(keyed.key.clone());
                    assert!(is_new, "the key {} was charged twice", keyed.key);
                }
                self.charge_items(charge, &of, machine.log_time());
            } else {
                self.fault("entry of a request that was charged before");
            }
        }
        for item in &charge.items {
            let Some(window) = item.window else { continue };
            let account = of(item);
            if let Some(proof) = book.proof(&account, window.id) {
                let in_book: u64 = proof.rows.iter().map(|row| row.charged).sum();
                let known = self.windows.window(&account, window.id).charged;
                assert_eq!(
                    in_book, known,
                    "the book charged other units than were asked: {charge:?}: {charged:?}"
                );
            }
        }
        assert!(book.imbalances().is_empty(), "S1: {:?}", book.imbalances());
    }

    fn charge_items(
        &mut self,
        charge: &Charge,
        of: &dyn Fn(&highwater::machine::charge::ChargeItem) -> Account,
        log: Timestamp,
    ) {
        for item in &charge.items {
            if let Some(window) = item.window {
                let account = of(item);
                self.windows.window(&account, window.id).charged += item.units;
                self.windows.assert_within(&account, window.id);
                continue;
            }
            self.rolling.push((log, item.units));
            let since = log.as_nanos() - ROLLING_NANOS;
            let newest = self.rolling.iter().rev();
            let used: u64 = newest
                .take_while(|(at, _)| at.as_nanos() > since)
                .map(|(_, units)| units)
                .sum();
            assert!(used <= ROLLING_QUOTA, "S2: {used} within a rolling window");
        }
    }

    /// Units were spent in a region.
    pub fn spent(&mut self, account: &Account, window: WindowId, units: u64) {
        self.windows.window(account, window).spent += units;
        self.windows.assert_within(account, window);
    }

    pub fn granted(&self, account: &Account, window: WindowId, holder: &Holder) -> u64 {
        let place = (account.clone(), window, holder.clone());
        self.granted.get(&place).copied().unwrap_or(0)
    }

    /// A caller was told what came of its entry.
    pub fn acknowledged(&mut self, index: u64) {
        assert!(
            index == 0 || self.applied.contains_key(&index),
            "entry {index} was acknowledged and applied nowhere"
        );
        self.acknowledged = self.acknowledged.max(index);
    }

    /// A caller was told what came of its charge.
    pub fn acknowledged_charge(&mut self, charge: &Charge, charged: &Charged) {
        match charged {
            Charged::Allowed(_) => {
                let request = (charge.request.holder.clone(), charge.request.number);
                assert!(
                    self.requests.contains(&request),
                    "a charge was acknowledged that does not count: {charge:?}"
                );
            }
            Charged::Repeated(_) => {
                let keyed = charge.keyed.as_ref();
                assert!(
                    keyed.is_some_and(|keyed| self.keys.contains(&keyed.key)),
                    "a key was repeated that was never charged: {charge:?}"
                );
            }
            Charged::Mismatch => panic!("every key comes with one body: {charge:?}"),
            _ => {}
        }
    }

    /// At the end: a node has everything that was acknowledged.
    pub fn has_all(&self, node: usize, last: u64) {
        assert!(
            last >= self.acknowledged,
            "node {node} ends at {last}, and {} was acknowledged",
            self.acknowledged
        );
    }
}
