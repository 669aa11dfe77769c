//! `atom` and `red`: reading and writing memory at once.

use std::sync::Mutex;

use crate::{
    instruction::Place,
    lanes::{f32_of, of_f32},
};

/// Blocks run beside each other, and all atomics are one at a time.
pub static ATOMICS: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Atomic {
    pub target: usize,
    pub place: Place,
    pub value: usize,
    pub compared: Option<usize>,
    pub bytes: usize,
    /// What is there afterwards: from what was there, the value, and what it is compared with.
    pub result: fn(u64, u64, u64) -> u64,
}

impl Atomic {
    /// # Errors
    /// If it is not known here.
    pub fn new(
        parts: &[&str],
        target: usize,
        place: Place,
        value: usize,
        compared: Option<usize>,
    ) -> Result<Self, String> {
        let kind = *parts.last().ok_or("no type")?;
        let operations = ["add", "min", "max", "and", "or", "xor", "exch", "cas"];
        let name = parts.iter().find(|part| operations.contains(part));
        let name = *name.ok_or("unknown operation")?;
        let result: fn(u64, u64, u64) -> u64 = match (name, kind) {
            ("add", "f32") => |old, value, _| of_f32(f32_of(old) + f32_of(value)),
            ("add", "u32" | "s32" | "u64" | "s64") => |old, value, _| old.wrapping_add(value),
            ("min", "u32") => |old, value, _| u64::from((old as u32).min(value as u32)),
            ("max", "u32") => |old, value, _| u64::from((old as u32).max(value as u32)),
            ("min", "s32") => |old, value, _| (old as i32).min(value as i32) as u64,
            ("max", "s32") => |old, value, _| (old as i32).max(value as i32) as u64,
            ("and", _) => |old, value, _| old & value,
            ("or", _) => |old, value, _| old | value,
            ("xor", _) => |old, value, _| old ^ value,
            ("exch", _) => |_, value, _| value,
            ("cas", "b32") => |old, compared, value| {
                if old as u32 == compared as u32 {
                    value
                } else {
                    old
                }
            },
            ("cas", "b64") => |old, compared, value| if old == compared { value } else { old },
            _ => return Err(format!("{name} of {kind}")),
        };
        let bytes = if kind.ends_with("64") { 8 } else { 4 };
        Ok(Self {
            target,
            place,
            value,
            compared,
            bytes,
            result,
        })
    }
}
