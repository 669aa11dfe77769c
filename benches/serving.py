#!/usr/bin/env python3
"""Answers of one server for several adapters beside PEFT, which answers for one at a time.

    python serving.py make DIR [--width 512] [--layers 8] [--vocabulary 32000]    # a model and eight adapters, of random weights
    python serving.py peft DIR [--requests 64]                   # transformers and PEFT
    loraloom serve --inference-only --model DIR/model --listen 127.0.0.1:8000 --adapter a0=DIR/a0 …
    python serving.py load URL --models model,a0,… [--requests 64] [--at-once 32] [--seed 7]

`load` and `peft` print one JSON line: tokens of answers a second, and of `load` also seconds to first tokens and between
tokens. Prompts are random tokens; a server keeps what it computed for them, so give each run another --seed. An answer has
the same number of tokens whatever it says. Needs torch, transformers and peft but for `load`.
"""

import argparse
import json
import pathlib
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

ADAPTERS = 8
RANKS = [4, 8, 8, 16, 16, 32, 32, 64]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def prompts(options, vocabulary=250):
    random.seed(options.seed)
    return [[random.randrange(5, vocabulary) for _ in range(options.prompt)] for _ in range(options.requests)]


def make(options):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(pathlib.Path(__file__).parent.parent / "assets/tiny-llama")
    config = LlamaConfig(
        hidden_size=options.width, intermediate_size=options.width * 11 // 4 // 16 * 16, vocab_size=options.vocabulary,
        num_hidden_layers=options.layers, num_attention_heads=options.width // 64,
        num_key_value_heads=max(1, options.width // 128), max_position_embeddings=4096, tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    tokenizer.save_pretrained(options.directory / "model")
    model.save_pretrained(options.directory / "model")
    for number, rank in enumerate(RANKS):
        lora = LoraConfig(r=rank, lora_alpha=16, target_modules=TARGETS, init_lora_weights=False)
        tuned = get_peft_model(model, lora)
        tuned.save_pretrained(options.directory / f"a{number}")
        model = tuned.unload()


def peft(options):
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    torch.set_num_threads(options.threads)
    base = LlamaForCausalLM.from_pretrained(options.directory / "model", dtype=torch.float32)
    names = [f"a{number}" for number in range(ADAPTERS)]
    model = PeftModel.from_pretrained(base, options.directory / names[0], adapter_name=names[0])
    for name in names[1:]:
        model.load_adapter(options.directory / name, adapter_name=name)
    model.eval()
    asked = prompts(options)
    fixed = {"max_new_tokens": options.answer, "min_new_tokens": options.answer, "do_sample": False, "pad_token_id": 0}

    def generate(name, batch):
        model.set_adapter(name)
        ids = torch.tensor(batch)
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **fixed)

    found = {}
    with torch.no_grad():
        generate(names[0], asked[:1])
        begun = time.perf_counter()
        for index, prompt in enumerate(asked):
            generate(names[index % ADAPTERS], [prompt])
        found["one_by_one"] = options.requests * options.answer / (time.perf_counter() - begun)
        begun = time.perf_counter()
        for number, name in enumerate(names):
            generate(name, asked[number::ADAPTERS])
        found["batch_of_each_adapter"] = options.requests * options.answer / (time.perf_counter() - begun)
    print(json.dumps(found))


def ask(url, model, prompt, answer):
    body = {
        "model": model, "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    times = [time.perf_counter()]
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return times


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def load(options):
    models = options.models.split(",")
    asked = prompts(options)
    with ThreadPoolExecutor(options.at_once) as threads:
        begun = time.perf_counter()
        pairs = [(models[index % len(models)], prompt) for index, prompt in enumerate(asked)]
        times = list(threads.map(lambda pair: ask(options.url, *pair, options.answer), pairs))
        seconds = time.perf_counter() - begun
    first = [found[1] - found[0] for found in times]
    between = [(found[-1] - found[1]) / max(1, len(found) - 2) for found in times]
    print(json.dumps({
        "models": len(models), "tokens_per_second": options.requests * options.answer / seconds,
        "first_token_p50": percentile(first, 0.5), "first_token_p99": percentile(first, 0.99),
        "token_p50": percentile(between, 0.5),
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("make", "peft", "load"):
        command = commands.add_parser(name)
        if name == "load":
            command.add_argument("url")
            command.add_argument("--models", required=True)
            command.add_argument("--at-once", type=int, default=32)
        else:
            command.add_argument("directory", type=pathlib.Path)
            command.add_argument("--width", type=int, default=512)
            command.add_argument("--layers", type=int, default=8)
            command.add_argument("--threads", type=int, default=2)
        if name == "make":
            command.add_argument("--vocabulary", type=int, default=32000)
        command.add_argument("--requests", type=int, default=64)
        command.add_argument("--prompt", type=int, default=64)
        command.add_argument("--answer", type=int, default=64)
        command.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    {"make": make, "peft": peft, "load": load}[options.command](options)


if __name__ == "__main__":
    main()
