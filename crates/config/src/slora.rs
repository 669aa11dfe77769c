use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{AdapterConfig, InitLoraWeights, ObjectiveType, TargetModule};

/// Settings of `init_lora_weights: slora`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of SLoRA settings"
)]
pub struct SloraConfig {
    /// Name of the group of adapters that have one start. By default those with the same settings.
    pub group: Option<String>,
    /// Share of the elements of each weight that are trained, at random places.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    pub density: f64,
    /// Number of times that every adapter of the group trains the elements, and the mean over them is taken.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub rounds: usize,
    /// Optimizer steps of each adapter in a round.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub local_steps: usize,
    /// Learning rate of the elements.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub learning_rate: f64,
}

impl Default for SloraConfig {
    fn default() -> Self {
        Self {
            group: None,
            density: 0.01,
            rounds: 20,
            local_steps: 1,
            learning_rate: 1e-3,
        }
    }
}

impl SloraConfig {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl AdapterConfig {
    /// The adapters that have one start with this one by `init_lora_weights: slora`, itself among them, by their names;
    /// none if it begins otherwise.
    pub fn clients<'a>(&self, adapters: &'a [Self]) -> Vec<&'a Self> {
        let begins = |one: &Self| {
            one.lora.init_lora_weights == InitLoraWeights::Slora && one.init_from.is_none()
        };
        let own = &self.lora.slora_config;
        let has_its_start = |one: &&Self| {
            let other = &one.lora.slora_config;
            begins(one) && own.group == other.group && (own.group.is_some() || own == other)
        };
        if !begins(self) {
            return Vec::new();
        }
        let mut clients: Vec<&Self> = adapters.iter().filter(has_its_start).collect();
        clients.sort_by_key(|one| &one.name);
        clients
    }
}

/// The reason why an adapter cannot have one start with others, and the field of the cause.
pub(crate) fn problem(
    adapter: &AdapterConfig,
    adapters: &[AdapterConfig],
) -> Option<(&'static str, String)> {
    let clients = adapter.clients(adapters);
    let (lora, objective) = (&adapter.lora, adapter.objective.r#type);
    let group = match &lora.slora_config.group {
        Some(group) => format!("the group `{group}`"),
        None => "the group of adapters with these settings".to_owned(),
    };
    let modules = |of: &AdapterConfig| {
        let names = of.lora.target_modules.iter();
        let mut names: Vec<&str> = names.map(|module| module.name()).collect();
        names.sort_unstable();
        names.join(", ")
    };
    let other = |differs: &dyn Fn(&AdapterConfig) -> bool| {
        clients.iter().copied().find(|client| differs(client))
    };
    let init = "lora.init_lora_weights";
    Some(if clients.is_empty() {
        return None;
    } else if objective != ObjectiveType::Sft {
        let problem = format!("slora needs the objective sft, not {}", objective.name());
        (init, problem)
    } else if lora.use_dora {
        (init, "slora cannot be combined with use_dora".to_owned())
    } else if lora.target_modules.contains(&TargetModule::EmbedTokens) {
        let problem =
            "slora cannot begin an adapter of embed_tokens; leave it out of target_modules";
        (init, problem.to_owned())
    } else if clients.len() < 2 {
        let problem = format!(
            "slora trains one start for several adapters, and {group} has 1; give the others the same \
             slora_config (a server has each adapter by itself)"
        );
        (init, problem)
    } else if let Some(other) = other(&|one| one.lora.slora_config != lora.slora_config) {
        let [own, its] = [adapter, other].map(|one| {
            let slora = &one.lora.slora_config;
            format!(
                "density {}, rounds {}, local_steps {}, learning_rate {}",
                slora.density, slora.rounds, slora.local_steps, slora.learning_rate
            )
        });
        let problem = format!(
            "{group} has one start: {own}, but `{}` has {its}",
            other.name
        );
        ("lora.slora_config", problem)
    } else if let Some(other) = other(&|one| modules(one) != modules(adapter)) {
        let problem = format!(
            "{group} has one start: {}, but `{}` has {}",
            modules(adapter),
            other.name,
            modules(other)
        );
        ("lora.target_modules", problem)
    } else {
        return None;
    })
}
