"""NVFP4 and MXFP4 in a GGUF, the former as llama.cpp's converter writes it, against the `gguf` package.   gguf_nvfp4_check.py LLMQ WORK

What llmq writes of a directory of NVFP4 has the blocks that the converter's _nvfp4_pack lays out, the numbers beside them, and, dequantized by the package
and multiplied by NAME.scale, the weights of the directory; read again, it has them to the bit, and the perplexity of the directory. What the package's own
writer makes of random blocks and such numbers is read as the package dequantizes it, times the number.
"""
import sys
import gguf
import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity

program, work = sys.argv[1:3]
MXFP4 = gguf.GGMLQuantizationType.MXFP4
NVFP4, PARTS = gguf.GGMLQuantizationType.NVFP4, {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
                                                 "up_proj": "ffn_up", "down_proj": "ffn_down"}
HEADS = {"attn_q": 8, "attn_k": 4}
NAMES = [(f"model.layers.{block}.{'self_attn' if ours in 'q_proj k_proj v_proj o_proj' else 'mlp'}.{ours}", f"blk.{block}.{theirs}")
         for block in range(2) for ours, theirs in PARTS.items()]


def turned(rows, name):
    """As LlamaModel.permute() of the converter lays the rows of q and k."""
    heads = HEADS.get(name.split(".")[-1])
    return rows if heads is None else rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def packed_blocks(weight, scale):
    """_nvfp4_pack: pairs of neighbours become pairs of element i and i + 8 of 16, behind the scales of 64."""
    codes = np.stack([weight & 15, weight >> 4], axis=-1).reshape(len(weight), -1, 4, 16)
    pairs = codes[..., :8] | codes[..., 8:] << 4
    return np.concatenate([scale.reshape(len(weight), -1, 4) & 0x7F, pairs.reshape(len(weight), -1, 32)], axis=-1).reshape(len(weight), -1)


