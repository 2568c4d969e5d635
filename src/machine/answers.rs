//! What was answered before: by request of a process, and by `Idempotency-Key`.
//!
//! Requests are forgotten when their process says that it has the answer, or when a newer process of its
//! region enrolls. Below which number they are forgotten stays known: a copy of such a request that comes late
//! must not count again. Keys are forgotten after their retention in log time, and per tenant there are at most
//! [`KEYS_PER_TENANT_MAX`].

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;

use crate::domain::time::Timestamp;
use crate::grants::account::Holder;
use crate::ledger::idempotency::Operation;
use crate::machine::charge::Answered;
use crate::machine::charge::Charged;
use crate::machine::charge::Keyed;
use crate::machine::charge::RequestNumber;
use crate::machine::give::Given;

/// Keys of one tenant that are remembered at once.
pub const KEYS_PER_TENANT_MAX: u32 = 100_000;
/// Requests of one process whose answers wait to be fetched.
const REQUESTS_MAX: usize = 10_000;

/// The answer to a copy of a request that comes when nobody asks any more.
pub const FORGOTTEN: &str = "the request was answered before";

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Done {
    /// A check.
    Charged(Charged),
    /// Units that went back.
    Given(Given),
}

type KeyName = (CompactString, Operation, String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    fingerprint: u128,
    done: KeptDone,
    expires_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum KeptDone {
    Charged(Answered),
    Given(u64),
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Before {
    /// It is new.
    Nothing,
    /// It was used with another body.
    Mismatch,
    /// A check was allowed under it.
    Charged(Answered),
    /// So many units were given back under it.
    Given(u64),
    /// It is new, and there is no room for one more.
    Full,
}

/// The requests of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Asked {
    /// All below were answered, and are forgotten.
    forgotten_below: u64,
    done: BTreeMap<u64, Done>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    requests: BTreeMap<Holder, Asked>,
    keys: BTreeMap<KeyName, Kept>,
    by_end: BTreeSet<(Timestamp, KeyName)>,
    by_tenant: BTreeMap<CompactString, u32>,
}

impl Asked {
    fn forget_below(&mut self, number: u64) {
        if number > self.forgotten_below {
            self.forgotten_below = number;
            self.done = self.done.split_off(&number);
        }
    }
}

impl Remembered {
    /// What came of a request that was applied before.
    pub fn request(&self, request: &RequestNumber) -> Option<&Done> {
        let asked = self.requests.get(&request.holder)?;
        asked.done.get(&request.number)
    }

    /// Whether a request was answered so long ago that what came of it is forgotten.
    pub fn is_forgotten(&self, request: &RequestNumber) -> bool {
        let asked = self.requests.get(&request.holder);
        asked.is_some_and(|asked| request.number < asked.forgotten_below)
    }

    /// Remembers what came of a request, unless it is a forgotten one's copy.
    pub fn note_request(&mut self, request: &RequestNumber, done: Done) {
        if self.is_forgotten(request) {
            return;
        }
        let asked = self.requests.entry(request.holder.clone()).or_default();
        asked.forget_below(request.answered_below);
        asked.done.insert(request.number, done);
        while asked.done.len() > REQUESTS_MAX
            && let Some((oldest, _)) = asked.done.pop_first()
        {
            asked.forget_below(oldest + 1);
        }
    }

    /// A process begins: what its region's earlier ones asked is asked by nobody any more.
    pub fn enroll(&mut self, holder: &Holder) {
        self.requests
            .retain(|known, _| known.region != holder.region || known == holder);
    }

    /// What is known of a key.
    pub fn before(&self, tenant: &str, keyed: &Keyed) -> Before {
        let name = (
            CompactString::new(tenant),
            keyed.operation,
            keyed.key.clone(),
        );
        match self.keys.get(&name) {
            Some(kept) if kept.fingerprint != keyed.fingerprint => Before::Mismatch,
            Some(kept) => match &kept.done {
                KeptDone::Charged(answered) => Before::Charged(answered.clone()),
                KeptDone::Given(units) => Before::Given(*units),
            },
            None if self
                .by_tenant
                .get(tenant)
                .is_some_and(|keys| *keys >= KEYS_PER_TENANT_MAX) =>
            {
                Before::Full
            }
            None => Before::Nothing,
        }
    }

    /// Remembers the answer to a check under a key.
    pub fn note_charged(&mut self, tenant: &str, keyed: &Keyed, done: Answered, now: Timestamp) {
        self.note(tenant, keyed, KeptDone::Charged(done), now);
    }

    /// Remembers how much was given back under a key.
    pub fn note_given(&mut self, tenant: &str, keyed: &Keyed, units: u64, now: Timestamp) {
        self.note(tenant, keyed, KeptDone::Given(units), now);
    }

    fn note(&mut self, tenant: &str, keyed: &Keyed, done: KeptDone, now: Timestamp) {
        let tenant = CompactString::new(tenant);
        let name = (tenant.clone(), keyed.operation, keyed.key.clone());
        let expires_at = now.plus(keyed.retention);
        let kept = Kept {
            fingerprint: keyed.fingerprint,
            done,
            expires_at,
        };
        if self.keys.insert(name.clone(), kept).is_none() {
            *self.by_tenant.entry(tenant).or_default() += 1;
        }
        self.by_end.insert((expires_at, name));
    }

    /// Forgets the keys whose time is over.
    pub fn forget(&mut self, now: Timestamp) {
        while let Some((end, _)) = self.by_end.first()
            && *end <= now
        {
            let Some((_, name)) = self.by_end.pop_first() else {
                return;
            };
            self.keys.remove(&name);
            if let Some(keys) = self.by_tenant.get_mut(&name.0) {
                *keys = keys.saturating_sub(1);
                if *keys == 0 {
                    self.by_tenant.remove(&name.0);
                }
            }
        }
    }

    /// Keys that are remembered.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
