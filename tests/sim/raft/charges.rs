//! Callers: checks that regions decide, charges that the log decides, and changes of the catalogue. Those with
//! an `Idempotency-Key` try again elsewhere until they have an answer.

use std::sync::Arc;

use highwater::catalogue::change::Author;
use highwater::catalogue::change::Change;
use highwater::catalogue::change::Entry;
use highwater::domain::name::LimitName;
use highwater::domain::time::Span;
use highwater::ledger::idempotency::Operation;
use highwater::machine::charge::Charge;
use highwater::machine::charge::ChargeItem;
use highwater::machine::charge::Charged;
use highwater::machine::charge::Keyed;
use highwater::machine::command::Command;
use highwater::machine::command::Reply;
use serde_json::json;

use super::Sim;
use super::node::Life;
use super::region::Ended;
use super::region::Failed;
use crate::model::MS;
use crate::model::SECOND;

/// How often a caller with a key tries.
const TRIES_MAX: u64 = 8;
/// How long a region goes on asking the leader.
const PATIENCE: Span = Span::from_seconds(4);

/// A change as the log carries it.
pub fn change(change: serde_json::Value) -> Vec<u8> {
    let change: Change = serde_json::from_value(change).expect("a change");
    let author = Author::Operator {
        token: "simulated".to_owned(),
    };
    let entry = Entry {
        author,
        expected_version: None,
        change,
    };
    serde_json::to_vec(&entry).expect("JSON")
}

/// What a caller wants charged.
#[derive(Clone, Debug)]
struct Wanted {
    key: Option<String>,
    /// Counters of the windowed limit, with units.
    windowed: Vec<(usize, u64)>,
    /// Units of the rolling limit.
    rolling: u64,
}

impl Sim {
    /// Everything that callers ask of one region.
    pub async fn callers(self: Arc<Self>, node: usize) {
        let mean = 1e9 / self.setup.rate;
        loop {
            let pause = self.rng.lock().exponential(mean) as u64;
            self.sleep(pause).await;
            if self.now() >= self.ends {
                return;
            }
            let sim = Arc::clone(&self);
            let kind = self.rng.lock().unit();
            let counters = self.setup.counters as u64;
            let (first, units) = {
                let mut rng = self.rng.lock();
                (rng.between(0, counters) as usize, rng.between(1, 4))
            };
            let mut items = vec![(first, units)];
            if counters > 1 && self.rng.lock().chance(0.2) {
                items.push(((first + 1) % self.setup.counters, units));
            }
            if kind < self.setup.charges {
                let wanted = self.wanted(items);
                self.spawn(async move { sim.charge(node, wanted).await });
            } else {
                self.spawn(async move { sim.check(node, items).await });
            }
        }
    }

    fn wanted(&self, items: Vec<(usize, u64)>) -> Wanted {
        let mut rng = self.rng.lock();
        let key = rng.chance(0.7).then(|| format!("key-{:x}", rng.next()));
        let kind = rng.between(0, 3);
        Wanted {
            key,
            windowed: if kind == 1 { Vec::new() } else { items },
            rolling: if kind > 0 { rng.between(1, 3) } else { 0 },
        }
    }

    async fn check(self: Arc<Self>, node: usize, items: Vec<(usize, u64)>) {
        let Some(life) = self.life(node) else {
            return;
        };
        let ended = life.check(items).await;
        let word = match ended {
            Ended::Granted => "granted",
            Ended::Refused => "refused",
            Ended::OutOfReach => "out of reach",
            Ended::Unavailable => "unavailable",
        };
        self.audited(|audit| audit.count(word));
        self.traced(word.as_bytes(), &[node as u64]);
    }

