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
pub const SHIPPED: &[Shipped] = shipped!["leader-loss"];

/// The scenario of that name.
pub fn named(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|shipped| shipped.name == name)
}
