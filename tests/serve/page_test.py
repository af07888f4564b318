#!/usr/bin/env python3
"""The page at "/" in a headless Chromium: a text is sent, its answer and the figures appear, nothing is loaded from elsewhere.
   page_test.py LLMQ [SCREENSHOT.png]   (77 without a browser)"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from server import Server, chat_model


class Browser:
    """Chromium's own protocol over two pipes: JSON, each message ended by a zero byte."""

    def __init__(self, program, folder):
        theirs_in, self.out = os.pipe()
        self.inp, theirs_out = os.pipe()

        def arrange():
            first, second = os.dup(theirs_in), os.dup(theirs_out)  # beyond 3 and 4, which they become
            os.dup2(first, 3)
            os.dup2(second, 4)
        self.process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                                         f"--user-data-dir={folder}", "--remote-debugging-pipe", "--window-size=1100,700", "about:blank"],
                                        preexec_fn=arrange, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.rest, self.session, self.seen = 0, b"", None, []

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                piece = os.read(self.inp, 1 << 20)
                assert piece, "the browser ended"
                self.rest += piece
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.seen.append(answer)

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def wait(self, expression, seconds=30):
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"not true after {seconds} s: {expression}"
            time.sleep(0.1)

    def close(self):
        self.process.kill()
        self.process.wait()


def say(browser, text):
    browser.value(f"document.getElementById('temperature').value = 0; document.getElementById('text').value = {json.dumps(text)}; document.getElementById('form').requestSubmit(); 1")


llmq = sys.argv[1]
program = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
if not program:
    print("SKIPPED: no Chromium is installed")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    for model in (chat_model(folder), None):
        server = Server(llmq, *([model] if model else []))
        browser = Browser(program, os.path.join(folder, f"profile-{bool(model)}"))
        browser.open(server.facts["url"] + "/")
        browser.wait(f"document.getElementById('model').textContent === '{server.facts['model']}'")
        say(browser, "Once upon a time, there was a")
        browser.wait("document.querySelectorAll('.said').length === 2 && document.getElementById('send').textContent === 'Send'")
        answer = browser.value("document.querySelectorAll('.said')[1].textContent")
        assert browser.value("document.querySelector('.wrong') === null"), answer
        assert server.metric("llmq_generation_tokens_total") > 0 and (model or len(answer) > 20), answer
        if not model:
            assert "no chat template" in browser.value("document.getElementById('mode').textContent")
        browser.wait("Number(document.getElementById('speed').textContent) >= 0 && document.getElementById('kv').textContent.endsWith('%')")
        asked = {message["params"]["request"]["url"] for message in browser.seen if message.get("method") == "Network.requestWillBeSent"}
        assert all(url.startswith(server.facts["url"]) for url in asked), asked
        wrong = [message for message in browser.seen if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
                 and '"level": "verbose"' not in json.dumps(message) and "status of 400" not in json.dumps(message)]  # the 400: a model without chat template
        assert not wrong, wrong
        if model and len(sys.argv) > 2:
            say(browser, "And then?")
            time.sleep(2.5)
            with open(sys.argv[2], "wb") as image:
                image.write(base64.b64decode(browser.call("Page.captureScreenshot")["data"]))
        browser.close()
        assert server.stop() == 0
print(f"the page in {program}: {answer[:60]!r}")
