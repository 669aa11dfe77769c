#!/usr/bin/env python3
"""What a training step should take on an H200 or H100, from bytes, operations and launches: predictions, not
measurements.

    benches/gpu/model.py [H100]        a table of the kit's cases

Each constant says where it is from. `report.py` prints these predictions beside what was measured.
"""
import json
import sys

# Published cuBLAS rates on an H100's tensor cores: 769 to 798 TFLOP/s in bf16 on random data; 0.92 of the middle at
# the shapes of a layer.
PRODUCTS = 720e12
# Bytes a second of copies: published for an H200, 0.9 of its datasheet's 4.8 TB/s; 0.9 of the datasheet's 3.35 TB/s
# for an H100. Simple kernels reach 0.85 of it.
COPIES = {"H200": 4.3e12, "H100": 3.0e12}
EFFICIENCY = 0.85
# Products of attention by cuBLAS are short (128) in one dimension: half the rate, assumed.
ATTENTION = 0.5 * PRODUCTS
# FlashAttention 2, causal, H100, heads of 128, 1k tokens: its paper's successor has 260 TFLOP/s both ways.
FLASH = 260e12
# Host: an operation of ours with its launch (30 ms for 1,983 in TinyLlama, measured on an H100's host), and a launch on
# the device at the least (assumed, 2 to 4 us).
LAUNCH_HOST, LAUNCH_DEVICE = 15e-6, 3e-6
# PEFT's host time for a layer, forward and backward, as HF and autograd issue it: 167 ms for 32 layers (measured there).
PEFT_LAYER_HOST = 167e-3 / 32
# Our LoRA kernels on tensor cores, seconds an element of the wide operand: its bytes (2 read, 4 where it is written
# too) at the memory's speed, and once the draw of its mask, beside half of the bytes. Ten rounds of Philox for four elements are
# 90 integer instructions, 132 multiprocessors issue 64 of them a clock of 1.75 GHz. Not measured.
DRAW = 90 / 4 / (132 * 64 * 1.75e9)
READ, UPDATE, BIT = 2, 4, 1 / 8
# PEFT's for the same, per element of x and h: casts, dropout and three small products.
PEFT_LORA_IN, PEFT_LORA_OUT = 15e-12, 6e-12

SHAPES = {  # width, MLP's width, layers, heads, heads of keys, vocabulary
    "micro": (512, 1376, 8, 8, 4, 2048),
    "tinyllama-1.1b": (2048, 5632, 22, 32, 4, 32000),
    "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128256),
}
PART = 256  # queries of a part of attention


def linears(shape):
    width, inner, _, heads, kv_heads, _ = SHAPES[shape]
    kv = width // heads * kv_heads
    return {"q_proj": (width, width), "k_proj": (width, kv), "v_proj": (width, kv), "o_proj": (width, width),
            "gate_proj": (width, inner), "up_proj": (width, inner), "down_proj": (inner, width)}


def adapted(shape, targets):
    return linears(shape).values() if targets == "all-linear" else [linears(shape)[name] for name in targets.split(",")]


def scores_of(length):
    """Scores that are computed for a sequence, all parts, as a share of length squared."""
    parts = [(start, min(start + PART, length)) for start in range(0, length, PART)]
    return sum((end - start) * end for start, end in parts) / length**2, len(parts)


