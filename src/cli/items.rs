//! `limits`, `plans`, `tenants`: the catalogue by hand, one item at a time.
//!
//! `set` says what an item is from then on: fields that are not given are not part of it. Only the fields of
//! a tenant are changed one by one, because a tenant also holds its limits and overrides.

use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;
use reqwest::Method;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::Outcome;
use super::Session;
use super::apply;
use super::catalogue_file::CatalogueFile;
use super::client;
use super::limit_flags::LimitFlags;
use super::limit_table;
use super::output;
use super::output::OutputFormat;

/// Arguments of `limits`.
#[derive(Debug, Args)]
#[command(about = "Limits: of all tenants, of one tenant, of one key", after_help = LIMITS_EXAMPLES)]
pub struct LimitsArgs {
    #[command(subcommand)]
    command: LimitsCommand,
}

const LIMITS_EXAMPLES: &str = "\
Examples:
  highwater limits list                                            of all tenants
  highwater limits list acme                                       as acme has them
  highwater limits set exports --quota 10 --period day             for all tenants
  highwater limits set acme exports --quota 50 --period day        for acme
  highwater limits set acme tokens --override gpt-5 --capacity 9   for one key of acme's
  highwater limits set per-ip --algorithm fixed_window --quota 9 --window 1s --match remote_address --key ip
                                                                   by what Envoy tells of a call
  highwater limits set acme exports -f exports.toml                the fields from a file
  highwater limits get acme exports                                says where each field is from
  highwater limits delete acme exports                             back to what the plan says";

#[derive(Debug, Subcommand)]
enum LimitsCommand {
    /// List the limits of all tenants, or those of one.
    List {
        /// Whose limits; absent: those that hold for all tenants.
        tenant: Option<String>,
    },
    /// Show one limit. Of a tenant: as it is in force, and where each field comes from.
    #[command(allow_missing_positional = true)]
    Get(LimitName),
    /// Define one limit. What is not given is not part of it.
    #[command(allow_missing_positional = true)]
    Set(Box<SetLimit>),
    /// Delete one limit.
    #[command(allow_missing_positional = true)]
    Delete(LimitName),
}

#[derive(Debug, Args)]
struct LimitName {
    /// Whose limit; absent: the limit of all tenants.
    tenant: Option<String>,
    /// Which limit.
    limit: String,
    /// The override of this key of the tenant's limit is meant.
    #[arg(id = "override_key", long = "override", value_name = "KEY")]
    override_key: Option<String>,
}

#[derive(Debug, Args)]
struct SetLimit {
    #[command(flatten)]
    name: LimitName,
    /// Take the fields from a TOML file (- is standard input).
    #[arg(
        short = 'f',
        long = "file",
        value_name = "FILE",
        conflicts_with = "LimitFlags"
    )]
    file: Option<PathBuf>,
    #[command(flatten)]
    fields: LimitFlags,
}

/// A path of the admin API in segments, and its query.
type Route<'a> = (Vec<&'a str>, Vec<(&'a str, &'a str)>);

impl LimitName {
    fn route(&self) -> anyhow::Result<Route<'_>> {
        let Some(tenant) = self.tenant.as_deref() else {
            anyhow::ensure!(
                self.override_key.is_none(),
                "--override is of one tenant's limit; name the tenant too"
            );
            return Ok((vec!["admin", "v1", "limits", &self.limit], Vec::new()));
        };
        let mut path = vec!["admin", "v1", "tenants", tenant, "limits", &self.limit];
        let query: Vec<_> = self
            .override_key
            .as_deref()
            .map(|key| ("key", key))
            .into_iter()
            .collect();
        if !query.is_empty() {
            path.push("override");
        }
        Ok((path, query))
    }

    /// Says what may be missing when there is nothing to set the limit of.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.tenant {
            Some(tenant) if client::is_not_found(&error) => error.context(format!(
                "limit {} of {tenant} cannot be set (`highwater tenants set {tenant}` makes a new tenant)",
                self.limit
            )),
            _ => error,
        }
    }
}

/// Runs `limits`.
pub async fn limits(session: &Session, args: LimitsArgs) -> anyhow::Result<Outcome> {
    match args.command {
        LimitsCommand::List { tenant } => list_limits(session, tenant.as_deref()).await,
        LimitsCommand::Get(name) => {
            let (path, query) = name.route()?;
            get(session, &path, &query).await
        }
        LimitsCommand::Delete(name) => {
            let (path, query) = name.route()?;
            delete(session, &path, &query).await
        }
        LimitsCommand::Set(args) => {
            let SetLimit { name, file, fields } = *args;
            let (path, query) = name.route()?;
            let outcome = match file {
                Some(file) => set_from_file(session, &path, &query, file).await,
                None => set(session, &path, &query, &Value::Object(fields.to_json())).await,
            };
            outcome.map_err(|error| name.explain(error))
        }
    }
}

