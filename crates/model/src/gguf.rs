//! Writes adapters for llama.cpp's `--lora`: GGUF, version 3, in the form of its `convert_lora_to_gguf.py`. Unlike
//! the script, this keeps the scales of rsLoRA, `rank_pattern` and `alpha_pattern`.
//!
//! llama.cpp multiplies a module's product by `adapter.lora.alpha / r`, with one alpha for the whole file and each
//! module's own r. If the module's scale differs, B is multiplied by the remaining factor.

use std::{borrow::Cow, fs, path::Path};

use safetensors::View;

use crate::{
    config::{Architecture, LlamaConfig},
    durable::{create_directories, sync_directory, write_synced},
    error::{ModelError, on},
    matrix_view::MatrixView,
    peft::{LoraWeights, PeftAdapter},
    projection::Projection,
};

const VERSION: u32 = 3;
/// Data of a tensor begins at a multiple of this.
const ALIGNMENT: usize = 32;
/// `GGML_QUANT_VERSION`, which llama.cpp's own writer adds to every file.
const QUANTIZATION_VERSION: u32 = 2;

/// Numbers of types of values in GGUF.
mod value_type {
    pub(super) const UINT32: u32 = 4;
    pub(super) const FLOAT32: u32 = 6;
    pub(super) const STRING: u32 = 8;
}
/// `GGML_TYPE_F32`.
const TENSOR_F32: u32 = 0;

/// Writes an adapter over a model of `base` to the new file `path`, with a display name. Returns its bytes.
///
/// # Errors
/// If the adapter does not fit the base, `path` exists, or it cannot be written.
pub fn write_gguf_lora(
    adapter: &PeftAdapter,
    base: &LlamaConfig,
    name: &str,
    path: &Path,
) -> Result<u64, ModelError> {
    adapter.verify(base)?;
    // llama.cpp looks up the adapter of the one weight at both ends.
    adapter.refuse_tied(base)?;
    let mut modules = adapter.modules.iter();
    if let Some((module, _)) = modules.find(|(_, weights)| weights.magnitude.is_some()) {
        return Err(ModelError::Dora {
            module: module.clone(),
            problem: "llama.cpp does not read from an adapter; merge it and convert the model",
        });
    }
    if path.exists() || path.is_symlink() {
        return Err(ModelError::OutputExists(path.to_owned()));
    }
    let bytes = contents(adapter, base, name);
    let parent = path.parent().unwrap_or(Path::new(""));
    on(parent, create_directories(parent))?;
    let mut staged = path.to_owned().into_os_string();
    staged.push(format!(".tmp-{}", std::process::id()));
    let staged = Path::new(&staged);
    // Left by a killed process with the same id.
    let _ = fs::remove_file(staged);
    let written = write_synced(staged, &bytes).and_then(|()| fs::rename(staged, path));
    on(path, written).inspect_err(|_| {
        let _ = fs::remove_file(staged);
    })?;
    on(parent, sync_directory(parent))?;
    Ok(bytes.len() as u64)
}

fn contents(adapter: &PeftAdapter, base: &LlamaConfig, name: &str) -> Vec<u8> {
    // llama.cpp reads an alpha of 0 as unset and scales by 1.
    let alpha = match adapter.config.lora_alpha as f32 {
        0.0 => 1.0,
        alpha => alpha,
    };
    let tensors = tensors(adapter, base, alpha);
    let mut file = Gguf(b"GGUF".to_vec());
    file.u32(VERSION);
    file.u64(tensors.len());
    let pairs = 6;
    file.u64(pairs);
    file.text_pair("general.architecture", architecture(base));
    file.text_pair("general.type", "adapter");
    file.text_pair("adapter.type", "lora");
    file.text_pair("general.name", name);
    file.text("adapter.lora.alpha");
    file.u32(value_type::FLOAT32);
    file.0.extend(alpha.to_le_bytes());
    file.text("general.quantization_version");
    file.u32(value_type::UINT32);
    file.u32(QUANTIZATION_VERSION);
    let mut offset = 0;
    for (name, matrix) in &tensors {
        file.text(name);
        file.u32(matrix.shape.len() as u32);
        // The fastest-varying dimension comes first.
        for size in matrix.shape.iter().rev() {
            file.u64(*size);
        }
        file.u32(TENSOR_F32);
        file.u64(offset);
        offset += matrix.data_len().next_multiple_of(ALIGNMENT);
    }
    file.align();
    for (_, matrix) in &tensors {
        file.0.extend(&*matrix.data());
        file.align();
    }
    file.0
}

