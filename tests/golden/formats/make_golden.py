#!/usr/bin/env python3
"""Writes golden.json: small quantized matrices and the bytes that real libraries store for them.

    make_golden.py compressed-tensors part1.json     needs torch, compressed-tensors (fixture made with 0.20.0)
    make_golden.py awq part2.json                    needs torch, gptqmodel (fixture made with 7.7.0)
    make_golden.py gptq part3.json                   the same
    make_golden.py join part1.json part2.json part3.json golden.json

The two libraries need not live in one environment. Codes, scales and zeros come from a fixed integer sequence; the library is given the weight
(code - zero) * scale in float32, from which it must find the codes again, and whatever it then stores is the golden answer.
"""
import json
import sys


def sequence(seed):
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def matrix(out, columns, bits, group, symmetric, seed, least_zero=0):
    """Codes [out, columns], zeros [out, groups], scales [out, groups] that BF16 and FP16 both represent: k/128 * 2^-e with k in 128..255."""
    numbers = sequence(seed)
    group = columns if group is None else group
    codes = [[next(numbers) % 2**bits for _ in range(columns)] for _ in range(out)]
    for row in codes:  # both ends of the range occur in every row
        row[0], row[-1] = 0, 2**bits - 1
    groups = columns // group
    zeros = [[2 ** (bits - 1) if symmetric else max(least_zero, next(numbers) % 2**bits) for _ in range(groups)]
             for _ in range(out)]
    scales = [[(128 + next(numbers) % 128) / 128 * 2.0 ** -(3 + next(numbers) % 5) for _ in range(groups)] for _ in range(out)]
    return codes, zeros, scales


def weight_of(torch, codes, zeros, scales, group):
    c, z, s = (torch.tensor(x, dtype=torch.float32) for x in (codes, zeros, scales))
    group = c.shape[1] if group is None else group
    return (c - z.repeat_interleave(group, 1)) * s.repeat_interleave(group, 1)


def stored(torch, tensor):
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    raw = flat.view(torch.uint8).numpy().tobytes()
    names = {"torch.int32": "I32", "torch.int64": "I64", "torch.bfloat16": "BF16", "torch.float16": "F16"}
    return {"dtype": names[str(tensor.dtype)], "shape": list(tensor.shape), "hex": raw.hex()}


def case(name, form, bits, group, symmetric, scale_dtype, codes, zeros, scales, tensors):
    return {"name": name, "format": form, "bits": bits, "group_size": group, "symmetric": symmetric, "scale_dtype": scale_dtype,
            "codes": codes, "zeros": zeros, "scales": scales, "tensors": tensors}


def compressed_tensors_cases():
    import torch
    from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor as Packed
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    shapes = [("sym4_group", 8, 64, 4, 32, True), ("asym4_group", 8, 64, 4, 32, False), ("sym8_channel", 5, 24, 8, None, True),
              ("asym8_group", 6, 32, 8, 16, False), ("sym3_group", 7, 64, 3, 32, True), ("asym3_channel", 11, 45, 3, None, False),
              ("asym5_group", 9, 48, 5, 16, False), ("asym4_odd_rows", 13, 32, 4, 16, False), ("sym2_channel", 3, 33, 2, None, True)]
    for seed, (name, out, columns, bits, group, symmetric) in enumerate(shapes, 1):
        codes, zeros, scales = matrix(out, columns, bits, group, symmetric, seed)
        args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="channel" if group is None else "group", group_size=group)
        state = {"weight": weight_of(torch, codes, zeros, scales, group), "weight_scale": torch.tensor(scales, dtype=torch.bfloat16),
                 "weight_zero_point": (torch.tensor(zeros) - 2 ** (bits - 1)).to(torch.int8)}
        packed = Packed.compress(state, QuantizationScheme(targets=["Linear"], weights=args))
        packed["weight_shape"] = packed["weight_shape"].to(torch.int64)
        tensors = {key: stored(torch, value) for key, value in sorted(packed.items())}
        yield case(name, "compressed-tensors", bits, group, symmetric, "BF16", codes, zeros, scales, tensors)


