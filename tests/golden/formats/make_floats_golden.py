#!/usr/bin/env python3
"""Writes floats.json: floats in groups as compressed-tensors rounds and stores them.

    make_floats_golden.py floats.json         needs torch, compressed-tensors (fixture made with 0.20.0)

weights   BF16 weights, the scales that the library's calculate_qparams and generate_gparam find for them, the tensors that its compressor
          writes, and the FP32 values that its dequantize() makes of these.
codes     [number, code of E2M1] on a grid that has every tie.
levels    [number, byte] of scales of two levels: E4M3 with 0.125 in place of 0.
exponents [bits of the code, largest magnitude, byte] of MX scales.
inputs    BF16 numbers as FP32 inputs, the global scale that generate_gparam finds for their largest magnitude (and one four times it: groups beyond the range), and
          code * level of each number as the library's dynamic quantization finds them.
"""
import json
import sys

import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8 import MXFP8QuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.quant_scheme import MXFP4, MXFP4A16, MXFP8, MXFP8A16, NVFP4, NVFP4A16
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp, generate_gparam
from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

NAMES = {torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3", torch.float32: "F32"}
CASES = [("nvfp4a16", NVFP4A16, NVFP4PackedCompressor), ("mxfp4", MXFP4A16, MXFP4PackedCompressor), ("mxfp8a16", MXFP8A16, MXFP8QuantizationCompressor)]


def stored(tensor):
    return {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "hex": raw(tensor)}


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


def hard_weight(seed):
    """Rows of several sizes; groups of zeros, of one outlier, of signed zeros and of values between two codes."""
    torch.manual_seed(seed)
    weight = torch.randn(12, 96) * 0.05 * 2.0 ** torch.arange(-9, 3).float()[:, None]
    weight[1, :32] = 0
    weight[2, 32:64] = torch.tensor([1e-3, -1e-3, 0.0, -0.0] * 8)
    weight[3, 5] = 3
    weight[4, :16] = torch.tensor([6, 0.25, -0.25, 0.75, -0.75, 1.25, -1.25, 1.75, -1.75, 2.5, -2.5, 3.5, -3.5, 5, -5, -0.0])
    weight[5, 64:] = torch.linspace(-1.75, 1.75, 32)
    weight[6, 64:] = torch.linspace(-1.7421875, 1.7421875, 32)
    return weight.bfloat16()


def case(name, preset, compressor, seed):
    args, weight = preset["weights"], hard_weight(seed).float()
    groups = weight.reshape(weight.shape[0], -1, args.group_size)
    given = {"weight": weight}
    if args.strategy == "tensor_group":
        given["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, given.get("weight_global_scale"))
    given["weight_scale"] = scale
    packed = compressor.compress(dict(given), QuantizationScheme(targets=["Linear"], weights=args))
    if name == "mxfp8a16":
        codes = packed["weight"].float()
    else:
        codes = unpack_fp4_from_uint8(packed["weight_packed"], *weight.shape, dtype=torch.float32)
    values = dequantize(codes, scale, args=args, dtype=torch.float32, global_scale=given.get("weight_global_scale"))
    tensors = {key: stored(tensor) for key, tensor in sorted(packed.items()) if tensor is not None}
    return {"scheme": name, "shape": list(weight.shape), "weight": raw(weight.bfloat16()), "tensors": tensors, "values": raw(values)}


def codes():
    numbers = torch.tensor([sign * k / 16 for k in range(0, 130) for sign in (1, -1)])
    args = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=2, symmetric=True)
    rounded = quantize(numbers.reshape(1, -1), torch.ones(1, numbers.numel() // 2), None, args)
    pairs = pack_fp4_to_uint8(rounded).reshape(-1)
    found = torch.stack((pairs & 15, pairs >> 4), 1).reshape(-1)
    return [[number.item(), code.item()] for number, code in zip(numbers, found)]


def levels():
    numbers = torch.cat((torch.arange(0, 40) / 4096, torch.logspace(-3, 3.2, 90, dtype=torch.float64).float(), torch.tensor([447.0, 448.0, 464.0, 1e6])))
    scale, _ = calculate_qparams(-numbers * 6, numbers * 6, NVFP4A16["weights"], torch.ones(1))
    return [[number.item(), byte.item()] for number, byte in zip(numbers, scale.to(torch.float8_e4m3fn).view(torch.uint8))]


def exponents():
    numbers = [m * 2.0**e for e in (-126, -100, -20, -3, -1, 0, 1, 4, 9, 100, 126) for m in (1, 1.25, 1.5, 1.7421875, 1.75, 1.7578125, 1.9921875)] + [0.0]
    found = []
    for bits in (4, 8):
        for number in numbers:
            byte = torch.round(torch.clamp(generate_mx_scales(torch.tensor([number]), bits), 0, 255)).to(torch.uint8)
            found.append([bits, number, byte.item()])
    return found


def inputs(name, preset, beyond):
    args, x = preset["input_activations"], (hard_weight(7) * 40).float()
    x[7, 3] = 2.0**-99
    glob = generate_gparam(x.min(), x.max()) * beyond if args.strategy == "tensor_group" else None
    level, _ = compute_dynamic_scales_and_zp(x, args, None, glob)
    codes = quantize(x, level, None, args, global_scale=glob)
    made = codes * level.repeat_interleave(args.group_size, -1)
    assert torch.equal(made, made.bfloat16().float())
    return {"scheme": name, "shape": list(x.shape), "global": glob.item() if glob is not None else 0, "x": raw(x.bfloat16()), "levels": raw(made.bfloat16())}


weights = [case(*one, seed) for seed, one in enumerate(CASES)]
rounded = [inputs(*one) for one in (("nvfp4", NVFP4, 1), ("nvfp4", NVFP4, 4), ("mxfp4a4", MXFP4, 1), ("mxfp8", MXFP8, 1))]
with open(sys.argv[1], "w") as file:
    file.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in
                                  dict(weights=weights, codes=codes(), levels=levels(), exponents=exponents(), inputs=rounded).items()) + "\n}\n")
