#!/usr/bin/env python3
"""Writes tests/unit/runtime/greedy_tinystories.json: greedy ids of the carried model by Transformers, float32, eager attention.

    make_greedy_golden.py        (with torch 2 and transformers 5.23)

`margin` is the smallest distance between the two best logits at any step, so that a reader can see that no step was a toss-up.
"""
import json
import os

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from peer import ROOT, TINYSTORIES

PROMPTS = ["Once upon a time", "The dog and the cat", "Lily said: \"I"]
model = AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32, attn_implementation="eager").eval()
tokenizer = Tokenizer.from_file(os.path.join(TINYSTORIES, "tokenizer.json"))
cases = []
for prompt in PROMPTS:
    ids, margin = tokenizer.encode(prompt).ids, float("inf")
    start = len(ids)
    with torch.inference_mode():
        for _ in range(64):
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
    cases.append({"prompt": prompt, "prompt_ids": ids[:start], "ids": ids[start:], "text": tokenizer.decode(ids), "margin": round(margin, 5)})
with open(os.path.join(ROOT, "tests", "unit", "runtime", "greedy_tinystories.json"), "w", encoding="utf-8") as out:
    json.dump(cases, out, indent=1, ensure_ascii=False)
    out.write("\n")
