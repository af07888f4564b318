#!/usr/bin/env python3
"""Writes cos and sin of Transformers' rotary embedding for every rope kind: make_rope_vectors.py tests/unit/model/rope_vectors.json

Each case: the config keys as a checkpoint writes them, head_dim, the table's length, a few positions and their cos and sin (FP32, first half).
"""
import json
import sys

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
CASES = {
    "default, SmolLM2": (64, 8192, 2048, dict(rope_parameters=dict(rope_type="default", rope_theta=100000.0))),
    "default, theta absent": (32, 2048, 2048, dict(rope_scaling=None)),
    "linear, type": (128, 4096, 4096, dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=2.5))),
    "dynamic, within the trained length": (64, 2048, 512, dict(rope_theta=10000.0, rope_scaling=dict(type="dynamic", factor=3.3))),
    "dynamic, grown": (64, 2048, 5000, dict(rope_theta=10000.0, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    "yarn, Qwen2.5": (128, 32768, 4096, dict(rope_theta=1000000.0, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768))),
    "yarn, every field": (64, 16384, 4096, dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=24.0, beta_slow=2.0, mscale=0.8, mscale_all_dim=0.6, truncate=False,
        original_max_position_embeddings=4096))),
    "yarn, attention factor": (64, 16384, 4096, dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=8.0, attention_factor=1.25, original_max_position_embeddings=2048))),
    "yarn, length absent": (64, 4096, 4096, dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=2.0))),
    "llama3, Llama 3.1 8B": (128, 131072, 16384, dict(rope_theta=500000.0, rope_scaling=dict(rope_type="llama3", **LLAMA3))),
    "llama3, Llama 3.2 1B": (64, 131072, 8192, dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, **{**LLAMA3, "factor": 32.0}))),
}


def main():
    torch.set_num_threads(1)
    cases = []
    for name, (head_dim, max_position, length, keys) in CASES.items():
        config = LlamaConfig(hidden_size=head_dim * 4, num_attention_heads=4, max_position_embeddings=max_position, **json.loads(json.dumps(keys)))
        rotary = LlamaRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None])
        positions = sorted({0, 1, 100, 511, length - 1})
        half = head_dim // 2
        cases.append(dict(name=name, config=keys, head_dim=head_dim, max_position=max_position, length=length, positions=positions,
                          cos=[cos[0, p, :half].tolist() for p in positions], sin=[sin[0, p, :half].tolist() for p in positions]))
    text = json.dumps(cases)
    with open(sys.argv[1], "w") as file:
        file.write(text.replace('{"name"', '\n{"name"') + "\n")


if __name__ == "__main__":
    main()
