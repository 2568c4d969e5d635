//! The regions of a drill as callers and operators reach them, and the faults that the drill has injected.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;
use tokio::time::timeout;

use crate::cli::client::Answer;
use crate::cli::client::Client;
use crate::region::clock::Stopwatch;
use crate::region::config::secret::Secret;

/// A caller that has no answer after this has none.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(3);
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long a planned move or a change of the catalogue may take.
const ADMIN_WITHIN: Duration = Duration::from_secs(15);

/// How often, and how long, a region that does not answer is waited for before a fault is given up.
const STARTING_TRIES: u32 = 50;
const STARTING_PAUSE: Duration = Duration::from_millis(200);
/// How often regions are asked to remove a tenant of the drill.
const REMOVE_TRIES: usize = 9;

/// How the tenants begin that drills make in a running cluster; eight hexadecimal digits and a word follow.
const TENANTS_OF_DRILLS: &str = "drill-";

/// What the tenants of the drill that drew `bits` begin with.
pub fn tenant_prefix(bits: u64) -> String {
    format!("{TENANTS_OF_DRILLS}{:08x}", bits >> 32)
}

fn is_of_a_drill(tenant: &str) -> bool {
    let number = tenant
        .strip_prefix(TENANTS_OF_DRILLS)
        .and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(number, _)| {
        number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// One region.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name in the cluster.
    pub name: String,
    check: String,
    http: reqwest::Client,
    admin: Client,
    token: Secret,
}

impl Endpoint {
    /// The region `name` with these listeners.
    ///
    /// # Errors
    /// When an address is none.
    pub fn new(name: &str, check: &str, admin: &str, token: &Secret) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(ANSWER_WITHIN)
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .build()?;
        reqwest::Url::parse(check)
            .with_context(|| format!("region {name}: {check:?} is not a URL"))?;
        Ok(Self {
            name: name.to_owned(),
            check: check.trim_end_matches('/').to_owned(),
            http,
            admin: Client::to(admin, Some(token)).with_context(|| format!("region {name}"))?,
            token: token.clone(),
        })
    }

    /// A call of the check listener: status and body.
    ///
    /// # Errors
    /// When no answer came: whether the call may have been taken all the same.
    pub async fn ask(
        &self,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Result<(u16, Value), bool> {
        let mut request = self
            .http
            .post(format!("{}{path}", self.check))
            .bearer_auth(self.token.expose())
            .json(body);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = request.send().await.map_err(|error| !error.is_connect())?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(|_| true)?;
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok((status, body))
    }

    /// A call of the admin listener, whatever it answers.
    ///
    /// # Errors
    /// When no answer comes in time.
    pub async fn admin(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        let call = self.admin.call(method, path, query, body, None);
        timeout(ADMIN_WITHIN, call)
            .await
            .with_context(|| format!("region {} gave no answer", self.name))?
            .with_context(|| format!("region {}", self.name))
    }

    /// The same, when the answer must be a yes.
    ///
    /// # Errors
    /// When it is not.
    pub async fn must(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        let answer = self.admin(method, path, &[], body).await?;
        // In words: a drill that cannot be run is no refusal of what was asked.
        answer
            .success()
            .map_err(|error| anyhow::anyhow!("region {}: {error}", self.name))
    }

    /// How the region is, by its own word.
    ///
    /// # Errors
    /// When it does not say.
    pub async fn status(&self, within: Duration) -> anyhow::Result<Value> {
        let path = ["admin", "v1", "cluster"];
        let asked = self.admin.get(&path, &[]);
        let answer = timeout(within, asked).await??;
        Ok(answer.success()?.body)
    }

    /// The faults that are injected into it, by their ids.
    ///
    /// # Errors
    /// When it does not say, or takes none.
    pub async fn faults(&self) -> anyhow::Result<Vec<String>> {
        let path = ["admin", "v1", "faults"];
        let answer = self.must(Method::GET, &path, None).await?;
        let faults = answer.body["faults"].as_array();
        let ids = faults.into_iter().flatten();
        Ok(ids
            .filter_map(|fault| fault["id"].as_str())
            .map(str::to_owned)
            .collect())
    }

    /// A tenant that a drill made and has not removed, if there is one.
    ///
    /// # Errors
    /// When it does not say.
    pub async fn tenant_of_a_drill(&self) -> anyhow::Result<Option<String>> {
        let path = ["admin", "v1", "tenants"];
        let query = [("after", TENANTS_OF_DRILLS), ("page_size", "1000")];
        let answer = self.admin(Method::GET, &path, &query, None).await?;
        let answer = answer
            .success()
            .map_err(|error| anyhow::anyhow!("region {}: {error}", self.name))?;
        let items = answer.body["items"].as_array();
        let mut names = items
            .into_iter()
            .flatten()
            .filter_map(|item| item["name"].as_str());
        Ok(names.find(|name| is_of_a_drill(name)).map(str::to_owned))
    }

    /// Removes a tenant; one that is not there is none of a drill's any more.
    async fn remove_tenant(&self, tenant: &str) -> anyhow::Result<()> {
        let path = ["admin", "v1", "tenants", tenant];
        let answer = self.admin(Method::DELETE, &path, &[], None).await?;
        if answer.status == 404 {
            return Ok(());
        }
        let removed = answer.success();
        removed.map_err(|error| anyhow::anyhow!("region {}: {error}", self.name))?;
        Ok(())
    }

    /// The region's backup.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn backup(&self) -> anyhow::Result<Vec<u8>> {
        let path = ["admin", "v1", "backup"];
        let taken = async {
            match self.admin.download(&path).await? {
                Ok(response) => anyhow::Ok(response.bytes().await?.to_vec()),
                Err(answer) => bail!("no backup: HTTP {}", answer.status),
            }
        };
        timeout(ADMIN_WITHIN, taken)
            .await
            .with_context(|| format!("region {} sent no backup in time", self.name))?
    }
}

