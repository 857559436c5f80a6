//! How much of their time the threads that serve clients had nothing to do. In Kafka the threads of the network and those
//! of the request handlers are told apart; here the same threads do both, so both of Kafka's numbers are theirs. What
//! waits for the disk on other threads is not in it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use zurau_common::http::exposition::Exposition;

/// The mean is over at least this time, as soon as the broker has run so long: Kafka's is that of one minute, too.
const SPAN: Duration = Duration::from_secs(60);
/// Looks that are closer together than this are not kept, which bounds their number.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Of one runtime.
#[derive(Debug)]
pub(crate) struct IdleShare {
    threads: Handle,
    started: Instant,
    looks: Mutex<Looks>,
}

impl IdleShare {
    pub(crate) fn new(threads: Handle) -> Self {
        let mut looks = Looks::default();
        looks.look(Duration::ZERO, busy(&threads));
        Self { threads, started: Instant::now(), looks: Mutex::new(looks) }
    }

    pub(crate) fn write(&self, page: &mut Exposition) {
        let threads = self.threads.metrics().num_workers();
        let busy = self.looks.lock().look(self.started.elapsed(), busy(&self.threads));
        let idle = busy.map_or(f64::NAN, |busy| (1.0 - busy / threads as f64).clamp(0.0, 1.0));
        for (name, of) in [
            ("kafka_network_socketserver_networkprocessoravgidle_percent", "network"),
            ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "request handlers"),
        ] {
            let help = format!(
                "Share of the last minute, or of the time since an earlier look, for which the threads of the {of} were \
                 idle: 0 to 1. The same threads do all work for clients."
            );
            page.gauge(name, &help, idle);
        }
    }
}

/// Of all threads together, since the runtime was made.
fn busy(threads: &Handle) -> Duration {
    let metrics = threads.metrics();
    (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
}

/// Earlier looks, the oldest first. The first is the youngest that is older than the span, if there is one.
#[derive(Debug, Default)]
struct Looks(VecDeque<(Duration, Duration)>);

impl Looks {
    /// Threads that were busy on average since the first look that is kept; `None` without an earlier one. `busy`: what
    /// was worked in all.
    fn look(&mut self, now: Duration, busy: Duration) -> Option<f64> {
        while self.0.get(1).is_some_and(|(at, _)| *at + SPAN <= now) {
            self.0.pop_front();
        }
        let first = self.0.front().copied().filter(|(at, _)| *at < now);
        if self.0.back().is_none_or(|(at, _)| *at + LOOK_EVERY <= now) {
            self.0.push_back((now, busy));
        }
        let (at, before) = first?;
        Some(busy.saturating_sub(before).as_secs_f64() / (now - at).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_the_last_minute_however_often_it_is_asked_for() {
        let seconds = Duration::from_secs;
        let mut looks = Looks::default();
        assert_eq!(looks.look(seconds(0), seconds(0)), None);
        // Two threads work for 100 seconds, then one.
        for at in 1..100 {
            let found = looks.look(seconds(at), seconds(2 * at)).unwrap();
            assert!((found - 2.0).abs() < 1e-9, "{at}: {found}");
        }
        let mut found = 0.0;
        for at in 100..=170 {
            found = looks.look(seconds(at), seconds(200 + (at - 100))).unwrap();
        }
        assert!((found - 1.0).abs() < 1e-9, "{found}");
        assert!(looks.0.len() <= 15, "{}", looks.0.len());
        // Nobody asked for an hour.
        let found = looks.look(seconds(3_770), seconds(270)).unwrap();
        assert!(found < 0.01, "{found}");
    }

    #[test]
    fn a_thread_that_works_is_seen() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let idle = IdleShare::new(runtime.handle().clone());
        let value = || {
            let mut page = Exposition::default();
            idle.write(&mut page);
            let text = page.into_text();
            let name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent ";
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
            line.parse::<f64>().unwrap()
        };
        std::thread::sleep(Duration::from_millis(50));
        let before = value();
        let working = runtime.spawn(async {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
        });
        futures::executor::block_on(working).unwrap();
        // The thread tells what it did when it goes to sleep.
        let deadline = Instant::now() + Duration::from_secs(10);
        while before - 0.1 < value() {
            assert!(Instant::now() < deadline, "idle {before} before the work, {} after", value());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
