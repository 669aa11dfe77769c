//! `wmma`: matrices that a warp holds in an order which programs do not know. Here it is the order of
//! the rows; where a thread has more registers than its share, they repeat.

use half::{bf16, f16};

use crate::{
    instruction::Place,
    lanes::{LANES, Lanes, f32_of, of_f32},
};

/// Types of elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
}

impl Element {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        if matches!(self, Self::F16 | Self::Bf16) {
            2
        } else {
            4
        }
    }

    fn value(self, bits: u64) -> f32 {
        match self {
            Self::F16 => f16::from_bits(bits as u16).to_f32(),
            Self::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Self::Tf32 => f32::from_bits(bits as u32 & 0xffff_e000),
            Self::F32 => f32_of(bits),
        }
    }

    fn bits(self, value: f32) -> u64 {
        match self {
            Self::F16 => u64::from(f16::from_f32(value).to_bits()),
            Self::Bf16 => u64::from(bf16::from_f32(value).to_bits()),
            Self::Tf32 | Self::F32 => of_f32(value),
        }
    }
}

/// A matrix in registers.
#[derive(Debug)]
pub struct Fragment {
    pub element: Element,
    pub rows: usize,
    pub columns: usize,
    registers: Vec<usize>,
}

impl Fragment {
    /// Registers' parts and the elements in them.
    fn parts(&self) -> impl Iterator<Item = (usize, usize, u32, usize)> {
        let packed = 4 / self.element.bytes();
        let held = self.registers.len() * packed;
        let total = self.rows * self.columns;
        (0..LANES * held).map(move |at| {
            let (lane, part) = (at / held, at % held);
            let register = self.registers[part / packed];
            (register, lane, 16 * (part % packed) as u32, at % total)
        })
    }

    fn matrix(&self, registers: &[Lanes]) -> Vec<f32> {
        let mut matrix = vec![0.0; self.rows * self.columns];
        for (register, lane, shift, element) in self.parts() {
            matrix[element] = self.element.value(registers[register][lane] >> shift);
        }
        matrix
    }

    fn set(&self, registers: &mut [Lanes], matrix: &[f32]) {
        let mask = if self.element.bytes() == 2 {
            0xffff
        } else {
            0xffff_ffff
        };
        for (register, lane, shift, element) in self.parts() {
            let target = &mut registers[register][lane];
            *target = *target & !(mask << shift) | self.element.bits(matrix[element]) << shift;
        }
    }
}

/// Between registers and memory.
#[derive(Debug)]
pub struct Transfer {
    pub fragment: Fragment,
    pub place: Place,
    /// The register with the elements from one row, or column, to the next.
    pub stride: Option<usize>,
    pub by_columns: bool,
}

impl Transfer {
    /// # Errors
    /// If it is not known here.
    pub fn new(
        parts: &[&str],
        registers: Vec<usize>,
        place: Place,
        stride: Option<usize>,
    ) -> Result<Self, String> {
        let unknown = || "unknown fragment".to_owned();
        let element = parts
            .last()
            .and_then(|name| Element::parse(name))
            .ok_or_else(unknown)?;
        let [m, n, k] = shape(parts).ok_or_else(unknown)?;
        let (rows, columns) = match parts[2] {
            "a" => (m, k),
            "b" => (k, n),
            "c" | "d" => (m, n),
            _ => return Err(unknown()),
        };
        let fragment = Fragment {
            element,
            rows,
            columns,
            registers,
        };
        Ok(Self {
            fragment,
            place,
            stride,
            by_columns: parts.contains(&"col"),
        })
    }

    /// Elements from the first one's place, by the matrix's elements.
    pub fn offsets(&self, stride: Option<usize>) -> Vec<usize> {
        let Fragment { rows, columns, .. } = self.fragment;
        let stride = stride.unwrap_or(if self.by_columns { rows } else { columns });
        let of = |at: usize| {
            let (row, column) = (at / self.fragment.columns, at % self.fragment.columns);
            if self.by_columns {
                column * stride + row
            } else {
                row * stride + column
            }
        };
        (0..self.fragment.rows * self.fragment.columns)
            .map(of)
            .collect()
    }

    pub fn load(&self, registers: &mut [Lanes], bits: &[u64]) {
        let element = self.fragment.element;
        // What memory holds is `float32`; tensor cores take fewer bits of it when they multiply.
        let element = if element == Element::Tf32 {
            Element::F32
        } else {
            element
        };
        let matrix: Vec<f32> = bits.iter().map(|&bits| element.value(bits)).collect();
        self.fragment.set(registers, &matrix);
    }

    /// Elements that these threads have, and their bits. Hardware does not say what a part of a warp
    /// stores; CubeCL's measurement of throughput asks for it, and throws it away.
    pub fn store(&self, registers: &[Lanes], lanes: u32) -> Vec<(usize, u64)> {
        let parts = self
            .fragment
            .parts()
            .filter(|&(_, lane, ..)| lanes >> lane & 1 == 1);
        parts
            .map(|(register, lane, shift, element)| (element, registers[register][lane] >> shift))
            .collect()
    }
}

fn shape(parts: &[&str]) -> Option<[usize; 3]> {
    parts.iter().find_map(|part| {
        let (m, rest) = part.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
    })
}

/// `D = A B + C`.
#[derive(Debug)]
pub struct FragmentProduct {
    result: Fragment,
    left: Fragment,
    right: Fragment,
    added: Fragment,
}

impl FragmentProduct {
    /// # Errors
    /// If it is not known here.
    pub fn new(parts: &[&str], registers: Vec<Vec<usize>>) -> Result<Self, String> {
        let unknown = || "unknown product of fragments".to_owned();
        let [result, left, right, added] =
            <[Vec<usize>; 4]>::try_from(registers).map_err(|_| unknown())?;
        let [m, n, k] = shape(parts).ok_or_else(unknown)?;
        let at = parts
            .iter()
            .position(|part| part.starts_with('m') && part.contains('k'));
        let types = &parts[at.ok_or_else(unknown)? + 1..];
        let (d, a, b, c) = match *types {
            [d, c] => (d, "f16", "f16", c),
            [d, a, b, c] => (d, a, b, c),
            _ => return Err(unknown()),
        };
        let fragment = |element: &str, rows, columns, registers| {
            let element = Element::parse(element).ok_or_else(unknown)?;
            Ok::<_, String>(Fragment {
                element,
                rows,
                columns,
                registers,
            })
        };
        Ok(Self {
            result: fragment(d, m, n, result)?,
            left: fragment(a, m, k, left)?,
            right: fragment(b, k, n, right)?,
            added: fragment(c, m, n, added)?,
        })
    }

    pub fn compute(&self, registers: &mut [Lanes]) {
        let (left, right) = (self.left.matrix(registers), self.right.matrix(registers));
        let mut sums = self.added.matrix(registers);
        let (inner, columns) = (self.left.columns, self.right.columns);
        for (sums, left) in sums.chunks_exact_mut(columns).zip(left.chunks_exact(inner)) {
            for (&factor, right) in left.iter().zip(right.chunks_exact(columns)) {
                for (sum, &value) in sums.iter_mut().zip(right) {
                    *sum += factor * value;
                }
            }
        }
        self.result.set(registers, &sums);
    }
}
