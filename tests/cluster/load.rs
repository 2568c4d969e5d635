//! Many calls at once, over several regions.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use reqwest::Client;
use reqwest::Method;
use serde_json::Value;

use crate::answer::Answer;
use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::calls::send;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::server::Server;

/// One call of a check listener.
#[derive(Clone, Debug)]
pub struct Call {
    /// The region that is asked.
    pub region: usize,
    /// `POST` on this path.
    pub path: &'static str,
    /// With this `Idempotency-Key`.
    pub key: Option<String>,
    /// With this body.
    pub body: Value,
}

impl Call {
    /// A check without a key.
    pub const fn check(region: usize, body: Value) -> Self {
        Self {
            region,
            path: "/v1/check",
            key: None,
            body,
        }
    }
}

/// The same check `calls` times, region after region in turn.
pub fn in_turn(regions: &[usize], calls: usize, body: &Value) -> Vec<Call> {
    (0..calls)
        .map(|call| Call::check(regions[call % regions.len()], body.clone()))
        .collect()
}

/// Sends all calls, `width` at a time; answers come in the order of the calls. An error is a call that got no
/// complete answer.
pub fn at_once(
    cluster: &Cluster,
    width: usize,
    calls: Vec<Call>,
) -> Vec<(Call, Result<Answer, String>)> {
    let urls: Vec<Option<String>> = (0..cluster.len())
        .map(|region| {
            let server = &cluster[region];
            server.is_running().then(|| server.check_url().to_owned())
        })
        .collect();
    let count = calls.len();
    let queue = Arc::new(Mutex::new(calls.into_iter().enumerate()));
    RUNTIME.block_on(async {
        let callers: Vec<_> = (0..width.min(count))
            .map(|_| {
                let (queue, urls) = (Arc::clone(&queue), urls.clone());
                tokio::spawn(async move {
                    let client = new_client();
                    let mut answered = Vec::new();
                    loop {
                        let next = queue.lock().expect("no caller panics").next();
                        let Some((place, call)) = next else {
                            return answered;
                        };
                        let url = urls[call.region].as_deref().expect("the region runs");
                        let answer = post(&client, url, &call).await;
                        answered.push((place, call, answer));
                    }
                })
            })
            .collect();
        let mut answers = Vec::with_capacity(count);
        for caller in callers {
            answers.extend(caller.await.expect("the caller ends"));
        }
        answers.sort_by_key(|(place, ..)| *place);
        answers
            .into_iter()
            .map(|(_, call, answer)| (call, answer))
            .collect()
    })
}

/// One call of the check listener at `url`.
pub async fn post(client: &Client, url: &str, call: &Call) -> Result<Answer, String> {
    let key = call.key.as_deref();
    let headers: Vec<(&str, &str)> = key.iter().map(|key| ("idempotency-key", *key)).collect();
    let url = format!("{url}{}", call.path);
    send(client, Method::POST, &url, &headers, &call.body)
        .await
        .map_err(|error| error.to_string())
}

/// The answers of calls that all got one.
pub fn answers(answered: Vec<(Call, Result<Answer, String>)>) -> Vec<Answer> {
    answered
        .into_iter()
        .map(|(call, answer)| answer.unwrap_or_else(|error| panic!("{call:?}: {error}")))
        .collect()
}

/// How answers to checks went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// 200.
    pub allowed: u64,
    /// 429.
    pub refused: u64,
    /// 503 and nothing was charged.
    pub unavailable: u64,
    /// 503 or no answer, and nobody knows.
    pub unknown: u64,
}

impl Tally {
    /// Of answers; fails on any that is none of these.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Self {
        let mut tally = Self::default();
        for answer in answers {
            tally.add(answer);
        }
        tally
    }

    /// Adds one answer.
    pub fn add(&mut self, answer: &Answer) {
        let count = match (answer.status, is_unknown(answer)) {
            (503, true) => &mut self.unknown,
            (503, false) => &mut self.unavailable,
            _ if answer.allowed() => &mut self.allowed,
            _ => &mut self.refused,
        };
        *count += 1;
    }

    /// Adds what another caller saw.
    pub fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            refused: self.refused + other.refused,
            unavailable: self.unavailable + other.unavailable,
            unknown: self.unknown + other.unknown,
        }
    }
}

/// Unused units that lie in another region are waited for so long.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether an answer says that the check may have been charged.
pub fn is_unknown(answer: &Answer) -> bool {
    answer.body["code"] == "outcome_unknown" || answer.text.contains("\"outcome_unknown\"")
}

/// Checks at the regions in turn, until every region refuses and its look says that nothing is left. How many were
/// allowed. A region may refuse for a moment what lies elsewhere; fails when what is left is not to be had.
pub fn spend_all(cluster: &Cluster, body: &Value) -> u64 {
    let regions: Vec<usize> = cluster.running().collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let look = without_costs(body);
    let (mut allowed, mut last, mut turn) = (0, Instant::now(), 0);
    let mut ended = vec![false; regions.len()];
    while ended.iter().any(|ended| !ended) {
        let place = turn % regions.len();
        let server = &cluster[regions[place]];
        let answer = server.check(body);
        turn += 1;
        if answer.status == 503 {
            assert!(Instant::now() < deadline, "{allowed} allowed: {answer:?}");
        } else if answer.allowed() {
            allowed += 1;
            last = Instant::now();
            ended.fill(false);
        } else {
            let left = server.check(&look);
            ended[place] = !left.allowed();
            assert!(
                ended[place] || last.elapsed() < Duration::from_secs(10),
                "{allowed} allowed, and what is left is not to be had: {left:?}"
            );
        }
    }
    allowed
}

fn without_costs(body: &Value) -> Value {
    let mut look = body.clone();
    match look.get_mut("checks").and_then(Value::as_array_mut) {
        Some(checks) => checks.iter_mut().for_each(|check| check["cost"] = 0.into()),
        None => look["cost"] = 0.into(),
    }
    look
}

/// A check that is sent again while the region cannot decide, and for [`PATIENCE`] while it is refused units of a
/// strict limit that by the same answer are not used: they lie in another region, and on a busy machine that one
/// can be too slow for the round in which they are called back.
pub fn decided(server: &Server, body: &Value) -> Answer {
    let began = Instant::now();
    loop {
        let answer = server.check(body);
        let waited = began.elapsed();
        if answer.status != 503 && (!answer.lies_elsewhere(body) || waited > PATIENCE) {
            return answer;
        }
        assert!(
            waited < Duration::from_secs(30),
            "never decided: {answer:?}"
        );
        assert!(!is_unknown(&answer), "{answer:?}");
        if answer.status != 503 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Polls until every region that runs tells `used` of a counter, which it may learn a moment late.
pub fn wait_used(cluster: &Cluster, tenant: &str, limit: &str, used: u64) {
    for region in cluster.running() {
        wait_used_at(&Counter::new(&cluster[region], tenant, limit), used);
    }
}

/// Polls until the region tells `used`.
pub fn wait_used_at(counter: &Counter<'_>, used: u64) {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        let usage = counter.usage();
        if usage.used() == used {
            return;
        }
        assert!(Instant::now() < deadline, "not {used}: {usage:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
