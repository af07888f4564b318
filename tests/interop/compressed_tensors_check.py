"""Transformers + compressed-tensors, at the versions llm-compressor pins, load what llmq wrote without being told anything: the same dequantized
weights to the bit in float32, the same perplexity within 5e-5.   compressed_tensors_check.py LLMQ WORK
"""
import sys
import torch
from transformers import AutoModelForCausalLM
from compressed_tensors_cases import CASES, differing, loaded_weights, our_weights, write_case
from peer import expect, finish, own_perplexity, perplexity

program, work = sys.argv[1:3]
for name in CASES:
    packed = write_case(program, name, work)
    model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32).eval()
    peer, mine = perplexity(model, packed, 4, 512), own_perplexity(program, packed, 4)
    expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, Transformers {peer:.6f}")
    ours, theirs = our_weights(program, packed, "f32"), loaded_weights(model)
    wrong = differing(theirs, ours)
    expect(len(ours) == 14 and not wrong, f"{name}: 14 linears equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
finish()
