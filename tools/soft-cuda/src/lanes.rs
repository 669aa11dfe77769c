//! Values of a warp's 32 threads.

/// Threads of a warp.
pub const LANES: usize = 32;

/// One register of all threads of a warp: whatever its type is, in the low bits.
pub type Lanes = [u64; LANES];

pub type Unary = fn(&Lanes) -> Lanes;
pub type Binary = fn(&Lanes, &Lanes) -> Lanes;
pub type Ternary = fn(&Lanes, &Lanes, &Lanes) -> Lanes;

/// A function of one thread's value as one of a warp's values. Each closure becomes a loop of its own,
/// which the compiler turns into vector instructions.
macro_rules! unary {
    (|$a:ident| $body:expr) => {{
        let function: $crate::lanes::Unary = |left| {
            std::array::from_fn(|lane| {
                let $a = left[lane];
                $body
            })
        };
        function
    }};
}

macro_rules! binary {
    (|$a:ident, $b:ident| $body:expr) => {{
        let function: $crate::lanes::Binary = |left, right| {
            std::array::from_fn(|lane| {
                let ($a, $b) = (left[lane], right[lane]);
                $body
            })
        };
        function
    }};
}

macro_rules! ternary {
    (|$a:ident, $b:ident, $c:ident| $body:expr) => {{
        let function: $crate::lanes::Ternary = |left, right, third| {
            std::array::from_fn(|lane| {
                let ($a, $b, $c) = (left[lane], right[lane], third[lane]);
                $body
            })
        };
        function
    }};
}

pub(crate) use {binary, ternary, unary};

pub fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub fn of_f32(value: f32) -> u64 {
    u64::from(value.to_bits())
}

pub fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub fn of_f64(value: f64) -> u64 {
    value.to_bits()
}
