use super::{
    SimulationError,
    random::Random,
    replay::{MOST_YEARS, YEAR},
    trace::{Row, not_csv, reader, seconds_since_1970},
};

/// Most tokens of a request's prompt or answer.
const MOST_TOKENS: usize = 1 << 24;

/// A request for text.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedRequest {
    /// Seconds after the first request.
    pub arrival: f64,
    /// Number of its tenant, from 0.
    pub tenant: usize,
    /// The adapter that answers, counted from 0; `None` leaves the choice to the reader.
    pub adapter: Option<usize>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its answer.
    pub answer_tokens: usize,
}

/// Requests that are drawn from a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawnRequests {
    /// Their number.
    pub requests: usize,
    /// Requests in a second: a Poisson process, within 100 years. `None` sends all at once.
    pub rate: Option<f64>,
    /// Number of tenants. The second sends twice as many as the first, the third three times as many.
    pub tenants: usize,
    /// Mean number of tokens of a prompt; numbers from half of it to one and a half of it are equally likely.
    pub prompt_tokens: usize,
    /// The same of an answer.
    pub answer_tokens: usize,
    /// Seed of every draw.
    pub seed: u64,
}

impl DrawnRequests {
    /// The requests in the order of their arrival.
    pub fn draw(&self) -> Vec<TracedRequest> {
        let mut random = Random::new(self.seed);
        let shares: Vec<usize> = (0..self.tenants.max(1))
            .flat_map(|tenant| vec![tenant; tenant + 1])
            .collect();
        let mut arrival = 0.0;
        let around = |random: &mut Random, mean: usize| {
            let half = mean / 2;
            (mean - half + random.below(2 * half + 1)).max(1)
        };
        let drawn = (0..self.requests).map(|index| {
            if let Some(rate) = self.rate.filter(|_| index > 0) {
                arrival = (arrival + random.exponential() / rate).min(MOST_YEARS * YEAR);
            }
            TracedRequest {
                arrival,
                tenant: random.choose(&shares).unwrap_or(0),
                adapter: None,
                prompt_tokens: around(&mut random, self.prompt_tokens),
                answer_tokens: around(&mut random, self.answer_tokens),
            }
        });
        drawn.collect()
    }
}

/// Reads a trace of requests: CSV with the columns of Azure's traces of LLM inference (`TIMESTAMP`, `ContextTokens`,
/// `GeneratedTokens`) or of BurstGPT (`Timestamp`, `Request tokens`, `Response tokens`), in any order and among others.
/// Times are dates or seconds. The columns `Tenant` and `Adapter` have names, and may be missing: then there is one
/// tenant. Returns the requests in the order of their arrival, equal arrivals in their order in the file, and the number of
/// rows without a token of an answer, as BurstGPT has for requests that failed: these are left out.
///
/// # Errors
/// [`SimulationError`] with the line of the first row that cannot be read.
/// [`SimulationError::NoRequests`] if no row has an answer.
pub fn read_requests(text: &str) -> Result<(Vec<TracedRequest>, usize), SimulationError> {
    let mut reader = reader(text);
    let failed = |error| not_csv(&error, text);
    let header = reader.headers().map_err(failed)?;
    let optional = |column: &str| header.iter().position(|name| name == column);
    let place = |azure: &'static str, burst: &'static str| {
        let found = [azure, burst]
            .into_iter()
            .find_map(|column| Some((optional(column)?, column)));
        found.ok_or_else(|| SimulationError::MissingColumn {
            column: azure,
            header: header.iter().collect::<Vec<_>>().join(","),
            needed: "TIMESTAMP, ContextTokens and GeneratedTokens, or Timestamp, Request tokens and Response tokens",
        })
    };
    let timestamp = place("TIMESTAMP", "Timestamp")?;
    let prompt = place("ContextTokens", "Request tokens")?;
    let answer = place("GeneratedTokens", "Response tokens")?;
    let (tenant, adapter) = (optional("Tenant"), optional("Adapter"));
    let (mut tenants, mut adapters) = (Vec::new(), Vec::new());
    let (mut requests, mut unanswered) = (Vec::new(), 0);
    for record in reader.records() {
        let record = record.map_err(failed)?;
        let row = Row {
            record: &record,
            text,
        };
        let name = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let tokens = |text: &str| {
            let tokens = text.parse().ok();
            tokens.filter(|tokens| (1..=MOST_TOKENS).contains(tokens))
        };
        if record.get(answer.0) == Some("0") {
            unanswered += 1;
            continue;
        }
        let expected = "a whole number from 1 to 16777216";
        let tenant = tenant.map(|place| row.field((place, "Tenant"), "a name", name));
        let adapter = adapter.map(|place| row.field((place, "Adapter"), "a name", name));
        requests.push(TracedRequest {
            arrival: row.field(
                timestamp,
                "seconds, or a time like 2023-11-16 18:17:03.97",
                seconds,
            )?,
            tenant: (tenant.transpose()?).map_or(0, |name| number(&mut tenants, name)),
            adapter: (adapter.transpose()?).map(|name| number(&mut adapters, name)),
            prompt_tokens: row.field(prompt, expected, tokens)?,
            answer_tokens: row.field(answer, expected, tokens)?,
        });
    }
    requests.sort_by(|one, other| one.arrival.total_cmp(&other.arrival));
    let begun = requests.first().ok_or(SimulationError::NoRequests)?.arrival;
    for request in &mut requests {
        request.arrival -= begun;
    }
    Ok((requests, unanswered))
}

