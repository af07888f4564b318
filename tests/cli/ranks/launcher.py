"""Ranks under a real launcher, for the checks of this folder: started, asked, killed.

    CHECK.py BUILD SOURCE MPIEXEC       77: no MPI was found when BUILD was made, or its launcher starts nothing here

MPIEXEC is the launcher of the MPI that the plug-in was built for. LLMQ_MPI_PLUGIN names another plug-in. What a check writes lies in `work` and goes with it.
"""
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

build, source = (os.path.realpath(path) for path in sys.argv[1:3])
mpiexec = sys.argv[3] if len(sys.argv) > 3 else ""
program = os.path.join(build, "tools", "llmq")
model = os.path.join(source, "tests", "models", "tinystories-656k")
work = os.path.realpath(tempfile.mkdtemp())
atexit.register(shutil.rmtree, work)
SECONDS = 120  # a run takes a second or two; what is waited for is no hang
TAG = f"LLMQ_RANKS_CHECK={os.getpid()}"
# More ranks than cores, as root, of one machine and without ssh: Open MPI asks for each of these by name; others do not look.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_hwloc_base_binding_policy": "none",
               "OMPI_MCA_plm_rsh_agent": "false", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
               "LLMQ_DIGEST_CACHE": os.path.join(work, "digests"), "CUDA_VISIBLE_DEVICES": "", TAG.split("=")[0]: TAG.split("=")[1]}


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def expect(met, what, said=""):
    print(("ok: " if met else "FAILED: ") + what, flush=True)
    if not met:
        print(said)
        sys.exit(1)


# ---- processes ------------------------------------------------------------------------------------------------


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


def of_rank(number):
    """Those of them that a launcher of Open MPI or MPICH calls this rank."""
    return [process for process, variables in of_this_check().items() if {f"OMPI_COMM_WORLD_RANK={number}", f"PMI_RANK={number}"} & set(variables)]


def started(words, errors=subprocess.PIPE, environment=ENVIRONMENT):
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)


def end(running):
    """A launcher, and what it started."""
    os.killpg(running.pid, signal.SIGKILL)
    for number in of_this_check():  # launchers put ranks into sessions of their own
        os.kill(number, signal.SIGKILL)
    running.wait()


def ended(running, what):
    """(stdout, stderr) of a launcher that ends; one that hangs fails the check."""
    try:
        return running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        end(running)
        expect(False, f"{what} ends within {SECONDS} s")


def run(words, environment=ENVIRONMENT):
    """Again, up to twice, where mpirun says that a process ended without MPI_Finalize: it says so of processes that did not, too, when it was kept from
    a processor for the two seconds that a process waits for its answer. One that really ends so does it every time."""
    for _ in range(3):
        process = started(words, environment=environment)
        out, err = ended(process, " ".join(words))
        if "exiting improperly" not in err:
            break
        print("mpirun missed the end of a process: once more", flush=True)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def kill_at_work(rank, running, journal, output):
    """As soon as there is a journal, whatever has been done by then."""
    while running.poll() is None and not os.path.exists(journal) and not os.path.exists(output):
        time.sleep(0.002)
    for number in of_rank(rank):
        os.kill(number, signal.SIGKILL)
    ended(running, f"a job of which rank {rank} is killed at work")


def apart(*jobs):
    """One rank for each, of words of its own."""
    words = [mpiexec]
    for number, each in enumerate(jobs):
        words += ([":"] if number else []) + ["-n", "1", *each]
    return run(words)


# ---- what they said -------------------------------------------------------------------------------------------


def said(result):
    return result.stdout + result.stderr


def sentences(result):
    return [line for line in said(result).split("\n") if "llmq: " in line]


def refused(result, *parts):
    told = sentences(result)
    return result.returncode == 2 and len(told) == 1 and all(part in told[0] for part in parts)


def digest(result):
    return json.loads(result.stdout)["digest"]


# ---- jobs -----------------------------------------------------------------------------------------------------


def measuring(*arguments, where=model, by=program):
    windows = [] if "--max-windows" in arguments else ["--max-windows", "7"]
    return [by, "eval-ppl", where, "--threads", "1", "--context", "64", *windows, *arguments]


def ranks(count, *arguments, by=program):
    return run([mpiexec, "-n", str(count), *measuring(*arguments, by=by)])


def rounding(output):
    return [program, "quantize", "--method", "rtn", "--model", model, "--output", os.path.join(work, output), "--set", "shard_bytes=60000", "--threads", "1", "--json"]


def calibrated(output, threads="1", samples="65"):
    """Three chunks of samples, the last of one sample."""
    words = [word for key in ("shard_bytes=60000", f"calibration.samples={samples}", "calibration.sequence_length=128") for word in ("--set", key)]
    return [program, "quantize", "--method", "gptq", "--model", model, "--output", os.path.join(work, output), *words, "--threads", threads, "--json"]


# ---- whether there is anything to check -----------------------------------------------------------------------

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
