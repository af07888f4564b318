"""Checkpoints whose inputs are rounded too, against Transformers + compressed-tensors.   low_precision_check.py LLMQ WORK

The environment's LLMQ_LINEARS is the program that runs single linears (linears_main.cpp).

Three things are held, each as tightly as it can be:

weights   dequantized, equal to the bit.
linears   On the inputs that the library computed, each of llmq's linears is the product of the library's own codes and scales. That product is
          taken here in FP64 from the codes (integers and E4M3 numbers: exact), and llmq may differ by the roundings that src/device/low_precision.h
          lists: with u = 2^-24 and G groups of columns, INT8 (sums exact)   (G + 3) u sum_g |S_g s_g| scale,
          E4M3 (sums in FP32)   (K + G + 3) u sum_k |x_k w_k|. A code that differs would show: what one code is worth is printed in units of the bound.
model     Perplexity. Where inputs are not rounded both compute the same function in FP32, and 5e-5 holds. Where they are, FP32's last bits in a norm
          or a softmax move some input across the border between two codes, and that input is off by a whole code. So the library is run again and
          again with every linear's input off by FP32 noise (relative 2^-22: four roundings, what a norm, a rotation and a softmax come to); llmq's
          ln perplexity must be one more such number: with n of them, within t of their deviation times sqrt(1 + 1/n), t = 7.89 the two-sided 1e-4
          point of Student's distribution for n - 1 = 7. And below 0.5 % in any case.
start     Where it begins: the inputs of the first linear, one norm after the embedding, differ by that norm's roundings alone: on either side K / 2
          of the sum of K squares under the root, and 4 more, so (K + 8) u. How many codes differ from there on, linear by linear, is printed.
"""
import json, math, os, statistics, subprocess, sys
import numpy as np
import torch
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from compressed_tensors_cases import CASES, differing, loaded_weights, our_weights, write_case
from peer import calibration, expect, finish, own_perplexity, perplexity, wikitext_ids

STATIC = calibration(8, 256)
OURS = {  # name -> settings, format
    "w8a8": (["method=rtn", "scheme=w8a8"], "int-quantized"),
    "w8a8-smooth": (["method=[smoothquant, gptq]", "scheme=w8a8", *STATIC], "int-quantized"),
    "w8a8-static": (["method=rtn", "scheme=w8a8_channel_sym_static", *STATIC], "int-quantized"),
    "w8a8-group": (["method=rtn", "scheme=w8a8_g32"], "int-quantized"),
    "w4a8": (["method=rtn", "scheme=w4a8_g32"], "int-quantized"),
    "fp8": (["method=rtn", "scheme=fp8"], "float-quantized"),
    "fp8-static": (["method=rtn", "scheme=fp8_static", *STATIC], "float-quantized"),
    "fp8-block": (["method=rtn", "scheme=fp8_block"], "float-quantized"),
    "w8a8-and-w4a16": (["method=rtn", "scheme=w8a8", 'overrides=[{match: "re:.*down_proj", scheme: w4a16_g64_sym}]'], "mixed-precision"),
    "budget": (["method=rtn", "scheme=w4a16_g64_sym", "target_bits=6", *STATIC], "pack-quantized"),
    "w8a16": (["method=rtn", "scheme=w8a16_g64_sym"], "pack-quantized"),
}
CASES.update({name: settings for name, (settings, _) in OURS.items()})
LINEARS = os.environ["LLMQ_LINEARS"]
WINDOWS, TOKENS, RUNS, T = 4, 512, 8, 7.89
U = 2.0**-24


def linears(model):
    return {name: module for name, module in model.named_modules() if name.endswith("_proj")}


def rounds_inputs(module):
    scheme = getattr(module, "quantization_scheme", None)
    return scheme is not None and scheme.input_activations is not None


def seen(model, ids):
    """Each linear's input and output for one sequence, [tokens, features]."""
    found, hooks = {}, []
    for name, module in linears(model).items():
        hooks.append(module.register_forward_hook(lambda _, x, y, name=name: found.__setitem__(name, (x[0][0].clone(), y[0].clone()))))
    with torch.inference_mode():
        model(ids)
    for hook in hooks: hook.remove()
    return found


def spread(scale, width, columns):
    """A scale of runs of `width` columns, for each column."""
    return scale.repeat_interleave(width, -1)[..., :columns]


