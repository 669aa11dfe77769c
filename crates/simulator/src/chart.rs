use std::fmt::{self, Write};

use loraloom_chart::{Axis, COLOURS, DASHES, escape, svg_style, text_width};

use super::{Replay, metrics::completion_seconds};

/// Pixels.
const LEFT: f64 = 64.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 180.0;
const PANEL: f64 = 256.0;
/// Height of a row of the legend, and the line beside a name.
const ROW: f64 = 18.0;
const SWATCH: f64 = 20.0;
const RIGHT: f64 = 32.0;
/// Marks of an axis at the most, besides that at 0.
const MARKS: usize = 5;
/// Points of a line, about one a pixel.
const POINTS: usize = 800;

const STYLE: &str = "<style>.curve{stroke-width:1.6}.left{text-anchor:end}.middle{text-anchor:middle}\
    </style>";

/// An SVG image of replays of the same jobs under several policies, by name: the part of the jobs that was
/// done within a time, and the numbers of training and waiting jobs over time.
pub fn chart_svg(replays: &[(&str, &Replay)]) -> String {
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&mut svg, replays);
    svg
}

fn draw(svg: &mut String, replays: &[(&str, &Replay)]) -> fmt::Result {
    let names: Vec<&str> = replays.iter().map(|(name, _)| *name).collect();
    let places = places(&names);
    let legend = places.last().map_or(0.0, |(_, y)| y + ROW) + 4.0;
    let (width, height) = (LEFT + WIDTH + RIGHT, legend + 3.0 * PANEL);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">"#
    )?;
    let style = svg_style();
    writeln!(
        svg,
        "<title>A trace under each policy</title>{style}{STYLE}"
    )?;
    writeln!(
        svg,
        r#"<rect class="page" width="{width}" height="{height}"/>"#
    )?;
    for (index, (name, (x, y))) in names.iter().zip(places).enumerate() {
        let (end, text, line) = (x + SWATCH, x + SWATCH + 6.0, y - 4.0);
        let (class, name) = (curve(index), escape(name));
        writeln!(
            svg,
            r#"<path class="{class}" d="M{x:.1} {line}H{end:.1}"/><text class="ink" x="{text:.1}" y="{y}">{name}</text>"#
        )?;
    }
    let completions = replays.iter().map(|(_, replay)| done_by(replay)).collect();
    panel(
        svg,
        legend,
        "jobs done (%) within a time from their arrival, on a logarithmic scale",
        true,
        completions,
    )?;
    let over_time = |count: fn(&super::JobCounts) -> usize| {
        let line = |(_, replay): &(&str, &Replay)| steps(replay, count);
        replays.iter().map(line).collect()
    };
    panel(
        svg,
        legend + PANEL,
        "jobs that train",
        false,
        over_time(|counts| counts.running),
    )?;
    panel(
        svg,
        legend + 2.0 * PANEL,
        "jobs that wait",
        false,
        over_time(|counts| counts.waiting),
    )?;
    writeln!(svg, "</svg>")
}

/// Where the names of the legend stand: in rows, each name behind the room of the one before.
fn places(names: &[&str]) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (LEFT, 16.0);
    let mut places = Vec::with_capacity(names.len());
    for name in names {
        let width = SWATCH + 6.0 + text_width(name);
        if x > LEFT && x + width > LEFT + WIDTH + RIGHT {
            (x, y) = (LEFT, y + ROW);
        }
        places.push((x, y));
        x += width + 16.0;
    }
    places
}