    /// One caller's charge: with a key until it is answered, otherwise once.
    async fn charge(self: Arc<Self>, home: usize, wanted: Wanted) {
        let mut node = home;
        for _ in 0..TRIES_MAX {
            if let Some(life) = self.life(node) {
                let ended = life.charge(&wanted).await;
                if let Ok(is_final) = ended {
                    if is_final {
                        return;
                    }
                } else if wanted.key.is_none() {
                    self.audited(|audit| audit.count("charge unknown"));
                    return;
                }
            }
            let pause = self.rng.lock().between(20 * MS, SECOND);
            self.sleep(pause).await;
            if self.rng.lock().chance(0.5) {
                node = self.rng.lock().between(0, self.nodes.len() as u64) as usize;
            }
        }
        self.audited(|audit| audit.count("charge given up"));
    }

    /// Changes a quota or resets a counter, once.
    pub async fn operate(self: Arc<Self>, change: Vec<u8>) {
        let node = self.rng.lock().between(0, self.nodes.len() as u64) as usize;
        let Some(life) = self.life(node) else {
            return;
        };
        let said = life.propose(Command::Change(change), PATIENCE).await;
        if let Ok((index, _)) = said {
            self.audited(|audit| {
                audit.acknowledged(index);
                audit.count("changed");
            });
        }
    }
}

/// A patch of the quota of the windowed limit.
pub fn quota(quota: u64, window: u64) -> Vec<u8> {
    change(json!({ "patch": { "tree": { "limits": { "exports": {
        "mode": "strict",
        "algorithm": "fixed_window",
        "quota": quota,
        "window": format!("{}s", window / SECOND),
    } } } } }))
}

/// A reset of the windowed limit.
pub fn reset() -> Vec<u8> {
    change(json!({ "reset": { "tenant": "acme", "limit": "exports", "key": null } }))
}

impl Life {
    fn charge_of(&self, wanted: &Wanted) -> Option<Charge> {
        let mut items = Vec::new();
        for (counter, units) in &wanted.windowed {
            let (account, _, _) = self.terms(*counter)?;
            items.push(ChargeItem {
                limit: account.limit,
                key: account.key,
                epoch: account.epoch,
                units: *units,
                window: None,
                told: None,
            });
        }
        if wanted.rolling > 0 {
            let core = self.core.lock();
            let tenant = core.machine.catalogue().view().tenant("acme")?;
            let (_, epoch) = tenant.limit("rolling")?.at("", core.machine.log_time());
            items.push(ChargeItem {
                limit: LimitName::new("rolling").expect("a name"),
                key: "".into(),
                epoch,
                units: wanted.rolling,
                window: None,
                told: None,
            });
        }
        let keyed = wanted.key.as_ref().map(|key| Keyed {
            operation: Operation::Check,
            key: key.clone(),
            fingerprint: 1,
            retention: Span::from_seconds(3_600),
        });
        Some(Charge {
            request: self.request(),
            tenant: "acme".into(),
            items,
            hold: None,
            keyed,
            local: Vec::new(),
            up_to: false,
        })
    }

    /// One request of this process; tells whether its caller has a final answer.
    async fn charge(self: Arc<Self>, wanted: &Wanted) -> Result<bool, Failed> {
        let Some(charge) = self.charge_of(wanted) else {
            return Err(Failed::Unavailable);
        };
        let number = charge.request.number;
        let command = Command::Charge(charge.clone());
        let said = self.propose(command, PATIENCE).await;
        self.answered(number);
        if self.is_dead() {
            return Err(Failed::Unknown);
        }
        let (index, reply) = said?;
        let Reply::Charged(charged) = reply else {
            panic!("a charge is answered like one: {reply:?}");
        };
        let (word, is_final) = match &charged {
            Charged::Allowed(_) => ("charged", true),
            Charged::Repeated(_) => ("charge repeated", true),
            Charged::Refused(_) => ("charge refused", true),
            Charged::Mismatch => ("mismatch", true),
            Charged::Stale { .. } => ("charge stale", false),
            Charged::NotTaken(_) => ("charge not taken", false),
        };
        let sim = &self.sim;
        sim.audited(|audit| {
            audit.acknowledged(index);
            audit.acknowledged_charge(&charge, &charged);
            audit.count(word);
        });
        sim.traced(word.as_bytes(), &[self.node as u64, index]);
        Ok(is_final)
    }
}
