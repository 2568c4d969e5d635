//! The window of a bucket: its name, and that the book comes to know it.

use crate::domain::time::Span;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Quota;
use crate::grants::book::Book;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Place;

/// A bucket that no entry has opened keeps its name this long.
const NAME_KEPT: Span = Span::from_seconds(10);

impl Leader {
    /// The window of a bucket: the one that the book knows, else the one that an entry on its way opens, else
    /// one that begins now.
    pub fn bucket_window(
        &mut self,
        now: Now,
        book: &Book,
        account: &Account,
        quota: impl Into<Quota>,
    ) -> Window {
        if let Some(open) = book.windows(account).find(Window::is_endless) {
            return open;
        }
        let from = Place {
            account: account.clone(),
            window: WindowId(i64::MIN),
        };
        let opening = self
            .desks
            .range(from..)
            .take_while(|(place, _)| place.account == *account)
            .map(|(_, desk)| desk)
            .filter(|desk| !desk.was_in_book && now.log.since(desk.window.start) <= NAME_KEPT)
            .map(|desk| desk.window)
            .filter(Window::is_endless)
            .last();
        opening.unwrap_or_else(|| {
            let window = Window::endless(now.log);
            // Without a desk the window is named anew at the next call.
            self.place(now, account, window, quota.into()).ok();
            window
        })
    }

    /// A bucket may begin without a free unit: a reset does not bring back what is still held of the epoch before.
    /// It earns nothing until an entry has opened it, so one is made though it grants nothing.
    pub(super) fn open_empty_bucket(&mut self, book: &Book, place: &Place, out: &mut Vec<Action>) {
        let is_unopened = self.desks.get(place).is_some_and(|desk| {
            desk.window.is_endless()
                && desk.entries.is_empty()
                && book.window(&place.account, place.window).is_none()
        });
        if is_unopened {
            self.propose(place, Vec::new(), out);
        }
    }
}
