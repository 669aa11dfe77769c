//! Picking the next tokens: see the reference for their order.
//!
//! A cube takes one row, or several where the vocabulary is small. A prefix of the tokens in their order is found bit by
//! bit: first the value of its last token, then, among equal values, the token's number. Each bit takes one pass over the
//! row, so that nothing is sorted.

use batchlora_kernels::launch::{by_rows, cube_dim, cubes, empty, record, record_elements, table};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::{LOWEST, RowLayout, UNITS, row_max, row_sum};
use crate::ops::sampling::SampledRow;

/// Words of a row: temperature, `top_k`, `top_p`, `min_p` and the draw; 32-bit floats but the second.
const WORDS: usize = 5;
/// Words of a penalised token: its row, its number and the penalty.
const PENALTY_WORDS: usize = 3;
/// Bits of a value's key.
const KEY_BITS: u32 = 32;

pub(super) fn sample(logits: CubeTensor, rows: &[SampledRow]) -> CubeTensor {
    let logits = by_rows(logits);
    let [count, vocabulary] = logits.shape().dims();
    let width = SampledRow::width(rows, vocabulary);
    let found = empty(&logits, [count, width], DType::F32);
    if count * vocabulary == 0 {
        return found;
    }
    let words = rows.iter().flat_map(|row| words(row, vocabulary));
    let words = table(&logits.client, &logits.device, &words.collect::<Vec<_>>());
    let values = penalised(&logits, rows);
    let layout = RowLayout::new(vocabulary);
    record(&[&logits, &words], &[&found]);
    let (client, dtype) = (logits.client.clone(), logits.dtype);
    sample_kernel::launch(
        &client,
        layout.cubes(count),
        cube_dim(layout.lanes, layout.rows),
        logits.into_tensor_arg(),
        values.into_tensor_arg(),
        words.into_tensor_arg(),
        found.clone().into_tensor_arg(),
        width / 2 - 1,
        layout.lanes,
        layout.rows,
        searches(rows),
        vocabulary.next_power_of_two().ilog2().max(1),
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    found
}

fn words(row: &SampledRow, vocabulary: usize) -> [u32; WORDS] {
    let sampling = &row.sampling;
    let most = match sampling.top_k {
        0 => vocabulary,
        most => most.min(vocabulary),
    };
    let word = |value: f64| (value as f32).to_bits();
    [
        word(sampling.temperature),
        most as u32,
        word(sampling.top_p),
        word(sampling.min_p),
        word(row.draw),
    ]
}

/// The prefixes that rows need: none if all take the likeliest token, that of the draw, or also those of `top_k` and
/// `top_p`.
fn searches(rows: &[SampledRow]) -> u32 {
    let of = |row: &SampledRow| match &row.sampling {
        sampling if sampling.temperature <= 0.0 => 0,
        sampling if sampling.top_k == 0 && sampling.top_p >= 1.0 => 1,
        _ => 2,
    };
    rows.iter().map(of).max().unwrap_or(0)
}

/// The logits with penalties; the same tensor without any.
fn penalised(logits: &CubeTensor, rows: &[SampledRow]) -> CubeTensor {
    let vocabulary = logits.shape()[1];
    let mut words = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let penalty = (row.sampling.repetition_penalty as f32).to_bits();
        for &token in row
            .penalised
            .iter()
            .filter(|&&token| (token as usize) < vocabulary)
        {
            words.extend([number as u32, token, penalty]);
        }
    }
    if words.is_empty() {
        return logits.clone();
    }
    record(&[logits], &[]);
    record_elements(logits.dtype, logits.shape().num_elements());
    let (values, count) = (logits.copy(), words.len() / PENALTY_WORDS);
    let words = table(&logits.client, &logits.device, &words);
    record_elements(logits.dtype, 2 * count);
    penalise_kernel::launch(
        &logits.client,
        cubes(count.div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        words.into_tensor_arg(),
        values.clone().into_tensor_arg(),
        count,
        burn::backend::cubecl::dtype_to_storage_type(logits.dtype),
    );
    values
}

#[cube(launch)]
fn penalise_kernel<F: Float>(
    words: &Tensor<u32>,
    values: &mut Tensor<F>,
    count: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < count {
        let word = ABSOLUTE_POS * PENALTY_WORDS;
        let at = words[word] as usize * values.stride(0) + words[word + 1] as usize;
        let penalty = f32::reinterpret(words[word + 2]);
        let mut value = f32::cast_from(values[at]);
        if value > 0.0f32 {
            value /= penalty;
        } else {
            value *= penalty;
        }
        values[at] = F::cast_from(value);
    }
}

/// Tokens of a row in their order: by value, equal ones by number.
#[derive(CubeType)]
struct Row {
    /// Place of its first logit.
    first: usize,
    /// Number of its logits, or 0 beyond the last row.
    width: usize,
    largest: f32,
    temperature: f32,
    /// Least weight of a token relative to the likeliest.
    least: f32,
}

/// The last token of a prefix: the key of its value, and its number.
#[derive(CubeType)]
struct Last {
    key: u32,
    token: usize,
}

/// A number that is ordered as the value. NaN is the lowest.
#[cube]
fn key_of(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let mut key = bits | 0x8000_0000u32;
    if bits >= 0x8000_0000u32 {
        key = 0xffff_ffffu32 - bits;
    }
    if (bits & 0x7fff_ffffu32) > 0x7f80_0000u32 {
        key = 0u32;
    }
    key
}

/// The weight of a prefix's tokens, on each lane of the row: those with a larger key, and of those with the same one
/// the numbers below `below`. Tokens behind `kept` do not count. With `by_count` each weighs 1.
#[cube]
fn mass<F: Float>(
    values: &Tensor<F>,
    row: &Row,
    kept_key: u32,
    kept_token: usize,
    key: u32,
    below: usize,
    #[comptime] by_count: bool,
    #[comptime] lanes: usize,
) -> f32 {
    let lane = UNIT_POS_X as usize;
    let mut sum = 0.0f32;
    for step in 0..row.width.div_ceil(lanes) {
        let token = step * lanes + lane;
        if token < row.width {
            let value = f32::cast_from(values[row.first + token]);
            let own = key_of(value);
            let is_kept = own > kept_key || (own == kept_key && token <= kept_token);
            if is_kept && (own > key || (own == key && token < below)) {
                if comptime!(by_count) {
                    sum += 1.0f32;
                } else {
                    let weight = weight_of(value, row);
                    if weight >= row.least {
                        sum += weight;
                    }
                }
            }
        }
    }
    row_sum(sum, lanes)
}

#[cube]
fn weight_of(value: f32, row: &Row) -> f32 {
    let mut weight = 0.0f32;
    // Not so of NaN.
    if value > LOWEST.runtime() {
        weight = f32::exp((value - row.largest) / row.temperature);
    }
    weight
}

/// The last token of the shortest prefix that weighs more than `target`, or as much with `or_equal`.
#[cube]
fn prefix<F: Float>(
    values: &Tensor<F>,
    row: &Row,
    kept_key: u32,
    kept_token: usize,
    target: f32,
    #[comptime] by_count: bool,
    #[comptime] or_equal: bool,
    #[comptime] lanes: usize,
    #[comptime] token_bits: u32,
) -> Last {
    let mut key = 0u32;
    for step in 0..comptime!(KEY_BITS) {
        let candidate = key | (1u32 << (comptime!(KEY_BITS - 1) - step));
        // Those with this key or a larger one.
        let weight = mass::<F>(
            values,
            row,
            kept_key,
            kept_token,
            candidate - 1u32,
            0usize,
            by_count,
            lanes,
        );
        if reaches(weight, target, or_equal) {
            key = candidate;
        }
    }
    let mut token = 0usize;
    for step in 0..comptime!(token_bits) {
        let bit = 1u32 << (comptime!(token_bits - 1) - step);
        let candidate = token | usize::cast_from(bit);
        let weight = mass::<F>(
            values, row, kept_key, kept_token, key, candidate, by_count, lanes,
        );
        if !reaches(weight, target, or_equal) {
            token = candidate;
        }
    }
    Last { key, token }
}

#[cube]
fn reaches(weight: f32, target: f32, #[comptime] or_equal: bool) -> bool {
    let mut reaches = weight > target;
    if comptime!(or_equal) {
        reaches = weight >= target;
    }
    reaches
}

/// A token and its value.
#[derive(CubeType)]
struct Place {
    value: f32,
    token: usize,
}

/// The likeliest token behind another.
#[cube]
fn next<F: Float>(
    values: &Tensor<F>,
    row: &Row,
    value: f32,
    token: usize,
    #[comptime] lanes: usize,
) -> Place {
    let lane = UNIT_POS_X as usize;
    let mut best = LOWEST.runtime();
    let mut number = row.width;
    for step in 0..row.width.div_ceil(lanes) {
        let other = step * lanes + lane;
        if other < row.width {
            let own = f32::cast_from(values[row.first + other]);
            let is_behind = own < value || (own <= value && other > token);
            if is_behind && own > best {
                best = own;
                number = other;
            }
        }
    }
    let highest = row_max(best, lanes);
    // Numbers are whole up to 2²⁴: the least is the largest of their negatives.
    let mut least = 0.0f32 - f32::cast_from(row.width);
    if best >= highest && number < row.width {
        least = 0.0f32 - f32::cast_from(number);
    }
    Place {
        value: highest,
        token: usize::cast_from(0.0f32 - row_max(least, lanes)),
    }
}

#[cube(launch)]
fn sample_kernel<F: Float>(
    logits: &Tensor<F>,
    values: &Tensor<F>,
    words: &Tensor<u32>,
    found: &mut Tensor<f32>,
    top: usize,
    #[comptime] lanes: usize,
    #[comptime] rows: usize,
    #[comptime] searches: u32,
    #[comptime] token_bits: u32,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS_X as usize;
    let number = CUBE_POS * rows + UNIT_POS_Y as usize;
    let inside = number < logits.shape(0);
    let mut width = 0usize;
    let mut word = 0usize;
    if inside {
        width = logits.shape(1);
        word = number * WORDS;
    }
    let temperature = f32::reinterpret(words[word]);
    let mut divisor = 1.0f32;
    if temperature > 0.0f32 {
        divisor = temperature;
    }
    let own = Row {
        first: number * logits.stride(0),
        width,
        largest: 0.0f32,
        temperature: 1.0f32,
        least: 0.0f32,
    };
    // Above every logit.
    let highest = 0.0f32 - LOWEST.runtime();

    // The model's own probabilities.
    let likeliest = next::<F>(logits, &own, highest, 0usize, lanes);
    let mut sum = 0.0f32;
    for step in 0..width.div_ceil(lanes) {
        let token = step * lanes + lane;
        if token < width {
            let value = f32::cast_from(logits[own.first + token]);
            if value > LOWEST.runtime() {
                sum += f32::exp(value - likeliest.value);
            }
        }
    }
    let log_total = f32::ln(row_sum(sum, lanes));

    let first = number * values.stride(0);
    let plain = Row {
        first,
        width,
        largest: 0.0f32,
        temperature: 1.0f32,
        least: 0.0f32,
    };
    let greedy = next::<F>(values, &plain, highest, 0usize, lanes);
    let mut picked = greedy.token;
    if comptime!(searches > 0u32) {
        let row = Row {
            first,
            width,
            largest: greedy.value,
            temperature: divisor,
            least: f32::reinterpret(words[word + 3]),
        };
        let mut key = 0u32;
        let mut token = width;
        if comptime!(searches > 1u32) {
            let most = f32::cast_from(words[word + 1]);
            let of_count = prefix::<F>(
                values, &row, key, token, most, true, true, lanes, token_bits,
            );
            key = of_count.key;
            token = of_count.token;
            let all = mass::<F>(values, &row, key, token, 0u32, width, false, lanes);
            let part = f32::reinterpret(words[word + 2]) * all;
            let of_part = prefix::<F>(
                values, &row, key, token, part, false, true, lanes, token_bits,
            );
            key = of_part.key;
            token = of_part.token;
        }
        let all = mass::<F>(values, &row, key, token, 0u32, width, false, lanes);
        let target = f32::reinterpret(words[word + 4]) * all;
        let drawn = prefix::<F>(
            values, &row, key, token, target, false, false, lanes, token_bits,
        );
        // Rounded, a draw may be all of the weight: then no prefix exceeds it.
        if temperature > 0.0f32 && drawn.key > 0u32 {
            picked = drawn.token;
        }
    }

    let out = number * found.stride(0);
    let half = top + 1;
    if inside && lane == 0 {
        // Without a number as logit there is no likeliest token.
        picked = picked.min(width - 1);
        found[out] = f32::cast_from(picked);
        let value = f32::cast_from(logits[own.first + picked]);
        found[out + half] = value - likeliest.value - log_total;
    }
    let mut value = highest;
    let mut token = 0usize;
    for index in 0..top {
        let place = next::<F>(logits, &own, value, token, lanes);
        value = place.value;
        token = place.token;
        if inside && lane == 0 {
            found[out + 1 + index] = f32::cast_from(token);
            found[out + half + 1 + index] = value - likeliest.value - log_total;
        }
    }
}
