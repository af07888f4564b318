#!/usr/bin/env python3
"""Did a change keep every output byte? Eleven quantizations, perplexities and greedy texts,
recorded with one program and held against the record with another.

    check_digests.py BASELINE --record FILE [--smollm2 DIR]     # before the change
    check_digests.py CHANGED --against FILE [--smollm2 DIR]     # after it; exit 1 names differences

Every job runs on tests/models/tinystories-656k at each CPU level that this processor has
(LLMQ_CPU_ISA) and on the emulated CUDA backend, where samples are few; with --smollm2 also on that
model, at the processor's own level. Of a quantization the SHA-256 of every file is compared, except
those that hold times and paths, and the digest that the program says; of a perplexity every printed
digit; of a text its 64 token ids. A job that is refused, as a device may, has the refusal's first
line as its result. A record holds for the processor that made it, so none is committed.
Without --record and --against the table is printed, no more.

Costs, on two busy cores of a Zen 5: 2 minutes, --smollm2 3 more; --quick (avx2 and avx512) 8 s.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINYSTORIES = os.path.join(ROOT, "tests", "models", "tinystories-656k")
LEVELS = ("scalar", "avx2", "avx512_plain", "avx512", "amx", "amx_emulated")
QUICK_LEVELS = ("avx2", "avx512")
SKIPPED_LEVEL = "does not have the CPU level"
TOLD = ("README.md", "manifest.json", "report.html", "report.json")  # times, paths, the commit
PROMPT = "Once upon a time there was a little dog"

# name: (methods, scheme, further words).
JOBS = {
    "rtn": ("rtn", "w4a16_g64_asym", ()),
    "awq": ("awq", "w4a16_g64_asym", ("--set", "format=awq")),
    "gptq": ("gptq", "w4a16_g64_sym", ()),
    "awq,gptq": ("awq,gptq", "w4a16_g64_asym", ("--set", "format=gptq_v2")),
    "smoothquant,gptq": ("smoothquant,gptq", "w8a8", ()),
    "imatrix": ("imatrix", "q4_k_m", ("--set", "format=gguf")),
    "w4a8": ("gptq", "w4a8_g64", ()),
    "fp8": ("rtn", "fp8", ()),
    "fp8-static": ("rtn", "fp8_static", ()),
    "mixed": ("gptq", "w4a16_g64_asym", ("--target-bits", "5")),
    "act-order": ("gptq", "w4a16_g64_sym", ("--set", "gptq.order=act", "--set", "format=gptq")),
}


class Place:
    """Where jobs run: a model, a device or CPU level, and how much of everything it is given."""

    def __init__(self, name, model, words=(), level=None, samples=(12, 125), windows=(3, 251)):
        self.name, self.model, self.words, self.level = name, model, list(words), level
        self.samples, self.windows = samples, windows

    def quantization(self, job, output):
        method, scheme, more = JOBS[job]
        samples, length = self.samples
        return ["quantize", "--method", method, "--model", self.model, "--output", output, *more,
                "--set", "scheme=" + scheme, *self.words,
                "--set", f"calibration.samples={samples}",
                "--set", f"calibration.sequence_length={length}"]

    def perplexity(self, model, compute):
        windows, context = self.windows
        return ["eval-ppl", model, "--max-windows", str(windows), "--context", str(context),
                "--compute", compute, *self.words]

    def text(self, model):
        return ["generate", model, "--prompt", PROMPT, "--max-tokens", "64", "--temperature", "0",
                "--ignore-eos", *self.words]


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(output):
    """SHA-256 by name of what a quantization wrote: a directory, or a GGUF file."""
    if os.path.isfile(output):
        return {os.path.basename(output): sha256_of(output)}
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(output) for name in names
             if name not in TOLD]
    return {os.path.relpath(path, output): sha256_of(path) for path in sorted(paths)}


class Runner:
    def __init__(self, program, scratch):
        self.program, self.scratch = os.path.abspath(program), scratch

    def run(self, words, level=None):
        """The JSON that a command prints, or its refusal: the first line that says why."""
        environment = {k: v for k, v in os.environ.items() if k != "LLMQ_CPU_ISA"}
        environment["LLMQ_DIGEST_CACHE"] = os.path.join(self.scratch, "digest-cache")
        if level:
            environment["LLMQ_CPU_ISA"] = level
        done = subprocess.run([self.program, *words, "--quiet", "--json"], env=environment,
                              text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        try:
            document = json.loads(done.stdout, parse_float=str)
        except ValueError:
            document = {"message": (done.stderr.strip() or "no output").split("\n")[0]}
        if done.returncode == 0 and "message" not in document:
            return document
        message = str(document.get("message", "")).split("\n")[0]
        return {"refused": f"exit {done.returncode}: {message}".replace(self.scratch, "OUT")}

    def quantize(self, place, job, output):
        said = self.run(place.quantization(job, output), place.level)
        return said if "refused" in said else {"digest": said["digest"], "files": files_of(output)}

    def number(self, words, level):
        said = self.run(words, level)
        return said if "refused" in said else {"ppl": said["ppl"], "stderr": said["ppl_stderr"]}

    def tokens(self, words, level):
        said = self.run(words, level)
        return said if "refused" in said else {"token_ids": said["token_ids"]}


def results_at(runner, place, report):
    """Every result of one place, by name of the job."""
    folder = tempfile.mkdtemp(prefix="place-", dir=runner.scratch)
    outputs = {job: os.path.join(folder, job.replace(",", "-")) for job in JOBS}
    outputs["imatrix"] += ".gguf"
    found = {}

    def keep(job, result):
        found[job] = result
        report(f"{place.name} {job}: {brief(result)}")

    for job, output in outputs.items():
        keep(job, runner.quantize(place, job, output))
    for name, model in {"dense": place.model, **outputs}.items():
        full = name in ("dense", "awq")  # of the others, that they run as they did
        for compute in ("float32", "bfloat16") if full else ("bfloat16",):
            words = place.perplexity(model, compute)
            keep(f"ppl {name} {compute}", runner.number(words, place.level))
        if full:
            keep(f"text {name}", runner.tokens(place.text(model), place.level))
    shutil.rmtree(folder)
    return found


def brief(result):
    """Twelve characters of a result."""
    if "refused" in result:
        return "refused"
    if "ppl" in result:
        return str(result["ppl"])[:12]
    if "digest" in result:
        return result["digest"].removeprefix("sha256:")[:12]
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:12]


def places_of(runner, options):
    """Where this processor runs jobs, and what it lacks."""
    places, skipped = [], []
    for level in QUICK_LEVELS if options.quick else LEVELS:
        said = runner.run(["generate", TINYSTORIES, "--prompt", PROMPT, "--max-tokens", "1"], level)
        if SKIPPED_LEVEL in said.get("refused", ""):
            skipped.append(level)
        else:
            places.append(Place(level, TINYSTORIES, level=level))
    if not options.quick:
        places.append(Place("emulated", TINYSTORIES, ["--device", "emulated"], samples=(2, 23),
                            windows=(1, 61)))
    if options.smollm2:
        places.append(Place("smollm2", os.path.abspath(options.smollm2), samples=(4, 125),
                            windows=(1, 251)))
    return places, skipped


def processor():
    """The model's name and what decides which kernels run."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    wanted = [f for f in (flags.group(1).split() if flags else []) if re.match("avx|amx|fma", f)]
    return f"{name.group(1) if name else os.uname().machine} ({' '.join(sorted(wanted))})"


