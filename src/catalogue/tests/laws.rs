//! Properties of the catalogue under any sequence of entries.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::btree_map;
use proptest::collection::btree_set;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_oneof;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;

use super::operator;
use crate::catalogue::Catalogue;
use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::catalogue::document;
use crate::catalogue::profile::Cost;
use crate::catalogue::profile::Profile;
use crate::catalogue::token::NewToken;
use crate::catalogue::token::Scope;
use crate::catalogue::token::TokenHash;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::OwnLimit;
use crate::catalogue::tree::Plan;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::TenantLimit;
use crate::catalogue::tree::Tree;
use crate::catalogue::view::View;
use crate::domain::calendar::Period;
use crate::domain::limit::Algorithm;
use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::limit::Mode;
use crate::domain::limit::OnUnavailable;
use crate::domain::limit::Rule;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::ProfileName;
use crate::domain::name::TenantName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

const TENANTS: [&str; 4] = ["t1", "t2", "t3", "unknown"];
const LIMITS: [&str; 3] = ["a", "b", "c"];

fn tenant() -> impl Strategy<Value = TenantName> {
    prop_oneof![Just("t1"), Just("t2"), Just("t3"), Just("unknown")]
        .prop_map(|name| TenantName::new(name).expect("a name"))
}

fn plan() -> impl Strategy<Value = PlanName> {
    prop_oneof![Just("p1"), Just("p2")].prop_map(|name| PlanName::new(name).expect("a name"))
}

fn limit() -> impl Strategy<Value = LimitName> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
        .prop_map(|name| LimitName::new(name).expect("a name"))
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![Just("k1"), Just("k\u{0}2")].prop_map(|key| Key::new(key).expect("a key"))
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![Just(1_000), Just(60_000), Just(3_600_000)].prop_map(Span::from_ms)
}

fn amount() -> impl Strategy<Value = Option<u64>> {
    option::of(prop_oneof![0_u64..20, Just(u64::MAX)])
}

/// Limits that are mostly good, so that long sequences get somewhere.
fn good_spec() -> impl Strategy<Value = LimitSpec> {
    let keyed = option::weighted(0.7, Just("user".to_owned()));
    let windows = prop_oneof![
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
    ];
    prop_oneof![
        (windows, 0_u64..20, span(), keyed.clone()).prop_map(|(algorithm, quota, window, key)| {
            LimitSpec {
                algorithm: Some(algorithm),
                quota: Some(quota),
                window: Some(window),
                key,
                ..LimitSpec::default()
            }
        }),
        (1_u64..20, 1_u64..20, span(), keyed.clone()).prop_map(|(capacity, refill, per, key)| {
            LimitSpec {
                capacity: Some(capacity),
                refill: Some(refill),
                per: Some(per),
                key,
                ..LimitSpec::default()
            }
        }),
        (0_u64..20, option::of(1_u32..3), keyed).prop_map(|(quota, every, key)| LimitSpec {
            quota: Some(quota),
            period: Some(Period::Day),
            every,
            key,
            ..LimitSpec::default()
        }),
        Just(LimitSpec {
            unlimited: Some(true),
            ..LimitSpec::default()
        }),
    ]
}

fn wild_spec() -> impl Strategy<Value = LimitSpec> {
    let modes = prop_oneof![Just(Mode::Regional), Just(Mode::Strict)];
    let policies = prop_oneof![Just(OnUnavailable::Local), Just(OnUnavailable::Closed)];
    (
        (
            option::of(Just(Algorithm::TokenBucket)),
            amount(),
            option::of(span()),
            amount(),
            amount(),
        ),
        (
            option::of(modes),
            option::of(policies),
            amount(),
            option::of(any::<bool>()),
        ),
        (
            option::of(btree_set(key(), 0..2)),
            option::of(btree_set(Just("act".to_owned()), 0..2)),
        ),
    )
        .prop_map(
            |(
                (algorithm, quota, window, capacity, refill),
                (mode, policy, fallback, enforce),
                lists,
            )| {
                LimitSpec {
                    algorithm,
                    quota,
                    window,
                    capacity,
                    refill,
                    mode,
                    on_unavailable: policy,
                    fallback_quota: fallback,
                    enforce,
                    always_allow: lists.0,
                    actions: lists.1,
                    ..LimitSpec::default()
                }
            },
        )
}

fn small_spec() -> impl Strategy<Value = LimitSpec> {
    prop_oneof![
        4 => (0_u64..20).prop_map(|quota| LimitSpec { quota: Some(quota), ..LimitSpec::default() }),
        2 => Just(LimitSpec { enforce: Some(false), ..LimitSpec::default() }),
        1 => good_spec(),
        1 => wild_spec(),
        1 => Just(LimitSpec::default()),
    ]
}

