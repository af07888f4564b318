#!/usr/bin/env python3
"""Writes packed weights and what their own libraries dequantize them to.

    make_packed_vectors.py compressed-tensors tests/unit/model/packed_compressed_tensors.json
    make_packed_vectors.py awq                tests/unit/model/packed_awq.json
    make_packed_vectors.py gptq               tests/unit/model/packed_gptq.json
    make_packed_vectors.py codes              tests/unit/model/packed_codes.json
    make_packed_vectors.py modelopt           tests/unit/model/packed_modelopt.json     (nvidia-modelopt 0.47.0; `model` is the weight that it rounded)

Each case: quantization_config, the tensors of one 16 x 16 module (dtype, shape, bytes in hex), and the FP32 weight. The scales are widened to
FP32 before the library multiplies, so the expected weight is the exact product rounded once. `codes` (weights beside 8-bit inputs) adds an
input of 5 rows and the output: the library rounds the input in FP32, the product of what both stand for is taken in FP64.
"""
import json
import sys

import torch

OUT = IN = 16
GROUP = 8
NAMES = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def stored(tensor):
    tensor = tensor.clone(memory_format=torch.contiguous_format)
    return dict(dtype=NAMES[tensor.dtype], shape=list(tensor.shape), hex=tensor.reshape(-1).view(torch.uint8).numpy().tobytes().hex())


