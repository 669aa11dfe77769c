//! A thread's addresses as the host's.

use super::{Block, Warp};
use crate::{
    fragment::Transfer,
    instruction::{Place, Space},
};

/// Where `wmma` finds a matrix.
const FRAGMENT_BYTES: usize = 32;

impl Warp {
    /// What a thread's address is on the host.
    pub(super) fn pointer(
        &mut self,
        block: &Block<'_>,
        place: Place,
        lane: usize,
        bytes: usize,
    ) -> Result<*mut u8, String> {
        let address = self.registers[place.base][lane].wrapping_add(place.offset);
        let within = |limit: usize| match (address as usize).checked_add(bytes) {
            Some(end) if end <= limit => Ok(address as usize),
            _ => Err(format!(
                "{bytes} bytes at {address} of {limit}, thread {lane}"
            )),
        };
        if !address.is_multiple_of(bytes as u64) {
            return Err(format!(
                "{bytes} bytes at {address:#x}, which is not aligned"
            ));
        }
        Ok(match place.space {
            Space::Global if address < 4096 => return Err(format!("null, thread {lane}")),
            Space::Global => address as *mut u8,
            Space::Shared => unsafe { block.shared.add(within(block.shared_bytes)?) },
            Space::Parameter => {
                let at = within(block.parameters.len())?;
                unsafe { block.parameters.as_ptr().add(at).cast_mut() }
            }
            Space::Local => {
                let at = within(block.entry.local_bytes)?;
                unsafe {
                    self.local
                        .as_mut_ptr()
                        .add(lane * block.entry.local_bytes + at)
                }
            }
        })
    }

    /// Where a space begins on the host.
    pub(super) fn base(&self, block: &Block<'_>, space: Space, lane: usize) -> u64 {
        match space {
            Space::Shared => block.shared as u64,
            Space::Parameter => block.parameters.as_ptr() as u64,
            Space::Local => self.local.as_ptr() as u64 + (lane * block.entry.local_bytes) as u64,
            Space::Global => 0,
        }
    }

    /// Where the elements of a matrix are.
    pub(super) fn elements(
        &mut self,
        block: &Block<'_>,
        transfer: &Transfer,
    ) -> Result<Vec<*mut u8>, String> {
        let stride = transfer
            .stride
            .map(|register| self.registers[register][0] as u32 as usize);
        let bytes = transfer.fragment.element.bytes();
        let mut place = transfer.place;
        let first = self.pointer(block, place, 0, bytes)?;
        if !(first as usize).is_multiple_of(FRAGMENT_BYTES) {
            let text = format!("a fragment not aligned to {FRAGMENT_BYTES} bytes: {first:?}");
            return Err(text);
        }
        let mut found = Vec::new();
        for offset in transfer.offsets(stride) {
            place.offset = transfer.place.offset.wrapping_add((offset * bytes) as u64);
            found.push(self.pointer(block, place, 0, bytes)?);
        }
        Ok(found)
    }
}

pub(super) unsafe fn read(from: *const u8, bytes: usize) -> u64 {
    unsafe {
        match bytes {
            1 => u64::from(from.read()),
            2 => u64::from(from.cast::<u16>().read_unaligned()),
            4 => u64::from(from.cast::<u32>().read_unaligned()),
            _ => from.cast::<u64>().read_unaligned(),
        }
    }
}

pub(super) unsafe fn write(to: *mut u8, bytes: usize, value: u64) {
    unsafe {
        match bytes {
            1 => to.write(value as u8),
            2 => to.cast::<u16>().write_unaligned(value as u16),
            4 => to.cast::<u32>().write_unaligned(value as u32),
            _ => to.cast::<u64>().write_unaligned(value),
        }
    }
}
