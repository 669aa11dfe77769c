//! What a kernel does, step by step.

use crate::{
    atomic::Atomic,
    calculation,
    fragment::{FragmentProduct, Transfer},
    lanes::{Binary, Ternary, Unary, unary},
    matrix::Product,
    names::{Names, SINK},
};

/// One step of a warp.
#[derive(Debug)]
pub struct Instruction {
    pub operation: Operation,
    /// The predicate that a thread needs for it, and its value.
    pub guard: Option<(usize, bool)>,
}

/// Memory that an address is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Space {
    Parameter,
    Shared,
    Local,
    /// The host's addresses.
    Global,
}

/// Where something is in memory.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub space: Space,
    pub base: usize,
    pub offset: u64,
}

/// How `shfl` finds the other thread.
#[derive(Debug, Clone, Copy)]
pub enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What threads of a warp vote about.
#[derive(Debug, Clone, Copy)]
pub enum Vote {
    Any,
    All,
    Ballot,
    Uniform,
}

#[derive(Debug)]
pub enum Operation {
    Unary(Unary, usize, usize),
    Binary(Binary, usize, [usize; 2]),
    Ternary(Ternary, usize, [usize; 3]),
    /// Parts of so many bits into one register.
    Pack(u32, usize, Vec<usize>),
    /// One register into parts of so many bits.
    Unpack(u32, Vec<usize>, usize),
    Load {
        place: Place,
        bytes: usize,
        signed: bool,
        targets: Vec<usize>,
    },
    Store {
        place: Place,
        bytes: usize,
        sources: Vec<usize>,
    },
    /// A shared or local address as one of the host's.
    Generic(Space, usize, usize),
    /// The other way round.
    Specific(Space, usize, usize),
    /// 16 bytes at most from global into shared memory: source's bytes, and zeros for the others.
    CopyAsync {
        target: Place,
        source: Place,
        bytes: usize,
        valid: Option<usize>,
    },
    Atomic(Box<Atomic>),
    Branch(usize),
    Barrier,
    Exit,
    Shuffle {
        how: Shuffle,
        target: usize,
        found: usize,
        value: usize,
        by: usize,
        bounds: usize,
        members: usize,
    },
    Vote {
        what: Vote,
        target: usize,
        value: usize,
        inverted: bool,
        members: usize,
    },
    /// A product of small matrices over a warp.
    Product(Box<Product>),
    LoadFragment(Box<Transfer>),
    StoreFragment(Box<Transfer>),
    FragmentProduct(Box<FragmentProduct>),
    LoadMatrix {
        targets: Vec<usize>,
        place: Place,
        transposed: bool,
    },
    StoreMatrix {
        sources: Vec<usize>,
        place: Place,
        transposed: bool,
    },
    ActiveMask(usize),
    Nothing,
}

