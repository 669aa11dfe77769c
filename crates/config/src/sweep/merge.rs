use super::Expansion;
use crate::RunConfig;

/// Drops points that are their base in everything but the name: the base takes their place in the
/// sweep, unless it is in another one. Returns a sentence for each.
pub(crate) fn merge_bases(config: &mut RunConfig, expansion: &mut Expansion) -> Vec<String> {
    let mut sentences = Vec::new();
    for sweep in 0..config.sweep.len() {
        let points: Vec<usize> = expansion.points(sweep).collect();
        let equal = points.into_iter().find_map(|point| {
            let base = &config.adapters[expansion.base(point)?];
            let mut renamed = config.adapters[point].clone();
            renamed.name.clone_from(&base.name);
            let is_free = !config.sweep.iter().any(|s| s.adapters.contains(&base.name));
            (is_free && renamed == *base).then(|| (point, base.name.clone()))
        });
        if let Some((point, base)) = equal {
            let dropped = config.adapters.remove(point).name;
            expansion.remove(point);
            let sweep = &mut config.sweep[sweep];
            sentences.push(format!(
                "sweep `{}`: its point `{dropped}` is adapter `{base}`, which is trained once and \
                 is in the sweep under that name",
                sweep.name
            ));
            for name in &mut sweep.adapters {
                if *name == dropped {
                    name.clone_from(&base);
                }
            }
        }
    }
    sentences
}
