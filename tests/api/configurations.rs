//! Real configurations as catalogue files, applied with the command line, and their probes.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::server::Server;

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/configs")
        .join(name);
    path.to_str().expect("a readable path").to_owned()
}

fn told(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A server with the file applied; applying it again changes nothing, which `diff` knows before.
fn with_file(name: &str) -> Server {
    applied_to(Server::start(), name)
}

fn applied_to(server: Server, name: &str) -> Server {
    let path = file(name);
    let diff = || server.cli(&["diff", "-f", &path]);
    assert_eq!(
        diff().status.code(),
        Some(1),
        "it differs at first: {}",
        told(&diff())
    );
    let applied = server.cli(&["apply", "-f", &path]);
    assert_eq!(applied.status.code(), Some(0), "{}", told(&applied));
    assert_eq!(
        diff().status.code(),
        Some(0),
        "it is the same afterwards: {}",
        told(&diff())
    );
    let again = server.cli(&["apply", "-f", &path]);
    assert_eq!(again.status.code(), Some(0), "{}", told(&again));
    server
}

fn act(server: &Server, tenant: &str, action: &str, keys: &Value) -> Answer {
    server.check(&json!({ "tenant": tenant, "action": action, "keys": keys }))
}

/// How many of `calls` such checks, 1000 a batch, are allowed.
fn passes(server: &Server, calls: usize, check: &Value) -> usize {
    let mut allowed = 0;
    for batch in vec![check.clone(); calls].chunks(1000) {
        allowed += server
            .batch(batch)
            .iter()
            .filter(|item| item["status"] == 200)
            .count();
    }
    allowed
}

fn action(tenant: &str, action: &str, keys: &Value) -> Value {
    json!({ "tenant": tenant, "action": action, "keys": keys })
}

fn ms(time: &str) -> i64 {
    time.parse::<Timestamp>().expect("a time").as_millisecond()
}

/// The example of the documentation.
#[test]
fn the_example_does_what_it_says() {
    let server = Server::start();
    server.set_clock(ms("2026-12-01T00:00:00Z"));
    let server = applied_to(server, "example.toml");
    let gpt = |tenant| Counter::keyed(&server, tenant, "tokens", "gpt-5");
    server.set_clock(ms("2026-12-31T23:59:59.999Z"));
    assert_eq!(gpt("acme").look().quota(), 800_000);
    server.set_clock(ms("2027-01-01T00:00:00Z"));
    assert_eq!(
        gpt("acme").look().quota(),
        400_000,
        "the override has ended, the plan holds"
    );
    assert_eq!(
        Counter::keyed(&server, "acme", "tokens", "other")
            .look()
            .quota(),
        400_000
    );
    assert_eq!(
        gpt("somebody").look().quota(),
        40_000,
        "an unknown tenant is on the default plan"
    );

    server.set_clock(ms("2035-02-10T18:29:59.999Z"));
    assert_eq!(
        Counter::new(&server, "acme", "exports")
            .take(500)
            .remaining(),
        0
    );
    server.set_clock(ms("2035-02-10T18:30:00Z"));
    assert_eq!(
        Counter::new(&server, "acme", "exports").left(),
        500,
        "midnight in Kolkata"
    );
    assert_eq!(Counter::new(&server, "somebody", "exports").left(), 10);
    assert!(act(&server, "globex", "export", &json!({})).allowed());
    assert_eq!(
        Counter::new(&server, "globex", "exports").look().only()["quota"],
        Value::Null
    );

    let api = action(
        "somebody",
        "api",
        &json!({ "endpoint": "POST /v1/sms", "ip": "203.0.113.9" }),
    );
    assert_eq!(passes(&server, 30, &api), 25);
    assert_eq!(Counter::new(&server, "somebody", "account").used(), 25);
    let login = action("somebody", "login", &json!({ "ip": "203.0.113.9" }));
    assert_eq!(passes(&server, 7, &login), 5);
    let sockets = Counter::keyed(&server, "somebody", "sockets", "u");
    assert!(sockets.hold(5, "").allowed());
    assert!(!sockets.hold(1, "").allowed());
}

/// CF-1.
#[test]
fn envoys_example() {
    let server = with_file("envoy.toml");
    let call = |name: &str, keys: Value| act(&server, "mesh", name, &keys);
    let allowed = |name: &str, keys: Value, calls: usize| {
        passes(&server, calls, &action("mesh", name, &keys))
    };
    assert_eq!(allowed("path", json!({ "clusters": "proxy/mock" }), 3), 1);
    assert_eq!(
        [
            allowed("files/*", json!({}), 60),
            allowed("files/*", json!({}), 40),
            allowed("files/*", json!({}), 1)
        ],
        [60, 40, 0]
    );
    assert_eq!(allowed("foo", json!({ "foo": "x" }), 3), 2);
    assert_eq!(
        allowed("foo", json!({ "foo": "y" }), 3),
        2,
        "each value has its own counter"
    );
    assert_eq!(allowed("foo/bar", json!({ "foo/bar": "x/any" }), 5), 3);
    assert_eq!(allowed("foo/bar=banned", json!({ "foo": "x" }), 5), 0);
    assert_eq!(
        call("foo/bar=banned", json!({ "foo": "x" })).retry_after(),
        None
    );
    assert_eq!(allowed("foo/baz", json!({ "foo/baz": "x/any" }), 2), 1);
    assert_eq!(allowed("foo/bay", json!({ "foo": "x" }), 1000), 1000);
    assert_eq!(allowed("qux", json!({}), 1000), 1000);
    let shady = [
        call("foo/baz=shady", json!({ "foo": "x" })),
        call("foo/baz=shady", json!({ "foo": "x" })),
    ];
    assert_eq!(shady.each_ref().map(Answer::allowed), [true, true]);
    assert_eq!(
        shady[1].only()["would_deny"],
        true,
        "allowed but flagged: {:?}",
        shady[1]
    );
    assert_eq!(
        allowed("test*", json!({ "test": "test1" }), 60),
        50,
        "the exact value beats the wildcard"
    );
    assert_eq!(allowed("test*", json!({ "test": "test2" }), 110), 100);
    assert_eq!(
        allowed("svc*ep*rpc", json!({ "value": "svc-a-ep-b-rpc" }), 60),
        50
    );
    assert_eq!(allowed("api*v1", json!({ "value": "api-a-v1" }), 110), 100);
    assert_eq!(allowed("nested/shared*", json!({}), 130), 120);
    assert_eq!(
        allowed("nested/apart*", json!({ "outer/inner": "a/b" }), 160),
        150
    );
    assert_eq!(
        allowed("nested/apart*", json!({ "outer/inner": "a/c" }), 160),
        150
    );
    assert_eq!(allowed("multiplied", json!({}), 30), 20);
    server.at(60_000);
    assert_eq!(
        allowed("multiplied", json!({}), 1),
        0,
        "five minutes, not one"
    );
    assert_eq!(allowed("foo", json!({ "foo": "x" }), 3), 2);
    server.at(300_000);
    assert_eq!(allowed("multiplied", json!({}), 30), 20);
}

/// CF-3. A caller's own limit becomes the limit's definition, so a changed one is a change of the catalogue, and
/// the use is kept.
#[test]
fn gubernators_request() {
    let server = with_file("gubernator.toml");
    let requests = Counter::keyed(&server, "callers", "requests_per_sec", "account.id=1234");
    assert_eq!(requests.take(1).remaining(), 9);
    let raised = json!({ "algorithm": "token_bucket", "capacity": 20, "refill": 20, "per": "60000ms", "key": "unique_key" });
    server
        .admin(Method::PUT, "/admin/v1/limits/requests_per_sec", &raised)
        .succeeded();
    assert_eq!(requests.take(1).remaining(), 18, "20 − 2");

    let bursty = Counter::keyed(&server, "callers", "bursty", "k");
    assert_eq!(bursty.passes(25), 20);
    server.at(60_000);
    assert_eq!(bursty.passes(25), 10, "burst 20 with limit 10");

    server.set_clock(ms("2035-02-10T12:00:00Z"));
    for (limit, end) in [
        ("hourly", "2035-02-10T13:00:00Z"),
        ("daily", "2035-02-11T00:00:00Z"),
        ("weekly", "2035-02-12T00:00:00Z"),
        ("monthly", "2035-03-01T00:00:00Z"),
        ("yearly", "2036-01-01T00:00:00Z"),
    ] {
        let answer = Counter::keyed(&server, "callers", limit, "k").take(10);
        assert_eq!(
            (answer.remaining(), answer.reset_at()),
            (0, ms(end) / 1000),
            "{limit}: {answer:?}"
        );
    }
}

/// CF-5.
#[test]
fn lets_encrypts_limits_and_overrides() {
    let server = with_file("boulder.toml");
    let counter =
        |limit: &'static str, key: &'static str| Counter::keyed(&server, "boulder", limit, key);
    let full = |limit, key, calls: usize, wait: u64| {
        let counter = counter(limit, key);
        assert_eq!(
            passes(&server, calls, &counter.body()),
            calls,
            "{limit} {key}"
        );
        let refused = counter.take(1);
        assert!(!refused.allowed());
        assert_eq!(
            refused.retry_after(),
            Some(wait),
            "{limit} {key}: {refused:?}"
        );
    };
    full("new-orders", "1", 300, 36);
    full("new-orders", "12345678", 300, 18);
    full("certificates", "example.com", 50, 12_096);
    full("new-registrations", "10.0.0.1", 20, 1);
    full("registrations-net", "2001:0db8:0000::/48", 1000, 11);
    full("same-names", "12345678:example.com,example.org", 10, 60_480);
    full("same-names", "12345678:example.com", 5, 120_960);
    assert_eq!(
        counter("new-registrations", "10.0.0.2")
            .take(20)
            .reset_after_ms(),
        500,
        "twice the refill"
    );
    server.at(18_000);
    assert_eq!(counter("new-orders", "12345678").passes(2), 1);
    assert_eq!(counter("new-orders", "1").passes(1), 0);
    server.at(36_000);
    assert_eq!(counter("new-orders", "1").passes(2), 1);
}

/// CF-5: refused as a whole, naming file and line, and nothing stored.
#[test]
fn files_that_must_be_refused_name_their_line() {
    let server = Server::start();
    server.limits(&json!({ "kept": { "algorithm": "fixed_window", "quota": 5, "window": "60s" } }));
    let before = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    let directory = file("refused");
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .expect("the files")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10);
    for path in files {
        let path = path.to_str().expect("a readable path");
        let text = fs::read_to_string(path).expect("read");
        let output = server.cli(&["apply", "-f", path]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(1),
            "an invalid file is a no: {}",
            told(&output)
        );
        for (line, expected) in refused_lines(&text) {
            assert!(
                error.contains(&format!("{path}:{line}")),
                "names {path}:{line}: {error}"
            );
            assert!(error.contains(&expected), "says {expected:?}: {error}");
        }
        let after = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
        assert_eq!(after.body, before.body, "{path} stored nothing");
    }
}

