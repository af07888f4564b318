"""lm-evaluation-harness 0.4.13 asks `llmq serve` what it asks Transformers, and gets the same scores.   lm_eval.py LLMQ [MODEL]

MODEL (tinystories-656k where it is left out) is a BF16 model in Hugging Face layout; a w4a16_g64_asym checkpoint of it is made by rounding. Each of both is
asked twice for the tasks of share/lm-eval:
  local-completions   `llmq serve --compute float32`, the server's tokenizer, 8 requests at a time
  hf                  Transformers in float32; of the W4 checkpoint what `llmq convert --to safetensors --dtype f32` makes of it, which is exact. add_bos_token=False, for
                      local-completions never adds special tokens; max_length is two less, for local-completions keeps two places; the tokenizer is tokenizer.json as it is
Held: every log likelihood of every document within 1e-3 (1e-5 of it where it is above 100: rolling ones are sums over thousands of tokens), equal choices but
where two are closer than 1e-3, which are listed, equal scores then, and `llmq eval-ppl --protocol lm-eval` to 5 digits.

Needs lm-eval 0.4.13 with torch and transformers in $LLMQ_PEERS/lmeval (python3 -m venv, then pip install "lm-eval[api,hf]==0.4.13"). Where it is missing the script
says so and leaves with 77. LLMQ_LM_EVAL_LIMIT: documents of each task (40); LLMQ_LM_EVAL_CHARACTERS: of WikiText-2 (20000).
"""
import glob, json, os, pathlib, re, shutil, signal, subprocess, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from peer import ROOT, TINYSTORIES, WIKITEXT, expect, finish, llmq

PYTHON = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "lmeval" / "bin" / "python"
LIMIT, CHARACTERS = int(os.environ.get("LLMQ_LM_EVAL_LIMIT", 40)), int(os.environ.get("LLMQ_LM_EVAL_CHARACTERS", 20000))
VERSION, BOUND = "0.4.13", 1e-3
TASKS = "llmq_cloze,llmq_choice,llmq_bits_per_byte,llmq_code"
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}

program = sys.argv[1]
model = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else TINYSTORIES
found = subprocess.run([PYTHON, "-P", "-c", "import importlib.metadata as m, torch, transformers; print(m.version('lm_eval'))"], capture_output=True, text=True) if PYTHON.exists() else None
if found is None or found.stdout.strip() != VERSION:
    print(f"SKIPPED: no lm-eval {VERSION} with torch and transformers in {PYTHON.parent.parent}")
    sys.exit(77)
with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
    CONTEXT = min(2048, json.load(file)["max_position_embeddings"])


class Server:
    """`llmq serve` of a model on a free port."""

    def __init__(self, directory):
        self.process = subprocess.Popen([program, "serve", directory, "--port", "0", "--compute", "float32", "--json", "--served-model-name", "served"],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        text = ""
        while True:  # the document that says where it listens
            line = self.process.stdout.readline()
            text += line
            if not line:
                sys.exit(f"FAILED: llmq serve {directory} ended: {text}")
            try:
                self.url = json.loads(text)["url"]
                return
            except ValueError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def lm_eval(into, kind, arguments):
    """Results and samples {task: {document: (log likelihoods, sample)}} of a run."""
    command = [PYTHON, "-P", "-m", "lm_eval", "run", "--model", kind, "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()), "--include_path",
               os.path.join(ROOT, "share", "lm-eval"), "--tasks", TASKS, "--limit", str(LIMIT), "--metadata", json.dumps({"characters": CHARACTERS}),
               "--output_path", into, "--log_samples", "--batch_size", "1", *(["--device", "cpu"] if kind == "hf" else [])]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=OFFLINE)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, command))} left with {done.returncode}: {done.stderr[-3000:]}")
    (results,) = glob.glob(f"{into}/**/results_*.json", recursive=True)
    samples = {}
    for path in glob.glob(f"{into}/**/samples_*.jsonl", recursive=True):
        task = re.fullmatch(r"samples_(.*)_\d{4}-.*", os.path.basename(path)).group(1)
        with open(path, encoding="utf-8") as file:
            samples[task] = {one["doc_id"]: one for one in map(json.loads, file)}
    with open(results, encoding="utf-8") as file:
        return json.load(file), samples


