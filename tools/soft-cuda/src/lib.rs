//! A CUDA driver without a GPU. A program that finds this `libcuda.so` has as many CUDA devices as
//! `SOFT_CUDA_DEVICES` says; their kernels' PTX is interpreted on the CPU, a warp at a time.

mod arithmetic;
mod atomic;
mod calculation;
mod comparison;
mod conversion;
mod copy;
mod cublas;
mod device;
mod driver;
mod fragment;
mod instruction;
mod lanes;
mod launch;
mod matrix;
mod memory;
mod module;
mod names;
mod nccl;
mod order;
mod warp;

#[cfg(test)]
mod tests;
