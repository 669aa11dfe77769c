//! What each instruction does to the registers and memory of a warp.

use super::{
    Block, Warp,
    memory::{read, write},
};
use crate::{
    atomic::{ATOMICS, Atomic},
    instruction::{Operation, Shuffle, Vote},
    lanes::LANES,
    names::SINK,
};

impl Warp {
    pub(super) fn execute(
        &mut self,
        block: &Block<'_>,
        operation: &Operation,
        lanes: u32,
    ) -> Result<(), String> {
        let active = move || (0..LANES).filter(move |lane| lanes >> lane & 1 == 1);
        match operation {
            Operation::Unary(function, target, a) => {
                let values = function(&self.registers[*a]);
                self.set(*target, &values, lanes);
            }
            Operation::Binary(function, target, [a, b]) => {
                let values = function(&self.registers[*a], &self.registers[*b]);
                self.set(*target, &values, lanes);
            }
            Operation::Ternary(function, target, [a, b, c]) => {
                let [a, b, c] = [*a, *b, *c].map(|register| &self.registers[register]);
                let values = function(a, b, c);
                self.set(*target, &values, lanes);
            }
            Operation::Pack(width, target, sources) => {
                let mut values = [0; LANES];
                for (at, &source) in sources.iter().enumerate() {
                    for (value, part) in values.iter_mut().zip(&self.registers[source]) {
                        *value |= (part & ((1 << width) - 1)) << (*width * at as u32);
                    }
                }
                self.set(*target, &values, lanes);
            }
            Operation::Unpack(width, targets, source) => {
                let values = self.registers[*source];
                for (at, &target) in targets.iter().enumerate() {
                    let part =
                        values.map(|value| value >> (*width * at as u32) & ((1 << width) - 1));
                    self.set(target, &part, lanes);
                }
            }
            Operation::Load {
                place,
                bytes,
                signed,
                targets,
            } => {
                for lane in active() {
                    let from = self.pointer(block, *place, lane, bytes * targets.len())?;
                    for (at, &target) in targets.iter().enumerate() {
                        let value = unsafe { read(from.add(at * bytes), *bytes) };
                        let unused = 64 - 8 * *bytes as u32;
                        let value = match signed {
                            true => ((value << unused) as i64 >> unused) as u64,
                            false => value,
                        };
                        self.registers[target][lane] = value;
                    }
                }
            }
            Operation::Store {
                place,
                bytes,
                sources,
            } => {
                for lane in active() {
                    let to = self.pointer(block, *place, lane, bytes * sources.len())?;
                    for (at, &source) in sources.iter().enumerate() {
                        unsafe { write(to.add(at * bytes), *bytes, self.registers[source][lane]) };
                    }
                }
            }
            Operation::CopyAsync {
                target,
                source,
                bytes,
                valid,
            } => {
                for lane in active() {
                    let to = self.pointer(block, *target, lane, *bytes)?;
                    let valid = valid.map_or(*bytes, |at| self.registers[at][lane] as u32 as usize);
                    let valid = valid.min(*bytes);
                    unsafe { to.write_bytes(0, *bytes) };
                    if valid > 0 {
                        let from = self.pointer(block, *source, lane, *bytes)?;
                        unsafe { from.copy_to(to, valid) };
                    }
                }
            }
            Operation::Generic(space, target, source) => {
                for lane in active() {
                    let base = self.base(block, *space, lane);
                    self.registers[*target][lane] = self.registers[*source][lane] + base;
                }
            }
            Operation::Specific(space, target, source) => {
                for lane in active() {
                    let base = self.base(block, *space, lane);
                    self.registers[*target][lane] =
                        self.registers[*source][lane].wrapping_sub(base);
                }
            }
            Operation::Atomic(atomic) => self.atomic(block, atomic, lanes)?,
            Operation::Shuffle {
                how,
                target,
                found,
                value,
                by,
                bounds,
                ..
            } => {
                let values = self.registers[*value];
                for lane in active() {
                    let by = self.registers[*by][lane] as usize & 31;
                    let bounds = self.registers[*bounds][lane] as usize;
                    let (limit, segment) = (bounds & 31, bounds >> 8 & 31);
                    let last = lane & segment | limit & !segment;
                    let (other, inside) = match how {
                        Shuffle::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= last),
                        Shuffle::Down => (lane + by, lane + by <= last),
                        Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
                        Shuffle::Index => {
                            let other = lane & segment | by & !segment;
                            (other, other <= last)
                        }
                    };
                    let from = if inside { other } else { lane };
                    if lanes >> from & 1 == 0 {
                        return Err(format!(
                            "thread {lane} wants what {from} has, which is not here"
                        ));
                    }
                    self.registers[*target][lane] = values[from];
                    self.registers[*found][lane] = u64::from(inside);
                }
            }
            Operation::Vote {
                what,
                target,
                value,
                inverted,
                ..
            } => {
                let values = self.registers[*value];
                let yes = active().filter(|&lane| (values[lane] & 1 == 1) != *inverted);
                let ballot = yes.fold(0u32, |all, lane| all | 1 << lane);
                let result = match what {
                    Vote::Ballot => ballot,
                    Vote::Any => u32::from(ballot != 0),
                    Vote::All => u32::from(ballot == lanes),
                    Vote::Uniform => u32::from(ballot == lanes || ballot == 0),
                };
                self.set(*target, &[u64::from(result); LANES], lanes);
            }
            Operation::ActiveMask(target) => {
                self.set(*target, &[u64::from(lanes); LANES], lanes);
            }
            Operation::Product(product) => {
                whole(lanes)?;
                product.compute(&mut self.registers);
            }
            Operation::FragmentProduct(product) => {
                whole(lanes)?;
                product.compute(&mut self.registers);
            }
            Operation::LoadFragment(transfer) => {
                whole(lanes)?;
                let mut bits = Vec::new();
                let bytes = transfer.fragment.element.bytes();
                for at in self.elements(block, transfer)? {
                    bits.push(unsafe { read(at, bytes) });
                }
                transfer.load(&mut self.registers, &bits);
            }
            Operation::StoreFragment(transfer) => {
                let places = self.elements(block, transfer)?;
                for (element, bits) in transfer.store(&self.registers, lanes) {
                    unsafe { write(places[element], transfer.fragment.element.bytes(), bits) };
                }
            }
            Operation::LoadMatrix {
                targets,
                place,
                transposed,
            } => {
                whole(lanes)?;
                for (matrix, &target) in targets.iter().enumerate() {
                    let mut elements = [[0u16; 8]; 8];
                    for (row, elements) in elements.iter_mut().enumerate() {
                        let from = self.pointer(block, *place, matrix * 8 + row, 16)?;
                        for (at, element) in elements.iter_mut().enumerate() {
                            *element = unsafe { read(from.add(2 * at), 2) } as u16;
                        }
                    }
                    for lane in 0..LANES {
                        let (row, column) = (lane / 4, lane % 4 * 2);
                        let pair = match transposed {
                            false => [elements[row][column], elements[row][column + 1]],
                            true => [elements[column][row], elements[column + 1][row]],
                        };
                        self.registers[target][lane] =
                            u64::from(pair[1]) << 16 | u64::from(pair[0]);
                    }
                }
            }
            Operation::StoreMatrix {
                sources,
                place,
                transposed,
            } => {
                whole(lanes)?;
                for (matrix, &source) in sources.iter().enumerate() {
                    let mut elements = [[0u16; 8]; 8];
                    for lane in 0..LANES {
                        let (row, column) = (lane / 4, lane % 4 * 2);
                        let pair = self.registers[source][lane];
                        for (at, element) in
                            [pair as u16, (pair >> 16) as u16].into_iter().enumerate()
                        {
                            match transposed {
                                false => elements[row][column + at] = element,
                                true => elements[column + at][row] = element,
                            }
                        }
                    }
                    for (row, elements) in elements.iter().enumerate() {
                        let to = self.pointer(block, *place, matrix * 8 + row, 16)?;
                        for (at, &element) in elements.iter().enumerate() {
                            unsafe { write(to.add(2 * at), 2, u64::from(element)) };
                        }
                    }
                }
            }
            Operation::Nothing => {}
            Operation::Branch(_) | Operation::Barrier | Operation::Exit => {
                unreachable!("the threads' way is not theirs to go here")
            }
        }
        Ok(())
    }

    fn atomic(&mut self, block: &Block<'_>, atomic: &Atomic, lanes: u32) -> Result<(), String> {
        let _alone = ATOMICS
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 == 1) {
            let at = self.pointer(block, atomic.place, lane, atomic.bytes)?;
            let old = unsafe { read(at, atomic.bytes) };
            let value = self.registers[atomic.value][lane];
            let compared = atomic
                .compared
                .map_or(0, |register| self.registers[register][lane]);
            let new = (atomic.result)(old, value, compared);
            unsafe { write(at, atomic.bytes, new) };
            if atomic.target != SINK {
                self.registers[atomic.target][lane] = old;
            }
        }
        Ok(())
    }
}

fn whole(lanes: u32) -> Result<(), String> {
    if lanes == u32::MAX {
        Ok(())
    } else {
        Err(format!("only threads {lanes:#x} of a warp"))
    }
}
