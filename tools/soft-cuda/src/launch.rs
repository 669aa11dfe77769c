//! A kernel over a grid of blocks.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::{
    module::Entry,
    warp::{Block, Stop, Warp},
};

/// What a launch asks for.
#[derive(Debug)]
pub struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    /// Beyond what the kernel declares.
    pub shared_bytes: usize,
}

/// Alignment of shared memory.
const ALIGNMENT: usize = 1024;

/// # Errors
/// If a thread does what the hardware would not let it.
pub fn launch(entry: &Entry, grid: &Grid, parameters: &[u8]) -> Result<(), String> {
    let count: usize = grid.blocks.iter().map(|&count| count as usize).product();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            if let Err(error) = block(entry, grid, parameters, index) {
                *failed.lock().expect("no thread panics") = Some(error);
                next.store(count, Ordering::Relaxed);
            }
        }
    };
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(count);
    if threads <= 1 {
        work();
    } else {
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    failed
        .into_inner()
        .expect("no thread panics")
        .map_or(Ok(()), Err)
}

fn block(entry: &Entry, grid: &Grid, parameters: &[u8], index: usize) -> Result<(), String> {
    let [width, height, _] = grid.blocks.map(|count| count as usize);
    let place = [
        index % width,
        index / width % height,
        index / width / height,
    ];
    let shared_bytes = entry
        .shared_bytes
        .max(grid.shared_bytes + entry.shared_bytes);
    let mut memory = vec![0xff; shared_bytes + ALIGNMENT];
    let begin = memory.as_ptr().align_offset(ALIGNMENT);
    let block = Block {
        entry,
        parameters,
        shared: unsafe { memory.as_mut_ptr().add(begin) },
        shared_bytes,
        threads: grid.threads,
        blocks: grid.blocks,
        block: place.map(|at| at as u32),
    };
    let threads: usize = grid.threads.iter().map(|&count| count as usize).product();
    let warps = threads.div_ceil(32);
    let mut warps: Vec<(Warp, Stop)> = (0..warps)
        .map(|index| (Warp::new(&block, index), Stop::Turn))
        .collect();
    loop {
        for (warp, stop) in &mut warps {
            if *stop == Stop::Turn {
                *stop = warp
                    .run(&block)
                    .map_err(|error| format!("block {place:?}: {error}"))?;
            }
        }
        if warps.iter().all(|(_, stop)| *stop == Stop::End) {
            return Ok(());
        }
        // Threads that have ended are not waited for.
        if warps.iter().all(|(_, stop)| *stop != Stop::Turn) {
            for (_, stop) in warps.iter_mut().filter(|(_, stop)| *stop == Stop::Barrier) {
                *stop = Stop::Turn;
            }
        }
    }
}
