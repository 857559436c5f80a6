//! Waiting for a condition with a deadline: the only way in which these tests wait.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Looks again and again until `look` finds something.
///
/// # Errors
/// Nothing found within `limit`; the last error of `look` is its cause.
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => anyhow!("it is not so yet"),
            Err(error) => error,
        };
        if start.elapsed() >= limit {
            return Err(last).with_context(|| format!("waited {limit:?} for: {what}"));
        }
        thread::sleep(PAUSE_BETWEEN_LOOKS);
    }
}

/// Holds for the whole of `time`: fails at the first look that fails.
///
/// # Errors
/// The error of the first look that failed.
pub fn throughout(what: &str, time: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        look().with_context(|| format!("{what}: broken after {:?}", start.elapsed()))?;
        thread::sleep(PAUSE_BETWEEN_LOOKS);
    }
    Ok(())
}