def ours(shape, adapters, batch, length, targets, memory):
    """Seconds of one step of all adapters, by class of kernel; `memory` is bytes a second."""
    width, inner, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    tokens = adapters * batch * length
    weights = sum(d_in * d_out for d_in, d_out in linears(shape).values())
    share, parts = scores_of(length)
    scores = tokens * length * heads
    # Scores, P, dP and dS are written; P is read by two products, dS by two; the softmaxes read what is seen.
    attention_bytes = 2 * scores * (share * 12 + 0.5 * 4) + 36 * tokens * width
    attention_flops = 7 * 2 * scores * share * (width // heads)
    of_input = DRAW + (0.5 * READ + BIT) / memory + (READ + BIT) / memory + (UPDATE + BIT) / memory
    of_output = (UPDATE + 2 * READ) / memory
    lora = sum(tokens * (d_in * of_input + d_out * of_output) for d_in, d_out in adapted(shape, targets))
    elementwise = 2 * tokens * (45 * width + 8 * inner) / memory
    launches = layers * (82 - 7 * (7 - len(list(adapted(shape, targets)))) + 7 + 10 * parts)
    head_chunks = max(1, round(tokens * vocabulary * 2 / (512 << 20)))
    parameters = layers * sum(16 * (d_in + d_out) for d_in, d_out in adapted(shape, targets)) * adapters
    terms = {
        "products": layers * 4 * weights * tokens / PRODUCTS,
        "head": 4 * width * vocabulary * tokens / PRODUCTS + (3 * 2 * tokens * vocabulary
                + head_chunks * 4 * width * vocabulary) / memory,
        "attention": layers * max(attention_bytes / memory, attention_flops / ATTENTION),
        "lora": layers * lora,
        "elementwise": layers * elementwise,
        "optimizer": 32 * parameters / memory,
        "launches": launches * LAUNCH_DEVICE,
    }
    return terms, max(sum(terms.values()), launches * LAUNCH_HOST)


def peft(shape, adapters, batch, length, targets, memory):
    """The same by PEFT: one adapter after another."""
    width, inner, layers, heads, _, vocabulary = SHAPES[shape]
    tokens = batch * length
    weights = sum(d_in * d_out for d_in, d_out in linears(shape).values())
    attention = layers * 7 * 2 * tokens * length * heads * (width // heads) * 0.5 / FLASH
    lora = sum(tokens * (d_in * PEFT_LORA_IN + d_out * PEFT_LORA_OUT) for d_in, d_out in adapted(shape, targets))
    terms = {
        "products": layers * 4 * weights * tokens / PRODUCTS,
        # Logits in float32, their loss and gradient by separate kernels.
        "head": 4 * width * vocabulary * tokens / PRODUCTS + 26 * tokens * vocabulary / memory,
        "attention": attention,
        "lora": layers * lora,
        "elementwise": layers * 2 * tokens * (80 * width + 14 * inner) / memory,
    }
    return {name: adapters * term for name, term in terms.items()}, adapters * max(
        sum(terms.values()), layers * PEFT_LAYER_HOST)


ATTENTION_TARGETS = "q_proj,k_proj,v_proj,o_proj"
# Name, shape, adapters, sequences of each, tokens, targets.
CASES = [
    *[(f"tinyllama-{k}", "tinyllama-1.1b", k, 1, 256, ATTENTION_TARGETS) for k in (1, 4, 8)],
    *[(f"8b-4x{size}x1024-{name}", "llama-3.1-8b", 4, size, 1024, targets)
      for size in (1, 4) for name, targets in (("attention", ATTENTION_TARGETS), ("all-linear", "all-linear"))],
    ("tiny", "micro", 2, 1, 16, ATTENTION_TARGETS),
]


def predicted(case, device="H200"):
    _, shape, adapters, batch, length, targets = case
    tokens, memory = adapters * batch * length, EFFICIENCY * COPIES[device]
    terms, step = ours(shape, adapters, batch, length, targets, memory)
    _, other = peft(shape, adapters, batch, length, targets, memory)
    return {"tokens_per_second": tokens / step, "peft_tokens_per_second": tokens / other,
            "milliseconds": {name: 1e3 * seconds for name, seconds in terms.items()}}


def main():
    device = next((name for name in COPIES if name in sys.argv[1:]), "H200")
    rows = {case[0]: predicted(case, device) for case in CASES}
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    print(f"Predicted for an {device}, not measured.\n")
    print("| case | tokens/s | PEFT's | ratio | " + " | ".join(rows["tiny"]["milliseconds"]) + " (ms) |")
    print("|---" * (4 + len(rows["tiny"]["milliseconds"])) + "|")
    for name, row in rows.items():
        ratio = row["tokens_per_second"] / row["peft_tokens_per_second"]
        terms = " | ".join(f"{value:.1f}" for value in row["milliseconds"].values())
        print(f"| {name} | {row['tokens_per_second']:.0f} | {row['peft_tokens_per_second']:.0f} | {ratio:.2f} | {terms} |")


if __name__ == "__main__":
    main()
