use loraloom_model::PeftAdapter;

use crate::{TrainedRun, keeps_bits, losses};

/// Fails unless an adapter took the same steps in both runs and ended as the same: bit for bit where
/// the device under test [keeps bits](keeps_bits), else within the bounds of parity with PEFT.
pub fn assert_same_training(name: &str, found: &TrainedRun, expected: &TrainedRun) {
    let steps = |run: &TrainedRun| -> (Vec<f64>, Vec<f64>) {
        let steps = losses(&run.events, name).into_iter();
        steps.map(|[loss, norm]| (loss, norm)).unzip()
    };
    let (steps, expected_steps) = (steps(found), steps(expected));
    let (adapter, expected_adapter) = (found.adapter(name), expected.adapter(name));
    if keeps_bits() {
        assert_eq!(steps, expected_steps, "{name}");
        assert!(adapter == expected_adapter, "{name}: other weights");
        return;
    }
    assert_close(&format!("{name} loss"), &steps.0, &expected_steps.0, 1e-6);
    assert_close(
        &format!("{name} gradient norm"),
        &steps.1,
        &expected_steps.1,
        1e-4,
    );
    let difference = largest_relative_difference(&adapter, &expected_adapter);
    assert!(
        difference <= 1e-4,
        "{name}: weights differ by {difference:.2e}"
    );
}

/// Fails unless every pair differs by at most `tolerance` of the second.
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs() / expected.abs();
        assert!(
            difference <= tolerance,
            "{what} at {index}: {found} instead of {expected}, {difference:.2e} relative"
        );
    }
}

/// The largest norm of the difference of a matrix over the norm of the matrix, over all matrices of
/// two adapters.
pub fn largest_relative_difference(found: &PeftAdapter, expected: &PeftAdapter) -> f64 {
    let modules: Vec<_> = found.modules.keys().collect();
    assert_eq!(
        modules,
        expected.modules.keys().collect::<Vec<_>>(),
        "adapted modules"
    );
    let mut largest = 0f64;
    for (found, expected) in found.modules.values().zip(expected.modules.values()) {
        let magnitudes = (&found.magnitude, &expected.magnitude);
        assert_eq!(magnitudes.0.is_some(), magnitudes.1.is_some(), "DoRA");
        let magnitudes = magnitudes.0.iter().zip(magnitudes.1);
        let factors = [(&found.a, &expected.a), (&found.b, &expected.b)];
        for (found, expected) in factors.into_iter().chain(magnitudes) {
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
            let difference =
                norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b))).sqrt();
            let size = norm(&mut expected.iter().map(|&v| f64::from(v))).sqrt();
            // Of two zeros, or of what is no number.
            let relative = match difference / size {
                _ if difference == 0.0 => 0.0,
                nan if nan.is_nan() => f64::INFINITY,
                relative => relative,
            };
            largest = largest.max(relative);
        }
    }
    largest
}
