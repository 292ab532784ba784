//! The lines of a file or of standard input, each within a bound, without all of it in memory.

use std::io::{self, BufRead};

/// A line of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// One with its end, which is left out here.
    Whole(Vec<u8>),
    /// The last one, without an end.
    Cut(Vec<u8>),
    /// One that is too long to be read.
    TooLong,
}

/// The lines of a file.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    longest: usize,
    /// The number of the line that was read last, from 1.
    pub number: u64,
    /// How many bytes were read.
    pub offset: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `from`; one of more than `longest` bytes is passed over.
    pub fn new(from: R, longest: usize) -> Self {
        Self { from, longest, number: 0, offset: 0 }
    }

    /// The next line.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn next(&mut self) -> io::Result<Option<Line>> {
        let (mut line, mut too_long) = (Vec::new(), false);
        loop {
            let some = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let end = some.iter().position(|byte| *byte == b'\n');
            let part = end.map_or(some, |end| some.get(..end).unwrap_or_default());
            let (read, at_end) = (part.len() + usize::from(end.is_some()), some.is_empty());
            too_long |= line.len() + part.len() > self.longest;
            if too_long {
                line.clear();
            } else {
                line.extend_from_slice(part);
            }
            self.from.consume(read);
            self.offset += read as u64;
            if at_end && line.is_empty() && !too_long {
                return Ok(None);
            }
            if at_end || end.is_some() {
                self.number += 1;
                return Ok(Some(match (too_long, at_end) {
                    (true, _) => Line::TooLong,
                    (false, true) => Line::Cut(line),
                    (false, false) => Line::Whole(line),
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use std::io::BufReader;

    use super::*;

    fn lines(text: &[u8], longest: usize) -> (Vec<Line>, u64, u64) {
        // a small buffer, so that lines go over its end
        let mut lines = Lines::new(BufReader::with_capacity(3, text), longest);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(line);
        }
        (all, lines.number, lines.offset)
    }

    #[test]
    fn lines_are_whole_or_cut_or_too_long() {
        let whole = |text: &str| Line::Whole(text.into());
        assert_eq!(lines(b"", 9), (vec![], 0, 0));
        assert_eq!(lines(b"\n", 9), (vec![whole("")], 1, 1));
        assert_eq!(lines(b"one\n\nthree\n", 9), (vec![whole("one"), whole(""), whole("three")], 3, 11));
        assert_eq!(lines(b"one\nt", 9), (vec![whole("one"), Line::Cut("t".into())], 2, 5));
        assert_eq!(
            lines(b"longer\nfour\nlonger", 4),
            (vec![Line::TooLong, whole("four"), Line::TooLong], 3, 18)
        );
    }
}
