//! The text of a PTX module, taken apart.

use std::{collections::HashMap, sync::Arc};

use crate::{instruction::Instruction, names::Names};

/// A module's kernels by name.
pub struct Module {
    entries: HashMap<String, Arc<Entry>>,
}

/// A parameter of a kernel.
#[derive(Debug)]
struct Parameter {
    offset: usize,
    bytes: usize,
}

/// A kernel.
#[derive(Debug)]
pub struct Entry {
    pub name: String,
    parameters: Vec<Parameter>,
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes of shared memory that a block declares; what a launch adds begins behind.
    pub shared_bytes: usize,
    /// Bytes of memory of each thread.
    pub local_bytes: usize,
    /// Registers that begin with a value.
    pub constants: Vec<(usize, u64)>,
    pub code: Vec<Instruction>,
}

impl Entry {
    /// The parameters' bytes, as kernels read them.
    ///
    /// # Safety
    /// Every pointer leads to a value as long as its parameter.
    pub unsafe fn values(&self, pointers: *const *const u8) -> Vec<u8> {
        let end = |parameter: &Parameter| parameter.offset + parameter.bytes;
        let mut values = vec![0; self.parameters.iter().map(end).max().unwrap_or(0)];
        for (index, parameter) in self.parameters.iter().enumerate() {
            let source = unsafe { *pointers.add(index) };
            let value = unsafe { std::slice::from_raw_parts(source, parameter.bytes) };
            values[parameter.offset..end(parameter)].copy_from_slice(value);
        }
        values
    }
}

impl Module {
    /// # Errors
    /// If something in the text is not known here.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = statements(text);
        tokens.reverse();
        let mut module = Vec::new();
        let mut entries = HashMap::new();
        while let Some(statement) = tokens.pop() {
            if statement.contains(".entry") {
                let entry = entry(&statement, &mut tokens, &module)?;
                entries.insert(entry.name.clone(), Arc::new(entry));
            } else if statement.contains(".func") {
                // What is left of functions that kernels have taken in; calls are not known.
                skip(&mut tokens);
            } else if let Some(array) = Array::parse(&statement)? {
                module.push(array);
            }
        }
        Ok(Self { entries })
    }

    pub fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.get(name)
    }
}

/// Statements without comments: what ends in `;`, and labels, braces and headers by themselves.
fn statements(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut statement = String::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let directive = [
            ".version",
            ".target",
            ".address_size",
            ".file",
            ".loc",
            ".section",
        ];
        let first = line.split_whitespace().next().unwrap_or_default();
        if directive.contains(&first) {
            continue;
        }
        for character in line.chars() {
            let vector = statement.contains(['[', '{']) || !statement.is_empty();
            match character {
                ';' => found.push(std::mem::take(&mut statement)),
                // Braces of a vector of registers stand inside a statement, those of a scope do not.
                '{' if is_header(&statement) || !vector => {
                    if !statement.is_empty() {
                        found.push(std::mem::take(&mut statement));
                    }
                    found.push("{".to_owned());
                }
                '}' if statement.is_empty() => found.push("}".to_owned()),
                ':' if !statement.contains(char::is_whitespace) => {
                    statement.push(':');
                    found.push(std::mem::take(&mut statement));
                }
                _ if character.is_whitespace() && statement.is_empty() => {}
                _ => statement.push(character),
            }
        }
        if !statement.is_empty() {
            statement.push(' ');
        }
    }
    found
        .iter()
        .map(|statement| statement.trim().to_owned())
        .collect()
}

fn is_header(statement: &str) -> bool {
    statement.contains(".entry") || statement.contains(".func")
}