def codes_of(module, x):
    """The library's codes of x [T, K] and the scale of each, in FP64."""
    args = module.quantization_scheme.input_activations
    if args.dynamic:
        scale, zero = compute_dynamic_scales_and_zp(x[None], args, module)
    else:
        scale, zero = module.input_scale, getattr(module, "input_zero_point", None)
    codes = quantize(x[None], scale, zero, args)[0]
    every = scale.reshape(1, -1) if not args.dynamic else scale[0]
    wide = spread(every, -(-x.shape[1] // every.shape[-1]), x.shape[1])
    return codes.double(), wide.double().expand(codes.shape)


def exact_weight(tensors, name):
    """Codes [N, K] and scales [N, G] in FP64."""
    codes, scale = tensors[name + ".weight"], tensors[name + ".weight_scale"].double()
    rows, columns = codes.shape
    scale = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    scale = scale.repeat_interleave(-(-rows // scale.shape[0]), 0)[:rows]
    return codes.double(), scale


def product(module, x, tensors, name):
    """What the linear is by definition, the bounds of llmq's roundings and of the library's, and what one code of the input is worth."""
    codes, input_scale = codes_of(module, x)
    weight, scale = exact_weight(tensors, name)
    groups, columns = scale.shape[1], weight.shape[1]
    width = -(-columns // groups)
    y, size = 0, 0
    for g in range(groups):
        part = slice(g * width, (g + 1) * width)
        term = ((codes * input_scale)[:, part] @ weight[:, part].T) * scale[:, g]
        y = y + term
        size = size + term.abs()
    wide = spread(scale, width, columns)
    summed = (columns + groups + 3) * U * ((codes * input_scale).abs() @ (weight * wide).abs().T)
    bound = (groups + 3) * U * size if tensors[name + ".weight"].dtype == torch.int8 else summed
    worth = input_scale[:, :1] * (weight * wide).abs().median(1).values
    return y, bound, summed, worth


def check_linears(name, packed, model, work, ids):
    tensors = load_file(f"{packed}/model.safetensors")
    folder = f"{work}/{name}-linears"
    os.makedirs(folder)
    found = seen(model, ids)
    for module, (x, _) in found.items():
        x.numpy().astype("<f4").tofile(f"{folder}/{module}.x")
    subprocess.run([LINEARS, "apply", packed, folder], check=True)
    worst = library = 0.0
    worth, count = [], 0
    for path, module in linears(model).items():
        if not rounds_inputs(module): continue
        x, theirs = found[path]
        y, bound, summed, one = product(module, x, tensors, path)
        ours = torch.from_numpy(np.fromfile(f"{folder}/{path}.y", "<f4").reshape(y.shape)).double()
        least = 2.0**-126
        worst = max(worst, ((ours - y).abs() / (bound + least)).max().item())
        library = max(library, ((theirs.double() - y).abs() / (summed + least)).max().item())
        worth.append((one / (bound + least)).median().item())
        count += 1
    if count:
        expect(worst <= 1 and library <= 1, f"{name}: {count} linears are the products of the library's codes: off by {worst:.3g} of the bound, the library by {library:.3g} of its own; "
               f"one code is worth {min(worth):.0f} bounds")
    return count


def check_start(name, packed, model, work, ids):
    """The inputs that llmq computes by itself beside the library's."""
    folder = f"{work}/{name}-trace"
    os.makedirs(folder)
    ids.numpy().astype("<i4").tofile(f"{folder}/ids")
    subprocess.run([LINEARS, "trace", packed, f"{folder}/ids", folder], check=True)
    found = seen(model, ids)
    differ = {}
    for path, module in linears(model).items():
        x = found[path][0]
        mine = torch.from_numpy(np.fromfile(f"{folder}/{path}.x", "<f4").reshape(x.shape))
        if path == "model.layers.0.self_attn.q_proj":
            worst = ((mine.double() - x).abs() / x.abs().double().clamp(min=2.0**-126)).max().item() / U
            expect(worst <= x.shape[1] + 8, f"{name}: inputs of the first linear differ by {worst:.1f} roundings")
        if rounds_inputs(module) and path.split(".")[-1] in ("q_proj", "o_proj", "gate_proj", "down_proj"):
            differ[path.removeprefix("model.layers.")] = (codes_of(module, mine)[0] != codes_of(module, x)[0]).sum().item()
    print(f"    codes that differ, of {ids.numel()} tokens: " + ", ".join(f"{path} {count}" for path, count in differ.items()))


def noisy_logarithms(model, packed):
    """ln perplexity as it is, and with FP32 noise on every linear's input."""
    plain = math.log(perplexity(model, packed, WINDOWS, TOKENS))
    noisy = []
    for seed in range(RUNS):
        generator = torch.Generator().manual_seed(seed)
        hooks = [m.register_forward_pre_hook(lambda _, x: (x[0] * (1 + torch.randn(x[0].shape, generator=generator) * 2.0**-22), *x[1:]))
                 for m in linears(model).values()]
        noisy.append(math.log(perplexity(model, packed, WINDOWS, TOKENS)))
        for hook in hooks: hook.remove()
    return plain, noisy


def sequence(packed):
    return wikitext_ids(f"{packed}/tokenizer.json")[:, :TOKENS]


program, work = sys.argv[1:3]
for name in os.environ.get("LLMQ_CHECK_CASES", ",".join(OURS)).split(","):
    packed = write_case(program, name, work)
    said = json.load(open(f"{packed}/config.json"))["quantization_config"]["format"]
    expect(said == OURS[name][1], f"{name}: format {said}")
    model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32).eval()
    mine = math.log(own_perplexity(program, packed, WINDOWS, "--context", TOKENS, "--compute", "float32"))
    ids = sequence(packed)
    if check_linears(name, packed, model, work, ids):
        check_start(name, packed, model, work, ids)
        plain, noisy = noisy_logarithms(model, packed)
        mean, deviation = statistics.mean(noisy), statistics.stdev(noisy)
        limit = T * deviation * math.sqrt(1 + 1 / RUNS)
        expect(abs(mine - mean) <= limit and abs(mine - plain) <= 5e-3,
               f"{name}: perplexity {math.exp(mine):.4f}, Transformers {math.exp(plain):.4f}: {mine - plain:+.1e}; from the mean of its noisy runs {mine - mean:+.1e}, their deviation {deviation:.1e}")
    else:
        plain = math.log(perplexity(model, packed, WINDOWS, TOKENS))
        expect(abs(mine - plain) <= 5e-5, f"{name}: perplexity {math.exp(mine):.6f}, Transformers {math.exp(plain):.6f}: {mine - plain:+.1e}")
    ours, theirs = our_weights(program, packed, "f32"), loaded_weights(model)
    wrong = differing(theirs, ours)
    expect(len(ours) == 14 and not wrong, f"{name}: 14 linears equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
finish()
