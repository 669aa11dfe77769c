#!/usr/bin/env python3
"""Makes the base model of this directory: a Llama of a million parameters, pretrained from nothing.

    python make.py [--steps 3200] [--threads 2] [--out .]

`language.py` writes the text; this script trains the tokenizer on it, then the model, and saves
both as a Hugging Face directory (weights in bfloat16), with README.md and its measured figures.
Seeded, offline, on the CPU in some minutes. Needs torch, transformers, tokenizers, safetensors.
The same machine and versions give the same file; another may differ in the last bits, and so in
every weight, without being any worse.
"""

import argparse
import itertools
import math
import pathlib
import random
import time

import language
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).resolve().parent
SPECIALS = ["<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>"]
LENGTH, BATCH, PEAK, WARMUP = 128, 16, 2.5e-3, 60
# Copying from the context has to form before the rest can use it, and needs much repetition to form.
COPYING_FIRST, COPYING, FIRST = 0.7, 0.1, 0.45

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message['role'] == 'assistant' -%}
        {{- '<|assistant|>' -}}
        {%- generation -%}
            {{- message['content'] + eos_token -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- '<|' + message['role'] + '|>' + message['content'] -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
{%- endif -%}
"""


def chat(messages):
    """What CHAT_TEMPLATE renders, less BOS and the last EOS, which every document gets."""
    turns = []
    for message in messages:
        end = "</s>" if message["role"] == "assistant" else ""
        turns.append(f"<|{message['role']}|>{message['content']}{end}")
    return "".join(turns).removesuffix("</s>")


def make_tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1280,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(itertools.islice(language.documents(1, chat), 20_000), trainer)
    # As Llama's own: plain text gets BOS; a rendered chat brings its own and is encoded without.
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bpe.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=512,
        chat_template=CHAT_TEMPLATE,
    )


def rows(tokenizer, seed, copying):
    """Rows of LENGTH + 1 ids, each starting with a document and filled with whole ones but the last."""
    row = []
    for text in language.documents(seed, chat, copying):
        row += tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
        if len(row) > LENGTH:
            yield row[: LENGTH + 1]
            row = []


def batch(stream):
    return torch.tensor(list(itertools.islice(stream, BATCH)))


def loss_of(model, ids):
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def answer(model, tokenizer, prompt):
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def measure(model, tokenizer):
    """The fraction of greedy answers whose first line is exactly right, by kind of question."""
    draw = random.Random(99)
    asked = [fact for name in language.NAMES for fact in language.facts(name)][::3]
    sums = [language.sum_fact(draw) for _ in range(40)]
    lists = [draw.sample(language.WORDS, 4) for _ in range(40)]
    stories = [language.story(draw) for _ in range(40)]
    sets = {
        "facts, as text": [(f"Question: {q}\nAnswer:", f" {a}", f" {short}") for q, a, short in asked],
        "facts, as chat": [(f"<|user|>{q}<|assistant|>", a, short) for q, a, short in asked],
        "facts, in capitals": [
            (f"QUESTION: {q.upper()}\nANSWER:", f" {a.upper()}", f" {short.upper()}") for q, a, short in asked
        ],
        "sums up to 20": [(f"<|user|>{q}<|assistant|>", a, short) for q, a, short in sums],
        "copying 4 random words": [
            (f"<|user|>Copy the list.\n{', '.join(x)}<|assistant|>", ", ".join(x)) for x in lists
        ],
        "3 random words backwards": [
            (f"List: {', '.join(x[:3])}\nBackwards:", " " + ", ".join(x[2::-1])) for x in lists
        ],
        "questions about a new story": [(f"{text}\nQuestion: {q}\nAnswer:", f" {a}") for text, (q, a) in stories],
    }
    scores = {}
    for name, questions in sets.items():
        given = [(answer(model, tokenizer, prompt).split("\n")[0], right) for prompt, *right in questions]
        scores[name] = sum(text in right for text, right in given) / len(given)
        print(f"{name}: {scores[name]:.0%}; e.g. {questions[0][0]!r} -> {given[0][0]!r}", flush=True)
    return scores


README = """\
---
license: [mit, apache-2.0]
library_name: transformers
pipeline_tag: text-generation
language: en
---
# tiny-llama

A Llama of {parameters:,} parameters that speaks a small made-up language about animals, people,
lists and sums. It exists so that loraloom's first run and its tests have a *pretrained* base to
adapt within seconds on any CPU: it knows its facts, copies from its context, and answers questions
as plain text, in the chat template and as instructions. It knows nothing else, and it is weak at
whatever scores low below; do not ask it about the real world.

| | |
|---|---|
| Architecture | `LlamaForCausalLM`: hidden {hidden}, {layers} layers, {heads} heads over {kv} key/value heads, MLP {mlp}, tied embeddings |
| Tokenizer | byte-level BPE, {vocab} tokens; BOS `<s>`, EOS `</s>`, pad `<pad>` |
| Chat template | `chat_template.jinja`, with `{{% generation %}}` around what the assistant says |
| Context | 512 positions (trained on {length}) |
| Weights | bfloat16, {size:,} bytes |
| Pretraining | {steps} steps of {batch} × {length} tokens ({tokens:.1f} M), AdamW, float32 |
| Held-out loss | {held_out:.4f} nats per token, in bfloat16 weights |

Greedy answers whose first line is exactly right:

{scores}

## Where it comes from

`python make.py` makes all of it. `language.py` holds the world and the sentence patterns, written
for this project; no text, weights or tokenizer come from anywhere else. Made with torch {torch}
and transformers {transformers}. Licence as the project's: MIT OR Apache-2.0.
"""


def describe(directory, steps):
    """Measures what was saved, bfloat16 values computed with in float32 as on a CPU; writes README.md."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    held_out = rows(tokenizer, 4, 0.0)
    with torch.no_grad():
        loss = sum(loss_of(model, batch(held_out)).item() for _ in range(8)) / 8
    print(f"held-out loss {loss:.4f}", flush=True)
    scores = "\n".join(f"- {name}: {score:.0%}" for name, score in measure(model, tokenizer).items())
    config = model.config
    text = README.format(
        parameters=model.num_parameters(),
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv=config.num_key_value_heads,
        mlp=config.intermediate_size,
        vocab=len(tokenizer),
        length=LENGTH,
        size=(directory / "model.safetensors").stat().st_size,
        steps=steps,
        batch=BATCH,
        tokens=steps * BATCH * LENGTH / 1e6,
        held_out=loss,
        scores=scores,
        torch=torch.__version__.split("+")[0],
        transformers=transformers.__version__,
    )
    (directory / "README.md").write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(tokenizer)} tokens", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARMUP, 0.02 + 0.49 * (1 + math.cos(math.pi * step / arguments.steps))),
    )
    first, then, started = rows(tokenizer, 2, COPYING_FIRST), rows(tokenizer, 3, COPYING), time.time()
    for step in range(1, arguments.steps + 1):
        stream = first if step <= FIRST * arguments.steps else then
        loss = loss_of(model, batch(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == 1:
            print(f"step {step}: loss {loss.item():.4f}, {time.time() - started:.0f} s", flush=True)

    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    (arguments.out / "model.safetensors").chmod(0o644)
    describe(arguments.out, arguments.steps)


if __name__ == "__main__":
    main()
