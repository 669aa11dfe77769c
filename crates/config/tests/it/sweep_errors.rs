//! Every mistake a sweep can have, in the words its author reads.

use crate::support::{GOOD, load, plain, report};

#[test]
fn sweeps_that_cannot_be() {
    let lines = [
        "sweep: 3",
        "sweep: {name: lr}",
        "sweep: [lr]",
        "sweep: [{name: lr}]",
        "sweep: [{grid: {lora.r: [1]}}]",
        "sweep: [{name: lr, bse: a, grid: {lora.r: [1]}}]",
        "sweep: [{name: lr, base: c, grid: {lora.r: [1]}}]",
        "sweep: [{name: lr, grid: 3}]",
        "sweep: [{name: lr, grid: [lora.r]}]",
        "sweep: [{name: lr, grid: {}}]",
        "sweep: [{name: lr, grid: {lora.r: []}}]",
        "sweep: [{name: lr, grid: {lora.r: 8}}]",
        "sweep: [{name: lr, grid: {lora.r: [8, many]}}]",
        "sweep: [{name: lr, grid: {lora.r: [8, 0]}}]",
        "sweep: [{name: lr, base: b, grid: {train.learning_rate: [1e-4, -1]}}]",
        "sweep: [{name: lr, grid: {lora.r: [8, 16, 8]}}]",
        "sweep: [{name: lr, grid: {train.learning_rate: [1, 1.0]}}]",
        "sweep: [{name: lr, grid: {lora.target_modules: [q_prj]}}]",
        "sweep: [{name: lr, grid: {lora.target_modules: [[q_proj, v_proj], o_proj, [v_proj, q_proj]]}}]",
        "sweep: [{name: lr, grid: {lora.target_modules: [all-linear, [v_proj, q_proj, k_proj, o_proj, gate_proj, up_proj, down_proj]]}}]",
        "sweep: [{name: lr, grid: {lora.target_modules: [[qkv_proj, o_proj, gate_up_proj, down_proj], all-linear]}}]",
        "sweep: [{name: lr, grid: {lora.r: [8], lora: {r: [16]}}}]",
        "sweep: [{name: lr, grid: {train.lerning_rate: [1e-4]}}]",
        "sweep: [{name: lr, grid: {train.lr: [1e-4]}}]",
        "sweep: [{name: lr, grid: {learning_rate: [1e-4]}}]",
        "sweep: [{name: lr, grid: {lora: {rank: [8]}}}]",
        "sweep: [{name: lr, grid: {name: [x]}}]",
        "sweep: [{name: lr, grid: {seed: [1, 2]}}]",
        "sweep: [{name: lr, grid: {train: {shuffle: [true]}}}]",
        "sweep: [{name: lr, base: a, grid: {init_from: [x], lora.r: [8]}}]",
        "sweep: [{name: ../lr, grid: {lora.r: [8]}}]",
        "sweep: [{name: s, grid: {lora.r: [8]}}, {name: S, grid: {lora.r: [4]}}]",
        "sweep: [{name: s, adapters: [a]}, {name: t, adapters: [a]}]",
        "sweep: [{name: s, adapters: []}]",
        "sweep: [{name: s, adapters: [a, a]}]",
        "sweep: [{name: s, adapters: [a, c]}]",
        "sweep: [{name: s, adapters: [a], grid: {lora.r: [8]}}]",
        "sweep: [{name: s, adapters: [a], base: b}]",
    ]
    .map(|line| format!("model: base\n{line}"));
    let mut edits: Vec<_> = lines
        .iter()
        .map(|text| ("model: base", text.as_str()))
        .collect();
    let clash = "- name: s-r8\nsweep: [{name: s, grid: {lora.r: [8]}}]\nseed: 1";
    edits.push(("- name: a\n  - name: b\n    lora:\n      r: 8", clash));
    let begins = "init_from: x\nsweep: [{name: s, base: b, grid: {lora.r: [8]}}]";
    edits.push(("lora:\n      r: 8", begins));
    edits.push(("  - name: b\n", "  - name: b\n    seed: 3\n  - name: c\n"));
    let (other_rows, good) = (edits.pop().expect("an edit"), edits);
    let text = report(&good);
    insta::assert_snapshot!(text);

    let text = GOOD.replacen(other_rows.0, other_rows.1, 1);
    let error = load(
        &format!("{text}sweep: [{{name: s, adapters: [c, b]}}]\n"),
        &[],
    );
    insta::assert_snapshot!(plain(&error.unwrap_err()), @"run.yaml:16:33: `sweep[0].adapters[1]`: `b` and `c` differ in `seed`: adapters of a sweep train on the same rows in the same order");
}

#[test]
fn early_stopping_that_cannot_be() {
    let lines = [
        "{}",
        "{grace_period: 0}",
        "{grace_period: many}",
        "{grace_steps: 10}",
        "{grace_period: 10, eta: 3}",
        "{grace_period: 10, reduction_factor: 1}",
        "{grace_period: 10, metric: loss}",
        "{grace_period: 10, metric: eval_loss}",
        "{grace_period: 10, metric: eval_rewards/margins}",
        "{grace_period: 10, divergence: 1}",
        "{grace_period: 10, divergence: .inf}",
        "true",
    ]
    .map(|stopping| {
        format!(
            "model: base\nsweep: [{{name: s, grid: {{lora.r: [8]}}, early_stopping: {stopping}}}]"
        )
    });
    let edits: Vec<_> = lines
        .iter()
        .map(|text| ("model: base", text.as_str()))
        .collect();
    insta::assert_snapshot!(report(&edits));
}

#[test]
fn a_grid_of_too_many_points_is_refused_before_it_is_made() {
    let values: Vec<String> = (1..=100).map(|value| value.to_string()).collect();
    let values = values.join(", ");
    let grid = [
        "lora.r",
        "lora.lora_alpha",
        "train.batch_size",
        "train.warmup_steps",
    ]
    .map(|path| format!("{path}: [{values}]"));
    let text = format!(
        "{GOOD}sweep: [{{name: s, grid: {{{}}}}}]\n",
        grid.join(", ")
    );
    let error = load(&text, &[]).unwrap_err();
    insta::assert_snapshot!(plain(&error), @"run.yaml:14:25: `sweep[0].grid`: has 100000000 points, and earlier grids have 0: the limit of a run is 1024");
    let ranks: Vec<String> = (1..=5000).map(|rank| rank.to_string()).collect();
    let text = format!(
        "{GOOD}sweep: [{{name: s, grid: {{lora.r: [{}]}}}}]\n",
        ranks.join(", ")
    );
    insta::assert_snapshot!(plain(&load(&text, &[]).unwrap_err()), @"run.yaml:14:34: `sweep[0].grid.lora.r`: has 5000 values; the limit is 1024");
    let ranks = ranks[..1024].join(", ");
    let two =
        format!("{{name: s, grid: {{lora.r: [{ranks}]}}}}, {{name: t, grid: {{lora.r: [8]}}}}");
    let error = load(&format!("{GOOD}sweep: [{two}]\n"), &[]).unwrap_err();
    insta::assert_snapshot!(plain(&error), @"run.yaml:14:5091: `sweep[1].grid`: has 1 points, and earlier grids have 1024: the limit of a run is 1024");
    let long = "s".repeat(98);
    let text = format!("{GOOD}sweep: [{{name: {long}, grid: {{lora.r: [8]}}}}]\n");
    insta::assert_snapshot!(plain(&load(&text, &[]).unwrap_err()), @"run.yaml:14:16: `sweep[0].name`: must have at most 100 characters, got 101");
}
