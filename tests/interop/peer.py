"""What the checks share: running llmq, perplexity as Transformers computes it, bit-for-bit comparison of tensors."""
import functools, importlib, json, math, os, subprocess, sys, tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
TINYSTORIES = os.path.join(ROOT, "tests", "models", "tinystories-656k")
WIKITEXT = os.path.join(ROOT, "share", "wikitext-2", "wiki.test.raw")
failures = []


def run_in(environment, modules, install):
    """Goes on in the peer's environment of that name, where this Python lacks one of the modules; 77 where it is not there."""
    python = os.path.join(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers")), environment, "bin", "python")
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        if not os.path.exists(python) or os.path.realpath(sys.prefix) == os.path.realpath(os.path.dirname(os.path.dirname(python))):
            print(f"SKIPPED: no {python} with {', '.join(modules)}; make the environment and install {install}")
            sys.exit(77)
        os.execv(python, [python, *sys.argv])


def llmq(program, *arguments):
    """Runs llmq with --json and returns the document; a non-zero exit is a failure of the check."""
    # One thread, as the peers have: beside other tests a second one waits in a loop for the first, for a quarter of the time on top.
    done = subprocess.run([program, *map(str, arguments), "--threads", "1", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: llmq {' '.join(map(str, arguments))} left with {done.returncode}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def expect(holds, sentence):
    print(("ok: " if holds else "FAILED: ") + sentence, flush=True)
    if not holds:
        failures.append(sentence)


def finish():
    sys.exit(1 if failures else 0)


@functools.cache
def beginning():
    """A file with the first 100 kB of WikiText-2, whole lines: ids of the whole cost more than the few windows that are scored."""
    with open(WIKITEXT, encoding="utf-8") as whole, tempfile.NamedTemporaryFile("w", dir=sys.argv[2], suffix=".txt", encoding="utf-8", delete=False) as file:
        file.writelines(whole.readlines(100_000))
    return file.name


def calibration(samples, length):
    """Settings of a recipe: so many tokens of beginning(), for the same reason."""
    return [f"calibration.samples={samples}", f"calibration.sequence_length={length}", f"calibration.text=[{beginning()}]"]


def own_perplexity(program, model, windows, *arguments):
    """As llmq computes it of the same text as perplexity()."""
    return llmq(program, "eval-ppl", model, "--text", beginning(), "--max-windows", windows, *arguments)["ppl"]


def wikitext_ids(tokenizer, text=None):
    with open(tokenizer, encoding="utf-8") as file:
        return ids_of(text or beginning(), file.read())


@functools.cache
def ids_of(text, tokenizer):
    """By the tokenizer's text: models of a check have one in many directories."""
    import tokenizers, torch
    with open(text, encoding="utf-8") as file:
        return torch.tensor([tokenizers.Tokenizer.from_str(tokenizer).encode_batch_fast([file.read()])[0].ids])


def perplexity(model, directory, windows, width, text=None):
    """The hf protocol: the raw file (that of beginning(), if none is named) tokenized once, windows without overlap, all but the first position scored, FP64 sums.

    The ids are those of the `tokenizers` library on tokenizer.json as it is: Transformers 5 rebuilds some Llama tokenizers from their vocabulary.
    """
    import torch
    ids = wikitext_ids(os.path.join(directory, "tokenizer.json"), text)
    assert ids.shape[1] >= windows * width, f"{ids.shape[1]} ids are too few for {windows} windows of {width}"
    total, count = 0.0, 0
    with torch.inference_mode():
        for i in range(windows):
            x = ids[:, i * width:(i + 1) * width]
            logits = model(x).logits.float()
            total += torch.nn.functional.cross_entropy(logits[0, :-1], x[0, 1:], reduction="sum").double().item()
            count += width - 1
    return math.exp(total / count)


def same_bits(a, b):
    import torch
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
