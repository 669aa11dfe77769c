//! Early stopping against the curves of a sweep that was trained to its end.

use std::{collections::BTreeMap, fs, path::Path};

use loraloom_tests::{Fixture, train};
use loraloom_trainer::{Event, Outcome};
use serde_json::{Value, json};

/// Learning rates from far too low to far too high, the best ones in the middle.
const RATES: [f64; 9] = [1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.3, 1.0];
const STEPS: usize = 30;
const RUNGS: [usize; 3] = [3, 9, 27];

/// Losses of every adapter by step.
type Curves = BTreeMap<String, BTreeMap<usize, f64>>;

/// A sweep over the rates in this order, stopped early by a metric if there is one.
fn config(order: &[usize], metric: Option<&str>, validation: &str, run: &Path) -> Value {
    let fixture = Fixture::open("llama-gqa");
    let name = |&rate: &usize| format!("rate-{rate}");
    let adapter = |rate: &usize| {
        json!({
            "name": name(rate), "dataset": "data", "seed": 5,
            "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
            "train": {"batch_size": 2, "max_seq_len": 48, "max_steps": STEPS,
                      "learning_rate": RATES[*rate], "warmup_steps": 0},
            // A sweep has an evaluation at every rung, whatever this is.
            "eval": {"steps": if metric.is_some() { 1000 } else { 3 }},
        })
    };
    let adapters: Vec<Value> = order.iter().map(adapter).collect();
    let mut config = fixture.config(&adapters, run);
    config["datasets"]["data"]["validation"] = json!(validation);
    let mut sweep =
        json!({"name": "rates", "adapters": order.iter().map(name).collect::<Vec<_>>()});
    if let Some(metric) = metric {
        sweep["early_stopping"] =
            json!({"metric": metric, "grace_period": 3, "reduction_factor": 3});
    }
    config["sweep"] = json!([sweep]);
    config
}

fn curves(events: &[Event], metric: &str) -> Curves {
    let mut curves = Curves::new();
    for event in events {
        let (adapter, step, loss) = match event {
            Event::Step {
                adapter,
                step,
                loss,
                ..
            } if metric == "train_loss" => (adapter, step, *loss),
            Event::Eval {
                adapter,
                step,
                loss,
                ..
            } if metric == "eval_loss" => (adapter, step, loss.unwrap_or(f64::INFINITY)),
            _ => continue,
        };
        curves
            .entry(adapter.clone())
            .or_default()
            .insert(*step, loss);
    }
    curves
}

/// The steps that each adapter takes: at every rung the best part of those that are there goes on.
fn definition(
    curves: &Curves,
    all: usize,
    rungs: &[usize],
    part: usize,
) -> BTreeMap<String, usize> {
    let mut steps: BTreeMap<String, usize> =
        curves.keys().map(|name| (name.clone(), all)).collect();
    let mut there: Vec<&String> = curves.keys().collect();
    for &rung in rungs {
        there.sort_by(|a, b| curves[*a][&rung].total_cmp(&curves[*b][&rung]));
        let goes_on = there.len().div_ceil(part);
        for stopped in there.drain(goes_on..) {
            steps.insert(stopped.clone(), rung);
        }
    }
    steps
}

/// In whatever order the file has them, since all come to a rung in the same iteration.
#[test]
fn the_best_third_goes_on_at_every_rung() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let validation = directory.path().join("validation.jsonl");
    let rows = [
        ["Spell Tom.", "T-O-M"],
        ["Spell Li.", "L-I"],
        ["Where are the maps?", "At the mill."],
    ];
    let lines =
        rows.map(|[question, answer]| json!({"question": question, "answer": answer}).to_string());
    fs::write(&validation, lines.join("\n")).expect("the rows are written");
    let validation = validation.to_str().expect("UTF-8");

    let ascending: Vec<usize> = (0..RATES.len()).collect();
    let whole = train(|run| config(&ascending, None, validation, run));
    for metric in ["train_loss", "eval_loss"] {
        let expected = definition(&curves(&whole.events, metric), STEPS, &RUNGS, 3);
        for order in [
            ascending.clone(),
            ascending.iter().rev().copied().collect(),
            vec![3, 8, 0, 5, 7, 1, 4, 2, 6],
        ] {
            let run = train(|run| config(&order, Some(metric), validation, run));
            let adapters = &run.report.adapters;
            let found: BTreeMap<String, usize> =
                adapters.iter().map(|a| (a.name.clone(), a.steps)).collect();
            assert_eq!(found, expected, "{metric} {order:?}");
            for adapter in adapters {
                let stopped = matches!(&adapter.outcome, Outcome::Stopped { reason } if reason.contains("rates"));
                assert_eq!(stopped, adapter.steps < STEPS, "{adapter:?}");
            }
            let sweep = &run.report.sweeps[0];
            assert_eq!(sweep.metric.as_str(), metric);
            assert_eq!(sweep.standings[0].state, "done", "{:?}", sweep.standings);
        }
    }
}

