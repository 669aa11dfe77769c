//! `setp`: a predicate from two values.

use half::{bf16, f16};

use crate::{
    instruction::Operation,
    lanes::{Binary, binary, f32_of, f64_of},
    names::Names,
};

/// # Errors
/// If it is not known here.
pub fn parse(parts: &[&str], texts: &[&str], names: &mut Names) -> Result<Operation, String> {
    let kind = *parts.last().ok_or("no type")?;
    if parts[0] != "setp" || texts[0].contains('|') {
        return Err("unknown comparison".to_owned());
    }
    let compare = compared(parts[1], kind).ok_or("unknown comparison")?;
    let target = names.operand(texts[0])?;
    let [a, b] = [names.operand(texts[1])?, names.operand(texts[2])?];
    match parts[2] {
        "and" | "or" | "xor" => Err("a comparison with a third operand".to_owned()),
        _ => Ok(Operation::Binary(compare, target, [a, b])),
    }
}

/// A comparison by its name, ordered unless it ends in `u`.
macro_rules! by_name {
    ($name:expr, $of:expr, float) => {
        match $name {
            "eq" => Some(binary!(|a, b| u64::from($of(a) == $of(b)))),
            "ne" => Some(binary!(|a, b| u64::from(
                $of(a) < $of(b) || $of(a) > $of(b)
            ))),
            "lt" => Some(binary!(|a, b| u64::from($of(a) < $of(b)))),
            "le" => Some(binary!(|a, b| u64::from($of(a) <= $of(b)))),
            "gt" => Some(binary!(|a, b| u64::from($of(a) > $of(b)))),
            "ge" => Some(binary!(|a, b| u64::from($of(a) >= $of(b)))),
            "equ" => Some(binary!(|a, b| u64::from(
                !($of(a) < $of(b) || $of(a) > $of(b))
            ))),
            "neu" => Some(binary!(|a, b| u64::from($of(a) != $of(b)))),
            "ltu" => Some(binary!(|a, b| u64::from(!($of(a) >= $of(b))))),
            "leu" => Some(binary!(|a, b| u64::from(!($of(a) > $of(b))))),
            "gtu" => Some(binary!(|a, b| u64::from(!($of(a) <= $of(b))))),
            "geu" => Some(binary!(|a, b| u64::from(!($of(a) < $of(b))))),
            "num" => Some(binary!(|a, b| u64::from(
                !$of(a).is_nan() && !$of(b).is_nan()
            ))),
            "nan" => Some(binary!(|a, b| u64::from(
                $of(a).is_nan() || $of(b).is_nan()
            ))),
            _ => None,
        }
    };
    ($name:expr, $type:ty) => {
        match $name {
            "eq" => Some(binary!(|a, b| u64::from(a as $type == b as $type))),
            "ne" => Some(binary!(|a, b| u64::from(a as $type != b as $type))),
            "lt" | "lo" => Some(binary!(|a, b| u64::from((a as $type) < b as $type))),
            "le" | "ls" => Some(binary!(|a, b| u64::from(a as $type <= b as $type))),
            "gt" | "hi" => Some(binary!(|a, b| u64::from(a as $type > b as $type))),
            "ge" | "hs" => Some(binary!(|a, b| u64::from(a as $type >= b as $type))),
            _ => None,
        }
    };
}

fn f16_of(bits: u64) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

fn bf16_of(bits: u64) -> f32 {
    bf16::from_bits(bits as u16).to_f32()
}

fn compared(name: &str, kind: &str) -> Option<Binary> {
    match kind {
        "f32" => by_name!(name, f32_of, float),
        "f64" => by_name!(name, f64_of, float),
        "f16" => by_name!(name, f16_of, float),
        "bf16" => by_name!(name, bf16_of, float),
        "s16" => by_name!(name, i16),
        "u16" | "b16" => by_name!(name, u16),
        "s32" => by_name!(name, i32),
        "u32" | "b32" => by_name!(name, u32),
        "s64" => by_name!(name, i64),
        "u64" | "b64" => by_name!(name, u64),
        _ => None,
    }
}
