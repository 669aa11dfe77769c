use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderName, header::CONTENT_TYPE},
};
use loraloom_inference::Stats;

use super::{error::HttpError, state::HttpState};

/// Upper bounds in seconds: vLLM's.
const BOUNDS: [f64; 20] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
];

/// Figures of the HTTP interface.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By route and status.
    responses: Mutex<BTreeMap<(String, u16), u64>>,
    first_tokens: Mutex<Histogram>,
}

#[derive(Debug, Default, Clone)]
struct Histogram {
    /// Values up to each bound and above the bound before it.
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Metrics {
    /// Counts a response.
    pub(crate) fn response(&self, route: &str, status: u16) {
        let mut responses = self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *responses.entry((route.to_owned(), status)).or_default() += 1;
    }

    /// Counts the time from a request's arrival to an answer's first token.
    pub(crate) fn first_token(&self, time: Duration) {
        let mut histogram = self
            .first_tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let seconds = time.as_secs_f64();
        if let Some(index) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            histogram.counts[index] += 1;
        }
        histogram.count += 1;
        histogram.sum += seconds;
    }

    /// Prometheus' text format, without the service's figures.
    fn write(&self, page: &mut String) -> std::fmt::Result {
        let responses = self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let name = "loraloom_http_requests_total";
        writeln!(
            page,
            "# HELP {name} Requests by route and status of the response."
        )?;
        writeln!(page, "# TYPE {name} counter")?;
        for ((route, status), count) in responses {
            writeln!(
                page,
                "{name}{{path=\"{route}\",status=\"{status}\"}} {count}"
            )?;
        }
        let histogram = self
            .first_tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let name = "loraloom_time_to_first_token_seconds";
        writeln!(
            page,
            "# HELP {name} Time from a request's arrival to the first token of an answer."
        )?;
        writeln!(page, "# TYPE {name} histogram")?;
        let mut up_to = 0;
        for (bound, count) in BOUNDS.iter().zip(histogram.counts) {
            up_to += count;
            writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {up_to}")?;
        }
        let Histogram { count, sum, .. } = histogram;
        writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {count}")?;
        writeln!(page, "{name}_sum {sum}\n{name}_count {count}")
    }
}

/// `GET /metrics`.
pub(crate) async fn page(
    State(state): State<Arc<HttpState>>,
) -> Result<([(HeaderName, &'static str); 1], String), HttpError> {
    let stats = state.service.stats().await?;
    let mut page = String::new();
    let written = write_stats(&mut page, &stats).and_then(|()| state.metrics.write(&mut page));
    written.map_err(|error| HttpError::Internal(error.to_string()))?;
    Ok((
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        page,
    ))
}

/// Names are vLLM's, where it has one.
fn write_stats(page: &mut String, stats: &Stats) -> std::fmt::Result {
    let used = stats.blocks.saturating_sub(stats.free_blocks);
    let usage = used as f64 / stats.blocks.max(1) as f64;
    let gauges = [
        (
            "requests_running",
            "Requests that run.",
            stats.running as f64,
        ),
        (
            "requests_waiting",
            "Requests that wait.",
            stats.waiting as f64,
        ),
        (
            "kv_cache_usage_perc",
            "Used part of the blocks for keys and values; 1 is all.",
            usage,
        ),
        (
            "kv_cache_blocks",
            "Blocks for keys and values.",
            stats.blocks as f64,
        ),
        (
            "adapters",
            "Adapters that are loaded.",
            stats.adapters as f64,
        ),
        (
            "adapters_resident",
            "Adapters on the device.",
            stats.resident_adapters as f64,
        ),
    ];
    for (name, help, value) in gauges {
        writeln!(page, "# HELP loraloom_{name} {help}")?;
        writeln!(
            page,
            "# TYPE loraloom_{name} gauge\nloraloom_{name} {value}"
        )?;
    }
    let counters = [
        (
            "prompt_tokens_total",
            "Tokens of prompts.",
            stats.prompt_tokens,
        ),
        (
            "generation_tokens_total",
            "Tokens of answers.",
            stats.generated_tokens,
        ),
        (
            "preemptions_total",
            "Times that a running request gave its blocks up.",
            stats.preemptions,
        ),
        (
            "adapter_fetches_total",
            "Times that an adapter came to the device.",
            stats.fetches,
        ),
    ];
    for (name, help, value) in counters {
        writeln!(page, "# HELP loraloom_{name} {help}")?;
        writeln!(
            page,
            "# TYPE loraloom_{name} counter\nloraloom_{name} {value}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let metrics = Metrics::default();
        for milliseconds in [1, 3, 400, 1_000_000] {
            metrics.first_token(Duration::from_millis(milliseconds));
        }
        let mut page = String::new();
        metrics.write(&mut page).unwrap();
        let name = "loraloom_time_to_first_token_seconds";
        for line in [
            "_bucket{le=\"0.001\"} 1",
            "_bucket{le=\"0.005\"} 2",
            "_bucket{le=\"0.25\"} 2",
            "_bucket{le=\"0.5\"} 3",
            "_bucket{le=\"160\"} 3",
            "_bucket{le=\"+Inf\"} 4",
            "_sum 1000.404",
            "_count 4",
        ] {
            assert!(
                page.contains(&format!("{name}{line}\n")),
                "{line} is not in {page}"
            );
        }
    }
}
