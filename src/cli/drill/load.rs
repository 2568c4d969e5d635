//! Callers: each load asks in each of its regions when its arrivals say, whatever came of the calls before.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::drill::arrivals::Arrival;
use crate::drill::arrivals::Arrivals;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Said;
use crate::drill::scenario::Scenario;
use crate::drill::settled::key_name;

use super::fleet::Fleet;

/// Calls of one load in one region that wait for an answer at once.
const WAITING_MAX: usize = 256;
/// A keyed call is repeated for so long, and at most so often.
const PATIENCE_MS: u64 = 30_000;
/// Between two tries of a keyed call.
const PAUSE: Duration = Duration::from_millis(150);

/// What callers share.
#[derive(Debug)]
pub struct Callers {
    scenario: Arc<Scenario>,
    fleet: Arc<Fleet>,
    /// What they were told.
    pub calls: Mutex<Vec<Call>>,
    /// By region of the caller: which region is asked.
    pub routes: Vec<AtomicUsize>,
    seed: u64,
}

impl Callers {
    /// Callers of the scenario, who ask nothing yet.
    pub fn new(scenario: &Arc<Scenario>, fleet: &Arc<Fleet>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            scenario: Arc::clone(scenario),
            fleet: Arc::clone(fleet),
            calls: Mutex::new(Vec::new()),
            routes: (0..scenario.regions.len()).map(AtomicUsize::new).collect(),
            seed,
        })
    }

    /// Lets all of them ask until their loads are over; each is done when its last answer has come.
    pub fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut running = JoinSet::new();
        for (number, load) in self.scenario.loads.iter().enumerate() {
            for (place, home) in load.regions.iter().enumerate() {
                let mixed = u64::try_from(number * 64 + place).unwrap_or(0);
                let seed = self.seed ^ mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
                let arrivals = Arrivals::new(load, place, seed);
                running.spawn(Arc::clone(self).ask(number, *home, arrivals));
            }
        }
        running
    }

    async fn ask(self: Arc<Self>, load: usize, home: usize, arrivals: Arrivals) {
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        let mut waiting = JoinSet::new();
        for (number, arrival) in arrivals.enumerate() {
            let now_us = self.fleet.watch.elapsed().as_nanos() / 1_000;
            let wait_us = arrival.at_us.saturating_sub(now_us);
            if wait_us > 0 {
                tokio::time::sleep(Duration::from_micros(wait_us)).await;
            }
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                break;
            };
            let callers = Arc::clone(&self);
            waiting.spawn(async move {
                callers.call(load, home, number, arrival).await;
                drop(place);
            });
            while waiting.try_join_next().is_some() {}
        }
        while waiting.join_next().await.is_some() {}
    }

    fn route(&self, home: usize) -> usize {
        let route = self.routes.get(home);
        route.map_or(home, |route| route.load(Ordering::Relaxed))
    }

    async fn call(&self, load: usize, home: usize, number: usize, arrival: Arrival) {
        let Some(of) = self.scenario.loads.get(load) else {
            return;
        };
        let Some(limit) = self.scenario.limits.get(of.limit) else {
            return;
        };
        let mut body = json!({
            "tenant": self.fleet.tenant(&of.tenant), "limit": limit.name, "cost": arrival.cost,
        });
        if limit.has_key() {
            body["key"] = key_name(arrival.key).into();
        }
        // When the call was due: it waited from then on, also for calls before it that had no answer yet.
        let sent_ms = arrival.at_us / 1_000;
        let began_ms = self.fleet.now_ms();
        let has_windows = limit.window().is_some();
        let mut region = self.route(home);
        let mut tries = 1;
        let key = of.is_keyed.then(|| format!("{load}-{home}-{number}"));
        let mut is_in_doubt = false;
        let answer = loop {
            let answer = self.once(region, key.as_deref(), &body, has_windows).await;
            is_in_doubt |= answer.is_in_doubt();
            let is_final = match &answer {
                Answer::Allowed(_) | Answer::Refused(_) => true,
                // The same key is being decided: it will be known.
                Answer::Wrong(status) => *status != 409,
                Answer::Unavailable { .. } | Answer::Nothing { .. } => false,
            };
            let is_late = self.fleet.now_ms() > began_ms + PATIENCE_MS;
            if key.is_none() || is_final {
                break answer;
            }
            if is_late {
                // Whatever the last try came to, an earlier one may have been charged.
                break Answer::Nothing {
                    may_be_charged: is_in_doubt,
                };
            }
            tokio::time::sleep(PAUSE).await;
            tries += 1;
            // Another region may be able to.
            region = (region + 1) % self.scenario.regions.len().max(1);
        };
        self.calls.lock().push(Call {
            load,
            home,
            region,
            key: arrival.key,
            cost: arrival.cost,
            sent_ms,
            heard_ms: self.fleet.now_ms(),
            tries,
            answer,
        });
    }

    async fn once(
        &self,
        region: usize,
        key: Option<&str>,
        body: &Value,
        has_windows: bool,
    ) -> Answer {
        let Some(endpoint) = self.fleet.regions.get(region) else {
            return Answer::Nothing {
                may_be_charged: false,
            };
        };
        match endpoint.ask("/v1/check", key, body).await {
            Ok((status, body)) => read(status, &body, has_windows),
            Err(may_be_charged) => Answer::Nothing { may_be_charged },
        }
    }
}

