//! What `add`, `fma`, `shl` and their like compute, by the parts of the operation's name.

use half::{bf16, f16};

use crate::lanes::{
    Binary, Ternary, Unary, binary, f32_of, f64_of, of_f32, of_f64, ternary, unary,
};

fn f16_of(bits: u64) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

fn of_f16(value: f32) -> u64 {
    u64::from(f16::from_f32(value).to_bits())
}

fn bf16_of(bits: u64) -> f32 {
    bf16::from_bits(bits as u16).to_f32()
}

fn of_bf16(value: f32) -> u64 {
    u64::from(bf16::from_f32(value).to_bits())
}

/// The smaller, or the one that is a number.
fn smaller(a: f32, b: f32) -> f32 {
    a.min(b)
}

fn larger(a: f32, b: f32) -> f32 {
    a.max(b)
}

/// `value` as a `float32` that is no larger.
fn down(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) > value {
        nearest.next_down()
    } else {
        nearest
    }
}

/// Whether the name asks for a rounding other than to the nearest, or for a result held to [0, 1].
fn is_odd(parts: &[&str]) -> bool {
    ["rz", "rm", "rp", "sat", "relu"]
        .iter()
        .any(|odd| parts.contains(odd))
}

/// Every kind of number that `a` op `b` is the same formula for. Two `float16` and the like are
/// computed in `float32`, whose rounding to the smaller type again is exact for +, - and ×.
macro_rules! on_floats {
    ($kind:expr, $macro:ident, |$($x:ident),+| $body:expr) => {
        match $kind {
            "f32" => Some($macro!(|$($x),+| { $(let $x = f32_of($x);)+ of_f32($body) })),
            "f64" => Some($macro!(|$($x),+| { $(let $x = f64_of($x) as f64;)+ of_f64($body) })),
            _ => on_small_floats!($kind, $macro, |$($x),+| $body),
        }
    };
}

macro_rules! on_small_floats {
    ($kind:expr, $macro:ident, |$($x:ident),+| $body:expr) => {
        match $kind {
            "f16" => Some($macro!(|$($x),+| { $(let $x = f16_of($x);)+ of_f16($body) })),
            "bf16" => Some($macro!(|$($x),+| { $(let $x = bf16_of($x);)+ of_bf16($body) })),
            "f16x2" => Some($macro!(|$($x),+| {
                let low = { $(let $x = f16_of($x & 0xffff);)+ of_f16($body) };
                let high = { $(let $x = f16_of($x >> 16 & 0xffff);)+ of_f16($body) };
                high << 16 | low
            })),
            "bf16x2" => Some($macro!(|$($x),+| {
                let low = { $(let $x = bf16_of($x & 0xffff);)+ of_bf16($body) };
                let high = { $(let $x = bf16_of($x >> 16 & 0xffff);)+ of_bf16($body) };
                high << 16 | low
            })),
            _ => None,
        }
    };
}

macro_rules! on_integers {
    ($kind:expr, $macro:ident, |$($x:ident),+| $body:expr) => {
        match $kind {
            "s16" => Some($macro!(|$($x),+| { $(let $x = $x as i16;)+ let result = $body; result as u64 })),
            "u16" | "b16" => Some($macro!(|$($x),+| { $(let $x = $x as u16;)+ let result = $body; result as u64 })),
            "s32" => Some($macro!(|$($x),+| { $(let $x = $x as i32;)+ let result = $body; result as u64 })),
            "u32" | "b32" => Some($macro!(|$($x),+| { $(let $x = $x as u32;)+ let result = $body; result as u64 })),
            "s64" => Some($macro!(|$($x),+| { $(let $x = $x as i64;)+ let result = $body; result as u64 })),
            "u64" | "b64" => Some($macro!(|$($x),+| { let result = $body; result as u64 })),
            _ => None,
        }
    };
}

