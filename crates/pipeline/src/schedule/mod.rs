//! Schedules as data: the list of operations of every stage, in order.
//!
//! A schedule is a function of numbers. The executor runs its lists on devices, and
//! [`simulate`](crate::simulate::simulate) runs the same lists on a clock.
//!
//! Adapters never share gradients, so passes of different groups may be interleaved freely. Only a
//! group's own iterations are ordered: the forward passes of its next iteration wait for its optimizer step.
//! With D stages and N micro-batches an iteration, one group keeps a stage busy for N of the D + N − 1
//! passes of its iteration; LoRAPP fills the rest with other groups. With L groups
//!
//! ```text
//! bubble(LoRAPP) = max{ (D − 1 + N − L·N) / (D + N − 1), 0 }
//! bubble(1F1B) = bubble(GPipe) = (D − 1) / (N + D − 1)
//! ```
//!
//! so with N = 1, L = D groups leave no bubble. LoRAPP for D = 4, L = 4, N = 1 and three iterations, a
//! column per pass, forward passes of groups a to d in small letters, backward passes in capitals:
//!
//! ```text
//! stage 0 |abcd...AaBbCcDdAaBbCcDdA.B.C.D
//! stage 1 |.abc..AdBaCbDcAdBaCbDcAdB.C.D.
//! stage 2 |..ab.AcBdCaDbAcBdCaDbAcBdC.D..
//! stage 3 |...aAbBcCdDaAbBcCdDaAbBcCdD...
//! ```

mod lists;
mod operation;

pub use lists::{PipelineShape, operations};
pub use loraloom_config::Schedule;
pub use operation::Operation;