/// Leaves a body out.
fn skip(statements: &mut Vec<String>) {
    let mut depth = 0;
    while let Some(statement) = statements.pop() {
        match statement.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

/// Memory with a name.
#[derive(Debug, Clone)]
struct Array {
    space: Space,
    name: String,
    alignment: usize,
    bytes: usize,
    values: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Space {
    Shared,
    Local,
    Global,
}

impl Array {
    /// `.shared .align 16 .b8 name[64]` and the like.
    fn parse(statement: &str) -> Result<Option<Self>, String> {
        let (declaration, values) = match statement.split_once('=') {
            Some((declaration, values)) => (declaration, values),
            None => (statement, ""),
        };
        let words: Vec<&str> = declaration.split_whitespace().collect();
        let has = |word| words.contains(&word);
        let space = match () {
            () if has(".shared") => Space::Shared,
            () if has(".local") => Space::Local,
            () if has(".global") || has(".const") => Space::Global,
            () => return Ok(None),
        };
        let unknown = || format!("unknown declaration: {statement}");
        let alignment = words.iter().position(|&word| word == ".align");
        let alignment = alignment
            .and_then(|at| words.get(at + 1)?.parse().ok())
            .unwrap_or(8);
        let type_at = words.iter().position(|word| size_of_type(word).is_some());
        let type_at = type_at.ok_or_else(unknown)?;
        let element = size_of_type(words[type_at]).ok_or_else(unknown)?;
        let name: String = words[type_at + 1..].concat();
        let (name, count) = match name.split_once('[') {
            Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap_or(0)),
            None => (name.as_str(), 1),
        };
        let numbers = values.trim().trim_matches(['{', '}']).split(',');
        let mut bytes = Vec::new();
        for number in numbers.map(str::trim).filter(|number| !number.is_empty()) {
            let number: i128 = number.parse().map_err(|_| unknown())?;
            bytes.extend_from_slice(&number.to_le_bytes()[..element]);
        }
        Ok(Some(Self {
            space,
            name: name.to_owned(),
            alignment,
            bytes: element * count,
            values: bytes,
        }))
    }
}

/// Bytes of `.b32` and the like.
fn size_of_type(word: &str) -> Option<usize> {
    let bits = word
        .strip_prefix(".")
        .and_then(|word| word.strip_prefix(['b', 'u', 's', 'f']))?;
    bits.parse::<usize>().ok().map(|bits| bits / 8)
}

fn aligned(offset: usize, alignment: usize) -> usize {
    offset.next_multiple_of(alignment.max(1))
}

/// A kernel from its header on.
fn entry(header: &str, statements: &mut Vec<String>, module: &[Array]) -> Result<Entry, String> {
    let after = header.split(".entry").nth(1).unwrap_or_default();
    let (name, rest) = after.split_once('(').ok_or("a kernel without parameters")?;
    let list = rest.split(')').next().unwrap_or_default();
    let mut names = Names::new();
    let (mut parameters, mut end) = (Vec::new(), 0);
    for parameter in list
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        let unknown = || format!("unknown parameter: {parameter}");
        let element = words
            .iter()
            .find_map(|word| size_of_type(word))
            .ok_or_else(unknown)?;
        let last = words.last().ok_or_else(unknown)?;
        let (parameter, count) = match last.split_once('[') {
            Some((name, count)) => (
                name,
                count.trim_end_matches(']').parse().map_err(|_| unknown())?,
            ),
            None => (*last, 1),
        };
        let align = words
            .iter()
            .position(|&word| word == ".align" && !words.contains(&".ptr"));
        let align = align
            .and_then(|at| words[at + 1].parse().ok())
            .unwrap_or(element);
        let offset = aligned(end, align);
        let bytes = element * count;
        names.symbol(parameter, offset as u64);
        parameters.push(Parameter { offset, bytes });
        end = offset + bytes;
    }

    let (mut shared, mut local) = (0, 0);
    let mut place = |array: &Array, names: &mut Names| {
        let end = match array.space {
            Space::Shared => &mut shared,
            Space::Local => &mut local,
            Space::Global => {
                // Constants live as long as their module, which is for ever.
                let mut values = array.values.clone();
                values.resize(array.bytes, 0);
                let memory = Vec::leak(aligned_bytes(&values, array.alignment));
                names.symbol(&array.name, memory.as_ptr() as u64);
                return;
            }
        };
        let offset = aligned(*end, array.alignment);
        names.symbol(&array.name, offset as u64);
        *end = offset + array.bytes;
    };
    // What the launch adds (an array of no length) begins behind all others.
    let (fixed, open): (Vec<&Array>, Vec<&Array>) =
        module.iter().partition(|array| array.bytes > 0);
    for array in fixed {
        place(array, &mut names);
    }

    let mut code = Vec::new();
    let mut depth = 0;
    let mut body = Vec::new();
    while let Some(statement) = statements.pop() {
        match statement.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => {
                if let Some(array) = Array::parse(&statement)? {
                    place(&array, &mut names);
                } else if let Some(label) = statement.strip_suffix(':') {
                    names.label(label, body.len());
                } else if depth > 0 && !statement.starts_with('.') {
                    body.push(statement);
                }
            }
        }
    }
    for array in open {
        place(array, &mut names);
    }
    for statement in &body {
        code.push(Instruction::parse(statement, &mut names)?);
    }
    Ok(Entry {
        name: name.trim().to_owned(),
        parameters,
        registers: names.registers(),
        shared_bytes: shared,
        local_bytes: local,
        constants: names.constants(),
        code,
    })
}

/// These bytes where `alignment` wants them; 16 is the most that anybody asks for.
fn aligned_bytes(values: &[u8], alignment: usize) -> Vec<u8> {
    debug_assert!(alignment <= 16, "the allocator aligns to 16");
    let mut memory = Vec::with_capacity(values.len().max(64));
    memory.extend_from_slice(values);
    memory
}
