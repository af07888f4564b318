"""The wheel, as pip takes it: made twice the same, installed into an empty environment, and then the program of the build tree by another door.

    wheel_check.py LLMQ WORK        LLMQ: the program of a finished build, which is packed

PyPI is asked for what makes wheels, once (run_check.sh); what is checked here goes to no network.
"""
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile

from peer import ROOT, TINYSTORIES, expect, finish, llmq

program, work = sys.argv[1:3]
build = os.path.dirname(os.path.dirname(program))
JOB = ["quantize", "--quiet", "--method", "awq", "--model", TINYSTORIES, "--set", "scheme=w4a16_g64_asym", "--set", "calibration.samples=2",
       "--set", "calibration.sequence_length=64"]
NO_COMPILER = {"PATH": "/nonexistent", "HOME": work, "LLMQ_DIGEST_CACHE": ""}  # nothing but what is named by its whole path


def made(source, into):
    """The one wheel that make_packages.sh of `source` leaves in `into`."""
    subprocess.run([os.path.join(source, "scripts/make_packages.sh"), into, "wheel"], env={**os.environ, "BUILD": build, "PYTHON": sys.executable}, check=True)
    (wheel,) = glob.glob(os.path.join(into, "*.whl"))
    return wheel


def contents(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def listed(environment):
    """Files, but for what Python compiles by itself. Of folders that others may use, such as share/man, pip leaves empty ones."""
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(environment) for name in names if not name.endswith(".pyc"))


def pip(environment, *words):
    subprocess.run([os.path.join(environment, "bin/python"), "-m", "pip", *words, "-q", "--disable-pip-version-check"], env=NO_COMPILER, check=True)


def check_archive(wheel):
    version = llmq(program, "--version")["version"]
    expect(re.fullmatch(rf"llmq_toolchain-{re.escape(version)}-py3-none-manylinux_2_\d+_{platform.machine()}\.whl", os.path.basename(wheel)) is not None,
           f"one wheel for all Pythons, of the program's version: {os.path.basename(wheel)}")
    expect(contents(wheel) == contents(made(ROOT, os.path.join(work, "again"))), "made twice, it is the same to the bit")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (bill,) = [json.loads(archive.read(name)) for name in names if name.endswith("auditwheel.cdx.json")]
    # Of the libraries in it auditwheel says which package each is from.
    packages = {part["name"] for part in bill["components"] if part["purl"].startswith("pkg:deb/")}
    licensed = {name.split("/")[-2] for name in names if re.fullmatch(r"llmq_toolchain/share/doc/llmq/libraries/[^/]+/copyright", name)}
    libraries = [name for name in names if name.startswith("llmq_toolchain.libs/") and ".so" in name]
    expect(len(packages) == len(libraries) > 0 and packages == licensed, f"the licence of each library in it lies beside it: {', '.join(sorted(licensed))}")


def check_installed(environment, wheel):
    """What a user does first, with the time it takes."""
    before = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    empty = listed(environment)
    pip(environment, "install", "--no-index", wheel)
    command = os.path.join(environment, "bin/llmq")
    first = subprocess.run([command, *JOB, "--output", os.path.join(work, "by-pip"), "--json"], env=NO_COMPILER, capture_output=True, text=True)
    seconds = time.monotonic() - before
    expect(first.returncode == 0, "the first model is quantized" + first.stderr)
    print(f"    from an empty environment to the first quantized model: {seconds:.1f} s, without a compiler")
    digest = json.loads(first.stdout)["digest"]
    expect(digest == llmq(program, *JOB, "--output", os.path.join(work, "by-tree"))["digest"], "the digest of the build tree's program")
    (texts,) = glob.glob(os.path.join(environment, "lib/python*/site-packages/llmq_toolchain/share/llmq"))
    calibration, other = os.path.join(texts, "calibration/c4.utf8"), os.path.join(texts, "wikitext-2/wiki.test.raw")
    os.rename(calibration, calibration + ".kept")
    shutil.copy(other, calibration)
    expect(digest != llmq(command, *JOB, "--output", os.path.join(work, "moved"))["digest"], "its texts are its own: another one gives another digest")
    os.rename(calibration + ".kept", calibration)
    expect(os.path.isfile(os.path.join(environment, "share/man/man1/llmq.1")), "the manual lies where man looks")
    return empty


def first_document(lines):
    """The JSON document that a server prints before it goes on."""
    text = b""
    for line in lines:
        text += line
        if line.rstrip() == b"}":
            return text


