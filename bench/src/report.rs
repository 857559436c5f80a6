//! What was measured, as JSON for machines and as a Markdown table for people.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// One measured number with its unit and, where there is one, the bar that it is held against.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) bar: Option<Bar>,
}

#[derive(Clone, Copy)]
pub(crate) enum Bar {
    Above(f64),
    Below(f64),
}

impl Bar {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::Above(bar) => value > bar,
            Self::Below(bar) => value < bar,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::Above(bar) => format!("> {bar}"),
            Self::Below(bar) => format!("< {bar}"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a number and prints it at once: a run that fails later has still said something.
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, bar: Option<Bar>) {
        let row = Row { name: name.into(), value, unit, bar };
        println!("{}", row.line());
        self.rows.push(row);
    }

    /// Percentiles of ascending times, in milliseconds.
    pub(crate) fn add_times(&mut self, name: &str, sorted: &[Duration], p99: Option<Bar>) {
        for (label, share, bar) in [("p50", 0.5, None), ("p99", 0.99, p99), ("p99.9", 0.999, None)] {
            self.add(format!("{name} {label}"), milliseconds(percentile(sorted, share)), "ms", bar);
        }
        let largest = sorted.last().copied().unwrap_or_default();
        self.add(format!("{name} max"), milliseconds(largest), "ms", None);
    }

    /// Writes `bench.json` and `bench.md` into a directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn write(&self, directory: &Path, settings: &Value) -> Result<()> {
        fs::create_dir_all(directory).context("creating the output directory")?;
        let numbers: Map<String, Value> = self
            .rows
            .iter()
            .map(|row| (row.name.clone(), json!({"value": row.value, "unit": row.unit})))
            .collect();
        let json = serde_json::to_string_pretty(&json!({"settings": settings, "results": numbers}))?;
        fs::write(directory.join("bench.json"), json + "\n").context("writing bench.json")?;
        let mut text = format!("Settings: `{settings}`\n\n| what | value | bar |\n|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&row.markdown());
        }
        fs::write(directory.join("bench.md"), text).context("writing bench.md")
    }

    /// Names of the rows that miss their bar.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed = self.rows.iter().filter(|row| row.bar.is_some_and(|bar| !bar.holds(row.value)));
        missed.map(|row| row.line()).collect()
    }
}

impl Row {
    fn number(&self) -> String {
        if self.value.abs() >= 100.0 { format!("{:.0}", self.value) } else { format!("{:.2}", self.value) }
    }

    fn line(&self) -> String {
        let bar = self.bar.map_or_else(String::new, |bar| {
            format!("   [{} {}]", bar.shown(), if bar.holds(self.value) { "met" } else { "MISSED" })
        });
        format!("{:<52} {:>10} {}{bar}", self.name, self.number(), self.unit)
    }

    fn markdown(&self) -> String {
        let bar = self.bar.map_or_else(String::new, |bar| {
            format!("{} {}", bar.shown(), if bar.holds(self.value) { "met" } else { "**missed**" })
        });
        format!("| {} | {} {} | {bar} |\n", self.name, self.number(), self.unit)
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<Duration> = (1..=1000).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(500));
        assert_eq!(percentile(&times, 0.99), Duration::from_millis(990));
        assert_eq!(percentile(&times, 0.999), Duration::from_millis(999));
        assert_eq!(percentile(&times[..1], 0.99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 0.99), Duration::ZERO);
    }
}
