#!/usr/bin/env python3
"""A measurement that ranks share: the digits of one process; nothing is reported where a rank dies; an installed tree shares, too.

Arguments and exit codes: launcher.py.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from launcher import SECONDS, build, end, ended, expect, measuring, model, mpiexec, of_rank, of_this_check, program, ranks, run, said, sentences, source, started, work


def figures(document):
    """What does not depend on how long it took and how much memory one process held."""
    if isinstance(document, dict):
        return {key: figures(value) for key, value in document.items() if key not in ("seconds", "tokens_per_second", "peak_rss_bytes")}
    return [figures(value) for value in document] if isinstance(document, list) else document


def check_digits():
    rounded = os.path.join(work, "rounded")
    expect(run([program, "quantize", "--method", "rtn", "--model", model, "--output", rounded, "--quiet"]).returncode == 0, "a model to compare is there")
    for name, arguments in {"a perplexity": [], "a text to its end": ["--protocol", "lm-eval", "--text", os.path.join(source, "NOTICE"), "--max-windows", "0"],
                            "two models and their divergence": [rounded, "--against", model]}.items():
        alone = run(measuring("--json", *arguments))
        expect(alone.returncode == 0, f"{name}: of one process", said(alone))
        for count in (2, 3) if not arguments else (3,):
            shared = ranks(count, "--json", *arguments)
            expect(shared.returncode == 0, f"{name}: of {count} ranks", said(shared))
            expect(figures(json.loads(shared.stdout)) == figures(json.loads(alone.stdout)), f"{name}: the digits of {count} ranks are those of one process",
                   alone.stdout + shared.stdout)
    alone, shared = run(measuring()), ranks(3)
    expect(shared.stdout.split("\n")[0] == alone.stdout.split("\n")[0], "what people read is said once, and alike", said(shared))
    expect(ranks(2, "--max-ppl", "3").returncode == 3, "a gate that is not met is exit 3")
    each = ranks(2, "--ranks", "none", "--json")
    expect(each.returncode == 0 and each.stdout.count('"schema": "llmq.eval-ppl/1"') == 2, "--ranks none: each works alone", said(each))


def check_ends():
    """One that fails or dies ends all, though the others wait for it."""
    result = ranks(3, "--summary", "/dev/full")
    expect(result.returncode == 1 and len([line for line in sentences(result) if "/dev/full: rank 0 (" in line]) == 1, "a rank that fails ends all, by name", said(result))
    running = started([mpiexec, "-n", "3", program, "eval-ppl", model, "--threads", "1", "--context", "512", "--progress", "plain"], errors=subprocess.STDOUT)
    for line in running.stdout:
        if "window 16/" in line:
            break
    at_work, victims = of_this_check(), of_rank(1)
    if len(at_work) != 3 or len(victims) != 1:
        end(running)
        expect(False, f"three ranks are at work: {sorted(at_work)}, and one of them is rank 1: {victims}")
    os.kill(victims[0], signal.SIGKILL)
    start = time.monotonic()
    rest, _ = ended(running, "a job of which a rank is killed")
    expect(running.returncode != 0 and "scored tokens" not in rest,
           f"a rank that is killed ends the job, here after {time.monotonic() - start:.1f} s, and nothing is reported", rest)
    while of_this_check() and time.monotonic() < start + SECONDS:
        time.sleep(0.1)
    left = of_this_check()
    for number in left:
        os.kill(number, signal.SIGKILL)
    expect(not left, "no rank outlives the job")


def library_places(plugin):
    """Where it looks for the site's MPI, beside where the system looks."""
    told = subprocess.run(["readelf", "-d", plugin], env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {place for places in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", told) for place in places.split(":") if place}


def check_tree():
    """An installed tree has its plug-in where it was moved with it, and that finds the MPI that it was built for."""
    tree = os.path.join(work, "tree")
    for component in ([], ["--component", "mpi"]):
        subprocess.run(["cmake", "--install", build, "--prefix", tree, *component], check=True, stdout=subprocess.DEVNULL)
        installed = os.path.isfile(os.path.join(tree, "lib/llmq/libllmq_mpi.so"))
        expect(installed == bool(component), "the plug-in is installed " + ("with its component" if component else "by nobody who does not ask"))
    if shutil.which("readelf"):
        built, installed = (library_places(os.path.join(where, "lib/llmq/libllmq_mpi.so")) for where in (build, tree))
        expect(built <= installed, f"the installed plug-in looks for its MPI in {sorted(built) or 'no place of its own'}", str(sorted(installed)))
    os.rename(tree, tree + "-moved")
    shared = ranks(2, "--json", by=os.path.join(tree + "-moved", "bin", "llmq"))
    expect(shared.returncode == 0 and json.loads(shared.stdout)["windows"] == 7, "an installed program finds it", said(shared))


check_digits()
check_ends()
check_tree()
