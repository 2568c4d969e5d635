//! What comes back by entries that are not the leader's own, and what is gathered before an epoch ends.

use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::book::Book;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Place;
use crate::grants::leader::desk::Plan;

impl Leader {
    /// Units went back to an account by an entry that is not the leader's own: those who wait get them, and
    /// those who were told that there are none are told otherwise.
    pub fn credited(&mut self, now: Now, book: &Book, account: &Account, out: &mut Vec<Action>) {
        for place in self.places_of(account) {
            self.serve(now, book, &place, out);
            self.unsay_dry(now, book, &place, out);
            self.sleep(now, book, &place);
        }
    }

    /// Before `account` ends: brings back what regions hold of it, and puts into the book what they have told,
    /// because all that the book does not know is kept back from the next epoch. `begins`: the first call. Whether
    /// there is nothing more to wait for.
    pub fn gather(
        &mut self,
        now: Now,
        book: &Book,
        account: &Account,
        begins: bool,
        out: &mut Vec<Action>,
    ) -> bool {
        if begins {
            for window in book.windows(account) {
                if let Some((window, quota)) = book.window(account, window.id) {
                    // A new leader has no desk for a window until somebody asks.
                    self.place(now, account, window, quota).ok();
                }
            }
        }
        let mut is_done = true;
        for place in self.places_of(account) {
            let runs = begins && self.start_round(now, book, &place, out);
            let Some(desk) = self.desks.get(&place).filter(|desk| !desk.has_ended(now)) else {
                continue;
            };
            let is_told = desk.told_since.is_none();
            if runs || desk.round.is_some() || !desk.entries.is_empty() {
                is_done = false;
            } else if !is_told && book.window(account, place.window).is_some() {
                self.propose(&place, Vec::new(), out);
                is_done = false;
            }
            self.sleep(now, book, &place);
        }
        is_done
    }

    fn places_of(&self, account: &Account) -> Vec<Place> {
        let from = Place {
            account: account.clone(),
            window: WindowId(i64::MIN),
        };
        self.desks
            .range(from..)
            .map(|(place, _)| place)
            .take_while(|place| place.account == *account)
            .cloned()
            .collect()
    }

    /// Tells those who believe that there are no units that there are.
    pub(super) fn unsay_dry(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let is_free = Plan::of(desk, &place.account, book, now).is_ok_and(|plan| plan.units() > 0);
        if !is_free {
            return;
        }
        let believers: Vec<Holder> = desk
            .told
            .iter()
            .filter(|(holder, told)| {
                told.dry_until > now.boot
                    && book.is_newest(holder)
                    && desk.in_flight(holder).is_none()
            })
            .map(|(holder, _)| holder.clone())
            .collect();
        for holder in believers {
            self.answer(now, book, place, &holder, None, out);
        }
    }
}
