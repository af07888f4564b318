"""Floats in groups (NVFP4, MXFP4, MXFP8) against Transformers + compressed-tensors.   float_groups_check.py LLMQ WORK

The library widens such weights to BF16 when a checkpoint is loaded, whatever type is asked for: llmq's, rounded to BF16, equal them to the bit. The
bytes are its own too: its compressor, given the weight that llmq read and the scales that llmq found, writes the same. Where inputs are rounded as well,
the library rounds them while Transformers runs on llmq's exact weights, and the global scales of inputs are the library's own of the largest magnitudes that
Transformers' modules see in the calibration text. Perplexities are compared with the first block rounded: through more of them one number that falls on
the other side of a tie may move all that comes behind it, by as much as 0.3 %, in either program.
"""
import json, re, sys
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import MXFP4, MXFP4A16, MXFP8, MXFP8A16, NVFP4, NVFP4A16
from compressed_tensors.quantization.utils import generate_gparam
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from compressed_tensors_cases import CASES, differing, loaded_weights, our_weights, write_case
from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity, perplexity

PRESETS = {"nvfp4a16": (NVFP4A16, "nvfp4-pack-quantized"), "mxfp4": (MXFP4A16, "mxfp4-pack-quantized"), "mxfp8a16": (MXFP8A16, "mxfp8-quantized"),
           "nvfp4": (NVFP4, "nvfp4-pack-quantized"), "mxfp4a4": (MXFP4, "mxfp4-pack-quantized"), "mxfp8": (MXFP8, "mxfp8-quantized")}
program, work = sys.argv[1:3]
before = load_file(f"{TINYSTORIES}/model.safetensors")


def same_bytes(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check_inputs(model, packed, name):
    """Transformers on llmq's weights, its inputs rounded by the library as the directory says."""
    exact = our_weights(program, packed, "f32")
    model(torch.tensor([[1, 2]]))
    torch.nn.Module.float(model)
    for key, module in model.named_modules():
        if not key.endswith("_proj") or not hasattr(module, "quantization_scheme"): continue
        module.weight.data = exact[key + ".weight"]
        module.quantization_scheme = QuantizationScheme(targets=["Linear"], input_activations=module.quantization_scheme.input_activations)
    peer, mine = perplexity(model, packed, 4, 512), own_perplexity(program, packed, 4)
    expect(abs(mine / peer - 1) <= 2e-4, f"{name}: perplexity {mine:.6f} with rounded inputs, Transformers {peer:.6f}")
    plain = own_perplexity(program, f"{packed}-f32", 4)
    expect(abs(mine / plain - 1) > 1e-3 or "mxfp8" in name, f"{name}: it is not the {plain:.6f} of inputs that stay")


def check_globals(packed, name):
    """Before the first block's q, k and v nothing is rounded that their input could differ by, but to BF16."""
    model, found = AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32).eval(), {}
    module = model.model.layers[0].self_attn.q_proj
    module.register_forward_pre_hook(lambda _, x: found.update(top=max(found.get("top", 0.0), x[0].abs().max().item())))
    perplexity(model, packed, 8, 256)
    wanted = generate_gparam(torch.tensor([0.0]), torch.tensor([found["top"]])).item()
    stored = load_file(f"{packed}/model.safetensors")
    for part in "qkv":
        mine = stored[f"model.layers.0.self_attn.{part}_proj.input_global_scale"].item()
        expect(abs(mine / wanted - 1) <= 5e-3, f"{name}: {part}'s input_global_scale {mine:.5f}, the library's {wanted:.5f}")


