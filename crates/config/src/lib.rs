//! The run configuration of loraloom: YAML, TOML or JSON in, resolved and validated values out.

mod device;
mod resolved;

pub use device::ParseDeviceError;
pub use resolved::{
    AdapterConfig, ColumnMap, DatasetConfig, DeviceChoice, DtypeChoice, EvalSettings, LoraSettings,
    LrSchedulerType, RunConfig, SaveSettings, SchedulerConfig, TrainSettings, Validation,
};
