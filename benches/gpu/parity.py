#!/usr/bin/env python3
"""Trains the jobs of tests/fixtures on a device and compares with what PEFT, TRL and torch recorded: losses of every
step within 1e-6, gradient norms and final weights within 1e-4, as the tests in tests/tests/it do on the CPU.

    benches/gpu/parity.py LORALOOM [DEVICE] [DTYPE]

Prints a JSON line for each adapter; ends with 1 if one is further off, which bounds nothing in other types than
float32.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
BOUNDS = {"loss": 1e-6, "gradient_norm": 1e-4, "weights": 1e-4}


def suites():
    """Fixture, its directory, datasets beside `data`, and adapters."""
    for file in sorted(FIXTURES.glob("*/jobs.json")):
        fixture = file.parent
        chat = fixture / "chat.jsonl"
        adapters = [{"dataset": "data", **job, "init_from": str(fixture / "jobs" / job["name"] / "init")}
                    for job in json.loads(file.read_text())]
        yield fixture, fixture, {"chat": {"path": str(chat)}} if chat.exists() else {}, adapters

    fixture = FIXTURES / "llama-gqa"
    preferences, contrast = fixture / "preferences", fixture / "contrast"
    adapters = [{**job, "init_from": str(preferences / ("init-head" if "lm_head" in job["lora"]["target_modules"]
                                                        else "init"))}
                for job in json.loads((preferences / "jobs.json").read_text())]
    yield fixture, preferences, {name: {"path": str(preferences / f"{name}.jsonl")} for name in ("pairs", "rated")}, adapters

    # The settings of tests/tests/it/contrast.rs.
    adapters = [{"name": job["name"], "dataset": "rows", "objective": job["objective"],
                 "init_from": str(preferences / "init"),
                 "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj", "down_proj"]},
                 "train": {"batch_size": job["batch_size"], "max_seq_len": 64, "max_steps": 20, "learning_rate": 2e-3,
                           "gradient_accumulation_steps": job["gradient_accumulation_steps"], "shuffle": False,
                           "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 1.0}}
                for job in json.loads((contrast / "jobs.json").read_text())]
    template = "{{ question if is_origin else paraphrase }} {{ answer }}"
    yield fixture, contrast, {"rows": {"path": str(contrast / "rows.jsonl"), "template": template}}, adapters

    starts = fixture / "starts"
    yield fixture, starts, {}, json.loads((starts / "jobs.json").read_text())


def configuration(fixture, datasets, adapters, device, dtype, output):
    data = {"path": str(fixture / "data.jsonl"), "columns": {"prompt": "question", "completion": "answer"}}
    datasets = {"data": data, **datasets}
    used = {adapter["dataset"] for adapter in adapters}
    return {"model": str(fixture), "output_dir": str(output), "device": device, "dtype": dtype,
            "datasets": {name: dataset for name, dataset in datasets.items() if name in used}, "adapters": adapters}


def recorded(directory):
    """Losses, gradient norms, and what a loss is divided by before it is compared: itself, or for preferences at
    least 1 and the rounding of its log-probabilities."""
    if (directory / "losses.json").exists():
        losses = json.loads((directory / "losses.json").read_text())
        return losses["losses"], losses.get("grad_norms"), [abs(loss) for loss in losses["losses"]]
    steps = json.loads((directory / "steps.json").read_text())
    rounding = numpy.finfo("f4").eps / BOUNDS["loss"]
    scales = [max(abs(step["loss"]), 1) + rounding * sum(abs(step.get(f"logps/{side}", 0)) for side in
                                                         ("chosen", "rejected")) for step in steps]
    return [step["loss"] for step in steps], [step["grad_norm"] for step in steps], scales


def series(events, name):
    """Losses and gradient norms of an adapter, step by step."""
    steps = [event for event in events if event["event"] == "step" and event["adapter"] == name]
    return [[step[key] for step in steps] for key in ("loss", "grad_norm")]


def worst(found, expected, scales):
    if len(found) != len(expected):
        return float("inf")
    return max(float(abs(a - b) / scale) for a, b, scale in zip(found, expected, scales))


def weights_differ(found, expected):
    """The largest norm of a matrix's difference over its norm; PEFT copies adapted ends of the base beside them."""
    expected = {key: weight for key, weight in expected.items() if ".lora_" in key}
    if found.keys() != expected.keys():
        return float("inf")
    return max(float(numpy.linalg.norm(found[key].astype("f8") - expected[key].astype("f8"))
                     / numpy.linalg.norm(expected[key].astype("f8"))) for key in expected)


def compare(run, adapter, directory):
    name = adapter["name"]
    expected, norms, scales = recorded(directory)
    losses, found_norms = series(run["events"], name)
    init = adapter["lora"].get("init_lora_weights", "")
    # PEFT draws B of an embedding from another generator.
    if init == "eva" and "embed_tokens" in adapter["lora"]["target_modules"]:
        losses, expected = losses[:1], expected[:1]
    off = {"loss": worst(losses, expected, scales)}
    if norms:
        off["gradient_norm"] = worst(found_norms, norms, [abs(norm) for norm in norms])
    # Computed start values are PEFT's up to signs, and those over a shared base have twice the ranks.
    if not init:
        off["weights"] = weights_differ(
            load_file(run["directory"] / "adapters" / name / "last" / "adapter_model.safetensors"),
            load_file(directory / "final" / "adapter_model.safetensors"))
    return off


def main():
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    loraloom, device, dtype = (sys.argv[1:] + ["cuda", "float32"][len(sys.argv) - 2:])[:3]
    within = True

    def lines(suite):
        fixture, directory, datasets, adapters = suite
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            config = work / "config.json"
            config.write_text(json.dumps(configuration(fixture, datasets, adapters, device, dtype, work / "run")))
            subprocess.run([loraloom, "--quiet", "train", str(config)], check=True, stdout=subprocess.DEVNULL)
            events = [json.loads(line) for line in (work / "run" / "events.jsonl").read_text().splitlines()]
            run = {"directory": work / "run", "events": events}
            return [{"fixture": str(directory.relative_to(FIXTURES)), "adapter": adapter["name"], "dtype": dtype,
                     "steps": len(series(events, adapter["name"])[0]),
                     **compare(run, adapter, directory / "jobs" / adapter["name"])} for adapter in adapters]

    # A run keeps two threads busy, and a device little.
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for found in concurrent.futures.as_completed([pool.submit(lines, suite) for suite in suites()]):
            for line in found.result():
                line["within"] = all(line[what] <= bound for what, bound in BOUNDS.items() if what in line)
                within &= line["within"] or dtype != "float32"
                print(json.dumps(line), flush=True)
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