def tensors_of(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def raw(tensor):
    return np.ascontiguousarray(tensor.detach().contiguous().view(torch.uint8).numpy())


for form, scheme in [("modelopt", "nvfp4a16"), ("modelopt", "nvfp4"), ("compressed-tensors", "nvfp4a16"), ("compressed-tensors", "nvfp4")]:
    name, more = f"{form} {scheme}", [word for one in calibration(4, 128) for word in ("--set", one)] if scheme == "nvfp4" else []
    packed, file = f"{work}/{form}-{scheme}", f"{work}/{form}-{scheme}.gguf"
    llmq(program, "quantize", "--model", TINYSTORIES, "--method", "rtn", "--set", f"scheme={scheme}", "--set", f"format={form}", "--output", packed,
         "--overwrite", *more)
    llmq(program, "convert", packed, file, "--to", "gguf", "--dtype", "f32", "--overwrite")
    llmq(program, "convert", packed, f"{packed}-f32", "--dtype", "f32", "--overwrite")
    llmq(program, "convert", file, f"{packed}-again", "--dtype", "f32", "--overwrite")
    stored, weights = load_torch(f"{packed}/model.safetensors"), load_file(f"{packed}-f32/model.safetensors")
    again, written = load_file(f"{packed}-again/model.safetensors"), tensors_of(file)
    bytes_differ, far, others, wrong_inputs, exact = [], [], [], [], 0
    for ours, theirs in NAMES:
        tensor = written[theirs + ".weight"]
        codes = stored[ours + (".weight" if form == "modelopt" else ".weight_packed")].numpy()
        blocks = packed_blocks(turned(codes, theirs), turned(raw(stored[ours + ".weight_scale"]), theirs))
        if tensor.tensor_type != NVFP4 or not np.array_equal(tensor.data, blocks):
            bytes_differ.append(theirs)
        whole = stored[ours + ".weight_scale_2"].float() if form == "modelopt" else 1 / stored[ours + ".weight_global_scale"].float()
        beside = written[theirs + ".scale"].data if theirs + ".scale" in written else np.ones(1, np.float32)
        if beside.item() != whole.item():
            others.append(theirs)
        inputs = None
        if scheme == "nvfp4":
            inputs = stored[ours + ".input_scale"].float() if form == "modelopt" else 1 / stored[ours + ".input_global_scale"].float()
        if (inputs is None) != (theirs + ".input_scale" not in written) or inputs is not None and written[theirs + ".input_scale"].data.item() != inputs.item():
            wrong_inputs.append(theirs)
        numbers, wanted = gguf.quants.dequantize(tensor.data, NVFP4) * beside, turned(weights[ours + ".weight"], theirs)
        if not np.all(np.abs(numbers - wanted) <= 2.0 ** -22 * np.abs(wanted)):  # three roundings of 2^-24
            far.append(theirs)
        exact += np.array_equal(again[ours + ".weight"], weights[ours + ".weight"])
    expect(not bytes_differ, f"{name}: the blocks are those of llama.cpp's converter" + (f": not {bytes_differ[:3]}" if bytes_differ else ""))
    wrong = others + wrong_inputs
    expect(not wrong, f"{name}: so are the numbers beside them" + (f": not {wrong[:3]}" if wrong else ""))
    expect(not far, f"{name}: the package's values, times these, are the directory's" + (f": not {far[:3]}" if far else ""))
    if form == "modelopt":  # powers of two; compressed-tensors divides
        expect(exact == len(NAMES), f"{name}: {exact} of {len(NAMES)} linears are read again to the bit")
    if scheme == "nvfp4a16":
        before, now = own_perplexity(program, packed, 4), own_perplexity(program, file, 4)
        expect(abs(now / before - 1) <= 1e-6, f"{name}: perplexity {now:.6f}, as the directory's {before:.6f}")

# MXFP4 of compressed-tensors, which that converter does not take: the package's values of its blocks are the directory's.
packed, file = f"{work}/mxfp4", f"{work}/mxfp4.gguf"
llmq(program, "quantize", "--model", TINYSTORIES, "--method", "rtn", "--set", "scheme=mxfp4", "--output", packed, "--overwrite")
llmq(program, "convert", packed, file, "--to", "gguf", "--dtype", "f32", "--overwrite")
llmq(program, "convert", packed, f"{packed}-f32", "--dtype", "f32", "--overwrite")
weights, written = load_file(f"{packed}-f32/model.safetensors"), tensors_of(file)
far = [theirs for ours, theirs in NAMES if written[theirs + ".weight"].tensor_type != MXFP4
       or not np.array_equal(gguf.quants.dequantize(written[theirs + ".weight"].data, MXFP4), turned(weights[ours + ".weight"], theirs))]
expect(not far, "mxfp4: the package's values are the directory's to the bit" + (f": not {far[:3]}" if far else ""))
before, now = own_perplexity(program, packed, 4), own_perplexity(program, file, 4)
expect(now == before, f"mxfp4: perplexity {now:.6f}, as the directory's {before:.6f}")

# As the package's writer makes a file.
whole, path, out = f"{work}/whole.gguf", f"{work}/scaled.gguf", f"{work}/scaled"
llmq(program, "convert", TINYSTORIES, whole, "--to", "gguf", "--dtype", "f32", "--overwrite")
reader, random, wanted = gguf.GGUFReader(whole), np.random.default_rng(7), {}
writer = gguf.GGUFWriter(path, "llama")
for field in reader.fields.values():
    if not field.name.startswith("GGUF.") and field.name != "general.architecture":
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
for tensor in reader.tensors:
    part = tensor.name.removesuffix(".weight").split(".")[-1]
    if not part.startswith("ffn_") or part == "ffn_norm":
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        continue
    blocks = random.integers(0, 256, (int(tensor.shape[1]), int(tensor.shape[0]) // 64, 36), dtype=np.uint8)
    blocks[:, :, :4] &= 0x3F
    blocks, scale = blocks.reshape(len(blocks), -1), np.float32(random.uniform(0.001, 2))
    wanted[tensor.name] = gguf.quants.dequantize(blocks, NVFP4) * scale
    writer.add_tensor(tensor.name, blocks, raw_dtype=NVFP4)
    writer.add_tensor(tensor.name.replace(".weight", ".scale"), np.array([scale], dtype=np.float32))
    writer.add_tensor(tensor.name.replace(".weight", ".input_scale"), np.array([0.5], dtype=np.float32))
for step in ("header", "kv_data", "tensors"):
    getattr(writer, f"write_{step}_to_file")()
writer.close()
llmq(program, "convert", path, out, "--dtype", "f32", "--overwrite")
ours = load_file(f"{out}/model.safetensors")
far = [theirs for mine, theirs in NAMES if theirs + ".weight" in wanted
       and not np.all(np.abs(ours[mine + ".weight"] - wanted[theirs + ".weight"]) <= 2.0 ** -22 * np.abs(wanted[theirs + ".weight"]))]
expect(len(wanted) == 6 and not far, "a file of the package's writer with NAME.scale reads as the package's values times it" + (f": not {far}" if far else ""))
finish()
