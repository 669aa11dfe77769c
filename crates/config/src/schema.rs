//! The JSON schema of a configuration file, for editors.

use crate::file::RunFile;

/// The JSON schema (draft 2020-12) of a configuration file, with every key this version serves.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(RunFile).to_value()
}
