#!/usr/bin/env python3
"""What hostile and broken clients send: each attack is bounded in count and time, and healthy requests are answered beside it.
   attacks_test.py LLMQ [NAME...]"""
import json
import resource
import socket
import sys
import tempfile
import threading
import time
import unittest

from server import MODEL, PATIENCE, Server, chat_model

LLMQ = sys.argv.pop(1)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else None


def rest_of(connection):
    """The end of what the kernel still has of a connection that the other side has closed."""
    connection.settimeout(10)
    last = b""
    try:
        while piece := connection.recv(1 << 20):
            last = (last + piece)[-100:]
    except ConnectionError:
        pass
    return last


class Attacks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(LLMQ, chat_model(cls.folder.name), "--header-timeout", "1", "--body-timeout", "1", "--idle-timeout", "3", "--write-timeout", "1", "--max-connections", "200")
        cls.answer = cls.server.complete("Once upon a time", 8)

    @classmethod
    def tearDownClass(cls):
        cls.server.wait_for("llmq_kv_blocks_used", 0)
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def healthy(self, seconds=5 * PATIENCE):
        start = time.monotonic()
        self.assertEqual(self.server.complete("Once upon a time", 8), self.answer)
        self.assertLess(time.monotonic() - start, seconds)

    def tearDown(self):
        self.healthy()

    def drip(self, first, piece, count=40):
        """Connections that send `first` and then a byte now and then: how each ended, and after how long."""
        connections = [self.server.connect() for _ in range(count)]
        for connection in connections:
            connection.sendall(first)
        start, open_ones, ends = time.monotonic(), set(connections), []
        while open_ones and time.monotonic() - start < 8 * PATIENCE:
            for connection in list(open_ones):
                connection.settimeout(0.001)
                try:
                    connection.sendall(piece)
                    answer = connection.recv(4096)
                except TimeoutError:
                    continue
                except OSError:
                    answer = b""
                ends.append((status_of(answer), time.monotonic() - start))
                open_ones.discard(connection)
                connection.close()
            self.healthy()
        self.assertEqual(len(open_ones), 0, "some were never ended")
        return ends

    def test_slow_headers(self):
        for status, seconds in self.drip(HEAD, b"X"):
            self.assertIn(status, (408, None))
            self.assertLess(seconds, 5 * PATIENCE)

    def test_slow_bodies(self):
        for status, seconds in self.drip(HEAD + b"Content-Length: 1000\r\n\r\n{", b" "):
            self.assertIn(status, (408, None))
            self.assertLess(seconds, 5 * PATIENCE)

    def test_slow_readers(self):
        body = json.dumps({"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True, "n": 16, "logprobs": 20}).encode()
        connections = []
        for _ in range(3):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((self.server.host, self.server.port))
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            connections.append(connection)
        before = self.server.resident()
        self.server.wait_for("llmq_http_connections", 1, 30 * PATIENCE)  # that of the question alone
        self.server.wait_for("llmq_kv_blocks_used", 0, 20 * PATIENCE)
        self.assertTrue(self.server.grown_less(before, 64 << 20))
        for connection in connections:
            self.assertNotIn(b"[DONE]", rest_of(connection), "who does not read was not cut off")
        for connection in connections:
            connection.close()

    def test_oversized_bodies(self):
        self.assertEqual(status_of(self.server.raw(HEAD + b"Content-Length: 99999999999\r\n\r\n{")), 413)
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        self.assertEqual(status_of(self.server.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 200)), 413)
        self.assertEqual(self.server.post("/v1/completions", b'{"prompt": "' + b"a" * (9 << 20) + b'"}')[0], 413)

    def test_requests_that_two_programs_would_read_differently(self):
        length = b"Content-Length: 2\r\n"
        cases = {
            "two lengths": length + b"Content-Length: 5\r\n\r\n{}",
            "length and chunks": length + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "another coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "negative length": b"Content-Length: -2\r\n\r\n{}",
            "length in words": b"Content-Length: two\r\n\r\n{}",
            "length beyond 64 bits": b"Content-Length: 99999999999999999999999\r\n\r\n{}",
            "chunk beyond 64 bits": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n",
            "chunk in words": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
            "zero byte": b"X: a\0b\r\n\r\n",
            "blank before colon": b"X : a\r\n\r\n",
            "two hosts": b"Host: other\r\n" + length + b"\r\n{}",
        }
        for name, rest in cases.items():
            self.assertIn(status_of(self.server.raw(HEAD + rest)), (400, 413, 501), name)
        for name, start in {"no host": b"GET /health HTTP/1.1\r\n\r\n", "no version": b"GET /health\r\n\r\n", "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                            "HTTP/9": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", "noise": bytes(range(256)) * 4, "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10}.items():
            self.assertIn(status_of(self.server.raw(start)), (400, 505), name)

    def test_large_headers(self):
        self.assertEqual(status_of(self.server.raw(HEAD + b"X: " + b"a" * 20000 + b"\r\n\r\n")), 431)
        self.assertEqual(status_of(self.server.raw(HEAD + b"".join(b"X%d: a\r\n" % i for i in range(200)) + b"\r\n")), 431)
        self.assertEqual(status_of(self.server.raw(b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")), 414)
        self.assertIn(status_of(self.server.raw(b"A" * 100000)), (400, 431))

    def test_malformed_json(self):
        cases = [b"", b"{", b"null", b"[" * 1_000_000, b'{"prompt":' * 100_000, b'{"prompt": "' + b"\xff" + b'"}', b'{"prompt": "\\ud800"}', b'{"prompt": "a", "prompt": "b"}',
                 b'{"prompt": 1e999}', b'{"prompt": "a"}}', b'{"prompt": [' + b"1," * 500_000 + b"1]}", b'{"prompt": "a", "n": 1000000000}', b'{"prompt": "a\x00"}', b'{"prompt": "\xc0\xaf"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\xf5\x80\x80\x80"}',
                 b'\xef\xbb\xbf{"prompt": "a"}', '{"prompt": "a"}'.encode("utf-16"), b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "max_tokens": -1}',
                 b'{"prompt": "a", "seed": 18446744073709551616}', b'{"prompt": "a",}', b"{'prompt': 'a'}", b'{"prompt": "a"} {}', b'{"' + b"a" * 1_000_000 + b'": 1}']
        for body in cases:
            status, answer = self.server.post("/v1/completions", body)
            self.assertEqual(status, 400, body[:40])
            self.assertLess(len(answer["error"]["message"]), 1000)

    def test_prompts_longer_than_any_context(self):
        before = self.server.resident()
        for prompt in ("a " * 1_000_000, "a" * 4_000_000, [5] * 100_000, "\n" * 1_000_000):
            start = time.monotonic()
            status, answer = self.server.post("/v1/completions", {"prompt": prompt})
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
            self.assertLess(time.monotonic() - start, 5 * PATIENCE)
        self.assertTrue(self.server.grown_less(before, 64 << 20))

    def test_texts_longer_than_the_context_are_cut_into_tokens(self):
        """As lm-evaluation-harness asks it of a whole document; what is too long is refused in a sentence, in bounded memory."""
        before = self.server.resident()
        start = time.monotonic()
        status, answer = self.server.post("/tokenize", {"prompt": "a story " * 150_000, "add_special_tokens": False})
        self.assertEqual(status, 200, str(answer)[:200])
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(answer["count"], 300_000)
        status, answer = self.server.post("/tokenize", {"prompt": "a" * 4_000_000})
        self.assertEqual(status, 400)
        self.assertIn("4000000 bytes", answer["error"]["message"])
        self.assertLess(time.monotonic() - start, 5 * PATIENCE)
        self.assertTrue(self.server.grown_less(before, 128 << 20))

    def test_constraints_that_explode(self):
        """Each ends with an error of its own, soon and in bounded memory."""
        before = self.server.resident()
        deep = {"type": "string"}
        for _ in range(200):
            deep = {"type": "array", "items": deep}
        wide = {"type": "object", "properties": {f"p{i}": {"enum": [f"{i}-{j}" for j in range(60)]} for i in range(400)}}
        doubling = {"$defs": {f"d{i}": {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}} for i in range(40)}, "$ref": "#/$defs/d0"}
        doubling["$defs"]["d40"] = {"type": "null"}
        many = {f"p{i}": True for i in range(60_000)}
        bombs = [{"regex": "(a?){1000}a{1000}"}, {"regex": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"}, {"regex": "(x+x+)+y"}, {"regex": "(" * 50_000}, {"regex": "(.*a){20}.{1000}b"},
                 {"json": deep}, {"json": wide}, {"json": doubling}, {"json": {"$ref": "#"}}, {"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
                 {"json": {"type": "string", "pattern": "(a|a)*b{5000}", "maxLength": 100_000_000}}, {"choice": ["a" * 1_000_000] * 4}, {"choice": [str(i) for i in range(200_000)]},
                 {"json": {"type": ["null"] * 120_000, "enum": [1] * 120_000}}, {"json": {"type": "object", "properties": many, "required": list(reversed(many))}},
                 {"json": {"oneOf": [{"type": "object", "properties": many, "required": ["k"]}] * 2}}]
        for bomb in bombs:
            start = time.monotonic()
            status, answer = self.server.post("/v1/completions", {"prompt": "Once", "max_tokens": 8, "structured_outputs": bomb})
            self.assertIn(status, (200, 400), answer)
            self.assertLess(time.monotonic() - start, 8 * PATIENCE, str(bomb)[:60])
            self.healthy()
        self.assertTrue(self.server.grown_less(before, 128 << 20))

    def test_chats_that_make_a_template_work(self):
        """Templates come with the model; what a request may put into one is text, and bounded."""
        body = {"messages": [{"role": "user", "content": "{{ range(10**9) }}{% for i in x %}"}] * 5000, "max_tokens": 1}
        for change in ({}, {"chat_template": "{% for i in range(10**9) %}a{% endfor %}"}, {"chat_template_kwargs": {"a": {"b": [[[[]]]]}}}, {"chat_template_kwargs": {"messages": []}},
                       {"chat_template_kwargs": {f"k{i}": 1 for i in range(200_000)}}):
            start = time.monotonic()
            self.assertEqual(self.server.post("/v1/chat/completions", {**body, **change})[0], 400)
            self.assertLess(time.monotonic() - start, 5 * PATIENCE)

    def test_paths(self):
        for path in ("//v1/models", "/v1/../v1/models", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/../../etc/passwd", "/v1/models%00", "/v1/models/..%2f", "\\v1\\models", "*",
                     "/V1/MODELS", "/page.html", "/v1/models;x"):
            answer = self.server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            self.assertIn(status_of(answer), (400, 404), path)
            self.assertNotIn(b"root:", answer)

    def test_pages_of_other_sites_cannot_ask(self):
        self.assertEqual(self.server.ask("GET", "/v1/models", headers={"Host": "evil.example"})[0], 403)
        self.assertEqual(self.server.ask("POST", "/v1/completions", '{"prompt": "a"}', {"Content-Type": "text/plain"})[0], 415)

    def test_crowds_that_say_nothing(self):
        """2,500 at a server that takes 200: the quietest make room."""
        before = self.server.resident()
        crowd = []
        for i in range(2500):
            crowd.append(self.server.connect())
            if i % 500 == 499:
                self.healthy()
        self.assertLessEqual(self.server.metric("llmq_http_connections"), 200)
        self.assertTrue(self.server.grown_less(before, 32 << 20))
        for connection in crowd:
            connection.close()

    def test_ten_thousand_idle_connections(self):
        """All of them open at once, as many as the limit of descriptors gives."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(10_000, hard - 200)
        if count < 10_000:
            print(f"\nonly {count} connections: the limit of descriptors is {hard}")
        server = Server(LLMQ, MODEL, "--max-connections", str(count + 50), "--idle-timeout", "300", "--header-timeout", "300")
        try:
            before = server.resident()
            crowd = []
            for i in range(count):
                crowd.append(server.connect())
                if i % 3 == 0:
                    crowd[-1].sendall(HEAD[:20])  # a header that does not go on
                if i % 2500 == 2499:
                    self.assertEqual(server.complete("Once upon a time", 8), self.answer)
            server.wait_for("llmq_http_connections", count + 1, 20 * PATIENCE)
            start = time.monotonic()
            self.assertEqual(server.complete("Once upon a time", 8), self.answer)
            self.assertLess(time.monotonic() - start, 5 * PATIENCE)
            each = (server.resident() - before) / count
            print(f"\n{count} idle connections: {each / 1024:.1f} KiB each")
            self.assertTrue(server.grown_less(before, count * (32 << 10)))
            for connection in crowd:
                connection.close()
            server.wait_for("llmq_http_connections", 1, 20 * PATIENCE)
            self.assertEqual(server.metric("llmq_http_connections_evicted_total"), 0)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_many_at_once(self):
        """Healthy requests, and between them clients that break off at every place."""
        body = b'{"prompt": "Once upon a time", "max_tokens": 8, "stream": true}'
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        failed = []

        def ask():
            try:
                for _ in range(5):
                    self.healthy(20 * PATIENCE)
            except BaseException as error:  # noqa: B902
                failed.append(error)
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for cut in range(0, len(request) + 1, 3):
            with self.server.connect() as connection:
                connection.sendall(request[:cut])
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=1, warnings="ignore")
