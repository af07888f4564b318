#!/usr/bin/env python3
"""Nodes with a disk each: as many working directories, and an output path that is none of all. Shards are gathered, and nothing is left elsewhere.

Arguments and exit codes: launcher.py.
"""
import json
import os
import re

from launcher import calibrated, digest, expect, kill_at_work, mpiexec, program, rounding, run, said, started, work

NODES = "node0", "node1"


def on_nodes(name, words, *nodes):
    told = [mpiexec]
    for at, (count, node) in enumerate(nodes):
        os.makedirs(os.path.join(work, node), exist_ok=True)
        told += ([":"] if at else []) + ["-n", str(count), "-wdir", os.path.join(work, node), *words(os.path.join(work, name))]
    return [word.replace(os.path.join(work, name), name) for word in told]


def gathered(name, at, expected):
    left = {node: [found for found in os.listdir(os.path.join(work, node)) if found.startswith(name)] for node in NODES}
    return left == {node: [name] if node == at else [] for node in NODES} and json.load(open(os.path.join(work, at, name, "report.json")))["digest"] == expected


alone = run(rounding("rounding")), run(calibrated("calibration"))
expect(all(result.returncode == 0 for result in alone), "both jobs of one process", "".join(map(said, alone)))
OF_KIND = {"rounding": (rounding, digest(alone[0])), "calibration": (calibrated, digest(alone[1]))}
for kind, (words, expected) in OF_KIND.items():
    for nodes in ([(1, "node0"), (2, "node1")], [(1, "node1"), (1, "node0"), (1, "node1")]):
        name, at = f"{kind}-{len(nodes)}", nodes[0][1]
        result = run(on_nodes(name, words, *nodes))
        expect(result.returncode == 0 and digest(result) == expected and gathered(name, at, expected),
               f"{kind}: what ranks write on {len({node for _, node in nodes})} nodes is gathered on {at}", said(result) + str(os.listdir(work)))
        expect(re.search(r"2 places: the output directory of rank 1 \(.*\) of 3 is another one than rank 0's; \d+ of \d+ shards, .* are written elsewhere", said(result)),
               f"{kind}: it is said where", said(result))
        verified = run([program, "verify", os.path.join(work, at, name)])
        expect(verified.returncode == 0, f"{kind}: the gathered output is whole, by its manifest", said(verified))
for killed, kind in ((0, "calibration"), (1, "calibration"), (1, "rounding")):
    name, (words, expected) = f"killed-{killed}-{kind}", OF_KIND[kind]
    kill_at_work(killed, started(on_nodes(name, words, (1, "node0"), (2, "node1"))), os.path.join(work, "node1", name + ".unfinished/journal"),
                 os.path.join(work, "node0", name))
    result = run(on_nodes(name, words, (1, "node1"), (1, "node0")))
    expect(result.returncode == 0 and digest(result) == expected and gathered(name, "node1", expected),
           f"{kind}: rank {killed} is killed at work, and the nodes go on in another order", said(result))
