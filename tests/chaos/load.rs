//! Callers: each asks one region after the other call is answered, like a gateway's connection.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use serde_json::json;

use crate::cluster::Answer;
use crate::cluster::Cluster;
use crate::limits::KEYS;
use crate::limits::Kind;
use crate::limits::LIMITS;
use crate::limits::Limit;
use crate::limits::TENANTS;
use crate::record;
use crate::record::Given;
use crate::record::Lease;
use crate::record::Record;
use crate::record::Told;

/// Between two calls of a caller.
const PAUSE_MS: std::ops::Range<u64> = 2..40;
/// Keyed calls are repeated for so long after the load ends.
const PATIENCE_MS: i64 = 40_000;
/// Leases last so long; two clocks may be apart by four seconds.
const LEASE_MS: i64 = 8_000;
const LEASE_SLACK_MS: i64 = 5_000;

/// What callers share.
pub struct Load {
    /// The regions.
    pub cluster: Arc<Cluster>,
    /// What they were told.
    pub record: Arc<Record>,
    /// The load ends.
    pub stopped: AtomicBool,
    /// Number of the next `Idempotency-Key`.
    pub keys: AtomicU64,
}

/// One caller.
struct Caller {
    load: Arc<Load>,
    region: usize,
    random: StdRng,
}

/// What one call is about.
struct Target {
    limit: &'static Limit,
    tenant: &'static str,
    key: String,
    cost: u64,
}

/// Starts `callers` callers of every region; they end when the load is stopped.
pub fn start(load: &Arc<Load>, callers: usize, seed: u64) -> Vec<tokio::task::JoinHandle<()>> {
    let regions = load.cluster.regions.len();
    (0..callers * regions)
        .map(|number| {
            let caller = Caller {
                load: Arc::clone(load),
                region: number % regions,
                random: StdRng::seed_from_u64(seed.wrapping_add(number as u64)),
            };
            tokio::spawn(caller.run())
        })
        .collect()
}