async fn list_limits(session: &Session, tenant: Option<&str>) -> anyhow::Result<Outcome> {
    let path = match tenant {
        None => vec!["admin", "v1", "limits"],
        Some(tenant) => vec!["admin", "v1", "tenants", tenant, "limits"],
    };
    let limits = session.client.list(&path, None).await?;
    match session.output {
        OutputFormat::Json => output::show(OutputFormat::Json, &Value::Array(limits))?,
        OutputFormat::Table => output::print(&limit_table::lines(&limits))?,
    }
    Ok(Outcome::Done)
}

/// Arguments of `plans`.
#[derive(Debug, Args)]
#[command(about = "Plans (tiers): the limits of all tenants on them", after_help = PLANS_EXAMPLES)]
pub struct PlansArgs {
    #[command(subcommand)]
    command: PlansCommand,
}

const PLANS_EXAMPLES: &str = "\
Examples:
  highwater plans list
  highwater plans set free                an empty plan
  highwater plans set pro -f pro.toml     with limits, as in: limits.exports = { quota = 500 }
  highwater plans get pro
  highwater plans delete pro              refused while a tenant is on it";

#[derive(Debug, Subcommand)]
enum PlansCommand {
    /// List all plans.
    List,
    /// Show one plan.
    Get {
        /// Which plan.
        plan: String,
    },
    /// Define one plan. Limits that are not given are not part of it.
    Set {
        /// Which plan.
        plan: String,
        /// Take the plan from a TOML file (- is standard input).
        #[arg(short = 'f', long = "file", value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Delete one plan.
    Delete {
        /// Which plan.
        plan: String,
    },
}

/// Runs `plans`.
pub async fn plans(session: &Session, args: PlansArgs) -> anyhow::Result<Outcome> {
    match args.command {
        PlansCommand::List => session.list(&["admin", "v1", "plans"], None).await,
        PlansCommand::Get { plan } => get(session, &["admin", "v1", "plans", &plan], &[]).await,
        PlansCommand::Delete { plan } => {
            delete(session, &["admin", "v1", "plans", &plan], &[]).await
        }
        PlansCommand::Set { plan, file: None } => {
            set(
                session,
                &["admin", "v1", "plans", &plan],
                &[],
                &json!({ "limits": {} }),
            )
            .await
        }
        PlansCommand::Set {
            plan,
            file: Some(file),
        } => set_from_file(session, &["admin", "v1", "plans", &plan], &[], file).await,
    }
}

/// Arguments of `tenants`.
#[derive(Debug, Args)]
#[command(about = "Tenants: their plan, time zone and anchor", after_help = TENANTS_EXAMPLES)]
pub struct TenantsArgs {
    #[command(subcommand)]
    command: TenantsCommand,
}

const TENANTS_EXAMPLES: &str = "\
Examples:
  highwater tenants list
  highwater tenants set acme --plan pro --time-zone Asia/Kolkata   its limits and overrides stay
  highwater tenants set acme -f acme.toml                          all of it, limits and overrides too
  highwater tenants get acme
  highwater tenants delete acme";

#[derive(Debug, Subcommand)]
enum TenantsCommand {
    /// List all tenants.
    List,
    /// Show one tenant.
    Get {
        /// Which tenant.
        tenant: String,
    },
    /// Make a tenant, or change its fields; with a file: define all of it.
    Set(SetTenant),
    /// Delete one tenant with all its limits and overrides.
    Delete {
        /// Which tenant.
        tenant: String,
    },
}

#[derive(Debug, Args)]
struct SetTenant {
    /// Which tenant.
    tenant: String,
    /// Its plan.
    #[arg(long)]
    plan: Option<String>,
    /// Time zone of its calendar windows, as in Asia/Kolkata.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Civil time from which its calendar windows are counted, as in 2026-01-31T00:00:00.
    #[arg(long, value_name = "TIME")]
    anchor: Option<String>,
    /// Take the tenant from a TOML file (- is standard input).
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["plan", "time_zone", "anchor"])]
    file: Option<PathBuf>,
}

