"""The quantized checkpoints of the compressed-tensors checks, and what a loaded module's weight is in float32."""
import torch
from safetensors.torch import load_file
from peer import TINYSTORIES, calibration, llmq

CASES = {  # name -> settings of the recipe
    "rtn-asym": ["method=rtn", "scheme=w4a16_g64_asym"],
    "rtn-sym": ["method=rtn", "scheme=w4a16_g32_sym"],
    "rtn-channel": ["method=rtn", "scheme=w8a16_channel_sym"],
    "rtn-8bit": ["method=rtn", "scheme=w8a16_g128_asym"],
    "rtn-3bit": ["method=rtn", "scheme=w3a16_g64_sym"],
    "rtn-2bit": ["method=rtn", "scheme=w2a16_g32_sym"],
    "rotated": ["method=rtn", "scheme=w4a16_g64_sym", "rotate.value=hadamard"],  # a transform_config that is in the weights
    # Signed scales: full_range puts the largest weight of a group on code 0 where that loses less.
    "gptq-static": ["method=gptq", "scheme=w4a16_g64_sym", "gptq.order=static", *calibration(8, 256)],
    "awq": ["method=awq", "scheme=w4a16_g64_asym", *calibration(8, 256)],
    "mixed": ["method=rtn", "scheme=w4a16_g64_asym", 'overrides=[{match: "re:.*down_proj", scheme: w8a16_g64_sym}]', 'ignore=[lm_head, "re:.*layers.0.*k_proj"]'],
    "mixed-sym": ["method=rtn", "scheme=w4a16_g64_sym", 'overrides=[{match: "re:.*down_proj", scheme: w8a16_g64_sym}]', 'ignore=[lm_head, "re:.*layers.0.*k_proj"]'],
}


def symmetric(name):
    return not any("asym" in setting for setting in CASES[name])


def write_case(program, name, work):
    packed = f"{work}/{name}"
    llmq(program, "quantize", "--model", TINYSTORIES, "--output", packed, *[a for s in CASES[name] for a in ("--set", s)])
    return packed


def our_weights(program, packed, dtype):
    """llmq's own linears of a packed checkpoint, dequantized and rounded to `dtype` ("f32": not rounded)."""
    dense = f"{packed}-{dtype}"
    llmq(program, "convert", packed, dense, "--to", "safetensors", "--dtype", dtype)
    return {k: v for k, v in load_file(f"{dense}/model.safetensors").items() if k.endswith("_proj.weight")}


def loaded_weights(model):
    """The linears as Transformers holds them; those still packed are unpacked by compressed-tensors itself."""
    from compressed_tensors.compressors import decompress_module
    weights = {}
    for name, module in model.named_modules():
        if not name.endswith("_proj"): continue
        if hasattr(module, "weight_packed"): decompress_module(module)
        weights[name + ".weight"] = module.weight.detach()
    return weights


def differing(theirs, ours):
    """Names of the linears that are missing on a side or differ in a bit."""
    def bits(t): return t.contiguous().view(torch.int32 if t.dtype == torch.float32 else torch.int16)
    return [k for k in sorted(ours.keys() | theirs.keys()) if k not in ours or k not in theirs or ours[k].dtype != theirs[k].dtype
            or ours[k].shape != theirs[k].shape or not torch.equal(bits(ours[k]), bits(theirs[k]))]
