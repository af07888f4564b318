"""vllm-router before two servers: one is killed and comes back, and no request fails but those that it was answering.   router.py LLMQ

Needs $LLMQ_PEERS/router with vllm-router 0.1.17 (`python3 -m venv DIR && DIR/bin/pip install vllm-router==0.1.17`). Where it is missing the script says so and leaves
with 77. The throughput through the router and that of the same servers addressed directly are measured in turn and printed: a busy machine may not fail a check.
"""
import http.client, itertools, json, os, pathlib, random, re, signal, socket, subprocess, sys, threading, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from peer import ROOT, TINYSTORIES, expect, finish  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "serve"))
from server import Server  # noqa: E402

program = sys.argv[1]
router = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "router" / "bin" / "vllm-router"
if not router.exists():
    print(f"SKIPPED: no {router}; a virtual environment there with `pip install vllm-router==0.1.17` is wanted")
    sys.exit(77)
CLIENTS, NEW_TOKENS, ROUND = 16, 24, 8.0
WORDS = "once upon a time there was a little girl who liked to play in the big garden with her red ball".split()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(port):
    """A server on a port of its own, so that it can come back there."""
    class Fixed(Server):
        def __init__(self):
            popen = subprocess.Popen
            def at_port(words, **named):
                return popen([str(port) if word == "0" and words[i - 1] == "--port" else word for i, word in enumerate(words)], **named)
            subprocess.Popen = at_port
            try:
                super().__init__(program, TINYSTORIES, "--metrics-compat", "vllm", "--threads", "1")
            finally:
                subprocess.Popen = popen
    return Fixed()


def ask(port, prompt):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": "tinystories-656k", "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        return reply.status if reply.status != 200 or json.loads(text)["usage"]["completion_tokens"] == NEW_TOKENS else "short"
    except OSError as error:
        return type(error).__name__
    except http.client.HTTPException as error:
        return type(error).__name__
    finally:
        connection.close()


def drive(ports, seconds, during=lambda: None):
    """CLIENTS in loops, dealt to the ports: [(begin, end, status)]."""
    done, lock, stop = [], threading.Lock(), time.monotonic() + seconds

    def client(number):
        numbers = random.Random(number)
        while time.monotonic() < stop:
            prompt = " ".join(WORDS[:numbers.randrange(4, 12)] + numbers.choices(WORDS, k=6))
            begin = time.monotonic()
            status = ask(ports[number % len(ports)], prompt)
            with lock:
                done.append((begin, time.monotonic(), status))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    during()
    for thread in threads:
        thread.join()
    return done


def answered(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(value) for value in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", text, re.M))


class Router:
    def __init__(self, policy, ports):
        self.port = free_port()
        self.process = subprocess.Popen([router, "--host", "127.0.0.1", "--port", str(self.port), "--policy", policy, "--worker-urls", *(f"http://127.0.0.1:{port}" for port in ports),
                                         "--health-check-interval-secs", "1", "--health-check-endpoint", "/health", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "2",
                                         "--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1",  # else one server gets all of so few requests
                                         "--prometheus-port", str(free_port()), "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            if self.process.poll() is not None:
                sys.exit(f"FAILED: vllm-router left with {self.process.returncode}")
            if ask(self.port, "Once") == 200:
                return
            time.sleep(0.2)
        self.end()
        sys.exit("FAILED: vllm-router did not answer within a minute")

    def end(self):
        self.process.terminate()
        self.process.wait(20)


def check(policy):
    ports = [free_port(), free_port()]
    servers = [serve(port) for port in ports]
    way = Router(policy, ports)
    events = {}
    try:
        def kill_and_return():
            time.sleep(2)
            expect(answered(ports[1]) > 0, f"{policy}: both servers are used")
            events["killed"] = time.monotonic()
            servers[1].process.send_signal(signal.SIGKILL)
            servers[1].process.wait()
            time.sleep(2)
            servers[1] = serve(ports[1])
            events["returned"] = time.monotonic()

        before = answered(ports[0])
        done = drive([way.port], 14, kill_and_return)
        bad = [one for one in done if one[2] != 200]
        foreign = [one for one in bad if not one[0] <= events["killed"] <= one[1]]
        print(f"{policy}: {len(done)} requests, {len(bad)} failed {sorted({str(one[2]) for one in bad})}, the killed server was away for {events['returned'] - events['killed']:.1f} s")
        expect(len(done) > 3 * CLIENTS, f"{policy}: clients were answered throughout")
        expect(not foreign, f"{policy}: no request failed but those in flight on the killed server (others: {foreign[:3]})")
        expect(answered(ports[0]) > before + CLIENTS, f"{policy}: the other server answered meanwhile")
        expect(answered(ports[1]) > 0, f"{policy}: the server that came back is used again")
        rates = {"router": [], "direct": []}
        for _ in range(2):
            for name, to in (("direct", ports), ("router", [way.port])):
                begin = time.monotonic()
                done = drive(to, ROUND)
                rates[name].append(sum(one[2] == 200 for one in done) / (time.monotonic() - begin))
                expect(all(one[2] == 200 for one in done), f"{policy}: {len(done)} requests, {name}, were answered")
        mean = {name: sum(values) / len(values) for name, values in rates.items()}
        print(f"{policy}: {mean['direct']:.1f} requests/s directly, {mean['router']:.1f} through the router: {mean['router'] / mean['direct']:.3f} (bar: 0.9; printed, not asserted)")
    finally:
        way.end()
        for server in servers:
            server.process.kill()
            server.process.wait()


for policy in ("cache_aware", "power_of_two"):
    check(policy)
finish()
