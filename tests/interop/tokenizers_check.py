"""Ids of `llmq tokenize` against Hugging Face tokenizers, on whole files and on random Unicode.

    python tokenizers_check.py LLMQ --model DIR_OR_GGUF [--reference TOKENIZER_JSON] [--text FILE]... [--random 10000]

Runs `LLMQ tokenize MODEL --text FILE --json` and reads "ids" of its document. Random strings travel in one file, a private-use separator between
them that both sides see (so that one process answers all of them), and then 20 alone, one file each, for what stands at the ends of a text.
Exit code 0: all equal. Needs tokenizers 0.23.3.
"""
import argparse, json, os, random, subprocess, sys, tempfile
from tokenizers import Tokenizer

PIECES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "'s", "'RE", "'ſ", "the", "The", " fox", "1", "4567", "١", "½", "é", "e\u0301", "\u0323", "\u1100\u1161\u11a8",
          "你好", "🦙", "नी", "-", "##", "▁", "<0x41>", "</s>", "\x00"]


def random_text(rng):
    kind, out = rng.randrange(4), []
    for _ in range(rng.randrange(60)):
        point = rng.randrange(1, 0x110000 if kind == 0 else 0x3000)
        out.append(rng.choice(PIECES) if kind > 1 or 0xD800 <= point <= 0xDFFF else chr(point))
    return "".join(out)


def llmq_ids(program, model, text):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".txt", delete=False) as f: f.write(text)
    try:
        done = subprocess.run([program, "tokenize", model, "--text", f.name, "--json"], capture_output=True, text=True)
        if done.returncode != 0: sys.exit(f"{program} tokenize {model}: exit {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)["ids"]
    finally:
        os.unlink(f.name)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("llmq")
    args.add_argument("--model", required=True)
    args.add_argument("--reference")
    args.add_argument("--text", action="append", default=[])
    args.add_argument("--random", type=int, default=10000)
    args = args.parse_args()
    reference = Tokenizer.from_file(args.reference or os.path.join(args.model, "tokenizer.json"))
    rng = random.Random(7)
    texts = [random_text(rng) for _ in range(args.random)]
    cases = [("random, joined", "\ue0ff".join(texts))] + [(f"random {i}", t) for i, t in enumerate(texts[:20])]
    for name in args.text:
        with open(name, encoding="utf-8", newline="") as f: cases.append((name, f.read()))
    differ = 0
    for name, text in cases:
        want, got = reference.encode(text).ids, llmq_ids(args.llmq, args.model, text)
        if want == got: continue
        differ += 1
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        print(f"{name}: differs at id {at}: expected {want[at:at + 6]}, got {got[at:at + 6]}")
    print(f"{args.model}: {len(cases)} texts, {differ} differ")
    return 1 if differ else 0


sys.exit(main())
