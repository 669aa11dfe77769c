//! Training several adapters at once gives what PEFT gives training each alone.

use loraloom_model::PeftAdapter;
use loraloom_tests::{Fixture, Job, assert_close, largest_relative_difference, losses, train};
use serde_json::json;

fn assert_parity(fixture: &str) {
    assert_parity_in_parts(fixture, 1);
}

/// All jobs of a fixture, co-batched, with every batch in so many micro-batches: losses within 1e-6 at
/// every step, A and B within 1e-4 after 50.
#[expect(clippy::print_stdout, reason = "figures are printed")]
fn assert_parity_in_parts(fixture: &str, microbatches: usize) {
    let fixture = Fixture::open(fixture);
    let jobs = fixture.jobs();
    let adapters: Vec<_> = jobs.iter().map(Job::adapter).collect();
    let run = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        config["pipeline"] = json!({"stages": ["cpu"], "microbatches": microbatches});
        config
    });
    for job in jobs {
        let what = format!("{} {}", fixture.directory.display(), job.name);
        let (found, norms): (Vec<f64>, Vec<f64>) = losses(&run.events, &job.name)
            .into_iter()
            .map(|[loss, norm]| (loss, norm))
            .unzip();
        let worst = found
            .iter()
            .zip(job.losses())
            .map(|(a, b)| (a - b).abs() / b)
            .fold(0.0, f64::max);
        let expected = PeftAdapter::load(&job.directory.join("final")).expect("PEFT's adapter");
        let difference = largest_relative_difference(&run.adapter(&job.name), &expected);
        println!("{what}: loss {worst:.1e}, weights {difference:.1e}");
        assert_close(&format!("{what} loss"), &found, &job.losses(), 1e-6);
        assert_close(
            &format!("{what} gradient norm"),
            &norms,
            &job.grad_norms(),
            1e-4,
        );
        assert!(
            difference <= 1e-4,
            "{what}: weights differ by {difference:.2e}"
        );
    }
}

#[test]
fn llama_gqa() {
    assert_parity("llama-gqa");
}

#[test]
fn llama_tied_rope_llama3() {
    assert_parity("llama-tied-rope-llama3");
}

#[test]
fn llama_rope_dynamic() {
    assert_parity("llama-rope-dynamic");
}

#[test]
fn qwen2_sharded() {
    assert_parity("qwen2-sharded");
}

#[test]
fn qwen3() {
    assert_parity("qwen3");
}

#[test]
fn mistral_sliding() {
    assert_parity("mistral-sliding");
}

#[test]
fn gemma2() {
    assert_parity("gemma2");
}

#[test]
fn gemma3() {
    assert_parity("gemma3");
}

#[test]
fn phi3() {
    assert_parity("phi3");
}

#[test]
fn granite() {
    assert_parity("granite");
}

#[test]
fn olmo2() {
    assert_parity("olmo2");
}

#[test]
fn smollm3() {
    assert_parity("smollm3");
}

/// Over weights in NF4, as bitsandbytes stores them, with nested scales and with plain ones.
#[test]
fn quantised_bases() {
    assert_parity("nf4/llama-gqa");
    assert_parity("nf4/qwen2-sharded");
}

/// PEFT takes whole batches; dynamic rope goes by their longest row, whatever they are cut into.
#[test]
fn batches_in_micro_batches() {
    for microbatches in [2, 4] {
        for fixture in ["llama-gqa", "llama-rope-dynamic"] {
            assert_parity_in_parts(fixture, microbatches);
        }
    }
}

/// Every fixture with jobs has its test above.
#[test]
fn all_fixtures_are_compared() {
    let fixtures = Fixture::with_jobs();
    let names: Vec<_> = fixtures
        .iter()
        .map(|fixture| fixture.directory.file_name().expect("a name"))
        .collect();
    assert_eq!(
        names,
        [
            "gemma2",
            "gemma3",
            "granite",
            "llama-gqa",
            "llama-rope-dynamic",
            "llama-tied-rope-llama3",
            "mistral-sliding",
            "olmo2",
            "phi3",
            "qwen2-sharded",
            "qwen3",
            "smollm3"
        ]
    );
}
