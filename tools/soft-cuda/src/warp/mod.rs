//! The 32 threads of a warp, one instruction after another.

mod execute;
mod memory;

use std::cmp::Reverse;

use crate::{
    instruction::Operation,
    lanes::{LANES, Lanes},
    module::Entry,
    names::{BLOCK, BLOCKS, LANE, THREAD, THREADS, WARP},
};

/// Why a warp stands still.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stop {
    Barrier,
    End,
    /// It went on for long, and others may have to for it to end.
    Turn,
}

/// What the warps of a block share.
pub struct Block<'a> {
    pub entry: &'a Entry,
    pub parameters: &'a [u8],
    pub shared: *mut u8,
    pub shared_bytes: usize,
    pub threads: [u32; 3],
    pub blocks: [u32; 3],
    pub block: [u32; 3],
}

/// Threads that are at the same instruction.
#[derive(Debug, Clone, Copy)]
struct Group {
    at: usize,
    lanes: u32,
    /// It waits there for others.
    waits: bool,
}

pub struct Warp {
    registers: Vec<Lanes>,
    local: Vec<u8>,
    /// The one that runs is the last: whoever is furthest back goes first, and meets the others on the
    /// way or where they wait.
    groups: Vec<Group>,
}

/// Instructions after which others have their turn.
const TURN: usize = 1 << 20;

impl Warp {
    /// Threads `32 * index..` of a block.
    pub fn new(block: &Block<'_>, index: usize) -> Self {
        let entry = block.entry;
        let mut registers = vec![[0; LANES]; entry.registers];
        for &(register, value) in &entry.constants {
            registers[register] = [value; LANES];
        }
        let [width, height, depth] = block.threads.map(|count| count as usize);
        let mut lanes = 0;
        for lane in 0..LANES {
            let thread = index * LANES + lane;
            if thread >= width * height * depth {
                break;
            }
            lanes |= 1 << lane;
            let place = [
                thread % width,
                thread / width % height,
                thread / width / height,
            ];
            for (axis, at) in place.into_iter().enumerate() {
                registers[THREAD + axis][lane] = at as u64;
            }
            registers[LANE][lane] = lane as u64;
            registers[WARP][lane] = index as u64;
        }
        for axis in 0..3 {
            registers[THREADS + axis] = [u64::from(block.threads[axis]); LANES];
            registers[BLOCKS + axis] = [u64::from(block.blocks[axis]); LANES];
            registers[BLOCK + axis] = [u64::from(block.block[axis]); LANES];
        }
        Self {
            registers,
            local: vec![0xff; entry.local_bytes * LANES],
            groups: vec![Group {
                at: 0,
                lanes,
                waits: false,
            }],
        }
    }

    fn live(&self) -> u32 {
        self.groups.iter().fold(0, |all, group| all | group.lanes)
    }

    /// The group furthest back of those that do not wait runs next; groups at one place are one.
    fn regroup(&mut self) -> Result<(), String> {
        self.groups.sort_unstable_by_key(|group| Reverse(group.at));
        self.groups.dedup_by(|next, kept| {
            let meet = next.at == kept.at;
            if meet {
                kept.lanes |= next.lanes;
                kept.waits = false;
            }
            meet
        });
        self.groups.sort_by_key(|group| !group.waits);
        match self.groups.last() {
            Some(group) if group.waits => Err(format!("threads wait apart: {:x?}", self.groups)),
            _ => Ok(()),
        }
    }

    /// The threads that an operation is about, of those that have not ended.
    fn together(&self, operation: &Operation) -> Option<u32> {
        match operation {
            Operation::Barrier
            | Operation::Product(_)
            | Operation::LoadMatrix { .. }
            | Operation::StoreMatrix { .. }
            | Operation::LoadFragment(_)
            | Operation::FragmentProduct(_) => Some(self.live()),
            Operation::Shuffle { members, .. } | Operation::Vote { members, .. } => {
                let lane = self.groups.last()?.lanes.trailing_zeros() as usize;
                Some(self.registers[*members][lane] as u32 & self.live())
            }
            _ => None,
        }
    }

    /// Runs until something stops it.
    ///
    /// # Errors
    /// If an instruction does what the hardware would not.
    pub fn run(&mut self, block: &Block<'_>) -> Result<Stop, String> {
        let code = &block.entry.code;
        for _ in 0..TURN {
            let several = self.groups.len() > 1;
            if several {
                self.regroup()?;
            }
            let Some(&Group { at, lanes: all, .. }) = self.groups.last() else {
                return Ok(Stop::End);
            };
            let Some(instruction) = code.get(at) else {
                return Err("ran off its end".to_owned());
            };
            let mut lanes = all;
            if let Some((predicate, wanted)) = instruction.guard {
                let values = &self.registers[predicate];
                for lane in 0..LANES {
                    if (values[lane] & 1 == 1) != wanted {
                        lanes &= !(1 << lane);
                    }
                }
            }
            if several
                && let Some(wanted) = self.together(&instruction.operation)
                && lanes & wanted != wanted
            {
                self.groups.last_mut().expect("the group that runs").waits = true;
                continue;
            }
            match &instruction.operation {
                Operation::Branch(target) => {
                    let others = all & !lanes;
                    let group = self.groups.last_mut().expect("the group that runs");
                    if others == 0 {
                        group.at = *target;
                    } else {
                        group.at += 1;
                        group.lanes = others;
                        if lanes != 0 {
                            self.groups.push(Group {
                                at: *target,
                                lanes,
                                waits: false,
                            });
                        }
                    }
                    continue;
                }
                Operation::Exit => {
                    let group = self.groups.last_mut().expect("the group that runs");
                    group.at += 1;
                    group.lanes = all & !lanes;
                    if group.lanes == 0 {
                        self.groups.pop();
                    }
                    continue;
                }
                Operation::Barrier => {
                    self.groups.last_mut().expect("the group that runs").at += 1;
                    return Ok(Stop::Barrier);
                }
                _ if lanes == 0 => {}
                operation => self
                    .execute(block, operation, lanes)
                    .map_err(|error| format!("instruction {at}, {operation:?}: {error}"))?,
            }
            self.groups.last_mut().expect("the group that runs").at += 1;
        }
        Ok(Stop::Turn)
    }

    /// Values where the lanes are, and what was there elsewhere.
    fn set(&mut self, register: usize, values: &Lanes, lanes: u32) {
        let target = &mut self.registers[register];
        if lanes == u32::MAX {
            *target = *values;
        } else {
            for lane in 0..LANES {
                if lanes >> lane & 1 == 1 {
                    target[lane] = values[lane];
                }
            }
        }
    }
}
