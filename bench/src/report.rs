//! What one run measured on one system: numbers with their bars, curves of latencies, series over time.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::histogram::Histogram;
use crate::summary::Summary;

/// One measured number with its unit and, where there is one, the bar that it is held against.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) bar: Option<Bar>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bar {
    Above(f64),
    Below(f64),
}

impl Bar {
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Self::Above(bar) => value >= bar,
            Self::Below(bar) => value <= bar,
        }
    }

    pub(crate) fn shown(self) -> String {
        match self {
            Self::Above(bar) => format!("≥ {bar}"),
            Self::Below(bar) => format!("≤ {bar}"),
        }
    }
}

/// What the machine can do at best, and which share of it in percent is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor<'a> {
    pub(crate) name: &'a str,
    pub(crate) megabytes_per_second: f64,
    pub(crate) bar: Option<Bar>,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Put before the name of each row that is added.
    section: String,
    pub(crate) rows: Vec<Row>,
    /// Latencies by name.
    pub(crate) curves: Vec<(String, Histogram)>,
    /// Values for each second, by name.
    pub(crate) series: Vec<(String, Vec<f64>)>,
}

impl Report {
    /// What is added from now on belongs to this workload.
    pub(crate) fn begin(&mut self, section: &str) {
        self.section = if section.is_empty() { String::new() } else { format!("{section} ") };
    }

    /// Adds a number and prints it at once: a run that fails later has still said something.
    pub(crate) fn add(&mut self, name: impl AsRef<str>, value: f64, unit: &'static str, bar: Option<Bar>) {
        let row = Row { name: format!("{}{}", self.section, name.as_ref()), value, unit, bar };
        println!("{}", row.line());
        self.rows.push(row);
    }

    /// Adds a rate in MB/s, and what share of a floor of the machine it is.
    pub(crate) fn add_rate(&mut self, name: &str, value: f64, bar: Option<Bar>, floor: Floor<'_>) {
        self.add(name, value, "MB/s", bar);
        self.add_share(name, value, floor);
    }

    /// A rate in MB/s beside what the machine can do at best.
    pub(crate) fn add_share(&mut self, name: &str, value: f64, floor: Floor<'_>) {
        let share = value / floor.megabytes_per_second * 100.0;
        self.add(format!("{name}, share of {}", floor.name), share, "%", floor.bar);
    }

    /// Percentiles, in milliseconds.
    pub(crate) fn add_latencies(&mut self, name: &str, times: &Histogram, p99: Option<Bar>) {
        for (label, share, bar) in [("p50", 0.5, None), ("p99", 0.99, p99), ("p99.9", 0.999, None)] {
            self.add(format!("{name} {label}"), milliseconds(times.percentile(share)), "ms", bar);
        }
        self.add(format!("{name} max"), milliseconds(times.max()), "ms", None);
        self.curves.push((format!("{}{name}", self.section), times.clone()));
    }

    /// The same of single times.
    pub(crate) fn add_times(&mut self, name: &str, times: &[Duration], p99: Option<Bar>) {
        self.add_latencies(name, &times.iter().copied().collect(), p99);
    }

    pub(crate) fn add_series(&mut self, name: &str, values: Vec<f64>) {
        self.series.push((format!("{}{name}", self.section), values));
    }

    /// Writes `bench.json`, `bench.md` and the plots of this one report into a directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn write(&self, directory: &Path, settings: &Value) -> Result<()> {
        Summary::new(&[self], &[]).write(directory, settings)
    }

    /// Lines of the rows that miss their bar.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed = self.rows.iter().filter(|row| row.bar.is_some_and(|bar| !bar.holds(row.value)));
        missed.map(Row::line).collect()
    }
}

/// Three digits are enough.
pub(crate) fn shown(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

impl Row {
    fn line(&self) -> String {
        let bar = self.bar.map_or_else(String::new, |bar| {
            format!("   [{} {}]", bar.shown(), if bar.holds(self.value) { "met" } else { "MISSED" })
        });
        format!("{:<70} {:>10} {}{bar}", self.name, shown(self.value), self.unit)
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_carry_their_workload_and_their_bar() {
        let mut report = Report::default();
        report.add("alone", 1.0, "s", None);
        report.begin("W1");
        let floor = Floor { name: "append", megabytes_per_second: 200.0, bar: Some(Bar::Above(60.0)) };
        report.add_rate("in", 50.0, None, floor);
        report.add_times("ack", &[Duration::from_millis(5)], Some(Bar::Below(8.0)));
        let value = |name| report.rows.iter().find(|row| row.name == name).map(|row| row.value);
        assert_eq!(value("alone"), Some(1.0));
        assert_eq!(value("W1 in, share of append"), Some(25.0));
        assert_eq!(value("W1 ack p99"), Some(5.0));
        assert_eq!(value("in"), None);
        assert_eq!(report.missed().len(), 1);
        assert!(report.missed()[0].contains("share of append"), "{:?}", report.missed());
    }

    #[test]
    fn a_bar_is_met_by_the_number_itself() {
        assert!(Bar::Above(2.0).holds(2.0) && Bar::Below(2.0).holds(2.0));
        assert!(!Bar::Above(2.0).holds(1.9) && !Bar::Below(2.0).holds(2.1));
        assert!(!Bar::Above(2.0).holds(f64::NAN) && !Bar::Below(2.0).holds(f64::NAN));
    }
}
