"""GPTQModel loads llmq's GPTQ checkpoints, v1 and v2, with its torch kernel: the same dequantized weights to the bit, the same perplexity
within 5e-5 in float32; re-packed to AWQ and back they are still the same. Then AutoAWQ's form (awq_gemm_check.py).

gptq_check.py LLMQ WORK
"""
import sys
import torch
import awq_gemm_check
from safetensors.torch import load_file
from gptqmodel import BACKEND, GPTQModel
from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity, perplexity, same_bits

program, work = sys.argv[1:3]
MIXED = ['overrides=[{match: "re:.*down_proj", scheme: w8a16_g64_sym}, {match: "re:.*v_proj", scheme: w3a16_channel_sym}]', 'ignore=[lm_head, "re:.*layers.0.*k_proj"]']
CALIBRATION = calibration(8, 256)
CASES = {  # name -> linears that stay packed, settings of the recipe; the format is the name's first word
    "gptq w4_sym": (14, ["method=rtn", "scheme=w4a16_g64_sym"]),
    "gptq w8_channel": (14, ["method=rtn", "scheme=w8a16_channel_sym"]),
    "gptq w3_sym": (14, ["method=rtn", "scheme=w3a16_g32_sym"]),
    "gptq w2_sym": (14, ["method=rtn", "scheme=w2a16_g16_sym"]),
    "gptq rules": (13, ["method=rtn", "scheme=w4a16_g64_sym", *MIXED]),
    "gptq act_order": (14, ["method=gptq", "scheme=w4a16_g32_sym", "gptq.order=act", *CALIBRATION]),
    "gptq_v2 w4_asym": (14, ["method=rtn", "scheme=w4a16_g64_asym"]),
    "gptq_v2 w8_asym": (14, ["method=rtn", "scheme=w8a16_g64_asym"]),
    "gptq_v2 w3_asym": (14, ["method=rtn", "scheme=w3a16_g32_asym"]),
    "gptq_v2 w2_asym": (14, ["method=rtn", "scheme=w2a16_g16_asym"]),
    "gptq_v2 act_order": (14, ["method=gptq", "scheme=w4a16_g32_asym", "gptq.order=act", *CALIBRATION]),
}


def dense_weights(packed):
    llmq(program, "convert", packed, f"{packed}-dense", "--to", "safetensors", "--dtype", "f32")
    return {k: v for k, v in load_file(f"{packed}-dense/model.safetensors").items() if k.endswith("_proj.weight")}


def load(packed, backend):
    """The scales are stored as F16; left to itself, GPTQModel rounds them to BF16 on a CPU with BF16 instructions."""
    return GPTQModel.load(packed, device="cpu", dtype=torch.float16, backend=backend).model


def theirs(module):
    """What the module's codes, zeros and scales mean in float32: the kernel itself rounds each product to F16."""
    stored, module.scales = module.scales, module.scales.float()
    weight = type(module).dequantize_weight(module).T.contiguous()
    module.scales = stored
    return weight


for name, (packed_linears, settings) in CASES.items():
    form = name.split()[0]
    packed = f"{work}/{name.replace(' ', '-')}"
    llmq(program, "quantize", "--model", TINYSTORIES, "--output", packed, *[a for s in [*settings, f"format={form}"] for a in ("--set", s)])
    ours = dense_weights(packed)
    loaded = load(packed, BACKEND.GPTQ_TORCH)
    modules = {key: module for key, module in loaded.named_modules() if hasattr(module, "qweight")}
    expect(len(modules) == packed_linears, f"{name}: GPTQModel replaced {packed_linears} linears by its kernel")
    reordered = 0
    for key, module in modules.items():
        weight = theirs(module)
        if not same_bits(weight, ours[key + ".weight"]): expect(False, f"{name}: {key}: dequantized weights equal to the bit")
        reordered += not torch.equal(module.g_idx, module.g_idx.sort().values)
        module.forward = lambda x, weight=weight: torch.nn.functional.linear(x, weight)
    expect((reordered > 0) == ("act_order" in name), f"{name}: dequantized weights compared, {reordered} linears with columns in another order")
    mine = own_perplexity(program, packed, 2)
    model = loaded.float()
    stored = load_file(f"{packed}/model.safetensors")  # embedding and norms are F32 there, and went through F16 above
    stored["model.embed_tokens.weight"] = stored["lm_head.weight"]  # tied
    for key, parameter in model.named_parameters():
        if key in stored: parameter.data.copy_(stored[key])
    peer = perplexity(model, packed, 2, 512)
    expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, GPTQModel {peer:.6f}")

awq_gemm_check.check(program, work)
finish()
