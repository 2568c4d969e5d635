//! One connection's client: which form it speaks, who it is, and what its commands do.

use std::borrow::Cow;
use std::sync::Arc;

use crate::catalogue::intern::LimitId;
use crate::domain::limit::Limit;
use crate::domain::name;
use crate::domain::time::Span;
use crate::http::access;
use crate::http::access::Caller;
use crate::http::answer;
use crate::http::ask;
use crate::http::ask::Limits;
use crate::http::ask::Question;
use crate::http::check;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::region::observe::Seen;
use crate::region::state::Region;
use crate::resp::parse;
use crate::resp::reply::Replies;
use crate::resp::reply::Version;
use crate::resp::throttle::Throttle;

/// The version of Redis whose commands are followed, where clients look for one.
const REDIS_VERSION: &str = "7.4.0";
/// The user of a client that names none.
const DEFAULT_USER: &str = "default";
/// The longest name that a client gives its connection.
const NAME_BYTES_MAX: usize = 256;

/// See the module.
pub struct Session {
    region: Arc<Region>,
    /// The connection's number.
    id: i64,
    /// The tenant of clients that name none.
    default_tenant: Option<Arc<str>>,
    name: Vec<u8>,
    user: Option<User>,
    /// Whether the connection ends after what was replied so far.
    pub is_over: bool,
}

/// Who authenticated.
struct User {
    token: String,
    /// The tenant that was named in place of a user.
    tenant: Option<String>,
    caller: Caller,
}

type Words<'b> = [Cow<'b, [u8]>];

impl Session {
    /// A client that has said nothing yet.
    pub fn new(region: Arc<Region>, id: i64, default_tenant: Option<Arc<str>>) -> Self {
        Self {
            region,
            id,
            default_tenant,
            name: Vec::new(),
            user: None,
            is_over: false,
        }
    }

    /// Whether the client has authenticated.
    pub const fn is_known(&self) -> bool {
        self.user.is_some()
    }

    /// Looks again whether the client's token holds, before what has arrived is answered.
    pub async fn look_again(&mut self) {
        let Some(user) = &mut self.user else { return };
        match access::caller_with(&self.region, Some(&user.token)).await {
            Ok(caller) => user.caller = caller,
            Err(problem) if problem.status == 503 => {}
            Err(_) => self.user = None,
        }
    }

    /// Runs a command and replies.
    pub async fn run(&mut self, words: &Words<'_>, replies: &mut Replies) {
        let Some((command, arguments)) = words.split_first() else {
            return;
        };
        let mut upper = [0; 16];
        let command = match upper.get_mut(..command.len()) {
            Some(upper) => {
                upper.copy_from_slice(command);
                upper.make_ascii_uppercase();
                &*upper
            }
            None => command,
        };
        match command {
            b"CL.THROTTLE" => self.throttle(arguments, replies).await,
            b"HW.CHECK" => self.check(arguments, replies).await,
            b"AUTH" => self.auth(arguments, replies).await,
            b"HELLO" => self.hello(arguments, replies).await,
            b"QUIT" => {
                replies.simple("OK");
                self.is_over = true;
            }
            b"RESET" => {
                self.user = None;
                self.name.clear();
                replies.version = Version::Resp2;
                replies.simple("RESET");
            }
            _ if self.caller().await.is_err() => no_auth(replies),
            b"PING" => match arguments {
                [] => replies.simple("PONG"),
                [text] => replies.bulk(text),
                _ => wrong_number("ping", replies),
            },
            b"ECHO" => match arguments {
                [text] => replies.bulk(text),
                _ => wrong_number("echo", replies),
            },
            b"SELECT" => match arguments {
                [index] if **index == *b"0" => replies.simple("OK"),
                [_] => replies.error("ERR DB index is out of range"),
                _ => wrong_number("select", replies),
            },
            b"CLIENT" => self.client(arguments, replies),
            b"INFO" => replies.bulk(self.info().as_bytes()),
            b"COMMAND" => command_table(arguments, replies),
            _ => unknown(&words[0], replies),
        }
    }

