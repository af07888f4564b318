#!/usr/bin/env python3
"""Ranks under a real launcher: the digits and bytes of one process, one sentence where they cannot begin, no hang where one dies.

    check_ranks.py BUILD SOURCE MPIEXEC       77: no MPI was found when BUILD was made, or its launcher starts nothing here

MPIEXEC is the launcher of the MPI that the plug-in was built for. LLMQ_MPI_PLUGIN names another plug-in.
"""
import json, os, re, shutil, signal, subprocess, sys, tempfile, time

build, source = (os.path.realpath(path) for path in sys.argv[1:3])
mpiexec = sys.argv[3] if len(sys.argv) > 3 else ""
program = os.path.join(build, "tools", "llmq")
model = os.path.join(source, "tests", "models", "tinystories-656k")
work = os.path.realpath(tempfile.mkdtemp())
SECONDS = 120  # a run takes a second or two; what is waited for is no hang
TAG = f"LLMQ_RANKS_CHECK={os.getpid()}"
# More ranks than cores, as root, of one machine and without ssh: Open MPI asks for each of these by name; others do not look.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_hwloc_base_binding_policy": "none",
               "OMPI_MCA_plm_rsh_agent": "false", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
               "LLMQ_DIGEST_CACHE": os.path.join(work, "digests"), "CUDA_VISIBLE_DEVICES": "", TAG.split("=")[0]: TAG.split("=")[1]}


def skip(why):
    print(f"SKIPPED: {why}")
    shutil.rmtree(work)
    sys.exit(77)


def expect(met, what, said=""):
    print(("ok: " if met else "FAILED: ") + what, flush=True)
    if not met:
        print(said)
        shutil.rmtree(work)
        sys.exit(1)


def of_this_check():
    """The processes of this check that run the program, each with its variables."""
    found = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ") as file:
                variables = file.read().split("\0")
            if TAG in variables and os.readlink(f"/proc/{number}/exe") == program:
                found[int(number)] = variables
        except OSError:  # it has ended, or is another's
            continue
    return found


def end(started):
    """A launcher that hangs, and what it started."""
    os.killpg(started.pid, signal.SIGKILL)
    for number in of_this_check():  # launchers put ranks into sessions of their own
        os.kill(number, signal.SIGKILL)
    started.wait()


def started(words, environment=ENVIRONMENT, errors=subprocess.PIPE):
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)


def run(words, environment=ENVIRONMENT):
    """Again, up to twice, where mpirun says that a process ended without MPI_Finalize: it says so of processes that did not, too, when it was kept from
    a processor for the two seconds that a process waits for its answer. One that really ends so does it every time."""
    for _ in range(3):
        process = started(words, environment)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            end(process)
            expect(False, f"{' '.join(words)} ends within {SECONDS} s")
        result = subprocess.CompletedProcess(words, process.returncode, out, err)
        if "exiting improperly" not in result.stderr:
            break
        print("mpirun missed the end of a process: once more", flush=True)
    return result


def job(*arguments, where=model):
    windows = [] if "--max-windows" in arguments else ["--max-windows", "7"]
    return [program, "eval-ppl", where, "--threads", "1", "--context", "64", *windows, *arguments]


def ranks(count, *arguments):
    return run([mpiexec, "-n", str(count), *job(*arguments)])


def apart(*jobs):
    """One rank for each, of words of its own."""
    words = [mpiexec]
    for number, each in enumerate(jobs):
        words += ([":"] if number else []) + ["-n", "1", *each]
    return run(words)


def figures(document):
    """What does not depend on how long it took and how much memory one process held."""
    if isinstance(document, dict):
        return {key: figures(value) for key, value in document.items() if key not in ("seconds", "tokens_per_second", "peak_rss_bytes")}
    return [figures(value) for value in document] if isinstance(document, list) else document


def said(result):
    return result.stdout + result.stderr


def sentences(result):
    return [line for line in said(result).split("\n") if "llmq: " in line]


def refused(result, *parts):
    told = sentences(result)
    return result.returncode == 2 and len(told) == 1 and all(part in told[0] for part in parts)


if not os.path.isfile(os.path.join(build, "lib", "llmq", "libllmq_mpi.so")) or not mpiexec:
    skip("no MPI was found when this was built (Debian: libopenmpi-dev and openmpi-bin), so nothing was shared by processes")
