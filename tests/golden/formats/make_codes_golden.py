#!/usr/bin/env python3
"""Writes codes.json: small weights as compressed-tensors rounds and stores them beside 8-bit inputs.

    make_codes_golden.py codes.json         needs torch, compressed-tensors (fixture made with 0.20.0)

Each case holds a BF16 weight, the scale (and zero) that the library's calculate_qparams finds for it, rounded to the type it is stored
in, and the tensors that its compressor writes: int-quantized and float-quantized, per channel, tensor, group and block, static inputs too.
"""
import json
import sys

import torch
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor, IntQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

NAMES = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
CASES = [  # name, weights, inputs, [out, in], scale dtype
    ("int8_channel_token", dict(num_bits=8, strategy="channel"), dict(num_bits=8, strategy="token", dynamic=True), (5, 24), torch.bfloat16),
    ("int8_channel_asym", dict(num_bits=8, strategy="channel", symmetric=False), dict(num_bits=8, strategy="token", dynamic=True), (5, 24),
     torch.float16),
    ("int8_channel_static", dict(num_bits=8, strategy="channel"), dict(num_bits=8, strategy="tensor"), (4, 16), torch.bfloat16),
    ("int8_tensor_static", dict(num_bits=8, strategy="tensor"), dict(num_bits=8, strategy="tensor"), (4, 16), torch.float32),
    ("int8_group", dict(num_bits=8, strategy="group", group_size=8), dict(num_bits=8, strategy="token", dynamic=True), (3, 24), torch.bfloat16),
    ("int4_group", dict(num_bits=4, strategy="group", group_size=16), dict(num_bits=8, strategy="token", dynamic=True), (6, 32), torch.bfloat16),
    ("int4_group_asym", dict(num_bits=4, strategy="group", group_size=16, symmetric=False),
     dict(num_bits=8, strategy="token", dynamic=True), (6, 32), torch.bfloat16),
    ("fp8_channel_token", dict(num_bits=8, type="float", strategy="channel"),
     dict(num_bits=8, type="float", strategy="token", dynamic=True), (5, 24), torch.bfloat16),
    ("fp8_tensor_static", dict(num_bits=8, type="float", strategy="tensor"), dict(num_bits=8, type="float", strategy="tensor"), (4, 16),
     torch.bfloat16),
    ("fp8_block", dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
     dict(num_bits=8, type="float", strategy="group", group_size=128, dynamic=True), (130, 136), torch.bfloat16),
]


def stored(tensor):
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "hex": raw.hex()}


def ranges(weight, args):
    """Least and greatest of each part that shares a scale, in the shape of the scales."""
    if args.strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if args.strategy == "block":
        blocks = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 128, 0, -weight.shape[0] % 128))
        blocks = blocks.reshape(blocks.shape[0] // 128, 128, -1, 128)
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    group = args.group_size or weight.shape[1]
    grouped = weight.reshape(weight.shape[0], -1, group)
    return grouped.amin(-1), grouped.amax(-1)


def main():
    cases = []
    for seed, (name, weights, inputs, shape, dtype) in enumerate(CASES):
        torch.manual_seed(seed)
        weight = torch.randn(shape) * 0.05
        weight[0, 0] = 0.4  # one value far out
        weight = weight.to(torch.bfloat16).to(torch.float32)
        args, input_args = QuantizationArgs(**weights), QuantizationArgs(**inputs)
        scale, zero = calculate_qparams(*ranges(weight, args), args)
        scale = scale.to(dtype)
        if not args.symmetric:  # against the scale that is stored
            least = ranges(weight, args)[0].clamp(max=0)
            zero = torch.clamp(torch.round(-(2 ** (args.num_bits - 1)) - least / scale.float()), -(2 ** (args.num_bits - 1)),
                               2 ** (args.num_bits - 1) - 1)
        state = {"weight": weight, "weight_scale": scale.float()}
        if not args.symmetric:
            state["weight_zero_point"] = zero.to(torch.int8)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=input_args)
        kind = FloatQuantizationCompressor if args.type == "float" else IntQuantizationCompressor
        tensors = kind.compress(state, scheme)
        tensors["weight_scale"] = scale
        case = {"name": name, "weights": weights, "inputs": inputs, "scale_dtype": NAMES[dtype], "shape": list(shape),
                "weight": stored(weight.to(torch.bfloat16))["hex"]}
        if not input_args.dynamic:
            tensors["input_scale"] = torch.tensor([0.03125 + 0.0078125]).to(dtype)
            case["input_scale"] = tensors["input_scale"].float().item()
        case["tensors"] = {key: stored(tensor) for key, tensor in tensors.items()}
        cases.append(case)
    with open(sys.argv[1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
