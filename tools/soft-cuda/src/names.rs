use std::collections::HashMap;

/// Where the registers with a fixed meaning are.
pub const SINK: usize = 0;
pub const THREAD: usize = 1;
pub const THREADS: usize = 4;
pub const BLOCK: usize = 7;
pub const BLOCKS: usize = 10;
pub const LANE: usize = 13;
pub const WARP: usize = 14;
const FIXED: usize = 15;

/// The names of a kernel: registers, labels, and what has an address. Constants are registers that are
/// filled before a warp begins, so that every operand is a register.
#[derive(Debug, Default)]
pub struct Names {
    registers: HashMap<String, usize>,
    constants: HashMap<u64, usize>,
    labels: HashMap<String, usize>,
    symbols: HashMap<String, u64>,
    count: usize,
}

impl Names {
    pub fn new() -> Self {
        Self {
            count: FIXED,
            ..Self::default()
        }
    }

    pub fn symbol(&mut self, name: &str, address: u64) {
        self.symbols.insert(name.to_owned(), address);
    }

    pub fn label(&mut self, name: &str, instruction: usize) {
        self.labels.insert(name.to_owned(), instruction);
    }

    /// # Errors
    /// If there is no such label.
    pub fn target(&self, name: &str) -> Result<usize, String> {
        self.labels
            .get(name)
            .copied()
            .ok_or_else(|| format!("no label {name}"))
    }

    /// Registers, constants among them.
    pub fn registers(&self) -> usize {
        self.count.max(FIXED)
    }

    /// Values that registers have from the beginning.
    pub fn constants(&self) -> Vec<(usize, u64)> {
        self.constants
            .iter()
            .map(|(&value, &register)| (register, value))
            .collect()
    }

    fn next(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    pub fn constant(&mut self, value: u64) -> usize {
        if let Some(&register) = self.constants.get(&value) {
            return register;
        }
        let register = self.next();
        self.constants.insert(value, register);
        register
    }

    /// The register of an operand: a register's name, a number, or a name with an address.
    ///
    /// # Errors
    /// If it is none of them.
    pub fn operand(&mut self, text: &str) -> Result<usize, String> {
        if let Some(register) = special(text)? {
            return Ok(register);
        }
        if text.starts_with('%') {
            if let Some(&register) = self.registers.get(text) {
                return Ok(register);
            }
            let register = self.next();
            self.registers.insert(text.to_owned(), register);
            return Ok(register);
        }
        if let Some(&address) = self.symbols.get(text) {
            return Ok(self.constant(address));
        }
        let value = number(text).ok_or_else(|| format!("unknown operand {text}"))?;
        Ok(self.constant(value))
    }

    /// Base and offset of `[%rd1+16]`, `[name]` and the like.
    ///
    /// # Errors
    /// If it is no address.
    pub fn address(&mut self, text: &str) -> Result<(usize, u64), String> {
        let inside = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        let inside = inside.ok_or_else(|| format!("no address: {text}"))?;
        let (base, offset) = match inside.split_once('+') {
            Some((base, offset)) => {
                let offset = number(offset.trim()).ok_or_else(|| format!("offset {offset}"))?;
                (base.trim(), offset)
            }
            None => (inside.trim(), 0),
        };
        Ok((self.operand(base)?, offset))
    }
}

fn special(text: &str) -> Result<Option<usize>, String> {
    let axis = |base: usize| match text.rsplit('.').next() {
        Some("x") => Some(base),
        Some("y") => Some(base + 1),
        Some("z") => Some(base + 2),
        _ => None,
    };
    Ok(match text.split('.').next().unwrap_or_default() {
        "_" => Some(SINK),
        "%tid" => axis(THREAD),
        "%ntid" => axis(THREADS),
        "%ctaid" => axis(BLOCK),
        "%nctaid" => axis(BLOCKS),
        "%laneid" => Some(LANE),
        "%warpid" => Some(WARP),
        "%clock" | "%clock64" | "%globaltimer" | "%smid" | "%lanemask_lt" | "%lanemask_le"
        | "%lanemask_eq" | "%lanemask_ge" | "%lanemask_gt" => {
            return Err(format!("{text} is not known"));
        }
        _ => None,
    })
}

/// The bits of a number as PTX writes them.
fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(hex) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex.trim_end_matches('U'), 16).ok();
    }
    let text = text.trim_end_matches('U');
    text.parse::<i128>().ok().map(|value| value as u64)
}
