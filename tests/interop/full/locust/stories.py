"""What locust asks a server with OpenAI's API: texts, and chats as streams, of which the first token is timed.   locust -f stories.py --host URL"""
import json, time

from locust import HttpUser, between, task


class Reader(HttpUser):
    wait_time = between(0, 0.05)

    def on_start(self):
        self.model = self.client.get("/v1/models").json()["data"][0]["id"]

    @task
    def text(self):
        with self.client.post("/v1/completions", json={"model": self.model, "prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True}, catch_response=True) as answer:
            if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != 16:
                answer.failure(f"{answer.status_code}: {answer.text[:200]}")

    @task
    def chat(self):
        body = {"model": self.model, "messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 16, "stream": True, "stream_options": {"include_usage": True}}
        begun, first, last = time.perf_counter(), None, ""
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as answer:
            if answer.status_code != 200:
                return answer.failure(f"{answer.status_code}: {answer.text[:200]}")
            for line in answer.iter_lines():
                data = line.decode().removeprefix("data: ")
                if first is None and data.startswith("{") and any(choice["delta"].get("content") for choice in json.loads(data)["choices"]):
                    first = time.perf_counter()
                last = data or last
            if last != "[DONE]":
                answer.failure(f"a stream ended with {last[:200]}")
        if first is not None:
            self.environment.events.request.fire(request_type="SSE", name="time to the first token", response_time=(first - begun) * 1000, response_length=0, exception=None, context={})
