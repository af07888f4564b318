"""Transformers + compressed-tensors load what llmq wrote: the same dequantized weights to the bit, the same perplexity within 5e-5.

compressed_tensors_check.py LLMQ WORK
"""
import os, sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
from peer import TINYSTORIES, expect, finish, llmq, perplexity, same_bits

program, work = sys.argv[1:3]
torch.set_num_threads(os.cpu_count())
CASES = {  # name -> settings of the recipe
    "rtn-asym": ["method=rtn", "scheme=w4a16_g64_asym"],
    "rtn-sym": ["method=rtn", "scheme=w4a16_g32_sym"],
    "rtn-channel": ["method=rtn", "scheme=w8a16_channel_sym"],
    "rtn-8bit": ["method=rtn", "scheme=w8a16_g128_asym"],
    "rtn-3bit": ["method=rtn", "scheme=w3a16_g64_sym"],
    "awq": ["method=awq", "scheme=w4a16_g64_asym", "calibration.samples=8", "calibration.sequence_length=256"],
    "mixed": ["method=rtn", "scheme=w4a16_g64_asym", 'overrides=[{match: "re:.*down_proj", scheme: w8a16_g64_sym}]', 'ignore=[lm_head, "re:.*layers.0.*k_proj"]'],
}
for name, settings in CASES.items():
    packed, dense = f"{work}/{name}", f"{work}/{name}-dense"
    llmq(program, "quantize", "--model", TINYSTORIES, "--output", packed, *[a for s in settings for a in ("--set", s)])
    llmq(program, "convert", packed, dense, "--to", "safetensors", "--dtype", "f32")
    model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32, quantization_config=CompressedTensorsConfig(run_compressed=False)).eval()
    theirs = {k: v for k, v in model.state_dict().items() if k.endswith("_proj.weight")}
    ours = {k: v for k, v in load_file(f"{dense}/model.safetensors").items() if k.endswith("_proj.weight")}
    expect(sorted(theirs) == sorted(ours) and len(ours) == 14, f"{name}: the same 14 linears")
    wrong = [k for k in ours if k not in theirs or not same_bits(theirs[k].float(), ours[k])]
    expect(not wrong, f"{name}: dequantized weights equal to the bit{' but not ' + ', '.join(wrong[:3]) if wrong else ''}")
    mine = llmq(program, "eval-ppl", packed, "--max-windows", 4)["ppl"]
    peer = perplexity(model, packed, 4, 512)
    expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, Transformers {peer:.6f}")
finish()
