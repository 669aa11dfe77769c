use crate::PartCosts;

/// Where stages would meet if layers could be cut: the layers below the boundaries 1 to `stages`,
/// without it, for stages that all take the same time.
///
/// Boundary `k` leaves every stage below it and above it a layer.
pub(super) fn boundaries(costs: &PartCosts, stages: usize) -> Vec<f64> {
    let layers = costs.layer_passes();
    let each = costs.whole() / stages as f64;
    let boundary = |k: usize| {
        let below = fractional_layers(&layers, k as f64 * each - costs.embedding_passes());
        below.clamp(k as f64, (layers.len() - (stages - k)) as f64)
    };
    (1..stages).map(boundary).collect()
}

/// How many of the layers, from the first on, take this long together.
fn fractional_layers(layers: &[f64], mut time: f64) -> f64 {
    for (index, &cost) in layers.iter().enumerate() {
        if time < cost {
            return index as f64 + (time / cost).max(0.0);
        }
        time -= cost;
    }
    layers.len() as f64
}

#[cfg(test)]
mod tests {
    use super::{boundaries, fractional_layers};
    use crate::{PartCosts, simulate::PassCosts};

    fn forward(forward: f64) -> PassCosts {
        PassCosts {
            forward,
            backward: 0.0,
            step: 0.0,
        }
    }

    #[test]
    fn layers_are_counted_in_parts() {
        for (time, expected) in [
            (-1.0, 0.0),
            (0.5, 0.25),
            (2.0, 1.0),
            (5.0, 1.75),
            (9.0, 2.0),
        ] {
            let found = fractional_layers(&[2.0, 4.0], time);
            assert!((found - expected).abs() < 1e-12, "{time}: {found}");
        }
    }

    #[test]
    fn stages_would_all_take_the_same_time() {
        let costs = PartCosts {
            layers: vec![forward(2.0); 6],
            embedding: forward(1.0),
            head: forward(3.0),
        };
        // 16 over 4 stages.
        assert_eq!(boundaries(&costs, 4), [1.5, 3.5, 5.0]);
        // No stage is left without a layer, whatever it costs.
        let heavy = PartCosts {
            head: forward(100.0),
            ..costs
        };
        assert_eq!(boundaries(&heavy, 4), [3.0, 4.0, 5.0]);
    }
}
