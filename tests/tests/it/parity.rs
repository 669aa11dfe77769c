//! Training several adapters at once gives what PEFT gives training each alone.

use loraloom_model::PeftAdapter;
use loraloom_tests::{Fixture, Job, assert_close, largest_relative_difference, losses, train};

/// Every job of every fixture, co-batched: losses within 1e-6 at every step, A and B within 1e-4
/// after 50 steps.
#[test]
fn co_batched_training_equals_peft_training_each_adapter_alone() {
    for fixture in Fixture::with_jobs() {
        let jobs = fixture.jobs();
        let adapters: Vec<_> = jobs.iter().map(Job::adapter).collect();
        let run = train(|output_dir| fixture.config(&adapters, output_dir));
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
}
