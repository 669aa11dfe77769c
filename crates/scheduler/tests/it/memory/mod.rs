//! What the memory model promises, on devices that take what mLoRA's Eq. 5 says, with noise, in pages.

mod accuracy;
mod admission;
mod degenerate;
mod high_water;
mod learnt;
mod out_of_memory;
mod simulated;