def compressed_tensors_case(bits, strategy, symmetric, dtype, generator):
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=bits, strategy=strategy, symmetric=symmetric, group_size=GROUP if strategy == "group" else None)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    shape = {"group": (OUT, IN // GROUP), "channel": (OUT, 1), "tensor": (1,)}[strategy]
    scale = (torch.rand(shape, generator=generator) * 0.1 + 0.01).to(dtype)
    half = 1 << (bits - 1)
    zero = torch.zeros(shape, dtype=torch.int8) if symmetric else torch.randint(-half, half, shape, generator=generator).to(torch.int8)
    codes = torch.randint(-half, half, (OUT, IN), generator=generator)
    groups = 1 if strategy == "tensor" else shape[1]
    spread = lambda t: t.float().reshape(-1, groups).repeat_interleave(IN // groups, 1)
    weight = (codes.float() - spread(zero)) * spread(scale)
    packed = PackedQuantizationCompressor.compress({"weight": weight, "weight_scale": scale.float(), "weight_zero_point": zero}, scheme)
    expected = PackedQuantizationCompressor.decompress(dict(packed), scheme)["weight"]
    assert expected.dtype == torch.float32
    tensors = {name: packed[name] for name in packed if packed[name] is not None}
    tensors["weight_scale"] = scale
    config = dict(quant_method="compressed-tensors", format="pack-quantized", quantization_status="compressed", ignore=["lm_head"],
                  kv_cache_scheme=None, config_groups=dict(group_0=dict(
                      targets=["re:.*q_proj"], input_activations=None, output_activations=None, format="pack-quantized",
                      weights=json.loads(args.model_dump_json()))))
    return dict(name=f"{bits} bits, {strategy}, {'symmetric' if symmetric else 'asymmetric'}, {NAMES[dtype]}", config=config,
                tensors={name: stored(tensor) for name, tensor in sorted(tensors.items())}, weight=stored(expected)["hex"])


def codes_case(weights, inputs, dtype, generator):
    from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    args = QuantizationArgs(**weights)
    input_args = QuantizationArgs(**inputs) if inputs else None
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=input_args)
    shape = {"group": (OUT, IN // GROUP), "channel": (OUT, 1), "tensor": (1,), "block": (1, 1)}[args.strategy]
    scale = (torch.rand(shape, generator=generator) * 0.1 + 0.01).to(dtype)
    half = 1 << (args.num_bits - 1)
    zero = None if args.symmetric else torch.randint(-half, half, shape, generator=generator).to(torch.int8)
    state = {"weight": torch.randn((OUT, IN), generator=generator) * 2, "weight_scale": scale.float()}
    if zero is not None: state["weight_zero_point"] = zero
    tensors = NaiveQuantizationCompressor.compress(state, scheme)
    expected = NaiveQuantizationCompressor.decompress(dict(tensors), scheme)["weight"]
    assert expected.dtype == torch.float32
    tensors["weight_scale"] = scale
    x = torch.randn((1, 5, IN), generator=generator)
    x[0, 2] *= 40
    rounded = x
    if input_args and input_args.dynamic:
        rounded = fake_quantize(x, *compute_dynamic_scales_and_zp(x, input_args, None), input_args)
    elif input_args:
        tensors["input_scale"] = (torch.rand((1,), generator=generator) * 0.02 + 0.01).to(dtype)
        rounded = fake_quantize(x, tensors["input_scale"].float(), None, input_args)
    output = (rounded[0].double() @ expected.double().t()).float()
    form = "naive-quantized" if not inputs else "float-quantized" if args.type == "float" else "int-quantized"
    config = dict(quant_method="compressed-tensors", format=form, quantization_status="compressed", ignore=["lm_head"],
                  kv_cache_scheme=None, config_groups=dict(group_0=dict(
                      targets=["re:.*q_proj"], input_activations=json.loads(input_args.model_dump_json()) if inputs else None,
                      output_activations=None, format=form, weights=json.loads(args.model_dump_json()))))
    return dict(name=f"{args.type} {args.num_bits} bits, {args.strategy}, {'symmetric' if args.symmetric else 'asymmetric'}, inputs "
                     f"{input_args.strategy if inputs else 'as they are'}, {NAMES[dtype]}", config=config,
                tensors={name: stored(tensor) for name, tensor in sorted(tensors.items())}, weight=stored(expected)["hex"],
                input=stored(x)["hex"], output=stored(output)["hex"])


def awq_case(group, dtype, generator):
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm, pack_awq

    codes = torch.randint(0, 16, (IN, OUT), generator=generator)
    zeros = torch.randint(0, 16, (IN // group, OUT), generator=generator)
    scales = (torch.rand((IN // group, OUT), generator=generator) * 0.1 + 0.01).to(dtype)
    qweight, qzeros = pack_awq(codes, zeros, 4)
    expected = dequantize_gemm(qweight, qzeros, scales.float(), 4, group).float().t()
    config = dict(quant_method="awq", bits=4, group_size=group if group != IN else -1, zero_point=True, version="gemm", modules_to_not_convert=None)
    tensors = dict(qweight=qweight, qzeros=qzeros, scales=scales)
    return dict(name=f"group {config['group_size']}, {NAMES[dtype]}", config=config,
                tensors={name: stored(tensor) for name, tensor in tensors.items()}, weight=stored(expected)["hex"])


def gptq_case(form, bits, group, symmetric, reordered, generator):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    layer = TorchLinear(bits=bits, group_size=-1, sym=symmetric, desc_act=reordered, in_features=IN, out_features=OUT, register_buffers=True)
    layer.group_size = IN if group == -1 else group  # smaller than it offers, and what packing goes by
    groups = 1 if group == -1 else IN // group
    scales = (torch.rand((OUT, groups), generator=generator) * 0.1 + 0.01).half().float()
    zeros = torch.full((OUT, groups), 2 ** (bits - 1)) if symmetric else torch.randint(0, 2 ** bits, (OUT, groups), generator=generator)
    index = torch.arange(IN) * groups // IN
    if reordered: index = index[torch.randperm(IN, generator=generator)]
    codes = torch.randint(0, 2 ** bits, (OUT, IN), generator=generator)
    linear = torch.nn.Linear(IN, OUT, bias=False)
    linear.weight.data = (codes - zeros[:, index]).float() * scales[:, index]
    layer.pack_original(linear, scales, zeros.float(), index.int())
    layer.post_init()
    layer.scales = layer.scales.float()
    expected = layer.dequantize_weight().t()
    layer.scales = layer.scales.half()
    assert expected.dtype == torch.float32 and torch.equal(expected, linear.weight.data)
    if form == "gptq": convert_gptq_v2_to_v1_format_module(layer, layer)
    config = dict(quant_method="gptq", bits=bits, group_size=group, sym=symmetric, desc_act=reordered, checkpoint_format=form, pack_dtype="int32",
                  meta=dict(quantizer=["gptqmodel:7.7.0"]))
    tensors = {key: getattr(layer, key) for key in ("qweight", "qzeros", "scales", "g_idx")}
    return dict(name=f"{form}, {bits} bits, group {group}, {'symmetric' if symmetric else 'asymmetric'}{', act-order' if reordered else ''}", config=config,
                tensors={name: stored(tensor) for name, tensor in tensors.items()}, weight=stored(expected)["hex"])


def modelopt_case(algorithm, generator):
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    weight = torch.randn((OUT, IN), generator=generator) * 2.0 ** torch.arange(-12, 4).float()[:, None]
    weight[3] = 0
    scalar = lambda: torch.rand((), generator=generator) * 0.02 + 0.01
    if "NVFP4" in algorithm:
        packed, scale, factor = NVFP4QTensor.quantize(weight, 16)
        expected = packed.dequantize(torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16})
        pairs = packed._quantized_data
        minus = torch.stack((pairs & 15, pairs >> 4), -1).reshape(OUT, IN) == 8
        expected[minus] = -0.0  # the package drops this sign when it widens
        tensors = dict(weight=packed._quantized_data, weight_scale=scale, weight_scale_2=factor)
    else:
        blocks = {-1: 16, -2: 16} if algorithm == "FP8_PB_WO" else None
        weight[3, 0] = 1e-4
        packed, scale = FP8QTensor.quantize(weight, axis=0 if "CHANNEL" in algorithm else None, block_sizes=blocks)
        expected = packed.dequantize(torch.float32, scale=scale, block_sizes=blocks) if blocks else packed._quantized_data.float() * scale
        tensors = dict(weight=packed._quantized_data, weight_scale=scale.reshape({"FP8": (), "FP8_PB_WO": (1, 1, 1, 1)}.get(algorithm, (OUT,))))
    if algorithm in ("FP8", "NVFP4"): tensors["input_scale"] = scalar()
    assert expected.dtype == torch.float32
    config = dict(quant_method="modelopt", quant_algo=algorithm, ignore=["lm_head", "*mlp*", "model.layers.?.self_attn.[!q]_proj"], producer=dict(name="modelopt", version="0.47.0"))
    return dict(name=algorithm, config=config, tensors={name: stored(tensor) for name, tensor in sorted(tensors.items())}, weight=stored(expected)["hex"],
                model=stored(weight)["hex"])


def main():
    generator = torch.Generator().manual_seed(7)
    if sys.argv[1] == "awq":
        cases = [awq_case(8, torch.float16, generator), awq_case(16, torch.bfloat16, generator)]
    elif sys.argv[1] == "codes":
        token, tensor = dict(num_bits=8, strategy="token", dynamic=True), dict(num_bits=8, strategy="tensor")
        group, float8 = dict(strategy="group", group_size=GROUP), dict(num_bits=8, type="float")
        cases = [codes_case(*case, generator) for case in (
            (dict(num_bits=8, strategy="channel"), token, torch.bfloat16), (dict(num_bits=8, strategy="channel"), tensor, torch.bfloat16),
            (dict(num_bits=8, strategy="channel", symmetric=False), token, torch.float16),
            (dict(num_bits=8, strategy="tensor"), tensor, torch.float32), (dict(num_bits=8, **group), token, torch.bfloat16),
            (dict(num_bits=4, **group), token, torch.bfloat16), (dict(num_bits=4, symmetric=False, **group), tensor, torch.bfloat16),
            (dict(num_bits=8, strategy="channel"), None, torch.bfloat16),
            (dict(strategy="channel", **float8), dict(token, type="float"), torch.bfloat16),
            (dict(strategy="tensor", **float8), dict(tensor, type="float"), torch.bfloat16),
            (dict(strategy="block", block_structure=[128, 128], **float8), dict(token, type="float"), torch.float32),
            (dict(strategy="channel", **float8), None, torch.bfloat16))]
    elif sys.argv[1] == "modelopt":
        cases = [modelopt_case(algorithm, generator) for algorithm in ("NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")]
    elif sys.argv[1] == "gptq":
        torch.set_grad_enabled(False)
        cases = [gptq_case(*case, generator) for case in (
            ("gptq", 4, 8, True, False), ("gptq", 4, 8, False, True), ("gptq", 2, -1, False, False), ("gptq", 8, 8, False, False),
            ("gptq_v2", 4, 8, False, True), ("gptq_v2", 8, -1, True, False), ("gptq_v2", 2, 8, False, True))]
    else:
        cases = [compressed_tensors_case(bits, "group", symmetric, torch.bfloat16, generator) for bits in range(2, 9) for symmetric in (True, False)]
        cases += [compressed_tensors_case(3, "channel", False, torch.float32, generator), compressed_tensors_case(8, "channel", True, torch.float16, generator),
                  compressed_tensors_case(4, "tensor", True, torch.float16, generator)]
    with open(sys.argv[2], "w") as file:
        file.write(json.dumps(cases).replace('{"name"', '\n{"name"') + "\n")


if __name__ == "__main__":
    main()
