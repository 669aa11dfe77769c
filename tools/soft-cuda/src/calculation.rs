//! What a thread computes from its registers alone.

use crate::{arithmetic, comparison, conversion, instruction::Operation, names::Names};

/// Reads a statement of that kind; its target comes first.
pub fn parse(parts: &[&str], texts: &[&str], names: &mut Names) -> Result<Operation, String> {
    let target = texts.first().ok_or("no target")?;
    if parts[0] == "setp" || parts[0] == "set" {
        return comparison::parse(parts, texts, names);
    }
    let target = names.operand(target)?;
    let sources: Result<Vec<_>, _> = texts[1..].iter().map(|text| names.operand(text)).collect();
    let sources = sources?;
    let unknown = || "unknown operation".to_owned();
    Ok(match sources[..] {
        [a] => {
            let function = match parts[0] {
                "cvt" => conversion::parse(parts),
                _ => arithmetic::of_one(parts),
            };
            Operation::Unary(function.ok_or_else(unknown)?, target, a)
        }
        [a, b] => {
            // Two values in the halves of one register.
            let function = match parts[0] {
                "cvt" => conversion::of_two(parts),
                _ => arithmetic::of_two(parts),
            };
            Operation::Binary(function.ok_or_else(unknown)?, target, [a, b])
        }
        [a, b, c] => {
            let function = arithmetic::of_three(parts).ok_or_else(unknown)?;
            Operation::Ternary(function, target, [a, b, c])
        }
        _ => return Err(unknown()),
    })
}
