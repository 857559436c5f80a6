//! When the records of an open loop fall due and into which partition each goes: computed, not remembered, so that
//! every connection finds its own share alone.

use std::time::Duration;

/// librdkafka stays on one partition for this long when records have no key.
const STICKY: Duration = Duration::from_millis(10);

/// Records that fall due at a fixed rate, whatever the cluster does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// From one record of a producer to its next, in seconds.
    pub(crate) interval: f64,
    /// How far this producer's first record is behind the start, in seconds.
    pub(crate) phase: f64,
    /// Records of this producer.
    pub(crate) total: u64,
    pub(crate) partitions: usize,
    /// Each record goes where its key's hash says; else they stay together as librdkafka's do.
    pub(crate) keyed: bool,
    pub(crate) producer: u16,
}

impl Schedule {
    /// Shares of `rate` records a second over `time`, for one of several producers that take turns.
    pub(crate) fn new(
        rate: f64,
        time: Duration,
        producers: u16,
        producer: u16,
        partitions: usize,
        keyed: bool,
    ) -> Self {
        let own = rate / f64::from(producers.max(1));
        let phase = f64::from(producer) / rate;
        // What falls due before the end; the small number makes up for rounding.
        let total = ((time.as_secs_f64() - phase) * own - 1e-6).ceil().max(0.0) as u64;
        Self { interval: 1.0 / own, phase, total, partitions: partitions.max(1), keyed, producer }
    }

    /// After the start.
    pub(crate) fn due(&self, record: u64) -> Duration {
        Duration::from_secs_f64(self.phase + record as f64 * self.interval)
    }

    pub(crate) fn partition(&self, record: u64) -> usize {
        if self.keyed {
            return scatter(u64::from(self.producer) << 48 | record) as usize % self.partitions;
        }
        (self.due(record).as_secs_f64() / STICKY.as_secs_f64()) as usize % self.partitions
    }
}

/// A number that looks random, the same for the same input.
pub(crate) fn scatter(of: u64) -> u64 {
    let mut state = of.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state ^ state >> 31) >> 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_share_the_rate_and_take_turns() {
        let of = |producer| Schedule::new(1000.0, Duration::from_secs(2), 4, producer, 1, false);
        let mut dues: Vec<Duration> = (0..4)
            .flat_map(|producer| (0..of(producer).total).map(move |record| of(producer).due(record)))
            .collect();
        dues.sort();
        assert_eq!(dues.len(), 2000);
        for (due, millis) in dues.iter().zip(0_u64..) {
            assert!(
                due.abs_diff(Duration::from_millis(millis)) < Duration::from_micros(1),
                "{due:?} for {millis}"
            );
        }
    }

    #[test]
    fn records_without_a_key_stay_on_a_partition_for_ten_milliseconds() {
        let schedule = Schedule::new(1000.0, Duration::from_secs(1), 1, 0, 3, false);
        let visited: Vec<usize> = (0..40).map(|record| schedule.partition(record)).collect();
        // The middle of each stay; its first and last record may fall to either side by rounding.
        assert_eq!([visited[5], visited[15], visited[25], visited[35]], [0, 1, 2, 0]);
    }

    #[test]
    fn keys_reach_every_partition_about_equally() {
        let schedule = Schedule::new(1000.0, Duration::from_secs(20), 1, 0, 200, true);
        let mut counts = vec![0; 200];
        (0..20_000).for_each(|record| counts[schedule.partition(record)] += 1);
        assert!(counts.iter().all(|count| (50..160).contains(count)), "{counts:?}");
    }
}
