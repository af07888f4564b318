#!/usr/bin/env python3
"""Is program B slower than program A? Processor time of three commands, the two programs in turn.

    compare_speed.py A B [--pairs 10] [--model DIR] [--threads 1] [--only quantize,generate]

The commands: GPTQ of the first ten blocks to w4a16_g64_asym, by few samples; perplexity of a few
windows in bfloat16; 512 tokens decoded of a 4-bit checkpoint (A writes it, once, by rounding). One
pair runs A, then B, the next B, then A, so that what else the machine does falls on both; user and
system time are the child's own (wait4), which other processes disturb less than the clock. One
thread, so that no thread's waiting counts. Prints for each command the median of B/A, its quartiles
and its extremes; exit 1 where a median is above 1.03.

The model is SmolLM2-135M-Instruct, where `make demo` leaves it or as --model says.
Costs: 3.5 minutes on an idle Zen 5; each command takes 2.5 to 3.5 s of processor time.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SMOLLM2 = os.path.join(ROOT, "out", "demo", "SmolLM2-135M-Instruct")
ALLOWED = 1.03
SCHEME = ("--set", "scheme=w4a16_g64_asym")
FIRST_TEN = ("--set", r"ignore=['lm_head','re:.*layers\.[12][0-9]\..*']")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="some of quantize, eval-ppl, generate; a comma between them")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("a spread takes two pairs at the least")
    if not os.path.isfile(os.path.join(options.model, "config.json")):
        parser.error(f"{options.model} is no model: `make demo` leaves one there, or give --model")
    return options


def processor_seconds(program, words, scratch):
    """User and system time of one command, and nothing of what it says unless it fails."""
    environment = dict(os.environ, LLMQ_DIGEST_CACHE=os.path.join(scratch, "digest-cache"))
    with open(os.path.join(scratch, "said"), "w+", encoding="utf-8") as said:
        child = subprocess.Popen([program, *words, "--quiet"], env=environment, stdout=said,
                                 stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            said.seek(0)
            sys.exit(f"{program} {' '.join(words)}: exit {child.returncode}\n{said.read()}")
    return usage.ru_utime + usage.ru_stime


def commands(options, scratch):
    threads = ("--threads", str(options.threads))
    packed, written = os.path.join(scratch, "packed"), os.path.join(scratch, "written")
    base = ["quantize", "--model", options.model, *SCHEME, *threads]
    found = {
        "quantize": [*base, "--method", "gptq", "--output", written, "--overwrite", "--restart",
                     "--set", "calibration.samples=2", "--set", "calibration.sequence_length=128",
                     *FIRST_TEN],
        "eval-ppl": ["eval-ppl", options.model, "--compute", "bfloat16", "--context", "512",
                     "--max-windows", "8", *threads],
        "generate": ["generate", packed, "--prompt", "Once upon a time", "--max-tokens", "512",
                     "--temperature", "0", "--ignore-eos", *threads],
    }
    if options.only:
        found = {name: found[name] for name in options.only.split(",")}
    if "generate" in found:
        processor_seconds(options.a, [*base, "--method", "rtn", "--output", packed], scratch)
    return found


def ratios_of(options, words, scratch):
    """Seconds of A, and B's over A's, pair by pair."""
    seconds, ratios = [], []
    for program in (options.a, options.b):  # files into the page cache
        processor_seconds(program, words, scratch)
    for pair in range(options.pairs):
        order = (options.a, options.b) if pair % 2 == 0 else (options.b, options.a)
        first, second = (processor_seconds(program, words, scratch) for program in order)
        a, b = (first, second) if pair % 2 == 0 else (second, first)
        seconds.append(a)
        ratios.append(b / a)
    return seconds, ratios


def main():
    options = arguments()
    options.a, options.b = os.path.abspath(options.a), os.path.abspath(options.b)
    slower = []
    print("command    A, s     B/A      quartiles         extremes", flush=True)
    with tempfile.TemporaryDirectory(prefix="llmq-speed-") as scratch:
        for name, words in commands(options, scratch).items():
            seconds, ratios = ratios_of(options, words, scratch)
            median = statistics.median(ratios)
            low, _, high = statistics.quantiles(ratios, method="inclusive")
            print(f"{name:10} {statistics.median(seconds):5.2f}   {median:6.3f}   {low:6.3f} to "
                  f"{high:6.3f}  {min(ratios):6.3f} to {max(ratios):6.3f}", flush=True)
            if median > ALLOWED:
                slower.append(name)
    if slower:
        print(f"B is slower than {ALLOWED - 1:.0%} allow: {', '.join(slower)}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
