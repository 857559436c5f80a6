//! Reports of several rounds, of one system or of two in turns, as one table: medians, and the ratio of the medians
//! with the smallest and largest ratio of a pair of rounds.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::histogram::Histogram;
use crate::plot;
use crate::report::{Bar, Report, milliseconds, shown};

/// Percentiles in the JSON, as shares.
const SHARES: [f64; 8] = [0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0];

/// One number over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) bar: Option<Bar>,
    pub(crate) ours: Vec<f64>,
    pub(crate) theirs: Vec<f64>,
}

/// Ours over theirs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) of_medians: f64,
    pub(crate) smallest: f64,
    pub(crate) largest: f64,
}

impl Entry {
    pub(crate) fn value(&self) -> f64 {
        median(&self.ours)
    }

    /// `None` unless both systems have the number, and theirs is not zero.
    pub(crate) fn ratio(&self) -> Option<Ratio> {
        let pairs = self.ours.iter().zip(&self.theirs).filter(|(_, theirs)| **theirs != 0.0);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        let smallest = ratios.iter().copied().reduce(f64::min)?;
        let largest = ratios.iter().copied().reduce(f64::max)?;
        Some(Ratio { of_medians: median(&self.ours) / median(&self.theirs), smallest, largest })
    }
}

/// The middle value, or the mean of the two in the middle; NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

fn range(values: &[f64]) -> String {
    let text = shown(median(values));
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.len() < 2 { text } else { format!("{text} ({}–{})", shown(smallest), shown(largest)) }
}

#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) entries: Vec<Entry>,
    curves: Vec<(String, Histogram)>,
    series: Vec<(String, Vec<f64>)>,
    compares: bool,
}