    /// Who asks.
    async fn caller(&self) -> Result<Cow<'_, Caller>, Problem> {
        match &self.user {
            Some(user) => Ok(Cow::Borrowed(&user.caller)),
            None => access::caller_with(&self.region, None)
                .await
                .map(Cow::Owned),
        }
    }

    /// The tenant that limits without one are counted under.
    fn tenant(&self) -> Option<&str> {
        let user = self.user.as_ref();
        let bound = user.and_then(|user| user.caller.tenant());
        let named = user.and_then(|user| user.tenant.as_deref());
        bound.or(named).or(self.default_tenant.as_deref())
    }

    async fn throttle(&self, arguments: &Words<'_>, replies: &mut Replies) {
        if !self.is_known() && self.caller().await.is_err() {
            return no_auth(replies);
        }
        let throttle = match Throttle::read(arguments) {
            Ok(throttle) => throttle,
            Err(error) => return replies.error(&error.to_string()),
        };
        let key = arguments.first().map(|key| std::str::from_utf8(key));
        let Some(Ok(key)) = key.filter(|key| key.is_ok_and(name::is_key)) else {
            return replies.error(&format!("ERR {}", name::InvalidName::Key));
        };
        let Some(tenant) = self.tenant() else {
            return replies.error(
                "ERR no tenant to count under: AUTH TENANT TOKEN names one, or resp.tenant in the region's file",
            );
        };
        match decide(&self.region, tenant, key, &throttle) {
            Ok(numbers) => replies.integers(&numbers),
            Err(problem) => refuse(&problem, replies),
        }
    }

    async fn check(&self, arguments: &Words<'_>, replies: &mut Replies) {
        let caller = match self.caller().await {
            Ok(caller) => caller,
            Err(_) => return no_auth(replies),
        };
        let text = |at: usize| arguments.get(at).map(|word| std::str::from_utf8(word));
        let (Some(tenant), Some(limit), Some(key), 3..=4) =
            (text(0), text(1), text(2), arguments.len())
        else {
            return replies.error(
                "ERR Usage: hw.check <tenant> <limit> <key, empty if the limit has none> [<cost>]",
            );
        };
        let (Ok(tenant), Ok(limit), Ok(key)) = (tenant, limit, key) else {
            return replies.error("ERR tenant, limit and key are UTF-8");
        };
        let cost = match arguments.get(3) {
            None => Some(1),
            Some(text) => parse::integer(text).and_then(|cost| u64::try_from(cost).ok()),
        };
        let Some(cost) = cost.filter(|cost| *cost <= crate::domain::limit::AMOUNT_MAX) else {
            return replies.error("ERR the cost is not a whole number of 0 to 9007199254740991");
        };
        if let Err(problem) = caller.may_check(tenant) {
            return refuse(&problem, replies);
        }
        let question = Question {
            tenant,
            limits: Limits::One {
                limit,
                key: (!key.is_empty()).then_some(key),
            },
            cost,
            endpoint: None,
            ip: None,
            max_wait: None,
        };
        let region = &self.region;
        let told = ask::decide(region, &question, |items, outcome, _| {
            let judged = check::judged(region, items, outcome);
            match judged.first() {
                Some(first) if answer::status(&judged) != 503 => {
                    Some(numbers(first.limit, first.outcome))
                }
                _ => None,
            }
        });
        match told.await {
            Ok(Some(numbers)) => replies.integers(&numbers),
            Ok(None) => replies.error("UNAVAILABLE this region cannot decide at the moment"),
            Err(problem) => refuse(&problem, replies),
        }
    }

    async fn auth(&mut self, arguments: &Words<'_>, replies: &mut Replies) {
        let (user, token) = match arguments {
            [token] => (DEFAULT_USER.as_bytes(), &**token),
            [user, token] => (&**user, &**token),
            _ => return wrong_number("auth", replies),
        };
        match self.authenticate(user, token).await {
            Ok(()) => replies.simple("OK"),
            Err(message) => replies.error(&message),
        }
    }

    async fn authenticate(&mut self, user: &[u8], token: &[u8]) -> Result<(), String> {
        const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";
        let (Ok(user), Ok(token)) = (std::str::from_utf8(user), std::str::from_utf8(token)) else {
            return Err(WRONG.to_owned());
        };
        let caller = match access::caller_with(&self.region, Some(token)).await {
            Ok(caller) => caller,
            Err(problem) if problem.status == 503 => {
                return Err(format!("LOADING {}", problem.detail));
            }
            Err(_) => return Err(WRONG.to_owned()),
        };
        let tenant = (user != DEFAULT_USER).then_some(user);
        if tenant.is_some_and(|tenant| !caller.owns(tenant)) {
            return Err(WRONG.to_owned());
        }
        self.user = Some(User {
            token: token.to_owned(),
            tenant: tenant.map(str::to_owned),
            caller,
        });
        Ok(())
    }

    async fn hello(&mut self, arguments: &Words<'_>, replies: &mut Replies) {
        let (version, mut rest) = match arguments.split_first() {
            None => (replies.version, arguments),
            Some((version, rest)) => match &**version {
                b"2" => (Version::Resp2, rest),
                b"3" => (Version::Resp3, rest),
                _ => return replies.error("NOPROTO unsupported protocol version"),
            },
        };
        let mut name = None;
        loop {
            match rest {
                [] => break,
                [option, user, token, after @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    if let Err(message) = self.authenticate(user, token).await {
                        return replies.error(&message);
                    }
                    rest = after;
                }
                [option, given, after @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(given);
                    rest = after;
                }
                _ => return replies.error("ERR syntax error in HELLO"),
            }
        }
        if self.caller().await.is_err() {
            return replies.error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
                 the same time",
            );
        }
        if let Some(name) = name
            && !self.rename(name)
        {
            return replies.error(BAD_NAME);
        }
        replies.version = version;
        replies.map(7);
        replies.bulk(b"server");
        replies.bulk(b"highwater");
        replies.bulk(b"version");
        replies.bulk(REDIS_VERSION.as_bytes());
        replies.bulk(b"proto");
        replies.integer(match version {
            Version::Resp2 => 2,
            Version::Resp3 => 3,
        });
        replies.bulk(b"id");
        replies.integer(self.id);
        replies.bulk(b"mode");
        replies.bulk(b"standalone");
        replies.bulk(b"role");
        replies.bulk(b"master");
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn rename(&mut self, name: &[u8]) -> bool {
        let fits = name.len() <= NAME_BYTES_MAX && name.iter().all(|b| (b'!'..=b'~').contains(b));
        if fits {
            self.name = name.to_vec();
        }
        fits
    }

    fn client(&mut self, arguments: &Words<'_>, replies: &mut Replies) {
        let Some((command, arguments)) = arguments.split_first() else {
            return wrong_number("client", replies);
        };
        match (command.to_ascii_uppercase().as_slice(), arguments) {
            (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => replies.simple("OK"),
            (b"SETNAME", [name]) => {
                if self.rename(name) {
                    replies.simple("OK");
                } else {
                    replies.error(BAD_NAME);
                }
            }
            (b"GETNAME", []) if self.name.is_empty() => replies.null(),
            (b"GETNAME", []) => replies.bulk(&self.name),
            (b"ID", []) => replies.integer(self.id),
            _ => unknown(command, replies),
        }
    }

    fn info(&self) -> String {
        format!(
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nhighwater_version:{}\r\n\
             highwater_region:{}\r\n# Persistence\r\nloading:0\r\n# Replication\r\nrole:master\r\n",
            env!("CARGO_PKG_VERSION"),
            self.region.name
        )
    }
}

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

