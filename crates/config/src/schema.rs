//! The JSON schema of a configuration file, for editors.

use crate::file::RunFile;

/// The JSON schema (draft 2020-12) of a configuration file.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(RunFile).to_value()
}
