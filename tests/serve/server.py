"""A running `llmq serve` on the loopback interface, for tests: started, asked, stopped."""
import atexit
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(SOURCE, "tests/models/tinystories-656k")
SANITIZED = "LLMQ_SANITIZED" in os.environ  # ten times slower, and with memory of its own
PATIENCE = 10 if SANITIZED else 1


def chat_model(folder, template="smollm2"):
    """A copy of the small model with the chat template of another one."""
    copy = os.path.join(folder, "tiny-chat")
    shutil.copytree(MODEL, copy)
    shutil.copy(os.path.join(SOURCE, f"tests/golden/chat/{template}.jinja"), os.path.join(copy, "chat_template.jinja"))
    return copy


def bracket_model(folder):
    """The chat model with brackets, which its vocabulary does not have: rare tokens are read as them."""
    copy = chat_model(folder)
    path = os.path.join(copy, "tokenizer.json")
    with open(path) as file:
        tokenizer = json.load(file)
    vocabulary = tokenizer["model"]["vocab"]
    renamed = dict(zip((word for word, number in vocabulary.items() if number > 2040), "{}[]\\/+"))
    tokenizer["model"]["vocab"] = {renamed.get(word, word): number for word, number in vocabulary.items()}
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in tokenizer["model"]["merges"]]
    tokenizer["model"]["merges"] = [pair for pair in pairs if not {pair[0], pair[1], pair[0] + pair[1]} & set(renamed)]
    with open(path, "w") as file:
        json.dump(tokenizer, file)
    return copy


def write_adapter(folder, seed, rank=4, size=0.25, model=MODEL):
    """A PEFT adapter of random numbers for the attention and MLP of the small model."""
    os.makedirs(folder)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden), "mlp.down_proj": (hidden, inner), "mlp.up_proj": (inner, hidden)}
    numbers, header, data = random.Random(seed), {}, b""
    for layer in range(config["num_hidden_layers"]):
        for name, (outs, ins) in shapes.items():
            for half, shape in (("A", (rank, ins)), ("B", (outs, rank))):
                values = struct.pack(f"<{shape[0] * shape[1]}f", *(numbers.uniform(-size, size) for _ in range(shape[0] * shape[1])))
                header[f"base_model.model.model.layers.{layer}.{name}.lora_{half}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [name.split(".")[1] for name in shapes], "bias": "none"}, file)
    return folder


class Server:
    def __init__(self, llmq, model=MODEL, *flags, port=0):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([llmq, "serve", model, "--port", str(port), "--json", *flags], stdout=subprocess.PIPE, stderr=self.log, text=True)
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        text = ""
        while True:
            line = self.process.stdout.readline()
            text += line
            try:
                self.facts = json.loads(text)
                break
            except ValueError:
                if not line:
                    raise AssertionError(f"the server did not start: {text}{self.log_text()}")
        self.host, port = re.match(r"http://(.*):(\d+)$", self.facts["url"]).groups()
        self.port = int(port)

    def log_text(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self, timeout=20):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, JSON or text)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        try:
            connection.request(method, path, data, sent)
            reply = connection.getresponse()
            text = reply.read().decode()
            return reply.status, reply.headers, json.loads(text) if reply.headers["Content-Type"] == "application/json" else text
        finally:
            connection.close()

    def post(self, path, body, **others):
        status, _, answer = self.ask("POST", path, body, **others)
        return status, answer

    def complete(self, prompt, max_tokens=12, **fields):
        status, answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields})
        assert status == 200, (status, answer)
        return answer["choices"][0]["text"]

    def events(self, path, body):
        """The chunks of a stream; its last event must be [DONE]."""
        status, headers, text = self.ask("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, text)
        events = text.split("\n\n")
        assert events[-1] == "" and events[-2] == "data: [DONE]", events[-3:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def raw(self, data, timeout=20):
        """What comes back for these bytes until the server closes or is quiet."""
        with self.connect(timeout) as connection:
            try:
                connection.sendall(data)
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
            except (ConnectionError, TimeoutError):
                pass
            return answer

    def metric(self, name, absent=False):
        """The sum of its samples; None where there is none and that is `absent`."""
        return self.metrics(name, absent=absent)[0]

    def metrics(self, *names, absent=False):
        """Several of one moment."""
        text = self.ask("GET", "/metrics")[2]
        found = [re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.M) for name in names]
        assert all(found) or absent, names
        return [sum(float(value) for value in values) if values else None for values in found]

    def wait_for(self, name, value, seconds=10):
        """Until the metric is `value`; None: until there is such a metric."""
        end = time.monotonic() + seconds
        while (found := self.metric(name, absent=True)) is None or (value is not None and found != value):
            assert time.monotonic() < end, f"{name} is {found}, not {value}, after {seconds} s"
            time.sleep(0.02)

    def resident(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def grown_less(self, before, size):
        """Whether fewer than `size` bytes are resident beyond `before`; sanitizers keep what was freed."""
        return SANITIZED or self.resident() - before < size

    def stop(self, with_signal=signal.SIGTERM, timeout=60):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        code = self.process.wait(timeout)
        self.process.stdout.close()
        return code