impl Summary {
    /// The reports of our rounds, and of the other system's in the same order.
    pub(crate) fn new(ours: &[&Report], theirs: &[&Report]) -> Self {
        let mut summary = Self { compares: !theirs.is_empty(), ..Self::default() };
        let mut places: HashMap<String, usize> = HashMap::new();
        for (reports, is_ours) in [(ours, true), (theirs, false)] {
            for row in reports.iter().flat_map(|report| &report.rows) {
                let place = *places.entry(row.name.clone()).or_insert_with(|| {
                    let (ours, theirs) = (Vec::new(), Vec::new());
                    let name = row.name.clone();
                    summary.entries.push(Entry { name, unit: row.unit, bar: row.bar, ours, theirs });
                    summary.entries.len() - 1
                });
                let entry = &mut summary.entries[place];
                if is_ours { entry.ours.push(row.value) } else { entry.theirs.push(row.value) }
            }
            let suffix = if is_ours { "" } else { " (other)" };
            for (name, curve) in reports.iter().flat_map(|report| &report.curves) {
                let name = format!("{name}{suffix}");
                match summary.curves.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => known.merge(curve),
                    None => summary.curves.push((name, curve.clone())),
                }
            }
            for (name, values) in reports.iter().flat_map(|report| &report.series) {
                let name = format!("{name}{suffix}");
                // Of several rounds the last one is drawn.
                summary.series.retain(|(known, _)| *known != name);
                summary.series.push((name, values.clone()));
            }
        }
        summary
    }

    /// Lines of what misses its bar.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed =
            |entry: &&Entry| !entry.ours.is_empty() && entry.bar.is_some_and(|bar| !bar.holds(entry.value()));
        let line = |entry: &Entry| {
            let bar = entry.bar.map(Bar::shown).unwrap_or_default();
            format!("{}: {} {} [{bar}]", entry.name, shown(entry.value()), entry.unit)
        };
        self.entries.iter().filter(missed).map(line).collect()
    }

    pub(crate) fn markdown(&self, settings: &Value) -> String {
        let mut text = format!("Settings: `{settings}`\n\n");
        if self.compares {
            text.push_str("| what | ours | other | ours ÷ other (pairs) | bar |\n|---|---|---|---|---|\n");
        } else {
            text.push_str("| what | value | bar |\n|---|---|---|\n");
        }
        for entry in &self.entries {
            let bar = entry.bar.filter(|_| !entry.ours.is_empty()).map_or_else(String::new, |bar| {
                format!("{} {}", bar.shown(), if bar.holds(entry.value()) { "met" } else { "**missed**" })
            });
            let side = |values: &[f64]| match values {
                [] => "–".to_owned(),
                values => format!("{} {}", range(values), entry.unit),
            };
            let _ = write!(text, "| {} | {} |", entry.name, side(&entry.ours));
            if self.compares {
                let ratio = entry.ratio().map_or_else(String::new, |ratio| {
                    format!("{:.2} ({:.2}–{:.2})", ratio.of_medians, ratio.smallest, ratio.largest)
                });
                let _ = write!(text, " {} | {ratio} |", side(&entry.theirs));
            }
            let _ = writeln!(text, " {bar} |");
        }
        text
    }

    pub(crate) fn json(&self, settings: &Value) -> Value {
        let mut results = Map::new();
        for entry in &self.entries {
            let mut result = json!({"value": entry.value(), "unit": entry.unit, "samples": entry.ours});
            if let Some(bar) = entry.bar {
                result["bar"] = json!(bar.shown());
                result["met"] = json!(bar.holds(entry.value()));
            }
            if !entry.theirs.is_empty() {
                result["other"] = json!({"value": median(&entry.theirs), "samples": entry.theirs});
            }
            if let Some(ratio) = entry.ratio() {
                let (of_medians, smallest, largest) = (ratio.of_medians, ratio.smallest, ratio.largest);
                result["ratio"] = json!({"of_medians": of_medians, "min": smallest, "max": largest});
            }
            results.insert(entry.name.clone(), result);
        }
        let curves: Map<String, Value> = self
            .curves
            .iter()
            .map(|(name, curve)| {
                let point = |share: &f64| json!([share, milliseconds(curve.percentile(*share))]);
                let points: Vec<Value> = SHARES.iter().map(point).collect();
                (name.clone(), json!({"count": curve.count(), "share_and_ms": points}))
            })
            .collect();
        let series: Map<String, Value> =
            self.series.iter().map(|(name, values)| (name.clone(), json!(values))).collect();
        json!({"settings": settings, "results": results, "latencies": curves, "per_second": series})
    }

    /// Writes `bench.json`, `bench.md`, and where there is something to draw `latency.svg`, `throughput.svg` and
    /// `over-time.svg`.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn write(&self, directory: &Path, settings: &Value) -> Result<()> {
        fs::create_dir_all(directory).context("creating the output directory")?;
        let write = |name: &str, text: String| {
            fs::write(directory.join(name), text).with_context(|| format!("writing {name}"))
        };
        write("bench.json", serde_json::to_string_pretty(&self.json(settings))? + "\n")?;
        let mut text = self.markdown(settings);
        let rates = self.entries.iter().filter(|entry| entry.unit == "MB/s");
        let bars: Vec<plot::Bars> = rates
            .map(|entry| plot::Bars {
                label: entry.name.clone(),
                values: [&entry.ours, &entry.theirs].iter().map(|values| median(values)).collect(),
            })
            .collect();
        let mut plots = Vec::new();
        if !self.curves.is_empty() {
            plots.push(("latency.svg", plot::latencies("Latency by percentile", &self.curves)));
        }
        if !bars.is_empty() {
            plots.push(("throughput.svg", plot::bars("MB/s", &bars)));
        }
        if !self.series.is_empty() {
            plots.push(("over-time.svg", plot::series("MB/s in each second", &self.series)));
        }
        for (name, drawn) in plots {
            let _ = write!(text, "\n![{name}]({name})\n");
            write(name, drawn)?;
        }
        write("bench.md", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(value: f64) -> Report {
        let mut report = Report::default();
        report.begin("W1");
        report.add("rate", value, "MB/s", Some(Bar::Above(200.0)));
        report.add_times("ack", &[Duration::from_millis(value as u64)], None);
        report.add_series("rate", vec![value]);
        report
    }

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(median(&[]).is_nan());
        let (ours, theirs) = ([report(100.0), report(300.0), report(200.0)], [report(100.0), report(50.0)]);
        let summary = Summary::new(&ours.each_ref(), &theirs.each_ref());
        let entry = &summary.entries[0];
        assert_eq!((entry.name.as_str(), entry.value()), ("W1 rate", 200.0));
        // The third round has no pair; the ratio of medians counts it all the same.
        assert_eq!(entry.ratio(), Some(Ratio { of_medians: 200.0 / 75.0, smallest: 1.0, largest: 6.0 }));
    }

    #[test]
    fn a_number_that_only_one_system_has_gets_no_ratio() {
        let mut own = report(1.0);
        own.add("threads", 3.0, "", None);
        let summary = Summary::new(&[&own], &[&report(0.0)]);
        assert!(
            summary
                .entries
                .iter()
                .all(|entry| entry.ratio().is_none_or(|ratio| ratio.of_medians.is_finite()))
        );
        let text = summary.markdown(&json!({}));
        assert!(text.contains("| W1 threads | 3.00  | – |  |  |"), "{text}");
    }

    #[test]
    fn the_table_of_one_run_shows_value_and_bar() {
        let summary = Summary::new(&[&report(150.0)], &[]);
        let text = summary.markdown(&json!({"seconds": 1}));
        assert!(text.contains("| W1 rate | 150 MB/s | ≥ 200 **missed** |"), "{text}");
        assert_eq!(summary.missed(), ["W1 rate: 150 MB/s [≥ 200]"]);
        let json = summary.json(&json!({}));
        assert_eq!(json["results"]["W1 rate"]["met"], false);
        assert_eq!(json["latencies"]["W1 ack"]["count"], 1);
    }

    #[test]
    fn the_table_of_two_systems_shows_the_ratio_with_its_range() {
        let summary = Summary::new(&[&report(200.0), &report(300.0)], &[&report(100.0), &report(100.0)]);
        let text = summary.markdown(&json!({}));
        let row = "| W1 rate | 250 (200–300) MB/s | 100 (100–100) MB/s | 2.50 (2.00–3.00) | ≥ 200 met |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn everything_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let reports = [report(90.0), report(150.0), Report::default()];
        Summary::new(&reports.each_ref(), &[]).write(directory.path(), &json!({})).unwrap();
        for name in ["bench.json", "bench.md", "latency.svg", "throughput.svg", "over-time.svg"] {
            assert!(directory.path().join(name).is_file(), "{name} is missing");
        }
        let text = fs::read_to_string(directory.path().join("bench.json")).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["per_second"]["W1 rate"], json!([150.0]));
    }
}
