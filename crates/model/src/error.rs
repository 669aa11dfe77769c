use std::{
    fmt::Debug,
    io,
    path::{Path, PathBuf},
};

use safetensors::SafeTensorError;
use thiserror::Error;

use crate::{causes::causes, checkpoint::TensorDtype, config::Architecture};

/// An error in a model directory, an adapter directory or a request to this crate.
///
/// Every message is complete in itself; [`hint`](Self::hint) gives advice.
#[derive(Debug, Error)]
pub enum ModelError {
    // ---- device ----
    /// A computation on a device failed; reading its result shows it.
    #[error("the device failed: {reason}")]
    Device {
        /// The device's message.
        reason: String,
    },
    // ---- files ----
    /// A file or directory could not be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// A file or directory could not be written, moved or removed.
    #[error("cannot write `{}`: {error}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The output path exists.
    #[error("`{}` exists{}", .0.display(), if .0.is_dir() { " and is not empty" } else { "" })]
    OutputExists(PathBuf),
    /// The contents of a file are wrong; `error` says how.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error in it.
        error: Box<ModelError>,
    },
    /// Not JSON, or JSON of an unexpected structure.
    #[error("invalid JSON: {0}")]
    Json(serde_json::Error),
    /// A Git LFS pointer instead of the file itself.
    #[error("`{}` is a Git LFS pointer, not the file itself", .0.display())]
    LfsPointer(PathBuf),
    /// A directory has weights as Python pickles only.
    #[error("`{}` has no safetensors weights, only the pickle `{file}`", directory.display())]
    PickleOnly {
        /// The directory.
        directory: PathBuf,
        /// The pickle found.
        file: String,
    },
    /// A directory has no weights.
    #[error("no safetensors weights in `{}`", .0.display())]
    NoWeights(PathBuf),
    /// A directory has several safetensors files and no index.
    #[error("`{}` has {} safetensors files and no `model.safetensors.index.json`: {}",
        directory.display(), files.len(), files.join(", "))]
    AmbiguousWeights {
        /// The directory.
        directory: PathBuf,
        /// Names of the files.
        files: Vec<String>,
    },
    /// A PEFT adapter directory was given as a base model.
    #[error("`{}` is a PEFT adapter, not a base model", .0.display())]
    AdapterAsBase(PathBuf),

    // ---- model configuration ----
    /// An architecture that is not one of the supported decoders, as `architectures` or `model_type` names
    /// it.
    #[error("architecture `{0}` is not supported")]
    UnsupportedArchitecture(String),
    /// `architectures` and `model_type` name different models.
    #[error("`architectures` says `{architecture}` but `model_type` says `{model_type}`")]
    ArchitectureMismatch {
        /// The class in `architectures`.
        architecture: String,
        /// The `model_type`.
        model_type: String,
    },
    /// A key requests an option that is not implemented.
    #[error("`{key}` = {value} is not supported")]
    UnsupportedOption {
        /// The key.
        key: String,
        /// Its value, as JSON or a name.
        value: String,
    },
    /// A required key is absent.
    #[error("`{0}` is missing")]
    MissingKey(&'static str),
    /// A value is invalid, with the numbers that show it.
    #[error("`{key}` {problem}")]
    InvalidValue {
        /// The key.
        key: String,
        /// The reason.
        problem: String,
    },

    // ---- tensors ----
    /// A safetensors file whose header or length is wrong.
    #[error("`{}` is not a valid safetensors file: {error}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The invariant that does not hold.
        error: SafeTensorError,
    },
    /// The index names a file that is not a plain name in the same directory.
    #[error("the index places `{tensor}` in `{file}`, which is not a file name")]
    IndexFileName {
        /// The tensor.
        tensor: String,
        /// The file named.
        file: String,
    },
    /// The index names a tensor that its file does not have.
    #[error("the index places `{tensor}` in `{}`, which does not have it", path.display())]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The file named.
        path: PathBuf,
    },
    /// A quantised weight whose parts do not fit each other or the model, or that is quantised in another way.
    #[error("`{tensor}` in `{}`: {reason}", path.display())]
    QuantState {
        /// The weight.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// The contradiction.
        reason: String,
    },
    /// A quantised checkpoint was to be quantised.
    #[error("the model is already stored in NF4")]
    AlreadyQuantized,
    /// A configuration names a quantised format that no weight has.
    #[error("`config.json` of `{}` has a `quantization_config` of {format}, and no weight is stored so", directory.display())]
    NotQuantized {
        /// The model.
        directory: PathBuf,
        /// The format.
        format: &'static str,
    },
    /// The layers that are not to be quantised are unknown, or all.
    #[error("quantization.skip: {0}")]
    Skip(String),
    /// Adapters were to be merged into quantised weights.
    #[error("`{}` is quantised, and adapters are merged into weights in floating point", .0.display())]
    QuantizedBase(PathBuf),
    /// Two files have a tensor of the same name and the index does not mention it.
    #[error("`{tensor}` is both in `{}` and in `{}`", first.display(), second.display())]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// Tensors of the model are missing.
    #[error("`{}` lacks {} of the model's tensors: {}",
        directory.display(), names.len(), abbreviated(names))]
    MissingTensors {
        /// The checkpoint.
        directory: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// The checkpoint has tensors that the model would not use.
    #[error("`{}` has {} tensors the model has no place for: {}",
        directory.display(), names.len(), abbreviated(names))]
    UnexpectedTensors {
        /// The checkpoint.
        directory: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor has another shape than the configuration says.
    #[error("`{tensor}` in `{}` is {found:?}, the configuration says {expected:?}", path.display())]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Shape the configuration asks for.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor is not of a floating-point type that can be read.
    #[error("`{tensor}` in `{}` is {found}, expected one of {}", path.display(), TensorDtype::NAMES)]
    TensorType {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// The type in the file.
        found: String,
    },

    /// A sum of a weight and its adapters, or a weight, that the type it is to be stored in cannot hold.
    #[error("`{tensor}` would be {value} at element {element}, which is not finite in {dtype}")]
    NotFiniteSum {
        /// The tensor.
        tensor: String,
        /// Index into the row-major tensor.
        element: usize,
        /// The sum.
        value: f32,
        /// Type that it is to be stored in.
        dtype: TensorDtype,
    },

    // ---- adapters ----
    /// An adapter option that changes the computation in a way that is not implemented.
    #[error("adapter option `{option}` = {value} is not supported")]
    UnsupportedAdapter {
        /// The key in `adapter_config.json`.
        option: String,
        /// Its value, as JSON.
        value: String,
    },
    /// A pattern that is not a regular expression this program can run.
    #[error("`{key}` has the pattern `{pattern}`, which cannot be used: {error}")]
    Pattern {
        /// The key in `adapter_config.json`.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// Why.
        error: Box<regex::Error>,
    },
    /// A tensor in an adapter that is neither a `lora_A.weight` nor a `lora_B.weight`.
    #[error("`{tensor}` in `{}` is not a LoRA weight of a linear layer", path.display())]
    UnexpectedAdapterTensor {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
    },
    /// A module has one of its two matrices only.
    #[error("`{module}` in `{}` has no `{missing}`", path.display())]
    HalfAdapter {
        /// The module.
        module: String,
        /// `lora_A.weight` or `lora_B.weight`, of an embedding `lora_embedding_A` or `lora_embedding_B`.
        missing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A module has a magnitude without DoRA, or none with it.
    #[error(
        "`{module}` has {} `lora_magnitude_vector`, and `use_dora` is {use_dora}",
        if *use_dora { "no" } else { "a" }
    )]
    Magnitude {
        /// The module.
        module: String,
        /// Of the configuration.
        use_dora: bool,
    },
    /// DoRA where it cannot be.
    #[error("`{module}` is adapted with DoRA (`use_dora`), which {problem}")]
    Dora {
        /// The first such module.
        module: String,
        /// Completes the sentence.
        problem: &'static str,
    },
    /// A file without a single module of an adapter.
    #[error("`{}` has no LoRA weights", .0.display())]
    EmptyAdapter(PathBuf),
    /// The two matrices of a module do not fit each other, or their sizes do not fit their data.
    #[error(
        "`{module}` has lora_A {a:?} and lora_B {b:?}, expected [r, d_in] and [d_out, r], with DoRA also a \
         lora_magnitude_vector [d_out]"
    )]
    AdapterFactors {
        /// The module.
        module: String,
        /// Shape of `lora_A`, or its number of values where it is not a matrix.
        a: Vec<usize>,
        /// Shape of `lora_B`, likewise.
        b: Vec<usize>,
    },
    /// The rank of a module's matrices is not that of the configuration.
    #[error("`{module}` has rank {found}, the adapter configuration says {expected}")]
    AdapterRank {
        /// The module.
        module: String,
        /// Rank by `r` and `rank_pattern`.
        expected: usize,
        /// Rank of the matrices.
        found: usize,
    },
    /// The scale of a module is not that of its rank and `lora_alpha`.
    #[error("`{module}` has scale {found}, its rank and `lora_alpha` give {expected}")]
    AdapterScale {
        /// The module.
        module: String,
        /// Scale by rank and `lora_alpha`.
        expected: f64,
        /// Scale held.
        found: f64,
    },
    /// An adapter weight that is not a finite number.
    #[error("`{module}` has the value {value} in `{factor}` at element {element}")]
    NotFinite {
        /// The module.
        module: String,
        /// `lora_A` or `lora_B`.
        factor: &'static str,
        /// Index into the row-major matrix.
        element: usize,
        /// The value.
        value: f32,
    },
    /// A base weight saved with an adapter is not the model's.
    #[error("`{tensor}` in `{}` is not the weight of the model", path.display())]
    OtherCopy {
        /// The tensor.
        tensor: String,
        /// The adapter's file.
        path: PathBuf,
    },
    /// A checkpoint whose configuration ties two weights has two.
    #[error(
        "`lm_head.weight` in `{}` differs from the embedding, although its config.json sets \
         `tie_word_embeddings`", .0.display()
    )]
    NotTied(PathBuf),
    /// A merged or exported model would change a weight that it uses twice.
    #[error(
        "the adapter has `{0}`, but embedding and output projection of the base are one weight \
         (`tie_word_embeddings`)"
    )]
    TiedModule(&'static str),
    /// A module has weights that the adapter's own configuration does not target.
    #[error("`{0}` has weights, but `target_modules` does not match it")]
    NotTargeted(String),
    /// A module of the base is targeted and has no weights.
    #[error("`target_modules` matches {} modules without weights: {}",
        modules.len(), abbreviated(modules))]
    MissingAdapterModules {
        /// The modules.
        modules: Vec<String>,
    },
    /// An adapted module that the base does not have, or that cannot be adapted.
    #[error("the base has no linear layer `{0}` that can be adapted")]
    NoSuchModule(String),
    /// An adapter made for a base of another size.
    #[error("`{module}` adapts {found:?}, the base has {expected:?} ([d_out, d_in])")]
    AdapterSize {
        /// The module.
        module: String,
        /// `[d_out, d_in]` of the base.
        expected: [usize; 2],
        /// `[d_out, d_in]` of the adapter.
        found: [usize; 2],
    },
    /// A save was cut off between moving the old adapter away and the new one in.
    #[error("`{}` does not exist; an interrupted save left `{}`", path.display(), kept.display())]
    InterruptedSave {
        /// The adapter asked for.
        path: PathBuf,
        /// Where the previous adapter is.
        kept: PathBuf,
    },
}

