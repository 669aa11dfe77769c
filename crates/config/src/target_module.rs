use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::alternatives::OneOrMany;

/// PEFT's name of every linear layer.
const ALL_LINEAR: &str = "all-linear";

/// All names in `target_modules`.
pub(crate) const NAMES: [&str; 12] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "embed_tokens",
    "lm_head",
    ALL_LINEAR,
];

/// A module that an adapter may target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetModule {
    /// Queries.
    QProj,
    /// Keys.
    KProj,
    /// Values.
    VProj,
    /// Attention output.
    OProj,
    /// Gate of the MLP.
    GateProj,
    /// Up-projection of the MLP.
    UpProj,
    /// Down-projection of the MLP.
    DownProj,
    /// Queries, keys and values in one (Phi-3).
    QkvProj,
    /// Gate and up-projection in one (Phi-3).
    GateUpProj,
    /// The embedding.
    EmbedTokens,
    /// The output projection.
    LmHead,
}

impl TargetModule {
    /// Those of decoder layers, which stand for those that the model has: `all-linear`.
    pub const ALL: [Self; 9] = [
        Self::QProj,
        Self::KProj,
        Self::VProj,
        Self::OProj,
        Self::GateProj,
        Self::UpProj,
        Self::DownProj,
        Self::QkvProj,
        Self::GateUpProj,
    ];

    /// Every module.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .chain([Self::EmbedTokens, Self::LmHead])
    }

    /// The name in a Hugging Face model.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// The linear layers of a model whose projections are not fused, and of one whose are.
const OF_MODELS: [&[TargetModule]; 2] = {
    use TargetModule::{
        DownProj, GateProj, GateUpProj, KProj, OProj, QProj, QkvProj, UpProj, VProj,
    };
    [
        &[QProj, KProj, VProj, OProj, GateProj, UpProj, DownProj],
        &[OProj, DownProj, QkvProj, GateUpProj],
    ]
};

/// The same modules in one order; all of a model are `all-linear`.
pub(crate) fn canonical(modules: &[TargetModule]) -> Vec<TargetModule> {
    let named = |module: &TargetModule| modules.contains(module);
    let sorted: Vec<_> = TargetModule::every().filter(named).collect();
    if OF_MODELS.contains(&&*sorted) {
        TargetModule::ALL.to_vec()
    } else {
        sorted
    }
}

/// Writes a list of names, or `all-linear`.
pub(crate) fn write<S: Serializer>(
    modules: &[TargetModule],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if modules == TargetModule::ALL {
        return serializer.serialize_str(ALL_LINEAR);
    }
    serializer.collect_seq(modules)
}

/// Reads one name, a list of names, or `all-linear`.
pub(crate) fn modules<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<TargetModule>, D::Error> {
    let names = OneOrMany::deserialize(deserializer)?;
    let names = names.items();
    if names.is_empty() {
        return Err(D::Error::custom("must name at least one module"));
    }
    if names == [ALL_LINEAR] {
        return Ok(TargetModule::ALL.to_vec());
    }
    let mut modules = Vec::with_capacity(names.len());
    for name in names {
        if name == ALL_LINEAR {
            let problem = format!("`{ALL_LINEAR}` must be the only name");
            return Err(D::Error::custom(problem));
        }
        let module = TargetModule::every().find(|module| module.name() == name);
        let module = module.ok_or_else(|| D::Error::unknown_variant(name, &NAMES))?;
        if modules.contains(&module) {
            return Err(D::Error::custom(format!("`{name}` is named twice")));
        }
        modules.push(module);
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::TargetModule;

    #[test]
    fn names_are_those_that_are_written() {
        for module in TargetModule::every() {
            let written = serde_json::to_value(module).unwrap();
            assert_eq!(written, module.name());
        }
    }
}
