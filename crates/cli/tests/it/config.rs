//! `config show`, `config schema`, and configurations that do not load.

use crate::support::Workspace;

const SMALL: &str = "\
model: base
datasets:
  rows: {path: rows.jsonl}
adapters:
  - {name: a, dataset: rows}
";

fn small() -> Workspace {
    let here = Workspace::empty();
    here.write("run.yaml", SMALL);
    here
}

#[test]
fn show_fills_in_every_default_and_loads_back() {
    let here = small();
    let run = here.run(&[
        "config",
        "show",
        "run.yaml",
        "--set",
        "adapters.a.lora.r=64",
    ]);
    insta::assert_snapshot!(run.all());
    here.write("again.yaml", here.with_paths(&run.stdout));
    let again = here.run(&["config", "show", "again.yaml"]);
    assert_eq!(again.stdout, run.stdout);

    let json = here.run(&["config", "show", "again.yaml", "--json"]).json();
    assert_eq!(json["adapters"][0]["lora"]["r"], 64);
}

#[test]
fn schema_describes_the_keys() {
    let schema = small().run(&["config", "schema"]).json();
    for key in ["model", "datasets", "adapters", "defaults"] {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
}

#[test]
fn mistakes_are_shown_with_place_and_hint() {
    let here = small();
    here.write("unknown.yaml", SMALL.replace("model:", "modle:"));
    here.write("syntax.yaml", "adapters: [");
    let sweep = "sweep: [{name: lr, base: b, grid: {lora.r: [8]}}]\n";
    here.write("sweep.yaml", format!("{SMALL}{sweep}"));
    let mut all = String::new();
    for arguments in [
        &["config", "show", "unknown.yaml"][..],
        &["train", "unknown.yaml"],
        &["config", "show", "missing.yaml"],
        &["config", "show", "syntax.yaml"],
        &["config", "show", "sweep.yaml"],
        &["config", "show", "run.yaml", "--set", "adapters.b.lora.r=1"],
        &["config", "show", "run.yaml", "--set", "lora"],
    ] {
        let run = here.run(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{arguments:?}");
        all += &run.after(arguments);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn warnings_are_not_data_and_quiet_silences_them() {
    let here = small();
    here.write(
        "odd.yaml",
        SMALL.replace("adapters:", "  spare: {path: x}\nadapters:"),
    );
    let loud = here.run(&["config", "show", "odd.yaml"]);
    let quiet = here.run(&["-q", "config", "show", "odd.yaml"]);
    assert_eq!(loud.stdout, quiet.stdout);
    insta::assert_snapshot!(loud.stderr, @"warning: no adapter uses dataset `spare`");
    assert_eq!(quiet.stderr, "");
}
