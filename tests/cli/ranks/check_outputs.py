#!/usr/bin/env python3
"""Outputs that ranks share in one directory: the bytes of one process by every method, whole or with a rank killed and others going on.

Arguments and exit codes: launcher.py.
"""
import json
import os

from launcher import apart, calibrated, digest, expect, kill_at_work, model, mpiexec, program, refused, rounding, run, said, started, work


def shared_by(count, words):
    return run([mpiexec, "-n", str(count), *words])


def check_files_and_plans():
    """A GGUF that rank 0 writes for all; and what a plan of several ranks says."""
    gguf = [program, "quantize", "--method", "rtn", "--model", model, "--set", "format=gguf", "--set", "scheme=q4_k_m", "--threads", "1", "--json", "--output"]
    for folder in "1", "2", "3":  # a digest has the name of the file
        os.mkdir(os.path.join(work, folder))
    alone, shared = run([*gguf, os.path.join(work, "1/m.gguf")]), shared_by(3, [*gguf, os.path.join(work, "3/m.gguf")])
    expect(alone.returncode == 0 and shared.returncode == 0, "a GGUF is shared", said(alone) + said(shared))
    expect(digest(shared) == digest(alone), "the file of three ranks is that of one process", said(shared))
    planned = shared_by(3, [*gguf, os.path.join(work, "none.gguf"), "--dry-run", "--network", "1Gb/s"])
    expect(planned.returncode == 0, "a plan of three ranks", said(planned))
    plan, sent = json.loads(planned.stdout)["ranks"], json.loads(shared.stdout)["ranks"]
    expect(plan["count"] == sent["count"] == 3 and plan["network_seconds"] == plan["bytes_in_turn"] / 1.25e8 and
           abs(sent["traffic_bytes"] / plan["traffic_bytes"] - 1) < 0.05, "what was sent is what was planned, within 5 %", f"{sent} {plan}")
    weighed = [word.replace("rtn", "imatrix") for word in gguf[:-1]] + ["--set", "calibration.samples=16", "--output"]
    alone, shared = run([*weighed, os.path.join(work, "1/w.gguf")]), shared_by(2, [*weighed, os.path.join(work, "2/w.gguf")])
    expect(alone.returncode == 0 and shared.returncode == 0 and digest(shared) == digest(alone), "importance of dealt samples is that of one process",
           said(alone) + said(shared))
    result = apart([*gguf, os.path.join(work, "seen.gguf")], [*gguf, os.path.join(work, "unseen", "seen.gguf")])
    expect(result.returncode == 0 and not os.path.exists(os.path.join(work, "unseen")), "it lies where rank 0 sees it, and nobody else writes", said(result))


def converting(output):
    return [program, "convert", model, os.path.join(work, output), "--dtype", "bf16", "--split-max-size", "100000", "--json"]


def check_shards():
    """Rounding and conversions: the bytes of one process, in shards that ranks write."""
    for name, words in {"rounding": rounding, "a conversion": converting}.items():
        one = name.split()[-1]
        alone, shared = run(words(one + "-1")), shared_by(3, words(one + "-3"))
        expect(alone.returncode == 0 and shared.returncode == 0, f"{name} is shared", said(alone) + said(shared))
        expect(digest(shared) == digest(alone), f"{name}: the bytes of three ranks are those of one process", said(shared))
        verified = run([program, "verify", os.path.join(work, one + "-3")])
        expect(verified.returncode == 0 and not os.path.exists(os.path.join(work, one + "-3.unfinished")), f"{name}: the output is whole, by its manifest", said(verified))
    return digest(run(rounding("rounding-1")))


def check_calibration():
    of_one = run(calibrated("calibrated-1"))
    expect(of_one.returncode == 0, "a calibrated job of one process", said(of_one))
    for count, threads in ((2, "2"), (3, "1")):
        shared = shared_by(count, calibrated(f"calibrated-{count}", threads))
        expect(shared.returncode == 0 and digest(shared) == digest(of_one), f"calibration: the bytes of {count} ranks of {threads} threads are those of one process",
               said(of_one) + said(shared))
    # Bits by budget: 65 samples are measured, and a dry run measures them, too.
    budget = ["--set", "scheme=w4a16_g32_sym", "--set", "mixed.samples=65", "--target-bits", "5"]
    mixed, shared = run(calibrated("mixed-1") + budget), shared_by(3, [*calibrated("mixed-3"), *budget])
    expect(mixed.returncode == 0 and shared.returncode == 0 and digest(shared) == digest(mixed), "mixed precision: the bytes of 3 ranks are those of one process",
           said(mixed) + said(shared))
    planned = shared_by(2, [*calibrated("none"), *budget, "--dry-run"])
    expect(planned.returncode == 0 and json.loads(planned.stdout)["ranks"]["count"] == 2, "mixed precision: a plan of two ranks is measured by both and shown by one",
           said(planned))
    result = shared_by(3, [*calibrated("few", samples="33")[:-1], "--quiet"])
    expect(refused(result, "3 ranks are more than the 2 chunks", "at least 65 samples") and "rank 1" not in said(result), "more ranks than chunks of samples are refused, once",
           said(result))
    expect(not [name for name in os.listdir(work) if name.startswith("few")], "what is refused leaves nothing", str(os.listdir(work)))
    return digest(of_one)


def check_kills(of_rounding, of_calibration):
    """Others go on with the same command."""
    for killed, count, words, expected, others in ((1, 3, rounding, of_rounding, []), (0, 2, rounding, of_rounding, [mpiexec, "-n", "4"]),
                                                   (2, 3, calibrated, of_calibration, [mpiexec, "-n", "2"])):
        name = f"killed-{killed}"
        output = os.path.join(work, name)
        kill_at_work(killed, started([mpiexec, "-n", str(count), *words(name)]), output + ".unfinished/journal", output)
        expect(not os.path.exists(output) or json.load(open(os.path.join(output, "report.json")))["digest"] == expected, "no half of an output has its name")
        result = run([*others, *words(name)])
        expect(result.returncode == 0 and digest(result) == expected, f"rank {killed} of {count} is killed at work, and others end with the same bytes", said(result))


check_files_and_plans()
check_kills(check_shards(), check_calibration())
