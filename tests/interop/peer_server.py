"""A process of an environment that has imported what checks import; each check runs in a fork of it. Imports take more than most checks compute.

    peer_server.py serve SOCKET PARENT [nothing]    until the process PARENT (ctest) is gone; with nothing imported, for peer_server_test.py
    peer_server.py run SOCKET SCRIPT [ARGUMENT...]  in a fork, with this process's files, folder and environment; the exit code is the script's

Where nobody answers on SOCKET, `run` runs the script by itself: the same check, some seconds of processor time later. A fork has one thread, so the
server must have one when it forks: it says so and leaves otherwise. A script whose caller is gone is killed with what it started.
"""
import contextlib, gc, json, os, selectors, signal, socket, sys

HERE = os.path.dirname(os.path.abspath(__file__))


def imported():
    """What checks import: the classes of all families, and what the first model that is loaded imports."""
    import compressed_tensors.compressors, gguf, peft, tokenizers, torch, tqdm, transformers  # noqa: F401
    import make_random_models
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    tqdm.tqdm.monitor_interval = 0  # which is a thread
    state = torch.get_rng_state()
    for name in make_random_models.MODELS:
        AutoModelForCausalLM._model_mapping[make_random_models.MODELS[name][0]]  # noqa: B018  # imports it
    for cls, *_ in make_random_models.WRAPPERS.values():
        AutoModelForImageTextToText._model_mapping[cls]  # noqa: B018
    AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "..", "models", "tinystories-656k"), dtype=torch.float32)
    torch.set_rng_state(state)


def run_script(arguments, folder, environment):
    """In a fork: as if Python had been started with these; leaves."""
    import atexit, runpy, traceback

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(arguments[0]))
    code = 1
    try:
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  # as Python would say it
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def received(connection):
    """(arguments, folder, environment, files) of a caller."""
    text, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 16)
    return *json.loads(text), files


def serve(path, parent, what=None):
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    try:
        if what != "nothing":
            imported()
        answer(server, parent)
    finally:
        os.unlink(path)


def answer(server, parent):
    gc.freeze()  # what is shared stays where it is
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"peer_server: {threads} threads, and a fork has one")
    watched = selectors.DefaultSelector()
    watched.register(server, selectors.EVENT_READ, None)
    while os.path.exists(f"/proc/{parent}"):
        for key, _ in watched.select(1):
            if key.fileobj is server:
                connection, _ = server.accept()
                arguments, folder, environment, files = received(connection)
                child = os.fork()
                if child == 0:
                    try:
                        os.setsid()
                        for file, place in zip(files, (0, 1, 2)):
                            os.dup2(file, place)
                        for file in {*files, connection.fileno(), *(k.fd for k in watched.get_map().values())}:
                            os.close(file)
                        run_script(arguments, folder, environment)
                    finally:
                        os._exit(1)
                for file in files:
                    os.close(file)
                with contextlib.suppress(OSError):
                    connection.sendall(b" ")
                ended = os.pidfd_open(child)
                watched.register(connection, selectors.EVENT_READ, (child, connection, ended))
                watched.register(ended, selectors.EVENT_READ, (child, connection, ended))
                continue
            child, connection, ended = key.data
            if key.fileobj is connection:  # has no more to say, so it is gone
                with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                    os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            watched.unregister(connection), watched.unregister(ended)
            try:
                connection.sendall(json.dumps(code).encode())
            except OSError:
                pass
            connection.close(), os.close(ended)
            break  # what else was ready is asked for again: it may be of the same script


def run(path, arguments):
    asked = socket.socket(socket.AF_UNIX)
    said = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode() + b"\n"
    heard = b""  # a space when the script begins, and its exit code
    try:
        asked.connect(path)
        sent = socket.send_fds(asked, [said], [0, 1, 2])
        asked.sendall(said[sent:])
        while not heard.strip() and (more := asked.recv(64)):
            heard += more
    except OSError:
        pass
    if not heard:  # no server, or one that is gone without having begun
        print("    by itself: no process of the peers is there", flush=True)
        os.execv(sys.executable, [sys.executable, *arguments])
    if not heard.strip():
        sys.exit("FAILED: the process of the peers ended before its check did")
    code = json.loads(heard)
    if code < 0:
        sys.exit(f"FAILED: the check ended by signal {-code}")
    sys.exit(code)


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1] == "serve" else run(sys.argv[2], sys.argv[3:])
