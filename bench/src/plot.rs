//! Small plots as SVG: nothing but text, so that no library is needed.

use std::fmt::Write as _;

use crate::histogram::Histogram;
use crate::report::{milliseconds, shown};

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Where the legend begins.
const RIGHT: f64 = 620.0;
const COLOURS: [&str; 10] = [
    "#1b6ca8", "#d1495b", "#2e8b57", "#edae49", "#6a4c93", "#00798c", "#8d5524", "#444444", "#c06c84",
    "#7a9e00",
];
/// How many nines the axis of percentiles shows.
const NINES: f64 = 4.0;

/// One row of a bar chart: a bar for each system that has the number.
pub(crate) struct Bars {
    pub(crate) label: String,
    pub(crate) values: Vec<f64>,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn document(title: &str, height: f64, content: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"16\">{}</text>\n{content}</svg>\n",
        escape(title)
    )
}

fn text(x: f64, y: f64, anchor: &str, label: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escape(label))
}

fn line(from: (f64, f64), to: (f64, f64)) -> String {
    format!(
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\n",
        from.0, from.1, to.0, to.1
    )
}

fn curve(index: usize, points: &[(f64, f64)], label: &str) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let y = TOP + 14.0 + 16.0 * index as f64;
    let mut drawn = format!(
        "<polyline fill=\"none\" stroke=\"{0}\" stroke-width=\"1.5\" points=\"{1}\"/>\n\
         <rect x=\"{2}\" y=\"{3:.1}\" width=\"10\" height=\"10\" fill=\"{0}\"/>\n",
        colour(index),
        points.join(" "),
        RIGHT + 14.0,
        y - 9.0
    );
    drawn.push_str(&text(RIGHT + 30.0, y, "start", label));
    drawn
}

/// Height of a plot whose legend has so many lines.
fn height(lines: usize) -> f64 {
    HEIGHT.max(TOP + BOTTOM + 16.0 * lines as f64)
}

/// Position on the axis of percentiles: equal steps for each nine.
fn nines(share: f64) -> f64 {
    (-(1.0 - share).max(1e-12).log10() / NINES).clamp(0.0, 1.0)
}