impl Caller {
    async fn run(mut self) {
        while !self.load.stopped.load(Ordering::Relaxed) {
            let target = self.target();
            let dice = self.random.random_range(0..100);
            match target.limit.kind {
                Kind::Concurrency => self.lease(target).await,
                Kind::Once => {
                    self.keyed(&target).await;
                    if dice < 10 {
                        self.refund(&target).await;
                    }
                }
                _ if target.limit.gives_back && dice < 20 => self.hold(target).await,
                _ if target.limit.gives_back && dice < 28 => self.refund(&target).await,
                _ if dice < 40 => {
                    self.keyed(&target).await;
                }
                _ if dice < 48 => self.several(target).await,
                _ => self.plain(&[target]).await,
            }
            let pause = self.random.random_range(PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    fn target(&mut self) -> Target {
        let all: u32 = LIMITS.iter().map(|limit| limit.weight).sum();
        let mut dice = self.random.random_range(0..all);
        let limit = LIMITS
            .iter()
            .find(|limit| {
                let is_it = dice < limit.weight;
                dice = dice.saturating_sub(limit.weight);
                is_it
            })
            .unwrap_or(&LIMITS[0]);
        self.target_of(limit)
    }

    fn target_of(&mut self, limit: &'static Limit) -> Target {
        let tenant = TENANTS[self.random.random_range(0..TENANTS.len())];
        // Some keys are asked for more than others.
        let key = self
            .random
            .random_range(0..KEYS)
            .min(self.random.random_range(0..KEYS));
        Target {
            limit,
            tenant,
            key: format!("user {key}"),
            cost: self.random.random_range(1..=limit.cost_max),
        }
    }

    fn now(&self) -> i64 {
        self.load.cluster.clock.now()
    }

    fn any_region(&mut self) -> usize {
        self.random.random_range(0..self.load.cluster.regions.len())
    }

    async fn post(&self, path: &str, key: Option<&str>, body: &Value) -> Result<Answer, String> {
        self.load.cluster.regions[self.region]
            .post(path, key, body)
            .await
    }

    /// A check without a key: an answer that does not come is not asked for again.
    async fn plain(&mut self, targets: &[Target]) {
        let checks: Vec<Value> = targets
            .iter()
            .map(|target| json!({ "limit": target.limit.name, "key": target.key, "cost": target.cost }))
            .collect();
        let body = json!({ "tenant": targets[0].tenant, "checks": checks });
        let sent = self.now();
        let answer = self.post("/v1/check", None, &body).await;
        self.note(targets, sent, answer.ok().as_ref(), None, 1, false);
    }

    /// A check of several limits of one tenant.
    async fn several(&mut self, first: Target) {
        let mut targets = vec![first];
        for _ in 0..2 {
            let mut other = self.target();
            other.tenant = targets[0].tenant;
            let fits = !matches!(other.limit.kind, Kind::Once | Kind::Concurrency)
                && targets
                    .iter()
                    .all(|target| target.limit.name != other.limit.name);
            if fits {
                targets.push(other);
            }
        }
        self.plain(&targets).await;
    }

    fn note(
        &self,
        targets: &[Target],
        sent: i64,
        answer: Option<&Answer>,
        key: Option<&str>,
        tries: u32,
        is_hold: bool,
    ) {
        let costs: Vec<(&str, &str, u64)> = targets
            .iter()
            .map(|target| (target.limit.name, target.key.as_str(), target.cost))
            .collect();
        let mut said = answer
            .map(|answer| record::said(answer, &costs))
            .unwrap_or_default();
        if said.is_empty() {
            let unsaid = |(limit, key, cost): &(&str, &str, u64)| record::Said {
                limit: (*limit).to_owned(),
                key: (*key).to_owned(),
                cost: *cost,
                epoch: 0,
                window_start_ms: None,
                quota: 0,
                decided_by: String::new(),
                degraded: false,
                allowed: false,
                reason: String::new(),
            };
            said = costs.iter().map(unsaid).collect();
        }
        self.load.record.tell(Told {
            region: self.load.cluster.regions[self.region].name,
            tenant: targets[0].tenant,
            sent,
            heard: self.now(),
            status: answer.map_or(0, |answer| answer.status),
            reason: answer.map_or_else(|| "no answer".to_owned(), record::reason),
            key: key.map(str::to_owned),
            tries,
            is_hold,
            said,
        });
    }

    fn new_key(&self) -> String {
        format!("k{}", self.load.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends the same keyed request until it is answered for good, in other regions too. `None`: it never was.
    async fn until_answered(
        &mut self,
        path: &str,
        key: &str,
        body: &Value,
        may_move: bool,
    ) -> (Option<Answer>, u32) {
        let home = self.region;
        let mut last = None;
        let mut tries = 0;
        let mut deadline = i64::MAX;
        while self.now() < deadline {
            if deadline == i64::MAX && self.load.stopped.load(Ordering::Relaxed) {
                deadline = self.now() + PATIENCE_MS;
            }
            tries += 1;
            let answer = self.post(path, Some(key), body).await;
            let is_final = answer.as_ref().is_ok_and(|answer| {
                // Running elsewhere, out of reach and unknown outcomes are asked again.
                answer.status < 500 && answer.body["code"] != "idempotency_running"
            });
            if tries % 100 == 0 {
                let event = format!("{path} {key} {body} is still asked: {answer:?}");
                self.load.record.event(self.now(), &event);
            }
            if let Ok(answer) = answer {
                last = Some(answer);
            }
            if is_final {
                self.region = home;
                return (last, tries);
            }
            if may_move {
                self.region = self.any_region();
            }
            let pause = self.random.random_range(20..300);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.region = home;
        (None, tries)
    }

    async fn keyed(&mut self, target: &Target) -> Option<Answer> {
        let body = json!({ "tenant": target.tenant, "limit": target.limit.name, "key": target.key, "cost": target.cost });
        let key = self.new_key();
        let sent = self.now();
        let (answer, tries) = self.until_answered("/v1/check", &key, &body, true).await;
        self.note(
            std::slice::from_ref(target),
            sent,
            answer.as_ref(),
            Some(&key),
            tries,
            false,
        );
        answer
    }

    async fn refund(&mut self, target: &Target) {
        let body = json!({ "tenant": target.tenant, "limit": target.limit.name, "key": target.key, "cost": target.cost });
        let key = self.new_key();
        let sent = self.now();
        let (answer, _) = self.until_answered("/v1/refund", &key, &body, true).await;
        let heard = self.now();
        self.load.record.answered("refund", answer.as_ref());
        let refunded = answer
            .as_ref()
            .and_then(|answer| answer.body["refunded"].as_u64());
        self.load.record.give(Given {
            tenant: target.tenant,
            limit: target.limit.name,
            key: target.key.clone(),
            window: None,
            most: refunded.unwrap_or(if answer.is_some() { 0 } else { target.cost }),
            least: refunded.unwrap_or(0),
            sent,
            heard: if answer.is_some() { heard } else { i64::MAX },
        });
    }

    /// A hold, settled for less a moment later.
    async fn hold(&mut self, target: Target) {
        let body = json!({
            "tenant": target.tenant, "limit": target.limit.name, "key": target.key, "cost": target.cost, "ttl": "60s",
        });
        let sent = self.now();
        let answer = self.post("/v1/holds", None, &body).await.ok();
        self.note(
            std::slice::from_ref(&target),
            sent,
            answer.as_ref(),
            None,
            1,
            true,
        );
        let Some(answer) = answer.filter(|answer| answer.status == 200) else {
            return;
        };
        let Some(hold) = answer.body["hold"].as_str() else {
            return;
        };
        let said = record::said(&answer, &[(target.limit.name, &target.key, target.cost)]);
        let pause = self.random.random_range(0..1_500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let cost = self.random.random_range(0..=target.cost);
        let path = format!("/v1/holds/{hold}/settle");
        let sent = self.now();
        let (settled, tries) = self
            .until_answered(&path, &self.new_key(), &json!({ "cost": cost }), false)
            .await;
        self.load.record.answered("settle", settled.as_ref());
        if let Some(late) = settled.as_ref().filter(|settled| settled.status == 409) {
            let event = format!("{path} cost {cost} after {tries} tries: {}", late.body);
            self.load.record.event(self.now(), &event);
        }
        let given = settled
            .as_ref()
            .and_then(|settled| settled.body["results"][0]["given_back"].as_u64());
        let window = said
            .first()
            .and_then(|said| Some((said.epoch, said.window_start_ms?)));
        self.load.record.give(Given {
            tenant: target.tenant,
            limit: target.limit.name,
            key: target.key,
            window,
            // A hold that its region forgot in a crash may have been settled before it.
            most: given.unwrap_or(target.cost - cost),
            least: given.unwrap_or(0),
            sent,
            heard: self.now(),
        });
    }

    /// A lease, released a moment later or left to end by itself.
    async fn lease(&mut self, target: Target) {
        let body = json!({
            "tenant": target.tenant, "limit": target.limit.name, "key": target.key, "ttl": format!("{LEASE_MS}ms"),
        });
        let sent = self.now();
        let answer = self.post("/v1/holds", None, &body).await.ok();
        let from = self.now();
        self.note(
            std::slice::from_ref(&target),
            sent,
            answer.as_ref(),
            None,
            1,
            true,
        );
        let Some(answer) = answer.filter(|answer| answer.status == 200) else {
            return;
        };
        let said = record::said(&answer, &[(target.limit.name, &target.key, 1)]);
        if said.iter().any(|said| said.degraded) {
            return;
        }
        let hold = answer.body["hold"].as_str().unwrap_or_default().to_owned();
        let held = self.random.random_range(0..3_000);
        tokio::time::sleep(Duration::from_millis(held)).await;
        let mut until = sent + LEASE_MS - LEASE_SLACK_MS;
        if self.random.random_range(0..3) > 0 {
            until = until.min(self.now());
            let region = &self.load.cluster.regions[self.region];
            // An answer that does not come leaves the lease to end by itself.
            region.release(&hold).await.ok();
        }
        if until > from {
            self.load.record.lease(Lease {
                tenant: target.tenant,
                key: target.key,
                epoch: said.first().map_or(0, |said| said.epoch),
                from,
                until,
            });
        }
    }
}
