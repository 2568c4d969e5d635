//! The fields of a limit as values: which algorithm uses which, and how one layer is laid over another.

use crate::domain::limit::Algorithm;
use crate::domain::limit::LimitSpec;
use crate::domain::limit::Mode;

macro_rules! written {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

macro_rules! fields {
    ($($variant:ident $field:ident $(as $name:literal)?),+ $(,)?) => {
        /// A field of a limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field {
            $(#[doc = concat!("`", written!($field $($name)?), "`")] $variant,)+
        }

        impl Field {
            /// All fields, in the order in which they are documented.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The field's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => written!($field $($name)?),)+
                }
            }

            /// Whether `spec` names the field.
            pub const fn is_in(self, spec: &LimitSpec) -> bool {
                match self {
                    $(Self::$variant => spec.$field.is_some(),)+
                }
            }

            /// Takes the field out of `spec`.
            pub fn clear(self, spec: &mut LimitSpec) {
                match self {
                    $(Self::$variant => spec.$field = None,)+
                }
            }

            /// Sets the field of `spec` to what `from` has.
            pub fn copy(self, from: &LimitSpec, spec: &mut LimitSpec) {
                match self {
                    $(Self::$variant => spec.$field.clone_from(&from.$field),)+
                }
            }
        }
    };
}

fields! {
    Algorithm algorithm,
    Quota quota,
    Window window,
    Period period,
    Every every,
    Anchor anchor,
    TimeZone time_zone,
    Capacity capacity,
    Refill refill,
    Drain drain,
    Per per,
    Ttl ttl,
    Key key,
    Actions actions,
    Match matches as "match",
    Mode mode,
    OnUnavailable on_unavailable,
    FallbackQuota fallback_quota,
    OnPartition on_partition,
    Split split,
    AlwaysAllow always_allow,
    Overdraft overdraft,
    Durability durability,
    Enforce enforce,
    Unlimited unlimited,
}

/// Fields that belong to some algorithms and not to others.
pub const OF_ALGORITHMS: [Field; 11] = [
    Field::Quota,
    Field::Window,
    Field::Period,
    Field::Every,
    Field::Anchor,
    Field::TimeZone,
    Field::Capacity,
    Field::Refill,
    Field::Drain,
    Field::Per,
    Field::Ttl,
];

/// Number of fields.
pub const FIELDS: usize = Field::ALL.len();

/// The fields that `algorithm` has, besides those that every limit has.
pub const fn used_by(algorithm: Algorithm) -> &'static [Field] {
    match algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog => {
            &[Field::Quota, Field::Window]
        }
        Algorithm::CalendarWindow => &[
            Field::Quota,
            Field::Period,
            Field::Every,
            Field::Anchor,
            Field::TimeZone,
        ],
        Algorithm::TokenBucket => &[Field::Capacity, Field::Refill, Field::Per],
        Algorithm::LeakyBucket => &[Field::Capacity, Field::Drain, Field::Per],
        Algorithm::Concurrency => &[Field::Quota, Field::Ttl],
    }
}

/// The modes that `algorithm` has.
pub const fn modes_of(algorithm: Algorithm) -> &'static [Mode] {
    match algorithm {
        Algorithm::FixedWindow
        | Algorithm::CalendarWindow
        | Algorithm::SlidingWindow
        | Algorithm::TokenBucket
        | Algorithm::Concurrency => &[Mode::Regional, Mode::Approximate, Mode::Strict],
        Algorithm::SlidingLog => &[Mode::Regional, Mode::Strict],
        Algorithm::LeakyBucket => &[Mode::Regional],
    }
}

/// The algorithm's name as it is written.
pub const fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => "fixed_window",
        Algorithm::CalendarWindow => "calendar_window",
        Algorithm::SlidingWindow => "sliding_window",
        Algorithm::SlidingLog => "sliding_log",
        Algorithm::TokenBucket => "token_bucket",
        Algorithm::LeakyBucket => "leaky_bucket",
        Algorithm::Concurrency => "concurrency",
    }
}

/// The mode's name as it is written.
pub const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Regional => "regional",
        Mode::Approximate => "approximate",
        Mode::Strict => "strict",
    }
}

/// Names joined for a sentence: `a`, `a or b`, `a, b or c`.
pub fn choices<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_written_field_is_in_the_table() {
        let mut spec = LimitSpec::default();
        assert!(Field::ALL.iter().all(|field| !field.is_in(&spec)));
        spec.quota = Some(1);
        let written = serde_json::to_value(&spec).expect("json");
        let names: Vec<&str> = Field::ALL
            .iter()
            .filter(|field| field.is_in(&spec))
            .map(|field| field.name())
            .collect();
        assert_eq!(
            written
                .as_object()
                .expect("a table")
                .keys()
                .collect::<Vec<_>>(),
            names
        );
        // Serde names all fields when it meets one that it does not know.
        let unknown = serde_json::json!({ "x": 1 });
        let error = serde_json::from_value::<LimitSpec>(unknown)
            .expect_err("unknown")
            .to_string();
        for field in Field::ALL {
            assert!(
                error.contains(&format!("`{}`", field.name())),
                "{}",
                field.name()
            );
        }
        assert_eq!(error.matches('`').count(), 2 * (FIELDS + 1));
    }

    #[test]
    fn every_field_of_an_algorithm_is_listed() {
        for algorithm in [
            Algorithm::FixedWindow,
            Algorithm::CalendarWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::Concurrency,
        ] {
            for field in used_by(algorithm) {
                assert!(OF_ALGORITHMS.contains(field), "{}", field.name());
            }
            let written = serde_json::to_value(algorithm).expect("json");
            assert_eq!(written, algorithm_name(algorithm));
        }
    }

    #[test]
    fn choices_read_as_a_sentence() {
        assert_eq!(choices(["a"]), "a");
        assert_eq!(choices(["a", "b", "c"]), "a, b or c");
    }
}
