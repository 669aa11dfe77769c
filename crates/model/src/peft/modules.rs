//! PEFT's rules for the modules of an adapter, their rank and `lora_alpha`.

use regex::Regex;

use super::config::{PeftLoraConfig, TargetModules};
use crate::error::ModelError;

/// The patterns of a [`PeftLoraConfig`], compiled.
#[derive(Debug)]
pub(super) struct ModuleRules<'a> {
    config: &'a PeftLoraConfig,
    target: Selection<'a>,
    exclude: Option<Selection<'a>>,
    /// Captures the layer index of a module path, one for each of `layers_pattern`.
    layer_index: Vec<Regex>,
    rank: Vec<(Regex, usize)>,
    alpha: Vec<(Regex, f64)>,
}

#[derive(Debug)]
enum Selection<'a> {
    Names(&'a [String]),
    Pattern(Regex),
    AllLinear,
}

impl<'a> ModuleRules<'a> {
    pub(super) fn new(config: &'a PeftLoraConfig) -> Result<Self, ModelError> {
        let exclude = config.exclude_modules.as_ref();
        let exclude = exclude.map(|modules| Selection::new("exclude_modules", modules));
        Ok(Self {
            config,
            target: Selection::new("target_modules", &config.target_modules)?,
            exclude: exclude.transpose()?,
            layer_index: layer_index(&config.layers_pattern)?,
            rank: compiled("rank_pattern", &config.rank_pattern)?,
            alpha: compiled("alpha_pattern", &config.alpha_pattern)?,
        })
    }

    /// True if the adapter adapts `module`.
    pub(super) fn targets(&self, module: &str) -> bool {
        let exclude = self.exclude.as_ref();
        self.target.matches(module)
            && exclude.is_none_or(|exclude| !exclude.matches(module))
            && self.in_transformed_layer(module)
    }

    /// Rank of `module`.
    pub(super) fn rank(&self, module: &str) -> usize {
        first_match(&self.rank, module).unwrap_or(self.config.r)
    }

    /// `lora_alpha` of `module`.
    pub(super) fn alpha(&self, module: &str) -> f64 {
        first_match(&self.alpha, module).unwrap_or(self.config.lora_alpha)
    }

    fn in_transformed_layer(&self, module: &str) -> bool {
        let layers = &self.config.layers_to_transform;
        // PEFT does not apply the list to a module that is targeted by its full path.
        let by_path = matches!(self.target, Selection::Names(names)
            if names.iter().any(|name| name == module));
        if layers.is_empty() || by_path {
            return true;
        }
        let mut patterns = self.layer_index.iter();
        let captures = patterns.find_map(|pattern| pattern.captures(module));
        let index = captures.and_then(|captures| captures.name("idx")?.as_str().parse().ok());
        index.is_some_and(|index: usize| layers.contains(&index))
    }
}

impl<'a> Selection<'a> {
    fn new(key: &'static str, modules: &'a TargetModules) -> Result<Self, ModelError> {
        Ok(match modules {
            TargetModules::Names(names) => Self::Names(names),
            TargetModules::Pattern(pattern) => {
                Self::Pattern(compile(key, pattern, &format!("^(?:{pattern})$"))?)
            }
            TargetModules::AllLinear => Self::AllLinear,
        })
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|name| {
                let path = module.strip_suffix(name.as_str());
                path.is_some_and(|path| path.is_empty() || path.ends_with('.'))
            }),
            Self::Pattern(pattern) => pattern.is_match(module),
            Self::AllLinear => !["lm_head", "model.embed_tokens"].contains(&module),
        }
    }
}

/// Patterns that find the number of the layer a module is in: the first number that follows one of
/// `names`, or any name.
fn layer_index(names: &[String]) -> Result<Vec<Regex>, ModelError> {
    let key = "layers_pattern";
    if names.is_empty() {
        let any = r"^.*?\.[^.]*\.(?P<idx>\d+)\.";
        return Ok(vec![compile(key, any, any)?]);
    }
    let one = |name: &String| compile(key, name, &format!(r"^(?:|.*?\.){name}\.(?P<idx>\d+)\."));
    names.iter().map(one).collect()
}

/// Each pattern matches a whole module path, or its end after a `.`.
fn compiled<T: Copy>(
    key: &'static str,
    patterns: &[(String, T)],
) -> Result<Vec<(Regex, T)>, ModelError> {
    let one = |(pattern, value): &(String, T)| {
        let anchored = format!(r"^(?:.*\.)?(?:{pattern})$");
        Ok((compile(key, pattern, &anchored)?, *value))
    };
    patterns.iter().map(one).collect()
}

fn compile(key: &'static str, pattern: &str, anchored: &str) -> Result<Regex, ModelError> {
    Regex::new(anchored).map_err(|error| ModelError::Pattern {
        key,
        pattern: pattern.to_owned(),
        error: Box::new(error),
    })
}

fn first_match<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    let mut patterns = patterns.iter();
    let found = patterns.find(|(pattern, _)| pattern.is_match(module));
    found.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Against PEFT's own `check_target_module_exists` and `get_pattern_key`.
    #[test]
    fn rules_are_those_of_peft() {
        let cases = include_str!("../../tests/fixtures/peft_rules.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
        let mut targeted_modules = 0;
        for case in cases {
            let config = PeftLoraConfig::from_json(case["config"].as_str().unwrap()).unwrap();
            let rules = ModuleRules::new(&config).unwrap();
            let modules: BTreeMap<String, (bool, usize, f64)> =
                serde_json::from_value(case["modules"].clone()).unwrap();
            for (module, expected) in modules {
                let found = (
                    rules.targets(&module),
                    rules.rank(&module),
                    rules.alpha(&module),
                );
                assert_eq!(found, expected, "{module} with {}", case["config"]);
                targeted_modules += usize::from(expected.0);
            }
        }
        assert!(targeted_modules > 50, "only {targeted_modules}");
    }

    #[test]
    fn first_pattern_of_the_file_wins() {
        let text = |patterns: &str| {
            format!(
                r#"{{"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"],
                    "rank_pattern": {{{patterns}}}}}"#
            )
        };
        for (patterns, rank) in [
            (r#""z.*|.*q_proj": 2, "a.*|q_proj": 3"#, 2),
            (r#""a.*|q_proj": 3, "z.*|.*q_proj": 2"#, 3),
        ] {
            let config = PeftLoraConfig::from_json(&text(patterns)).unwrap();
            assert_eq!(
                ModuleRules::new(&config).unwrap().rank("model.q_proj"),
                rank
            );
        }
    }

    #[test]
    fn a_layers_pattern_cannot_lose_the_index() {
        let mut config = PeftLoraConfig::new(1, 1.0, vec!["q_proj".to_owned()]);
        config.layers_to_transform = vec![1];
        config.layers_pattern = vec!["model|layers".to_owned()];
        // The alternation swallows the group with the index; PEFT then finds none.
        assert!(
            !ModuleRules::new(&config)
                .unwrap()
                .targets("model.layers.1.q_proj")
        );
        config.layers_pattern = vec!["(".to_owned()];
        assert!(matches!(
            ModuleRules::new(&config),
            Err(ModelError::Pattern { .. })
        ));
    }
}
