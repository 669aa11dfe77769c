use std::fmt::{self, Write};

use loraloom_chart::{Axis, COLOURS, svg_style, text_width};

use super::{Interval, Timeline};
use crate::schedule::Operation;

/// Pixels.
const MARGIN: f64 = 72.0;
const WIDTH: f64 = 960.0;
/// Room for half of the last mark's text.
const RIGHT: f64 = 40.0;
const ROW: f64 = 30.0;
const BAR: f64 = 24.0;
const LEGEND: f64 = 20.0;
const AXIS: f64 = 32.0;
/// Width of a digit or a point in a bar's label.
const CHARACTER: f64 = 6.2;
/// Marks of the axis at the most, besides that at 0.
const MARKS: usize = 10;
const SWATCH: f64 = 18.0;
/// Groups that the legend names at the most: the colours come round again.
const NAMED: usize = COLOURS;

const STYLE: &str = "<style>.bar text{font-size:10px;text-anchor:middle}.forward{fill-opacity:.4}\
    .end{text-anchor:middle}</style>";

/// The simulation as an SVG image: a row per stage, a colour per group, forward passes lighter than
/// backward passes, optimizer steps grey; labels are `group.microbatch`.
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
    let top = 2.0 * LEGEND + 8.0;
    let bottom = top + rows * ROW;
    let (width, height) = (MARGIN + WIDTH + RIGHT, bottom + AXIS);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">"#
    )?;
    let style = svg_style();
    writeln!(
        svg,
        "<title>Operations of each stage over time</title>{style}{STYLE}"
    )?;
    writeln!(
        svg,
        r#"<rect class="page" width="{width}" height="{height}"/>"#
    )?;
    legend(svg, groups)?;
    for stage in 0..simulation.stages.len() {
        let y = top + stage as f64 * ROW + BAR / 2.0 + 4.0;
        writeln!(
            svg,
            r#"<text class="ink" x="8" y="{y}">stage {stage}</text>"#
        )?;
    }
    let scale = if simulation.makespan > 0.0 {
        WIDTH / simulation.makespan
    } else {
        0.0
    };
    axis(svg, simulation.makespan, scale, (top, bottom))?;
    for interval in intervals() {
        bar(svg, interval, scale, top)?;
    }
    writeln!(svg, "</svg>")
}

/// The groups, and what shades and labels mean.
fn legend(svg: &mut String, groups: usize) -> fmt::Result {
    let mut x = MARGIN;
    for group in 0..groups.min(NAMED) {
        let name = if group + 1 == NAMED && groups > NAMED {
            format!("group {group}, colours again from {NAMED} on")
        } else {
            format!("group {group}")
        };
        let (middle, text) = (x + SWATCH / 2.0, x + SWATCH + 6.0);
        writeln!(
            svg,
            r#"<rect class="f{group} forward" x="{x:.1}" y="6" width="9" height="11"/><rect class="f{group}" x="{middle:.1}" y="6" width="9" height="11"/><text class="ink" x="{text:.1}" y="16">{name}</text>"#
        )?;
        x = text + text_width(&name) + 10.0;
    }
    let y = LEGEND + 15.0;
    writeln!(
        svg,
        r#"<text class="muted" x="{MARGIN}" y="{y}">pale: forward, full: backward, grey: optimizer step; 1.0 is group 1, micro-batch 0</text>"#
    )
}

fn bar(svg: &mut String, interval: &Interval, scale: f64, top: f64) -> fmt::Result {
    let colour = interval.operation.group() % COLOURS;
    let (class, ink, label) = match interval.operation {
        Operation::Forward {
            group, microbatch, ..
        } => (
            format!("f{colour} forward"),
            "ink",
            format!("{group}.{microbatch}"),
        ),
        Operation::Backward {
            group, microbatch, ..
        } => (
            format!("f{colour}"),
            "page",
            format!("{group}.{microbatch}"),
        ),
        Operation::Step { .. } => ("muted".to_owned(), "", String::new()),
    };
    let x = MARGIN + interval.start * scale;
    let y = top + interval.stage as f64 * ROW;
    let width = (interval.end - interval.start) * scale;
    if width <= 0.0 {
        return Ok(());
    }
    write!(
        svg,
        r#"<g class="bar"><title>{}: {:.6} to {:.6} s</title><rect class="edge {class}" x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{BAR}"/>"#,
        interval.operation, interval.start, interval.end
    )?;
    if !label.is_empty() && width >= label.len() as f64 * CHARACTER {
        let (x, y) = (x + width / 2.0, y + BAR / 2.0 + 3.5);
        write!(
            svg,
            r#"<text class="{ink}" x="{x:.2}" y="{y:.2}">{label}</text>"#
        )?;
    }
    writeln!(svg, "</g>")
}

/// Marks through all rows, in the unit of which there is at least one.
fn axis(svg: &mut String, makespan: f64, scale: f64, (top, bottom): (f64, f64)) -> fmt::Result {
    let end = MARGIN + WIDTH;
    writeln!(svg, r#"<path class="line" d="M{MARGIN} {bottom}H{end}"/>"#)?;
    if scale <= 0.0 {
        return Ok(());
    }
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    let unit = units.into_iter().find(|(unit, _)| makespan >= *unit);
    let (unit, name) = unit.unwrap_or((1.0, "s"));
    let axis = Axis::from_zero(makespan / unit, MARKS);
    let decimals = axis.decimals;
    for mark in axis.marks {
        let x = MARGIN + mark * unit * scale;
        let text = bottom + 18.0;
        writeln!(
            svg,
            r#"<path class="line" d="M{x:.2} {top}V{bottom}"/><text class="muted end" x="{x:.2}" y="{text}">{mark:.decimals$} {name}</text>"#
        )?;
    }
    Ok(())
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