fn no_auth(replies: &mut Replies) {
    replies.error("NOAUTH Authentication required.");
}

fn wrong_number(command: &str, replies: &mut Replies) {
    replies.error(&format!(
        "ERR wrong number of arguments for '{command}' command"
    ));
}

fn unknown(command: &[u8], replies: &mut Replies) {
    let shown: String = String::from_utf8_lossy(command).chars().take(64).collect();
    replies.error(&format!("ERR unknown command '{shown}'"));
}

fn refuse(problem: &Problem, replies: &mut Replies) {
    let code = match problem.status {
        403 => "NOPERM",
        503 => "UNAVAILABLE",
        _ => "ERR",
    };
    replies.error(&format!("{code} {}", problem.detail));
}

/// There is no table of commands; clients that ask for one do without.
fn command_table(arguments: &Words<'_>, replies: &mut Replies) {
    match arguments.first() {
        Some(what) if what.eq_ignore_ascii_case(b"COUNT") => replies.integer(0),
        Some(what) if what.eq_ignore_ascii_case(b"DOCS") => replies.map(0),
        _ => replies.array(0),
    }
}

/// A check's answer as `CL.THROTTLE` gives it: limited, quota, left, when to come back and when all has; -1 for
/// what there is not.
fn numbers(limit: &Limit, told: &ItemOutcome) -> [i64; 5] {
    let number = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
    let seconds = |span: Span| number(span.as_seconds_ceil());
    let limited = told.reason.is_some();
    let (quota, remaining) = if limit.unlimited {
        (-1, -1)
    } else {
        (number(limit.rule.quota()), number(told.standing.remaining))
    };
    let retry = told.retry_after.filter(|_| limited);
    [
        i64::from(limited),
        quota,
        remaining,
        retry.map_or(-1, |wait| seconds(wait).max(1)),
        seconds(told.standing.reset_after),
    ]
}

