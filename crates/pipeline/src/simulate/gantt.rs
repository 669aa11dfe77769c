use std::fmt::{self, Write};

use super::{Interval, Timeline};
use crate::schedule::Operation;

/// Pixels.
const MARGIN: f64 = 72.0;
const WIDTH: f64 = 960.0;
const ROW: f64 = 30.0;
const BAR: f64 = 24.0;
const LEGEND: f64 = 26.0;
const AXIS: f64 = 36.0;
/// Width of a digit or a point in a bar's label.
const CHARACTER: f64 = 5.6;
/// Least distance between marks on the axis.
const MARK_DISTANCE: f64 = 90.0;
const LEGEND_ENTRY: f64 = 74.0;

/// Text suits light and dark pages; bars are light with dark labels on both.
const STYLE: &str = "<style>text{font:12px sans-serif;fill:#444}.axis{stroke:#999;fill:none}\
    .bar{stroke:#444;stroke-width:.5}.bar text{font-size:10px;fill:#111;stroke:none;\
    text-anchor:middle}@media (prefers-color-scheme:dark){text{fill:#ccc}.axis{stroke:#777}}</style>";

/// The simulation as an SVG image: a row per stage, a colour per group, forward passes lighter than
/// backward passes, optimizer steps grey; labels are `group.microbatch`. There is no background.
pub fn gantt_svg(simulation: &Timeline) -> String {
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&mut svg, simulation);
    svg
}

fn draw(svg: &mut String, simulation: &Timeline) -> fmt::Result {
    let rows = simulation.stages.len() as f64;
    let intervals = || simulation.stages.iter().flat_map(|stage| &stage.intervals);
    let groups = intervals().map(|interval| interval.operation.group() + 1);
    let groups = groups.max().unwrap_or(0);
    let bottom = LEGEND + rows * ROW;
    let (width, height) = (MARGIN + WIDTH + 24.0, bottom + AXIS);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">"#
    )?;
    writeln!(
        svg,
        "<title>Operations of each stage over time</title>{STYLE}"
    )?;
    legend(svg, groups)?;
    for stage in 0..simulation.stages.len() {
        let y = LEGEND + stage as f64 * ROW + BAR / 2.0 + 4.0;
        writeln!(svg, r#"<text x="4" y="{y}">stage {stage}</text>"#)?;
    }
    let scale = if simulation.makespan > 0.0 {
        WIDTH / simulation.makespan
    } else {
        0.0
    };
    for interval in intervals() {
        bar(svg, interval, scale)?;
    }
    axis(svg, simulation.makespan, scale, bottom)?;
    writeln!(svg, "</svg>")
}

/// Entries for the first groups, as many as fit.
fn legend(svg: &mut String, groups: usize) -> fmt::Result {
    let room = (WIDTH / LEGEND_ENTRY) as usize;
    for group in 0..groups.min(room) {
        let x = MARGIN + group as f64 * LEGEND_ENTRY;
        let (forward, backward) = colours(group);
        writeln!(
            svg,
            r#"<rect class="bar" x="{x}" y="5" width="7" height="12" fill="{forward}"/><rect class="bar" x="{}" y="5" width="7" height="12" fill="{backward}"/><text x="{}" y="15">group {group}</text>"#,
            x + 7.0,
            x + 18.0
        )?;
    }
    Ok(())
}

fn bar(svg: &mut String, interval: &Interval, scale: f64) -> fmt::Result {
    let (forward, backward) = colours(interval.operation.group());
    let (fill, label) = match interval.operation {
        Operation::Forward {
            group, microbatch, ..
        } => (forward, format!("{group}.{microbatch}")),
        Operation::Backward {
            group, microbatch, ..
        } => (backward, format!("{group}.{microbatch}")),
        Operation::Step { .. } => ("#888".to_owned(), String::new()),
    };
    let x = MARGIN + interval.start * scale;
    let y = LEGEND + interval.stage as f64 * ROW;
    let width = (interval.end - interval.start) * scale;
    if width <= 0.0 {
        return Ok(());
    }
    write!(
        svg,
        r#"<g class="bar"><title>{}: {:.6} to {:.6} s</title><rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{BAR}" fill="{fill}"/>"#,
        interval.operation, interval.start, interval.end
    )?;
    if !label.is_empty() && width >= label.len() as f64 * CHARACTER {
        let (x, y) = (x + width / 2.0, y + BAR / 2.0 + 3.5);
        write!(svg, r#"<text x="{x:.2}" y="{y:.2}">{label}</text>"#)?;
    }
    writeln!(svg, "</g>")
}

fn axis(svg: &mut String, makespan: f64, scale: f64, y: f64) -> fmt::Result {
    let end = MARGIN + WIDTH;
    writeln!(svg, r#"<path class="axis" d="M{MARGIN} {y}H{end}"/>"#)?;
    if scale <= 0.0 {
        return Ok(());
    }
    let distance = round_up(MARK_DISTANCE / scale);
    // One decimal beyond the leading digit of the distance.
    let decimals = (1.0 - distance.log10().floor()).clamp(0.0, 9.0) as usize;
    for mark in 0..=(makespan / distance) as usize {
        let seconds = mark as f64 * distance;
        let x = MARGIN + seconds * scale;
        let (tick, text) = (y + 5.0, y + 19.0);
        writeln!(
            svg,
            r#"<path class="axis" d="M{x:.2} {y}V{tick}"/><text x="{x:.2}" y="{text}">{seconds:.decimals$} s</text>"#
        )?;
    }
    Ok(())
}

/// The next 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&rounded| rounded >= value)
        .unwrap_or(10.0 * power)
}

/// Colours of forward and backward passes. The golden angle keeps the hues of neighbouring groups
/// apart for any number of groups.
fn colours(group: usize) -> (String, String) {
    let hue = (group as f64 * 137.508 + 210.0) % 360.0;
    (
        format!("hsl({hue:.0},70%,82%)"),
        format!("hsl({hue:.0},60%,62%)"),
    )
}

/// The simulation as text, a line per stage and a column per `seconds_per_column`: groups are letters
/// from `a` on (from `a` again after 26), small for forward, capital for backward passes, and `.` is
/// idle.
///
/// Each column shows the operation in its middle, so operations shorter than a column may not appear.
pub fn gantt_text(simulation: &Timeline, seconds_per_column: f64) -> String {
    let columns = (simulation.makespan / seconds_per_column).ceil() as usize;
    let mut text = String::new();
    for (stage, report) in simulation.stages.iter().enumerate() {
        let mut line = vec!['.'; columns];
        for interval in &report.intervals {
            // A letter of the alphabet always fits into a byte.
            let small = (b'a' + (interval.operation.group() % 26) as u8) as char;
            let letter = match interval.operation {
                Operation::Forward { .. } => small,
                Operation::Backward { .. } => small.to_ascii_uppercase(),
                Operation::Step { .. } => continue,
            };
            let column = |seconds: f64| (seconds / seconds_per_column - 0.5).ceil() as usize;
            let end = column(interval.end).min(columns);
            for place in &mut line[column(interval.start).min(end)..end] {
                *place = letter;
            }
        }
        let line: String = line.into_iter().collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "stage {stage} |{line}");
    }
    text
}
