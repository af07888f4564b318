"""mlx-lm loads llmq's MLX directories: the same numbers to the bit, the same perplexity within 5e-5 in float32; and `convert --to mlx` has the bytes of mlx_lm.convert.

mlx_check.py LLMQ WORK
"""
import json, math, shutil, sys
import tokenizers
import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load
from mlx_lm.convert import convert
from mlx_lm.utils import dequantize_model
from mlx.utils import tree_flatten
from peer import TINYSTORIES, WIKITEXT, expect, finish, llmq

program, work = sys.argv[1:3]
mx.set_default_device(mx.cpu)
mx.disable_compile()  # else a compiler runs for each fused operation


def tensors_of(directory):
    return mx.load(f"{directory}/model.safetensors")


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and bytes(memoryview(a.view(mx.uint8))) == bytes(memoryview(b.view(mx.uint8)))


def perplexity(model, directory, windows=2, width=512):
    """As peer.perplexity(), of a model of mlx; what its windows hold are some 3000 characters."""
    text = open(WIKITEXT, encoding="utf-8").read()[:20000]
    ids = mx.array(tokenizers.Tokenizer.from_file(f"{directory}/tokenizer.json").encode(text).ids)
    total, count = 0.0, 0
    for i in range(windows):
        x = ids[None, i * width:(i + 1) * width]
        loss = nn.losses.cross_entropy(model(x[:, :-1]).astype(mx.float32), x[:, 1:], reduction="none")
        total, count = total + sum(loss[0].tolist()), count + width - 1
    return math.exp(total / count)


def check_output(name, *arguments):
    """Loads what llmq made: numbers, perplexity of the numbers in float32, and of the codes as mlx multiplies them."""
    packed, dense = f"{work}/{name}", f"{work}/{name}-dense"
    llmq(program, *arguments, "--output", packed)
    llmq(program, "convert", packed, dense, "--to", "safetensors")
    model, _ = load(packed)
    quantized = {path: m for path, m in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module) if hasattr(m, "bits")}
    expect(len(quantized) == 14, f"{name}: mlx-lm has 14 linears of codes")
    as_codes = perplexity(model, packed)
    ours = tensors_of(dense)
    dequantize_model(model)
    theirs = dict(tree_flatten(model.parameters()))
    expect(all(same(theirs[f"{path}.weight"], ours[f"{path}.weight"]) for path in quantized), f"{name}: the numbers of mx.dequantize to the bit")
    model.set_dtype(mx.float32)
    mine, peer = llmq(program, "eval-ppl", packed, "--max-windows", 2)["ppl"], perplexity(model, packed)
    expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, mlx {peer:.6f}")
    expect(abs(mine / as_codes - 1) <= 0.02, f"{name}: perplexity {mine:.4f}, of codes and scales in mlx {as_codes:.4f}")
    return json.load(open(f"{packed}/config.json"))


# By mlx-lm's own rounding. Its copy of the model has the tied table under the name that it looks for.
source = f"{work}/source"
shutil.copytree(TINYSTORIES, source)
stored = tensors_of(TINYSTORIES)
stored["model.embed_tokens.weight"] = stored.pop("lm_head.weight")
mx.save_safetensors(f"{source}/model.safetensors", stored, metadata={"format": "pt"})
for bits, group in ((4, 64), (3, 32)):
    theirs, ours = f"{work}/theirs-{bits}", f"{work}/ours-{bits}"
    convert(source, theirs, quantize=True, q_bits=bits, q_group_size=group)
    llmq(program, "convert", TINYSTORIES, ours, "--to", "mlx", "--dtype", f"w{bits}a16_g{group}")
    a, b = tensors_of(theirs), tensors_of(ours)
    expect(a.keys() == b.keys() and all(same(a[key], b[key]) for key in a), f"{bits} bits, groups of {group}: the {len(a)} tensors of mlx_lm.convert to the byte")
    config, own = (json.load(open(f"{place}/config.json")) for place in (theirs, ours))
    expect(config["quantization"] == own["quantization"] == own["quantization_config"], f"{bits} bits: config.json says quantization alike")
    index, own = (json.load(open(f"{place}/model.safetensors.index.json")) for place in (theirs, ours))
    expect(index["metadata"] == own["metadata"] and index["weight_map"] == own["weight_map"], f"{bits} bits: the index is alike")
load(f"{work}/ours-4")
llmq(program, "convert", f"{work}/theirs-4", f"{work}/theirs-dense", "--to", "safetensors")
model, _ = load(f"{work}/theirs-4")
dequantize_model(model)
theirs, ours = dict(tree_flatten(model.parameters())), tensors_of(f"{work}/theirs-dense")
expect(theirs.keys() == ours.keys() and all(same(theirs[key], ours[key]) for key in ours), "what mlx_lm.convert wrote is read as mx.dequantize reads it, the embedding too")

calibrated = ["--set", "calibration.samples=8", "--set", "calibration.sequence_length=256", "--set", "format=mlx"]
check_output("gptq", "quantize", "--method", "gptq", "--model", TINYSTORIES, "--set", "scheme=w4a16_g64_asym", *calibrated)
recipe = f"{work}/mixed.yaml"
with open(recipe, "w") as file:
    file.write("method: [awq, gptq]\nformat: mlx\nscheme: w3a16_g32_asym\noverrides:\n  - {match: 're:.*down_proj', scheme: w8a16_g128_sym}\n")
config = check_output("mixed", "quantize", "--recipe", recipe, "--model", TINYSTORIES, *calibrated[:4])
expect(config["quantization"]["model.layers.0.mlp.down_proj"] == {"group_size": 128, "bits": 8, "mode": "affine"}, "another form is said by the linear's name")
finish()