/// All regions, the drill's clock, and what must be undone when the drill is broken off.
#[derive(Debug)]
pub struct Fleet {
    /// In the scenario's order.
    pub regions: Vec<Arc<Endpoint>>,
    /// Since callers began.
    pub watch: Stopwatch,
    /// Goes before the words from which the drill makes its tenants.
    pub tenant_prefix: String,
    faults: Mutex<Vec<(usize, String)>>,
    drained: Mutex<Vec<usize>>,
}

impl Fleet {
    /// These regions.
    pub const fn new(regions: Vec<Arc<Endpoint>>, watch: Stopwatch, tenant_prefix: String) -> Self {
        Self {
            regions,
            watch,
            tenant_prefix,
            faults: Mutex::new(Vec::new()),
            drained: Mutex::new(Vec::new()),
        }
    }

    /// The region number `index`.
    ///
    /// # Errors
    /// When there is none.
    pub fn region(&self, index: usize) -> anyhow::Result<&Arc<Endpoint>> {
        self.regions
            .get(index)
            .with_context(|| format!("there is no region number {index}"))
    }

    /// Milliseconds since callers began.
    pub fn now_ms(&self) -> u64 {
        self.watch.elapsed().as_nanos() / 1_000_000
    }

    /// The drill's tenant of that word.
    pub fn tenant(&self, word: &str) -> String {
        format!("{}-{word}", self.tenant_prefix)
    }

    /// Injects a fault, which ends by itself after its `ttl`.
    ///
    /// # Errors
    /// When the region does not take it.
    pub async fn inject(&self, region: usize, fault: &Value) -> anyhow::Result<()> {
        let path = ["admin", "v1", "faults"];
        let endpoint = self.region(region)?;
        // A region that was ended a moment ago may still be starting.
        let mut tries = 0;
        let answer = loop {
            match endpoint.admin(Method::POST, &path, &[], Some(fault)).await {
                Err(_) if tries < STARTING_TRIES => {
                    tries += 1;
                    tokio::time::sleep(STARTING_PAUSE).await;
                }
                answer => break answer,
            }
        };
        let answer = answer
            .and_then(|answer| answer.success().map_err(|error| anyhow::anyhow!("{error}")))
            .with_context(|| {
                format!(
                    "region {}: the fault {fault} cannot be injected",
                    endpoint.name
                )
            })?;
        if let Some(id) = answer.body["id"].as_str() {
            self.faults.lock().push((region, id.to_owned()));
        }
        Ok(())
    }