/// Neighbours decide how many iterations are run at a time, and nothing else.
#[test]
fn who_diverges_stops_at_that_step_whatever_its_neighbours_do() {
    const MULTIPLE: f64 = 1.04;
    for neighbour_saves in [1, 1000] {
        let run = train(|run| {
            let mut config = config(&[3, 8], Some("train_loss"), "", run);
            config["datasets"]["data"]["validation"] = json!(0);
            config["adapters"][0]["save"] = json!({"steps": neighbour_saves});
            config["sweep"][0]["early_stopping"] =
                json!({"metric": "train_loss", "grace_period": 25, "divergence": MULTIPLE});
            config
        });
        let losses = &curves(&run.events, "train_loss")["rate-8"];
        let (last, before) = (losses.len(), &losses[&1]);
        let above: Vec<usize> = losses
            .iter()
            .filter(|(_, loss)| **loss > MULTIPLE * before)
            .map(|(step, _)| *step)
            .collect();
        assert_eq!(above, [last], "{neighbour_saves}: {losses:?}");
        assert!(last < 25, "{losses:?}");
        let adapter = &run.report.adapters[1];
        let reason = match &adapter.outcome {
            Outcome::Stopped { reason } => reason.as_str(),
            _ => "",
        };
        assert!(reason.contains("diverges"), "{adapter:?}");
        assert_eq!(adapter.steps, last);
    }
}

/// An evaluation that a sweep asks for is not one of those that patience counts.
#[test]
fn comparisons_do_not_tax_patience() {
    let run = train(|run| {
        let mut config = config(&[0, 1], Some("eval_loss"), "", run);
        config["datasets"]["data"]["validation"] = json!(0.2);
        for adapter in config["adapters"].as_array_mut().expect("adapters") {
            adapter["train"]["learning_rate"] = json!(0);
            adapter["eval"]["patience"] = json!(1);
        }
        config
    });
    let steps: Vec<usize> = run.report.adapters.iter().map(|a| a.steps).collect();
    assert_eq!(steps, [STEPS, RUNGS[0]], "{:?}", run.report.adapters);
    let evaluated = &curves(&run.events, "eval_loss")["rate-0"];
    let expected: Vec<usize> = RUNGS.into_iter().chain([STEPS]).collect();
    assert_eq!(evaluated.keys().copied().collect::<Vec<_>>(), expected);
}

/// Losses of other types cannot be compared, rewards can: the largest margins go on, and rank first.
#[test]
fn preferences_are_compared_by_their_rewards() {
    let preferences = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama-gqa/preferences");
    let names = ["sigmoid", "ipo", "hinge", "apo_zero"];
    let train_by = |metric: Option<&str>| {
        train(|run| {
            let adapter = |name: &&str| {
                json!({
                    "name": name, "dataset": "pairs", "objective": {"type": "dpo", "loss_type": name},
                    "lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
                    "train": {"batch_size": 4, "max_seq_len": 48, "max_steps": 8,
                              "learning_rate": if *name == "ipo" { 8e-3 } else { 2e-3 }},
                    "eval": {"steps": if metric.is_some() { 1000 } else { 2 }},
                })
            };
            let adapters: Vec<Value> = names.iter().map(adapter).collect();
            let mut config = Fixture::open("llama-gqa").config(&adapters, run);
            let pairs = preferences.join("pairs.jsonl");
            config["datasets"] = json!({"pairs": {"path": pairs, "validation": pairs}});
            let mut sweep = json!({"name": "losses", "adapters": names});
            if let Some(metric) = metric {
                sweep["early_stopping"] =
                    json!({"metric": metric, "grace_period": 2, "reduction_factor": 2});
            }
            config["sweep"] = json!([sweep]);
            config
        })
    };
    let whole = train_by(None);
    let found = train_by(Some("eval_rewards/margins"));
    let mut curves = Curves::new();
    for event in &whole.events {
        if let Event::Eval {
            adapter,
            step,
            rewards,
            ..
        } = event
        {
            let margin = rewards.and_then(|rewards| rewards.margins).expect("pairs");
            let curve = curves.entry(adapter.clone()).or_default();
            curve.insert(*step, -margin);
        }
    }
    let steps = found
        .report
        .adapters
        .iter()
        .map(|a| (a.name.clone(), a.steps));
    let expected = definition(&curves, 8, &[2, 4], 2);
    assert_eq!(steps.collect::<BTreeMap<_, _>>(), expected);

    let sweep = &found.report.sweeps[0];
    assert_eq!(sweep.metric.as_str(), "eval_rewards/margins");
    let of = |name: &str| found.report.adapters.iter().find(|a| a.name == name);
    let margin = |name: &str| of(name).and_then(|a| a.best?.margins).expect("a margin");
    let mut ranked = names.to_vec();
    ranked.sort_by(|a, b| margin(b).total_cmp(&margin(a)));
    let standings = &sweep.standings;
    let found: Vec<&str> = standings.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(found, ranked);
    assert_eq!(standings[0].metric, Some(margin(ranked[0])));
    let by_loss = |name: &str| of(name).and_then(|a| Some(a.best?.loss)).expect("a loss");
    assert!(
        ranked
            .windows(2)
            .any(|pair| by_loss(pair[0]) > by_loss(pair[1]))
    );
}
