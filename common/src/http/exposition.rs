//! Prometheus' text format, version 0.0.4: families in the order in which they are written, each with its type once.

use std::fmt::{self, Write as _};

/// What kind of number a family holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    Gauge,
    /// Quantiles with `_sum` and `_count`.
    Summary,
}

/// Labels of a sample: name and value.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Labels as they stand on the page: for what has samples in many families.
#[derive(Debug)]
pub struct LabelText(String);

impl LabelText {
    pub fn new(labels: Labels<'_>) -> Self {
        let mut text = String::new();
        write_labels(labels, &mut text);
        Self(text)
    }
}

/// A page that is being written.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// An empty page with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes) }
    }

    /// Begins a family; its samples follow. Each name is begun once.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Summary => "summary",
        };
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { page: self, name }
    }

    /// A family of one sample without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Number) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    /// A family of one sample without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Number) {
        self.family(name, Kind::Counter, help).sample(&[], value);
    }

    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.text.write_fmt(line).unwrap_or_else(|error| unreachable!("a string takes everything: {error}"));
    }
}

/// A family whose samples are being written.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut Exposition,
    name: &'a str,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Number) {
        self.suffixed("", labels, value);
    }

    /// A sample of a summary: `_sum`, `_count`.
    pub fn suffixed(&mut self, suffix: &str, labels: Labels<'_>, value: impl Number) {
        self.line(suffix, |text| write_labels(labels, text), value);
    }

    /// [`Family::sample`] with labels that are written already.
    pub fn sample_of(&mut self, labels: &LabelText, value: impl Number) {
        self.line("", |text| text.push_str(&labels.0), value);
    }

    fn line(&mut self, suffix: &str, write_labels: impl FnOnce(&mut String), value: impl Number) {
        let text = &mut self.page.text;
        text.push_str(self.name);
        text.push_str(suffix);
        write_labels(text);
        text.push(' ');
        value.write_to(text);
        text.push('\n');
    }
}

fn write_labels(labels: Labels<'_>, text: &mut String) {
    for (index, (name, value)) in labels.iter().enumerate() {
        text.push(if index == 0 { '{' } else { ',' });
        text.push_str(name);
        text.push_str("=\"");
        escape(value, text);
        text.push('"');
    }
    if !labels.is_empty() {
        text.push('}');
    }
}

fn escape(value: &str, text: &mut String) {
    if !value.bytes().any(|byte| matches!(byte, b'\\' | b'"' | b'\n')) {
        return text.push_str(value);
    }
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

/// What can be the value of a sample.
pub trait Number {
    fn write_to(self, text: &mut String);
}

macro_rules! integer {
    ($($kind:ty),*) => { $(
        impl Number for $kind {
            fn write_to(self, text: &mut String) {
                text.push_str(itoa::Buffer::new().format(self));
            }
        }
    )* };
}

integer!(u64, usize, i64);

impl Number for f64 {
    fn write_to(self, text: &mut String) {
        write!(text, "{self}").unwrap_or_else(|error| unreachable!("a string takes everything: {error}"));
    }
}

impl Number for bool {
    fn write_to(self, text: &mut String) {
        text.push(if self { '1' } else { '0' });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let mut page = Exposition::default();
        page.gauge("a", "One.", 1_u64);
        let mut family = page.family("b_total", Kind::Counter, "Two.");
        family.sample(&[("topic", "t")], 2_u64);
        family.sample(&[("topic", "a\\b\"c\nd"), ("x", "ä")], 0.5);
        family.sample_of(&LabelText::new(&[("topic", "u\n")]), i64::MIN);
        family.sample_of(&LabelText::new(&[]), u64::MAX);
        let mut family = page.family("c", Kind::Summary, "Three.");
        family.sample(&[("quantile", "0.99")], f64::NAN);
        family.suffixed("_count", &[], 0_usize);
        page.gauge("d", "Four.", true);
        let expected = "# HELP a One.\n# TYPE a gauge\na 1\n# HELP b_total Two.\n# TYPE b_total counter\n\
            b_total{topic=\"t\"} 2\nb_total{topic=\"a\\\\b\\\"c\\nd\",x=\"ä\"} 0.5\nb_total{topic=\"u\\n\"} -9223372036854775808\n\
            b_total 18446744073709551615\n# HELP c Three.\n# TYPE c summary\n\
            c{quantile=\"0.99\"} NaN\nc_count 0\n# HELP d Four.\n# TYPE d gauge\nd 1\n";
        assert_eq!(page.into_text(), expected);
    }
}
