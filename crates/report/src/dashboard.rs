//! A terminal dashboard of a run.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    symbols::Marker,
    text::{Line, Span},
    widgets::{
        Axis, Block, Chart, Dataset, GraphType, Paragraph, Row, Sparkline, Table, TableState,
    },
};

use crate::{
    RunHistory,
    adapter::{AdapterHistory, ReportedState},
    thin::{kept, smoothed},
};

/// Colours of curves, one after another.
const COLOURS: [Color; 6] = [
    Color::Cyan,
    Color::Yellow,
    Color::Green,
    Color::Magenta,
    Color::Blue,
    Color::Red,
];
/// Most curves at a time.
const CURVES: usize = 6;
/// Points of a curve.
const POINTS: usize = 400;
/// Number of steps whose mean duration predicts the time left.
const RECENT: usize = 20;
/// Number of latest events.
const EVENT_LINES: u16 = 6;

/// State of the display.
#[derive(Debug, Default)]
pub struct Dashboard {
    /// The adapter whose curves are shown; `None` shows those of all.
    selected: Option<usize>,
}

impl Dashboard {
    /// Selects the next of `adapters` adapters, or the previous one; none beyond the ends.
    pub fn select(&mut self, forward: bool, adapters: usize) {
        self.selected = match (self.selected, forward) {
            (None, true) => Some(0),
            (None, false) => adapters.checked_sub(1),
            (Some(at), true) => Some(at + 1),
            (Some(at), false) => at.checked_sub(1),
        }
        .filter(|&at| at < adapters);
    }

