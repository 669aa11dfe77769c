#!/usr/bin/env python3
"""Trains the parity fixtures on a device and compares with what PEFT recorded: losses of every step within 1e-6,
gradient norms and final weights within 1e-4, as tests/tests/it/parity.rs does on the CPU.

    benches/gpu/parity.py LORALOOM [DEVICE] [DTYPE]

Prints a JSON line for each adapter; ends with 1 if one is further off, which bounds nothing in other types than
float32.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
BOUNDS = {"loss": 1e-6, "gradient_norm": 1e-4, "weights": 1e-4}


def configuration(fixture, jobs, device, dtype, output):
    datasets = {"data": {"path": str(fixture / "data.jsonl"),
                         "columns": {"prompt": "question", "completion": "answer"}}}
    if (fixture / "chat.jsonl").exists():
        datasets["chat"] = {"path": str(fixture / "chat.jsonl")}
    adapters = [{"dataset": "data", **job, "init_from": str(fixture / "jobs" / job["name"] / "init")} for job in jobs]
    return {"model": str(fixture), "output_dir": str(output), "device": device, "dtype": dtype,
            "datasets": datasets, "adapters": adapters}


def series(events, name):
    """Losses and gradient norms of an adapter, step by step."""
    steps = [event for event in events if event["event"] == "step" and event["adapter"] == name]
    return [[step[key] for step in steps] for key in ("loss", "grad_norm")]


def worst(found, expected):
    if len(found) != len(expected):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected))


def weights_differ(found, expected):
    """The largest norm of a matrix's difference over its norm."""
    if found.keys() != expected.keys():
        return float("inf")
    return max(float(numpy.linalg.norm(found[key].astype("f8") - expected[key].astype("f8"))
                     / numpy.linalg.norm(expected[key].astype("f8"))) for key in expected)


def main():
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    loraloom, device, dtype = (sys.argv[1:] + ["cuda", "float32"][len(sys.argv) - 2:])[:3]
    within = True
    for jobs in sorted(FIXTURES.glob("*/jobs.json")):
        fixture = jobs.parent
        jobs = json.loads(jobs.read_text())
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            config = work / "config.json"
            config.write_text(json.dumps(configuration(fixture, jobs, device, dtype, work / "run")))
            subprocess.run([loraloom, "--quiet", "train", str(config)], check=True, stdout=subprocess.DEVNULL)
            events = [json.loads(line) for line in (work / "run" / "events.jsonl").read_text().splitlines()]
            for job in jobs:
                name = job["name"]
                expected = json.loads((fixture / "jobs" / name / "losses.json").read_text())
                losses, norms = series(events, name)
                off = {
                    "loss": worst(losses, expected["losses"]),
                    "gradient_norm": worst(norms, expected["grad_norms"]),
                    "weights": weights_differ(
                        load_file(work / "run" / "adapters" / name / "last" / "adapter_model.safetensors"),
                        load_file(fixture / "jobs" / name / "final" / "adapter_model.safetensors")),
                }
                holds = all(off[what] <= bound for what, bound in BOUNDS.items())
                within &= holds or dtype != "float32"
                print(json.dumps({"fixture": fixture.name, "adapter": name, "dtype": dtype, "steps": len(losses),
                                  "within": holds, **off}), flush=True)
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
