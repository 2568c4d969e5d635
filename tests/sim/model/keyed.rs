//! Checks with an idempotency key, and refunds.

use highwater::grants::account::Holder;
use highwater::grants::account::Totals;

use super::Message;
use super::World;
use super::index;
use super::region::KeyedCheck;

impl World {
    pub fn begin_keyed(&mut self, holder: &Holder, counter: usize, units: u64) {
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(catalogue) = &process.catalogue else {
            return;
        };
        let account = catalogue.account(counter);
        let key = self.rng.next();
        self.audit.keyed += 1;
        let at = self.at;
        if let Some(process) = self.process(holder) {
            process.keyed.insert(key, KeyedCheck { came: at });
        }
        let taken = self.seat(holder, &account, |reservation, now, _| {
            let taken = reservation.take_for_charge(units, now);
            (taken, reservation.view(now).map(|view| view.window.start))
        });
        let (totals, window) = match taken {
            Some((Some((_, totals)), start)) => (totals, start),
            _ => (Totals::default(), None),
        };
        let keyed = super::leading::Keyed {
            key,
            account,
            at: window,
            holder: holder.clone(),
            totals,
            units,
        };
        let from = index(&holder.region);
        // The same key again, in case that the first got lost.
        let leader = self.process(holder).and_then(|process| process.leader);
        if let Some((_, leader)) = leader {
            let message = Message::Keyed(keyed);
            self.send(from, leader, &message);
            if self.rng.chance(0.3) {
                self.send(from, leader, &message);
            }
        }
    }

    pub fn keyed_answered(&mut self, holder: &Holder, key: u64, is_charged: bool) {
        let at = self.at;
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(keyed) = process.keyed.remove(&key) else {
            return;
        };
        self.audit.checks += 1;
        self.audit.granted += u64::from(is_charged);
        self.audit.waited(at - keyed.came, is_charged);
    }

    /// Gives a unit back in the running window, twice by mistake.
    pub fn begin_refund(&mut self, holder: &Holder, counter: usize) {
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(catalogue) = &process.catalogue else {
            return;
        };
        let account = catalogue.account(counter);
        let taken = self.seat(holder, &account, |reservation, now, _| {
            reservation.take_for_charge(0, now)
        });
        let Some(Some((window, totals))) = taken else {
            return;
        };
        let refund = super::replica::Refund {
            id: self.rng.next(),
            account,
            window,
            holder: holder.clone(),
            totals,
            units: self.rng.between(1, 4),
        };
        let from = index(&holder.region);
        let leader = self.process(holder).and_then(|process| process.leader);
        if let Some((_, leader)) = leader {
            for _ in 0..2 {
                self.send(from, leader, &Message::Refund(refund.clone()));
            }
        }
    }
}