/// Latencies over percentiles, both axes logarithmic.
pub(crate) fn latencies(title: &str, curves: &[(String, Histogram)]) -> String {
    let largest = curves.iter().map(|(_, curve)| milliseconds(curve.max())).fold(1.0, f64::max);
    let decades = (largest.log10().ceil(), -1.0);
    let height = height(curves.len());
    let y_of = |value: f64| {
        let share = (value.max(0.1).log10() - decades.1) / (decades.0 - decades.1);
        height - BOTTOM - share * (height - TOP - BOTTOM)
    };
    let x_of = |share: f64| LEFT + nines(share) * (RIGHT - LEFT);
    let mut content = String::new();
    for decade in (decades.1 as i32)..=(decades.0 as i32) {
        let value = 10_f64.powi(decade);
        content.push_str(&line((LEFT, y_of(value)), (RIGHT, y_of(value))));
        content.push_str(&text(LEFT - 6.0, y_of(value) + 4.0, "end", &format!("{value} ms")));
    }
    for (share, label) in [(0.0, "0"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")]
    {
        content.push_str(&line((x_of(share), TOP), (x_of(share), height - BOTTOM)));
        content.push_str(&text(x_of(share), height - BOTTOM + 18.0, "middle", label));
    }
    for (index, (label, histogram)) in curves.iter().enumerate() {
        let points: Vec<(f64, f64)> = (0..=100)
            .map(|step| 1.0 - 10_f64.powf(-NINES * f64::from(step) / 100.0))
            .map(|share| (x_of(share), y_of(milliseconds(histogram.percentile(share)))))
            .collect();
        content.push_str(&curve(index, &points, label));
    }
    document(title, height, &content)
}

/// Values over seconds.
pub(crate) fn series(title: &str, all: &[(String, Vec<f64>)]) -> String {
    let largest = all.iter().flat_map(|(_, values)| values.iter().copied()).fold(1.0, f64::max);
    let seconds = all.iter().map(|(_, values)| values.len()).max().unwrap_or(1).max(2);
    let height = height(all.len());
    let y_of = |value: f64| height - BOTTOM - value / largest * (height - TOP - BOTTOM);
    let x_of = |second: usize| LEFT + second as f64 / (seconds - 1) as f64 * (RIGHT - LEFT);
    let mut content = String::new();
    for step in 0..=4 {
        let value = largest * f64::from(step) / 4.0;
        content.push_str(&line((LEFT, y_of(value)), (RIGHT, y_of(value))));
        content.push_str(&text(LEFT - 6.0, y_of(value) + 4.0, "end", &shown(value)));
    }
    for second in [0, seconds - 1] {
        content.push_str(&text(x_of(second), height - BOTTOM + 18.0, "middle", &format!("{second} s")));
    }
    for (index, (label, values)) in all.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            values.iter().enumerate().map(|(second, value)| (x_of(second), y_of(*value))).collect();
        content.push_str(&curve(index, &points, label));
    }
    document(title, height, &content)
}

/// Horizontal bars, on one scale.
pub(crate) fn bars(title: &str, rows: &[Bars]) -> String {
    const STEP: f64 = 18.0;
    const FROM: f64 = 430.0;
    const LONGEST: f64 = WIDTH - FROM - 70.0;
    let values = rows.iter().flat_map(|row| row.values.iter().copied());
    let largest = values.filter(|value| value.is_finite()).fold(1.0, f64::max);
    let mut content = String::new();
    let mut y = TOP;
    for row in rows {
        content.push_str(&text(FROM - 8.0, y + 12.0, "end", &row.label));
        for (index, value) in row.values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let length = (value / largest * LONGEST).max(0.0);
            let _ = writeln!(
                content,
                "<rect x=\"{FROM}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"14\" fill=\"{}\"/>",
                colour(index)
            );
            content.push_str(&text(FROM + length + 5.0, y + 12.0, "start", &shown(*value)));
            y += STEP;
        }
    }
    document(title, y + BOTTOM, &content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Whether every element that is opened is closed, and no bare ampersand is left.
    fn is_well_formed(svg: &str) -> bool {
        let mut open: Vec<&str> = Vec::new();
        for tag in svg.split('<').skip(1) {
            let Some((tag, _)) = tag.split_once('>') else { return false };
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            if tag.starts_with('/') {
                if open.pop() != Some(name) {
                    return false;
                }
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        open.is_empty()
            && svg.split('&').skip(1).all(|rest| rest.split_once(';').is_some_and(|(name, _)| name.len() < 5))
    }

    #[test]
    fn plots_are_well_formed_and_finite_whatever_the_labels_and_values() {
        let label = "a < b & \"c\"".to_owned();
        let times: Histogram = (1..100).map(Duration::from_millis).collect();
        let drawn = [
            latencies("t", &[(label.clone(), times), ("nothing".into(), Histogram::default())]),
            series(
                "t",
                &[(label.clone(), vec![1.0, 2.0]), ("one".into(), vec![3.0]), ("none".into(), vec![])],
            ),
            series("t", &[]),
            bars(
                "t",
                &[
                    Bars { label, values: vec![3.0, f64::NAN] },
                    Bars { label: String::new(), values: vec![0.0] },
                ],
            ),
        ];
        for svg in drawn {
            assert!(is_well_formed(&svg), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn each_nine_has_the_same_width() {
        let at = [0.0, 0.9, 0.99, 0.999, 0.9999].map(nines);
        for (position, expected) in at.into_iter().zip([0.0, 0.25, 0.5, 0.75, 1.0]) {
            assert!((position - expected).abs() < 1e-6, "{at:?}");
        }
        assert_eq!(nines(1.0), 1.0);
    }

    #[test]
    fn the_largest_bar_is_the_longest() {
        let row = |value| Bars { label: String::new(), values: vec![value] };
        let svg = bars("t", &[row(50.0), row(100.0)]);
        assert!(svg.contains("width=\"600.0\"") && svg.contains("width=\"300.0\""), "{svg}");
    }
}
