#!/usr/bin/env python3
"""The types that llama-quantize gives the tensors of small models, as types.json beside this script.

    make_types.py LLAMA_QUANTIZE       (llama.cpp's tool; the gguf package in the Python that runs this)

Models are described by what the choice looks at; weights are zeros. With "importance" an importance matrix of ones is given. A row of the table is
the types of the matrices in the order of the file, runs of one type written as TYPE*COUNT.
"""
import itertools, json, os, subprocess, sys, tempfile
import gguf
import numpy as np

TYPES = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS".split()
# name: architecture, layers, heads, KV heads, hidden, intermediate, tied
MODELS = {
    "llama, 17 layers, tied": ("llama", 17, 4, 2, 256, 512, True),
    "llama, 32 layers": ("llama", 32, 4, 4, 256, 256, False),
    "llama, 70B's 80 layers": ("llama", 80, 8, 1, 256, 256, False),
    "qwen2, 80 layers": ("qwen2", 80, 4, 4, 256, 256, False),
    "qwen3, 10 layers, 4 queries a key": ("qwen3", 10, 8, 2, 512, 256, True),
    "llama, width 96": ("llama", 9, 3, 1, 96, 256, True),
    "llama, width 36": ("llama", 4, 3, 3, 36, 96, False),
    "phi3, 17 layers, 4 queries a key": ("phi3", 17, 8, 2, 256, 512, False),
}


def write_model(path, architecture, layers, heads, kv_heads, hidden, intermediate, tied):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(32)
    head = hidden // heads
    shapes = {"token_embd.weight": (32, hidden), "output_norm.weight": (hidden,)}
    if not tied:
        shapes["output.weight"] = (32, hidden)
    for i in range(layers):
        block = {"attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (kv_heads * head, hidden), "attn_v": (kv_heads * head, hidden),
                 "attn_output": (hidden, hidden), "ffn_norm": (hidden,), "ffn_gate": (intermediate, hidden), "ffn_up": (intermediate, hidden),
                 "ffn_down": (hidden, intermediate)}
        if architecture == "phi3":
            for part in ("attn_q", "attn_k", "attn_v", "ffn_gate"):
                del block[part]
            block |= {"attn_qkv": (hidden + 2 * kv_heads * head, hidden), "ffn_up": (2 * intermediate, hidden)}
        shapes.update({f"blk.{i}.{name}.weight": shape for name, shape in block.items()})
        if architecture == "qwen2":
            shapes[f"blk.{i}.attn_q.bias"] = (hidden,)
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return shapes


def write_importance(path, shapes):
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["ones"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, shape in shapes.items():
        if name.startswith("blk.") and len(shape) == 2:
            writer.add_tensor(f"{name}.in_sum2", np.full((1, shape[1]), 512, np.float32))
            writer.add_tensor(f"{name}.counts", np.full((1, 1), 512, np.float32))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()


def runs(types):
    return " ".join(f"{t}*{len(list(group))}" for t, group in itertools.groupby(types))


def main(quantize):
    table = []
    with tempfile.TemporaryDirectory() as work:
        for name, model in MODELS.items():
            source, importance, out = f"{work}/model.gguf", f"{work}/imatrix.gguf", f"{work}/out.gguf"
            shapes = write_model(source, *model)
            write_importance(importance, shapes)
            entry = {"name": name, **dict(zip(("architecture", "layers", "heads", "kv_heads", "hidden", "intermediate", "tied"), model)), "types": {}}
            for kind in TYPES:
                for weighted in (False, True):
                    command = [quantize] + (["--imatrix", importance] if weighted else []) + [source, out, kind, "2"]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    found = runs([t.tensor_type.name for t in gguf.GGUFReader(out).tensors if len(t.shape) > 1])
                    if not weighted:
                        entry["types"][kind] = found
                    elif found != entry["types"][kind]:
                        entry["types"][kind + " importance"] = found
            table.append(entry)
            print(name, flush=True)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "types.json"), "w") as f:
        f.write(json.dumps(table, indent=0) + "\n")


main(sys.argv[1])
