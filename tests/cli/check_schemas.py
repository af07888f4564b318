#!/usr/bin/env python3
"""Every document of --json, every file of JSON that llmq writes for others, and every recipe fits its schema.

    check_schemas.py PROGRAM SOURCE       77: jsonschema or PyYAML is not installed

Small jobs are run (seconds each) and what they say is validated against docs/reference/schemas. Then every
document is spoilt, one place at a time, and every spoilt one must be refused: a key that is required is
dropped, a value gets a type that no schema has, an object gets a key more. Beside that

- each schema says what every key is, and is a schema;
- each `llmq.NAME/N` of the sources has a schema of that name and number;
- methods and kinds of errors of the schemas are those of the sources;
- the recipes of recipes/ and of the tests fit, and a spoilt one is refused by the program as well.
"""
import copy
import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"{missing.name} is not installed (Debian packages python3-jsonschema and python3-yaml): no document was validated")
    sys.exit(77)

PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
SCHEMAS = SOURCE / "docs" / "reference" / "schemas"
MODEL, DRAFT = SOURCE / "tests/models/tinystories-656k", SOURCE / "tests/models/tinystories-draft"
PARTS = "parts"  # is referred to, and no document
FREE = {("diff", "config", "a"), ("diff", "config", "b")}  # any JSON
# Without this key a document is of another form, and right: a GGUF's block, a text that was decoded, ids alone.
OTHER_FORM = {("journal", "block", "findings"), ("tokenize", "text"), ("tokenize", "ids")}
WRONG = [{"wrong": [None]}]  # of a type that no value has
ENOUGH = 3  # documents that are spoilt in the same way
SHORT = "--set calibration.samples=4 --set calibration.sequence_length=64".split()
faults = []


def fault(text):
    faults.append(text)
    print("FAILED: " + text)


def load(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def references_resolved(node, name, seen=()):
    """The schema with the parts of other files in place of what refers to them: it needs no resolver then."""
    if isinstance(node, list):
        return [references_resolved(item, name, seen) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: references_resolved(value, name, seen) for key, value in node.items() if key not in ("$ref", "$defs")}
    if "$ref" in node:
        file, _, place = node["$ref"].partition("#")
        other = file.removesuffix(".json") or name
        if (other, place) in seen:
            raise ValueError(f"{other}.json#{place} refers to itself")
        target = load(other)
        for word in filter(None, place.split("/")):
            target = target[int(word) if isinstance(target, list) else word]
        found = {**references_resolved(target, other, (*seen, (other, place))), **found}
    return found


NAMES = sorted(path.stem for path in SCHEMAS.glob("*.json"))
RESOLVED = {name: references_resolved(load(name), name) for name in NAMES if name != PARTS}
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in RESOLVED.items()}


def reasons(error):
    """What is wrong; of several forms, of the one that fits best."""
    if error.context:
        forms = {}
        for one in error.context:
            forms.setdefault(one.schema_path[0], []).append(one)
        nearest = min(forms.values(), key=lambda form: (any(one.validator == "const" for one in form), len(form)))
        return [reason for one in nearest for reason in reasons(one)]
    return ["/".join(map(str, error.absolute_path)) + ": " + error.message[:200]]


def validate(name, document, what):
    for error in list(VALIDATORS[name].iter_errors(document))[:3]:
        for reason in reasons(error):
            fault(f"{name}.json refuses {what}: {reason}")


# ---- jobs -----------------------------------------------------------------------------------------------------


