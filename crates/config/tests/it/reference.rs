//! `docs/configuration.md` is generated from the JSON schema.

use std::{env, fmt::Write, fs, path::Path};

use loraloom_config::json_schema;
use serde_json::Value;

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the JSON schema. Change the doc comments in crates/config, then run
     LORALOOM_UPDATE_DOCS=1 cargo test -p loraloom-config reference -->

";

const READING: &str = "\
A configuration is YAML, TOML or JSON, by its extension. `--set KEY=VALUE` on the command line overrides any
key by its dotted path, such as `defaults.train.learning_rate=1e-4` or `adapters.NAME.lora.r=8`. Unknown
keys are errors. A value of `null` leaves a key to its default; an adapter, dataset or sweep itself cannot be null.
`loraloom config show CONFIG` prints a configuration with every default filled in, and `loraloom config schema`
prints the JSON schema, for editors.

";

/// Sections in the order of the page. Others follow as they are found.
const ORDER: [&str; 4] = ["datasets", "adapters", "defaults", "sweep"];

/// A mapping with keys of its own, and the paths at which it may be written.
struct Section<'a> {
    schema: &'a Value,
    paths: Vec<String>,
}

struct Reference<'a> {
    root: &'a Value,
    /// Sections by where their schema is: its name in `$defs`, or its path.
    sections: Vec<(String, Section<'a>)>,
}

impl<'a> Reference<'a> {
    fn new(root: &'a Value) -> Self {
        let mut reference = Self {
            root,
            sections: Vec::new(),
        };
        reference.visit(root, "", String::new());
        reference
    }

