"""The newest Transformers + compressed-tensors load what llmq wrote.   compressed_tensors_latest_check.py LLMQ WORK

Symmetric checkpoints load without being told anything, bit-equal in float32. Asymmetric ones do not load that way in these versions, whoever wrote
them; with dequantize=True they do, and the product of code and scale is then taken in the type of the scale: llmq's weights rounded to BF16.
A checkpoint of both kinds ("mixed") has no way in: dequantize=True asks the symmetric modules for zero points.
"""
import sys
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
from compressed_tensors_cases import CASES, differing, loaded_weights, our_weights, symmetric, write_case
from peer import calibration, expect, finish, llmq, own_perplexity, perplexity

program, work = sys.argv[1:3]
for name in [n for n in CASES if n != "mixed"]:
    packed = write_case(program, name, work)
    if symmetric(name):
        model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32).eval()
        peer, mine = perplexity(model, packed, 4, 512), own_perplexity(program, packed, 4)
        expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, Transformers {peer:.6f}")
        ours, theirs = our_weights(program, packed, "f32"), loaded_weights(model)
    else:
        model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True))
        ours, theirs = our_weights(program, packed, "bf16"), {k: v.bfloat16() for k, v in loaded_weights(model).items()}
    wrong = differing(theirs, ours)
    expect(len(ours) == 14 and not wrong, f"{name}: 14 linears equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")

# A group index per column was taken out of the library: whoever writes it is refused. When this fails, the loader table changes too.
CASES["gptq-act"] = ["method=gptq", "scheme=w4a16_g64_sym", "gptq.order=act", *calibration(8, 256)]
packed = write_case(program, "gptq-act", work)
verdicts = llmq(program, "inspect", packed)["loaders"]
expect(not any(v["fits"] for v in verdicts), "gptq-act: the table names no loader")
try:
    AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32)
    expect(False, "gptq-act: compressed-tensors refuses it")
except ValueError as error:
    expect("actorder" in str(error), "gptq-act: compressed-tensors refuses it")
finish()
