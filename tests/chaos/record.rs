//! What callers were told, kept for the audit.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::cluster::Answer;

/// What one limit said in an answer.
#[derive(Clone, Debug, Serialize)]
pub struct Said {
    /// The limit.
    pub limit: String,
    /// The key.
    pub key: String,
    /// Units asked.
    pub cost: u64,
    /// The limit's epoch.
    pub epoch: u64,
    /// The window, if the limit has one.
    pub window_start_ms: Option<i64>,
    /// The amount as the region knew it.
    pub quota: u64,
    /// Who decided.
    pub decided_by: String,
    /// Whether the failure policy decided.
    pub degraded: bool,
    /// Whether this limit said yes.
    pub allowed: bool,
    /// Why not.
    pub reason: String,
}

/// A call and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// The region that was asked last.
    pub region: &'static str,
    /// Whose limits.
    pub tenant: &'static str,
    /// When the first try was sent.
    pub sent: i64,
    /// When the answer came, or nobody waited any more.
    pub heard: i64,
    /// Of the answer; 0: none came.
    pub status: u16,
    /// The answer's `code`, or what the first limit that refused said.
    pub reason: String,
    /// The `Idempotency-Key`.
    pub key: Option<String>,
    /// Calls until there was an answer.
    pub tries: u32,
    /// Whether a hold was asked for.
    pub is_hold: bool,
    /// What each limit said.
    pub said: Vec<Said>,
}

/// A lease of a concurrency limit that a caller was granted.
#[derive(Clone, Debug, Serialize)]
pub struct Lease {
    /// Whose.
    pub tenant: &'static str,
    /// The key.
    pub key: String,
    /// The epoch.
    pub epoch: u64,
    /// It is surely held from here,
    pub from: i64,
    /// until here.
    pub until: i64,
}

/// Units that were given back, or may have been.
#[derive(Clone, Debug, Serialize)]
pub struct Given {
    /// Whose.
    pub tenant: &'static str,
    /// Of which limit.
    pub limit: &'static str,
    /// Of which key.
    pub key: String,
    /// The window that they went to: epoch and start; none: whichever ran.
    pub window: Option<(u64, i64)>,
    /// At most so many.
    pub most: u64,
    /// At least so many.
    pub least: u64,
    /// When it was asked for.
    pub sent: i64,
    /// When it was answered; the end of the run when it was not.
    pub heard: i64,
}

/// A reset of one key: limit, tenant, key, when it was sent and when it was answered.
pub type Reset = (&'static str, &'static str, String, i64, i64);

/// All of it.
#[derive(Debug, Default)]
pub struct Record {
    told: Mutex<Vec<Told>>,
    leases: Mutex<Vec<Lease>>,
    given: Mutex<Vec<Given>>,
    /// Faults by kind.
    pub faults: Mutex<BTreeMap<&'static str, u32>>,
    /// Final answers to refunds and settles, by status and reason.
    pub given_answers: Mutex<BTreeMap<String, u32>>,
    /// What happened when, for whoever looks for the cause of a violation.
    pub events: Mutex<Vec<String>>,
    /// Resets.
    pub resets: Mutex<Vec<Reset>>,
}

impl Record {
    /// Keeps a call.
    pub fn tell(&self, told: Told) {
        self.told.lock().push(told);
    }

    /// Keeps a lease.
    pub fn lease(&self, lease: Lease) {
        self.leases.lock().push(lease);
    }

    /// Keeps units that were given back.
    pub fn give(&self, given: Given) {
        self.given.lock().push(given);
    }

    /// Notes an event.
    pub fn event(&self, at: i64, what: &str) {
        self.events.lock().push(format!("{at} {what}"));
    }

    /// Counts the answer to a refund or settle; none: it was given up.
    pub fn answered(&self, what: &str, answer: Option<&Answer>) {
        let name = answer.map_or_else(
            || format!("{what} given up"),
            |answer| format!("{what} {} {}", answer.status, reason(answer)),
        );
        let mut answers = self.given_answers.lock();
        *answers.entry(name.trim().to_owned()).or_default() += 1;
    }

    /// Counts a fault.
    pub fn fault(&self, kind: &'static str) {
        *self.faults.lock().entry(kind).or_default() += 1;
    }

    /// Calls so far.
    pub fn told(&self) -> Vec<Told> {
        self.told.lock().clone()
    }

    /// Leases so far.
    pub fn leases(&self) -> Vec<Lease> {
        self.leases.lock().clone()
    }

    /// Units given back so far.
    pub fn given(&self) -> Vec<Given> {
        self.given.lock().clone()
    }

    /// Calls so far, and how many were answered 200, 429 and otherwise.
    pub fn progress(&self) -> [usize; 4] {
        let told = self.told.lock();
        let count = |status: u16| told.iter().filter(|told| told.status == status).count();
        let (yes, no) = (count(200), count(429));
        [told.len(), yes, no, told.len() - yes - no]
    }
}

/// What the limits said in an answer to a check or hold of `costs` by limit and key.
pub fn said(answer: &Answer, costs: &[(&str, &str, u64)]) -> Vec<Said> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let results = answer.body["results"].as_array();
    let results = results.map(Vec::as_slice).unwrap_or_default();
    results
        .iter()
        .map(|result| {
            let (limit, key) = (text(&result["limit"]), text(&result["key"]));
            let asked = costs
                .iter()
                .find(|(name, of, _)| *name == limit && *of == key);
            Said {
                cost: asked.map_or(0, |(_, _, cost)| *cost),
                epoch: result["epoch"].as_u64().unwrap_or(0),
                window_start_ms: result["window_start_ms"].as_i64(),
                quota: result["quota"].as_u64().unwrap_or(0),
                decided_by: text(&result["decided_by"]),
                degraded: result["degraded"] == true,
                allowed: result["decision"] == "allow",
                reason: text(&result["reason"]),
                limit,
                key,
            }
        })
        .collect()
}

/// Why an answer is not a yes.
pub fn reason(answer: &Answer) -> String {
    if let Some(code) = answer.body["code"].as_str() {
        return code.to_owned();
    }
    let results = answer.body["results"].as_array();
    results
        .into_iter()
        .flatten()
        .find_map(|result| result["reason"].as_str())
        .unwrap_or_default()
        .to_owned()
}
