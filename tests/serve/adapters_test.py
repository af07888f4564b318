#!/usr/bin/env python3
"""Adapters of the built server: named by requests, mixed in a batch, loaded and unloaded while it runs.   adapters_test.py LLMQ [NAME...]"""
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server import MODEL, Server, write_adapter

LLMQ = sys.argv.pop(1)
PROMPT = "Once upon a time, there was a"
KEY = "a-key-of-the-adapters-test-0123456789"


def generated(prompt, tokens, *flags):
    words = [LLMQ, "generate", MODEL, "--prompt", prompt, "--max-tokens", str(tokens), "--ignore-eos", "--json", *flags]
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)["text"]


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = os.path.join(cls.folder.name, "adapters")
        cls.first, cls.second = (write_adapter(os.path.join(cls.root, name), seed) for name, seed in (("first", 1), ("second", 2)))
        cls.outside = write_adapter(os.path.join(cls.folder.name, "outside"), 3)
        os.symlink(cls.outside, os.path.join(cls.root, "link"))
        keys = os.path.join(cls.folder.name, "keys.txt")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        cls.server = Server(LLMQ, MODEL, "--served-model-name", "base", "--lora", f"one={cls.first}", "--lora", f"team/two={cls.second}",
                            "--lora-dir", cls.root, "--max-loras", "3", "--max-lora-rank", "8", "--api-key-file", keys, "--metrics-compat", "vllm")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def ask(self, method, path, body=None, key=KEY):
        return self.server.ask(method, path, body, {"Authorization": f"Bearer {key}"})

    def complete(self, model, prompt=PROMPT, tokens=24):
        status, _, answer = self.ask("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["model"], model)
        return answer["choices"][0]["text"]

    def load(self, name, path, **more):
        status, _, answer = self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})
        return status, answer

    def unload(self, name):
        return self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})[0]

    def names(self):
        return [model["id"] for model in self.ask("GET", "/v1/models")[2]["data"]]

    def test_the_model_of_a_request_chooses(self):
        wanted = {"base": generated(PROMPT, 24), "one": generated(PROMPT, 24, "--lora", self.first), "team/two": generated(PROMPT, 24, "--lora", self.second)}
        self.assertEqual(len(set(wanted.values())), 3)
        for model, text in wanted.items():
            self.assertEqual(self.complete(model), text)
        self.assertEqual(self.ask("POST", "/v1/completions", {"model": "three", "prompt": PROMPT})[0], 404)

    def test_models_name_their_parent(self):
        listed = {model["id"]: model for model in self.ask("GET", "/v1/models")[2]["data"]}
        self.assertEqual((listed["one"]["parent"], listed["one"]["root"]), ("base", self.first))
        self.assertNotIn("parent", listed["base"])
        self.assertEqual(self.ask("GET", "/v1/models/team/two")[2], listed["team/two"])

    def test_64_clients_of_all_kinds_at_once(self):
        """Long and short, of one prefix and of none, of either adapter and of none, while others leave and adapters come and go."""
        start = PROMPT + " little girl named Lily. She had a big red ball and liked to play with her dog in the park." * 3
        prompts = [start + end for end in (" One day", " The dog", " Her mom")] + [PROMPT, "The sun"]
        questions = [(("base", "one", "team/two")[i % 3], prompts[i % 5], (5, 20, 60, 90)[i % 4]) for i in range(64)]
        alone = {question: self.complete(*question) for question in set(questions)}
        found, problems, ended = {}, [], threading.Event()

        def client(i, question):
            try:
                found[i] = self.complete(*question)
            except Exception as error:  # noqa: B902
                problems.append(repr(error))

        def leave(rng):
            while not ended.wait(rng.random() * 0.02):
                body = json.dumps({"model": rng.choice(["base", "one", "team/two"]), "prompt": rng.choice(prompts), "max_tokens": 90, "ignore_eos": True}).encode()
                with self.server.connect() as connection:
                    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                                       % (KEY.encode(), len(body)) + body)
                    ended.wait(rng.random() * 0.05)

        def exchange():
            """The third adapter is now the first, now the second: who asks gets one of the two, or is told that it is not there."""
            question = (PROMPT, 20)
            either = [alone_of(model) for model in ("one", "team/two")]
            for turn in range(10):
                if self.load("third", ("first", "second")[turn % 2])[0] != 200 or self.complete("third", *question) != either[turn % 2] or self.unload("third") != 200:
                    problems.append(f"exchange {turn}")

        alone_of = {model: self.complete(model, PROMPT, 20) for model in ("one", "team/two")}.get
        helpers = [threading.Thread(target=leave, args=(random.Random(seed),)) for seed in range(3)] + [threading.Thread(target=exchange)]
        threads = [threading.Thread(target=client, args=item) for item in enumerate(questions)]
        for thread in helpers + threads:
            thread.start()
        for thread in threads + helpers[3:]:
            thread.join()
        ended.set()
        for thread in helpers:
            thread.join()
        self.assertEqual(problems, [])
        self.assertEqual([found.get(i) for i in range(len(questions))], [alone[question] for question in questions])

    def test_metrics_tell_them_apart(self):
        text = self.ask("GET", "/metrics")[2]
        before = float(text.split('llmq_lora_requests_total{model_name="base",lora_name="one"} ')[1].split()[0]) if 'lora_name="one"' in text else 0
        self.complete("one")
        text = self.ask("GET", "/metrics")[2]
        self.assertEqual(float(text.split('llmq_lora_requests_total{model_name="base",lora_name="one"} ')[1].split()[0]), before + 1)
        # At least what the file holds beside its header; more, because the kernels' tiles pad so small a rank.
        with open(os.path.join(self.first, "adapter_model.safetensors"), "rb") as file:
            values = os.fstat(file.fileno()).st_size - 8 - struct.unpack("<Q", file.read(8))[0]
        held = float(text.split('llmq_lora_bytes{model_name="base",lora_name="one"} ')[1].split()[0])
        self.assertTrue(values <= held <= 16 * values, (values, held))

    def test_routers_see_which_adapters_work(self):
        """As the Gateway API Inference Extension reads vLLM."""
        def seen():
            text = self.ask("GET", "/metrics")[2]
            return re.search(r'^vllm:lora_requests_info\{max_lora="3",running_lora_adapters="(.*?)",waiting_lora_adapters="(.*?)"\} \d', text, re.M).groups()
        body = json.dumps({"model": "team/two", "prompt": PROMPT, "max_tokens": 400, "n": 16, "ignore_eos": True, "stream": True}).encode()
        with self.server.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                               % (KEY.encode(), len(body)) + body)
            while b"data: {" not in connection.recv(65536):
                pass
            self.assertEqual(seen(), ("team/two", ""))
        until = time.monotonic() + 10
        while seen() != ("", "") and time.monotonic() < until:
            time.sleep(0.02)
        self.assertEqual(seen(), ("", ""))

    def test_loaded_and_unloaded_while_it_runs(self):
        self.assertEqual(self.load("third", "first")[0], 200)
        self.assertIn("third", self.names())
        self.assertEqual(self.complete("third"), self.complete("one"))
        self.assertEqual(self.load("third", "second")[0], 400, "it is there already")
        self.assertEqual(self.load("fourth", "second")[0], 400, "no more than --max-loras")
        self.assertEqual(self.load("third", self.second, load_inplace=True)[0], 200)
        self.assertEqual(self.complete("third"), self.complete("team/two"), "the same prompt, and none of the earlier adapter's pages")
        self.assertEqual(self.unload("third"), 200)
        self.assertNotIn("third", self.names())
        self.assertEqual(self.unload("third"), 404)
        self.assertEqual(self.ask("POST", "/v1/completions", {"model": "third", "prompt": PROMPT})[0], 404)

    def test_who_is_told_that_one_left_finds_it_nowhere(self):
        for turn in range(200):
            self.assertEqual(self.load("third", "first")[0], 200, turn)
            self.assertEqual(self.unload("third"), 200, turn)
            self.assertNotIn("third", self.names(), turn)

    def test_what_may_not_be_loaded(self):
        for name, path in (("x", "../outside"), ("x", self.outside), ("x", "link"), ("x", "nowhere"), ("x", ""), ("x", "first\0"), ("x", "."), ("../x", "first"), ("base", "first"),
                           ("a b", "first"), ("", "first"), ("x" * 129, "first")):
            status, answer = self.load(name, path)
            self.assertEqual(status, 400, (name, path, answer))
            self.assertNotIn("outside is", str(answer))
        self.assertEqual(self.load("x", "first", colour=1)[0], 400)
        self.assertEqual(self.ask("POST", "/v1/load_lora_adapter", {"lora_name": "x"})[0], 400)
        self.assertEqual(self.ask("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "first"}, key="another-key-0123456789")[0], 401)
        broken = write_adapter(os.path.join(self.root, "broken"), 4)
        with open(os.path.join(broken, "adapter_config.json"), "w", encoding="utf-8") as file:
            file.write('{"peft_type": "LORA", "r": 8, "lora_alpha": 8}')
        status, answer = self.load("x", "broken")
        self.assertEqual(status, 400, answer)
        self.assertIn("expected [8,", answer["error"]["message"])
        write_adapter(os.path.join(self.root, "wide"), 5, rank=9)
        status, answer = self.load("x", "wide")
        self.assertEqual((status, answer["error"]["message"]), (400, "the adapter has rank 9, and no more than 8 are allowed"))
        self.assertEqual(self.names(), ["base", "one", "team/two"])

    def test_loading_is_switched_off(self):
        plain = Server(LLMQ)
        try:
            self.assertEqual(plain.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": self.first})[0], 403)
            self.assertEqual(plain.post("/v1/unload_lora_adapter", {"lora_name": "x"})[0], 403)
        finally:
            self.assertEqual(plain.stop(), 0)


if __name__ == "__main__":
    unittest.main()
