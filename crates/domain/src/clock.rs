//! Time as an input: milliseconds since the Unix epoch, read from a [`Clock`] that is handed in.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, in milliseconds since the Unix epoch (UTC). Signed, because SQLite's integers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

impl Millis {
    /// This time plus `ms` milliseconds; saturates at the ends of the range.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// Milliseconds from `earlier` to this time; zero when `earlier` is not earlier.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

impl Millis {
    /// RFC 3339 in UTC with milliseconds, as the audit and the admin API write times. Every audit line has one, so it is worked
    /// out here, and compared with the time library in a test. Times before the year 0 or after 9999 show as the nearest.
    #[must_use]
    pub fn to_rfc3339(self) -> [u8; 24] {
        let ms = self.0.clamp(-62_167_219_200_000, 253_402_300_799_999);
        let (days, ms) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
        let (year, month, day) = civil(days);
        let mut out = *b"0000-00-00T00:00:00.000Z";
        let mut put = |at: usize, width: usize, mut value: i64| {
            for place in out[at..at + width].iter_mut().rev() {
                *place = b'0' + u8::try_from(value % 10).unwrap_or(0);
                value /= 10;
            }
        };
        put(0, 4, year);
        put(5, 2, month);
        put(8, 2, day);
        put(11, 2, ms / 3_600_000);
        put(14, 2, ms / 60_000 % 60);
        put(17, 2, ms / 1000 % 60);
        put(20, 3, ms % 1000);
        out
    }
}

/// See [`Millis::to_rfc3339`].
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_rfc3339()).unwrap_or_default())
    }
}

/// The Gregorian date of a day since 1970-01-01, counted in years that begin in March, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        parse_rfc3339(&text).map_err(serde::de::Error::custom)
    }
}

/// Parses an RFC 3339 time.
///
/// # Errors
/// When the text is no RFC 3339 time with an offset.
pub fn parse_rfc3339(text: &str) -> Result<Millis, String> {
    text.parse::<jiff::Timestamp>().map(|t| Millis(t.as_millisecond())).map_err(|e| e.to_string())
}

/// Where the time comes from. The gateway has one clock, given to it at start.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Millis;

    /// What spans are measured by. It never goes back, and does not follow when the time is corrected.
    fn steady(&self) -> Instant {
        Instant::now()
    }
}

/// The machine's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that stands still until it is moved: for tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    began: Instant,
    /// Milliseconds since then.
    steady: AtomicI64,
}

impl ManualClock {
    /// A clock that shows `at`.
    #[must_use]
    pub fn at(at: Millis) -> Self {
        Self { now: AtomicI64::new(at.0), began: Instant::now(), steady: AtomicI64::new(0) }
    }

    /// Moves the clock forward by `ms` milliseconds.
    pub fn advance_ms(&self, ms: i64) {
        self.step_ms(ms);
        self.steady.fetch_add(ms.max(0), Ordering::SeqCst);
    }

    /// Corrects the time by `ms` milliseconds: no time passes.
    pub fn step_ms(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.now.load(Ordering::SeqCst))
    }

    fn steady(&self) -> Instant {
        self.began + Duration::from_millis(self.steady.load(Ordering::SeqCst).unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn times_print_as_the_time_library_prints_them(ms in 0_i64..253_402_207_200_000) {
            let library = jiff::Timestamp::from_millisecond(ms).map(|t| format!("{t:.3}")).unwrap_or_default();
            prop_assert_eq!(Millis(ms).to_string(), library);
        }

        #[test]
        fn any_time_prints(ms in any::<i64>()) {
            prop_assert!(Millis(ms).to_string().ends_with('Z'));
        }
    }

    #[test]
    fn times_print_as_rfc_3339_with_milliseconds() {
        assert_eq!(Millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Millis(1_700_000_000_123).to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(parse_rfc3339("2023-11-14T22:13:20.123Z"), Ok(Millis(1_700_000_000_123)));
    }

    #[test]
    fn differences_never_go_below_zero() {
        assert_eq!(Millis(5).since_ms(Millis(9)), 0);
        assert_eq!(Millis(i64::MAX).plus_ms(u64::MAX), Millis(i64::MAX));
    }
}