def check_doors(environment):
    """The command and the module are the program itself, and run() is its JSON."""
    python = os.path.join(environment, "bin/python")
    inside = subprocess.run([python, "-c", "import llmq_toolchain; print(llmq_toolchain.program)"], env=NO_COMPILER, capture_output=True, text=True).stdout.strip()
    for door in ([os.path.join(environment, "bin/llmq")], [python, "-m", "llmq_toolchain"]):
        said = subprocess.run([*door, "--version"], env=NO_COMPILER, capture_output=True, text=True)
        expect(said.stdout == subprocess.run([program, "--version"], capture_output=True, text=True).stdout, f"{os.path.basename(door[-1])} is this version")
        expect(subprocess.run([*door, "nonsense"], env=NO_COMPILER, capture_output=True).returncode == 2, "its exit codes are the program's")
        with subprocess.Popen([*door, "serve", TINYSTORIES, "--port", "0", "--json"], env=NO_COMPILER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            url = json.loads(first_document(server.stdout))["url"]
            urllib.request.urlopen(f"{url}/health", timeout=60).close()
            expect(os.path.samefile(f"/proc/{server.pid}/exe", inside), "the process is the program, and no Python waits for it")
            server.send_signal(signal.SIGTERM)
            expect(server.wait(60) == 0, "a signal reaches it")
    called = """
import llmq_toolchain, pathlib, sys
document = llmq_toolchain.run("inspect", pathlib.Path(sys.argv[1]))
assert document["schema"] == "llmq.inspect/1", document
for words, code, schema in ((["inspect", "/nonexistent"], 2, "llmq.error/1"), (["eval-ppl", sys.argv[1], "--context", 64, "--max-windows", 1, "--max-ppl", 1], 3, "llmq.eval-ppl/1")):
    try:
        llmq_toolchain.run(*words)
    except llmq_toolchain.Failed as failed:
        assert failed.exit_code == code and failed.document["schema"] == schema and "llmq " + words[0] in str(failed), (failed, failed.document)
    else:
        raise SystemExit(f"{words} raised nothing")
"""
    done = subprocess.run([python, "-c", called, TINYSTORIES], env=NO_COMPILER, capture_output=True, text=True)
    expect(done.returncode == 0, "run() returns the document and raises what is no success" + (done.stderr if done.returncode else ""))


def check_scalar(environment):
    """A processor without AVX2 takes the same wheel."""
    command = os.path.join(environment, "lib", os.listdir(os.path.join(environment, "lib"))[0], "site-packages/llmq_toolchain/bin/llmq")
    rtn = ["rtn" if word == "awq" else word for word in JOB]
    scalar = subprocess.run([command, *rtn, "--output", os.path.join(work, "scalar"), "--json"], env={**NO_COMPILER, "LLMQ_CPU_ISA": "scalar"}, capture_output=True, text=True)
    expect(scalar.returncode == 0, "the level scalar runs" + (scalar.stderr if scalar.returncode else ""))
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        print("not looked at: a processor without AVX2 (qemu-x86_64 is not there)")
        return
    old = subprocess.run([emulator, "-cpu", "Nehalem", command, *rtn, "--output", os.path.join(work, "old"), "--json"], env=NO_COMPILER, capture_output=True, text=True)
    expect(old.returncode == 0 and json.loads(old.stdout)["digest"] == json.loads(scalar.stdout)["digest"], "a processor without AVX2 writes the same digest" + (old.stderr if old.returncode else ""))


def check_upgrade(environment, empty):
    """A newer wheel without one of its files takes the older one's place, and what is uninstalled leaves nothing."""
    newer = os.path.join(work, "newer")
    os.makedirs(os.path.join(newer, "tests/interop"))
    for name in ("CMakeLists.txt", "pyproject.toml", "LICENSE", "NOTICE", "packaging", "scripts"):
        path = os.path.join(ROOT, name)
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, os.path.join(newer, name))
    with open(os.path.join(newer, "CMakeLists.txt"), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(newer, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write(re.sub(r"project\(llmq VERSION [0-9.]+", "project(llmq VERSION 9.0.0", text))
    os.remove(os.path.join(newer, "packaging/python/llmq_toolchain/__main__.py"))
    pip(environment, "install", "--no-index", "--upgrade", made(newer, os.path.join(work, "newer-wheel")))
    files = listed(environment)
    expect(any("llmq_toolchain-9.0.0.dist-info" in name for name in files) and not any(name.endswith("llmq_toolchain/__main__.py") for name in files),
           "an upgrade leaves what the newer wheel has")
    expect(subprocess.run([os.path.join(environment, "bin/llmq"), "--version"], env=NO_COMPILER, capture_output=True).returncode == 0, "and it runs")
    pip(environment, "uninstall", "-y", "llmq-toolchain")
    expect(listed(environment) == empty, "what is uninstalled leaves no file" + "".join(sorted(set(listed(environment)) - set(empty))))


wheel = made(ROOT, os.path.join(work, "wheel"))
check_archive(wheel)
environment = os.path.join(work, "environment")
empty = check_installed(environment, wheel)
check_doors(environment)
check_scalar(environment)
check_upgrade(environment, empty)
finish()