try:
    true = run([mpiexec, "-n", "2", "true"])
except OSError as error:
    skip(f"{mpiexec} does not start processes here: {error}")
if true.returncode != 0:
    skip(f"{mpiexec} does not start processes here: {said(true)}")

first = ranks(2, "--quiet")
if "built for another MPI than this launcher's" in said(first) and said(first).count("Open MPI") == 1:  # of the two names in that sentence
    skip(f"{mpiexec} is of another MPI than the plug-in: {said(first)}")

# The digits of one process.
rounded = os.path.join(work, "rounded")
expect(run([program, "quantize", "--method", "rtn", "--model", model, "--output", rounded, "--quiet"]).returncode == 0, "a model to compare is there")
for name, arguments in {"a perplexity": [], "a text to its end": ["--protocol", "lm-eval", "--text", os.path.join(source, "NOTICE"), "--max-windows", "0"],
                        "two models and their divergence": [rounded, "--against", model]}.items():
    alone = run(job("--json", *arguments))
    expect(alone.returncode == 0, f"{name}: of one process", said(alone))
    for count in (2, 3) if not arguments else (3,):
        shared = ranks(count, "--json", *arguments)
        expect(shared.returncode == 0, f"{name}: of {count} ranks", said(shared))
        expect(figures(json.loads(shared.stdout)) == figures(json.loads(alone.stdout)), f"{name}: the digits of {count} ranks are those of one process",
               alone.stdout + shared.stdout)
alone, shared = run(job()), ranks(3)
expect(shared.stdout.split("\n")[0] == alone.stdout.split("\n")[0], "what people read is said once, and alike", said(shared))
expect(ranks(2, "--max-ppl", "3").returncode == 3, "a gate that is not met is exit 3")
each = ranks(2, "--ranks", "none", "--json")
expect(each.returncode == 0 and each.stdout.count('"schema": "llmq.eval-ppl/1"') == 2, "--ranks none: each works alone", said(each))

def check_files_and_plans():
    """A GGUF that rank 0 writes for all; and what a plan of several ranks says."""
    gguf = [program, "quantize", "--method", "rtn", "--model", model, "--set", "format=gguf", "--set", "scheme=q4_k_m", "--threads", "1", "--json", "--output"]
    for folder in "1", "2", "3":  # a digest has the name of the file
        os.mkdir(os.path.join(work, folder))
    alone, shared = run([*gguf, os.path.join(work, "1/m.gguf")]), run([mpiexec, "-n", "3", *gguf, os.path.join(work, "3/m.gguf")])
    expect(alone.returncode == 0 and shared.returncode == 0, "a GGUF is shared", said(alone) + said(shared))
    expect(json.loads(shared.stdout)["digest"] == json.loads(alone.stdout)["digest"], "the file of three ranks is that of one process", said(shared))
    planned = run([mpiexec, "-n", "3", *gguf, os.path.join(work, "none.gguf"), "--dry-run", "--network", "1Gb/s"])
    expect(planned.returncode == 0, "a plan of three ranks", said(planned))
    plan, sent = json.loads(planned.stdout)["ranks"], json.loads(shared.stdout)["ranks"]
    expect(plan["count"] == sent["count"] == 3 and plan["network_seconds"] == plan["bytes_in_turn"] / 1.25e8 and
           abs(sent["traffic_bytes"] / plan["traffic_bytes"] - 1) < 0.05, "what was sent is what was planned, within 5 %", f"{sent} {plan}")
    weighed = [word.replace("rtn", "imatrix") for word in gguf[:-1]] + ["--set", "calibration.samples=16", "--output"]
    alone, shared = run([*weighed, os.path.join(work, "1/w.gguf")]), run([mpiexec, "-n", "2", *weighed, os.path.join(work, "2/w.gguf")])
    expect(alone.returncode == 0 and shared.returncode == 0 and json.loads(shared.stdout)["digest"] == json.loads(alone.stdout)["digest"],
           "importance of dealt samples is that of one process", said(alone) + said(shared))
    result = apart([*gguf, os.path.join(work, "seen.gguf")], [*gguf, os.path.join(work, "unseen", "seen.gguf")])
    expect(result.returncode == 0 and not os.path.exists(os.path.join(work, "unseen")), "it lies where rank 0 sees it, and nobody else writes", said(result))