class Jobs:
    """Runs the program in a directory of its own and keeps every document, by its schema."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.documents = []
        # Files are hashed anew: no cache of an earlier run.
        self.environment = {**os.environ, "HOME": str(folder), "LLMQ_DIGEST_CACHE": ""}

    def keep(self, name, document, what):
        self.documents.append((name, document, what))
        return document

    def start(self, *words):
        return subprocess.Popen([PROGRAM, *map(str, words), "--json", "--quiet"], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, name, *words, code=0, given=None):
        """One document, which must have come with this exit code."""
        done = subprocess.run([PROGRAM, *map(str, words), "--json", "--quiet"], cwd=self.folder, env=self.environment, input=given or "",
                              capture_output=True, text=True)
        what = "llmq " + " ".join(map(str, words))
        if done.returncode != code:
            fault(f"{what}: exit code {done.returncode}, not {code}: {done.stdout[:300]}{done.stderr[:300]}")
        return self.keep(name, json.loads(done.stdout), what)

    def file(self, name, path):
        return self.keep(name, json.loads((self.folder / path).read_text(encoding="utf-8")), path)

    def output(self, output):
        """Report and manifest of a directory or a GGUF file."""
        beside = output + ("." if output.endswith(".gguf") else "/")
        self.file("report", beside + "report.json")
        self.file("manifest", beside + "manifest.json")

    def quantize(self, output, *more, code=0, name="quantize"):
        return self.run(name, "quantize", "--model", MODEL, "--output", output, *more, code=code)


def write_adapter(folder):
    """A LoRA adapter of rank 1 for the queries of both blocks."""
    names = ("A.weight", (1, 128)), ("B.weight", (128, 1))
    header, data = {}, b""
    for block, (name, shape) in itertools.product(range(2), names):
        numbers = struct.pack("<128f", *([0.01] * 128))
        header[f"base_model.model.model.layers.{block}.self_attn.q_proj.lora_{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], "bias": "none", "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def with_adapter(jobs):
    """One folded into a directory and into a GGUF."""
    folds = ["--method", "rtn", "--set", "adapter=adapter", *SHORT]
    jobs.quantize("adapted", *folds, "--set", "evaluate={max_windows: 1}")
    jobs.output("adapted")
    jobs.quantize("adapted.gguf", *folds, "--set", "format=gguf", "--set", "scheme=q4_k_m")
    jobs.output("adapted.gguf")
    jobs.quantize("planned", *folds, "--dry-run", name="plan")


def quantizations(jobs):
    gguf = [*"--method imatrix --set format=gguf --set scheme=q4_k_m --set".split(), "overrides=[{match: 're:.*mlp', scheme: q8_0}, {match: lm_head, scheme: dense}]"]
    budget = "--method gptq --target-bits 5 --set mixed.bits=[3,4,8] --set mixed.samples=2 --set output.versioned=true".split()
    jobs.quantize("rtn", "--method", "rtn")
    jobs.output("rtn")
    jobs.quantize("rtn", "--method", "rtn")  # unchanged
    gates = "--set evaluate.max_windows=1 --set evaluate.max_ppl=1 --set evaluate.max_kl=9 --metrics-out metrics".split()
    jobs.quantize("awq", "--method", "awq,gptq", *gates, *SHORT, "--set", "overrides=[{match: 're:.*down_proj', scheme: w8a16_g128}, {match: 're:.*layers.1.mlp.down_proj', scheme: dense}]", code=3)
    jobs.output("awq")
    jobs.file("metrics", "metrics/metrics.json")
    jobs.quantize("kv", "--method", "smoothquant", "--set", "scheme=w8a8", "--set", "kv_cache.dtype=fp8", *SHORT, "--set", "evaluate={max_windows: 1}")
    jobs.output("kv")
    jobs.quantize("float", "--method", "rtn", "--set", "scheme=nvfp4", *SHORT)
    jobs.output("float")
    jobs.quantize("versions", *budget, *SHORT, "--metrics-out", "metrics")
    jobs.quantize("schemes", "--method", "gptq", "--target-bits", "5", "--set", "mixed={samples: 2, schemes: [w4a16_g64_sym, nvfp4a16, dense]}", *SHORT)
    jobs.output("schemes")
    jobs.file("metrics", "metrics/metrics.json")
    jobs.output("versions/latest")
    jobs.quantize("small.gguf", *gguf, *SHORT)
    jobs.output("small.gguf")
    for more in (["--method", "rtn"], ["--method", "awq", *SHORT], [*budget, *SHORT], [*gguf, *SHORT]):
        jobs.quantize("planned.gguf" if "imatrix" in more else "planned", *more, "--dry-run", name="plan")
    jobs.run("publish", "publish", "versions", "--to", "v0001")


def interrupted(jobs, output, *more):
    """What an interrupted run says, and the journal it leaves: its last record is that of a block."""
    process, place = jobs.start("quantize", "--model", MODEL, "--output", output, *more), jobs.folder / f"{output}.unfinished" / "journal"
    while process.poll() is None:
        try:
            text = place.read_text(encoding="utf-8")
        except FileNotFoundError:  # not yet, or no more
            text = ""
        if '{"block":' in text:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.001)
    said = process.communicate()[0]
    if process.returncode == 0:  # it was done before it heard
        return False
    jobs.keep("quantize", json.loads(said), f"llmq quantize ... {output}, interrupted")
    for line in place.read_text(encoding="utf-8").splitlines():
        jobs.keep("journal", json.loads(line.split(" ", 1)[1]), f"journal of {output}")
    return True


def journals(jobs):
    long = "--set calibration.samples=128 --set calibration.sequence_length=512".split()
    for output, more in (("cut", ["--method", "awq,gptq"]), ("cut.gguf", "--method imatrix --set format=gguf --set scheme=q4_k_m".split()),
                         ("cutmix", "--method awq,gptq --target-bits 5 --set mixed.bits=[3,4,8] --set mixed.samples=2".split())):
        if not any(interrupted(jobs, f"{attempt}{output}", *more, *long) for attempt in range(5)):
            fault(f"{output} was done before each of five signals")


def conversions(jobs):
    write_adapter(jobs.folder / "adapter")
    for words in (["convert", "rtn", "gptq", "--to", "gptq_v2"], ["convert", MODEL, "dense.gguf", "--to", "gguf", "--tensor-type", "q_proj=q8_0"], ["merge", MODEL, "merged", "--lora", "adapter"],
                  ["convert", MODEL, "nf4", "--to", "bitsandbytes", "--double-quant"], ["convert", MODEL, "shards", "--split-max-size", "1MB"]):
        for _ in ("done", "unchanged"):
            jobs.run(words[0], *words)
        jobs.output(words[2])
    with_adapter(jobs)


def looks(jobs):
    jobs.run("version", "--version")
    jobs.run("error", "quantize", code=2)
    jobs.run("error", "inspect", "nowhere", code=2)
    jobs.run("error", "report", "nowhere", code=2)
    jobs.run("deploy", "deploy", MODEL, "--to", "kubernetes")
    jobs.run("estimate", "estimate", MODEL, "--context", 512, "--batch", "1,2")
    jobs.run("estimate", "estimate", MODEL, "--budget", "1KiB", "--machine", "h100-sxm", "--scheme", "w4a16_g64_asym,q4_k_m", "--kv-cache-dtype", "int8")
    jobs.run("nodes", "estimate", MODEL, "--nodes", 2, "--method", "gptq", *SHORT)
    jobs.run("eval-ppl", "eval-ppl", "rtn", "--against", MODEL, "--max-windows", 1, "--max-ppl", 1, "--max-kl", 9, code=3)
    jobs.run("eval-ppl", "eval-ppl", MODEL, "--max-windows", 1, "--lora", "adapter")
    (jobs.folder / "short.txt").write_text("Once upon a time there was a text of a few words.", encoding="utf-8")
    jobs.run("eval-ppl", "eval-ppl", "rtn", "--protocol", "lm-eval", "--text", "short.txt")
    results = SOURCE / "tests/fixtures/lm_eval"
    jobs.run("task-scores", "report", "rtn", "--lm-eval", results / "quantized.json", "--lm-eval-baseline", results / "original.json", "--lm-eval-model", "tiny-rtn",
             "--max-acc-drop", 0.01, code=3)
    for output in ("merged", "small.gguf"):
        jobs.run("task-scores", "report", output, "--lm-eval", results / "quantized.json", "--lm-eval-model", "tiny-rtn")
    for report in ("rtn/report.json", "merged/report.json", "small.gguf.report.json"):
        jobs.keep("report", json.loads((jobs.folder / report).read_text(encoding="utf-8")), f"{report} with scores")
    jobs.run("eval-ppl-models", "eval-ppl", "rtn", MODEL, "--against", MODEL, "--max-windows", 1, "--max-kl", 9)
    jobs.run("inspect", "inspect", MODEL, "--tensors")
    for output in ("rtn", "awq", "kv"):
        jobs.run("inspect", "inspect", output, "--quality", "--tensors")
    jobs.run("inspect", "inspect", "small.gguf")
    (jobs.folder / "measured.json").write_text(json.dumps(jobs.run("eval-ppl-models", "eval-ppl", "rtn", "awq", "--against", MODEL, "--max-windows", 1)))
    jobs.run("report-outputs", "report", "rtn", "small.gguf")
    jobs.run("report-outputs", "report", "rtn", "awq", "--measured", "measured.json")
    jobs.run("diff", "diff", MODEL, "rtn")
    jobs.run("diff", "diff", "rtn", "rtn")
    for more in ([], ["--draft", "ngram"], ["--draft", DRAFT]):
        jobs.run("generate", "generate", "rtn", "--prompt", "Once upon a time", "--max-tokens", 24, *more)
    (jobs.folder / "chat.json").write_text('[{"role": "user", "content": "Hi"}]')
    jobs.run("tokenize", "tokenize", MODEL, given="Once upon a time")
    jobs.run("tokenize", "tokenize", MODEL, "--decode", given="1 2 3")


def chat(jobs):
    """The model of the tests has no template for chats: a copy gets one."""
    copied = jobs.folder / "chatting"
    copied.mkdir()
    for path in MODEL.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    config = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    jobs.run("tokenize", "tokenize", copied, "--chat", "chat.json")
    chats = jobs.folder / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "Once upon a time"}, {"role": "assistant", "content": "there was."}]}\n' * 99)
    calibration = f"calibration={{text: {chats}, samples: 2, sequence_length: 32, chat_template: true}}"
    jobs.run("quantize", "quantize", "--model", copied, "--output", "chatted", "--method", "gptq", "--set", calibration, "--set", "license=mit", "--set",
             "base_model=a/b", "--set", "datasets=[a/b]", "--set", "quantized_by=somebody")
    jobs.output("chatted")


def provenance(jobs):
    subprocess.run("openssl ecparam -name prime256v1 -genkey -noout -out s.pem && openssl ec -in s.pem -pubout -out p.pem", shell=True, check=True,
                   cwd=jobs.folder, capture_output=True)
    jobs.run("verify", "verify", "rtn")
    jobs.run("sign", "sign", "rtn", "--key", "s.pem")
    jobs.run("verify", "verify", "rtn", "--key", "p.pem", "--rebuild")
    jobs.run("pack", "pack", "rtn", "--oci", "layout")
    jobs.run("pack", "pack", "rtn", "--oci", "image", "--image")
    (jobs.folder / "gptq" / "config.json").write_text("{}")
    (jobs.folder / "gptq" / "extra").write_text("")
    jobs.run("verify", "verify", "gptq", code=1)


def speed(jobs):
    short = ["--prompt-tokens", 16, "--new-tokens", 4]
    jobs.run("bench", "bench", "rtn", "--runs", 1, *short)
    jobs.run("bench", "bench", "rtn", "--suite", "serve", "--clients", 2, "--requests", 4, "--rate", "inf,100", "--draft", "ngram", "--price-per-hour", 2,
             "--save-result", "saved.json", *short)
    for line in (jobs.folder / "saved.json").read_text().splitlines():
        jobs.keep("bench-result", json.loads(line), "a line of the file of bench --save-result")
    jobs.run("bench", "bench", MODEL, "--suite", "matrix", "--quantized", "rtn", "--batch", 1, "--requests", 2, "--max-windows", 1, "--ttft-target", "0.001,1e6",
             "--quality-tolerance", 1000, *short)
    jobs.run("bench", "bench", MODEL, "--suite", "matrix", "--batch", 1, "--requests", 2, "--max-windows", 1, "--ttft-target", 1000, *short)


def server(jobs):
    process = jobs.start("serve", "rtn", "--port", 0, "--probe-interval", "1s", "--probe-baseline", "baseline.json")
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            break
    jobs.keep("serve", json.loads(text), "llmq serve")
    until = time.monotonic() + 60
    while not (jobs.folder / "baseline.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.terminate()
    process.communicate()
    jobs.file("probe", "baseline.json")


def log_lines(jobs):
    """What is said on stderr as JSON: by a job, by one that fails, and by a server of which one asks what is there and what is not."""
    def keep(said, what):
        for line in said.splitlines():
            jobs.keep("log", json.loads(line), f"a line of the log of {what}: {line[:200]}")
    done = subprocess.run([PROGRAM, "quantize", "--progress", "json", "--model", MODEL, "--output", "told", "--method", "rtn"], cwd=jobs.folder, env=jobs.environment,
                          capture_output=True, text=True)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    for line in told:
        jobs.keep("progress" if "schema" in line else "log", line, "a line of --progress json")
    shares = [line["share"] for line in told if "schema" in line]
    if len(shares) < 2 or shares != sorted(shares) or shares[-1] != 1 or shares.count(1) != 1:
        fault(f"llmq quantize --progress json: the shares do not grow to one: {shares}")
    words = [PROGRAM, "--log-format", "json", "-v"]
    for more, code in ((["quantize", "--model", MODEL, "--output", "logged", "--method", "rtn"], 0), (["inspect", "nowhere"], 2), (["inspect", "--colour"], 2)):
        done = subprocess.run([*words, *more], cwd=jobs.folder, env=jobs.environment, capture_output=True, text=True)
        if done.returncode != code or not done.stderr:
            fault(f"llmq {more[0]} --log-format json: exit code {done.returncode}, not {code}: {done.stderr[:300]}")
        keep(done.stderr, more[0])
    process = subprocess.Popen([*words, "serve", MODEL, "--port", "0", "--log-prompts"], cwd=jobs.folder, env=jobs.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stdout.readline().split()[0]
    for path, body in (("/v1/completions", b'{"prompt": "Once", "max_tokens": 4, "n": 2}'), ("/v1/completions", b'{"prompt": 1}'), ("/nowhere", None)):
        asked = urllib.request.Request(url + path, body, {"Content-Type": "application/json", "X-Request-Id": "a", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
        try:
            urllib.request.urlopen(asked).close()
        except urllib.error.HTTPError as error:
            error.close()
    process.terminate()
    said = process.communicate()[1]
    keep(said, "serve")
    if said.count('"request_id":"a"') < 4:  # a prompt, an answer, two refusals
        fault(f"the log of a server does not name its requests: {said[:600]}")


# ---- recipes --------------------------------------------------------------------------------------------------


def recipes():
    """(text, where it is from) of llmq's own form."""
    for path in sorted((SOURCE / "recipes").glob("*.yaml")):
        yield path.read_text(encoding="utf-8"), path.name
    for path in sorted((SOURCE / "tests/fuzz/corpus/recipe").iterdir()):
        if path.name not in ("empty", "not_utf8") and not path.name.startswith(("set", "llmcompressor")):
            yield path.read_text(encoding="utf-8"), f"seed {path.name}"
    tests = (SOURCE / "tests/unit/quant/recipe_test.cpp").read_text(encoding="utf-8")
    literal = r'"(?:[^"\\]|\\.)*"'
    for said in re.findall(rf"Recipe::parse\(\s*((?:{literal}\s*)+),", tests):
        text = "".join(json.loads(one) for one in re.findall(literal, said.replace("\\'", "'")))
        if "_modifiers" not in text and "Modifier" not in text:
            yield text, "recipe_test.cpp: " + text.splitlines()[0]


