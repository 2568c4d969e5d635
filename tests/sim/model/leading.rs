//! A leader region, or one that still thinks so.

use std::collections::BTreeMap;

use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::domain::time::Window;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::account::Quota;
use highwater::grants::account::Totals;
use highwater::grants::book::Charge;
use highwater::grants::leader::Action;
use highwater::grants::leader::Leader;
use highwater::grants::leader::Now;
use highwater::grants::leader::Part;
use highwater::grants::log_time::LogTime;
use highwater::grants::message::LogStamp;
use highwater::grants::message::Refused;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::grants::message::Why;

use super::Event;
use super::MS;
use super::Message;
use super::World;
use super::group::Pending;
use super::index;
use super::name;
use super::replica::Entry;
use super::replica::Outcome;
use super::replica::Refund;
use super::replica::Replica;

/// A leader may renew leases for so long after it has lost the lead, before it notices.
const RENEWS_AFTER_LOSS: u64 = 2_500 * MS;

/// A region that leads.
#[derive(Debug)]
pub struct Leading {
    pub serial: u64,
    pub term: u64,
    pub region: usize,
    pub clock: LogTime,
    /// There from the first own entry on.
    pub leader: Option<Leader>,
    /// What it knows once it is deposed; before that it knows the truth.
    pub replica: Option<Box<Replica>>,
    /// When it lost the lead.
    pub lost_at: Option<u64>,
    /// Keyed checks by the leader's ticket.
    pub keyed: BTreeMap<u64, Keyed>,
    pub enrolling: Vec<Holder>,
    pub tick_at: u64,
    pub tickets: u64,
}

/// A check with an idempotency key.
#[derive(Clone, Debug)]
pub struct Keyed {
    pub key: u64,
    pub account: Account,
    /// An instant of the window that is meant.
    pub at: Option<Timestamp>,
    pub holder: Holder,
    pub totals: Totals,
    pub units: u64,
}

impl Leading {
    pub fn replica<'a>(&'a self, truth: &'a Replica) -> &'a Replica {
        self.replica.as_deref().unwrap_or(truth)
    }
}

impl World {
    fn leading_at(&self, region: usize) -> Option<u64> {
        self.leadings
            .values()
            .filter(|leading| leading.region == region && leading.leader.is_some())
            .map(|leading| leading.serial)
            .max()
    }

    /// Lets a leader act and carries its actions out.
    fn lead<T>(
        &mut self,
        serial: u64,
        act: impl FnOnce(&mut Leader, Now, &Replica, &mut Vec<Action>) -> T,
    ) -> Option<T> {
        let leading = self.leadings.get_mut(&serial)?;
        let reading = self.regions[leading.region].clock.reading(self.at);
        let now = Now {
            boot: reading.boot,
            log: leading.clock.read(reading),
        };
        let replica = leading.replica.as_deref().unwrap_or(&self.group.truth);
        let leader = leading.leader.as_mut()?;
        let lost_at = leading.lost_at;
        leader.renew_leases(lost_at.is_none_or(|lost| self.at - lost <= RENEWS_AFTER_LOSS));
        let mut out = Vec::new();
        let done = act(leader, now, replica, &mut out);
        for action in out {
            self.carry_out(serial, action);
        }
        self.plan_leader_tick(serial);
        Some(done)
    }

    fn plan_leader_tick(&mut self, serial: u64) {
        let Some(leading) = self.leadings.get_mut(&serial) else {
            return;
        };
        let wake = leading.leader.as_ref().and_then(Leader::next_wake);
        let Some(wake) = wake else { return };
        let at = self.regions[leading.region].clock.at(wake).max(self.at);
        if at < leading.tick_at {
            leading.tick_at = at;
            self.schedule(at, Event::TickLeader(serial));
        }
    }

    pub fn tick_leader(&mut self, serial: u64) {
        if let Some(leading) = self.leadings.get_mut(&serial) {
            if leading.tick_at > self.at {
                return;
            }
            leading.tick_at = u64::MAX;
        }
        self.lead(serial, |leader, now, replica, out| {
            leader.tick(now, &replica.book, out);
        });
    }

    fn carry_out(&mut self, serial: u64, action: Action) {
        let Some(leading) = self.leadings.get(&serial) else {
            return;
        };
        let region = leading.region;
        match action {
            Action::Propose { ticket, transfer } => {
                // Nobody knows whether some entries were appended.
                let is_lost = self.setup.faults.appends_fail && self.rng.chance(0.03);
                if !is_lost || self.rng.chance(0.5) {
                    self.append(serial, ticket, Entry::Transfer(transfer));
                }
                if is_lost {
                    self.audit.fault("append unknown");
                    self.lead(serial, |leader, now, replica, _| {
                        leader.failed(now, &replica.book, ticket);
                    });
                }
            }
            Action::Lapse(holder) => self.end_lease(serial, &holder),
            Action::Tell(holder, message) => {
                self.audit_told(serial, &message);
                let to = index(&holder.region);
                self.send(region, to, &Message::ToRegion(holder, message));
            }
            Action::Charge { ticket } => {
                let Some(keyed) = self.leadings[&serial].keyed.get(&ticket).cloned() else {
                    return;
                };
                if let Some((charge, _)) = self.charge_of(serial, &keyed) {
                    let key = keyed.key;
                    self.append(serial, ticket, Entry::Keyed { key, charge });
                }
            }
            Action::RefuseCharge { ticket, .. } => {
                let leading = self.leadings.get_mut(&serial);
                let keyed = leading.and_then(|leading| leading.keyed.remove(&ticket));
                if let Some(keyed) = keyed {
                    self.answer_keyed(region, &keyed, false);
                }
            }
        }
    }