    /// The schema that a `$ref`, a nullable schema or a list stands for, its name, and what to append
    /// to the path of its key.
    fn target(&self, schema: &'a Value) -> (&'a Value, Option<&'a str>, &'static str) {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.trim_start_matches("#/$defs/");
            return (&self.root["$defs"][name], Some(name), "");
        }
        if let Some(some) = not_null(schema) {
            return self.target(some);
        }
        if schema["items"].is_object() {
            let (target, name, _) = self.target(&schema["items"]);
            return (target, name, "[]");
        }
        if schema["additionalProperties"].is_object() {
            let (target, name, _) = self.target(&schema["additionalProperties"]);
            return (target, name, ".NAME");
        }
        (schema, None, "")
    }

    fn visit(&mut self, schema: &'a Value, name: &str, path: String) {
        if let Some((_, section)) = self.sections.iter_mut().find(|(known, _)| known == name) {
            section.paths.push(path.clone());
        } else {
            let section = Section {
                schema,
                paths: vec![path.clone()],
            };
            self.sections.push((name.to_owned(), section));
        }
        let mut keys: Vec<&String> = properties(schema).map(|(key, _)| key).collect();
        keys.sort_by_key(|key| {
            ORDER
                .iter()
                .position(|first| first == key)
                .unwrap_or(ORDER.len())
        });
        for key in keys {
            let (target, name, suffix) = self.target(&schema["properties"][key]);
            if let Some(name) = name
                && properties(target).next().is_some()
            {
                self.visit(target, name, joined(&path, &format!("{key}{suffix}")));
            }
        }
    }

    fn page(&self) -> String {
        let mut page = INTRODUCTION.to_owned();
        for (index, (_, section)) in self.sections.iter().enumerate() {
            if index > 0 {
                let paths = section.paths.iter().map(|path| format!("`{path}`"));
                let _ = write!(page, "## {}\n\n", paths.collect::<Vec<_>>().join(", "));
            }
            let _ = write!(page, "{}\n\n", description(section.schema));
            if index == 0 {
                page.push_str(READING);
            }
            self.table(section.schema, &mut page);
            for (key, property) in properties(section.schema) {
                self.values(key, property, &mut page);
            }
        }
        page.truncate(page.trim_end().len());
        page.push('\n');
        page
    }

    fn table(&self, schema: &Value, page: &mut String) {
        page.push_str("| Key | Type | Default | Meaning |\n|---|---|---|---|\n");
        let required = schema["required"].as_array();
        let is_required =
            |key: &str| required.is_some_and(|keys| keys.iter().any(|name| name == key));
        let (first, rest): (Vec<_>, Vec<_>) =
            properties(schema).partition(|(key, _)| is_required(key));
        for (key, property) in first.into_iter().chain(rest) {
            let default = if is_required(key) {
                "required".to_owned()
            } else {
                written(&property["default"])
            };
            let kind = self.kind(property);
            let _ = writeln!(
                page,
                "| `{key}` | {kind} | {default} | {} |",
                description(property).replace('|', "\\|")
            );
        }
        page.push('\n');
    }

    /// The values of a key that has a few, or the keys of a mapping that a key may be, and what they mean.
    fn values(&self, key: &str, property: &Value, page: &mut String) {
        let (target, _, _) = self.target(property);
        let mut lines = String::new();
        for variant in variants(target) {
            let keys = properties(variant).map(|(key, _)| format!("`{key}`"));
            let keys = keys.collect::<Vec<_>>().join(", ");
            let name = match variant["const"].as_str() {
                Some(name) => format!("`{name}`"),
                None if keys.is_empty() => self.kind(variant),
                None => keys,
            };
            if variant["description"].is_string() {
                let _ = writeln!(lines, "- {name}: {}", description(variant));
            }
        }
        if !lines.is_empty() {
            let _ = write!(page, "`{key}`:\n\n{lines}\n");
        }
        let paths = properties(target).filter(|(path, _)| path.contains('.'));
        let paths: Vec<String> = paths.map(|(path, _)| format!("`{path}`")).collect();
        if !paths.is_empty() {
            let _ = write!(page, "`{key}` takes {}.\n\n", paths.join(", "));
        }
    }

    fn kind(&self, schema: &Value) -> String {
        if let Some(some) = not_null(schema) {
            return self.kind(some);
        }
        if schema["$ref"].is_string() {
            return self.kind(self.target(schema).0);
        }
        if let Some(values) = schema["enum"].as_array() {
            let values = values.iter().map(written);
            return values.collect::<Vec<_>>().join(", ");
        }
        let kinds: Vec<String> = variants(schema).map(|variant| self.kind(variant)).collect();
        if variants(schema).all(|variant| variant["const"].is_string()) && !kinds.is_empty() {
            return kinds.join(", ");
        }
        if !kinds.is_empty() {
            let mut kinds = kinds;
            kinds.dedup();
            return kinds.join(" or ");
        }
        if schema["const"].is_string() {
            return written(&schema["const"]);
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null"),
            kind => Some(kind),
        };
        match kind.and_then(Value::as_str) {
            Some("array") => format!("list of {}", plural(&self.kind(&schema["items"]))),
            Some("object") => "mapping".to_owned(),
            Some(kind) => format!("{kind}{}", range(schema)),
            None => "any".to_owned(),
        }
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn plural(kind: &str) -> String {
    match kind.split_once(' ') {
        Some((noun, rest)) => format!("{noun}s {rest}"),
        None => format!("{kind}s"),
    }
}

/// The other alternative of a schema that is one or `null`.
fn not_null(schema: &Value) -> Option<&Value> {
    match schema["anyOf"].as_array()?.as_slice() {
        [some, null] if null["type"] == "null" => Some(some),
        _ => None,
    }
}

fn variants(schema: &Value) -> impl Iterator<Item = &Value> {
    let variants = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    variants.into_iter().flatten()
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn description(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let paragraphs = text
        .split("\n\n")
        .map(|paragraph| paragraph.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// A default; nothing for mappings, which have a section of their own.
fn written(value: &Value) -> String {
    match value {
        Value::Null | Value::Object(_) => String::new(),
        Value::Array(items) if items.is_empty() => String::new(),
        Value::Array(items) => items.iter().map(written).collect::<Vec<_>>().join(", "),
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{text}`"),
        number => format!("`{number}`"),
    }
}

fn range(schema: &Value) -> String {
    let bounds = [
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ];
    let bounds = bounds.iter().filter(|(key, _)| schema[*key].is_number());
    let bounds: Vec<String> = bounds
        .map(|(key, sign)| format!(" {sign} {}", schema[*key]))
        .collect();
    bounds.join(",")
}

#[test]
fn the_configuration_reference_is_the_schemas() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let schema = json_schema();
    let page = Reference::new(&schema).page();
    if env::var_os("LORALOOM_UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/configuration.md is out of date: run LORALOOM_UPDATE_DOCS=1 cargo test -p loraloom-config reference"
    );
}