fn key_spec() -> impl Strategy<Value = KeySpec> {
    (0_u64..20, option::of(0_i64..200), option::of(any::<bool>())).prop_map(
        |(quota, end, enforce)| KeySpec {
            quota: Some(quota),
            enforce,
            expires_at: end.map(|seconds| Timestamp::from_unix_ms(seconds * 1_000)),
            ..KeySpec::default()
        },
    )
}

fn tenant_limit() -> impl Strategy<Value = TenantLimit> {
    let own =
        (option::of(0_u64..20), btree_map(key(), 0_u64..20, 0..2)).prop_map(|(quota, keys)| {
            OwnLimit {
                quota,
                keys: keys
                    .into_iter()
                    .map(|(key, quota)| {
                        (
                            key,
                            KeySpec {
                                quota: Some(quota),
                                ..KeySpec::default()
                            },
                        )
                    })
                    .collect(),
                ..OwnLimit::default()
            }
        });
    (small_spec(), btree_map(key(), key_spec(), 0..2), own)
        .prop_map(|(spec, keys, own)| TenantLimit { spec, keys, own })
}

fn definition() -> impl Strategy<Value = Tenant> {
    let zone = prop_oneof![Just("UTC".to_owned()), Just("Asia/Kolkata".to_owned())];
    let anchor = Just("2026-01-31T00:00:00".parse().expect("a civil time"));
    (
        option::of(plan()),
        option::weighted(0.2, zone),
        option::weighted(0.2, anchor),
        btree_map(limit(), tenant_limit().prop_map(Arc::new), 0..2),
    )
        .prop_map(|(plan, time_zone, anchor, limits)| Tenant {
            plan,
            time_zone,
            anchor,
            limits,
        })
}

fn plan_definition() -> impl Strategy<Value = Plan> {
    btree_map(limit(), small_spec(), 0..2).prop_map(|limits| Plan { limits })
}

fn profile_name() -> impl Strategy<Value = ProfileName> {
    prop_oneof![Just("p1"), Just("p2")].prop_map(|name| ProfileName::new(name).expect("a name"))
}

fn profile() -> impl Strategy<Value = Profile> {
    (
        option::of(Just("header:X-Tenant".to_owned())),
        prop_oneof![Just("api".to_owned()), Just("query:".to_owned())],
        option::of(prop_oneof![
            any::<u64>().prop_map(Cost::Units),
            Just(Cost::From("header:X-Cost".to_owned()))
        ]),
        option::of(any::<u16>()),
    )
        .prop_map(|(tenant, action, cost, deny_status)| Profile {
            tenant,
            action: Some(action),
            cost,
            deny_status,
            ..Profile::default()
        })
}

fn tree() -> impl Strategy<Value = Tree> {
    (
        option::of(plan()),
        btree_map(limit(), good_spec(), 0..4),
        btree_map(plan(), plan_definition(), 0..3),
        btree_map(tenant(), definition().prop_map(Arc::new), 0..3),
        btree_map(profile_name(), profile(), 0..2),
    )
        .prop_map(|(default_plan, limits, plans, tenants, profiles)| Tree {
            default_plan,
            domains: BTreeMap::new(),
            limits,
            plans,
            tenants,
            profiles,
        })
}

fn new_token() -> impl Strategy<Value = NewToken> {
    let scopes = prop_oneof![Just(Scope::Read), Just(Scope::Tenant), Just(Scope::Check)];
    (
        any::<u8>(),
        scopes,
        option::of(tenant()),
        option::of(any::<i64>()),
    )
        .prop_map(|(byte, scope, tenant, end)| NewToken {
            id: format!("t{}", byte % 8),
            scope,
            tenant,
            hash: TokenHash([byte; 32]),
            expires_at: end.map(Timestamp::from_nanos),
        })
}