impl ModelError {
    /// Advice for a `hint:` line.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::InFile { error, .. } => return error.hint(),
            Self::Read { path, error } if error.kind() == io::ErrorKind::NotFound => {
                return path.file_name().map(|name| {
                    format!(
                        "a model directory has `config.json` and `*.safetensors`, an adapter \
                         directory `adapter_config.json` and `adapter_model.safetensors`; \
                         check where `{}` should be",
                        name.display()
                    )
                });
            }
            Self::LfsPointer(_) => "fetch the file itself with `git lfs pull`",
            Self::PickleOnly { .. } => {
                "convert it in Python: load with transformers or PEFT and call \
                 `save_pretrained`, which writes safetensors"
            }
            Self::AdapterAsBase(_) => {
                "name the base model here, and the adapter where adapters are named, such as `init_from` or `--adapter`"
            }
            Self::UnsupportedArchitecture(_) => {
                let names = Architecture::ALL.map(Architecture::class_name);
                return Some(format!("supported: {}", names.join(", ")));
            }
            Self::Safetensors { .. } => "the file is cut off or damaged; download or copy it again",
            Self::NotInShard { .. } | Self::MissingTensors { .. } => {
                "the checkpoint is incomplete or of another configuration"
            }
            Self::UnsupportedOption { key, .. } if !key.starts_with("quantization_config") => {
                return None;
            }
            Self::UnsupportedOption { .. } | Self::TensorType { .. } | Self::QuantState { .. } => {
                "quantised checkpoints are read in NF4 with blocks of 64, LLM.int8, FP8, compressed-tensors, GPTQ and \
                 AWQ; of others use the original, and `quantization: {type: nf4}`"
            }
            Self::UnsupportedAdapter { option, .. } if option == "init_lora_weights" => {
                "its weights belong to a base that this initialisation changed; save it with PEFT's \
                 `path_initial_model_for_weight_conversion`, which makes it plain LoRA"
            }
            Self::UnsupportedAdapter { .. } => {
                "only LoRA adapters, also with rsLoRA or DoRA, are supported"
            }
            Self::AdapterSize { .. } | Self::NoSuchModule(_) => {
                "the adapter was made for another base model"
            }
            Self::OtherCopy { .. } => {
                "the adapter changed the embedding or the output projection itself, or belongs to another model: merge \
                 it in PEFT and train over the result"
            }
            Self::NotTied(_) => {
                "set `tie_word_embeddings` to false in config.json, as transformers treats it, or remove the weight"
            }
            Self::TiedModule(_) => {
                "use the adapter unmerged (`--adapter`), or save the base with `tie_word_embeddings: false`"
            }
            Self::AlreadyQuantized => "leave `quantization`, or `--quantization`, out",
            Self::NotQuantized { .. } => "remove `quantization_config` if the model was made dense",
            Self::Skip(_) => {
                "names are parts of paths, such as `down_proj`, `mlp` or `model.layers.0`"
            }
            Self::QuantizedBase(_) => "name the model that it was quantised from",
            Self::OutputExists(_) => "name a new place",
            Self::NotFiniteSum {
                dtype: TensorDtype::Float16,
                value,
                ..
            } if value.is_finite() => {
                "float16 ends at 65504; `--dtype bfloat16` or `--dtype float32` reach further"
            }
            Self::InterruptedSave { kept, path } => {
                return Some(format!("move `{}` to `{}`", kept.display(), path.display()));
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// A computation on a device failed with an error of Burn's.
    pub fn device(error: &impl Debug) -> Self {
        let reason = causes(&format!("{error:?}"));
        Self::Device { reason }
    }

    /// True if a device has run out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Device { reason } if says_out_of_memory(reason))
    }

