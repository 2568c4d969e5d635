//! Numbers and texts as bytes: what the frames of [`crate::replication::wire`] are made of.
//!
//! A number is written seven bits a byte, lowest first, the high bit set on all but the last; a signed one
//! is folded first, so that small ones of either sign are short. Reading checks every length against what
//! is there and never allocates.

use thiserror::Error;

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("not a replication frame: {0}")]
pub struct WireError(pub(crate) &'static str);

/// Writes a number.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes what turns `from` into `to`; any two are far enough from each other.
#[inline]
pub(crate) fn put_step(out: &mut Vec<u8>, from: i64, to: i64) {
    let step = to.wrapping_sub(from);
    put(out, ((step << 1) ^ (step >> 63)) as u64);
}

/// Writes a text with its length in front.
#[inline]
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    /// One byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        let (first, rest) = self.0.split_first().ok_or(WireError("it ends too early"))?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next `count` bytes.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(WireError("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Eight bytes, lowest first.
    #[inline]
    pub(crate) fn fixed(&mut self) -> Result<u64, WireError> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<8>()
            .ok_or(WireError("it ends too early"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*taken))
    }

    /// A number.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<u64, WireError> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError("a number beyond 64 bits"))
    }

    /// A number that fits 16 bits.
    #[inline]
    pub(crate) fn short(&mut self) -> Result<u16, WireError> {
        u16::try_from(self.number()?).map_err(|_| WireError("a number beyond 16 bits"))
    }

    /// What [`put_step`] wrote, from the same `from`.
    #[inline]
    pub(crate) fn step(&mut self, from: i64) -> Result<i64, WireError> {
        let folded = self.number()?;
        let step = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Ok(from.wrapping_add(step))
    }

    /// A text of at most `bytes_max` bytes.
    #[inline]
    pub(crate) fn text(&mut self, bytes_max: usize) -> Result<&'a str, WireError> {
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Err(WireError("a name that is too long"));
        }
        str::from_utf8(self.take(length)?).map_err(|_| WireError("a name that is no text"))
    }

    /// A count of things of which each takes at least `bytes_each` of the bytes that are left.
    #[inline]
    pub(crate) fn count(&mut self, bytes_each: usize) -> Result<usize, WireError> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.0.len() / bytes_each {
            return Err(WireError("a count beyond the bytes that follow"));
        }
        Ok(count)
    }
}
