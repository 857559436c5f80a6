//! Tables for people: a line of headings, columns as wide as their widest cell, two spaces between them.

use std::fmt;

/// A table with a fixed number of columns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), ..Self::default() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// A line below the table.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> = self.headings.iter().map(|heading| (*heading).to_owned()).collect();
        let lines: Vec<&Vec<String>> =
            if headings.is_empty() { vec![] } else { std::iter::once(&headings).chain(&self.rows).collect() };
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..headings.len()).map(|column| width(column).unwrap_or(0)).collect();
        for line in lines {
            let mut text = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                text.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        Ok(())
    }
}

/// A set of broker ids as tables show it: `1,2,3`, or `-` for none.
pub(crate) fn ids(ids: &[i32]) -> String {
    if ids.is_empty() {
        return "-".to_owned();
    }
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A value that may be unknown: `-` stands for it.
pub(crate) fn known<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Bytes with a unit: `1.5 MiB`.
pub(crate) fn bytes(count: i64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut scaled = count as f64;
    let mut unit = "";
    for next in UNITS {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        unit = next;
    }
    format!("{scaled:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["TOPIC", "P"]);
        table.row(["a".to_owned(), "10".to_owned()]);
        table.row(["orders".to_owned(), String::new()]);
        table.note("2 topics");
        assert_eq!(table.to_string(), "TOPIC   P\na       10\norders\n2 topics\n");
        let mut notes = Table::default();
        notes.note("nothing");
        assert_eq!(notes.to_string(), "nothing\n");
    }

    #[test]
    fn values_are_short() {
        assert_eq!((ids(&[]), ids(&[3, 1])), ("-".to_owned(), "3,1".to_owned()));
        assert_eq!((known(None::<i32>), known(Some(4))), ("-".to_owned(), "4".to_owned()));
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }
}
