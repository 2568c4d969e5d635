//! This region's steps over its reservations; what a step is, is in [`crate::machine::strict`].

use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Ticket;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::machine::strict;
use crate::region::state::Region;

pub use crate::machine::strict::Parts;
pub use crate::machine::strict::Stepped;
pub use crate::machine::strict::Strict;
pub use crate::machine::strict::Want;
pub use crate::machine::strict::Words;
pub use crate::machine::strict::account;
pub use crate::machine::strict::held;
pub use crate::machine::strict::is_strict;
pub use crate::machine::strict::last_words;
pub use crate::machine::strict::no_capacity;
pub use crate::machine::strict::parts;
pub use crate::machine::strict::seen;
pub use crate::machine::strict::unknown;
pub use crate::machine::strict::verdict_word;

impl Region {
    /// One atomic step over reservations and counters. `tickets` are those of the wants that have waited, by
    /// place among the wants. What the log decides is looked past: its time comes later.
    pub fn step(
        &self,
        request: &Request<'_>,
        parts: &Parts<'_>,
        tickets: &[Option<Ticket>],
    ) -> Stepped {
        if self.clock.is_manual() {
            // A clock that was set counts from the next check on.
            self.reservations.follow(self.clock.now());
        }
        let exchange = self.reservations.exchange();
        let now = Now {
            boot: self.clock.boot(),
            exchange: &exchange,
        };
        let mut effects = Vec::new();
        let stepped = {
            let mut locked = self.reservations.lock(&parts.wants);
            let strict = Strict {
                request,
                parts,
                tickets,
            };
            let looked = |want: &Want<'_>, view| {
                let core = self.replica.core();
                let holder = self.reservations.holder();
                strict::looked(&core.machine, holder, request, want, view)
            };
            strict::step(
                strict,
                &now,
                &mut locked,
                &self.ledger,
                looked,
                &mut effects,
            )
        };
        self.carry_out(effects);
        stepped
    }

    /// Sends what is to be sent and wakes who is to be woken.
    pub fn carry_out(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(message) => self.outbox.to_leader(message),
                Effect::Wake(ticket, verdict) => self.reservations.wake(ticket, verdict),
            }
        }
    }

    /// Decides a check of limits that are not `sync`, if nothing has to be waited for. `None`: something
    /// has, and nothing has happened yet.
    pub fn strict_at_once(&self, request: &Request<'_>, parts: &Parts<'_>) -> Option<Outcome> {
        if !parts.led.is_empty() {
            return None;
        }
        match self.step(request, parts, &[]) {
            Stepped::Decided(outcome) => {
                self.debts.note(request, &outcome);
                Some(outcome)
            }
            Stepped::Short(_) => None,
        }
    }
}
