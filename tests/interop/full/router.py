"""vllm-router before two `llmq serve`: what it costs, and what its clients see when a server dies and returns.   router.py LLMQ [SECONDS [MODEL]]

Needs vllm-router 0.1.17 in $LLMQ_PEERS/router (python3 -m venv, then pip install vllm-router==0.1.17). Where it is missing the script says so and leaves with 77.

Speed: 16 clients that each wait for their answer, first at the two servers themselves (8 clients each), then at the router; these pairs of windows take turns, so that both
meet the same machine, and the median of the ratios is held to the bar. It is so where MODEL is given (a directory; SmolLM2 is meant): an answer of tinystories-656k takes less
time than the router does, so with that model, which the rest is tried on, the ratio says what a request costs the router and is held to nothing. Loss: one server is killed in the midst of a run and started again at its port. A request may
fail only where it was in flight on that server when it was killed. The cache-aware policy keeps to the server that it knows a prefix of until the other has fewer
requests by --balance-abs-threshold, which is 64 by itself: with 16 clients a server that returns would never be asked again, so it is 4 here.
"""
import atexit, http.client, json, os, pathlib, signal, socket, statistics, subprocess, sys, threading, time

HERE = pathlib.Path(__file__).resolve().parent
ROUTER = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "router" / "bin" / "vllm-router"
if not ROUTER.exists():
    print(f"SKIPPED: no {ROUTER}; make the environment and install vllm-router==0.1.17")
    sys.exit(77)

sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "serve")]
from peer import expect, finish
from server import MODEL, Server

program, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
SERVED = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else MODEL
CLIENTS, TOKENS, PAIRS, BAR = 16, 64, 3, 0.9
FLAGS = ("--metrics-compat", "vllm", "--threads", "1", "--max-num-seqs", "16")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Router:
    def __init__(self, policy, servers):
        self.port = free_port()
        self.log = open(f"/tmp/vllm-router-{os.getpid()}-{policy}.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen([str(ROUTER), "--port", str(self.port), "--prometheus-port", str(free_port()), "--policy", policy, "--health-check-endpoint", "/health",
                                         "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "2", "--balance-abs-threshold", "4", "--log-level", "warning",
                                         "--worker-urls", *(server.facts["url"] for server in servers)], stdout=self.log, stderr=self.log)
        atexit.register(self.process.kill)
        end = time.monotonic() + 60
        while True:
            try:
                if ask(self.port, "GET", "/v1/models")[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                sys.exit(f"FAILED: vllm-router does not answer: {self.log.read()[-2000:]}")
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        os.remove(self.log.name)


def ask(port, method, path, body=None, connection=None):
    connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


class Load:
    """Clients that ask one after another until the end. Each request: (begun, ended, status, tokens, what went wrong)."""

    def __init__(self, ports):
        self.done, self.over, self.begins = [], threading.Event(), "Once upon a time there was"
        self.threads = [threading.Thread(target=self.client, args=(i, ports[i % len(ports)])) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def client(self, number, port):
        connection, count = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0
        while not self.over.is_set():
            # Four stories, which several clients continue: there are prefixes to be aware of.
            prompt = f"{self.begins} a {('dog', 'cat', 'bird', 'boy')[number % 4]} who had a big red ball. It was day {count}."
            begun, count = time.monotonic(), count + 1
            try:
                status, text = ask(port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}, connection)
                fault = "" if status == 200 else text.decode(errors="replace")[:200]
                tokens = json.loads(text)["usage"]["completion_tokens"] if status == 200 else 0
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, tokens, fault = 0, 0, repr(error)
                connection.close()
            self.done.append((begun, time.monotonic(), status, tokens, fault))

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self.done


def tokens_per_second(ports):
    begun = time.monotonic()
    load = Load(ports)
    time.sleep(SECONDS)
    load.over.set()
    seconds = time.monotonic() - begun
    done = load.stop()
    faults = [each for each in done if each[2] != 200]
    if faults:
        expect(False, f"{len(faults)} of {len(done)} requests failed though both servers ran: {faults[0]}")
    # A request that ended later counts by its share within the window.
    return sum(tokens * min(1, (begun + seconds - start) / (end - start)) for start, end, _, tokens, _ in done) / seconds


def served(server):
    return server.metric("vllm:request_success_total", absent=True) or 0


def speed(policy, servers):
    router = Router(policy, servers)
    ports = [server.port for server in servers]
    for port in (*ports, router.port):
        warm_up = Load([port])
        time.sleep(1)
        warm_up.stop()
    before, pairs = [served(server) for server in servers], []
    for i in range(PAIRS):
        figures = {way: tokens_per_second(to) for way, to in ((("direct", ports), ("router", [router.port])) if i % 2 == 0 else (("router", [router.port]), ("direct", ports)))}
        pairs.append((figures["direct"], figures["router"]))
        print(f"{policy}: direct {figures['direct']:.0f} tokens/s, through the router {figures['router']:.0f}, ratio {figures['router'] / figures['direct']:.3f}", flush=True)
    ratio = statistics.median(through / direct for direct, through in pairs)
    shares = [served(server) - first for server, first in zip(servers, before)]
    expect(min(shares) > 0, f"{policy}: both servers were asked ({shares[0]:.0f} and {shares[1]:.0f} requests)")
    expect(ratio >= BAR or SERVED == MODEL, f"{policy}: throughput through the router is {ratio:.3f} of direct ({'no bar for this model' if SERVED == MODEL else f'bar {BAR}'})")
    router.stop()


def loss(policy, servers):
    router = Router(policy, servers)
    load = Load([router.port])
    time.sleep(SECONDS / 2)
    lost = servers[1]
    running = lost.metric("vllm:num_requests_running") + lost.metric("vllm:num_requests_waiting")
    killed = time.monotonic()
    lost.process.send_signal(signal.SIGKILL)
    lost.process.wait()
    time.sleep(SECONDS)
    back = time.monotonic()
    servers[1] = Server(program, MODEL, *FLAGS, port=lost.port)
    load.begins = "Far away behind the sea lived"  # no prefix that the other server would be kept for
    end = time.monotonic() + 60
    while served(servers[1]) < 3 and time.monotonic() < end:
        time.sleep(0.2)
    again = served(servers[1])
    done = load.stop()
    faults = [each for each in done if each[2] != 200]
    between = [each for each in done if each[2] == 200 and each[0] > killed and each[1] < back]
    for fault in faults[:4]:
        print(f"  failed: begun {fault[0] - killed:+.3f} s after the kill, ended {fault[1] - killed:+.3f} s, status {fault[2]}: {fault[4]}", flush=True)
    expect(all(begun < killed < ended for begun, ended, *_ in faults), f"{policy}: {len(faults)} of {len(done)} requests failed; each of them was in flight when the server was killed")
    expect(len(faults) <= CLIENTS // 2 + 2, f"{policy}: {len(faults)} failed where {running:.0f} were on the killed server")
    expect(len(between) > CLIENTS, f"{policy}: the other server answered {len(between)} requests while one was away")
    expect(again >= 3, f"{policy}: the server that returned is asked again ({again:.0f} requests)")
    router.stop()


for policy in ("cache_aware", "power_of_two"):
    for part, model in ((speed, SERVED), (loss, MODEL)):
        servers = [Server(program, model, *FLAGS) for _ in range(2)]
        part(policy, servers)
        expect([server.stop() for server in servers] == [0, 0], "both servers left with 0")
finish()
