#!/usr/bin/env python3
"""Instructions of each piece of counted_work.cpp against the record, within 5 %.   check_instructions.py COUNTED_WORK RECORD COMPILER [--record]

valgrind counts them at the level avx2 (it knows no AVX-512). The same binary always gives the same number, so a difference is a change of the code or of the compiler; the
record names its compiler, and with another one the check says so and leaves with 77. 5 % lets small changes pass; one that is meant is recorded anew with --record.
"""
import json, os, re, shutil, subprocess, sys, tempfile

program, record, compiler = sys.argv[1:4]
BAND = 0.05


def skip(sentence):
    print(f"SKIPPED: {sentence}")
    sys.exit(77)


if shutil.which("valgrind") is None:
    skip("valgrind (Debian package valgrind) is not installed: no instructions are counted")
known = json.load(open(record)) if os.path.exists(record) else {}
if "--record" not in sys.argv and known.get("compiler", "").split(".")[0] != compiler.split(".")[0]:
    skip(f"the record was made with {known.get('compiler', 'no compiler')}, this is {compiler}")
if "avx2" not in open("/proc/cpuinfo").read():
    skip("this processor has no AVX2, at which instructions are counted")


def counted(name):
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=counted_region", f"--callgrind-out-file={directory}/out", program, name],
                              capture_output=True, text=True, env={**os.environ, "LLMQ_CPU_ISA": "avx2"})
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found or int(found.group(1)) == 0:
        sys.exit(f"FAILED: {name} could not be counted: {done.stderr[-800:]}")
    return int(found.group(1))


found = {name: counted(name) for name in subprocess.run([program, "names"], capture_output=True, text=True, check=True).stdout.split()}
if "--record" in sys.argv:
    json.dump({"compiler": compiler, "level": "avx2", "instructions": found}, open(record, "w"), indent=1)
    sys.exit(0)
failed = False
for name in sorted(set(found) | set(known["instructions"])):
    before, now = known["instructions"].get(name), found.get(name)
    good = bool(before and now) and abs(now - before) <= BAND * before
    failed |= not good
    print(f"{'ok' if good else 'FAILED'}: {name}: {now} instructions, recorded {before}")
sys.exit(1 if failed else 0)