    /// Names the file that the error is about.
    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::InFile {
            path: path.into(),
            error: Box::new(self),
        }
    }
}

/// The result of writing, moving or removing `path`.
pub(crate) fn on<T>(path: &Path, result: io::Result<T>) -> Result<T, ModelError> {
    result.map_err(|error| ModelError::Write {
        path: path.to_owned(),
        error,
    })
}

/// An error for an invalid value.
pub(crate) fn invalid(key: &str, problem: impl Into<String>) -> ModelError {
    let (key, problem) = (key.to_owned(), problem.into());
    ModelError::InvalidValue { key, problem }
}

/// An error for an option that is not implemented.
pub(crate) fn unsupported(key: &str, value: impl Into<String>) -> ModelError {
    let (key, value) = (key.to_owned(), value.into());
    ModelError::UnsupportedOption { key, value }
}

/// The first few names and the number of the others.
fn abbreviated(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// True if a device's message reports that its memory ran out: drivers report it only as text.
pub fn says_out_of_memory(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    let words = [
        "out of memory",
        "out-of-memory",
        "outofmemory",
        "out_of_memory",
        "out of device memory",
        // CubeCL's message for an allocation above its pools' page size.
        "can't allocate",
    ];
    words.iter().any(|words| reason.contains(words))
}

#[cfg(test)]
mod tests {
    use super::says_out_of_memory;

    #[test]
    fn drivers_words_for_a_lack_of_memory_are_known() {
        for (reason, expected) in [
            ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", true),
            ("CUDA_ERROR_OUT_OF_MEMORY", true),
            ("out of device memory allocating 8 bytes", true),
            ("An out-of-memory error happened during launch", true),
            ("can't allocate buffer of size: 8", true),
            ("Buffer creation failed: OutOfMemory", true),
            ("the device is lost", false),
        ] {
            assert_eq!(says_out_of_memory(reason), expected, "{reason}");
        }
    }
}