check_files_and_plans()

# Rounding and conversions: the bytes of one process, in shards that ranks write.
def rounding(output, *arguments):
    return [program, "quantize", "--method", "rtn", "--model", model, "--output", os.path.join(work, output), "--set", "shard_bytes=60000", "--threads", "1",
            *(arguments or ["--json"])]


def converting(output):
    return [program, "convert", model, os.path.join(work, output), "--dtype", "bf16", "--split-max-size", "100000", "--json"]


for name, words in {"rounding": rounding, "a conversion": converting}.items():
    one = name.split()[-1]
    alone, shared = run(words(one + "-1")), run([mpiexec, "-n", "3", *words(one + "-3")])
    expect(alone.returncode == 0 and shared.returncode == 0, f"{name} is shared", said(alone) + said(shared))
    expect(json.loads(shared.stdout)["digest"] == json.loads(alone.stdout)["digest"], f"{name}: the bytes of three ranks are those of one process", said(shared))
    verified = run([program, "verify", os.path.join(work, one + "-3")])
    expect(verified.returncode == 0 and not os.path.exists(os.path.join(work, one + "-3.unfinished")), f"{name}: the output is whole, by its manifest", said(verified))
digest = json.loads(run(rounding("rounding-1")).stdout)["digest"]


# Calibration: three chunks of samples, the last of one sample.
def calibrated(output, threads="1", samples="65"):
    words = [word for key in ("shard_bytes=60000", f"calibration.samples={samples}", "calibration.sequence_length=128") for word in ("--set", key)]
    return [program, "quantize", "--method", "gptq", "--model", model, "--output", os.path.join(work, output), *words, "--threads", threads, "--json"]


of_one = run(calibrated("calibrated-1"))
expect(of_one.returncode == 0, "a calibrated job of one process", said(of_one))
for count, threads in ((2, "2"), (3, "1")):
    shared = run([mpiexec, "-n", str(count), *calibrated(f"calibrated-{count}", threads)])
    expect(shared.returncode == 0 and json.loads(shared.stdout)["digest"] == json.loads(of_one.stdout)["digest"],
           f"calibration: the bytes of {count} ranks of {threads} threads are those of one process", said(of_one) + said(shared))
# Bits by budget: 65 samples are measured, and a dry run measures them, too.
budget = ["--set", "scheme=w4a16_g32_sym", "--set", "mixed.samples=65", "--target-bits", "5"]
mixed, shared = run(calibrated("mixed-1") + budget), run([mpiexec, "-n", "3", *calibrated("mixed-3"), *budget])
expect(mixed.returncode == 0 and shared.returncode == 0 and json.loads(shared.stdout)["digest"] == json.loads(mixed.stdout)["digest"],
       "mixed precision: the bytes of 3 ranks are those of one process", said(mixed) + said(shared))
planned = run([mpiexec, "-n", "2", *calibrated("none"), *budget, "--dry-run"])
expect(planned.returncode == 0 and json.loads(planned.stdout)["ranks"]["count"] == 2, "mixed precision: a plan of two ranks is measured by both and shown by one",
       said(planned))
result = run([mpiexec, "-n", "3", *calibrated("few", samples="33")[:-1], "--quiet"])
expect(refused(result, "3 ranks are more than the 2 chunks", "at least 65 samples") and "rank 1" not in said(result), "more ranks than chunks of samples are refused, once",
       said(result))
expect(not [name for name in os.listdir(work) if name.startswith("few")], "what is refused leaves nothing", str(os.listdir(work)))

# A rank is killed as soon as there is a journal, whatever has been done by then; others go on with the same command.
for killed, count, words, expected in (("1", 3, rounding, digest), ("0", 2, rounding, digest), ("2", 3, calibrated, json.loads(of_one.stdout)["digest"])):
    output = os.path.join(work, "killed-" + killed)
    running = started([mpiexec, "-n", str(count), *words("killed-" + killed)])
    while running.poll() is None and not os.path.exists(output + ".unfinished/journal") and not os.path.exists(output):
        time.sleep(0.002)
    for number, variables in of_this_check().items():
        if {"OMPI_COMM_WORLD_RANK=" + killed, "PMI_RANK=" + killed} & set(variables):
            os.kill(number, signal.SIGKILL)
    try:
        running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        end(running)
        expect(False, f"rank {killed} is killed at work, and the job ends within {SECONDS} s")
    expect(not os.path.exists(output) or json.load(open(os.path.join(output, "report.json")))["digest"] == expected, "no half of an output has its name")
    others = {"1": [], "0": [mpiexec, "-n", "4"], "2": [mpiexec, "-n", "2"]}[killed]
    result = run([*others, *words("killed-" + killed)])
    expect(result.returncode == 0 and json.loads(result.stdout)["digest"] == expected, f"rank {killed} of {count} is killed at work, and others end with the same bytes", said(result))

