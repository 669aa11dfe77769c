#!/usr/bin/env python3
"""Puts what `run` left in a folder into one Markdown table and one JSON: FOLDER/table.md, FOLDER/results.json."""
import json
import pathlib
import re
import sys

import model


def lines(path):
    """JSON objects of a file, one a line or one in all; none where it is missing or cut off."""
    if not path.exists():
        return []
    text = path.read_text()
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def number(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def same_case(results, case):
    """What loraloom and PEFT measured of a case; PEFT's adapters take turns, so that one stands for all."""
    _, shape, adapters, batch, length, targets = case
    modules = len(model.linears(shape)) if targets == "all-linear" else len(targets.split(","))
    size = {"shape": shape, "batch": batch, "length": length}
    ours, peft = {}, {}
    for name, found in results.items():
        for line in filter(lambda line: isinstance(line, dict), found):
            measured = line.get("end_to_end") or [] if name.startswith("ours-") and name != "ours-burn" else []
            for one in measured:
                if not one["use_dora"] and not one.get("quantization") and one["adapters"] == adapters and len(one["target_modules"]) == modules and size.items() <= one.items():
                    ours = one
            if name.startswith("peft-") and not line["use_dora"] and line["targets"] == targets and size.items() <= line.items():
                peft = line
    return ours, peft


def steps(results, device):
    yield "## Training steps"
    yield ""
    yield f"Tokens a second; peak memory in GB. Predictions are for an {device} (`benches/gpu/model.py`)."
    yield ""
    rows = []
    for case in model.CASES:
        name = case[0]
        ours, peft = same_case(results, case)
        rate, other_rate = ours.get("tokens_per_second"), peft.get("tokens_per_second")
        if rate is None and other_rate is None:
            continue
        predicted = model.predicted(case, device)
        ratio = rate / other_rate if rate and other_rate else None
        peak = [value and value / 1e9 for value in (ours.get("peak_bytes"), peft.get("peak_bytes"))]
        rows.append([name, number(rate), number(other_rate), number(ratio, 2), number(peak[0], 1), number(peak[1], 1),
                     number(predicted["tokens_per_second"]), number(predicted["peft_tokens_per_second"])])
    yield from table(["case", "loraloom", "PEFT", "ratio", "GB", "PEFT's GB", "predicted", "PEFT predicted"], rows)
    ours = [one for name, found in results.items() if name.startswith("ours-") and found
            for one in found[0].get("end_to_end") or []]
    nf4 = [one for one in ours if one.get("quantization")]
    if nf4:
        yield "Over linear layers in NF4:"
        yield ""
        yield from table(["model", "adapters x sequences x tokens", "projections", "loraloom", "GB"], [
            [one["shape"], f"{one['adapters']} x {one['batch']} x {one['length']}", len(one["target_modules"]),
             number(one["tokens_per_second"]), number(one["peak_bytes"] and one["peak_bytes"] / 1e9, 1)] for one in nf4])
    dora = [one for one in ours if one["use_dora"]]
    if dora:
        yield "With DoRA, and PEFT's one adapter of as many sequences:"
        yield ""
        peft = {(line["batch"], line["length"]): line["tokens_per_second"] for name, found in results.items()
                if name.startswith("peft-") for line in found if line["use_dora"]}
        yield from table(["model", "adapters x sequences x tokens", "projections", "loraloom", "GB", "PEFT"], [
            [one["shape"], f"{one['adapters']} x {one['batch']} x {one['length']}", len(one["target_modules"]),
             number(one["tokens_per_second"]), number(one["peak_bytes"] and one["peak_bytes"] / 1e9, 1),
             number(peft.get((one["batch"], one["length"])))] for one in dora])


def profiles(results, device):
    most = model.COPIES[device]
    for name, found in results.items():
        for measured in (found[0].get("end_to_end") or [] if found and isinstance(found[0], dict) else []):
            profile = measured.get("profile") or []
            if not profile:
                continue
            total = sum(share["milliseconds"] for share in profile)
            yield f"## One step by kernel: {name}, {total:.1f} ms"
            yield ""
            rows = [[f"`{share['kernel']}`", share["launches"], number(share["milliseconds"], 2),
                     f"{100 * share['milliseconds'] / total:.1f} %",
                     number(100 * share["bytes_moved"] / share["milliseconds"] * 1e3 / most, 0) + " %"
                     if share["bytes_moved"] and share["milliseconds"] else "-"] for share in profile[:40]]
            yield from table(["kernel", "launches", "ms", "share", f"of {most / 1e12:.1f} TB/s"], rows)


def kernels(results, _device):
    rows = []
    for measured in (results.get("ours-kernels") or [{}])[0].get("kernels") or []:
        if measured["ranks"] in ([], [16] * len(measured["ranks"])):
            rows.append([measured["name"], len(measured["ranks"]), number(measured["milliseconds"], 3),
                         number(measured["bytes_moved"] and measured["bytes_moved"] / 1e6, 1)])
    if rows:
        yield "## The operator"
        yield ""
        yield from table(["kernel", "adapters", "ms", "MB"], rows)
    products = results.get("torch-products") or []
    if products:
        yield "## cuBLAS by torch"
        yield ""
        yield from table(["product", "rows", "way", "ms", "TFLOP/s"], [
            [p["product"], p["rows"], p["way"], number(p["milliseconds"], 3), number(p["tflops"])] for p in products])


def checks(results, _device):
    for name in ("doctor", "thorough"):
        found = (results.get(name) or [{}])[0].get("checks") or []
        if found:
            bad = [check for check in found if check["status"] != "pass"]
            yield f"## {name}: {len(found) - len(bad)} of {len(found)} checks passed"
            yield ""
            for check in [c for c in found if name == "doctor"] + [c for c in bad if name == "thorough"]:
                yield f"- {check['status']} {check['name']}: {check['message']}"
            yield ""


def parity(results, _device):
    rows = [[line["fixture"], line["adapter"], line["dtype"], *(f"{line[key]:.1e}" if key in line else "-" for key in
             ("loss", "gradient_norm", "weights"))]
            for name, found in results.items() if name.startswith("parity-") for line in found]
    if rows:
        yield "## Against what PEFT, TRL and torch recorded in float32"
        yield ""
        yield "The largest relative differences over 20 to 50 steps, and of a final matrix."
        yield ""
        yield from table(["model", "adapter", "type", "loss", "gradient norm", "weights"], rows)


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        sys.exit("usage: report.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    results = {path.stem: lines(path) for path in sorted(folder.glob("*.out"))}
    status = {path.stem: path.read_text().strip() for path in sorted(folder.glob("*.status"))}
    commit = folder / "commit"
    text = ["# What a GPU measured", "", commit.read_text().strip() if commit.exists() else "", ""]
    gpu = folder / "gpu.out"
    device = re.search(r"NVIDIA (\w+[^|]*?)\s{2,}", gpu.read_text()) if gpu.exists() else None
    device = device.group(1) if device else "not known"
    text += [f"Device: {device}.", ""]
    # Predictions for another device are those for an H200.
    like = next((name for name in model.COPIES if name in device), "H200")
    text += list(table(["step", "status"], [[name, "ok" if code == "0" else f"failed ({code})"]
                                            for name, code in status.items()]))
    for part in (checks, parity, steps, kernels, profiles):
        text += list(part(results, like))
    (folder / "table.md").write_text("\n".join(text))
    predicted = {case[0]: model.predicted(case, like) for case in model.CASES}
    (folder / "results.json").write_text(json.dumps(
        {"status": status, "predicted": predicted, "measured": results}, indent=1))
    print("\n".join(text))


if __name__ == "__main__":
    main()
