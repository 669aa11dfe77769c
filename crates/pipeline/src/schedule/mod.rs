//! Schedules as data: for every stage, the operations it runs, in order.
//!
//! A schedule is a function of numbers only. The executor runs its lists on devices,
//! [`simulate`](crate::simulate::simulate) runs them on a clock; both see the same lists.
//!
//! Adapters never share gradients, so passes of different groups may be interleaved freely. Only a
//! group's own steps are ordered: the forward passes of its next step wait for its optimizer step.
//! With D stages and N micro-batches a step, one group keeps a stage busy for N of the D + N − 1
//! passes its step takes; LoRAPP fills the rest with other groups. With L groups
//!
//! ```text
//! bubble(LoRAPP) = max{ (D − 1 + N − L·N) / (D + N − 1), 0 }
//! bubble(1F1B) = bubble(GPipe) = (D − 1) / (N + D − 1)
//! ```
//!
//! so N = 1 needs L = D groups for none. LoRAPP for D = 4, L = 4, N = 1 and three steps, a column a
//! pass, forward passes of groups a to d in small letters, backward passes in capitals:
//!
//! ```text
//! stage 0 |abcd...AaBbCcDdAaBbCcDdA.B.C.D
//! stage 1 |.abc..AdBaCbDcAdBaCbDcAdB.C.D.
//! stage 2 |..ab.AcBdCaDbAcBdCaDbAcBdC.D..
//! stage 3 |...aAbBcCdDaAbBcCdDaAbBcCdD...
//! ```

mod gpipe;
mod kind;
mod lorapp;
mod one_f_one_b;
mod operation;
mod shape;
mod slots;

pub use kind::Schedule;
pub use operation::Operation;
pub use shape::PipelineShape;