/// The place of a name among those before it, or behind them.
fn number(names: &mut Vec<String>, name: String) -> usize {
    let known = names.iter().position(|known| *known == name);
    known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// Seconds as they are, or since 1970 of a date and time in UTC.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (0.0..=MOST_YEARS * YEAR)
            .contains(&seconds)
            .then_some(seconds);
    }
    let text = text.trim_end_matches('Z').trim_end_matches("+00:00");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    digits.then_some(seconds_since_1970(whole)? as f64 + fraction)
}

#[cfg(test)]
mod tests {
    use super::{DrawnRequests, SimulationError, read_requests};

    const DRAWN: DrawnRequests = DrawnRequests {
        requests: 3000,
        rate: Some(20.0),
        tenants: 2,
        prompt_tokens: 64,
        answer_tokens: 1,
        seed: 5,
    };

    #[test]
    fn requests_are_drawn_as_said() {
        let requests = DRAWN.draw();
        assert_eq!(requests, DRAWN.draw());
        assert_eq!((requests.len(), requests[0].arrival.to_bits()), (3000, 0));
        let last = requests[2999].arrival;
        assert!((140.0..160.0).contains(&last), "{last}");
        assert!(requests.is_sorted_by(|one, next| one.arrival <= next.arrival));
        let second = requests.iter().filter(|request| request.tenant == 1);
        assert!((1900..2100).contains(&second.count()));
        let prompts = || requests.iter().map(|request| request.prompt_tokens);
        assert_eq!((prompts().min(), prompts().max()), (Some(32), Some(96)));
        let mean = prompts().sum::<usize>() / 3000;
        assert!((62..=66).contains(&mean), "{mean}");
        assert!(requests.iter().all(|request| request.answer_tokens == 1));
        let at_once = DrawnRequests {
            rate: None,
            ..DRAWN
        };
        assert!(at_once.draw().iter().all(|request| request.arrival <= 0.0));
    }

    #[test]
    fn traces_of_azure_and_of_burst_gpt_are_read() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0319600,110,27\n\
                     2023-11-16 18:17:03.9799600,4808,10\n";
        let (requests, unanswered) = read_requests(azure).unwrap();
        assert_eq!(unanswered, 0);
        assert_eq!(
            (requests[0].prompt_tokens, requests[0].answer_tokens),
            (4808, 10)
        );
        assert!((requests[1].arrival - 0.052).abs() < 1e-6, "{requests:?}");
        let newer = azure
            .replace(",110", "+00:00,110")
            .replace(",4808", "+00:00,4808");
        assert_eq!(read_requests(&newer).unwrap().0, requests);
        let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                     3,ChatGPT,9,0,9,API log\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n";
        let (requests, unanswered) = read_requests(burst).unwrap();
        assert_eq!((requests.len(), unanswered), (2, 1));
        assert!((requests[1].arrival - 40.0).abs() < 1e-9);
        assert_eq!((requests[1].tenant, requests[1].adapter), (0, None));
        let named = "Adapter,TIMESTAMP,Tenant,ContextTokens,GeneratedTokens\nx,1,b,1,1\ny,2,a,1,1\nx,3,a,1,1\n";
        let (requests, _) = read_requests(named).unwrap();
        let of: Vec<_> = requests
            .iter()
            .map(|one| (one.tenant, one.adapter))
            .collect();
        assert_eq!(of, [(0, Some(0)), (1, Some(1)), (1, Some(0))]);
    }

    #[test]
    fn requests_that_cannot_be_read_are_refused_with_their_line() {
        let expected = "expected a whole number from 1 to 16777216";
        let cases = [
            ("2,0,1", format!("line 3: ContextTokens is `0`, {expected}")),
            (
                "2,1,1.5",
                format!("line 3: GeneratedTokens is `1.5`, {expected}"),
            ),
            (
                "2,1,99999999",
                format!("line 3: GeneratedTokens is `99999999`, {expected}"),
            ),
            (
                "2,1",
                "line 3: 2 fields, but the first line has 3".to_owned(),
            ),
        ];
        for (row, message) in cases {
            let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n1,1,1\n{row}\n");
            assert_eq!(read_requests(&text).unwrap_err().to_string(), message);
        }
        for time in [
            "-1",
            "1e300",
            "NaN",
            "2023-11-16",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03.x",
        ] {
            let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{time},1,1\n");
            let message = read_requests(&text).unwrap_err().to_string();
            assert!(
                message.contains("expected seconds, or a time like"),
                "{message}"
            );
        }
        let message = read_requests("a,b\n").unwrap_err().to_string();
        assert!(message.starts_with("no column `TIMESTAMP`"), "{message}");
        let empty = read_requests("TIMESTAMP,ContextTokens,GeneratedTokens\n").unwrap_err();
        assert!(matches!(empty, SimulationError::NoRequests), "{empty}");
    }
}
