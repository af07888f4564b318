#!/usr/bin/env python3
"""Writes blocks.safetensors: rows of numbers and the bytes that ggml's own ggml_quantize_chunk makes of them.

    make_golden.py LIBGGML_BASE_SO blocks.safetensors      (fixture made with ggml 0.25.3 as built beside llama.cpp 0c1e570, g++ 12.2, x86-64)

Tensors: `numbers` F32 [8, 512], `importance` F32 [512], and for each type `<type>.plain` and `<type>.importance`, U8. K types see rows of 512;
the others rows of 288 (14 of them, the first 4032 numbers; nine blocks, so that no grouping of blocks by four comes out even).
"""
import ctypes
import json
import math
import struct
import sys

TYPES = {"F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
         "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
         "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136)}
WIDTH = 512


def sequence(seed):
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 33) / 2**31


def rows():
    uniform = sequence(1)
    bell = lambda: sum(next(uniform) for _ in range(12)) - 6
    heavy = [bell() * 0.02 / (0.05 + next(uniform)) for _ in range(WIDTH)]
    heavy[5], heavy[300] = 1e4, -1e4
    sparse = [bell() * 0.05 if next(uniform) < 0.2 else 0.0 for _ in range(WIDTH)]
    sparse[256:320] = [0.0] * 64
    by_block = [bell() * math.exp(3 * math.sin(i // 16)) for i in range(WIDTH)]
    return [[bell() * 0.05 for _ in range(WIDTH)], heavy, sparse, by_block, [abs(bell()) + 0.1 for _ in range(WIDTH)],
            [-abs(bell()) - 2.0 for _ in range(WIDTH)], [0.3] * 256 + [bell() * 1e-9 for _ in range(256)],
            [bell() * 1e-40 for _ in range(256)] + [round(bell()) * 1.0 for _ in range(256)]]


def main(library, target):
    ggml = ctypes.CDLL(library)
    ggml.ggml_version.restype = ctypes.c_char_p
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    floats = ctypes.POINTER(ctypes.c_float)
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, floats, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, floats]
    numbers = [value for row in rows() for value in row]
    weights = sequence(2)
    importance = [math.exp(6 * next(weights) - 3) for _ in range(WIDTH)]
    importance[64:100] = [0.0] * 36
    x, w = (ctypes.c_float * len(numbers))(*numbers), (ctypes.c_float * WIDTH)(*importance)
    tensors = {"numbers": ("F32", [8, WIDTH], bytes(x)), "importance": ("F32", [WIDTH], bytes(w))}
    for name, (number, elements, size) in TYPES.items():
        width = WIDTH if elements == 256 else 288
        count = len(numbers) // width
        for kind, weight in (("plain", None), ("importance", w)):
            out = (ctypes.c_uint8 * (count * width // elements * size))()
            written = ggml.ggml_quantize_chunk(number, x, out, 0, count, width, weight)
            assert written == len(out), (name, written, len(out))
            tensors[f"{name}.{kind}"] = ("U8", [len(out)], bytes(out))
    header, body = {"__metadata__": {"ggml": ggml.ggml_version().decode()}}, b""
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: (item[1][0] != "F32", item[0])):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