for scheme, (preset, format) in PRESETS.items():
    rounds_inputs = "input_activations" in preset
    for scales in ("minmax",) if rounds_inputs else ("search", "minmax"):
        name = f"{scheme}-{scales}"
        CASES[name] = ["method=rtn", f"scheme={scheme}", f"floats.scales={scales}", *(calibration(8, 256) if scheme == "nvfp4" else [])]
        packed = write_case(program, name, work)
        expect(llmq(program, "inspect", packed)["loaders"][0]["fits"], f"{name}: the table names a loader")
        model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.bfloat16).eval()
        model(torch.tensor([[1, 2]]))  # the first tokens make it widen its weights
        ours = our_weights(program, packed, "bf16")
        theirs = {k + ".weight": m.weight.detach() for k, m in model.named_modules() if k.endswith("_proj")}
        wrong = differing(theirs, ours)
        expect(len(ours) == 14 and not wrong, f"{name}: 14 linears equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
        for module in model.modules():
            module.quantization_enabled = False  # else it rounds what it widened once more
        peer, mine = perplexity(torch.nn.Module.float(model), packed, 4, 512), own_perplexity(program, f"{packed}-bf16", 4)
        expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f} of these weights, Transformers {peer:.6f}")
        our_weights(program, packed, "f32")
        exact = own_perplexity(program, f"{packed}-f32", 4)
        if not rounds_inputs:
            expect(own_perplexity(program, packed, 4) == exact, f"{name}: perplexity {exact:.6f} of the packed ones, which are not rounded to BF16")

        stored = load_file(f"{packed}/model.safetensors")
        compressor, wrong = BaseCompressor.get_value_from_registry(format), []
        for module in (k.removesuffix(".weight") for k in ours):
            given = {"weight": before[module + ".weight"].float(), "weight_scale": stored[module + ".weight_scale"]}
            if (name_of_global := module + ".weight_global_scale") in stored:
                given["weight_global_scale"] = stored[name_of_global]
                given["weight_scale"] = given["weight_scale"].float()
            else:
                given["weight_scale"] = 2.0 ** (given["weight_scale"].float() - 127)
            for key, tensor in compressor.compress(given, QuantizationScheme(targets=["Linear"], weights=preset["weights"])).items():
                if tensor is not None and not same_bytes(tensor, stored[f"{module}.{key}"]):
                    wrong.append(f"{module}.{key}")
        expect(not wrong, f"{name}: the library's compressor writes the same bytes{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
        for parts in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")) if scheme.startswith("nvfp4") else ():
            found = {stored[f"model.layers.0.{part}.weight_global_scale"].item() for part in parts}
            expect(len(found) == 1, f"{name}: {', '.join(parts)} share one global scale")

for scheme in ("nvfp4", "mxfp4a4", "mxfp8"):
    name = f"{scheme}-first-block"
    CASES[name] = ["method=rtn", f"scheme={scheme}", 'overrides=[{match: "re:.*layers.1.*", scheme: dense}]', *calibration(8, 256), "calibration.shuffle=false"]
    packed = write_case(program, name, work)
    check_inputs(AutoModelForCausalLM.from_pretrained(packed, dtype=torch.bfloat16).eval(), packed, name)
    if scheme == "nvfp4": check_globals(packed, name)

# Schemes of every form of scales in one output: each linear is named by one group, whose format is its own, and holds the library's weights.
FORMATS = {
    "model.layers.0.self_attn.[qkv]_proj": ("nvfp4a16", "nvfp4-pack-quantized"),
    "model.layers.0.self_attn.o_proj": ("w3a16_g32_sym", "pack-quantized"),
    "model.layers.0.mlp.(gate|up)_proj": ("mxfp8a16", "mxfp8-quantized"),
    "model.layers.0.mlp.down_proj": ("dense", None),
    "model.layers.1.self_attn.[qkv]_proj": ("w8a16_channel_sym", "pack-quantized"),
    "model.layers.1.self_attn.o_proj": ("mxfp4", "mxfp4-pack-quantized"),
    "model.layers.1.mlp.(gate|up)_proj": ("w4a16_g32_sym", "pack-quantized"),
    "model.layers.1.mlp.down_proj": ("fp8", "float-quantized"),
}
overrides = ", ".join(f'{{match: "re:.*{match}", scheme: {scheme}}}' for match, (scheme, _) in FORMATS.items())
CASES["mixed"] = ["method=[awq, gptq]", *calibration(8, 256), "scheme=w4a16_g64_sym", f"overrides=[{overrides}]"]
packed = write_case(program, "mixed", work)
config = json.load(open(f"{packed}/config.json"))["quantization_config"]
found = [(target, group["format"]) for group in config["config_groups"].values() for target in group["targets"]]
expected = {name: next(format for match, (_, format) in FORMATS.items() if re.fullmatch(match, name)) for name in (k.removesuffix(".weight") for k in ours)}
expect(config["format"] == "mixed-precision" and sorted(found) == sorted((k, f) for k, f in expected.items() if f),
       f"mixed: {len(config['config_groups'])} groups name 13 linears, each once and with the format of its scheme")
expect(config["ignore"] == ["model.layers.0.mlp.down_proj", "lm_head"], "mixed: what an override leaves dense is ignored")
expect(all(loader["fits"] for loader in llmq(program, "inspect", packed)["loaders"]), "mixed: the table of loaders says that it loads")
model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.bfloat16).eval()
model(torch.tensor([[1, 2]]))
theirs, ours = loaded_weights(model), our_weights(program, packed, "bf16")
wrong = differing(theirs, ours)
expect(len(ours) == 14 and not wrong, f"mixed: 14 linears equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
finish()
