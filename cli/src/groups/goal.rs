//! Where `zurau groups reset-offsets` moves to: parsed flags, and the rule for one partition. Pure.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// What becomes of an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Earliest,
    Latest,
    Offset(i64),
    /// Relative to what is committed; below zero goes back.
    ShiftBy(i64),
    /// The first record that is not older, in milliseconds since 1970.
    Time(i64),
    /// What is committed, but within what the log holds.
    Current,
}

/// What a partition holds and what is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) earliest: i64,
    pub(super) latest: i64,
    pub(super) committed: Option<i64>,
    /// The first offset at the time of [`Goal::Time`], if there is one.
    pub(super) at_time: Option<i64>,
}

impl Goal {
    /// The new offset, always one that the log holds or its end.
    ///
    /// # Errors
    /// The goal is relative to an offset that was never committed.
    pub(super) fn offset(self, known: Known) -> Result<i64, &'static str> {
        const NOTHING: &str =
            "nothing is committed to go from; use --to-earliest, --to-latest or --to-offset";
        let wanted = match self {
            Self::Earliest => known.earliest,
            Self::Latest => known.latest,
            Self::Offset(offset) => offset,
            Self::ShiftBy(shift) => known.committed.ok_or(NOTHING)?.saturating_add(shift),
            // Nothing is that young: the next record to come is.
            Self::Time(_) => known.at_time.unwrap_or(known.latest),
            Self::Current => known.committed.ok_or(NOTHING)?,
        };
        Ok(wanted.max(known.earliest).min(known.latest.max(known.earliest)))
    }
}

/// Milliseconds since 1970 of `2026-11-30T06:25:00.000`, with an offset or `Z` at the end, else in UTC.
pub(super) fn parse_datetime(text: &str) -> Result<i64, String> {
    let zoned = text.parse::<Timestamp>();
    let plain = || {
        let civil: DateTime = text.parse().ok()?;
        Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
    };
    let found = zoned.ok().or_else(plain).map(Timestamp::as_millisecond);
    found.ok_or_else(|| format!("'{text}' is not a time such as 2026-11-30T06:25:00Z"))
}

/// Milliseconds of `PT1H30M`, or of `1h30m`.
pub(super) fn parse_duration(text: &str) -> Result<i64, String> {
    let parsed: Option<SignedDuration> = text.parse().ok();
    // Days are not spans of hours everywhere, but here they are.
    let days = || {
        let number: i64 = text.strip_prefix('P')?.strip_suffix('D')?.parse().ok()?;
        Some(SignedDuration::from_hours(number.checked_mul(24)?))
    };
    let found = parsed.or_else(days).map(|duration| duration.as_millis());
    let millis = found.and_then(|millis| i64::try_from(millis).ok()).filter(|millis| 0 <= *millis);
    millis.ok_or_else(|| format!("'{text}' is not a duration such as PT1H30M, P7D or 1h30m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_stays_within_the_log() {
        let known = |committed, at_time| Known { earliest: 10, latest: 20, committed, at_time };
        let rows = [
            (Goal::Earliest, known(None, None), Ok(10)),
            (Goal::Latest, known(None, None), Ok(20)),
            (Goal::Offset(15), known(None, None), Ok(15)),
            (Goal::Offset(5), known(None, None), Ok(10)),
            (Goal::Offset(99), known(None, None), Ok(20)),
            (Goal::ShiftBy(-3), known(Some(15), None), Ok(12)),
            (Goal::ShiftBy(i64::MIN), known(Some(15), None), Ok(10)),
            (Goal::ShiftBy(7), known(Some(15), None), Ok(20)),
            (Goal::Time(0), known(None, Some(13)), Ok(13)),
            (Goal::Time(0), known(None, None), Ok(20)),
            (Goal::Current, known(Some(3), None), Ok(10)),
        ];
        for (goal, known, expected) in rows {
            assert_eq!(goal.offset(known), expected, "{goal:?} {known:?}");
        }
        assert!(Goal::ShiftBy(1).offset(known(None, None)).is_err());
        assert!(Goal::Current.offset(known(None, None)).is_err());
    }

    #[test]
    fn times_and_durations_are_read_as_kafka_writes_them() {
        let day = 86_400_000;
        for (text, expected) in [
            ("1970-01-02T00:00:00.000", day),
            ("1970-01-02T00:00:00Z", day),
            ("1970-01-02T01:00:00.000+01:00", day),
            ("1970-01-02T00:00:00.250", day + 250),
        ] {
            assert_eq!(parse_datetime(text), Ok(expected), "{text}");
        }
        for (text, expected) in
            [("PT1H30M", 5_400_000), ("P7D", 7 * day), ("1h30m", 5_400_000), ("PT0S", 0), ("PT0.5S", 500)]
        {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
        for bad in ["", "yesterday", "-PT1H", "7"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
            assert!(parse_datetime(bad).is_err(), "{bad}");
        }
    }
}
