//! The machine as its entries drive it.

mod charges;
mod gives;
mod inherited;
mod ledger;
mod replay;

use serde_json::json;

use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::domain::decision::Decision;
use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::ledger::idempotency::Operation;
use crate::machine::Machine;
use crate::machine::charge::Charge;
use crate::machine::charge::ChargeItem;
use crate::machine::charge::Charged;
use crate::machine::charge::Keyed;
use crate::machine::charge::RequestNumber;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::command::Reply;

/// A machine, its entries so far, and the log time of the next one.
#[derive(Debug)]
pub struct Scene {
    pub machine: Machine,
    pub entries: Vec<Payload>,
    pub at_ms: i64,
    next_number: u64,
}

pub fn holder(region: &str) -> Holder {
    Holder {
        region: RegionName::new(region).expect("a name"),
        incarnation: 1,
    }
}

impl Scene {
    /// Two enrolled regions and one limit of each strict kind.
    pub fn new() -> Self {
        let mut scene = Self {
            machine: Machine::new(),
            entries: Vec::new(),
            at_ms: 1_000_000,
            next_number: 0,
        };
        scene.apply(Command::Found {
            cluster: 7,
            adopted: None,
        });
        scene.apply(Command::Enroll(holder("a")));
        scene.apply(Command::Enroll(holder("b")));
        let limit = |spec: serde_json::Value| {
            let mut spec = spec;
            spec["mode"] = json!("strict");
            spec
        };
        scene.change(json!({ "patch": { "tree": {
            "limits": {
                "fixed": limit(json!({ "algorithm": "fixed_window", "quota": 10, "window": "60s" })),
                "sliding": limit(json!({ "algorithm": "sliding_window", "quota": 10, "window": "60s" })),
                "log": limit(json!({ "algorithm": "sliding_log", "quota": 3, "window": "10s" })),
                "bucket": limit(json!({ "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "1s" })),
                "slots": limit(json!({ "algorithm": "concurrency", "quota": 2, "ttl": "5s" })),
            },
            "tenants": { "t": {} },
        } } }));
        scene
    }

    pub fn apply(&mut self, command: Command) -> Reply {
        let payload = Payload {
            log_time: Timestamp::from_unix_ms(self.at_ms),
            command,
        };
        let reply = self.machine.apply(&payload);
        self.entries.push(payload);
        reply
    }

    pub fn change(&mut self, change: serde_json::Value) -> Reply {
        let change: Change = serde_json::from_value(change).expect("a change");
        let entry = Entry {
            author: Author::Operator {
                token: "test".to_owned(),
            },
            expected_version: None,
            change,
        };
        let bytes = serde_json::to_vec(&entry).expect("JSON");
        self.apply(Command::Change(bytes))
    }

    pub fn epoch(&self, limit: &str) -> u64 {
        let view = self.machine.catalogue().view();
        let tenant = view.tenant("t").expect("the tenant");
        tenant
            .limit(limit)
            .expect("the limit")
            .at("", self.machine.log_time())
            .1
    }

    pub fn account(&self, limit: &str) -> Account {
        Account {
            tenant: "t".into(),
            limit: LimitName::new(limit).expect("a name"),
            key: "".into(),
            epoch: self.epoch(limit),
        }
    }

    pub fn window(&self) -> Window {
        Window::aligned(Timestamp::from_unix_ms(self.at_ms), Span::from_seconds(60))
    }

    /// The window of a limit that has one, as the leader finds it.
    pub fn window_of(&self, limit: &str) -> Option<Window> {
        match limit {
            "fixed" => Some(self.window()),
            "bucket" => {
                let account = self.account(limit);
                let mut open = self.machine.book().windows(&account);
                let new = || Window::endless(Timestamp::from_unix_ms(self.at_ms));
                Some(open.next().unwrap_or_else(new))
            }
            _ => None,
        }
    }

    pub fn request(&mut self, region: &str) -> RequestNumber {
        self.next_number += 1;
        RequestNumber {
            holder: holder(region),
            number: self.next_number,
            answered_below: 0,
        }
    }

    /// A check of `units` of each of `limits`.
    pub fn charge_of(&mut self, region: &str, limits: &[&str], units: u64) -> Charge {
        let items = limits.iter().map(|limit| ChargeItem {
            limit: LimitName::new(limit).expect("a name"),
            key: "".into(),
            epoch: self.epoch(limit),
            units,
            window: self.window_of(limit),
            told: None,
        });
        let items = items.collect();
        Charge {
            request: self.request(region),
            tenant: "t".into(),
            items,
            hold: None,
            keyed: None,
            local: Vec::new(),
            up_to: false,
        }
    }

    pub fn charge(&mut self, region: &str, limits: &[&str], units: u64) -> Charged {
        let charge = self.charge_of(region, limits, units);
        self.send(charge)
    }

    pub fn send(&mut self, charge: Charge) -> Charged {
        match self.apply(Command::Charge(charge)) {
            Reply::Charged(charged) => charged,
            reply => panic!("{reply:?}"),
        }
    }
}

pub fn keyed(key: &str, fingerprint: u128) -> Keyed {
    Keyed {
        operation: Operation::Check,
        key: key.to_owned(),
        fingerprint,
        retention: Span::from_seconds(3600),
    }
}

pub fn allowed(charged: &Charged) -> bool {
    match charged {
        Charged::Allowed(_) => true,
        Charged::Refused(items) => {
            assert!(items.iter().any(|item| item.decision == Decision::Deny));
            false
        }
        other => panic!("{other:?}"),
    }
}