/// Decides a call of `CL.THROTTLE`.
fn decide(
    region: &Region,
    tenant: &str,
    key: &str,
    throttle: &Throttle,
) -> Result<[i64; 5], Problem> {
    let started = region.clock.stopwatch();
    let now = region.clock.now();
    let view = region.view();
    let tenant_view = resolve::tenant(&view, tenant)?;
    let counted = throttle.counted();
    let item = Item {
        limit: &counted,
        id: LimitId::CL_THROTTLE,
        epoch: 0,
        key,
        cost: throttle.cost(),
    };
    let mut outcome = region.ledger.check(&Request {
        now,
        boot: Span::ZERO,
        tenant,
        items: &[item],
        hold: None,
        keep: false,
        store_failed: region.store.is_failed(),
        judge_only: false,
        words: &[],
    });
    let full_after = outcome
        .items
        .first()
        .map_or(Span::ZERO, |told| told.standing.reset_after);
    let numbers = throttle.answer(outcome.allowed, full_after);
    observe(
        region,
        &Seen {
            now,
            tenant,
            tenant_view,
            items: &[item],
            endpoint: None,
            ip: None,
        },
        throttle,
        (&mut outcome, numbers),
        started,
    );
    Ok(numbers)
}

/// Counts a call, with the amounts that its caller thinks in where they are told.
fn observe(
    region: &Region,
    seen: &Seen<'_>,
    throttle: &Throttle,
    (outcome, numbers): (&mut Outcome, [i64; 5]),
    started: crate::region::clock::Stopwatch,
) {
    if outcome.allowed {
        return region.observe(seen, outcome, started);
    }
    let told = throttle.told();
    let cost = throttle.quantity.unsigned_abs();
    let items = seen.items.iter().map(|item| Item {
        limit: &told,
        cost,
        ..*item
    });
    let items: smallvec::SmallVec<[Item<'_>; 2]> = items.collect();
    for item in &mut outcome.items {
        item.standing.remaining = numbers[2].unsigned_abs();
        item.standing.used = throttle
            .limit
            .unsigned_abs()
            .saturating_sub(item.standing.remaining);
    }
    region.observe(
        &Seen {
            items: &items,
            ..*seen
        },
        outcome,
        started,
    );
}