/// Names and matrices under llama.cpp's names.
fn tensors<'a>(
    adapter: &'a PeftAdapter,
    base: &LlamaConfig,
    alpha: f32,
) -> Vec<(String, MatrixView<'a>)> {
    let mut tensors = Vec::new();
    for projection in Projection::ENDS.into_iter().rev() {
        let name = tensor_name(projection);
        let Some(weights) = adapter.modules.get(projection.path()) else {
            continue;
        };
        let LoraWeights { r, d_in, d_out, .. } = *weights;
        let (shape, values) = if projection == Projection::EmbedTokens {
            // llama.cpp looks up rows.
            let columns = (0..d_in).map(|token| weights.a[token..].iter().step_by(d_in));
            ([d_in, r], Cow::Owned(columns.flatten().copied().collect()))
        } else {
            ([r, d_in], Cow::Borrowed(&weights.a[..]))
        };
        let b = MatrixView {
            shape: [d_out, r],
            values: factor_b(weights, alpha, None),
        };
        tensors.push((
            format!("{name}.weight.lora_a"),
            MatrixView { shape, values },
        ));
        tensors.push((format!("{name}.weight.lora_b"), b));
    }
    for layer in 0..base.num_hidden_layers {
        // The order of the modules' paths, as in PEFT's files.
        let modules = base.linears().into_iter().map(|linear| linear.projection);
        let modules = modules.map(|projection| (projection.module(layer), projection));
        let mut modules: Vec<_> = modules.collect();
        modules.sort();
        for (module, projection) in modules {
            let Some(weights) = adapter.modules.get(&module) else {
                continue;
            };
            let LoraWeights { r, d_in, d_out, .. } = *weights;
            let name = format!("blk.{layer}.{}.weight.lora", tensor_name(projection));
            let a = MatrixView {
                shape: [r, d_in],
                values: Cow::Borrowed(&weights.a),
            };
            let b = MatrixView {
                shape: [d_out, r],
                values: factor_b(weights, alpha, permuted_heads(base, projection)),
            };
            tensors.push((format!("{name}_a"), a));
            tensors.push((format!("{name}_b"), b));
        }
    }
    tensors
}

/// B times the module's scale divided by `alpha / r`, with its rows in llama.cpp's order.
fn factor_b(weights: &LoraWeights, alpha: f32, heads: Option<usize>) -> Cow<'_, [f32]> {
    let r = weights.r;
    let rest = weights.scale * r as f64 / f64::from(alpha);
    let mut b = Cow::Borrowed(weights.b.as_slice());
    // A scale equal to `alpha / r` in decimals may differ in its last bit.
    if (rest - 1.0).abs() > 1e-12 {
        let values = b.iter();
        b = values
            .map(|value| (f64::from(*value) * rest) as f32)
            .collect();
    }
    let Some(heads) = heads else {
        return b;
    };
    // Rotated pairs are halves of a head in Hugging Face's models and neighbours in llama.cpp's.
    let half = weights.d_out / heads / 2;
    let rows = (0..weights.d_out).map(|row| {
        let (head, within) = (row / (2 * half), row % (2 * half));
        (2 * head + within % 2) * half + within / 2
    });
    rows.flat_map(|row| b[row * r..][..r].to_vec()).collect()
}

/// The number of heads whose rows llama.cpp reorders.
fn permuted_heads(base: &LlamaConfig, projection: Projection) -> Option<usize> {
    let is_permuted = match base.architecture {
        Architecture::Llama
        | Architecture::Mistral
        | Architecture::Granite
        | Architecture::SmolLm3 => true,
        Architecture::Phi3
        | Architecture::Qwen2
        | Architecture::Qwen3
        | Architecture::Olmo2
        | Architecture::Gemma2
        | Architecture::Gemma3 => false,
    };
    match projection {
        Projection::Q => Some(base.num_attention_heads),
        Projection::K => Some(base.num_key_value_heads),
        _ => None,
    }
    .filter(|_| is_permuted)
}

fn architecture(base: &LlamaConfig) -> &'static str {
    match base.architecture {
        Architecture::Llama | Architecture::Mistral => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
        Architecture::Granite => "granite",
        Architecture::Olmo2 => "olmo2",
        Architecture::SmolLm3 => "smollm3",
        Architecture::Phi3 => "phi3",
        Architecture::Gemma2 => "gemma2",
        Architecture::Gemma3 => "gemma3",
    }
}

fn tensor_name(projection: Projection) -> &'static str {
    match projection {
        Projection::Q => "attn_q",
        Projection::K => "attn_k",
        Projection::V => "attn_v",
        Projection::O => "attn_output",
        Projection::Gate => "ffn_gate",
        // llama.cpp keeps gate and up in one tensor of the second's name.
        Projection::Up | Projection::GateUp => "ffn_up",
        Projection::Down => "ffn_down",
        Projection::Qkv => "attn_qkv",
        Projection::EmbedTokens => "token_embd",
        Projection::LmHead => "output",
    }
}

/// A file that is being written.
struct Gguf(Vec<u8>);

impl Gguf {
    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: usize) {
        self.0.extend((number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len());
        self.0.extend(text.as_bytes());
    }

    fn text_pair(&mut self, key: &str, value: &str) {
        self.text(key);
        self.u32(value_type::STRING);
        self.text(value);
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }
}
