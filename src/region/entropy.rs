//! The only source of randomness in the crate.
//!
//! What must not be guessed (tokens, holds) and what must not repeat (incarnations) is drawn here and passed
//! on as a value, so that everything else gives the same outputs for the same inputs.

/// 64 random bits, from a cryptographic generator seeded by the system.
pub fn bits64() -> u64 {
    rand::random()
}

/// 128 random bits, from a cryptographic generator seeded by the system.
pub fn bits128() -> u128 {
    rand::random()
}

/// `N` random bytes, from a cryptographic generator seeded by the system.
pub fn bytes<const N: usize>() -> [u8; N] {
    rand::random()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_differ() {
        assert_ne!(bits64(), bits64());
        assert_ne!(bits128(), bits128());
        assert_ne!(bytes::<32>(), bytes::<32>());
    }
}
