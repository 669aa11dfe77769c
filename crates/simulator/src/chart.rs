use std::fmt::{self, Write};

use super::{Replay, metrics::completion_seconds};

/// Pixels.
const LEFT: f64 = 64.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;
const PANEL: f64 = 268.0;
/// Names of the legend in one row, and the height of a row.
const NAMES: usize = 4;
const ROW: f64 = 16.0;
const RIGHT: f64 = 24.0;
/// Points of a line, about one a pixel.
const POINTS: usize = 800;

/// Colours for light and dark pages.
const STYLE: &str = "<style>text{font:12px sans-serif;fill:#444}.axis{stroke:#999;fill:none}\
    .line{fill:none;stroke-width:1.6}@media (prefers-color-scheme:dark){text{fill:#ccc}\
    .axis{stroke:#777}}</style>";

/// An SVG image of replays of the same jobs under several policies, by name: the part of the jobs that was
/// done within a time, and the numbers of training and waiting jobs over time.
pub fn chart_svg(replays: &[(&str, &Replay)]) -> String {
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&mut svg, replays);
    svg
}

fn draw(svg: &mut String, replays: &[(&str, &Replay)]) -> fmt::Result {
    let legend = 18.0 + ROW * replays.len().div_ceil(NAMES) as f64;
    let (width, height) = (LEFT + WIDTH + RIGHT, legend + 3.0 * PANEL);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">"#
    )?;
    writeln!(svg, "<title>A trace under each policy</title>{STYLE}")?;
    for (index, (name, _)) in replays.iter().enumerate() {
        let x = LEFT + WIDTH / NAMES as f64 * (index % NAMES) as f64;
        let y = 12.0 + ROW * (index / NAMES) as f64;
        let (end, text, baseline, colour) = (x + 16.0, x + 20.0, y + 4.0, colour(index));
        writeln!(
            svg,
            r#"<path class="line" stroke="{colour}" d="M{x:.1} {y}H{end:.1}"/><text x="{text:.1}" y="{baseline}">{name}</text>"#
        )?;
    }
    let completions = replays.iter().map(|(_, replay)| done_by(replay)).collect();
    panel(
        svg,
        legend,
        "jobs done (%) within a time from their arrival",
        true,
        completions,
    )?;
    let over_time = |count: fn(&super::Moment) -> usize| {
        let line = |(_, replay): &(&str, &Replay)| steps(replay, count);
        replays.iter().map(line).collect()
    };
    panel(
        svg,
        legend + PANEL,
        "jobs that train",
        false,
        over_time(|moment| moment.running),
    )?;
    panel(
        svg,
        legend + 2.0 * PANEL,
        "jobs that wait",
        false,
        over_time(|moment| moment.waiting),
    )?;
    writeln!(svg, "</svg>")
}

type Line = Vec<(f64, f64)>;

/// Seconds, and the percentage of jobs that took no longer.
fn done_by(replay: &Replay) -> Line {
    let mut seconds = completion_seconds(replay);
    seconds.sort_by(f64::total_cmp);
    let all = seconds.len() as f64;
    let point = |(index, seconds): (usize, f64)| (seconds, (index + 1) as f64 / all * 100.0);
    seconds.into_iter().enumerate().map(point).collect()
}

/// A count over time, as a step function.
fn steps(replay: &Replay, count: fn(&super::Moment) -> usize) -> Line {
    let mut line: Line = Vec::new();
    for moment in &replay.moments {
        let (seconds, value) = (moment.nanoseconds as f64 / 1e9, count(moment) as f64);
        line.extend(line.last().map(|&(_, before)| (seconds, before)));
        line.push((seconds, value));
    }
    line
}

fn panel(svg: &mut String, top: f64, title: &str, log: bool, lines: Vec<Line>) -> fmt::Result {
    let top = top + 20.0;
    let bottom = top + HEIGHT;
    let all = || lines.iter().flatten();
    let highest = all().map(|&(_, y)| y).fold(1.0, f64::max);
    let latest = all().map(|&(x, _)| x).fold(1.0, f64::max);
    // The logarithmic axis begins at a second: no job of interest ends earlier.
    let earliest = all().map(|&(x, _)| x).fold(latest, f64::min).max(1.0);
    let place = |x: f64| {
        let part = if log {
            (x.max(earliest) / earliest).ln() / (latest / earliest).ln().max(f64::MIN_POSITIVE)
        } else {
            x / latest
        };
        LEFT + part * WIDTH
    };
    writeln!(
        svg,
        r#"<text x="{LEFT}" y="{:.0}">{title}</text>"#,
        top - 6.0
    )?;
    let end = LEFT + WIDTH;
    writeln!(
        svg,
        r#"<path class="axis" d="M{LEFT} {top}V{bottom}H{end}"/>"#
    )?;
    for part in [0.0, 0.5, 1.0] {
        let (y, value) = (bottom - part * HEIGHT, part * highest);
        writeln!(svg, r#"<text x="8" y="{:.0}">{value:.0}</text>"#, y + 4.0)?;
    }
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let seconds = if log {
            earliest * (latest / earliest).powf(part)
        } else {
            latest * part
        };
        let (x, y, text) = (place(seconds), bottom + 16.0, duration(seconds));
        writeln!(
            svg,
            r#"<text x="{x:.0}" y="{y:.0}" text-anchor="middle">{text}</text>"#
        )?;
    }
    for (index, line) in lines.iter().enumerate() {
        write!(svg, r#"<path class="line" stroke="{}" d=""#, colour(index))?;
        let every = line.len().div_ceil(POINTS).max(1);
        let kept = |(at, _): &(usize, _)| at % every == 0 || at + 1 == line.len();
        for (at, &(x, y)) in line.iter().enumerate().filter(kept) {
            let letter = if at == 0 { 'M' } else { 'L' };
            write!(
                svg,
                "{letter}{:.1} {:.1}",
                place(x),
                bottom - y / highest * HEIGHT
            )?;
        }
        writeln!(svg, r#""/>"#)?;
    }
    Ok(())
}

/// In the largest unit of which there is at least one.
fn duration(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length);
    let (length, name) = unit.unwrap_or((0.0, "s"));
    let value = seconds / f64::max(length, 1.0);
    let decimals = usize::from(value < 10.0 && value > 0.0);
    format!("{value:.decimals$} {name}")
}

/// The golden angle keeps the hues of neighbours apart, however many there are.
fn colour(index: usize) -> String {
    let hue = (index as f64 * 137.508 + 210.0) % 360.0;
    format!("hsl({hue:.0},65%,50%)")
}
