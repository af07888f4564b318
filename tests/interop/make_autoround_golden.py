#!/usr/bin/env python3
"""Quantizes a small random model with AutoRound into each of its containers, and writes the logits of what AutoRound says the codes mean.

make_autoround_golden.py [OUT]        with an interpreter that has auto-round 0.16.1 (peer_packages.sh pins it)

OUT/autoround-<container>/model: config.json and model.safetensors as AutoRound wrote them (rounding without tuning: the bytes depend on the weights alone). Beside it
logits.safetensors: ids and Transformers' float32 logits of the same model with AutoRound's own dequantized weights, scales widened first so that each product is exact.
OUT is tests/golden/models by default, where models_test.cpp reads every folder.
"""
import json, os, pathlib, re, shutil, sys, tempfile, zlib

os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HF_HUB_OFFLINE"] = "", "1"
import numpy as np
import torch
from auto_round import AutoRound
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from make_random_models import fill

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZER = HERE.parent / "models" / "tinystories-656k"
VOCAB, TOKENS, GROUP = 97, 24, 32
# Modules with another scheme: by name, by a part of it (an expression in the file), and left dense.
MIXED = {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 64}, "v_proj": {"bits": 3}, "model.layers.0.self_attn.k_proj": {"bits": 16}}
CONTAINERS = {  # name -> format, bits, symmetric, modules with another scheme
    "auto-gptq": ("auto_gptq", 4, True, {}),
    "auto-gptq-mixed": ("auto_gptq", 4, True, MIXED),
    "auto-awq": ("auto_awq", 4, False, {"model.layers.0.self_attn.k_proj": {"bits": 16}}),
    "auto-awq-symmetric": ("auto_awq", 4, True, {}),
    "own-gptq": ("auto_round", 4, True, {}),
    "own-gptq-mixed": ("auto_round", 4, True, {**MIXED, "model.layers.0.mlp.gate_proj": {"bits": 5}}),
    "own-awq": ("auto_round", 4, False, {}),
    "own-gptqmodel": ("auto_round:gptqmodel", 2, False, MIXED),
}


def original():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
    fill(model, zlib.crc32(b"autoround"))
    return model


def scheme_of(config, module):
    """bits, group size and packing of a module, as AutoRound's loader resolves them: the name first, then expressions anywhere in it."""
    quantization = config["quantization_config"]
    extra = quantization.get("extra_config", {})
    own = extra.get(module) or next((value for key, value in extra.items() if re.search(key, module)), {})
    for key, value in quantization.get("dynamic", {}).items():
        if key.startswith("+:") and re.match(key[2:], module):
            own = value
            break
    packing = quantization.get("packing_format") or {"gptq": "auto_round:auto_gptq", "awq": "auto_round:auto_awq"}[quantization["quant_method"]]
    return own.get("bits", quantization["bits"]), own.get("group_size", quantization["group_size"]), packing


def meaning(tensors, module, bits, group, packing):
    """[out, in] in FP32, by AutoRound's own code."""
    stored = {key: tensors[f"{module}.{key}"] for key in ("qweight", "qzeros", "scales")}
    if packing == "auto_round:auto_awq":
        return dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"].float(), bits, group).t()
    inputs = stored["qweight"].shape[0] * 32 // bits
    layer = (qlinear_torch_zp if packing == "auto_round:auto_gptq" else qlinear_torch).QuantLinear(bits, group, inputs, stored["qweight"].shape[1], False)
    layer.qweight, layer.qzeros, layer.scales = stored["qweight"], stored["qzeros"], stored["scales"].float()
    return layer(torch.eye(inputs)).t()


def write(name, out):
    form, bits, symmetric, others = CONTAINERS[name]
    folder = out / f"autoround-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        run = AutoRound(original().half(), AutoTokenizer.from_pretrained(TOKENIZER), bits=bits, group_size=GROUP, sym=symmetric, iters=0, nsamples=1, seqlen=32, device_map="cpu",
                        disable_opt_rtn=True, layer_config={key: dict(value) for key, value in others.items()})
        run.quantize_and_save(work, format=form)
        (written,) = pathlib.Path(work).rglob("config.json")
        (folder / "model").mkdir(parents=True)
        for file in ("config.json", "model.safetensors"):
            (folder / "model" / file).write_bytes((written.parent / file).read_bytes())
    config, tensors = json.loads((folder / "model" / "config.json").read_text()), load_file(folder / "model" / "model.safetensors")
    model = original()
    state = model.state_dict()
    packed = [key.removesuffix(".qweight") for key in tensors if key.endswith(".qweight")]
    assert len(packed) == 7 - sum(value["bits"] == 16 for value in others.values())
    for key in state:
        module = key.removesuffix(".weight")
        state[key] = meaning(tensors, module, *scheme_of(config, module)) if module in packed else tensors[key].float()
    model.load_state_dict(state)
    model.eval()
    model.config._attn_implementation = "eager"
    ids = np.random.default_rng(zlib.crc32(name.encode())).integers(3, VOCAB, TOKENS, dtype=np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()
    save_numpy({"ids": ids, "logits": np.ascontiguousarray(logits)}, folder / "logits.safetensors")
    print(f"{name}: {len(packed)} linears packed, logits {logits.min():.3f} .. {logits.max():.3f}, {config['quantization_config']}")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    for name in CONTAINERS:
        write(name, pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "golden" / "models")
