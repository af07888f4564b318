"""A script that runs in a fork of peer_server.py is seen as if it ran by itself: words, environment, folder, output, exit code; it does not outlive its caller."""
import os, signal, socket, subprocess, sys, tempfile, time

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_server.py")
SCRIPT = """
import atexit, os, sys, time
word = sys.argv[1]
atexit.register(print, "the end")
print(word, os.environ.get("WORD"), os.getcwd(), os.path.basename(sys.path[0]), __name__)
if word == "raise": raise ValueError("a reason")
if word == "die": os.kill(os.getpid(), 9)
if word == "wait":
    with open("begun", "w") as file: file.write(str(os.getpid()))
    time.sleep(600)
sys.exit({"none": None, "text": "some words"}[word] if word in ("none", "text") else int(word))
"""


def until(holds, what):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def run(path, word, **more):
    return subprocess.Popen([sys.executable, SERVER, "run", path, "script.py", word], env={**os.environ, "WORD": "of the caller"}, cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def said(path, word):
    process = run(path, word)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


with tempfile.TemporaryDirectory() as folder:
    folder = os.path.realpath(folder)
    path = os.path.join(folder, "socket")
    with open(os.path.join(folder, "script.py"), "w", encoding="utf-8") as file:
        file.write(SCRIPT)
    parent = subprocess.Popen(["sleep", "300"])
    with socket.socket(socket.AF_UNIX) as gone:  # a server that ends before it answers
        gone.bind(path + "-gone")
        gone.listen(1)
        orphan = run(path + "-gone", "3")
        gone.accept()[0].close()
        out, _ = orphan.communicate(timeout=60)
        assert orphan.returncode == 3 and out.startswith("    by itself"), out
    server = subprocess.Popen([sys.executable, SERVER, "serve", path, str(parent.pid), "nothing"], env={**os.environ, "WORD": "of the server"})
    try:
        until(lambda: os.path.exists(path), "the server listens")
        for word, code in (("none", 0), ("0", 0), ("3", 3), ("77", 77), ("text", 1), ("raise", 1)):
            found, alone = said(path, word), said(path + "-of-nobody", word)
            begin = "    by itself: no process of the peers is there\n"
            assert alone[1].startswith(begin) and found[:2] == (alone[0], alone[1].removeprefix(begin)), (word, found, alone)
            assert found[0] == code and found[1].endswith("the end\n") and "of the caller" in found[1], (word, found)
            assert ("some words" in found[2]) == (word == "text") and ("ValueError: a reason" in found[2]) == (word == "raise"), (word, found)
        code, _, error = said(path, "die")
        assert code == 1 and "FAILED: the check ended by signal 9" in error, (code, error)
        left = run(path, "wait")
        begun = os.path.join(folder, "begun")
        until(lambda: os.path.exists(begun) and os.path.getsize(begun) > 0, "the script has begun")
        with open(begun, encoding="utf-8") as file:
            pid = int(file.read())
        together = said(path, "3")
        assert together[0] == 3 and alive(pid), "another runs beside it"
        left.send_signal(signal.SIGKILL)
        left.wait()
        until(lambda: not alive(pid), "a script ends with its caller")
        os.unlink(begun)
        left = run(path, "wait")
        until(lambda: os.path.exists(begun) and os.path.getsize(begun) > 0, "the next one has begun")
        server.kill()
        server.wait()
        assert left.wait(60) == 1, "its caller fails"
        with open(begun, encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGKILL)  # which has its caller's output open
        _, error = left.communicate(timeout=60)
        assert "FAILED: the process of the peers ended before its check did" in error, error
        os.unlink(path)
        server = subprocess.Popen([sys.executable, SERVER, "serve", path, str(parent.pid), "nothing"])
        until(lambda: os.path.exists(path), "a second server listens")
        parent.kill()
        parent.wait()
        assert server.wait(60) == 0 and not os.path.exists(path), "it ends with the process that it was started for"
    finally:
        server.kill(), parent.kill()
print("ok: a fork is as a process")