    /// Takes a region out of its balancer; it comes back by itself after `lasts`.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn drain(&self, region: usize, lasts: Duration) -> anyhow::Result<()> {
        self.drained.lock().push(region);
        let path = ["admin", "v1", "cluster", "drain"];
        let body = json!({ "ttl": format!("{}ms", lasts.as_millis()) });
        self.region(region)?
            .must(Method::POST, &path, Some(&body))
            .await
            .map(drop)
    }

    /// Puts it back.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn resume(&self, region: usize) -> anyhow::Result<()> {
        let path = ["admin", "v1", "cluster", "resume"];
        self.region(region)?.must(Method::POST, &path, None).await?;
        self.drained.lock().retain(|drained| *drained != region);
        Ok(())
    }

    /// Ends every fault that the drill has injected, and every drain: how many were ended, and how many could not be.
    /// What cannot be reached ends by itself.
    pub async fn lift(&self) -> (usize, usize) {
        let faults = std::mem::take(&mut *self.faults.lock());
        let drained = std::mem::take(&mut *self.drained.lock());
        let (mut ended, mut left) = (0, 0);
        for (region, endpoint) in self.regions.iter().enumerate() {
            let own = faults.iter().filter(|(at, _)| *at == region);
            let own: Vec<&str> = own.map(|(_, id)| id.as_str()).collect();
            if own.is_empty() {
                continue;
            }
            let Ok(running) = endpoint.faults().await else {
                left += own.len();
                continue;
            };
            for id in running.iter().filter(|id| own.contains(&id.as_str())) {
                let path = ["admin", "v1", "faults", id];
                match endpoint.admin(Method::DELETE, &path, &[], None).await {
                    Ok(answer) if answer.is_success() => ended += 1,
                    _ => left += 1,
                }
            }
        }
        for region in drained {
            match self.resume(region).await {
                Ok(()) => ended += 1,
                Err(_) => left += 1,
            }
        }
        (ended, left)
    }

    /// Makes the drill's tenants with its limits, and waits until every region has them.
    ///
    /// # Errors
    /// When they are refused, or some region does not get them.
    pub async fn make_tenants(&self, words: &[&str], limits: &Value) -> anyhow::Result<()> {
        let mut tenants = serde_json::Map::new();
        for word in words {
            tenants.insert(self.tenant(word), json!({ "limits": limits }));
        }
        let path = ["admin", "v1", "catalogue"];
        let body = json!({ "tenants": tenants });
        let made = self
            .region(0)?
            .must(Method::PATCH, &path, Some(&body))
            .await
            .context("the drill's limits cannot be made")?;
        let version = made.version.unwrap_or(0);
        for endpoint in &self.regions {
            let has_them = async {
                loop {
                    let status = endpoint.status(ANSWER_WITHIN).await;
                    let known = status
                        .ok()
                        .and_then(|body| body["catalogue_version"].as_u64());
                    if known >= Some(version) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(ADMIN_WITHIN, has_them).await.with_context(|| {
                format!("region {} has not got the drill's limits", endpoint.name)
            })?;
        }
        Ok(())
    }

    /// Removes the drill's tenants: by whatever region takes it, and again for a while.
    ///
    /// # Errors
    /// When none does.
    pub async fn remove_tenants(&self, words: &[&str]) -> anyhow::Result<()> {
        for word in words {
            let tenant = self.tenant(word);
            let mut told = Err(anyhow::anyhow!("no region was asked"));
            for endpoint in self.regions.iter().cycle().take(REMOVE_TRIES) {
                told = endpoint.remove_tenant(&tenant).await;
                if told.is_ok() {
                    break;
                }
                tokio::time::sleep(STARTING_PAUSE).await;
            }
            told.with_context(|| format!("tenant {tenant} cannot be removed"))?;
        }
        Ok(())
    }
}
