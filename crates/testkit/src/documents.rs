//! The documents and answers that the cases speak of. They are fixed: a digest of one of them may be written
//! into a test.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::upstream::Reply;
use crate::wire::hex;

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

/// Large documents that are cut from the same random bytes, so that many of them take the memory of one piece or two.
#[derive(Debug)]
pub struct LargeDocuments(Bytes);

impl LargeDocuments {
    const PIECE: usize = 1 << 20;
    /// How many cuts there are: one at each byte.
    const CUTS: usize = 1 << 20;
    /// The most pieces of a document.
    const PIECES_MAX: usize = 1009;

    /// Those of this seed.
    pub fn new(seed: u64) -> Self {
        Self(random_document(seed, Self::PIECE + Self::CUTS).into())
    }

    /// The `n`th document (of about a thousand), `len` bytes in pieces of 1 MiB. No two pieces of these documents are alike.
    pub fn document(&self, n: usize, len: usize) -> Vec<Bytes> {
        let pieces = len.div_ceil(Self::PIECE);
        if pieces > Self::PIECES_MAX || (n + 1) * Self::PIECES_MAX > Self::CUTS {
            panic!("documents: no large document {n} of {len} bytes");
        }
        let piece = |k: usize| {
            // an odd factor takes each cut once, and neighbours apart
            let cut = (n * Self::PIECES_MAX + k) * 61 % Self::CUTS;
            self.0.slice(cut..cut + Self::PIECE.min(len - k * Self::PIECE))
        };
        (0..pieces).map(piece).collect()
    }
}

/// SHA-256 of the pieces one after another, in hex: the digest that the stub has of what arrived.
pub fn sha256_hex<T: AsRef<[u8]>>(pieces: &[T]) -> String {
    let mut digest = Sha256::new();
    pieces.iter().for_each(|piece| digest.update(piece));
    hex(&digest.finalize())
}

/// The refusal that the cases call R400: 400, `application/json`, `{"error":"unreadable page"}` (27 bytes).
pub fn r400() -> Reply {
    Reply::status(400).header("Content-Type", "application/json").body(r#"{"error":"unreadable page"}"#)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn documents_are_fixed_and_differ() {
        assert!(DOC.starts_with(PDF) && DOC2.starts_with(PDF));
        assert_ne!(DOC, DOC2);
        assert_eq!(random_document(1, 4096), DOC);
        assert_eq!(random_document(7, 5), b"%PDF-");
        assert_eq!(sha256_hex(&[DOC]), "a9244902da5899458950849c549905dd7d67cb5d2e6cfdbf8edfc120ec90c02a");
    }

    #[test]
    fn large_documents_have_their_length_and_differ() {
        let large = LargeDocuments::new(1);
        let len = (3 << 20) + 5;
        let one = large.document(0, len);
        assert_eq!((one.len(), one.concat().len()), (4, len));
        let all: HashSet<_> = (0..3).flat_map(|n| large.document(n, 3 << 20)).collect();
        assert_eq!(all.len(), 9);
        assert_eq!(sha256_hex(&one), sha256_hex(&[one.concat()]));
    }
}