# Nodes with a disk each: as many working directories, and an output path that is none of all. Shards are gathered, and nothing is left elsewhere.
def on_nodes(name, words, *nodes):
    told = [mpiexec]
    for at, (count, node) in enumerate(nodes):
        os.makedirs(os.path.join(work, node), exist_ok=True)
        told += ([":"] if at else []) + ["-n", str(count), "-wdir", os.path.join(work, node), *words(os.path.join(work, name))]
    return [word.replace(os.path.join(work, name), name) for word in told]


def gathered(name, at, expected, *nodes):
    left = {node: [found for found in os.listdir(os.path.join(work, node)) if found.startswith(name)] for node in nodes}
    return left == {node: [name] if node == at else [] for node in nodes} and json.load(open(os.path.join(work, at, name, "report.json")))["digest"] == expected


of_kind = {"rounding": (rounding, digest), "calibration": (calibrated, json.loads(of_one.stdout)["digest"])}
for kind, (words, expected) in of_kind.items():
    for nodes in ([(1, "node0"), (2, "node1")], [(1, "node1"), (1, "node0"), (1, "node1")]):
        name = f"{kind}-{len(nodes)}"
        result = run(on_nodes(name, words, *nodes))
        expect(result.returncode == 0 and json.loads(result.stdout)["digest"] == expected and gathered(name, nodes[0][1], expected, "node0", "node1"),
               f"{kind}: what ranks write on {len({node for _, node in nodes})} nodes is gathered on {nodes[0][1]}", said(result) + str(os.listdir(work)))
        expect(re.search(r"2 places: the output directory of rank 1 \(.*\) of 3 is another one than rank 0's; \d+ of \d+ shards, .* are written elsewhere", said(result)),
               f"{kind}: it is said where", said(result))
        verified = run([program, "verify", os.path.join(work, nodes[0][1], name)])
        expect(verified.returncode == 0, f"{kind}: the gathered output is whole, by its manifest", said(verified))
for killed, kind in (("0", "calibration"), ("1", "calibration"), ("1", "rounding")):
    name, (words, expected) = f"killed-{killed}-{kind}", of_kind[kind]
    running = started(on_nodes(name, words, (1, "node0"), (2, "node1")))
    while running.poll() is None and not os.path.exists(os.path.join(work, "node1", name + ".unfinished/journal")):
        time.sleep(0.002)
    for number, variables in of_this_check().items():
        if {"OMPI_COMM_WORLD_RANK=" + killed, "PMI_RANK=" + killed} & set(variables):
            os.kill(number, signal.SIGKILL)
    try:
        running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        end(running)
        expect(False, f"rank {killed} is killed at work on its node, and the job ends within {SECONDS} s")
    result = run(on_nodes(name, words, (1, "node1"), (1, "node0")))
    expect(result.returncode == 0 and json.loads(result.stdout)["digest"] == expected and gathered(name, "node1", expected, "node0", "node1"),
           f"{kind}: rank {killed} is killed at work, and the nodes go on in another order", said(result))

# All begin or none, and one sentence says why.
copy = os.path.join(work, "copy")
shutil.copytree(model, copy)
with open(os.path.join(copy, "config.json"), "a") as config:
    config.write("\n")
