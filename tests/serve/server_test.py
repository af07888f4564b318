#!/usr/bin/env python3
"""The built server, asked over the loopback interface: answers, errors, metrics, keys, the end.   server_test.py LLMQ [NAME...]"""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server import MODEL, Server, bracket_model, chat_model

LLMQ = sys.argv.pop(1)
PROMPT = "Once upon a time, there was a"


class Served(unittest.TestCase):
    """One server for all tests of a class: of make_model(folder), with flags."""
    make_model, flags = staticmethod(chat_model), ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(LLMQ, cls.make_model(cls.folder.name), *cls.flags)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()


class Answers(Served):
    flags = ("--metrics-compat", "vllm")

    def test_a_greedy_completion_is_what_generate_writes(self):
        import subprocess
        said = json.loads(subprocess.run([LLMQ, "generate", MODEL, "--prompt", PROMPT, "--max-tokens", "20", "--json"], check=True, capture_output=True).stdout)
        status, answer = self.server.post("/v1/completions", {"model": "tiny-chat", "prompt": PROMPT, "max_tokens": 20, "temperature": 0})
        self.assertEqual(status, 200)
        self.assertEqual(answer["choices"][0]["text"], said["text"])
        self.assertEqual(answer["choices"][0]["finish_reason"], said["finish_reason"])
        self.assertEqual(answer["usage"]["prompt_tokens"], said["prompt_tokens"])
        self.assertEqual(answer["usage"]["completion_tokens"], said["completion_tokens"])

    def test_a_stream_says_the_same(self):
        whole = self.server.complete(PROMPT, 30)
        chunks = self.server.events("/v1/completions", {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "stream_options": {"include_usage": True}})
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks[:-1]), whole)
        self.assertGreater(len(chunks), 10)
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 30)
        self.assertTrue(all(c["usage"] is None for c in chunks[:-1]))

    def test_usage_in_every_chunk(self):
        """As GuideLLM and AIPerf ask for it."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        for path, body in (("/v1/completions", {"prompt": PROMPT, "stop": None}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a story."}]})):
            chunks = self.server.events(path, {**body, "max_tokens": 20, "min_tokens": 20, "ignore_eos": True, "temperature": 0, "stream_options": options})
            usages = [chunk["usage"] for chunk in chunks]
            self.assertEqual({usage["prompt_tokens"] for usage in usages}, {usages[-1]["prompt_tokens"]})
            self.assertTrue(all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages))
            counts = [usage["completion_tokens"] for usage in usages]
            self.assertEqual((counts, counts[-1], counts[-2]), (sorted(counts), 20, 20))
            self.assertEqual(sorted(set(counts) - {0}), list(range(1, 21)), "one token a chunk")

    def test_no_end_before_min_tokens(self):
        ended = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logit_bias": {"2": 100}}
        for body, least in ((ended, 1), ({**ended, "min_tokens": 5}, 6)):
            answer = self.server.post("/v1/completions", body)[1]
            self.assertEqual((answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]), (least, "stop"))
        chat = {"messages": [{"role": "user", "content": "End."}], "max_completion_tokens": 12, "min_tokens": 12, "logit_bias": {"2": 100}}
        self.assertEqual(self.server.post("/v1/chat/completions", chat)[1]["usage"]["completion_tokens"], 12)
        status, answer = self.server.post("/v1/completions", {**ended, "min_tokens": 13})
        self.assertEqual((status, answer["error"]["param"]), (400, "min_tokens"))

    def test_a_client_needs_no_file_of_the_tokenizer(self):
        """As lm-evaluation-harness looks for it (check_remote_tokenizer_support) and uses it."""
        status, _, info = self.server.ask("GET", "/tokenizer_info")
        self.assertEqual((status, info["eos_token"], info["bos_token"], info["pad_token"], info["tokenizer_class"]), (200, "<|end_story|>", "<|start_story|>", "<unk>", "LlamaTokenizer"))
        self.assertEqual(info["added_tokens_decoder"]["2"], "<|end_story|>")
        with open(os.path.join(self.folder.name, "tiny-chat", "chat_template.jinja"), encoding="utf-8") as template:
            self.assertEqual(info["chat_template"], template.read())
        self.assertEqual(self.server.post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})[1]["tokens"], [2])
        self.assertTrue(self.server.post("/detokenize", {"tokens": self.server.post("/tokenize", {"prompt": PROMPT, "add_special_tokens": False})[1]["tokens"]})[1]["prompt"].endswith(PROMPT))

    def test_chats(self):
        body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3}
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        content = choice["logprobs"]["content"]
        self.assertEqual(b"".join(bytes(token["bytes"]) for token in content).decode(errors="replace").strip(), choice["message"]["content"].strip())
        self.assertTrue(all(len(token["top_logprobs"]) == 3 and token["top_logprobs"][0]["logprob"] == token["logprob"] for token in content))
        chunks = self.server.events("/v1/chat/completions", body)
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks), choice["message"]["content"])
        self.assertEqual([t for c in chunks if c["choices"][0]["logprobs"] for t in c["choices"][0]["logprobs"]["content"]], content)

    def test_several_prompts_and_answers_keep_their_places(self):
        prompts = [PROMPT, "The dog", [1, 20, 30]]
        status, answer = self.server.post("/v1/completions", {"prompt": prompts, "n": 2, "max_tokens": 8, "temperature": 0})
        self.assertEqual(status, 200, answer)
        self.assertEqual([choice["index"] for choice in answer["choices"]], list(range(6)))
        for i, choice in enumerate(answer["choices"]):
            self.assertEqual(choice["text"], self.server.complete(prompts[i // 2], 8))

    def test_a_seed_gives_one_text_and_n_several(self):
        body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1, "seed": 5, "n": 3}
        texts = [[c["text"] for c in self.server.post("/v1/completions", body)[1]["choices"]] for _ in range(2)]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(len(set(texts[0])), 3)

    def test_stop_and_echo(self):
        whole = self.server.complete(PROMPT, 30)
        stop = whole[5:9]
        self.assertEqual(self.server.complete(PROMPT, 30, stop=[stop, "never said"]), whole[:whole.index(stop)])
        self.assertEqual(self.server.complete(PROMPT, 30, echo=True), PROMPT + whole)

    def test_logprobs_of_completions(self):
        choice = self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "logprobs": 2})[1]["choices"][0]
        logprobs = choice["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]).strip(), choice["text"].strip())
        self.assertEqual([max(top.values()) for top in logprobs["top_logprobs"]], logprobs["token_logprobs"])
        self.assertEqual(logprobs["text_offset"][0], 0)

    def test_scores_of_echoed_prompts_count_as_often_as_they_are_answered(self):
        body = {"prompt": [[5] * 200] * 4, "max_tokens": 1, "echo": True, "logprobs": 20}
        for change, expected in (({}, 200), ({"n": 8}, 200), ({"n": 8, "stream": True}, 400), ({"prompt": [[5] * 200] * 8, "n": 32}, 400)):
            status, _, said = self.server.ask("POST", "/v1/completions", {**body, **change})
            self.assertEqual(status, expected, str(said)[:300])
            if status == 400:
                self.assertEqual(said["error"]["param"], "prompt")

    def test_a_prompt_is_scored_without_an_answer(self):
        body = {"prompt": [PROMPT, "The dog"], "n": 2, "temperature": 0, "echo": True, "logprobs": 2}
        one = self.server.post("/v1/completions", {**body, "max_tokens": 1})[1]
        none = self.server.post("/v1/completions", {**body, "max_tokens": 0})[1]
        self.assertEqual((none["usage"]["prompt_tokens"], none["usage"]["completion_tokens"]), (one["usage"]["prompt_tokens"], 0))
        for with_token, without in zip(one["choices"], none["choices"], strict=True):
            self.assertEqual((without["text"], without["finish_reason"]), (body["prompt"][without["index"] // 2], "length"))
            for name, list_ in without["logprobs"].items():
                self.assertEqual(list_, with_token["logprobs"][name][:-1], name)
        streamed = self.server.events("/v1/completions", {**body, "max_tokens": 0})
        self.assertEqual({event["choices"][0]["text"] for event in streamed}, {*body["prompt"], ""})
        self.assertEqual(self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 0})[0], 400)

    def test_an_echoed_prompt_is_scored_as_an_evaluation_does(self):
        text = PROMPT + " little dog named Max. He liked to play with a ball in the park, and one day the ball was gone."
        ids = self.server.post("/tokenize", {"prompt": text})[1]["tokens"]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            said = subprocess.run([LLMQ, "eval-ppl", MODEL, "--text", file.name, "--context", str(len(ids)), "--compute", "bfloat16", "--json"], check=True, capture_output=True).stdout
        evaluated = json.loads(said)
        body = {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}  # as lm-evaluation-harness asks
        choice = self.server.post("/v1/completions", body)[1]["choices"][0]
        scores = choice["logprobs"]["token_logprobs"]
        count = evaluated["scored_tokens"]
        self.assertEqual(len(scores), count + 2)
        self.assertEqual((scores[0], choice["logprobs"]["top_logprobs"][0]), (None, None))
        self.assertEqual(sum(-score for score in scores[1:-1]) / count, evaluated["mean_nll"])
        self.assertEqual("".join(choice["logprobs"]["tokens"][1:-1]).strip(), text)  # the first begins every text of this model
        offsets = [*choice["logprobs"]["text_offset"], len(choice["text"])]
        for i, token in enumerate(choice["logprobs"]["tokens"]):  # the first is special, and the text begins without the next one's blank
            self.assertEqual(choice["text"][offsets[i]:offsets[i + 1]], "" if i == 0 else token.lstrip() if i == 1 else token)
        for token, score, top in list(zip(choice["logprobs"]["tokens"], scores, choice["logprobs"]["top_logprobs"]))[1:]:
            self.assertEqual(len(top), 2)
            self.assertGreaterEqual(max(top.values()), score - 1e-12)
        self.assertEqual(self.server.post("/v1/completions", {**body, "prompt": [ids, ids[:9]]})[1]["choices"][1]["logprobs"]["token_logprobs"][:9], scores[:9])
        chunks = self.server.events("/v1/completions", body)
        self.assertEqual([value for chunk in chunks if chunk["choices"][0]["logprobs"] for value in chunk["choices"][0]["logprobs"]["token_logprobs"]], scores)

    def test_tokens_and_back(self):
        status, answer = self.server.post("/tokenize", {"prompt": "Once upon"})
        self.assertEqual((status, answer["count"]), (200, len(answer["tokens"])))
        self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"][1:]})[1]["prompt"].strip(), "Once upon")
        self.assertEqual(self.server.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]})[0], 200)

    def test_small_paths(self):
        self.assertEqual(self.server.ask("GET", "/health")[2], {"status": "ok"})
        self.assertEqual(self.server.ask("GET", "/ready")[0], 200)
        self.assertIn("version", self.server.ask("GET", "/version")[2])
        listed = self.server.ask("GET", "/v1/models")[2]["data"][0]
        self.assertEqual((listed["id"], listed["max_model_len"]), ("tiny-chat", 512))
        self.assertEqual(self.server.ask("GET", "/v1/models/tiny-chat")[2], listed)
        self.assertEqual(self.server.ask("GET", "/v1/models/tiny%2dch%61t")[2], listed)
        for other in ("other", "tiny%2", "tiny%2d", "tiny%zz", "tiny-chat%", "tiny-chat%00"):
            self.assertEqual(self.server.ask("GET", "/v1/models/" + other)[0], 404, other)
        status, headers, page = self.server.ask("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn("http://", page)
        self.assertNotIn("https://", page)

    def test_errors_have_a_status_a_field_and_a_word(self):
        cases = [
            ("/v1/completions", {"prompt": "a", "colour": 1}, 400, "colour", "unknown_parameter"),
            ("/v1/completions", {"prompt": "a", "temperature": "x"}, 400, "temperature", "invalid_type"),
            ("/v1/completions", {"prompt": "a", "model": "gpt-4"}, 404, "model", "model_not_found"),
            ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "prompt", "context_length_exceeded"),
            ("/v1/completions", {"prompt": []}, 400, "prompt", None),
            ("/v1/chat/completions", {"messages": []}, 400, "messages", None),
            ("/v1/embeddings", {"input": "a"}, 501, None, "not_implemented"),
            ("/v1/nothing", {}, 404, None, "unknown_url"),
        ]
        for path, body, status, param, code in cases:
            found, answer = self.server.post(path, body)
            self.assertEqual((found, answer["error"]["param"], answer["error"]["code"]), (status, param, code), body)
            self.assertTrue(answer["error"]["message"])
        status, headers, _ = self.server.ask("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        self.assertEqual(self.server.ask("DELETE", "/health")[1]["Allow"], "GET, HEAD")
        self.assertEqual(self.server.ask("POST", "/v1/completions", "{}", {"Content-Type": "text/plain"})[0], 415)

    def test_a_head_is_a_get_without_its_body(self):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
        for path in ("/v1/models", "/v1/models/tiny-chat", "/v1/completions"):  # the last is asked by POST alone
            connection.request("HEAD", path)
            head = connection.getresponse()
            self.assertEqual((head.read(), head.status), (b"", 405 if path == "/v1/completions" else 200))
            connection.request("GET", path)
            whole = connection.getresponse()
            self.assertEqual(len(whole.read()), int(head.headers["Content-Length"]))
            self.assertEqual(whole.status, head.status)
            self.assertTrue(whole.headers["Date"])
        connection.close()

    def test_an_end_token_is_scored_behind_an_echoed_prompt(self):
        """lm-evaluation-harness sums token_logprobs[context:-1]: without the last one it would drop a token of the text that it scores."""
        story = json.loads(subprocess.run([LLMQ, "generate", MODEL, "--prompt", PROMPT, "--max-tokens", "400", "--json"], check=True, capture_output=True).stdout)
        self.assertEqual((story["finish_reason"], story["token_ids"][-1]), ("stop", 2))
        ids = self.server.post("/tokenize", {"prompt": PROMPT})[1]["tokens"] + story["token_ids"][:-1]
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        answer = self.server.post("/v1/completions", body)[1]
        choice, logprobs = answer["choices"][0], answer["choices"][0]["logprobs"]
        self.assertEqual((choice["finish_reason"], answer["usage"]["completion_tokens"]), ("stop", 1))
        for values in logprobs.values():
            self.assertEqual(len(values), len(ids) + 1)
        self.assertEqual((logprobs["tokens"][-1].strip(), max(logprobs["top_logprobs"][-1].values())), ("<|end_story|>", logprobs["token_logprobs"][-1]))
        self.assertEqual(self.server.post("/v1/completions", {**body, "echo": False})[1]["choices"][0]["text"], "")
        chunks = self.server.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        for key, values in logprobs.items():
            self.assertEqual([value for chunk in chunks for one in chunk["choices"] if one["logprobs"] for value in one["logprobs"][key]], values)
        self.assertEqual(chunks[-1]["usage"], answer["usage"])
        on = self.server.post("/v1/completions", {**body, "max_tokens": 3, "ignore_eos": True})[1]
        self.assertEqual((len(on["choices"][0]["logprobs"]["tokens"]), on["usage"]["completion_tokens"]), (len(ids) + 3, 3))
        chat = {"messages": [{"role": "user", "content": "End."}], "max_tokens": 9, "temperature": 0, "logit_bias": {"2": 100}, "logprobs": True}
        ended = self.server.post("/v1/chat/completions", chat)[1]
        self.assertEqual([token["token"].strip() for token in ended["choices"][0]["logprobs"]["content"]], ["<|end_story|>"])
        self.assertEqual((ended["choices"][0]["message"]["content"], ended["choices"][0]["finish_reason"], ended["usage"]["completion_tokens"]), ("", "stop", 1))

    def test_metrics_count(self):
        before = self.server.metric("llmq_generation_tokens_total")
        self.server.complete("Metrics are counted", 9, ignore_eos=True)
        self.server.wait_for("llmq_generation_tokens_total", before + 9)
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), before + 9)
        self.assertGreater(self.server.metric("llmq_time_to_first_token_seconds_count"), 0)
        self.assertGreater(self.server.metric("llmq_inter_token_latency_seconds_count"), 0)
        self.assertGreater(self.server.metric("llmq_request_queue_time_seconds_count"), 0)
        self.server.wait_for("llmq_kv_blocks_used", 0)

    def test_a_shared_prefix_is_found(self):
        long = PROMPT + " little girl named Lily who liked to play outside in the park with her dog and her best friend Tom." * 2
        self.server.complete(long, 2)
        hits = self.server.metric("llmq_prefix_cache_hits_total")
        usage = self.server.post("/v1/completions", {"prompt": long, "max_tokens": 2, "temperature": 0})[1]["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 32)
        self.assertEqual(self.server.metric("llmq_prefix_cache_hits_total"), hits + usage["prompt_tokens_details"]["cached_tokens"])

    def test_one_connection_serves_many_requests(self):
        request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with self.server.connect() as connection:
            for _ in range(3):
                connection.sendall(request)
                self.assertIn(b"200 OK", connection.recv(4096))
            connection.sendall(request * 5)  # without waiting for answers
            answer = b""
            while answer.count(b"200 OK") < 5:
                answer += connection.recv(4096)


class Constrained(Served):
    """response_format and structured_outputs: texts keep them, and what is not carried out is refused by name."""
    SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
              "required": ["name", "age"], "additionalProperties": False}
    make_model, flags = staticmethod(bracket_model), ("--draft", "ngram")

    def chat(self, **fields):
        return self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 100, "temperature": 1, **fields})

    def contents(self, **fields):
        status, answer = self.chat(n=4, seed=3, **fields)
        self.assertEqual(status, 200, answer)
        whole = [c["message"]["content"] for c in answer["choices"] if c["finish_reason"] == "stop"]
        self.assertTrue(whole)
        return whole

    def test_a_schema_is_kept(self):
        named = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": self.SCHEMA}}
        for fields in [{"response_format": named}, {"structured_outputs": {"json": self.SCHEMA}}, {"structured_outputs": {"json": json.dumps(self.SCHEMA)}}]:
            for content in self.contents(**fields):
                person = json.loads(content)
                self.assertEqual(list(person), ["name", "age"])
                self.assertTrue(len(person["name"]) <= 8 and 1 <= person["age"] <= 99)

    def test_choices_expressions_and_objects_are_kept(self):
        self.assertTrue(set(self.contents(structured_outputs={"choice": ["red", "dark green"]})) <= {"red", "dark green"})
        for content in self.contents(structured_outputs={"regex": "[A-Z][a-z]+, [0-9]{2,3}[.]"}):
            self.assertRegex(content, r"\A[A-Z][a-z]+, [0-9]{2,3}[.]\Z")
        status, answer = self.chat(response_format={"type": "json_object"}, logit_bias={"2041": 100, "2042": 100})
        self.assertEqual(status, 200, answer)
        self.assertIsInstance(json.loads(answer["choices"][0]["message"]["content"]), dict)

    def test_a_stream_says_the_same(self):
        body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 1, "seed": 4, "structured_outputs": {"regex": "( [a-z]+){2,9}[.]"}}
        whole = self.server.post("/v1/completions", body)[1]["choices"][0]["text"]
        self.assertEqual("".join(c["choices"][0]["text"] for c in self.server.events("/v1/completions", body)), whole)

    def test_a_forced_call_is_made(self):
        tool = {"type": "function", "function": {"name": "set", "parameters": {"type": "object", "properties": {"mode": {"enum": ["on", "off"]}, "level": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}},
                                                                               "required": ["mode", "level"]}}}
        other = {"type": "function", "function": {"name": "stop"}}
        for choice, names in (("required", {"set", "stop"}), ({"type": "function", "function": {"name": "set"}}, {"set"}), ({"type": "function", "function": {"name": "stop"}}, {"stop"})):
            status, answer = self.chat(tools=[tool, other], tool_choice=choice, parallel_tool_calls=False, n=6, seed=2)
            self.assertEqual(status, 200, answer)
            for one in answer["choices"]:
                self.assertEqual((one["finish_reason"], one["message"]["content"], len(one["message"]["tool_calls"])), ("tool_calls", None, 1), one)
                call = one["message"]["tool_calls"][0]["function"]
                self.assertIn(call["name"], names)
                arguments = json.loads(call["arguments"])
                self.assertTrue(arguments == {} if call["name"] == "stop" else arguments["mode"] in ("on", "off") and arguments["level"] in (0, 5, 10, 15, 20), arguments)
        body = {"messages": [{"role": "user", "content": "Go."}], "tools": [tool], "tool_choice": "required", "max_tokens": 200, "seed": 5, "temperature": 1}
        chunks = self.server.events("/v1/chat/completions", body)
        self.assertTrue(chunks[-1]["choices"][0]["finish_reason"] in ("tool_calls", "length"))
        status, answer = self.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array", "uniqueItems": True}}}}}], tool_choice="required")
        self.assertEqual((status, answer["error"]["param"]), (400, "tools[0].function.parameters.properties.a.uniqueItems"), answer)

    def test_what_is_not_carried_out_is_named(self):
        cases = [({"response_format": {"type": "grammar"}}, "response_format.type"), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
                 ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"oneOf": []}}}}, "response_format.json_schema.schema.oneOf"),
                 ({"structured_outputs": {}}, "structured_outputs"), ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
                 ({"structured_outputs": {"regex": "(a)\\1"}}, "structured_outputs.regex"), ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
                 ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"), ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
                 ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"), ({"guided_regex": "a"}, "guided_regex")]
        for fields, param in cases:
            status, answer = self.chat(**fields)
            self.assertEqual((status, answer["error"].get("param")), (400, param), answer)

    def test_a_bomb_ends_its_own_request_only(self):
        status, answer = self.chat(structured_outputs={"regex": "x((a?){1000}){1000}b"})
        self.assertEqual((status, answer["error"]["param"]), (400, "structured_outputs.regex"), answer)
        chunks = self.server.events("/v1/completions", {"prompt": PROMPT, "structured_outputs": {"regex": "x{30}((a?){1000}){1000}b"}, "max_tokens": 60})
        self.assertIn("too many ways", chunks[-1]["error"]["message"])
        self.assertEqual(self.chat(structured_outputs={"choice": ["still"]})[1]["choices"][0]["message"]["content"], "still")


class Life(unittest.TestCase):
    """Servers of their own: keys, limits, cancellation and the end."""

    def serve(self, *flags, model=MODEL):
        server = Server(LLMQ, model, *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# two tenants\nfirst-key-of-the-test\nsecond-key-of-the-test\n")
            keys.flush()
            server = self.serve("--api-key-file", keys.name)
        first, second = ({"Authorization": f"Bearer {name}-key-of-the-test"} for name in ("first", "second"))
        for path in ("/v1/models", "/metrics", "/version"):
            self.assertEqual(server.ask("GET", path)[0], 401)
            self.assertEqual(server.ask("GET", path, headers=first)[0], 200)
        self.assertEqual(server.post("/v1/completions", {"prompt": "a"})[0], 401)
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        body = {"prompt": PROMPT * 8, "max_tokens": 1}
        cached = [server.post("/v1/completions", body, headers=key)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for key in (first, second, first)]
        self.assertEqual(cached[:2], [0, 0], "one tenant's prefix shows in another's answer")
        self.assertGreater(cached[2], 0)

    def test_a_client_that_leaves_frees_its_pages(self):
        server = self.serve()
        body = json.dumps({"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 8}).encode()
        for _ in range(3):
            with server.connect() as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                self.assertIn(b"200 OK", connection.recv(100))
            server.wait_for("llmq_kv_blocks_used", 0)
        self.assertGreater(server.metric('llmq_request_success_total'), 0)
        text = server.ask("GET", "/metrics")[2]
        self.assertRegex(text, r'finished_reason="abort"} ([1-9]\d*)')

    def test_a_full_queue_is_429_with_a_time_to_come_back(self):
        server = self.serve("--max-num-seqs", "1", "--max-queue", "2")
        body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True}
        seen, headers = [], []

        def ask():
            status, found, _ = server.ask("POST", "/v1/completions", body)
            seen.append(status)
            headers.append(found)
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(seen), {200, 429})
        self.assertTrue(all("Retry-After" in found for status, found in zip(seen, headers) if status == 429))
        server.wait_for("llmq_kv_blocks_used", 0)

    def test_sigterm_lets_answers_end_and_takes_no_new_ones(self):
        server = self.serve()
        done = []
        body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "n": 16}
        thread = threading.Thread(target=lambda: done.append(server.post("/v1/completions", body)))
        thread.start()
        while server.metric("llmq_num_requests_running") == 0:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        statuses = set()
        try:
            while True:
                statuses.add(server.ask("GET", "/ready")[0])
                statuses.add(server.post("/v1/completions", {"prompt": "a"})[0])
        except OSError:
            pass  # it is gone
        thread.join()
        self.assertLessEqual(statuses, {200, 503})
        self.assertIn(503, statuses)
        self.assertEqual(done[0][0], 200)
        self.assertEqual(done[0][1]["usage"]["completion_tokens"], 16 * 480)
        self.assertEqual(server.process.wait(30), 0)

    def test_a_request_has_a_time(self):
        server = self.serve("--request-timeout", "0.02")
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "n": 16})
        self.assertEqual((status, answer["error"]["code"]), (504, "timeout"))
        server.wait_for("llmq_kv_blocks_used", 0)

    def test_prompts_are_not_logged_unless_asked(self):
        for flags, logged in (((), False), (("--log-prompts",), True)):
            server = self.serve("-v", *flags)
            server.complete("A secret that nobody may read", 3)
            server.post("/v1/completions", {"prompt": "A secret that nobody may read", "colour": 1})
            server.stop()
            self.assertEqual("secret" in server.log_text(), logged)
            self.assertIn("tokens", server.log_text())

    def test_the_log_names_requests(self):
        server = self.serve("-v", "--log-format", "json")
        body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        status, headers, answer = server.ask("POST", "/v1/completions", body, {"X-Request-Id": "run-7/3", **trace})
        self.assertEqual((status, headers["X-Request-Id"], answer["id"]), (200, "run-7/3", "cmpl-run-7/3"))
        status, headers, _ = server.ask("POST", "/v1/completions", {**body, "colour": 1}, {"X-Request-Id": "run-8"})
        self.assertEqual((status, headers["X-Request-Id"]), (400, "run-8"))
        status, headers, answer = server.ask("POST", "/v1/completions", {**body, "stream": True, "max_tokens": 2}, {"X-Request-Id": "a b\" hostile"})
        made = headers["X-Request-Id"]
        self.assertRegex(made, "^[0-9a-f]{24}$")
        self.assertIn(f'"id":"cmpl-{made}"', answer)
        self.assertEqual(server.stop(), 0)
        lines = [json.loads(line) for line in server.log_text().splitlines()]
        of = {line["request_id"]: line for line in lines if "request_id" in line}
        self.assertEqual(set(of), {"run-7/3", "run-8", made})
        done = of["run-7/3"]
        self.assertEqual([done[key] for key in ("level", "trace_id", "model", "completion_tokens", "finish_reason", "status")],
                         ["debug", "ab" * 16, "tinystories-656k", 5, "length", 200])
        self.assertTrue(0 < done["ttft_s"] <= done["seconds"])
        self.assertEqual([of["run-8"][key] for key in ("path", "status", "code")], ["/v1/completions", 400, "unknown_parameter"])
        text = self.serve("-v")
        text.ask("POST", "/v1/completions", body, {"X-Request-Id": "run-9"})
        text.ask("POST", "/v1/completions", {**body, "colour": 1}, {"X-Request-Id": "run-10"})
        text.stop()
        self.assertRegex(text.log_text(), r"(?m)^cmpl-run-9: \d+ \+ 5 tokens, ")
        self.assertIn("\nrun-10: /v1/completions was answered with status 400, unknown_parameter\n", text.log_text())

    def test_a_trace_has_a_span_for_each_request(self):
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, "spans.jsonl")
            server = self.serve("--trace-file", path)
            body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0.5, "ignore_eos": True}
            for name, parent in (("of-it", f"00-{'ab' * 16}-{'cd' * 8}-01"), ("not-sampled", f"00-{'ab' * 16}-{'cd' * 8}-00"), ("hostile", "00-\"}\\-1")):
                self.assertEqual(server.ask("POST", "/v1/completions", body, {"X-Request-Id": name, "traceparent": parent})[0], 200)
            self.assertEqual(server.stop(), 0)
            with open(path, encoding="utf-8") as file:
                spans = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in file]
        self.assertEqual([span["name"] for span in spans], ["llm_request", "llm_request", "llmq serve"])
        said = [{each["key"]: next(iter(each["value"].values())) for each in span["attributes"]} for span in spans]
        self.assertEqual([each.get("gen_ai.request.id") for each in said], ["of-it", "hostile", None])
        self.assertEqual([spans[0][key] for key in ("traceId", "parentSpanId", "kind", "status")], ["ab" * 16, "cd" * 8, 2, {}])
        self.assertNotIn("parentSpanId", spans[1])
        self.assertEqual([said[0][key] for key in ("gen_ai.usage.completion_tokens", "gen_ai.request.max_tokens", "gen_ai.request.temperature", "gen_ai.response.model")], ["5", "5", 0.5, "tinystories-656k"])
        parts = [said[0][f"gen_ai.latency.{part}"] for part in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "e2e")]
        self.assertAlmostEqual(sum(parts[:3]), parts[3], places=6)
        self.assertAlmostEqual((int(spans[0]["endTimeUnixNano"]) - int(spans[0]["startTimeUnixNano"])) * 1e-9, parts[3], places=4)

    def test_flags_are_carried_out_or_refused(self):
        import subprocess
        for flags in (["--tensor-parallel-size", "3"], ["--lora", "a=/nowhere"], ["--lora", "tinystories-656k=x"], ["--lora", "../a=x"], ["--lora-dir", "/tmp"], ["--swap-space", "4"], ["--swap-space", "100000GiB"], ["--kv-cache-dtype", "int3"], ["--block-size", "12"], ["--max-model-len", "513"],
                      ["--kv-memory", "1KiB"], ["--host", "nowhere"], ["--metrics-compat", "x"], ["--api-key-file", "/nowhere"], ["--draft", "nowhere"],
                      ["--api-key-file", ""], ["--draft", ""], ["--max-model-len", "1"], ["--kv-memory", "9999999GiB"], ["--kv-memory", "100000GiB"], ["--host", "203.0.113.7"], ["--header-timeout", "nan"],
                      ["--max-body", "2GiB"], ["--served-model-name", "a\nb"], ["--served-model-name", os.fsdecode(b"\xff")]):
            done = subprocess.run([LLMQ, "serve", MODEL, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, flags)
            self.assertTrue(done.stderr.splitlines()[-1].startswith("llmq: "), done.stderr)
            self.assertIn("nowhere" if "nowhere" in flags[1] else flags[0], done.stderr)
        taken = self.serve()
        done = subprocess.run([LLMQ, "serve", MODEL, "--port", str(taken.port)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--port", done.stderr)
        served = self.serve("--max-model-len", "100", "--served-model-name", "mine", "--kv-memory", "1MiB", "--block-size", "8", "--no-prefix-caching")
        self.assertEqual((served.facts["model"], served.facts["max_model_len"]), ("mine", 100))
        self.assertLessEqual(served.facts["kv_tokens"], 2048)
        for _ in range(2):
            usage = served.post("/v1/completions", {"prompt": PROMPT * 4, "max_tokens": 1})[1]["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_a_cache_of_few_bits(self):
        """Together as alone, and in the bytes that its type takes: rows of 16 numbers."""
        usual = self.serve("--kv-memory", "1MiB").facts["kv_cache"]
        self.assertEqual(usual["dtype"], "bf16")
        for dtype, row in (("int8", 18), ("fp8", 16), ("fp8_e5m2", 16)):
            server = self.serve("--kv-cache-dtype", dtype, "--kv-memory", "1MiB", "--max-num-seqs", "8", "--draft", "ngram")
            self.assertEqual(server.facts["kv_cache"], {"dtype": dtype, "bytes_per_token": usual["bytes_per_token"] * row // 32})
            self.assertEqual(server.metric("llmq_kv_cache_bytes"), server.metric("llmq_kv_blocks") * 16 * usual["bytes_per_token"] * row // 32)
            bodies = [{"prompt": PROMPT * (1 + i % 4) + str(i % 6), "max_tokens": 20 + 9 * (i % 5), "temperature": 0, "ignore_eos": True} for i in range(24)]
            ask = lambda body: server.post("/v1/completions", body)[1]["choices"][0]["text"]
            with concurrent.futures.ThreadPoolExecutor(12) as clients:
                together = list(clients.map(ask, bodies))
            alone = self.serve("--kv-cache-dtype", dtype, "--no-prefix-caching", "--max-num-seqs", "1")
            self.assertEqual(together, [alone.post("/v1/completions", body)[1]["choices"][0]["text"] for body in bodies])

    def test_a_model_divided_over_two_devices(self):
        """Twice the pages in the memory of each, and the answers of one, alone as together, with prefixes found and sequences pushed out."""
        flags = ("--kv-memory", "128KiB", "--max-model-len", "256", "--max-num-seqs", "8")
        whole, divided = self.serve(*flags), self.serve(*flags, "--tensor-parallel-size", "2")
        self.assertEqual(divided.facts["kv_tokens"], 2 * whole.facts["kv_tokens"])
        self.assertEqual(divided.facts["kv_cache"], whole.facts["kv_cache"])
        self.assertTrue(divided.facts["device"].startswith("2 x cpu"), divided.facts)
        bodies = [{"prompt": PROMPT * (1 + i % 4) + str(i % 6), "max_tokens": 60 + 9 * (i % 5), "temperature": 0, "ignore_eos": True, "logprobs": 3} for i in range(24)]
        ask = lambda server, body: server.post("/v1/completions", body)[1]["choices"]
        with concurrent.futures.ThreadPoolExecutor(12) as clients:
            together = list(clients.map(lambda body: ask(divided, body), bodies))
        self.assertEqual(together, [ask(whole, body) for body in bodies])
        self.assertGreater(divided.metric("llmq_num_preemptions_total"), 0)
        self.assertGreater(divided.metric("llmq_prefix_cache_hits_total"), 0)

    def test_speculation_changes_no_word_and_is_measured(self):
        plain, drafted = self.serve(), self.serve("--draft", "ngram", "--num-draft-tokens", "4")
        self.assertEqual(plain.complete(PROMPT, 200, ignore_eos=True), drafted.complete(PROMPT, 200, ignore_eos=True))
        self.assertGreater(drafted.metric("llmq_spec_decode_num_accepted_tokens_total"), 0)
        self.assertEqual(plain.metric("llmq_spec_decode_num_draft_tokens_total"), 0)

    def test_a_probe_gives_the_same_digits_whatever_runs_beside_it(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        baseline = os.path.join(folder.name, "baseline.json")
        flags = ("--probe-interval", "0.05s", "--probe-baseline", baseline, "--max-num-seqs", "4", "--kv-memory", "1MiB")
        server = self.serve(*flags)
        server.wait_for("llmq_quality_probe_perplexity", None, 30)
        with open(baseline, encoding="utf-8") as file:
            recorded = json.load(file)
        alone = server.complete(PROMPT, 60)
        done, seen = threading.Event(), set()
        users = [threading.Thread(target=lambda: [self.assertEqual(server.complete(PROMPT, 60), alone) for _ in range(8)]) for _ in range(6)]
        for user in users:
            user.start()
        threading.Thread(target=lambda: [user.join() for user in users] and done.set()).start()
        end = time.monotonic() + 30  # a slow server may have had no moment for a second probe
        while not done.wait(0.02) or server.metric("llmq_quality_probes_total") < 2 and time.monotonic() < end:
            seen.add(server.metric("llmq_quality_probe_mean_log_prob"))
        self.assertEqual(seen, {recorded["mean_log_prob"]})
        self.assertGreater(server.metric("llmq_quality_probes_total"), 1)
        self.assertEqual(server.metric("llmq_request_success_total"), 49, "probes are not among the answers")
        self.assertEqual(server.metric("llmq_prompt_tokens_total"), 49 * server.post("/tokenize", {"prompt": PROMPT})[1]["count"])
        self.assertEqual(server.stop(), 0)
        again = self.serve(*flags)
        again.wait_for("llmq_quality_probe_mean_log_prob", recorded["mean_log_prob"], 30)
        self.assertEqual(again.metric("llmq_quality_probe_baseline_mean_log_prob"), recorded["mean_log_prob"])
        with open(baseline, "w", encoding="utf-8") as file:
            json.dump({**recorded, "tokens_sha256": "0"}, file)
        for wrong in (flags[:4], flags[2:4], ("--probe-interval", "often"), ("--probe-interval", "1s", "--probe-baseline", "/nonexistent/b")):
            refused = subprocess.run([LLMQ, "serve", MODEL, "--port", "0", *wrong], capture_output=True, text=True, timeout=60)
            self.assertEqual(refused.returncode, 2, wrong)
            self.assertIn("--probe-" if len(wrong) == 2 else "baseline", refused.stderr)

    def bench(self, *words):
        done = subprocess.run([LLMQ, "bench", "--json", *words], capture_output=True, text=True, timeout=120)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    def test_bench_drives_a_server_elsewhere(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
            keys.write("# who may ask\nfirst-key-0123456789\n")
            keys.flush()
            server = self.serve("--api-key-file", keys.name)
            url = server.facts["url"]
            load = ["--endpoint", url, "--clients", "3", "--requests", "10", "--prompt-tokens", "12", "--new-tokens", "6"]
            code, answer, said = self.bench(*load, "--api-key-file", keys.name)
            self.assertEqual(code, 0, said)
            row = answer["rows"][0]
            self.assertEqual((row["endpoint"], row["requests"], row["failed"], row["short_answers"]), (url, 10, 0, 0))
            self.assertEqual((answer["machine"], row["peak_memory_bytes"]), (None, None))
            counted = server.ask("GET", "/metrics", headers={"Authorization": "Bearer first-key-0123456789"})[2]
            generated = sum(float(value) for value in re.findall(r"^llmq_generation_tokens_total\{.*\} (\S+)$", counted, re.M))
            self.assertGreater(generated, 10 * row["new_tokens"])  # the warm-up, too
            code, answer, said = self.bench(*load)
            self.assertEqual(code, 2)
            self.assertIn("status 401", json.dumps(answer))
            code, answer, said = self.bench("another", *load, "--api-key-file", keys.name)
            self.assertEqual((code, answer["rows"][0]["failed"], answer["rows"][0]["ttft_p50_ms"]), (3, 10, None))
            self.assertIn("status 404", answer["rows"][0]["errors"][0]["message"])
        server.stop()
        code, answer, said = self.bench(*load)
        self.assertEqual(code, 1)
        self.assertIn("cannot connect", json.dumps(answer))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=1, warnings="ignore")