/// Runs `tenants`.
pub async fn tenants(session: &Session, args: TenantsArgs) -> anyhow::Result<Outcome> {
    match args.command {
        TenantsCommand::List => session.list(&["admin", "v1", "tenants"], None).await,
        TenantsCommand::Get { tenant } => {
            get(session, &["admin", "v1", "tenants", &tenant], &[]).await
        }
        TenantsCommand::Delete { tenant } => {
            delete(session, &["admin", "v1", "tenants", &tenant], &[]).await
        }
        TenantsCommand::Set(SetTenant {
            tenant,
            file: Some(file),
            ..
        }) => set_from_file(session, &["admin", "v1", "tenants", &tenant], &[], file).await,
        TenantsCommand::Set(args) => set_tenant(session, args).await,
    }
}

/// Changes the given fields of a tenant by a change of the catalogue, which keeps all that it does not name.
async fn set_tenant(session: &Session, args: SetTenant) -> anyhow::Result<Outcome> {
    let fields = [
        ("plan", args.plan),
        ("time_zone", args.time_zone),
        ("anchor", args.anchor),
    ];
    let fields: Map<String, Value> = fields
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), Value::from(text?))))
        .collect();
    let mut tenants = Map::new();
    tenants.insert(args.tenant, Value::Object(fields));
    let change = json!({ "tenants": tenants });
    let answer = session
        .client
        .call(
            Method::PATCH,
            &["admin", "v1", "catalogue"],
            &[],
            Some(&change),
            None,
        )
        .await?;
    apply::report(session, &answer.success()?)
}

pub(super) async fn get(
    session: &Session,
    path: &[&str],
    query: &[(&str, &str)],
) -> anyhow::Result<Outcome> {
    let answer = session.client.get(path, query).await?.success()?;
    session.show(&answer)
}

pub(super) async fn delete(
    session: &Session,
    path: &[&str],
    query: &[(&str, &str)],
) -> anyhow::Result<Outcome> {
    let answer = session
        .client
        .call(Method::DELETE, path, query, None, None)
        .await?
        .success()?;
    apply::report(session, &answer)
}

async fn set(
    session: &Session,
    path: &[&str],
    query: &[(&str, &str)],
    item: &Value,
) -> anyhow::Result<Outcome> {
    let answer = session
        .client
        .call(Method::PUT, path, query, Some(item), None)
        .await?;
    apply::report(session, &answer.success()?)
}

pub(super) async fn set_from_file(
    session: &Session,
    path: &[&str],
    query: &[(&str, &str)],
    file: PathBuf,
) -> anyhow::Result<Outcome> {
    let file = CatalogueFile::read(&file)?;
    let item = match file.to_json() {
        Ok(item) => item,
        Err(faults) => return apply::refuse(&faults),
    };
    let answer = session
        .client
        .call(Method::PUT, path, query, Some(&item), None)
        .await?;
    apply::settle(session, &file, answer)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Harness {
        #[command(flatten)]
        limits: LimitsArgs,
    }

    fn parse(arguments: &[&str]) -> Result<LimitsCommand, String> {
        let all = ["x"].into_iter().chain(arguments.iter().copied());
        Harness::try_parse_from(all)
            .map(|parsed| parsed.limits.command)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_of_all_tenants_of_one_or_of_one_key() {
        let route = |arguments: &[&str]| {
            let name = match parse(arguments).expect("flags") {
                LimitsCommand::Set(args) => args.name,
                LimitsCommand::Get(name) => name,
                other => panic!("{other:?}"),
            };
            let route = name.route();
            route
                .map(|(path, query)| format!("{} {query:?}", path.join("/")))
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            route(&["set", "exports", "--quota", "1"]).as_deref(),
            Ok("admin/v1/limits/exports []")
        );
        assert_eq!(
            route(&["set", "acme", "exports", "--quota", "1"]).as_deref(),
            Ok("admin/v1/tenants/acme/limits/exports []")
        );
        assert_eq!(
            route(&["get", "acme", "tokens", "--override", "gpt 5"]).as_deref(),
            Ok("admin/v1/tenants/acme/limits/tokens/override [(\"key\", \"gpt 5\")]")
        );
        assert!(route(&["get", "tokens", "--override", "x"]).is_err());
        assert!(parse(&["get"]).is_err());
        assert!(parse(&["get", "a", "b", "c"]).is_err());
    }

    #[test]
    fn a_file_stands_alone() {
        assert!(parse(&["set", "exports", "-f", "x.toml"]).is_ok());
        assert!(parse(&["set", "exports", "-f", "x.toml", "--quota", "1"]).is_err());
        assert!(
            parse(&[
                "set",
                "exports",
                "--quota",
                "1",
                "--expires-at",
                "2027-01-01T00:00:00Z"
            ])
            .is_err()
        );
    }
}