def program_refuses(text, folder):
    path = Path(folder) / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([PROGRAM, *"quantize --method rtn --model /none --output /none --recipe".split(), path], capture_output=True, text=True)
    return str(path) in done.stderr


def check_recipes(folder):
    documents = [("recipe", yaml.safe_load(text), where) for text, where in recipes()]
    if len(documents) < 25:
        fault(f"{len(documents)} recipes were found, and 25 at least were expected: they are no longer read right")
    every_key = next(document for _, document, where in documents if where == "seed every_key")
    for spoilt, how in spoilt_ones("recipe", every_key):
        if not program_refuses(json.dumps(spoilt()), folder):
            fault(f"the program takes a recipe {how}")
    return documents


# ---- what must be refused -------------------------------------------------------------------------------------


def places(document, path=()):
    """Every place of a document; of a list, its first two items."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document[:2]):
            yield from places(value, (*path, index))


def shortened(document):
    """Without what places() does not visit of a list: a spoilt copy is made and validated thousands of times."""
    if isinstance(document, dict):
        return {key: shortened(value) for key, value in document.items()}
    return [shortened(value) for value in document[:2]] if isinstance(document, list) else document


def at(document, path):
    for word in path:
        document = document[word]
    return document


def properties_at(schema, document, path):
    """Keys that are required at a place, by the forms that fit the document; None: the place is a map."""
    if "oneOf" in schema or "anyOf" in schema:
        forms = [form for form in schema.get("oneOf", schema.get("anyOf")) if jsonschema.Draft202012Validator(form).is_valid(document)]
        return properties_at(forms[0], document, path)
    if not path:
        closed = schema.get("additionalProperties") is False
        return set(schema.get("required", [])) if closed else None
    if isinstance(document, list):
        return properties_at(schema["items"], document[path[0]], path[1:])
    below = schema.get("properties", {}).get(path[0], schema.get("additionalProperties", {}))
    return properties_at(below, document[path[0]], path[1:])


def with_change(document, path, change):
    """A copy in which change() was called with what lies at the path; all beside the path is the document's own."""
    copied = copy.copy(document)
    if path:
        copied[path[0]] = with_change(copied[path[0]], path[1:], change)
    else:
        change(copied)
    return copied


