//! The documents and answers that the cases speak of. They are fixed: a digest of one of them may be written
//! into a test.

use crate::upstream::Reply;

const PDF: &[u8; 9] = b"%PDF-1.7\n";

/// A document of 4096 bytes that looks like a PDF and is none.
pub static DOC: [u8; 4096] = fixed(1);
/// Another one of the same length.
pub static DOC2: [u8; 4096] = fixed(2);

/// The next state and number of the SplitMix64 generator; its sequence never changes with a library.
const fn split_mix(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, mixed ^ (mixed >> 31))
}

const fn fixed(seed: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    fill(&mut bytes, seed);
    bytes
}

const fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed;
    let mut at = 0;
    while at < bytes.len() {
        if at < PDF.len() {
            bytes[at] = PDF[at];
        } else {
            let (next, number) = split_mix(state);
            state = next;
            bytes[at] = number.to_le_bytes()[0];
        }
        at += 1;
    }
}

/// A document of `len` bytes: `%PDF-1.7\n` (cut when shorter), then bytes by the seed. `random_document(1, 4096)`
/// is [`DOC`].
pub fn random_document(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

/// The refusal that the cases call R400: 400, `application/json`, `{"error":"unreadable page"}` (27 bytes).
pub fn r400() -> Reply {
    Reply::status(400).header("Content-Type", "application/json").body(r#"{"error":"unreadable page"}"#)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::hex;
    use sha2::{Digest, Sha256};

    #[test]
    fn documents_are_fixed_and_differ() {
        assert!(DOC.starts_with(PDF) && DOC2.starts_with(PDF));
        assert_ne!(DOC, DOC2);
        assert_eq!(random_document(1, 4096), DOC);
        assert_eq!(random_document(7, 5), b"%PDF-");
        assert_eq!(
            hex(&Sha256::digest(DOC)),
            "a9244902da5899458950849c549905dd7d67cb5d2e6cfdbf8edfc120ec90c02a"
        );
    }
}
