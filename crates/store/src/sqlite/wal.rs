//! A look at SQLite's write-ahead log before SQLite sees it.
//!
//! SQLite reads its log up to the first frame whose checksum is wrong and takes that for the end: right after a crash, when
//! the last commit may be torn, and wrong when the disk damaged an earlier one, since all commits after it would vanish
//! without a word. The difference can be told, except for the very last commits: behind a torn commit nothing was ever
//! begun.
//!
//! The format is described in <https://sqlite.org/fileformat2.html#walformat>.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What the log says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalState {
    /// Nothing is missing but perhaps the commit that a crash interrupted.
    Sound,
    /// A commit that was acknowledged cannot be read any more.
    Damaged,
}

/// Reads the whole log; one that is not there is sound.
pub(super) fn check(path: &Path) -> io::Result<WalState> {
    match File::open(path) {
        Ok(file) => check_log(&mut BufReader::new(file)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(WalState::Sound),
        Err(e) => Err(e),
    }
}

fn check_log(log: &mut impl Read) -> io::Result<WalState> {
    let mut header = [0; HEADER];
    if read_up_to(log, &mut header)? < HEADER {
        return Ok(WalState::Sound);
    }
    let big_endian = match word(&header, 0) {
        0x377f_0682 => Some(false),
        0x377f_0683 => Some(true),
        _ => None,
    };
    let page = word(&header, 8) as usize;
    let mut sum = Sum { big_endian: big_endian.unwrap_or_default(), state: (0, 0) };
    sum.add(&header[..24]);
    if big_endian.is_none()
        || sum.state != (word(&header, 24), word(&header, 28))
        || !page.is_power_of_two()
        || !(512..=65536).contains(&page)
    {
        // The header is on disk before any frame is written.
        let mut more = [0; FRAME_HEADER];
        let frames = read_up_to(log, &mut more)? == FRAME_HEADER;
        return Ok(if frames { WalState::Damaged } else { WalState::Sound });
    }

    let mut frame = vec![0; FRAME_HEADER + page];
    let mut readable = true;
    let mut commit_beyond = false;
    while read_up_to(log, &mut frame)? == frame.len() {
        // Frames of an earlier round, which are not overwritten yet, have other salts.
        let this_round = frame[8..16] == header[16..24];
        if readable {
            sum.add(&frame[..8]);
            sum.add(&frame[FRAME_HEADER..]);
            readable = this_round && sum.state == (word(&frame, 16), word(&frame, 20));
        } else if this_round && commit_beyond {
            return Ok(WalState::Damaged);
        }
        commit_beyond |= !readable && this_round && word(&frame, 4) != 0;
    }
    Ok(WalState::Sound)
}

/// Fills `buffer` as far as there are bytes.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// The running checksum of the log.
struct Sum {
    big_endian: bool,
    state: (u32, u32),
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks_exact(8) {
            let (mut first, mut second) = (word(pair, 0), word(pair, 4));
            if !self.big_endian {
                (first, second) = (first.swap_bytes(), second.swap_bytes());
            }
            self.state.0 = self.state.0.wrapping_add(first).wrapping_add(self.state.1);
            self.state.1 = self.state.1.wrapping_add(second).wrapping_add(self.state.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    /// A log of five commits, as SQLite writes it.
    fn log() -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("db");
        let connection = Connection::open(&path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.execute_batch("CREATE TABLE t (x)")?;
        for i in 0..5 {
            connection.execute("INSERT INTO t VALUES (?)", [i])?;
        }
        Ok(std::fs::read(directory.path().join("db-wal"))?)
    }

    #[test]
    fn a_torn_tail_is_sound_and_a_hole_is_damage() -> Result<(), Box<dyn std::error::Error>> {
        let log = log()?;
        let page = word(&log, 8) as usize;
        let frame = FRAME_HEADER + page;
        let frames = (log.len() - HEADER) / frame;
        assert!(frames >= 6, "{frames}");
        for length in [0, 10, HEADER, HEADER + 5, HEADER + frame, log.len() - frame, log.len() - 1, log.len()]
        {
            assert_eq!(check_log(&mut &log[..length])?, WalState::Sound, "{length}");
        }
        for (at, expected) in [
            (3, WalState::Damaged),
            (20, WalState::Damaged),
            (HEADER + 1, WalState::Damaged),
            (HEADER + 9, WalState::Damaged),
            (HEADER + frame + 100, WalState::Damaged),
            (log.len() - 2 * frame - 1, WalState::Damaged),
            (log.len() - 1, WalState::Sound),
        ] {
            let mut damaged = log.clone();
            damaged[at] ^= 0x40;
            assert_eq!(check_log(&mut &damaged[..])?, expected, "{at}");
        }
        Ok(())
    }
}