/// Lines that end in `# refused: WORD`, with the word that the message must have.
fn refused_lines(text: &str) -> Vec<(usize, String)> {
    let marked = text.lines().enumerate().filter_map(|(index, line)| {
        line.split_once("# refused:")
            .map(|(_, expected)| (index + 1, expected.trim().to_owned()))
    });
    marked.collect()
}

/// CF-7.
#[test]
fn mastodons_throttles() {
    let server = with_file("mastodon.toml");
    let tenant = "mastodon.example";
    let user = Counter::keyed(&server, tenant, "api-user", "u");
    let api = |token: &str| {
        action(
            tenant,
            "api",
            &json!({ "user": "u", "token": token, "ip": "198.51.100.1" }),
        )
    };
    assert_eq!(passes(&server, 301, &api("token 1")), 300);
    assert_eq!(user.used(), 300, "the refused call charged no limit");
    for token in ["token 2", "token 3", "token 4", "token 5"] {
        assert_eq!(passes(&server, 300, &api(token)), 300);
    }
    assert_eq!(user.used(), 1500);
    let sixth = server.check(&api("token 6"));
    assert!(!sixth.allowed());
    assert_eq!(
        sixth.body["violated-policies"],
        json!(["api-user"]),
        "{sixth:?}"
    );

    let log_in = |keys: Value| act(&server, tenant, "log-in", &keys);
    let without_email = log_in(json!({ "ip": "198.51.100.2" }));
    assert!(without_email.allowed());
    let names: Vec<&str> = without_email.body["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|result| result["limit"].as_str())
        .collect();
    assert_eq!(
        names,
        ["block-list", "log-in-ip"],
        "a key that is absent skips its rule"
    );
    for address in 0..25 {
        assert!(
            log_in(json!({ "ip": format!("198.51.100.{address}"), "email": "a@example.com" }))
                .allowed()
        );
    }
    let refused = log_in(json!({ "ip": "198.51.100.99", "email": "a@example.com" }));
    assert!(!refused.allowed());
    assert_eq!(
        refused.body["violated-policies"],
        json!(["log-in-email"]),
        "{refused:?}"
    );

    let unauthenticated = |ip: &str| action(tenant, "unauthenticated", &json!({ "ip": ip }));
    assert_eq!(
        passes(&server, 400, &unauthenticated("127.0.0.1")),
        400,
        "let through"
    );
    assert_eq!(
        passes(&server, 310, &unauthenticated("2001:db8:1:2::/64")),
        300
    );
    let blocked = server.check(&unauthenticated("203.0.113.66"));
    assert!(!blocked.allowed());
    assert_eq!(
        (&blocked.body["violated-policies"], blocked.retry_after()),
        (&json!(["block-list"]), None),
        "{blocked:?}"
    );
    server.at(300_000);
    assert_eq!(
        passes(&server, 301, &api("token 1")),
        300,
        "five minutes later"
    );
}

/// CF-9. By the rule that a refused call takes nothing, 75 of the account's 100 are left after 25 calls.
#[test]
fn stripes_limits() {
    let server = with_file("stripe.toml");
    let account = Counter::keyed(&server, "live", "account", "acct_1");
    let api = |endpoint: &str| {
        let keys = json!({ "account": "acct_1", "account endpoint": format!("acct_1 {endpoint}") });
        action("live", "api", &keys)
    };
    assert_eq!(passes(&server, 26, &api("POST /v1/charges")), 25);
    assert_eq!(account.left(), 75);
    assert_eq!(passes(&server, 5, &api("POST /v1/charges")), 0);
    assert_eq!(account.left(), 75, "and stay left");
    assert_eq!(passes(&server, 25, &api("GET /v1/charges/:id")), 25);
    assert_eq!(account.left(), 50);

    let meter = action("live", "meter_event", &json!({ "account": "acct_1" }));
    assert_eq!(passes(&server, 1001, &meter), 1000);
    assert_eq!(
        account.left(),
        50,
        "meter events leave the account's limit alone"
    );

    let update = |object: &str, account: &str| {
        action(
            "live",
            "payment_intents.update",
            &json!({ "account": account, "object": object }),
        )
    };
    let updated: usize = (0..11)
        .map(|second| {
            server.at(1000 + second * 1000);
            passes(&server, 100, &update("pi_1", "acct_1"))
        })
        .sum();
    assert_eq!(
        updated, 1000,
        "the 1001st update of one object in an hour is refused"
    );
    assert!(
        server.check(&update("pi_2", "acct_1")).allowed(),
        "another object passes"
    );

    server.at(20_000);
    let big = action("live", "files.read", &json!({ "account": "acct_big" }));
    assert_eq!(passes(&server, 30, &big), 20);
    assert_eq!(
        Counter::keyed(&server, "live", "account", "acct_big")
            .look()
            .quota(),
        500
    );
    assert_eq!(
        Counter::keyed(&server, "sandbox", "account", "acct_1")
            .look()
            .quota(),
        25
    );
    let in_flight = Counter::keyed(&server, "live", "in-flight", "acct_1");
    assert!(in_flight.hold(20, "").allowed());
    assert!(!in_flight.hold(1, "").allowed());
    server.set_clock(ms("2035-02-01T00:00:00Z"));
    assert_eq!(
        Counter::keyed(&server, "live", "account", "acct_big")
            .look()
            .quota(),
        100,
        "the raise has ended"
    );
}

/// `apply` deletes nothing by itself; `--prune` deletes plans and limits that the file does not name, never tenants.
#[test]
fn apply_deletes_only_when_told_to_prune() {
    let server = with_file("boulder.toml");
    let extra = json!({ "algorithm": "fixed_window", "quota": 5, "window": "60s" });
    server
        .admin(Method::PUT, "/admin/v1/limits/extra", &extra)
        .succeeded();
    server
        .admin(Method::PUT, "/admin/v1/tenants/guest", &json!({}))
        .succeeded();
    let path = file("boulder.toml");
    let get = |path: &str| server.admin(Method::GET, path, &Value::Null).status;
    assert_eq!(server.cli(&["apply", "-f", &path]).status.code(), Some(0));
    assert_eq!(
        (
            get("/admin/v1/limits/extra"),
            get("/admin/v1/tenants/guest")
        ),
        (200, 200)
    );
    let pruned = server.cli(&["apply", "-f", &path, "--prune"]);
    assert_eq!(pruned.status.code(), Some(0), "{}", told(&pruned));
    assert_eq!(
        (
            get("/admin/v1/limits/extra"),
            get("/admin/v1/tenants/guest")
        ),
        (404, 200)
    );
}

/// Applying the file again keeps the use of limits that did not change their shape; `diff` says which would.
#[test]
fn applying_again_keeps_the_use() {
    let server = with_file("boulder.toml");
    let orders = Counter::keyed(&server, "boulder", "new-orders", "1");
    assert!(orders.take(120).allowed());
    let changed = server.directory().join("changed.toml");
    let text = fs::read_to_string(file("boulder.toml")).expect("read");
    fs::write(
        &changed,
        text.replace(
            "capacity = 300, refill = 300",
            "capacity = 400, refill = 300",
        ),
    )
    .expect("written");
    let path = changed.to_str().expect("a readable path");
    assert_eq!(server.cli(&["apply", "-f", path]).status.code(), Some(0));
    assert_eq!(orders.left(), 280);
    fs::write(
        &changed,
        text.replace(
            "per = \"180m\", key = \"account\"",
            "per = \"90m\", key = \"account\"",
        ),
    )
    .expect("written");
    let diff = server.cli(&["diff", "-f", path]);
    assert_eq!(diff.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&diff.stdout).contains("new-orders"),
        "{}",
        told(&diff)
    );
    assert_eq!(server.cli(&["apply", "-f", path]).status.code(), Some(0));
    assert_eq!(orders.left(), 300, "another shape starts from zero");
}