fn change() -> impl Strategy<Value = Change> {
    let item = || (tenant(), limit());
    prop_oneof![
        1 => tree().prop_map(|tree| Change::Replace { tree }),
        2 => tree().prop_map(|tree| Change::Patch { tree }),
        4 => (limit(), prop_oneof![3 => good_spec(), 1 => wild_spec()])
            .prop_map(|(limit, spec)| Change::PutLimit { limit, spec }),
        1 => limit().prop_map(|limit| Change::DeleteLimit { limit }),
        2 => (plan(), plan_definition()).prop_map(|(plan, definition)| Change::PutPlan { plan, definition }),
        1 => plan().prop_map(|plan| Change::DeletePlan { plan }),
        2 => (tenant(), definition()).prop_map(|(tenant, definition)| Change::PutTenant { tenant, definition }),
        2 => tenant().prop_map(|tenant| Change::DeleteTenant { tenant }),
        2 => (item(), small_spec())
            .prop_map(|((tenant, limit), spec)| Change::PutTenantLimit { tenant, limit, spec }),
        1 => item().prop_map(|(tenant, limit)| Change::DeleteTenantLimit { tenant, limit }),
        2 => (item(), key(), key_spec())
            .prop_map(|((tenant, limit), key, spec)| Change::PutOverride { tenant, limit, key, spec }),
        1 => (item(), key()).prop_map(|((tenant, limit), key)| Change::DeleteOverride { tenant, limit, key }),
        3 => (item(), option::of(key()))
            .prop_map(|((tenant, limit), key)| Change::Reset { tenant, limit, key }),
        1 => (profile_name(), profile())
            .prop_map(|(profile, definition)| Change::PutProfile { profile, definition }),
        1 => profile_name().prop_map(|profile| Change::DeleteProfile { profile }),
        1 => new_token().prop_map(|token| Change::CreateToken { token }),
        1 => (0_u8..8).prop_map(|id| Change::RevokeToken { id: format!("t{id}") }),
    ]
}