/// An answer as the record keeps it. A yes or no whose body says something else, or nothing, is wrong: it would be judged by
/// no expectation of units. So is one of a limit with windows that does not say of which.
fn read(status: u16, body: &Value, has_windows: bool) -> Answer {
    let result = &body["results"][0];
    let said = Said {
        epoch: result["epoch"].as_u64().unwrap_or(0),
        window_start_ms: result["window_start_ms"].as_i64(),
        decided_by: result["decided_by"].as_str().unwrap_or_default().to_owned(),
        is_degraded: result["degraded"] == true,
    };
    let is_whole = said.window_start_ms.is_some() || !has_windows;
    let is_said = |decision: &str| result["decision"] == decision && is_whole;
    match status {
        200 if is_said("allow") => Answer::Allowed(said),
        429 if is_said("deny") => Answer::Refused(said),
        503 => Answer::Unavailable {
            may_be_charged: result["reason"] == "outcome_unknown"
                || body["code"] == "outcome_unknown",
        },
        other => Answer::Wrong(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept_as_what_they_are() {
        let body = |decision: &str| {
            json!({ "results": [{
                "decision": decision, "epoch": 3, "window_start_ms": 60_000, "decided_by": "reservation",
            }] })
        };
        let said = Said {
            epoch: 3,
            window_start_ms: Some(60_000),
            decided_by: "reservation".to_owned(),
            is_degraded: false,
        };
        let read = |status, body: &Value| super::read(status, body, true);
        assert_eq!(read(200, &body("allow")), Answer::Allowed(said.clone()));
        assert_eq!(read(429, &body("deny")), Answer::Refused(said));
        let unknown = json!({ "results": [{ "reason": "outcome_unknown" }] });
        assert_eq!(
            read(503, &unknown),
            Answer::Unavailable {
                may_be_charged: true
            }
        );
        assert_eq!(
            read(503, &Value::Null),
            Answer::Unavailable {
                may_be_charged: false
            }
        );
        assert_eq!(read(404, &Value::Null), Answer::Wrong(404));
    }

    #[test]
    fn a_yes_or_no_that_says_something_else_is_wrong() {
        let body = json!({ "results": [{ "decision": "allow", "window_start_ms": 60_000 }] });
        assert_eq!(read(429, &body, true), Answer::Wrong(429));
        for body in [Value::Null, json!({ "results": [] }), json!({ "ok": true })] {
            assert_eq!(read(200, &body, false), Answer::Wrong(200), "{body}");
        }
        let windowless = json!({ "results": [{ "decision": "allow" }] });
        assert_eq!(read(200, &windowless, true), Answer::Wrong(200));
        assert!(matches!(
            read(200, &windowless, false),
            Answer::Allowed(said) if said.window_start_ms.is_none()
        ));
    }

    const CROWD: &str = r#"
title    = "More calls than may wait"
regions  = ["a-1"]
duration = "1s"
expect   = [{ that = "answered", at_least = 0 }]
[limits]
drips = { algorithm = "token_bucket", capacity = 9, refill = 9, per = "1s", mode = "regional" }
[[load]]
limit = "drips"
rate  = 500
"#;

    /// A region that answers nothing for a while: calls that could not be sent for it were late, and are told as such.
    #[tokio::test]
    async fn calls_are_counted_from_when_they_were_due() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let stalls = tokio::spawn(async move {
            // Connections are taken, and dropped a while after all that may wait do so.
            let mut taken = Vec::new();
            while taken.len() < WAITING_MAX {
                taken.push(listener.accept().await.expect("a connection"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        });
        let token = crate::region::config::secret::Secret::new("t");
        let endpoint = super::super::fleet::Endpoint::new("a-1", &address, &address, &token);
        let scenario = Arc::new(Scenario::parse("crowd", CROWD).expect("a scenario"));
        let watch = crate::region::clock::Clock::real().stopwatch();
        let fleet = Fleet::new(
            vec![Arc::new(endpoint.expect("an endpoint"))],
            watch,
            "t".to_owned(),
        );
        let callers = Callers::new(&scenario, &Arc::new(fleet), 1);
        let mut running = callers.start();
        while running.join_next().await.is_some() {}
        stalls.await.expect("all that may wait did");
        let calls = callers.calls.lock();
        assert_eq!(calls.len(), 500);
        // Two milliseconds apart, as they were due.
        let mut sent: Vec<u64> = calls.iter().map(|call| call.sent_ms).collect();
        sent.sort_unstable();
        assert!(sent.windows(2).all(|two| two[1] - two[0] <= 3), "{sent:?}");
    }
}