    fn end_lease(&mut self, serial: u64, holder: &Holder) {
        let is_lost = self.setup.faults.appends_fail && self.rng.chance(0.1);
        if !is_lost || self.rng.chance(0.5) {
            self.append(serial, 0, Entry::Lapse(holder.clone()));
        }
        if is_lost || self.group.leader != Some(serial) {
            self.lead(serial, |leader, _, _, _| leader.lapsed(holder, false));
        }
    }

    /// S4 and S6, as far as messages show it.
    fn audit_told(&self, serial: u64, message: &ToRegion) {
        let ToRegion::Answer(answer) = message else {
            return;
        };
        let replica = self.leadings[&serial].replica(&self.group.truth);
        let tally = replica
            .book
            .tally(&answer.account, answer.window.id, &answer.holder);
        assert!(
            answer.granted <= tally.granted,
            "S6: told before it was applied: {answer:?}"
        );
        if let Some(dry) = answer.dry {
            assert!(dry.lasts <= Span::from_seconds(1), "S4: dry for too long");
        }
    }

    fn window_of(&mut self, serial: u64, account: &Account, at: Option<Timestamp>) -> Window {
        let replica = self.leadings[&serial].replica(&self.group.truth);
        if let Some(quota @ Quota::Bucket(_)) = replica.quota(account) {
            let window = self.lead(serial, |leader, now, replica, _| {
                leader.bucket_window(now, &replica.book, account, quota)
            });
            return window.expect("it leads");
        }
        let leading = &self.leadings[&serial];
        let reading = self.clock(leading.region).reading(self.at);
        let log = leading.clock.clone().read(reading);
        Window::aligned(
            at.unwrap_or(log),
            leading.replica(&self.group.truth).catalogue.window,
        )
    }

    pub fn leader_hears(&mut self, to: usize, from: usize, message: &ToLeader) {
        let Some(serial) = self.leading_at(to) else {
            return;
        };
        match message {
            ToLeader::Ask(ask) => {
                let window = self.window_of(serial, &ask.account, ask.at);
                let leading = &self.leadings[&serial];
                let replica = leading.replica(&self.group.truth);
                let Some(quota) = replica.quota(&ask.account) else {
                    let version = replica.catalogue.version;
                    let stamp = LogStamp {
                        lease: None,
                        term: leading.term,
                        log_time: self.log_time_of(leading.term),
                        echo: Some(ask.sent_boot),
                    };
                    let refused = ToRegion::Refused(Refused {
                        holder: ask.holder.clone(),
                        account: ask.account.clone(),
                        why: Why::Changed { version },
                        stamp,
                    });
                    let message = Message::ToRegion(ask.holder.clone(), refused);
                    self.send(to, from, &message);
                    return;
                };
                self.lead(serial, |leader, now, replica, out| {
                    leader.ask(now, &replica.book, ask, window, quota, out);
                });
            }
            ToLeader::Report(report) => {
                self.lead(serial, |leader, now, replica, out| {
                    leader.report(now, &replica.book, report, out);
                });
            }
            ToLeader::Pulse(pulse) => {
                let half = self.net.round_trip(to, from) / 2;
                let boot = self.clock(to).boot(self.at).minus(Span::from_nanos(half));
                if let Some(leading) = self.leadings.get_mut(&serial) {
                    leading.clock.tell(boot, &name(from), pulse.region_time);
                }
                self.lead(serial, |leader, now, replica, out| {
                    leader.pulse(now, &replica.book, pulse, out);
                });
            }
        }
    }