result = apart(job(), job(where=copy))
expect(refused(result, "rank 1 (", "has another model/config.json than rank 0", "give every rank the same files"), "another file is named", said(result))
nowhere = os.path.join(work, "nowhere")
result = apart(job(), job(where=nowhere), job())
expect(refused(result, nowhere, "rank 1 (", ") of 3 cannot begin: no such directory"), "a rank without the checkpoint is named", said(result))
result = apart(job(where=nowhere), job(where=nowhere))
expect(refused(result, nowhere) and "rank" not in sentences(result)[0], "what all lack is said once, as one process says it", said(result))
result = apart(job(), job("--max-windows", "3"))
expect(refused(result, "rank 1 (", "another measurement", "hf-64, 3 windows"), "another measurement is named", said(result))
levels = json.loads(run([program, "--version", "--json"]).stdout)["cpu_levels"]
if len(levels) > 1:
    result = apart(["env", "LLMQ_CPU_ISA=" + levels[0], *job()], ["env", "LLMQ_CPU_ISA=" + levels[1], *job()])
    expect(refused(result, "rank 1 (", "another arithmetic", levels[1]), "another CPU level is named", said(result))
result = ranks(3, "--max-windows", "2")
expect(refused(result, "3 ranks are more than the 2 windows"), "more ranks than windows are refused", said(result))
result = apart(job(), job("--against", model))
expect(refused(result, "rank 1 (", "another measurement", "--against yes", "and not hf-64, 7 windows", "--against no"), "more that only one rank is asked for is named", said(result))
result = ranks(2, "--max-kl", "1")
expect(refused(result, "--max-kl: a difference needs something to differ from") and " of 2" not in sentences(result)[0], "words that are wrong are said once", said(result))
result = run([mpiexec, "-n", "2", program, "verify", model])
expect(refused(result, "started 2 processes", "llmq verify does not share its work"), "a command that does not share its work is refused", said(result))
result = run([mpiexec, "-n", "2", program, "inspect", model])
expect(result.returncode == 0 and "--ranks" not in said(result), "a command that only prints does so", said(result))

if re.search("Open MPI|OpenRTE", said(run([mpiexec, "--version"]))):  # as MPICH's launcher would start it: Open MPI sees a process of its own
    result = run(job(), {**ENVIRONMENT, "PMI_SIZE": "2", "PMI_RANK": "0"})
    expect(refused(result, "mpiexec started 2 processes", "for another MPI", "which sees 1, and PMI_SIZE says 2"), "a plug-in of another MPI than the launcher's is refused", said(result))

# One that fails or dies ends all, though the others wait for it.
result = ranks(3, "--summary", "/dev/full")
expect(result.returncode == 1 and len([line for line in sentences(result) if "/dev/full: rank 0 (" in line]) == 1, "a rank that fails ends all, by name", said(result))


running = started([mpiexec, "-n", "3", program, "eval-ppl", model, "--threads", "1", "--context", "512", "--progress", "plain"], errors=subprocess.STDOUT)
for line in running.stdout:
    if "window 16/" in line:
        break
at_work = of_this_check()
victims = [number for number, variables in at_work.items() if {"OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1"} & set(variables)]
if len(at_work) != 3 or len(victims) != 1:
    end(running)
    expect(False, f"three ranks are at work: {sorted(at_work)}, and one of them is rank 1: {victims}")
os.kill(victims[0], signal.SIGKILL)
start = time.monotonic()
try:
    rest, _ = running.communicate(timeout=SECONDS)
except subprocess.TimeoutExpired:
    end(running)
    expect(False, f"a rank that is killed ends the job within {SECONDS} s")
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


# An installed tree has its plug-in where it was moved with it, and that finds the MPI that it was built for.
tree = os.path.join(work, "tree")
for component in ([], ["--component", "mpi"]):
    subprocess.run(["cmake", "--install", build, "--prefix", tree, *component], check=True, stdout=subprocess.DEVNULL)
    installed = os.path.isfile(os.path.join(tree, "lib/llmq/libllmq_mpi.so"))
    expect(installed == bool(component), "the plug-in is installed " + ("with its component" if component else "by nobody who does not ask"))
if shutil.which("readelf"):
    built, installed = (library_places(os.path.join(where, "lib/llmq/libllmq_mpi.so")) for where in (build, tree))
    expect(built <= installed, f"the installed plug-in looks for its MPI in {sorted(built) or 'no place of its own'}", str(sorted(installed)))
os.rename(tree, tree + "-moved")
program = os.path.join(tree + "-moved", "bin", "llmq")
shared = ranks(2, "--json")
expect(shared.returncode == 0 and json.loads(shared.stdout)["windows"] == 7, "an installed program finds it", said(shared))
shutil.rmtree(work)
