#!/usr/bin/env python3
"""Random traffic with and without adapters and with clients that leave: every greedy answer is the one given alone, memory stays flat, pages come back.
   soak_test.py LLMQ [SECONDS [MODEL]]   (LLMQ_SOAK_SECONDS; `make soak` is half an hour)"""
import json
import os
import random
import sys
import tempfile
import threading
import time

from server import MODEL, PATIENCE, SANITIZED, Server, write_adapter

llmq = sys.argv[1]
seconds = float(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("LLMQ_SOAK_SECONDS", 20))
model = sys.argv[3] if len(sys.argv) > 3 else MODEL
disk = tempfile.TemporaryDirectory()
adapters = [f"{name}={write_adapter(os.path.join(disk.name, name), seed, model=model)}" for seed, name in enumerate(("one", "two"))]
server = Server(llmq, model, "--served-model-name", "base", "--lora", adapters[0], "--lora", adapters[1], "--kv-memory", "2MiB", "--swap-space", "1MiB", "--max-num-seqs", "8", "--max-queue", "4", "--block-size", "8", "--draft", "ngram", "--probe-interval", "1s")
START = "Once upon a time, there was a little girl named Lily. She had a big red ball and liked to play with her dog in the park. "
PROMPTS = [START + end for end in ("One day", "The dog", "Her mom", "It was")] + ["The sun", "A", START * 5]
MODELS = ("base", "base", "one", "two")
alone = {(name, prompt, tokens): server.complete(prompt, tokens, model=name) for name in set(MODELS) for prompt in PROMPTS for tokens in (1, 12, 60)}
counts = {"answers": 0, "left": 0, "busy": 0}
problems = []
lock = threading.Lock()
end = time.monotonic() + seconds


def count(what):
    with lock:
        counts[what] += 1


def leave(rng):
    body = json.dumps({"model": rng.choice(MODELS), "prompt": rng.choice(PROMPTS), "max_tokens": 200, "ignore_eos": True, "n": rng.randint(1, 3), "stream": rng.random() < 0.7}).encode()
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(rng.random() * 0.02)
    count("left")


def ask(rng):
    name, prompt, tokens = rng.choice(list(alone))
    body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "priority": rng.randint(-2, 2)}
    choices = ["a cat", "a dog", "nothing at all"]
    if rng.random() < 0.1:
        body["structured_outputs"] = {"choice": choices}
        body["max_tokens"] = 30
    elif rng.random() < 0.3:
        body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 1, "n": 2, "logprobs": 3, "presence_penalty": 0.5}
    status, answer = server.post("/v1/completions", body)
    if status == 429:
        return count("busy")
    if status != 200:
        problems.append((status, answer))
    elif "structured_outputs" in body:
        if answer["choices"][0]["text"] not in choices:
            problems.append(answer)
    elif body["temperature"] == 0 and answer["choices"][0]["text"] != alone[(name, prompt, tokens)]:
        problems.append((name, prompt, tokens, answer["choices"][0]["text"], alone[(name, prompt, tokens)]))
    return count("answers")


def client(seed):
    rng = random.Random(seed)
    try:
        while time.monotonic() < end and not problems:
            leave(rng) if rng.random() < 0.2 else ask(rng)
    except Exception as error:  # noqa: B902
        problems.append(repr(error))


threads = [threading.Thread(target=client, args=(seed,)) for seed in range(12)]
for thread in threads:
    thread.start()
samples = []
while any(thread.is_alive() for thread in threads):
    time.sleep(min(0.25, seconds / 80))
    samples.append(server.resident())
for thread in threads:
    thread.join()
end = time.monotonic() + 20 * PATIENCE
while any(server.metrics("llmq_kv_blocks_used", "llmq_num_requests_running", "llmq_num_requests_waiting", "llmq_swap_blocks_used")):  # a probe may run now and then
    assert time.monotonic() < end, "pages are left"
    time.sleep(0.02)
# Medians of the second and the last quarter: the first one fills caches and arenas.
quarter = len(samples) // 4
early, late = (sorted(part)[len(part) // 2] for part in (samples[quarter:2 * quarter], samples[-quarter:]))
print(f"{seconds:.0f} s: {counts['answers']} answers, {counts['left']} clients left, {counts['busy']} times busy; resident {early / 1e6:.1f} MB, later {late / 1e6:.1f} MB ({late / early - 1:+.2%}); "
      f"{server.metric('llmq_num_preemptions_total'):.0f} preemptions, {server.metric('llmq_tokens_restored_total'):.0f} tokens restored, {server.metric('llmq_prefix_cache_hits_total'):.0f} prompt tokens found")
assert not problems, problems[0]
# Arenas still fill while few of the mixtures of requests have been met: 0.3 to 0.5 MB after the first hundreds of answers. `make soak` has no such room.
room = 1 << 20 if counts["answers"] < 10_000 else 0
assert SANITIZED or late <= early * 1.02 + room, "memory grows"
assert counts["answers"] > 20 and counts["left"] > 0
assert server.stop() == 0