def likelihoods(sample):
    """[(log likelihood, whether it is the greedy continuation, or None)] of a document's requests."""
    found = []
    for answer in sample["filtered_resps"]:
        pair = answer if isinstance(answer, list) else [answer]
        found.append((float(pair[0]), str(pair[1]) == "True" if len(pair) > 1 else None))
    return found


def compare(name, ours, theirs):
    for task in TASKS.split(","):
        furthest, close, choices, greedy, count = 0.0, [], 0, 0, 0
        expect(ours[1][task].keys() == theirs[1][task].keys() and len(ours[1][task]) >= 1, f"{name}, {task}: the same {len(ours[1][task])} documents were asked")
        continuations = [request["arg_1"] for sample in ours[1][task].values() for request in sample["arguments"].values() if "arg_1" in request]
        expect(all(text.startswith(" ") for text in continuations), f"{name}, {task}: {len(continuations)} continuations are words of their own")
        for document, sample in ours[1][task].items():
            mine, other = likelihoods(sample), likelihoods(theirs[1][task][document])
            for (a, greedy_a), (b, greedy_b) in zip(mine, other, strict=True):
                furthest = max(furthest, abs(a - b) / max(1.0, abs(b) / 100))
                greedy += greedy_a != greedy_b
                count += 1
            if len(mine) > 1:
                best = [max(range(len(scores)), key=lambda i: scores[i][0]) for scores in (mine, other)]
                if best[0] != best[1] and abs(other[best[0]][0] - other[best[1]][0]) < BOUND:
                    close.append(document)
                else:
                    choices += best[0] != best[1]
        expect(furthest < BOUND, f"{name}, {task}: {count} log likelihoods, furthest apart {furthest:.2e}")
        expect(choices == 0, f"{name}, {task}: choices are equal" + (f"; closer than {BOUND}: documents {close}" if close else ""))
        expect(greedy == 0, f"{name}, {task}: {greedy} of {count} continuations are greedy in one alone")
        for metric, value in ours[0]["results"][task].items():
            if metric.split(",")[0] in ("acc", "acc_norm") and not close:
                expect(value == theirs[0]["results"][task][metric], f"{name}, {task}: {metric} {value:.4f}, with hf {theirs[0]['results'][task][metric]:.4f}")


def tokenizer_as_written(directory, into):
    """The tokenizer.json as it is: Transformers 5 rebuilds Llama tokenizers from their vocabulary and gives other ids (8193 where the file says 8391)."""
    os.makedirs(into)
    shutil.copy(os.path.join(directory, "tokenizer.json"), into)
    with open(os.path.join(directory, "tokenizer_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    pathlib.Path(into, "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    return into


def check(name, directory, reference, work):
    with Server(directory) as server:
        ours = lm_eval(f"{work}/{name}-llmq", "local-completions", {"model": "served", "base_url": server.url + "/v1/completions", "tokenizer_backend": "remote",
                                                                     "num_concurrent": 8, "max_length": CONTEXT, "timeout": 3600})
    theirs = lm_eval(f"{work}/{name}-hf", "hf", {"pretrained": reference, "dtype": "float32", "max_length": CONTEXT - 2, "add_bos_token": False,
                                               "tokenizer": tokenizer_as_written(reference, f"{work}/{name}-tokenizer")})
    compare(name, ours, theirs)
    text = f"{work}/text"
    with open(WIKITEXT, "rb") as file:
        beginning = file.read().decode("utf-8")[:CHARACTERS].encode()
    pathlib.Path(text).write_bytes(beginning)
    measured = llmq(program, "eval-ppl", directory, "--protocol", "lm-eval", "--context", CONTEXT, "--text", text)["bits_per_byte"]
    asked = ours[0]["results"]["llmq_bits_per_byte"]["bits_per_byte,none"]
    expect(f"{measured:.5g}" == f"{asked:.5g}" or abs(measured / asked - 1) < 1e-6, f"{name}: bits per byte {measured:.7f} of eval-ppl, {asked:.7f} of lm-eval")


with tempfile.TemporaryDirectory() as work:
    check("BF16", model, model, work)
    llmq(program, "quantize", "--method", "rtn", "--model", model, "--output", f"{work}/w4", "--set", "scheme=w4a16_g64_asym")
    llmq(program, "convert", f"{work}/w4", f"{work}/dense", "--to", "safetensors", "--dtype", "f32")
    check("W4", f"{work}/w4", f"{work}/dense", work)
finish()
