//! Which part of a log may be compacted, how much it needs it, and which log comes first.
//!
//! Pure. Only whole segments are touched, and none that holds an offset at or above the high watermark, the first
//! undecided transaction or the base of the active segment (C2, CMP-03), or that is younger than
//! `min.compaction.lag.ms`.

/// A segment below the active one, as much as the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFacts {
    pub(crate) base_offset: i64,
    /// Exclusive: where the next segment begins.
    pub(crate) end_offset: i64,
    pub(crate) size_bytes: u64,
    /// Milliseconds, -1 without any.
    pub(crate) largest_timestamp: i64,
    /// Milliseconds, of the first batch; -1 when unknown or none.
    pub(crate) first_timestamp: i64,
}

/// What bounds the cleanable part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// min(high watermark, first offset of an undecided transaction).
    pub(crate) last_stable_offset: i64,
    pub(crate) min_lag_ms: i64,
    pub(crate) max_lag_ms: i64,
    pub(crate) now_ms: i64,
}

/// How many of the segments (oldest first, without the active one) may be compacted.
pub(crate) fn cleanable_count(segments: &[SegmentFacts], first_dirty_offset: i64, bounds: &Bounds) -> usize {
    let youngest_allowed = bounds.now_ms.saturating_sub(bounds.min_lag_ms);
    let is_uncleanable = |segment: &SegmentFacts| {
        let too_young = bounds.min_lag_ms > 0
            && segment.end_offset > first_dirty_offset
            && segment.largest_timestamp > youngest_allowed;
        segment.end_offset > bounds.last_stable_offset || too_young
    };
    segments.iter().position(is_uncleanable).unwrap_or(segments.len())
}

/// How much a log needs compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirtiness {
    pub(crate) clean_bytes: u64,
    pub(crate) dirty_bytes: u64,
    /// By how much a record has waited longer than `max.compaction.lag.ms`; 0 when none has.
    pub(crate) overdue_ms: i64,
}

impl Dirtiness {
    /// Of the cleanable segments of a log.
    pub(crate) fn of(cleanable: &[SegmentFacts], first_dirty_offset: i64, bounds: &Bounds) -> Self {
        let mut dirtiness = Self::default();
        for segment in cleanable {
            if segment.end_offset <= first_dirty_offset {
                dirtiness.clean_bytes += segment.size_bytes;
                continue;
            }
            dirtiness.dirty_bytes += segment.size_bytes;
            if segment.first_timestamp >= 0 && segment.size_bytes > 0 {
                let waited_ms = bounds.now_ms.saturating_sub(segment.first_timestamp);
                dirtiness.overdue_ms = dirtiness.overdue_ms.max(waited_ms.saturating_sub(bounds.max_lag_ms));
            }
        }
        dirtiness
    }

    /// Share of the bytes that no pass has seen, in millionths.
    pub(crate) fn ratio_millionths(&self) -> u32 {
        let total = u128::from(self.clean_bytes) + u128::from(self.dirty_bytes);
        (u128::from(self.dirty_bytes) * 1_000_000).checked_div(total).unwrap_or(0) as u32
    }

    /// Whether a pass is worth it, by `min.cleanable.dirty.ratio` or because records are overdue.
    pub(crate) fn wants_cleaning(&self, min_cleanable_millionths: u32) -> bool {
        self.dirty_bytes > 0 && (self.overdue_ms > 0 || self.ratio_millionths() > min_cleanable_millionths)
    }

    /// Larger comes first: the longest overdue, then the dirtiest.
    pub(crate) fn rank(&self) -> (i64, u32) {
        (self.overdue_ms, self.ratio_millionths())
    }
}

