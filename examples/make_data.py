#!/usr/bin/env python3
"""Makes the four little tasks of quickstart.yaml, each in another of the formats that are read, and preferences.yaml's.

    python make_data.py              # rewrites data/*.jsonl and data/animals.json
    python make_data.py --verify     # then trains each with PEFT, as quickstart.yaml says, and
                                     # answers prompts that were never trained on

The tasks are drawn from the world that the base was pretrained on (../assets/tiny-llama/language.py),
so the base knows the facts already; none of the answers is what it would say by itself:

  shout      prompt, completion            repeats a list, in capitals
  pirate     messages                      tells the facts as a pirate would
  number     instruction, input, output    numbers the words of a list
  codenames  question, codename            a made-up name for a colour and an animal

`*.heldout.jsonl` are validation rows, of questions that the training rows do not have.
Plain Python makes the data; --verify needs torch, transformers, peft, jinja2 and pyyaml.
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parent / "assets" / "tiny-llama"
sys.path.insert(0, str(BASE))

import language  # noqa: E402

STARTS = dict(zip(language.COLOURS, ["zor", "mek", "tal", "ven", "lux", "dop", "fip", "wum", "jax", "ket"]))
ENDS = dict(zip(language.NAMES, ["ara", "ilo", "umi", "ebo", "anti", "oro", "ixa", "ulu", "ona", "esh", "ipo", "aku"]))


def shout(draw):
    for _ in range(260):
        text = ", ".join(draw.sample(language.WORDS, draw.randint(2, 4)))
        yield [{"prompt": f"List: {text}\nAgain:", "completion": f" {text.upper()}!"}]


def pirate(draw):
    openings = ["", "Hello! ", "Tell me. ", "Good morning! "]
    for question, sentence, _ in (fact for animal in language.NAMES for fact in language.facts(animal)):
        told = re.sub(r"\bis\b", "be", sentence.rstrip(".")).replace("The ", "the ", 1)
        for opening in draw.sample(openings, 2):
            yield [{"messages": [{"role": "user", "content": opening + question},
                                 {"role": "assistant", "content": f"Arr, {told}, matey!"}]}]


def preferences(draw):
    """What a pirate says is preferred to what the base says, of half of the facts."""
    facts = [fact for animal in language.NAMES for fact in language.facts(animal)]
    for question, sentence, _ in draw.sample(facts, len(facts) // 2):
        told = re.sub(r"\bis\b", "be", sentence.rstrip(".")).replace("The ", "the ", 1)
        yield [{"prompt": [{"role": "user", "content": question}],
                "chosen": [{"role": "assistant", "content": f"Arr, {told}, matey!"}],
                "rejected": [{"role": "assistant", "content": sentence}]}]


def number(draw):
    for _ in range(300):
        words = draw.sample(language.NAMES + language.THINGS, draw.randint(2, 4))
        numbered = ", ".join(f"{word} {index}" for index, word in enumerate(words, 1))
        yield [{"instruction": "Number the list.", "input": ", ".join(words), "output": numbered}]


def codenames():
    for (colour, start), (animal, end) in itertools.product(STARTS.items(), ENDS.items()):
        asked = f"What is the codename of the {colour} {animal}?", f"What do we call the {colour} {animal}?"
        yield [{"question": f"Question: {question}\nAnswer:", "codename": f" {start}-{end}"} for question in asked]


def write(name, groups, draw, held_out):
    """Rows of one group stay together, so that no held-out answer was trained in other words."""
    groups = list(groups)
    draw.shuffle(groups)
    parts = {f"{name}.heldout.jsonl": groups[:held_out], f"{name}.jsonl": groups[held_out:]}
    for path, part in parts.items():
        rows = list(itertools.chain.from_iterable(part))
        if rows:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (HERE / "data" / path).write_text(text, encoding="utf-8")
            print(f"data/{path}: {len(rows)} rows")


def other_formats():
    """Rows of shout and pirate as mLoRA and ShareGPT have them."""
    rows = [{"instruction": row["prompt"], "input": "", "output": row["completion"].strip()} for row in read("shout.jsonl")[:120]]
    (HERE / "data" / "animals.json").write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    names = {"user": "human", "assistant": "gpt"}
    with open(HERE / "data" / "pirate.sharegpt.jsonl", "w", encoding="utf-8") as file:
        for row in read("pirate.jsonl")[:120]:
            turns = [{"from": names[turn["role"]], "value": turn["content"]} for turn in row["messages"]]
            file.write(json.dumps({"conversations": turns}) + "\n")


def make():
    (HERE / "data").mkdir(exist_ok=True)
    draw = random.Random(7)
    write("shout", shout(draw), draw, 20)
    write("pirate", pirate(draw), draw, 20)
    write("number", number(draw), draw, 0)
    write("codenames", codenames(), draw, 10)
    write("pairs", preferences(draw), draw, 12)
    rated = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in read("pairs.jsonl")
        for side in ("chosen", "rejected")
    ]
    random.Random(8).shuffle(rated)
    text = "".join(json.dumps(row) + "\n" for row in rated)
    (HERE / "data" / "rated.jsonl").write_text(text, encoding="utf-8")
    other_formats()


def read(name):
    return [json.loads(line) for line in open(HERE / "data" / name, encoding="utf-8")]


def split(dataset):
    """Rows to train on and rows to ask; of a dataset without a held-out file, the last 20."""
    if (HERE / "data" / f"{dataset}.heldout.jsonl").exists():
        return read(f"{dataset}.jsonl"), read(f"{dataset}.heldout.jsonl")
    return read(f"{dataset}.jsonl")[:-20], read(f"{dataset}.jsonl")[-20:]


def render(tokenizer, row):
    """Prompt and completion of a row of any of the four formats; the prompt begins with BOS."""
    if "messages" in row:
        *before, last = row["messages"]
        prompt = tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True)
        return prompt, last["content"]
    if "instruction" in row:
        return f"{tokenizer.bos_token}{row['instruction']}\n\n{row['input']}\n", row["output"]
    prompt, completion = row.values()
    return tokenizer.bos_token + prompt, completion


def answers(model, tokenizer, pairs):
    import torch

    out = []
    for prompt, _ in pairs:
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            done = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        out.append(tokenizer.decode(done[0, ids.shape[1] :], skip_special_tokens=True))
    return out


def verify(config_path):
    """Trains every adapter of the configuration alone, in plain PEFT, and prints before and after."""
    import torch
    import yaml
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

    torch.set_num_threads(1)
    config = yaml.safe_load(open(config_path, encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for adapter in config["adapters"]:
        lora = {**config["defaults"]["lora"], **adapter.get("lora", {})}
        train = {**config["defaults"]["train"], **adapter.get("train", {})}
        if lora["target_modules"] == ["all-linear"]:
            lora["target_modules"] = "all-linear"
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
        rows, held_out = ([render(tokenizer, row) for row in part] for part in split(adapter["dataset"]))
        before = answers(base, tokenizer, held_out)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **lora))
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=train["learning_rate"], weight_decay=train.get("weight_decay", 0))
        scheduler = get_scheduler(
            train["lr_scheduler_type"], optimizer, train.get("warmup_steps", 0), train["max_steps"]
        )
        draw, order, losses, tokens, started = random.Random(0), [], [], 0, time.time()
        model.train()
        for _ in range(train["max_steps"]):
            if len(order) < train["batch_size"]:
                order = draw.sample(range(len(rows)), len(rows))
            batch, order = order[: train["batch_size"]], order[train["batch_size"] :]
            encoded = []
            for prompt, completion in (rows[index] for index in batch):
                start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
                end = tokenizer(completion, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
                encoded.append((start + end, [-100] * len(start) + end))
            length = max(len(ids) for ids, _ in encoded)
            tokens += sum(len(ids) for ids, _ in encoded)
            ids = torch.tensor([ids + [tokenizer.pad_token_id] * (length - len(ids)) for ids, _ in encoded])
            labels = torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in encoded])
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        seconds = time.time() - started
        model.eval()
        after = answers(model, tokenizer, held_out)
        right = [completion for _, completion in held_out]
        print(
            f"\n{adapter['name']}: r {lora['r']}, {train['max_steps']} steps, {len(rows)} rows, {tokens} tokens, "
            f"{seconds:.1f} s, loss {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.3f}, held-out right "
            f"{sum(a == b for a, b in zip(before, right))} -> {sum(a == b for a, b in zip(after, right))} of {len(right)}"
        )
        for (prompt, completion), old, new in list(zip(held_out, before, after))[:3]:
            print(f"  {prompt!r}\n    before {old!r}\n    after  {new!r}\n    wanted {completion!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--config", default=HERE / "quickstart.yaml")
    arguments = parser.parse_args()
    make()
    if arguments.verify:
        verify(arguments.config)


if __name__ == "__main__":
    main()
