//! `mma`: a product of small matrices that the threads of a warp hold together. Which thread has which
//! element is told in the PTX manual, "Matrix fragments for mma.m16n8k16" and the like.

use half::{bf16, f16};

use crate::lanes::{LANES, Lanes, f32_of, of_f32};

/// Types of the factors.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    F16,
    Bf16,
    Tf32,
}

/// Types of sums.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sum {
    F32,
    F16,
}

const ROWS: usize = 16;
const COLUMNS: usize = 8;

#[derive(Debug)]
pub struct Product {
    kind: Kind,
    inner: usize,
    sum: Sum,
    result: Vec<usize>,
    left: Vec<usize>,
    right: Vec<usize>,
    added: Vec<usize>,
}

impl Product {
    /// # Errors
    /// If it is not known here.
    pub fn new(parts: &[&str], fragments: Vec<Vec<usize>>) -> Result<Self, String> {
        let unknown = || "unknown product of matrices".to_owned();
        let [result, left, right, added] =
            <[Vec<usize>; 4]>::try_from(fragments).map_err(|_| unknown())?;
        let [.., d, a, b, c] = *parts else {
            return Err(unknown());
        };
        let kind = match (a, b) {
            ("f16", "f16") => Kind::F16,
            ("bf16", "bf16") => Kind::Bf16,
            ("tf32", "tf32") => Kind::Tf32,
            _ => return Err(unknown()),
        };
        let sum = match (d, c) {
            ("f32", "f32") => Sum::F32,
            ("f16", "f16") => Sum::F16,
            _ => return Err(unknown()),
        };
        let inner = parts
            .iter()
            .find_map(|part| part.strip_prefix("m16n8k")?.parse().ok());
        let inner = inner.ok_or_else(unknown)?;
        Ok(Self {
            kind,
            inner,
            sum,
            result,
            left,
            right,
            added,
        })
    }

    /// Elements of a fragment of factors that a register holds.
    fn packed(&self) -> usize {
        if self.kind == Kind::Tf32 { 1 } else { 2 }
    }

    fn factor(&self, register: &Lanes, lane: usize, part: usize) -> f32 {
        let bits = register[lane] >> (16 * part);
        match self.kind {
            Kind::F16 => f16::from_bits(bits as u16).to_f32(),
            Kind::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Kind::Tf32 => f32::from_bits(bits as u32 & 0xffff_e000),
        }
    }

    /// Row and column of a thread's element of the left factor.
    fn left_place(&self, lane: usize, element: usize) -> (usize, usize) {
        let (group, within) = (lane / 4, lane % 4);
        match self.kind {
            Kind::Tf32 => (group + 8 * (element % 2), within + 4 * (element / 2)),
            _ => {
                let row = group + 8 * (element / 2 % 2);
                (row, within * 2 + element % 2 + 8 * (element / 4))
            }
        }
    }

    /// The same of the right factor.
    fn right_place(&self, lane: usize, element: usize) -> (usize, usize) {
        let (group, within) = (lane / 4, lane % 4);
        match self.kind {
            Kind::Tf32 => (within + 4 * element, group),
            _ => (within * 2 + element % 2 + 8 * (element / 2), group),
        }
    }

    pub fn compute(&self, registers: &mut [Lanes]) {
        let packed = self.packed();
        let mut left = [[0.0f32; 16]; ROWS];
        let mut right = [[0.0f32; COLUMNS]; 16];
        for lane in 0..LANES {
            for element in 0..self.left.len() * packed {
                let (row, column) = self.left_place(lane, element);
                let register = &registers[self.left[element / packed]];
                left[row][column] = self.factor(register, lane, element % packed);
            }
            for element in 0..self.right.len() * packed {
                let (row, column) = self.right_place(lane, element);
                let register = &registers[self.right[element / packed]];
                right[row][column] = self.factor(register, lane, element % packed);
            }
        }
        let mut product = [[0.0f32; COLUMNS]; ROWS];
        for (row, sums) in product.iter_mut().enumerate() {
            for inner in 0..self.inner {
                let factor = left[row][inner];
                for (sum, value) in sums.iter_mut().zip(&right[inner]) {
                    *sum += factor * value;
                }
            }
        }
        for lane in 0..LANES {
            for element in 0..4 {
                let row = lane / 4 + 8 * (element / 2);
                let column = lane % 4 * 2 + element % 2;
                let value = product[row][column];
                match self.sum {
                    Sum::F32 => {
                        let added = f32_of(registers[self.added[element]][lane]);
                        registers[self.result[element]][lane] = of_f32(added + value);
                    }
                    Sum::F16 => {
                        let (register, shift) = (element / 2, 16 * (element % 2));
                        let added = registers[self.added[register]][lane] >> shift;
                        let sum = f16::from_bits(added as u16).to_f32() + value;
                        let bits = u64::from(f16::from_f32(sum).to_bits()) << shift;
                        let target = &mut registers[self.result[register]][lane];
                        *target = *target & !(0xffff << shift) | bits;
                    }
                }
            }
        }
    }
}