/// What stands between commas, brackets and braces kept whole.
fn operands(text: &str) -> Vec<&str> {
    let (mut found, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    let last = text[begin..].trim();
    if !last.is_empty() {
        found.push(last);
    }
    found
}

/// The registers of `{%r1, %r2}`, or of one by itself.
fn vector(text: &str, names: &mut Names) -> Result<Vec<usize>, String> {
    match text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'))
    {
        Some(list) => list
            .split(',')
            .map(|name| names.operand(name.trim()))
            .collect(),
        None => Ok(vec![names.operand(text)?]),
    }
}

fn bits(kind: &str) -> Option<u32> {
    match kind {
        "pred" => Some(1),
        "f16x2" | "bf16x2" => Some(32),
        "bf16" => Some(16),
        "tf32" => Some(32),
        _ => kind.strip_prefix(['b', 'u', 's', 'f'])?.parse().ok(),
    }
}

fn space(parts: &[&str]) -> Space {
    let has = |name: &str| {
        parts
            .iter()
            .any(|part| part.split("::").next() == Some(name))
    };
    match () {
        () if has("param") => Space::Parameter,
        () if has("shared") => Space::Shared,
        () if has("local") => Space::Local,
        () => Space::Global,
    }
}

impl Instruction {
    /// # Errors
    /// If it is not known here.
    pub fn parse(statement: &str, names: &mut Names) -> Result<Self, String> {
        let parsed = Self::known(statement, names);
        parsed.map_err(|error| format!("`{statement}`: {error}"))
    }

    fn known(statement: &str, names: &mut Names) -> Result<Self, String> {
        let (guard, rest) = match statement.strip_prefix('@') {
            Some(guarded) => {
                let (name, rest) = guarded
                    .split_once(char::is_whitespace)
                    .ok_or("no operation")?;
                let guard = match name.strip_prefix('!') {
                    Some(name) => (names.operand(name)?, false),
                    None => (names.operand(name)?, true),
                };
                (Some(guard), rest.trim())
            }
            None => (None, statement),
        };
        let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let parts: Vec<&str> = name.split('.').collect();
        let operation = operation(&parts, &operands(rest), names)?;
        Ok(Self { operation, guard })
    }
}

fn operation(parts: &[&str], texts: &[&str], names: &mut Names) -> Result<Operation, String> {
    let has = |part: &str| parts.contains(&part);
    let kind = parts.last().copied().unwrap_or_default();
    let text = |index: usize| texts.get(index).copied().ok_or("too few operands");
    let place = |names: &mut Names, space: Space, text: &str| -> Result<Place, String> {
        let (base, offset) = names.address(text)?;
        Ok(Place {
            space,
            base,
            offset,
        })
    };
    Ok(match parts[0] {
        "ret" | "exit" => Operation::Exit,
        "bra" => Operation::Branch(names.target(text(0)?)?),
        "bar" | "barrier" if has("warp") => Operation::Nothing,
        "bar" | "barrier" if has("sync") && !has("cluster") => Operation::Barrier,
        // Everything is in order here, and copies have happened when they are asked for.
        "membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep" | "griddepcontrol" => {
            Operation::Nothing
        }
        "cp" if has("commit_group") || has("wait_group") || has("wait_all") => Operation::Nothing,
        "cp" if has("async") && !has("bulk") => {
            let target = place(names, Space::Shared, text(0)?)?;
            let source = place(names, Space::Global, text(1)?)?;
            let bytes = text(2)?.parse().map_err(|_| "a size that varies")?;
            let valid = texts.get(3).map(|valid| names.operand(valid)).transpose()?;
            Operation::CopyAsync {
                target,
                source,
                bytes,
                valid,
            }
        }
        "ld" | "ldu" => {
            let targets = vector(text(0)?, names)?;
            let place = place(names, space(parts), text(1)?)?;
            let bytes = bits(kind).ok_or("unknown type")? as usize / 8;
            Operation::Load {
                place,
                bytes,
                signed: kind.starts_with('s'),
                targets,
            }
        }
        "st" => {
            let place = place(names, space(parts), text(0)?)?;
            let sources = vector(text(1)?, names)?;
            let bytes = bits(kind).ok_or("unknown type")? as usize / 8;
            Operation::Store {
                place,
                bytes,
                sources,
            }
        }
        "mov" if text(0)?.starts_with('{') => {
            let targets = vector(text(0)?, names)?;
            let width = bits(kind).ok_or("unknown type")? / targets.len() as u32;
            Operation::Unpack(width, targets, names.operand(text(1)?)?)
        }
        "mov" if text(1)?.starts_with('{') => {
            let sources = vector(text(1)?, names)?;
            let width = bits(kind).ok_or("unknown type")? / sources.len() as u32;
            Operation::Pack(width, names.operand(text(0)?)?, sources)
        }
        "mov" => Operation::Unary(
            unary!(|a| a),
            names.operand(text(0)?)?,
            names.operand(text(1)?)?,
        ),
        "cvta" => {
            let (target, source) = (names.operand(text(0)?)?, names.operand(text(1)?)?);
            match (space(parts), has("to")) {
                (Space::Global, _) => Operation::Unary(unary!(|a| a), target, source),
                (space, false) => Operation::Generic(space, target, source),
                (space, true) => Operation::Specific(space, target, source),
            }
        }
        "shfl" => {
            let how = match () {
                () if has("up") => Shuffle::Up,
                () if has("down") => Shuffle::Down,
                () if has("bfly") => Shuffle::Butterfly,
                () => Shuffle::Index,
            };
            let (target, found) = match text(0)?.split_once('|') {
                Some((target, found)) => (names.operand(target)?, names.operand(found)?),
                None => (names.operand(text(0)?)?, SINK),
            };
            let [value, by, bounds] = [text(1)?, text(2)?, text(3)?].map(|at| names.operand(at));
            let members = names.operand(text(4)?)?;
            let (value, by, bounds) = (value?, by?, bounds?);
            Operation::Shuffle {
                how,
                target,
                found,
                value,
                by,
                bounds,
                members,
            }
        }
        "vote" => {
            let what = match () {
                () if has("ballot") => Vote::Ballot,
                () if has("any") => Vote::Any,
                () if has("all") => Vote::All,
                () => Vote::Uniform,
            };
            let target = names.operand(text(0)?)?;
            let inverted = text(1)?.starts_with('!');
            let value = names.operand(text(1)?.trim_start_matches('!'))?;
            let members = names.operand(text(2)?)?;
            Operation::Vote {
                what,
                target,
                value,
                inverted,
                members,
            }
        }
        "activemask" => Operation::ActiveMask(names.operand(text(0)?)?),
        "mma" => {
            let fragments: Result<Vec<_>, _> = texts.iter().map(|at| vector(at, names)).collect();
            Operation::Product(Box::new(Product::new(parts, fragments?)?))
        }
        "wmma" if has("mma") => {
            let fragments: Result<Vec<_>, _> = texts.iter().map(|at| vector(at, names)).collect();
            Operation::FragmentProduct(Box::new(FragmentProduct::new(parts, fragments?)?))
        }
        "wmma" => {
            let load = has("load");
            let (registers, address) = if load {
                (text(0)?, text(1)?)
            } else {
                (text(1)?, text(0)?)
            };
            let registers = vector(registers, names)?;
            let place = place(names, space(parts), address)?;
            let stride = texts
                .get(2)
                .map(|stride| names.operand(stride))
                .transpose()?;
            let transfer = Box::new(Transfer::new(parts, registers, place, stride)?);
            if load {
                Operation::LoadFragment(transfer)
            } else {
                Operation::StoreFragment(transfer)
            }
        }
        "ldmatrix" => {
            let targets = vector(text(0)?, names)?;
            let place = place(names, Space::Shared, text(1)?)?;
            if !has("m8n8") {
                return Err("unknown shape".to_owned());
            }
            Operation::LoadMatrix {
                targets,
                place,
                transposed: has("trans"),
            }
        }
        "stmatrix" => {
            let place = place(names, Space::Shared, text(0)?)?;
            let sources = vector(text(1)?, names)?;
            if !has("m8n8") {
                return Err("unknown shape".to_owned());
            }
            Operation::StoreMatrix {
                sources,
                place,
                transposed: has("trans"),
            }
        }
        "atom" | "red" => {
            let target = if parts[0] == "atom" {
                names.operand(text(0)?)?
            } else {
                SINK
            };
            let at = usize::from(parts[0] == "atom");
            let place = place(names, space(parts), text(at)?)?;
            let value = names.operand(text(at + 1)?)?;
            let compared = texts
                .get(at + 2)
                .map(|text| names.operand(text))
                .transpose()?;
            Operation::Atomic(Box::new(Atomic::new(
                parts, target, place, value, compared,
            )?))
        }
        _ => return calculation::parse(parts, texts, names),
    })
}
