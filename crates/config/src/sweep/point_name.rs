use crate::tree::{Node, Value};

/// Settings that are written directly before their number, as the field does: `lr3e-4`, `r8`.
const LABELS: [(&str, &str); 2] = [("train.learning_rate", "lr"), ("lora.r", "r")];

/// The name of a point of a grid: the sweep's, then each setting with its value, as in
/// `ranks-r8-lr3e-4-lora_alpha_16`. A setting that the sweep is named after goes without its label,
/// and so does a word: `lr-3e-4-cosine`.
pub(super) fn point_name<'a>(
    sweep: &str,
    settings: impl IntoIterator<Item = (&'a str, &'a Node)>,
) -> String {
    let mut name = sweep.to_owned();
    for (path, value) in settings {
        name.push('-');
        name.push_str(&setting(sweep, path, value));
    }
    name
}

fn setting(sweep: &str, path: &str, value: &Node) -> String {
    let text = written(value);
    let short = LABELS.iter().find(|(of, _)| *of == path);
    let label = short.map_or_else(
        || path.rsplit('.').next().unwrap_or(path),
        |(_, label)| label,
    );
    let is_word = matches!(value.value, Value::String(_) | Value::Sequence(_));
    if is_word || label == sweep || path.ends_with(&format!(".{sweep}")) {
        text
    } else if short.is_some() {
        format!("{label}{text}")
    } else {
        format!("{label}_{text}")
    }
}

/// The value in characters that are valid in a directory's name.
fn written(value: &Node) -> String {
    match &value.value {
        Value::Null | Value::Unset | Value::Mapping(_) => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => shortest(*value),
        Value::String(text) => text.clone(),
        Value::Sequence(items) => items.iter().map(written).collect::<Vec<_>>().join("."),
    }
}

/// The shorter of the two ways to write a number: `3e-4`, `0.05`, `16`.
fn shortest(value: f64) -> String {
    let (decimal, scientific) = (format!("{value}"), format!("{value:e}"));
    if scientific.len() < decimal.len() {
        scientific
    } else {
        decimal
    }
}

#[cfg(test)]
mod tests {
    use super::{point_name, shortest};
    use crate::tree::{Node, Value};

    #[test]
    fn numbers_are_written_as_people_do() {
        let written = [
            1e-4, 3e-4, 2.5e-4, 1e-3, 0.01, 0.05, 0.1, 1.0, 16.0, 1e5, 0.3, -1e-5,
        ];
        let expected = [
            "1e-4", "3e-4", "2.5e-4", "1e-3", "0.01", "0.05", "0.1", "1", "16", "1e5", "0.3",
            "-1e-5",
        ];
        assert_eq!(written.map(shortest), expected);
    }

    #[test]
    fn names_have_the_values_in_the_order_of_the_grid() {
        let rate = Node::new(Value::Float(3e-4));
        let rank = Node::new(Value::Integer(8));
        let rslora = Node::new(Value::Bool(true));
        let steps = Node::new(Value::Null);
        let shape = Node::string("cosine");
        let modules = ["q_proj", "v_proj"].map(Node::string).to_vec();
        let modules = Node::new(Value::Sequence(modules));
        let name =
            |sweep, settings: &[(&'static str, &Node)]| point_name(sweep, settings.iter().copied());
        let both = [("train.learning_rate", &rate), ("lora.r", &rank)];
        assert_eq!(name("lr", &both), "lr-3e-4-r8");
        assert_eq!(name("learning_rate", &both), "learning_rate-3e-4-r8");
        assert_eq!(name("math", &both), "math-lr3e-4-r8");
        assert_eq!(name("r", &[both[1], both[0]]), "r-8-lr3e-4");
        let others = [
            ("lora.lora_alpha", &rank),
            ("lora.use_rslora", &rslora),
            ("lora.target_modules", &modules),
            ("train.lr_scheduler_type", &shape),
            ("train.max_steps", &steps),
        ];
        assert_eq!(
            name("all", &others),
            "all-lora_alpha_8-use_rslora_true-q_proj.v_proj-cosine-max_steps_null"
        );
    }
}