/// The classes of a line.
fn curve(index: usize) -> String {
    let dash = index / COLOURS % DASHES.len();
    format!("curve s{} d{dash}", index % COLOURS)
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
fn steps(replay: &Replay, count: fn(&super::JobCounts) -> usize) -> Line {
    let mut line: Line = Vec::new();
    for counts in &replay.job_counts {
        let (seconds, value) = (counts.nanoseconds as f64 / 1e9, count(counts) as f64);
        line.extend(line.last().map(|&(_, before)| (seconds, before)));
        line.push((seconds, value));
    }
    line
}

fn panel(svg: &mut String, top: f64, title: &str, log: bool, lines: Vec<Line>) -> fmt::Result {
    let top = top + 32.0;
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
    let baseline = top - 12.0;
    writeln!(
        svg,
        r#"<text class="ink title" x="{LEFT}" y="{baseline}">{title}</text>"#
    )?;
    let end = LEFT + WIDTH;
    let axis = Axis::from_zero(highest, MARKS);
    let decimals = axis.decimals;
    for mark in axis.marks {
        let (y, text) = (bottom - mark / highest * HEIGHT, LEFT - 8.0);
        writeln!(
            svg,
            r#"<path class="line" d="M{LEFT} {y:.1}H{end}"/><text class="muted left" x="{text}" y="{:.1}">{mark:.decimals$}</text>"#,
            y + 4.0
        )?;
    }
    for (seconds, text) in marks(earliest, latest, log) {
        let (x, y) = (place(seconds), bottom + 18.0);
        writeln!(
            svg,
            r#"<text class="muted middle" x="{x:.1}" y="{y}">{text}</text>"#
        )?;
    }
    for (index, line) in lines.iter().enumerate() {
        write!(svg, r#"<path class="{}" d=""#, curve(index))?;
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

/// Units of time from the largest on, with the seconds that they have.
const UNITS: [(f64, &str); 4] = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")];

/// Marks of an axis of seconds: round numbers of one unit, on a logarithmic axis of the unit at each place.
fn marks(earliest: f64, latest: f64, log: bool) -> Vec<(f64, String)> {
    if log {
        let wanted = [
            1.0,
            3.0,
            10.0,
            30.0,
            60.0,
            180.0,
            600.0,
            1800.0,
            3600.0,
            10_800.0,
            36_000.0,
            86_400.0,
            259_200.0,
            864_000.0,
            2_592_000.0,
            8_640_000.0,
            31_104_000.0,
        ];
        let inside = wanted
            .into_iter()
            .filter(|mark| (earliest..=latest).contains(mark));
        let inside: Vec<f64> = inside.collect();
        let every = inside.len().div_ceil(2 * MARKS).max(1);
        let mark = |seconds: f64| (seconds, duration(seconds));
        return inside.into_iter().step_by(every).map(mark).collect();
    }
    let unit = UNITS.into_iter().find(|(length, _)| latest >= 2.0 * length);
    let (length, name) = unit.unwrap_or((1.0, "s"));
    let axis = Axis::from_zero(latest / length, MARKS);
    let decimals = axis.decimals;
    let mark = |mark: f64| (mark * length, format!("{mark:.decimals$} {name}"));
    axis.marks.into_iter().map(mark).collect()
}

/// In the largest unit of which there is at least one.
fn duration(seconds: f64) -> String {
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= *length);
    let (length, name) = unit.unwrap_or((1.0, "s"));
    format!("{:.0} {name}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::{LEFT, SWATCH, WIDTH, marks, places};
    use crate::SimulatedPolicy;

    #[test]
    fn names_of_the_legend_do_not_overlap() {
        let names = SimulatedPolicy::ALL.map(SimulatedPolicy::name);
        let places = places(&names);
        // Letters of 12 pixels are at most 7.4 wide on average, in the widest font that pages ask for.
        let end = |index: usize| places[index].0 + SWATCH + 6.0 + 7.4 * names[index].len() as f64;
        for (index, (x, y)) in places.iter().enumerate().skip(1) {
            let (before, row) = places[index - 1];
            assert!(*y > row || *x >= end(index - 1), "{names:?}: {places:?}");
            assert!(*x >= LEFT && before < LEFT + WIDTH);
        }
        assert!(places[names.len() - 1].1 < 80.0, "{places:?}");
    }

    #[test]
    fn marks_of_time_are_whole_numbers_of_a_unit() {
        let texts = |earliest, latest, log| {
            let marks = marks(earliest, latest, log).into_iter();
            marks.map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(
            texts(1.0, 100.0, false),
            ["0 s", "20 s", "40 s", "60 s", "80 s", "100 s"]
        );
        assert_eq!(
            texts(1.0, 800_000.0, false),
            ["0 d", "2 d", "4 d", "6 d", "8 d"]
        );
        assert_eq!(
            texts(10.0, 4000.0, true),
            ["10 s", "30 s", "1 min", "3 min", "10 min", "30 min", "1 h"]
        );
    }
}
