#!/usr/bin/env python3
"""cuBLAS by torch at the sizes of Llama-3.1-8B: milliseconds and TFLOP/s of every product of a layer and of
the head, forward (`x Wᵀ`) and backward (`g W`), in bfloat16. One JSON line each."""
import json
import time

import torch

LINEARS = {"q, o": (4096, 4096), "k, v": (4096, 1024), "gate, up": (4096, 14336), "down": (14336, 4096),
           "head": (4096, 128256)}
ROWS = (16384, 4096, 1024, 130)


def milliseconds(work):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < 0.15:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
        count += 5
    return (time.perf_counter() - started) / count * 1e3


def main():
    for name, (d_in, d_out) in LINEARS.items():
        weight = torch.randn(d_out, d_in, device="cuda", dtype=torch.bfloat16) * 0.02
        for rows in ROWS:
            if name == "head" and rows > 4096:
                continue
            for way, operand in (("forward", d_in), ("backward", d_out)):
                x = torch.randn(rows, operand, device="cuda", dtype=torch.bfloat16)
                work = (lambda: x @ weight.T) if way == "forward" else (lambda: x @ weight)
                taken = milliseconds(work)
                flops = 2 * rows * d_in * d_out
                print(json.dumps({"product": name, "rows": rows, "way": way, "milliseconds": taken,
                                  "tflops": flops / taken / 1e9}), flush=True)
        del weight


if __name__ == "__main__":
    main()
