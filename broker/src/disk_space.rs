//! What a log directory's free space means (D17): below the soft mark producers are slowed down, below the hard mark they
//! are refused, and followers take no more records (they leave the ISR by their lag). Everything else goes on, above all
//! what frees space, and the coordinators' own records: the ends of transactions, the deletion of groups. Pure.

use std::time::Duration;

/// The longest that an answer to a producer is held back, just above the hard mark.
const THROTTLE_MAX: Duration = Duration::from_secs(1);

/// The two marks, in free bytes; 0 switches a mark off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    /// `log.dirs.space.soft.min.bytes`
    pub(crate) soft_bytes: u64,
    /// `log.dirs.space.hard.min.bytes`
    pub(crate) hard_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Enough,
    /// Answers to producers are held back so long.
    Low(Duration),
    /// Nothing is taken from producers.
    Exhausted,
}

impl Space {
    /// Of a directory with so many bytes left. The less there is between the marks, the longer the throttle.
    pub(crate) fn judge(free_bytes: u64, marks: Marks) -> Self {
        let Marks { soft_bytes, hard_bytes } = marks;
        if free_bytes < hard_bytes {
            return Self::Exhausted;
        }
        if soft_bytes <= free_bytes {
            return Self::Enough;
        }
        let missing = (soft_bytes - free_bytes) as f64 / (soft_bytes - hard_bytes) as f64;
        Self::Low(THROTTLE_MAX.mul_f64(missing.clamp(0.0, 1.0)).max(Duration::from_millis(1)))
    }

    /// Whether both ask for the same, but for how long producers are held back.
    pub(crate) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    pub(crate) fn throttle(self) -> Duration {
        if let Self::Low(throttle) = self { throttle } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let low = |millis| Space::Low(Duration::from_millis(millis));
        //   free, soft, hard, expected
        let rows = [
            (u64::MAX, 100, 20, Space::Enough),
            (100, 100, 20, Space::Enough),
            (99, 100, 20, low(12)),
            (60, 100, 20, low(500)),
            (20, 100, 20, low(1_000)),
            (19, 100, 20, Space::Exhausted),
            (0, 100, 20, Space::Exhausted),
            (0, 0, 0, Space::Enough),
            (5, 0, 20, Space::Exhausted),
            (30, 0, 20, Space::Enough),
            (30, 20, 20, Space::Enough),
            (0, 100, 0, low(1_000)),
        ];
        for (free, soft_bytes, hard_bytes, expected) in rows {
            let judged = Space::judge(free, Marks { soft_bytes, hard_bytes });
            let millis = |space: Space| space.throttle().as_millis();
            assert!(judged.is_like(expected), "{free} of {soft_bytes}, {hard_bytes}: {judged:?}");
            assert_eq!(millis(judged), millis(expected), "{free} of {soft_bytes}, {hard_bytes}");
        }
    }
}