def print_table(results, skipped):
    columns = list(results)
    width = max(len(job) for jobs in results.values() for job in jobs)
    print(" " * width, *(f"{name:12}" for name in columns))
    for job in next(iter(results.values())):
        print(f"{job:{width}}", *(f"{brief(results[name][job]):12}" for name in columns))
    for level in skipped:
        print(f"skipped: {level}, which this processor does not have")
    for name in columns:
        for job, result in results[name].items():
            if "refused" in result:
                print(f"refused: {name} {job}: {result['refused']}")


def difference(old, new):
    """How one result differs from its record, in words; None where it does not."""
    if old == new:
        return None
    if "files" in old and "files" in new:
        names = sorted(n for n in old["files"].keys() | new["files"].keys()
                       if old["files"].get(n) != new["files"].get(n))
        if names:
            return "other bytes in " + ", ".join(names)
        return f"the program says {new['digest']}, not {old['digest']}, of the same bytes"
    if "token_ids" in old and "token_ids" in new:
        pairs = list(zip(old["token_ids"], new["token_ids"]))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        return f"other tokens from {at} on"
    return f"{json.dumps(old)} -> {json.dumps(new)}"


def compare(record, results, processor_now):
    """Prints every difference from the record; how many there are, and how many were looked at."""
    if record["processor"] != processor_now:
        print(f"the record is another processor's: {record['processor']}, this is {processor_now}")
    differences = compared = 0
    for name, jobs in results.items():
        for job in dict.fromkeys([*record["results"].get(name, {}), *jobs]):
            old = record["results"].get(name, {}).get(job)
            compared += 1
            found = difference(old, jobs[job]) if old and job in jobs else (
                "not in the record" if job in jobs else "in the record, not run")
            if found:
                differences += 1
                print(f"DIFFERS: {name} {job}: {found}")
    return differences, compared


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--record", metavar="FILE", help="write the results to FILE")
    what.add_argument("--against", metavar="FILE", help="hold the results against FILE's")
    parser.add_argument("--smollm2", metavar="DIR", help="also run on this SmolLM2-135M directory")
    parser.add_argument("--quick", action="store_true", help="avx2 and avx512 only")
    return parser.parse_args()


def verdict(options, record, results, skipped):
    """Holds the results against the record; the exit code."""
    differences, compared = compare(record, results, processor())
    lost = [level for level in skipped if level in record["results"]]
    for level in lost:
        print(f"DIFFERS: {level}: the record has it, and here it is not to be had")
    left = [name for name in record["results"] if name not in results and name not in lost]
    if left:
        print(f"not run this time: {', '.join(left)}")
    print(f"{differences + len(lost)} differences in {compared} results from {options.against}, "
          f"which {record['llmq']['commit']} made")
    return 1 if differences or lost or not compared else 0


def main():
    options = arguments()
    started = time.monotonic()
    record = None
    if options.against:
        with open(options.against, encoding="utf-8") as file:
            record = json.load(file)
    with tempfile.TemporaryDirectory(prefix="llmq-digests-") as scratch:
        runner = Runner(options.program, scratch)
        places, skipped = places_of(runner, options)

        def report(line):
            print(f"[{time.monotonic() - started:5.0f} s] {line}", file=sys.stderr, flush=True)

        results = {place.name: results_at(runner, place, report) for place in places}
        version = json.loads(subprocess.check_output([runner.program, "--version", "--json"]))
    print_table(results, skipped)
    if record:
        return verdict(options, record, results, skipped)
    if options.record:
        with open(options.record, "w", encoding="utf-8") as file:
            json.dump({"llmq": version, "processor": processor(), "results": results}, file,
                      indent=1)
    on_cpu = [f"{name} {job}" for name, jobs in results.items() if name != "emulated"
              for job, result in jobs.items() if "refused" in result]
    if on_cpu:
        print(f"{len(on_cpu)} jobs were refused on the CPU, where none should be")
    return 1 if on_cpu else 0


if __name__ == "__main__":
    sys.exit(main())
