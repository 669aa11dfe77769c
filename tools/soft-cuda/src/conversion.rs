//! `cvt`: one type of number as another.

use half::{bf16, f16};

use crate::lanes::{Binary, Unary, binary, f32_of, f64_of, of_f32, of_f64, unary};

/// To and from any type, by way of `float64`, which holds every value of the smaller types.
macro_rules! from {
    ($from:expr, |$x:ident| $to:expr) => {
        match $from {
            "f32" => Some(unary!(|a| {
                let $x = f64::from(f32_of(a));
                $to
            })),
            "f64" => Some(unary!(|a| {
                let $x = f64_of(a);
                $to
            })),
            "f16" => Some(unary!(|a| {
                let $x = f16::from_bits(a as u16).to_f64();
                $to
            })),
            "bf16" => Some(unary!(|a| {
                let $x = bf16::from_bits(a as u16).to_f64();
                $to
            })),
            _ => None,
        }
    };
    ($from:expr, int |$x:ident| $to:expr) => {
        match $from {
            "s8" => Some(unary!(|a| {
                let $x = a as i8;
                $to
            })),
            "u8" => Some(unary!(|a| {
                let $x = a as u8;
                $to
            })),
            "s16" => Some(unary!(|a| {
                let $x = a as i16;
                $to
            })),
            "u16" => Some(unary!(|a| {
                let $x = a as u16;
                $to
            })),
            "s32" => Some(unary!(|a| {
                let $x = a as i32;
                $to
            })),
            "u32" => Some(unary!(|a| {
                let $x = a as u32;
                $to
            })),
            "s64" => Some(unary!(|a| {
                let $x = a as i64;
                $to
            })),
            "u64" => Some(unary!(|a| {
                let $x = a;
                $to
            })),
            _ => None,
        }
    };
}

fn of_bf16(value: f32) -> u64 {
    u64::from(bf16::from_f32(value).to_bits())
}

fn of_f16(value: f32) -> u64 {
    u64::from(f16::from_f32(value).to_bits())
}

/// `float32` with the 10 bits of mantissa that tensor cores take, ties away from zero.
fn tf32(value: f32) -> u64 {
    u64::from((value.to_bits() + 0x1000) & 0xffff_e000)
}

pub fn parse(parts: &[&str]) -> Option<Unary> {
    let [.., to, from] = *parts else { return None };
    let rounding = parts[1];
    let float = |kind: &str| kind.contains('f');
    if parts == ["cvt", "sat", "f32", "f32"] {
        // What is no number is 0.
        return Some(unary!(|a| match f32_of(a) {
            value if value > 0.0 => of_f32(value.min(1.0)),
            _ => 0,
        }));
    }
    // What no closure knows how to clamp or round is refused rather than computed wrong.
    let unknown = ["sat", "relu", "rz", "rm", "rp"];
    if unknown.iter().any(|word| parts.contains(word)) {
        return None;
    }
    match (to, from) {
        ("f32", "bf16") => Some(unary!(|a| (a & 0xffff) << 16)),
        ("f32", "f16") => Some(unary!(|a| of_f32(f16::from_bits(a as u16).to_f32()))),
        ("bf16", "f32") => Some(unary!(|a| of_bf16(f32_of(a)))),
        ("f16", "f32") => Some(unary!(|a| of_f16(f32_of(a)))),
        ("tf32", "f32") => Some(unary!(|a| tf32(f32_of(a)))),
        ("f32", "f32") => match rounding {
            "rni" => Some(unary!(|a| of_f32(f32_of(a).round_ties_even()))),
            "rzi" => Some(unary!(|a| of_f32(f32_of(a).trunc()))),
            "rmi" => Some(unary!(|a| of_f32(f32_of(a).floor()))),
            "rpi" => Some(unary!(|a| of_f32(f32_of(a).ceil()))),
            _ => None,
        },
        ("f64", _) if float(from) => from!(from, |x| of_f64(x)),
        ("f32", _) if float(from) => from!(from, |x| of_f32(x as f32)),
        ("f16", _) if float(from) => from!(from, |x| u64::from(f16::from_f64(x).to_bits())),
        ("bf16", _) if float(from) => from!(from, |x| u64::from(bf16::from_f64(x).to_bits())),
        ("f64", _) => from!(from, int | x | of_f64(x as f64)),
        ("f32", _) => from!(from, int | x | of_f32(x as f32)),
        ("f16", _) => from!(from, int | x | of_f16(x as f32)),
        ("bf16", _) => from!(from, int | x | of_bf16(x as f32)),
        (_, _) if float(from) => to_integer(to, from, rounding),
        (_, _) => match bits(to)? {
            8 => from!(from, int | x | x as u8 as u64),
            16 => from!(from, int | x | x as u16 as u64),
            32 => from!(from, int | x | x as u32 as u64),
            _ => from!(from, int | x | x as u64),
        },
    }
}

/// A float as an integer, held to the integer's range.
fn to_integer(to: &str, from: &str, rounding: &str) -> Option<Unary> {
    macro_rules! rounded {
        ($type:ty) => {
            match rounding {
                "rzi" => from!(from, |x| x.trunc() as $type as u64),
                "rni" => from!(from, |x| x.round_ties_even() as $type as u64),
                "rmi" => from!(from, |x| x.floor() as $type as u64),
                "rpi" => from!(from, |x| x.ceil() as $type as u64),
                _ => None,
            }
        };
    }
    match to {
        "s8" => rounded!(i8),
        "u8" => rounded!(u8),
        "s16" => rounded!(i16),
        "u16" => rounded!(u16),
        "s32" => rounded!(i32),
        "u32" => rounded!(u32),
        "s64" => rounded!(i64),
        "u64" => rounded!(u64),
        _ => None,
    }
}

fn bits(kind: &str) -> Option<u32> {
    kind.strip_prefix(['s', 'u', 'b'])?.parse().ok()
}

/// Two `float32` as the halves of one register, the first one's the upper.
pub fn of_two(parts: &[&str]) -> Option<Binary> {
    match *parts {
        [_, "rn", "bf16x2", "f32"] => {
            Some(binary!(|a, b| of_bf16(f32_of(a)) << 16 | of_bf16(f32_of(b))))
        }
        [_, "rn", "f16x2", "f32"] => {
            Some(binary!(|a, b| of_f16(f32_of(a)) << 16 | of_f16(f32_of(b))))
        }
        _ => None,
    }
}
