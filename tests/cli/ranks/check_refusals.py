#!/usr/bin/env python3
"""Ranks that cannot begin together: all begin or none, and one sentence says why.

Arguments and exit codes: launcher.py.
"""
import json
import os
import re
import shutil

from launcher import ENVIRONMENT, apart, expect, measuring, model, mpiexec, program, ranks, refused, run, said, sentences, work

copy, nowhere = os.path.join(work, "copy"), os.path.join(work, "nowhere")
shutil.copytree(model, copy)
with open(os.path.join(copy, "config.json"), "a") as config:
    config.write("\n")
result = apart(measuring(), measuring(where=copy))
expect(refused(result, "rank 1 (", "has another model/config.json than rank 0", "give every rank the same files"), "another file is named", said(result))
result = apart(measuring(), measuring(where=nowhere), measuring())
expect(refused(result, nowhere, "rank 1 (", ") of 3 cannot begin: no such directory"), "a rank without the checkpoint is named", said(result))
result = apart(measuring(where=nowhere), measuring(where=nowhere))
expect(refused(result, nowhere) and "rank" not in sentences(result)[0], "what all lack is said once, as one process says it", said(result))
result = apart(measuring(), measuring("--max-windows", "3"))
expect(refused(result, "rank 1 (", "another measurement", "hf-64, 3 windows"), "another measurement is named", said(result))
levels = json.loads(run([program, "--version", "--json"]).stdout)["cpu_levels"]
if len(levels) > 1:
    result = apart(["env", "LLMQ_CPU_ISA=" + levels[0], *measuring()], ["env", "LLMQ_CPU_ISA=" + levels[1], *measuring()])
    expect(refused(result, "rank 1 (", "another arithmetic", levels[1]), "another CPU level is named", said(result))
result = ranks(3, "--max-windows", "2")
expect(refused(result, "3 ranks are more than the 2 windows"), "more ranks than windows are refused", said(result))
result = apart(measuring(), measuring("--against", model))
expect(refused(result, "rank 1 (", "another measurement", "--against yes", "and not hf-64, 7 windows", "--against no"), "more that only one rank is asked for is named", said(result))
result = ranks(2, "--max-kl", "1")
expect(refused(result, "--max-kl: a difference needs something to differ from") and " of 2" not in sentences(result)[0], "words that are wrong are said once", said(result))
result = run([mpiexec, "-n", "2", program, "verify", model])
expect(refused(result, "started 2 processes", "llmq verify does not share its work"), "a command that does not share its work is refused", said(result))
result = run([mpiexec, "-n", "2", program, "inspect", model])
expect(result.returncode == 0 and "--ranks" not in said(result), "a command that only prints does so", said(result))
if re.search("Open MPI|OpenRTE", said(run([mpiexec, "--version"]))):  # as MPICH's launcher would start it: Open MPI sees a process of its own
    result = run(measuring(), {**ENVIRONMENT, "PMI_SIZE": "2", "PMI_RANK": "0"})
    expect(refused(result, "mpiexec started 2 processes", "for another MPI", "which sees 1, and PMI_SIZE says 2"), "a plug-in of another MPI than the launcher's is refused", said(result))