    /// An entry was applied: the leader hears of its own, and everybody of what changed for them.
    pub fn applied(&mut self, serial: u64, pending: &Pending, outcome: &Outcome) {
        let Some(region) = self.leadings.get(&serial).map(|leading| leading.region) else {
            return;
        };
        match (&pending.entry, outcome) {
            (Entry::Transfer(_), Outcome::Transferred(outcome)) if pending.serial == serial => {
                self.lead(serial, |leader, now, replica, out| {
                    leader.applied(now, &replica.book, pending.ticket, outcome, out);
                });
            }
            (Entry::Enroll(holder), _) => {
                if let Some(leading) = self.leadings.get_mut(&serial) {
                    leading.enrolling.retain(|enrolling| enrolling != holder);
                }
                let to = index(&holder.region);
                self.send(region, to, &Message::Enrolled(holder.clone()));
            }
            (Entry::Quota { counter, quota }, _) => {
                let account = self.group.truth.catalogue.account(*counter);
                self.lead(serial, |leader, now, replica, out| {
                    leader.set_quota(now, &replica.book, &account, *quota, out);
                });
                self.announce(serial);
            }
            (Entry::Lapse(holder), _) => {
                let is_own = pending.serial == serial;
                self.lead(serial, |leader, _, _, _| leader.lapsed(holder, is_own));
            }
            (Entry::Reset { .. }, _) => self.announce(serial),
            (Entry::Keyed { .. }, Outcome::Keyed { is_charged, .. })
                if pending.serial == serial =>
            {
                let leading = self.leadings.get_mut(&serial);
                let keyed = leading.and_then(|leading| leading.keyed.remove(&pending.ticket));
                let counts = *is_charged;
                self.lead(serial, |leader, now, replica, out| {
                    leader.charged(now, &replica.book, pending.ticket, counts, out);
                });
                if let Some(keyed) = keyed {
                    self.answer_keyed(region, &keyed, *is_charged);
                }
            }
            _ => {}
        }
    }

    /// Says who leads, for as long as it does.
    pub fn beat(&mut self, serial: u64) {
        if self.leadings.contains_key(&serial) {
            self.announce(serial);
            self.lead(serial, |leader, now, replica, out| {
                leader.end_leases(now, &replica.book, out);
            });
            self.schedule(self.at + 200 * MS, Event::Beat(serial));
        }
    }

    /// Says who leads and what the catalogue is.
    pub fn announce(&mut self, serial: u64) {
        let Some(leading) = self.leadings.get(&serial) else {
            return;
        };
        let beat = Message::Beat {
            term: leading.term,
            leader: leading.region,
            catalogue: leading.replica(&self.group.truth).catalogue.clone(),
        };
        let from = leading.region;
        for to in 0..self.regions.len() {
            self.send(from, to, &beat);
        }
    }

    pub fn enroll(&mut self, to: usize, holder: &Holder) {
        let Some(serial) = self.leading_at(to) else {
            return;
        };
        let Some(leading) = self.leadings.get_mut(&serial) else {
            return;
        };
        let book = &leading.replica.as_deref().unwrap_or(&self.group.truth).book;
        if book.is_newest(holder) {
            let to = index(&holder.region);
            let from = leading.region;
            self.send(from, to, &Message::Enrolled(holder.clone()));
        } else if !leading.enrolling.contains(holder) {
            leading.enrolling.push(holder.clone());
            self.append(serial, 0, Entry::Enroll(holder.clone()));
        }
    }

    // Keyed checks and refunds.

    fn charge_of(&mut self, serial: u64, keyed: &Keyed) -> Option<(Charge, Quota)> {
        let window = self.window_of(serial, &keyed.account, keyed.at);
        let is_told = !window.is_endless() || keyed.at == Some(window.start);
        let replica = self.leadings[&serial].replica(&self.group.truth);
        let quota = replica.quota(&keyed.account)?;
        let charge = Charge {
            account: keyed.account.clone(),
            window,
            holder: keyed.holder.clone(),
            totals: if is_told {
                keyed.totals
            } else {
                Totals::default()
            },
            units: keyed.units,
        };
        Some((charge, quota))
    }

    pub fn keyed_at_leader(&mut self, to: usize, keyed: &Keyed) {
        let Some(serial) = self.leading_at(to) else {
            return;
        };
        let replica = self.leadings[&serial].replica(&self.group.truth);
        if let Some(is_charged) = replica.key(keyed.key) {
            self.answer_keyed(to, keyed, is_charged);
            return;
        }
        let runs = self.leadings[&serial]
            .keyed
            .values()
            .any(|running| running.key == keyed.key);
        let Some((charge, quota)) = self.charge_of(serial, keyed) else {
            return;
        };
        if runs {
            return;
        }
        let Some(leading) = self.leadings.get_mut(&serial) else {
            return;
        };
        leading.tickets += 1;
        let ticket = leading.tickets;
        leading.keyed.insert(ticket, keyed.clone());
        self.lead(serial, |leader, now, replica, out| {
            let parts = vec![Part { charge, quota }];
            leader.charge(now, &replica.book, ticket, parts, out);
        });
    }

    fn answer_keyed(&mut self, from: usize, keyed: &Keyed, is_charged: bool) {
        let answer = Message::KeyedAnswer {
            holder: keyed.holder.clone(),
            key: keyed.key,
            is_charged,
        };
        self.send(from, index(&keyed.holder.region), &answer);
    }

    pub fn refund_at_leader(&mut self, to: usize, refund: Refund) {
        if let Some(serial) = self.leading_at(to) {
            self.append(serial, 0, Entry::Refund(refund));
        }
    }
}
