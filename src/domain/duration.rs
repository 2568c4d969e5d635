//! The written form of a duration: one integer and `ms`, `s`, `m`, `h` or `d`.

use thiserror::Error;

use crate::domain::time::Span;

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];

/// Why a text is not a duration.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("\"{text}\" is not a duration; write one integer and ms, s, m, h or d, as in \"30s\"")]
pub struct InvalidDuration {
    text: String,
}

/// Reads `30s`, `100ms`, `35d` and the like.
///
/// # Errors
/// When the text is anything but one unsigned integer followed by a known unit, or does not fit 584 years.
pub fn parse(text: &str) -> Result<Span, InvalidDuration> {
    let invalid = || InvalidDuration {
        text: text.chars().take(64).collect(),
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let (_, nanos) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(invalid)?;
    number
        .checked_mul(*nanos)
        .map(Span::from_nanos)
        .ok_or_else(invalid)
}

/// Writes `span` in the largest unit that divides it; below a millisecond it is rounded up.
pub fn format(span: Span) -> String {
    let nanos = span
        .as_ms_ceil()
        .saturating_mul(crate::domain::time::NANOS_PER_MS);
    if nanos == 0 {
        return "0s".to_owned();
    }
    let (unit, size) = UNITS
        .iter()
        .find(|(_, size)| nanos.is_multiple_of(*size))
        .unwrap_or(&("ms", 1_000_000));
    format!("{}{unit}", nanos / size)
}

/// Serde adapter for `Option<Span>` fields written as text.
pub mod optional {
    use serde::Deserialize;
    use serde::Deserializer;
    use serde::Serializer;
    use serde::de::Error;

    use crate::domain::time::Span;

    /// Writes the duration as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(span: &Option<Span>, serializer: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.serialize_str(&super::format(*span)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the duration from text.
    ///
    /// # Errors
    /// When the value is not a text or not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Span>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text).map_err(D::Error::custom))
            .transpose()
    }
}

/// Serde adapter for `Span` fields written as text.
pub mod text {
    use serde::Deserialize;
    use serde::Deserializer;
    use serde::Serializer;
    use serde::de::Error;

    use crate::domain::time::Span;

    /// Writes the duration as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format(*span))
    }

    /// Reads the duration from text.
    ///
    /// # Errors
    /// When the value is not a text or not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["1ms", "1500ms", "30s", "1m", "90m", "24h", "35d"] {
            let span = parse(text).expect(text);
            assert_eq!(parse(&format(span)), Ok(span));
        }
        assert_eq!(format(Span::from_seconds(86_400)), "1d");
        assert_eq!(format(Span::ZERO), "0s");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "s",
            "10",
            "1.5s",
            "-1s",
            "+1s",
            "1 s",
            "1w",
            "1S",
            "99999999999999999999s",
            "99999999999d",
            "1s1s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