fn author() -> impl Strategy<Value = Author> {
    prop_oneof![
        9 => Just(operator()),
        1 => tenant().prop_map(|tenant| Author::Tenant { tenant, token: "x".to_owned() }),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    (author(), change()).prop_map(|(author, change)| Entry {
        author,
        expected_version: None,
        change,
    })
}

/// A catalogue in which most entries find what they are about.
fn beginning() -> Entry {
    let document = serde_json::json!({
        "default_plan": "p1",
        "limits": {
            "a": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user" },
            "b": { "quota": 10, "period": "day", "key": "user" },
            "c": { "capacity": 10, "refill": 1, "per": "1s" },
        },
        "plans": { "p1": {}, "p2": { "limits": { "a": { "quota": 20 } } } },
        "tenants": {
            "t1": { "plan": "p1" },
            "t2": { "limits": { "b": { "quota": 5, "keys": { "k1": { "quota": 1 } } } } },
            "t3": { "time_zone": "Asia/Kolkata" },
        },
    });
    let tree = document::read_tree(&document).expect("a catalogue");
    Entry {
        author: operator(),
        expected_version: None,
        change: Change::Replace { tree },
    }
}

/// Entries with the seconds that pass before each; most sequences begin with a full catalogue.
fn entries() -> impl Strategy<Value = Vec<(u32, Entry)>> {
    let seconds = prop_oneof![4 => 0_u32..5, 1 => 0_u32..400_000];
    let rest = vec((seconds, entry()), 1..30);
    let first = prop_oneof![5 => Just(Some((0, beginning()))), 1 => Just(None)];
    (first, rest).prop_map(|(first, rest)| first.into_iter().chain(rest).collect())
}

/// What every tenant sees.
fn sights(view: &View, now: Timestamp) -> BTreeMap<(String, String, String), (u64, String)> {
    let mut sights = BTreeMap::new();
    for name in TENANTS {
        let Some(of) = view.tenant(name) else {
            continue;
        };
        for limit in LIMITS {
            let Some(found) = of.limit(limit) else {
                continue;
            };
            for key in ["", "k1", "k\u{0}2"] {
                let (at, epoch) = found.at(key, now);
                let place = (name.to_owned(), limit.to_owned(), key.to_owned());
                sights.insert(place, (epoch, shape(at)));
            }
        }
    }
    sights
}

/// All that says what a counter means, as text.
fn shape(limit: &Limit) -> String {
    let rule = match &limit.rule {
        Rule::FixedWindow { window, .. } => format!("fixed {window}"),
        Rule::SlidingWindow { window, .. } => format!("sliding {window}"),
        Rule::SlidingLog { window, .. } => format!("log {window}"),
        Rule::CalendarWindow { calendar, .. } => format!("{calendar:?}"),
        Rule::TokenBucket { per, .. } => format!("bucket {per}"),
        Rule::LeakyBucket { per, .. } => format!("leaky {per}"),
        Rule::Concurrency { ttl, .. } => format!("concurrency {ttl}"),
    };
    format!("{:?} {:?} {rule}", limit.key, limit.mode)
}

proptest! {
    #[test]
    fn an_entry_survives_its_written_form(entry in entry(), version in option::of(any::<u64>())) {
        let entry = Entry { expected_version: version, ..entry };
        let json = serde_json::to_string(&entry).expect("json");
        prop_assert_eq!(serde_json::from_str::<Entry>(&json).expect("an entry"), entry);
    }

    #[test]
    fn a_document_is_read_as_it_was_written(tree in tree()) {
        let written = serde_json::to_value(&tree).expect("json");
        prop_assert_eq!(document::read_tree(&written), Ok(tree));
    }

    #[test]
    fn a_refused_entry_changes_nothing(entries in entries()) {
        let mut catalogue = Catalogue::new();
        let mut now = Timestamp::EPOCH;
        for (index, (seconds, entry)) in (1..).zip(entries) {
            now = now.plus(Span::from_seconds(seconds.into()));
            let before = catalogue.clone();
            if catalogue.apply(index, now, &entry).is_err() {
                prop_assert_eq!(&catalogue, &before);
                prop_assert_eq!(catalogue.view(), before.view());
                prop_assert_eq!(&catalogue.memories, &before.memories);
            }
        }
    }

    #[test]
    fn a_snapshot_is_the_whole_catalogue(entries in entries()) {
        let mut catalogue = Catalogue::new();
        let mut reread = Catalogue::new();
        let mut now = Timestamp::EPOCH;
        for (index, (seconds, entry)) in (1..).zip(entries) {
            now = now.plus(Span::from_seconds(seconds.into()));
            let result = catalogue.apply(index, now, &entry);
            prop_assert_eq!(reread.apply(index, now, &entry), result);
            prop_assert_eq!(&reread, &catalogue);
            prop_assert_eq!(reread.view(), catalogue.view());
            let json = serde_json::to_string(&catalogue).expect("json");
            reread = serde_json::from_str(&json).expect("a catalogue");
            prop_assert_eq!(&reread, &catalogue);
            prop_assert_eq!(reread.view(), catalogue.view());
            prop_assert_eq!(&reread.memories, &catalogue.memories);
            prop_assert_eq!(&catalogue.epochs.memories(), &catalogue.memories);
        }
    }

    #[test]
    fn epochs_only_rise(entries in entries()) {
        let mut catalogue = Catalogue::new();
        // Time stands still: what is forgotten because all use is dead is another matter.
        let now = Timestamp::EPOCH;
        let mut highest: BTreeMap<(String, String, String), (u64, String)> = BTreeMap::new();
        for (index, (_, entry)) in (1..).zip(entries) {
            if catalogue.apply(index, now, &entry).is_err() {
                continue;
            }
            for (place, (epoch, shape)) in sights(catalogue.view(), now) {
                let known = highest.entry(place).or_insert_with(|| (epoch, shape.clone()));
                prop_assert!(epoch >= known.0, "{} after {:?} at {}", epoch, known, index);
                prop_assert!(epoch > known.0 || shape == known.1, "{} {:?} at {}", shape, known, index);
                *known = (epoch, shape);
            }
        }
    }

    #[test]
    fn no_choice_of_a_tenant_exceeds_what_the_administrator_set(entries in entries()) {
        let mut catalogue = Catalogue::new();
        let now = Timestamp::EPOCH;
        for (index, (_, entry)) in (1..).zip(entries) {
            let _outcome = catalogue.apply(index, now, &entry);
        }
        let mut bare = catalogue.tree().clone();
        let tenants = bare.tenants.values_mut().map(Arc::make_mut);
        for limit in tenants.flat_map(|tenant| tenant.limits.values_mut()) {
            Arc::make_mut(limit).own = OwnLimit::default();
        }
        let mut without = Catalogue::new();
        let change = Change::Replace { tree: bare };
        let entry = Entry { author: operator(), expected_version: None, change };
        without.apply(1, now, &entry).expect("own choices are needed by nobody");
        let names: BTreeSet<&str> = TENANTS.into_iter().collect();
        for (name, limit) in names.into_iter().flat_map(|name| LIMITS.map(|limit| (name, limit))) {
            let find = |of: &Catalogue| of.view().tenant(name).and_then(|t| t.limit(limit).cloned());
            let (Some(with), Some(ceiling)) = (find(&catalogue), find(&without)) else { continue };
            for key in ["", "k1", "k\u{0}2"] {
                let (ours, theirs) = (with.at(key, now).0, ceiling.at(key, now).0);
                prop_assert!(theirs.unlimited || !ours.unlimited);
                prop_assert!(theirs.unlimited || ours.rule.quota() <= theirs.rule.quota());
                prop_assert_eq!(ours.enforce, theirs.enforce);
            }
        }
    }
}