/// The upper half of a product, or the whole of twice the width.
macro_rules! product {
    ($kind:expr, $wide:expr) => {
        match ($kind, $wide) {
            ("s16", true) => Some(binary!(|a, b| (a as i16 as i32 * b as i16 as i32) as u64)),
            ("u16", true) => Some(binary!(|a, b| u64::from(a as u16) * u64::from(b as u16))),
            ("s32", true) => Some(binary!(|a, b| (a as i32 as i64 * b as i32 as i64) as u64)),
            ("u32", true) => Some(binary!(|a, b| u64::from(a as u32) * u64::from(b as u32))),
            ("s32", false) => Some(binary!(
                |a, b| (a as i32 as i64 * b as i32 as i64 >> 32) as u64
            )),
            ("u32", false) => Some(binary!(
                |a, b| u64::from(a as u32) * u64::from(b as u32) >> 32
            )),
            ("s64", false) => Some(binary!(
                |a, b| (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64
            )),
            ("u64", false) => Some(binary!(|a, b| (u128::from(a) * u128::from(b) >> 64) as u64)),
            _ => None,
        }
    };
}

pub fn of_one(parts: &[&str]) -> Option<Unary> {
    let kind = *parts.last()?;
    match parts[0] {
        "not" if kind == "pred" => Some(unary!(|a| a ^ 1)),
        "not" => Some(unary!(|a| !a)),
        "neg" => match kind {
            "f16" | "bf16" => Some(unary!(|a| a ^ 0x8000)),
            "f16x2" | "bf16x2" => Some(unary!(|a| a ^ 0x8000_8000)),
            "f32" => Some(unary!(|a| a ^ 0x8000_0000)),
            "f64" => Some(unary!(|a| a ^ 1 << 63)),
            _ => Some(unary!(|a| a.wrapping_neg())),
        },
        "abs" => match kind {
            "f16" | "bf16" => Some(unary!(|a| a & 0x7fff)),
            "f16x2" | "bf16x2" => Some(unary!(|a| a & 0x7fff_7fff)),
            "f32" => Some(unary!(|a| a & 0x7fff_ffff)),
            "f64" => Some(unary!(|a| a & !(1 << 63))),
            "s16" => Some(unary!(|a| (a as i16).wrapping_abs() as u64)),
            "s32" => Some(unary!(|a| (a as i32).wrapping_abs() as u64)),
            "s64" => Some(unary!(|a| (a as i64).wrapping_abs() as u64)),
            _ => None,
        },
        "sqrt" => on_floats!(kind, unary, |a| a.sqrt()),
        "rsqrt" => on_floats!(kind, unary, |a| 1.0 / a.sqrt()),
        "rcp" => on_floats!(kind, unary, |a| 1.0 / a),
        "ex2" => on_floats!(kind, unary, |a| a.exp2()),
        "lg2" => on_floats!(kind, unary, |a| a.log2()),
        "sin" => on_floats!(kind, unary, |a| a.sin()),
        "cos" => on_floats!(kind, unary, |a| a.cos()),
        "tanh" => on_floats!(kind, unary, |a| a.tanh()),
        "popc" if kind == "b32" => Some(unary!(|a| u64::from((a as u32).count_ones()))),
        "popc" => Some(unary!(|a| u64::from(a.count_ones()))),
        "clz" if kind == "b32" => Some(unary!(|a| u64::from((a as u32).leading_zeros()))),
        "clz" => Some(unary!(|a| u64::from(a.leading_zeros()))),
        "brev" if kind == "b32" => Some(unary!(|a| u64::from((a as u32).reverse_bits()))),
        "brev" => Some(unary!(|a| a.reverse_bits())),
        _ => None,
    }
}

pub fn of_two(parts: &[&str]) -> Option<Binary> {
    let kind = *parts.last()?;
    if is_odd(parts) {
        return None;
    }
    let float = kind.contains('f');
    match parts[0] {
        "add" if float => on_floats!(kind, binary, |a, b| a + b),
        "sub" if float => on_floats!(kind, binary, |a, b| a - b),
        "mul" if float => on_floats!(kind, binary, |a, b| a * b),
        "div" if float => on_floats!(kind, binary, |a, b| a / b),
        "min" if kind == "f64" => Some(binary!(|a, b| of_f64(f64_of(a).min(f64_of(b))))),
        "max" if kind == "f64" => Some(binary!(|a, b| of_f64(f64_of(a).max(f64_of(b))))),
        "min" if kind == "f32" => Some(binary!(|a, b| of_f32(smaller(f32_of(a), f32_of(b))))),
        "max" if kind == "f32" => Some(binary!(|a, b| of_f32(larger(f32_of(a), f32_of(b))))),
        "min" if float => on_small_floats!(kind, binary, |a, b| smaller(a, b)),
        "max" if float => on_small_floats!(kind, binary, |a, b| larger(a, b)),
        "copysign" if kind == "f32" => Some(binary!(|a, b| b & 0x7fff_ffff | a & 0x8000_0000)),
        "add" => Some(binary!(|a, b| a.wrapping_add(b))),
        "sub" => Some(binary!(|a, b| a.wrapping_sub(b))),
        "mul" if parts.contains(&"wide") => product!(kind, true),
        "mul" if parts.contains(&"hi") => product!(kind, false),
        "mul" => Some(binary!(|a, b| a.wrapping_mul(b))),
        // The hardware's quotient by zero has no meaning; it is no trap either.
        "div" => on_integers!(kind, binary, |a, b| if b == 0 {
            !0
        } else {
            a.wrapping_div(b)
        }),
        "rem" => on_integers!(kind, binary, |a, b| if b == 0 {
            a
        } else {
            a.wrapping_rem(b)
        }),
        "min" => on_integers!(kind, binary, |a, b| a.min(b)),
        "max" => on_integers!(kind, binary, |a, b| a.max(b)),
        "and" => Some(binary!(|a, b| a & b)),
        "or" => Some(binary!(|a, b| a | b)),
        "xor" => Some(binary!(|a, b| a ^ b)),
        // Shifts beyond the width leave nothing, or the sign.
        "shl" => match kind {
            "b16" => Some(binary!(|a, b| u64::from(
                (a as u16).checked_shl(b as u32).unwrap_or(0)
            ))),
            "b32" => Some(binary!(|a, b| u64::from(
                (a as u32).checked_shl(b as u32).unwrap_or(0)
            ))),
            _ => Some(binary!(|a, b| a.checked_shl(b as u32).unwrap_or(0))),
        },
        "shr" => match kind {
            "s16" => Some(binary!(|a, b| (a as i16 >> (b as u32).min(15)) as u64)),
            "s32" => Some(binary!(|a, b| (a as i32 >> (b as u32).min(31)) as u64)),
            "s64" => Some(binary!(|a, b| (a as i64 >> (b as u32).min(63)) as u64)),
            "b16" | "u16" => Some(binary!(|a, b| u64::from(
                (a as u16).checked_shr(b as u32).unwrap_or(0)
            ))),
            "b32" | "u32" => Some(binary!(|a, b| u64::from(
                (a as u32).checked_shr(b as u32).unwrap_or(0)
            ))),
            _ => Some(binary!(|a, b| a.checked_shr(b as u32).unwrap_or(0))),
        },
        _ => None,
    }
}

pub fn of_three(parts: &[&str]) -> Option<Ternary> {
    let kind = *parts.last()?;
    if parts == ["fma", "rm", "f32"] {
        return Some(ternary!(|a, b, c| {
            let product = f64::from(f32_of(a)) * f64::from(f32_of(b));
            of_f32(down(product + f64::from(f32_of(c))))
        }));
    }
    if is_odd(parts) {
        return None;
    }
    match parts[0] {
        "fma" | "mad" if kind == "f64" => Some(ternary!(|a, b, c| of_f64(
            f64_of(a).mul_add(f64_of(b), f64_of(c))
        ))),
        "fma" | "mad" if kind == "f32" => Some(ternary!(|a, b, c| of_f32(
            f32_of(a).mul_add(f32_of(b), f32_of(c))
        ))),
        // In `float64` the product is exact and the sum as good as.
        "fma" if kind == "f16" || kind == "f16x2" || kind == "bf16" || kind == "bf16x2" => {
            on_small_floats!(kind, ternary, |a, b, c| {
                (f64::from(a) * f64::from(b) + f64::from(c)) as f32
            })
        }
        "mad" if parts.contains(&"wide") => match kind {
            "s32" => Some(ternary!(|a, b, c| {
                (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
            })),
            "u32" => Some(ternary!(|a, b, c| {
                (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
            })),
            "s16" => Some(ternary!(|a, b, c| {
                (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u64
            })),
            "u16" => Some(ternary!(|a, b, c| {
                (u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c as u32) as u64
            })),
            _ => None,
        },
        "mad" if parts.contains(&"hi") && kind == "u32" => Some(ternary!(|a, b, c| {
            (u64::from(a as u32) * u64::from(b as u32) >> 32).wrapping_add(c)
        })),
        "mad" if parts.contains(&"lo") => {
            Some(ternary!(|a, b, c| a.wrapping_mul(b).wrapping_add(c)))
        }
        "selp" => Some(ternary!(|a, b, c| if c & 1 == 1 { a } else { b })),
        "bfe" if kind == "u32" => Some(ternary!(|a, b, c| {
            let (start, width) = (b as u32 & 0xff, c as u32 & 0xff);
            let shifted = u64::from(a as u32).checked_shr(start).unwrap_or(0);
            shifted & 1u64.checked_shl(width).unwrap_or(0).wrapping_sub(1)
        })),
        "bfe" if kind == "u64" => Some(ternary!(|a, b, c| {
            let (start, width) = (b as u32 & 0xff, c as u32 & 0xff);
            let shifted = a.checked_shr(start).unwrap_or(0);
            shifted & 1u64.checked_shl(width).unwrap_or(0).wrapping_sub(1)
        })),
        "shf" if parts.contains(&"wrap") && parts.contains(&"l") => Some(ternary!(|a, b, c| {
            let both = u64::from(b as u32) << 32 | u64::from(a as u32);
            both << (c & 31) >> 32
        })),
        "shf" if parts.contains(&"wrap") => Some(ternary!(|a, b, c| {
            let both = u64::from(b as u32) << 32 | u64::from(a as u32);
            both >> (c & 31) & 0xffff_ffff
        })),
        "prmt" if kind == "b32" => Some(ternary!(|a, b, c| {
            let both = u64::from(b as u32) << 32 | u64::from(a as u32);
            let byte = |at: u32| {
                let selector = c >> (4 * at) & 0xf;
                let byte = both >> (8 * (selector & 7)) & 0xff;
                let sign = if byte & 0x80 == 0 { 0 } else { 0xff };
                if selector & 8 == 0 { byte } else { sign }
            };
            byte(3) << 24 | byte(2) << 16 | byte(1) << 8 | byte(0)
        })),
        _ => None,
    }
}