def awq_cases():
    import torch
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear

    shapes = [("asym4_group", 16, 64, 32, False), ("sym4_group", 8, 64, 64, True), ("asym4_channel", 24, 40, None, False),
              ("asym4_wide", 32, 16, 16, False)]
    for seed, (name, out, columns, group, symmetric) in enumerate(shapes, 101):
        codes, zeros, scales = matrix(out, columns, 4, group, symmetric, seed)
        linear = torch.nn.Linear(columns, out, bias=False)
        linear.weight.data = weight_of(torch, codes, zeros, scales, group)
        layer = AwqTorchLinear(bits=4, group_size=-1 if group is None else group, sym=symmetric, desc_act=False, in_features=columns,
                               out_features=out, register_buffers=True)
        layer.group_size = columns if group is None else group
        layer.pack(linear, torch.tensor(scales), torch.tensor(zeros, dtype=torch.float32))
        tensors = {key: stored(torch, getattr(layer, key)) for key in ("qweight", "qzeros", "scales")}
        yield case(name, "awq", 4, group, symmetric, "F16", codes, zeros, scales, tensors)


def gptq_cases():
    import torch
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    shapes = [("gptq", "sym4_group", 64, 4, 32, True, False), ("gptq", "sym8_channel", 32, 8, None, True, False),
              ("gptq", "sym3_group", 64, 3, 32, True, False), ("gptq", "sym2_group", 64, 2, 16, True, False),
              ("gptq", "asym4_group", 64, 4, 32, False, False), ("gptq", "sym4_act_order", 64, 4, 16, True, True),
              ("gptq_v2", "asym4_group", 64, 4, 32, False, False), ("gptq_v2", "asym8_group", 32, 8, 16, False, False),
              ("gptq_v2", "asym3_group", 64, 3, 32, False, False), ("gptq_v2", "asym2_channel", 32, 2, None, False, False),
              ("gptq_v2", "asym4_act_order", 64, 4, 16, False, True)]
    out = 32
    for seed, (form, name, columns, bits, group, symmetric, reordered) in enumerate(shapes, 201):
        codes, zeros, scales = matrix(out, columns, bits, group, symmetric, seed, least_zero=1 if form == "gptq" else 0)
        width = columns if group is None else group
        index = [k // width for k in range(columns)]
        if reordered:  # a fixed shuffle: 5 is coprime to 64
            index = [index[5 * k % columns] for k in range(columns)]
        c, z, s = (torch.tensor(x, dtype=torch.float32) for x in (codes, zeros, scales))
        linear = torch.nn.Linear(columns, out, bias=False)
        linear.weight.data = (c - z[:, index]) * s[:, index]
        layer = TorchLinear(bits=bits, group_size=-1 if group is None else group, sym=symmetric, desc_act=reordered, in_features=columns,
                            out_features=out, register_buffers=True)
        layer.pack_original(linear, s, z, torch.tensor(index, dtype=torch.int32))
        if form == "gptq":  # as GPTQModel does on saving: packing leaves the zeros as v2 has them
            convert_gptq_v2_to_v1_format_module(layer, layer)
        tensors = {key: stored(torch, getattr(layer, key)) for key in ("qweight", "qzeros", "scales", "g_idx")}
        one = case(name, form, bits, group, symmetric, "F16", codes, zeros, scales, tensors)
        yield one | {"column_group": index} if reordered else one


def main():
    what, *files = sys.argv[1:]
    if what == "join":
        cases = [c for part in files[:-1] for c in json.load(open(part))]
    else:
        cases = list({"compressed-tensors": compressed_tensors_cases, "awq": awq_cases, "gptq": gptq_cases}[what]())
    with open(files[-1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


main()