    /// Draws the run. `hint` is the last line: the keys, or a message of the program.
    pub fn draw(&self, history: &RunHistory, hint: &str, frame: &mut Frame<'_>) {
        let adapters = history.adapters.len();
        let most = frame.area().height.saturating_sub(EVENT_LINES + 2) / 2;
        let rows = u16::try_from(adapters + 3).unwrap_or(most).min(most);
        let [title, table, middle, events, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(rows),
            Constraint::Min(0),
            Constraint::Length(EVENT_LINES),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [losses, speed] =
            Layout::horizontal([Constraint::Fill(3), Constraint::Fill(1)]).areas(middle);
        frame.render_widget(self::title(history), title);
        self.table(history, frame, table);
        self.losses(history, frame, losses);
        self::speed(history, frame, speed);
        self::events(history, frame, events);
        frame.render_widget(Line::from(hint).style(Modifier::DIM), keys);
    }

    fn table(&self, history: &RunHistory, frame: &mut Frame<'_>, area: Rect) {
        let heading = [
            "adapter",
            "state",
            "step",
            "loss",
            "best validation",
            "time left",
        ];
        let rows = history.adapters.iter().map(|adapter| {
            let total = adapter
                .total_steps
                .map_or("?".to_owned(), |total| total.to_string());
            let left = match adapter.state {
                ReportedState::Running => left(adapter).map_or_else(String::new, time),
                _ => String::new(),
            };
            Row::new([
                adapter.name.clone(),
                adapter.state.word().to_owned(),
                format!("{}/{total}", adapter.steps()),
                number(adapter.last_loss()),
                number(adapter.best().map(|best| best.loss)),
                left,
            ])
        });
        let widths = [
            Constraint::Fill(2),
            Constraint::Length(11),
            Constraint::Length(15),
            Constraint::Length(9),
            Constraint::Length(15),
            Constraint::Length(9),
        ];
        let table = Table::new(rows, widths)
            .header(Row::new(heading).style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED)
            .block(Block::bordered());
        let mut state = TableState::new().with_selected(self.selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    /// Training losses of all adapters, or those of one with its validation losses.
    fn losses(&self, history: &RunHistory, frame: &mut Frame<'_>, area: Rect) {
        let shown: Vec<&AdapterHistory> = if let Some(at) = self.selected {
            history.adapters.get(at).into_iter().collect()
        } else {
            let begun = history.adapters.iter();
            let begun = begun.filter(|adapter| !adapter.rows.is_empty());
            begun.take(CURVES).collect()
        };
        let curves: Vec<Vec<(f64, f64)>> = shown.iter().map(|adapter| curve(adapter)).collect();
        let evals: Vec<(f64, f64)> = match (self.selected, shown.first()) {
            (Some(_), Some(adapter)) => {
                let evals = adapter.evals.iter();
                let evals = evals.map(|eval| (eval.step as f64, eval.loss));
                evals.filter(|(_, loss)| loss.is_finite()).collect()
            }
            _ => Vec::new(),
        };
        let all = || curves.iter().flatten().chain(&evals);
        let last = all().map(|point| point.0).fold(1.0, f64::max);
        let (low, high) = bounds(all().map(|point| point.1));
        let line = |(number, (adapter, points)): (usize, (&&AdapterHistory, &'_ Vec<_>))| {
            (
                adapter.name.clone(),
                points.clone(),
                COLOURS[number % COLOURS.len()],
            )
        };
        let lines: Vec<_> = shown.iter().zip(&curves).enumerate().map(line).collect();
        let mut datasets: Vec<Dataset<'_>> = lines
            .iter()
            .map(|(name, points, colour)| {
                Dataset::default()
                    .name(name.as_str())
                    .marker(Marker::Braille)
                    .graph_type(GraphType::Line)
                    .style(Style::new().fg(*colour))
                    .data(points)
            })
            .collect();
        if !evals.is_empty() {
            datasets.push(
                Dataset::default()
                    .name("validation")
                    .marker(Marker::Dot)
                    .graph_type(GraphType::Scatter)
                    .data(&evals),
            );
        }
        let axis = |low: f64, high: f64, labels: [String; 2]| {
            Axis::default().bounds([low, high]).labels(labels)
        };
        let chart = Chart::new(datasets)
            .block(Block::bordered().title(" training loss by step "))
            .hidden_legend_constraints((Constraint::Percentage(50), Constraint::Percentage(60)))
            .x_axis(axis(0.0, last, ["0".to_owned(), format!("{last:.0}")]))
            .y_axis(axis(low, high, [format!("{low:.2}"), format!("{high:.2}")]));
        frame.render_widget(chart, area);
    }
}

/// The run in one line.
fn title(history: &RunHistory) -> Line<'_> {
    let count_of = |wanted| {
        let adapters = history.adapters.iter();
        adapters
            .filter(move |adapter| adapter.state == wanted)
            .count()
    };
    let (running, all) = (count_of(ReportedState::Running), history.adapters.len());
    let state = match &history.end {
        Some(end) if end.interrupted => "interrupted".to_owned(),
        Some(_) => "ended".to_owned(),
        None => format!("{running} of {all} adapters train"),
    };
    let mut parts = vec![
        state,
        format!("{} done", count_of(ReportedState::Done)),
        format!("iteration {}", history.iteration),
        time(history.clock),
    ];
    if let Some(begun) = history.resumed.as_ref().or(history.begun.as_ref()) {
        parts.push(begun.stages.join(", "));
    }
    let name = Span::styled(history.name.as_str(), Modifier::BOLD);
    Line::from(vec![name, Span::raw(format!("  {}", parts.join("  ")))])
}

/// Tokens a second of the last iterations, and memory.
fn speed(history: &RunHistory, frame: &mut Frame<'_>, area: Rect) {
    let [rates, memory] = Layout::vertical([Constraint::Min(0), Constraint::Length(4)]).areas(area);
    let iterations = &history.iterations;
    let width = usize::from(rates.width.saturating_sub(2));
    let last = &iterations[iterations.len().saturating_sub(width)..];
    let now = last.last().map_or(0.0, |row| row.tokens_per_second);
    let bars: Vec<u64> = last
        .iter()
        .map(|row| row.tokens_per_second as u64)
        .collect();
    let title = format!(" {now:.0} tokens/s ");
    let sparkline = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(&bars)
        .style(Color::Cyan);
    frame.render_widget(sparkline, rates);
    let bytes = |bytes: Option<f64>| match bytes.filter(|bytes| bytes.is_finite()) {
        Some(bytes) => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
        None => "-".to_owned(),
    };
    let last = last.last();
    let lines = vec![
        Line::from(format!(
            "now        {}",
            bytes(last.map(|row| row.bytes_reserved))
        )),
        Line::from(format!(
            "predicted  {}",
            bytes(last.map(|row| row.bytes_predicted))
        )),
    ];
    let memory_block = Block::bordered().title(" memory ");
    frame.render_widget(Paragraph::new(lines).block(memory_block), memory);
}

/// Decisions of the scheduler and warnings, the latest at the bottom.
fn events(history: &RunHistory, frame: &mut Frame<'_>, area: Rect) {
    let said = history.run_events.iter().map(|event| {
        let name = event.adapter.and_then(|at| history.adapters.get(at));
        let name = name.map(|adapter| format!(" {}", adapter.name));
        format!(
            "{:>8}  {}{}  {}",
            time(event.seconds),
            event.event.replace('_', " "),
            name.unwrap_or_default(),
            event.reason
        )
    });
    let warnings = history.warnings.iter();
    let all: Vec<String> = said
        .chain(warnings.map(|warning| format!("{:>8}  {warning}", "warning")))
        .collect();
    let height = usize::from(area.height.saturating_sub(2));
    let lines = all[all.len().saturating_sub(height)..].iter();
    let lines: Vec<Line<'_>> = lines.map(|line| Line::from(line.as_str())).collect();
    let block = Block::bordered().title(" decisions and warnings ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Losses by step: smoothed and thinned if there are many.
fn curve(adapter: &AdapterHistory) -> Vec<(f64, f64)> {
    let rows = &adapter.rows;
    let raw: Vec<f64> = rows.iter().map(|row| row.loss).collect();
    let losses = smoothed(&raw).unwrap_or(raw);
    let shown = kept(losses.len(), POINTS, &[&|at| losses[at]]);
    let points = shown
        .into_iter()
        .map(|at| (rows[at].step as f64, losses[at]));
    points.filter(|(_, loss)| loss.is_finite()).collect()
}

/// The range of values; never empty.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    if low < high {
        (low, high)
    } else if low.is_finite() {
        (low - 0.5, low + 0.5)
    } else {
        (0.0, 1.0)
    }
}

/// Estimated seconds until the last step, from the latest steps.
fn left(adapter: &AdapterHistory) -> Option<f64> {
    let rows = &adapter.rows[adapter.rows.len().saturating_sub(RECENT)..];
    let (first, last) = (rows.first()?, rows.last()?);
    let steps = last
        .step
        .checked_sub(first.step)
        .filter(|steps| *steps > 0)?;
    let pace = (last.seconds - first.seconds) / steps as f64;
    Some(adapter.total_steps?.saturating_sub(last.step) as f64 * pace)
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))
}

fn time(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}
