//! Rotary tables against those of transformers.

use std::path::PathBuf;

use loraloom_model::{Checkpoint, LlamaConfig, RopeTable};

/// Of a cosine or sine.
const TOLERANCE: f32 = 1e-6;

/// torch's power of two tensors, which it takes for stretched bases only, is off by one unit in the
/// last place for some frequencies, none of which is above 1.
fn tolerance(name: &str, position: usize) -> f32 {
    let stretched = name == "dynamic-long";
    TOLERANCE
        + if stretched {
            position as f32 * f32::EPSILON
        } else {
            0.0
        }
}

#[test]
fn tables_are_those_of_transformers() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rope");
    let cases = std::fs::read_to_string(fixtures.join("cases.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&cases).unwrap();
    let expected = Checkpoint::open(&fixtures).unwrap();
    assert_eq!(2 * cases.len(), expected.names().count());
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let config = LlamaConfig::from_json(&case["config"].to_string()).unwrap();
        let positions: Vec<usize> = serde_json::from_value(case["positions"].clone()).unwrap();
        let length = positions.last().unwrap() + 1;
        let table = RopeTable::new(&config.rope, length);
        assert_eq!(
            (table.length, table.half_dim),
            (length, config.head_dim / 2)
        );

        let shape = [positions.len(), table.half_dim];
        for (kind, table_values) in [("cos", &table.cos), ("sin", &table.sin)] {
            assert_eq!(table_values.len(), length * table.half_dim);
            let key = format!("{name}.{kind}");
            let rows = expected.expect(&key, &shape).unwrap().to_f32();
            for (position, row) in positions.iter().zip(rows.chunks(table.half_dim)) {
                let found = &table_values[position * table.half_dim..][..table.half_dim];
                for (i, (found, wanted)) in found.iter().zip(row).enumerate() {
                    let error = (found - wanted).abs();
                    assert!(
                        error <= tolerance(name, *position),
                        "{key} position {position} column {i}: {found}, not {wanted} ({error:e})"
                    );
                }
            }
        }
    }
}

#[test]
fn dynamic_scaling_depends_on_the_longest_sequence() {
    let config = r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 32,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}"#;
    let config = LlamaConfig::from_json(config).unwrap();
    let table = |length| RopeTable::new(&config.rope, length);
    assert_eq!(table(32).cos, table(64).cos[..32 * 8]);
    assert_ne!(table(64).cos, table(65).cos[..64 * 8]);
}
