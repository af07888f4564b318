"""Transformers + compressed-tensors load checkpoints whose inputs are rounded too: the same dequantized weights to the bit in float32, and, because
the library rounds activations by the rule that llmq computes with, the same perplexity.   low_precision_check.py LLMQ WORK

llmq multiplies integers (or E4M3 numbers) and scales the sums; the library multiplies dequantized numbers in FP32. The two differ by roundings of
2^-24, until one of these, or of a norm or a softmax before, moves an input across the border between two codes: then by a whole code. So the library
itself is asked how much that is: the logarithm of its perplexity with each embedding off by a few of its last bits, eight times over. llmq's must be
one more such number (within five deviations). That each linear rounds and multiplies as the library does, within roundings of FP32, is what
tests/unit/model/linear_source_test.cpp holds.
"""
import json, math, statistics, sys
import torch
from transformers import AutoModelForCausalLM
from compressed_tensors_cases import CASES, differing, loaded_weights, our_weights, write_case
from peer import expect, finish, llmq, perplexity

STATIC = ["calibration.samples=8", "calibration.sequence_length=256"]
CASES.update({
    "w8a8": ["method=rtn", "scheme=w8a8"],
    "w8a8-static": ["method=rtn", "scheme=w8a8_channel_sym_static", *STATIC],
    "w8a8-group": ["method=rtn", "scheme=w8a8_g32"],
    "w4a8": ["method=rtn", "scheme=w4a8_g32"],
    "fp8": ["method=rtn", "scheme=fp8"],
    "fp8-static": ["method=rtn", "scheme=fp8_static", *STATIC],
    "fp8-block": ["method=rtn", "scheme=fp8_block"],
    "w8a8-and-w4a16": ["method=rtn", "scheme=w8a8", 'overrides=[{match: "re:.*down_proj", scheme: w4a16_g64_sym}]'],
})
FORMATS = {"w8a8-and-w4a16": "mixed-precision"}



def logarithms(model, packed):
    """ln perplexity as it is, and their mean and deviation with embeddings perturbed by 2^-22, relative."""
    plain = math.log(perplexity(model, packed, 4, 512))
    embedding = model.get_input_embeddings().weight
    kept, disturbed = embedding.data.clone(), []
    for seed in range(8):
        noise = torch.randn(kept.shape, generator=torch.Generator().manual_seed(seed))
        embedding.data = kept * (1 + noise * 2.0**-22)
        disturbed.append(math.log(perplexity(model, packed, 4, 512)))
    embedding.data = kept
    return plain, statistics.mean(disturbed), statistics.stdev(disturbed)


program, work = sys.argv[1:3]
for name in list(CASES)[-8:]:
    packed = write_case(program, name, work)
    model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32).eval()
    plain, mean, deviation = logarithms(model, packed)
    mine = math.log(llmq(program, "eval-ppl", packed, "--max-windows", 4, "--compute", "float32")["ppl"])
    expect(abs(mine - mean) <= max(5e-5, 5 * deviation), f"{name}: perplexity {math.exp(mine):.4f}, Transformers {math.exp(plain):.4f}; relative to "
           f"its mean over perturbed embeddings {mine - mean:+.1e} and {plain - mean:+.1e}, their deviation {deviation:.1e}")
    ours, theirs = our_weights(program, packed, "f32"), loaded_weights(model)
    wrong = differing(theirs, ours)
    expect(len(ours) == 14 and not wrong, f"{name}: 14 linears equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
    form = FORMATS.get(name, "float-quantized" if name.startswith("fp8") else "int-quantized")
    said = json.load(open(f"{packed}/config.json"))["quantization_config"]["format"]
    expect(said == form, f"{name}: format {said}")
finish()