def spoilt_ones(name, document):
    """(what makes the document, how) of everything that is wrong in one place."""
    def spoilt(path, word, value):
        return lambda: with_change(document, path, lambda at: at.__setitem__(word, value))

    def lacking(path, word):
        return lambda: with_change(document, path, lambda at: at.pop(word))

    for path in places(document):
        keys = tuple(word for word in path if isinstance(word, str))
        if (name, *keys[:2]) in FREE:
            continue
        where, value = "/".join(map(str, path)), at(document, path)
        if path:
            yield spoilt(path[:-1], path[-1], WRONG), f"with a wrong type at {where}"
        required = properties_at(RESOLVED[name], document, path) if isinstance(value, dict) else None
        if required is not None:
            yield spoilt(path, "no_such_key", 1), f"with a key more at '{where}'"
            for key in sorted(key for key in required if (name, *keys, key) not in OTHER_FORM):
                yield lacking(path, key), f"without {key} at '{where}'"


def forms_of(name):
    """How many forms a document has, beside each other."""
    return len(RESOLVED[name].get("oneOf", [1]))


def form_of(name, document):
    forms = RESOLVED[name].get("oneOf", [RESOLVED[name]])
    return next((index for index, form in enumerate(forms) if jsonschema.Draft202012Validator(form).is_valid(document)), None)


