//! The scenarios that come with the program, compiled in.

/// A scenario's name and text.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Its name, as in `drill run NAME`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),+ $(,)?) => {
        &[$(Shipped {
            name: $name,
            text: include_str!(concat!("../../ops/drills/", $name, ".toml")),
        }),+]
    };
}

/// All of them, in the order in which one would run them.
pub const SHIPPED: &[Shipped] = shipped![
    "region-crash",
    "leader-loss",
    "leader-transfer",
    "partition-majority",
    "partition-minority",
    "one-way-link",
    "slow-link",
    "flapping-link",
    "clock-skew",
    "disk-full",
    "restart-from-backup",
    "wiped-region",
    "rolling-restart",
    "rejoin-after-hours",
    "burst-everywhere",
    "evacuate-region",
];

/// The scenario of that name.
pub fn named(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|shipped| shipped.name == name)
}
