use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

/// Start values of a fresh adapter, as PEFT's `init_lora_weights` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InitLoraWeights {
    /// `true`: A uniform, B zero.
    #[default]
    Uniform,
    /// A normal, B zero.
    Gaussian,
    /// A and B from the rows of one orthogonal matrix.
    Orthogonal,
    /// A from the inputs of the adapted modules, B zero.
    Eva,
    /// The first components of the weights; with a number, as many iterations find them.
    Pissa(Option<usize>),
    /// The first columns of Q and rows of R of the weights.
    Olora,
    /// A and B from a change of the weights that several adapters have trained together.
    Slora,
}

/// All names; K is a number.
const NAMES: [&str; 7] = [
    "gaussian",
    "orthogonal",
    "eva",
    "pissa",
    "pissa_niter_K",
    "olora",
    "slora",
];

/// More iterations than any weight needs.
const MOST_ITERATIONS: usize = 1000;

impl InitLoraWeights {
    /// PEFT's name; `None` is its `true`.
    pub fn name(self) -> Option<String> {
        Some(match self {
            Self::Uniform => return None,
            Self::Pissa(Some(iterations)) => format!("pissa_niter_{iterations}"),
            Self::Gaussian => NAMES[0].to_owned(),
            Self::Orthogonal => NAMES[1].to_owned(),
            Self::Eva => NAMES[2].to_owned(),
            Self::Pissa(None) => NAMES[3].to_owned(),
            Self::Olora => NAMES[5].to_owned(),
            Self::Slora => NAMES[6].to_owned(),
        })
    }

    /// True if they are functions of the rows or of the weights, not of the seed alone.
    pub fn is_computed(self) -> bool {
        matches!(self, Self::Eva | Self::Slora) || self.is_of_weights()
    }

    /// True if they are functions of the weights. PEFT subtracts their product from the base; over a shared base, as
    /// many ranks that are not trained do.
    pub fn is_of_weights(self) -> bool {
        matches!(self, Self::Pissa(_) | Self::Olora)
    }

    fn named(name: &str) -> Option<Self> {
        let iterations = name.strip_prefix("pissa_niter_");
        let iterations = iterations.and_then(|number| number.parse().ok());
        let counts = (1..=MOST_ITERATIONS).contains(&iterations.unwrap_or(0));
        Some(match name {
            "gaussian" => Self::Gaussian,
            "orthogonal" => Self::Orthogonal,
            "eva" => Self::Eva,
            "pissa" => Self::Pissa(None),
            "olora" => Self::Olora,
            "slora" => Self::Slora,
            _ if counts => Self::Pissa(iterations),
            _ => return None,
        })
    }
}

/// Settings of `init_lora_weights: eva`. The keys are those of PEFT's `EvaConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping of EVA settings")]
pub struct EvaConfig {
    /// Largest rank of a module, over r. 1 gives every module the rank r.
    #[schemars(range(min = 1.0))]
    pub rho: f64,
    /// Cosine between a component before and after a batch from which on it has converged.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tau: f64,
    /// Take the inputs of target tokens alone, not of all tokens.
    pub use_label_mask: bool,
    /// Divide each component by the root of its singular value.
    pub whiten: bool,
    /// Change `lora_alpha` of a module as its rank, which keeps lora_alpha / r.
    pub adjust_scaling_factors: bool,
}

impl Default for EvaConfig {
    fn default() -> Self {
        Self {
            rho: 2.0,
            tau: 0.99,
            use_label_mask: true,
            whiten: false,
            adjust_scaling_factors: true,
        }
    }
}

impl Serialize for InitLoraWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name() {
            Some(name) => serializer.serialize_str(&name),
            None => serializer.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for InitLoraWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InitVisitor)
    }
}

struct InitVisitor;

impl Visitor<'_> for InitVisitor {
    type Value = InitLoraWeights;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, gaussian, orthogonal, eva, pissa, pissa_niter_K, olora or slora")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<InitLoraWeights, E> {
        if value {
            return Ok(InitLoraWeights::Uniform);
        }
        Err(E::custom(
            "must be true or a name, such as gaussian: with false the adapter changes the model before it is trained",
        ))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<InitLoraWeights, E> {
        if let Some(count) = name.strip_prefix("pissa_niter_")
            && InitLoraWeights::named(name).is_none()
        {
            return Err(E::custom(format_args!(
                "`{count}` in `{name}` must be a whole number from 1 to {MOST_ITERATIONS}, of iterations"
            )));
        }
        let found = InitLoraWeights::named(name);
        found.ok_or_else(|| E::unknown_variant(name, &NAMES))
    }
}

impl JsonSchema for InitLoraWeights {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "InitLoraWeights".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"oneOf": [
            {"type": "boolean", "const": true, "description": "true: A uniform in ±1 / sqrt(d_in), B zero."},
            {"type": "string", "const": "gaussian", "description":
                "A normal with a standard deviation of 1 / r, B zero."},
            {"type": "string", "const": "orthogonal", "description":
                "A and B random, from the odd and even rows of an orthogonal matrix, so that their product is zero; \
                 r must be even."},
            {"type": "string", "const": "eva", "description":
                "A from the principal components of each module's inputs over the adapter's rows, B zero. The ranks of \
                 the modules add up to theirs without it, and follow the variance that components explain. All stages \
                 must be on this machine."},
            {"type": "string", "const": "pissa", "description":
                "A and B from the first r components of each module's weight, which the rest of the weight lacks: the \
                 adapter has r more ranks, with the opposite product, that are not trained. Needs lora_dropout 0, all \
                 stages on this machine, and no embed_tokens."},
            {"type": "string", "pattern": "^pissa_niter_[1-9][0-9]*$", "description":
                "As pissa, with components that so many iterations find; far fewer than pissa takes."},
            {"type": "string", "const": "olora", "description":
                "As pissa, with the first columns of Q and rows of R of each weight's QR decomposition."},
            {"type": "string", "const": "slora", "description":
                "A and B from the first r components of a sparse change of the weights, which several adapters of the \
                 run train in turn before their first steps, each on its own rows, and average (SLoRA). Needs the \
                 objective sft, all stages on this machine, and no embed_tokens or DoRA."},
        ]})
    }
}
