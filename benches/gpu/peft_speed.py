#!/usr/bin/env python3
"""Training steps of transformers and PEFT, one adapter after another: what loraloom is compared with.

Weights and tokens are random. Prints a JSON line for each batch and targets: tokens a second over all adapters,
seconds of a step, the most bytes that torch's allocator held.
"""
import argparse
import itertools
import json
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

# Width, MLP's width, layers, heads, heads of keys, vocabulary: as `loraloom bench --shape` has them.
SHAPES = {
    "micro": (512, 1376, 8, 8, 4, 2048),
    "tinyllama-1.1b": (2048, 5632, 22, 32, 4, 32000),
    "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128256),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--adapters", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", required=True, help="each is a case")
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", nargs="+", default=["q_proj,k_proj,v_proj,o_proj"], help="each is a case")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--use-dora", action="store_true")
    return parser.parse_args()


def base_model(shape, attention, device, dtype):
    width, inner, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    config = LlamaConfig(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocabulary,
                         max_position_embeddings=8192, tie_word_embeddings=False)
    config._attn_implementation = attention
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model, vocabulary


def measure(given, base, vocabulary, batch, targets):
    """Seconds of all timed steps, and the base without adapters again."""
    device = base.device
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    modules = "all-linear" if targets == "all-linear" else targets.split(",")
    seconds = 0.0
    for _ in range(given.adapters):
        model = get_peft_model(base, LoraConfig(r=given.rank, lora_alpha=2 * given.rank, lora_dropout=0.05,
                                                target_modules=modules, use_dora=given.use_dora,
                                                task_type="CAUSAL_LM"))
        model.train()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=device.type == "cuda")
        for step in range(given.warmup + given.steps):
            if step == given.warmup:
                wait()
                started = time.perf_counter()
            ids = torch.randint(0, vocabulary, (batch, given.length), device=device)
            model(input_ids=ids, labels=ids).loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        wait()
        seconds += time.perf_counter() - started
        base = model.unload()
    return seconds, base


def main():
    given = arguments()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(0)
    base, vocabulary = base_model(given.shape, given.attention, device, dtype)
    for batch, targets in itertools.product(given.batch, given.targets):
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds, base = measure(given, base, vocabulary, batch, targets)
        steps = given.adapters * given.steps
        print(json.dumps({
            "shape": given.shape, "adapters": given.adapters, "batch": batch, "length": given.length,
            "targets": targets, "attention": given.attention, "use_dora": given.use_dora, "device": device,
            "dtype": str(dtype).removeprefix("torch."),
            "tokens_per_second": steps * batch * given.length / seconds, "seconds_per_step": seconds / steps,
            "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        }), flush=True)


if __name__ == "__main__":
    main()