/// Neighbouring segments, by index, that become one: together at most `size_bytes_max`, their offsets no further
/// apart than an index entry can say (LOG-03).
pub(crate) fn group(segments: &[SegmentFacts], size_bytes_max: u64) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, segment) in segments.iter().enumerate() {
        let joins = groups.last().is_some_and(|group| {
            let span = segment.end_offset - 1 - segments[group.start].base_offset;
            bytes + segment.size_bytes <= size_bytes_max && span <= i64::from(i32::MAX)
        });
        if joins && let Some(group) = groups.last_mut() {
            group.end = index + 1;
            bytes += segment.size_bytes;
        } else {
            groups.push(index..index + 1);
            bytes = segment.size_bytes;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn segment(base_offset: i64, end_offset: i64, size_bytes: u64, timestamp: i64) -> SegmentFacts {
        SegmentFacts {
            base_offset,
            end_offset,
            size_bytes,
            largest_timestamp: timestamp,
            first_timestamp: timestamp,
        }
    }

    fn bounds(last_stable_offset: i64) -> Bounds {
        Bounds { last_stable_offset, min_lag_ms: 0, max_lag_ms: i64::MAX, now_ms: NOW }
    }

    #[test]
    fn cmp_03_cleanable_part_ends_below_what_is_not_decided() {
        let segments = [segment(0, 10, 1, 100), segment(10, 20, 1, 200), segment(20, 30, 1, 300)];
        //   last stable offset, whole segments below
        for (last_stable_offset, expected) in
            [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (99, 3)]
        {
            assert_eq!(
                cleanable_count(&segments, 0, &bounds(last_stable_offset)),
                expected,
                "{last_stable_offset}"
            );
        }
    }

    #[test]
    fn minimum_lag_keeps_young_segments_and_all_after_them() {
        let segments = [segment(0, 10, 1, 100), segment(10, 20, 1, NOW - 5), segment(20, 30, 1, 300)];
        let lagging = |min_lag_ms| Bounds { min_lag_ms, ..bounds(30) };
        //   lag, first dirty offset, expected
        for (min_lag_ms, first_dirty, expected) in
            [(0, 0, 3), (5, 0, 3), (6, 0, 1), (NOW, 0, 0), (i64::MAX, 0, 0), (6, 20, 3), (NOW, 20, 2)]
        {
            let count = cleanable_count(&segments, first_dirty, &lagging(min_lag_ms));
            assert_eq!(count, expected, "lag {min_lag_ms}, dirty from {first_dirty}");
        }
    }

    #[test]
    fn ratio_and_overdue_records() {
        let segments = [segment(0, 10, 300, 100), segment(10, 20, 100, 200)];
        let at = |first_dirty| Dirtiness::of(&segments, first_dirty, &bounds(20));
        //   first dirty offset, millionths
        for (first_dirty, expected) in [(0, 1_000_000), (5, 1_000_000), (10, 250_000), (15, 250_000), (20, 0)]
        {
            assert_eq!(at(first_dirty).ratio_millionths(), expected, "{first_dirty}");
        }
        assert!(at(10).wants_cleaning(249_999) && !at(10).wants_cleaning(250_000));
        assert!(!at(20).wants_cleaning(0), "nothing is dirty");
        assert!(at(0).wants_cleaning(999_999) && !at(0).wants_cleaning(1_000_000));
        let late = Bounds { max_lag_ms: NOW - 250, ..bounds(20) };
        let overdue = Dirtiness::of(&segments, 10, &late);
        assert_eq!(overdue.overdue_ms, 50);
        assert!(overdue.wants_cleaning(900_000));
        assert!(overdue.rank() > at(0).rank());
        assert_eq!(Dirtiness::of(&segments, 20, &late).overdue_ms, 0, "clean segments are not overdue");
    }

    #[test]
    fn groups_respect_size_and_relative_offsets() {
        let far = i64::from(i32::MAX);
        let segments = [
            segment(0, 10, 40, 1),
            segment(10, 20, 50, 1),
            segment(20, 30, 20, 1),
            segment(30, far + 20, 10, 1),
            segment(far + 20, far + 22, 10, 1),
            segment(far + 22, far + 30, 500, 1),
        ];
        let grouped = |segments: &[SegmentFacts], size_bytes_max| -> Vec<(usize, usize)> {
            group(segments, size_bytes_max).into_iter().map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(grouped(&segments, 100), [(0, 2), (2, 4), (4, 5), (5, 6)]);
        assert_eq!(grouped(&segments[..3], 1000), [(0, 3)]);
        assert_eq!(grouped(&[segment(0, far + 1, 1, 1)], 100), [(0, 1)]);
        let pair = |end| [segment(0, far, 1, 1), segment(far, end, 1, 1)];
        assert_eq!(grouped(&pair(far + 1), 100), [(0, 2)]);
        assert_eq!(grouped(&pair(far + 2), 100), [(0, 1), (1, 2)]);
        assert!(group(&[], 100).is_empty());
    }
}
