#!/usr/bin/env python3
"""Writes tests/unit/runtime/acceptance_tinystories.json: exact greedy speculative decoding, simulated with Transformers in float32.

    make_acceptance_golden.py        (with torch 2 and transformers 5.23)

32 prompts: the first 60 characters of the first lines longer than 80 of tests/fixtures/stories/calibration.txt; 96 new tokens each, of which none is
the end token. A round proposes K = 4 tokens of tests/models/tinystories-draft and is only begun where all of them have room; accepted are those before
the first that is not the next token of the model's own greedy text. `margin` is the smallest distance between the two best logits of the model.
"""
import json
import os

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from peer import ROOT, TINYSTORIES

DRAFT = os.path.join(ROOT, "tests", "models", "tinystories-draft")
NEW, K, END = 96, 4, 2
torch.set_grad_enabled(False)
target, draft = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32, attn_implementation="eager").eval() for p in (TINYSTORIES, DRAFT))
tokenizer = Tokenizer.from_file(os.path.join(TINYSTORIES, "tokenizer.json"))
with open(os.path.join(ROOT, "tests", "fixtures", "stories", "calibration.txt"), encoding="utf-8") as stories:
    prompts = [line[:60] for line in stories.read().split("\n") if len(line) > 80][:32]


def greedy(model, ids, count, bar_end):
    """`count` tokens behind `ids`, and the smallest margin."""
    cache, fresh, out, margin = None, ids, [], float("inf")
    for _ in range(count):
        result = model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        if bar_end:
            logits[END] = -float("inf")
        best = logits.topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        fresh = [int(best.indices[0])]
        out += fresh
    return out, margin


histogram, margin = [0] * (K + 1), float("inf")
for prompt in prompts:
    ids = tokenizer.encode(prompt).ids
    answer, least = greedy(target, ids, NEW, True)
    margin = min(margin, least)
    text, i = ids + answer, len(ids)
    while i + K < len(text):
        proposal, _ = greedy(draft, text[:i], K, False)
        accepted = 0
        while accepted < K and proposal[accepted] == text[i + accepted]:
            accepted += 1
        histogram[accepted] += 1
        i += accepted + 1
rounds, accepted = sum(histogram), sum(n * c for n, c in enumerate(histogram))
with open(os.path.join(ROOT, "tests", "unit", "runtime", "acceptance_tinystories.json"), "w", encoding="utf-8") as out:
    json.dump({"rounds": rounds, "accepted": accepted, "histogram": histogram, "margin": round(margin, 6), "prompts": prompts}, out, indent=1, ensure_ascii=False)
    out.write("\n")
print(rounds, accepted, accepted / (K * rounds), histogram, margin)