def check_refusals(documents):
    dropped, changed, count, asked = set(), set(), 0, {}
    for name, document, what in documents:
        short = shortened(document)
        for spoilt, how in spoilt_ones(name, short if VALIDATORS[name].is_valid(short) else document):
            asked[name, how] = asked.get((name, how), 0) + 1
            if asked[name, how] > ENOUGH:
                continue
            count += 1
            if VALIDATORS[name].is_valid(spoilt()):
                fault(f"{name}.json takes {what} {how}")
            (dropped if how.startswith("without") else changed).add(name)
    for name in RESOLVED:
        for seen, what in ((dropped, "lacks a key"), (changed, "is of a wrong type")):
            if name not in seen:
                fault(f"{name}.json was not asked about a document that {what}")
    return count


# ---- the schemas themselves -----------------------------------------------------------------------------------


def check_described(node, name, place=""):
    """Every key of every object says what it is."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            check_described(item, name, f"{place}/{index}")
    elif isinstance(node, dict):
        for key, below in node.get("properties", {}).items():
            if not below.get("description"):
                fault(f"{name}.json does not say what {place}/{key} is")
        for key, below in node.items():
            check_described(below, name, f"{place}/{key}")


def words_of_sources(pattern, *folders):
    found = set()
    for folder in folders:
        for path in [SOURCE / folder] if (SOURCE / folder).is_file() else sorted((SOURCE / folder).rglob("*.cpp")) + sorted((SOURCE / folder).rglob("*.h")):
            found |= set(re.findall(pattern, path.read_text(encoding="utf-8")))
    return found


def check_schemas(documents):
    for name in NAMES:
        jsonschema.Draft202012Validator.check_schema(load(name))
        check_described(RESOLVED.get(name, load(name)) if name != PARTS else {}, name)
    stated = {}
    for name in RESOLVED:
        for number in re.findall(r'"const": "(llmq\.[a-z-]+/\d+)"', json.dumps(load(name))):
            stated.setdefault(number, set()).add(name)
    written = words_of_sources(r'"(llmq\.[a-z-]+/\d+)"', "src", "tools")
    for number in sorted(written ^ set(stated)):
        fault(f"{number} stands in " + ("the sources and has no schema" if number in written else "a schema and not in the sources"))
    for number, names in stated.items():
        if names != {number[len("llmq."):number.index("/")]}:
            fault(f"{number} stands in {', '.join(sorted(names))}.json")
    parts = load(PARTS)["$defs"]
    methods = words_of_sources(r'\.name = "([^"]+)"', "src/quant/methods/registry.cpp") | {"imatrix"}
    kinds = words_of_sources(r'return "([^"]+)";', "src/base/error.cpp")
    for what, here, there in (("methods", set(parts["method"]["enum"]), methods), ("kinds of errors", set(load("error")["properties"]["kind"]["enum"]), kinds)):
        if here != there:
            fault(f"{what} of the schemas and of the sources differ: {', '.join(sorted(here ^ there))}")
    listed = (SOURCE / "docs/reference/README.md").read_text(encoding="utf-8")
    for name in NAMES:
        if f"schemas/{name}.json" not in listed:
            fault(f"docs/reference/README.md does not list {name}.json")
    seen = {}
    for name, document, _ in documents:
        seen.setdefault(name, set()).add(form_of(name, document))
    for name in RESOLVED:
        for index in set(range(forms_of(name))) - seen.get(name, set()):
            form = load(name).get("oneOf", [{"$ref": name}])[index]["$ref"].rpartition("/")[2]
            if (name, form) not in NEVER_LEFT:
                fault(f"no document of {name}.json was seen in the form '{form}'")


# A publication's record goes before the program ends, so no run leaves one; its schema is held by examples.
NEVER_LEFT = {("journal", "publication")}
EXAMPLES = [("journal", {"publication": {"version": "", "latest": False, "file": "0" * 64}}, "a GGUF's publication"),
            ("journal", {"publication": {"version": "v0001-00000000", "latest": True, "report": "0" * 64}}, "a version's publication")]


def main():
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(folder)
        for step in (quantizations, journals, conversions, looks, chat, provenance, speed, server, log_lines):
            start = time.monotonic()
            step(jobs)
            print(f"{step.__name__}: {time.monotonic() - start:.1f} s")
        documents = jobs.documents + EXAMPLES
        for name, document, what in documents:
            validate(name, document, what)
        recipes_seen = check_recipes(folder)
        for name, document, what in recipes_seen:
            validate(name, document, what)
    if not faults:
        check_schemas(documents + recipes_seen)
        start = time.monotonic()
        count = check_refusals(documents + recipes_seen)
        print(f"{len(documents)} documents and {len(recipes_seen)} recipes fit; {count} spoilt ones were refused in {time.monotonic() - start:.1f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
