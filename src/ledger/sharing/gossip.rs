//! Two bytes that tell the others how much is wanted here.
//!
//! A byte is a logarithm: 0 is nothing, and each step is an eighth of a doubling from a sixteenth of a unit
//! up to 226 million units. A value read back is within 5 % of the one told, from four units up.

/// Values are in parts of a unit: this many bits after the point.
pub(super) const FRACTION_BITS: u32 = 4;
const STEPS: u64 = 8;
/// Bits after the point of the tables.
const TABLE_BITS: u32 = 16;
/// 2^(i/8).
const POWERS: [u64; 8] = [
    65_536, 71_468, 77_936, 84_990, 92_682, 101_070, 110_218, 120_194,
];
/// 2^((i + ½)/8): above it the next step is nearer.
const BORDERS: [u64; 8] = [
    68_438, 74_632, 81_386, 88_752, 96_785, 105_545, 115_098, 125_515,
];

/// What a region tells of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gossip {
    /// Units per second that are asked for, refused ones too.
    pub demand: u8,
    /// Most units asked for within 300 ms, half forgotten every 30 s.
    pub peak: u8,
}

/// The byte nearest to `sixteenths` of a unit.
pub(super) fn encoded(sixteenths: u64) -> u8 {
    if sixteenths == 0 {
        return 0;
    }
    let whole = sixteenths.ilog2();
    let rest = if whole <= TABLE_BITS {
        sixteenths << (TABLE_BITS - whole)
    } else {
        sixteenths >> (whole - TABLE_BITS)
    };
    let steps = BORDERS.iter().filter(|border| rest >= **border).count() as u64;
    u8::try_from(1 + u64::from(whole) * STEPS + steps).unwrap_or(u8::MAX)
}

/// Sixteenths of a unit that `byte` stands for.
pub(super) fn decoded(byte: u8) -> u64 {
    let Some(steps) = u64::from(byte).checked_sub(1) else {
        return 0;
    };
    let scaled = POWERS[(steps % STEPS) as usize] << (steps / STEPS);
    (scaled + (1 << (TABLE_BITS - 1))) >> TABLE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_near_what_was_told() {
        assert_eq!(encoded(0), 0);
        assert_eq!(decoded(0), 0);
        for value in (64..40_000).chain((2..27).map(|power| (16 << power) + 5)) {
            let read = decoded(encoded(value));
            assert!(read.abs_diff(value) * 20 <= value, "{value} {read}");
        }
        assert_eq!(encoded(u64::MAX), u8::MAX);
        assert_eq!(decoded(u8::MAX) >> FRACTION_BITS, 225_726_464);
    }

    #[test]
    fn bytes_rise_with_what_they_tell() {
        for byte in 1..=u8::MAX {
            assert!(decoded(byte - 1) <= decoded(byte));
        }
        for byte in 40..=u8::MAX {
            assert_eq!(encoded(decoded(byte)), byte);
        }
    }
}
