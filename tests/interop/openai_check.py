"""The official client of OpenAI against `llmq serve`: what its README shows, of what applies: completions, chats, streams, logprobs, models, errors,
retries, time-outs, raw answers, async.   openai_check.py LLMQ WORK"""
import asyncio
import os
import sys
import time

import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "serve"))
from server import Server, chat_model  # noqa: E402

llmq, work = sys.argv[1:3]
keys = os.path.join(work, "keys")
with open(keys, "w", encoding="utf-8") as file:
    file.write("a-key-for-the-official-client\n")
server = Server(llmq, chat_model(work), "--api-key-file", keys)
url = f"{server.facts['url']}/v1"
client = openai.OpenAI(base_url=url, api_key="a-key-for-the-official-client", max_retries=0)
MESSAGES = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": [{"type": "text", "text": "Tell one."}]}]


def chat():
    answer = client.chat.completions.create(model="tiny-chat", messages=MESSAGES, max_completion_tokens=20, temperature=0)
    assert answer.object == "chat.completion" and answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return answer.choices[0].message.content


def stream(whole):
    text, usage = "", None
    for chunk in client.chat.completions.create(model="tiny-chat", messages=MESSAGES, max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            text += choice.delta.content or ""
        usage = chunk.usage or usage
    assert text == whole, (text, whole)
    assert usage.completion_tokens > 0
    often = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in client.chat.completions.create(model="tiny-chat", messages=MESSAGES, max_tokens=9, stream=True, stream_options=often, extra_body={"min_tokens": 9})]
    assert counts == [*range(10), 9], counts
    with client.chat.completions.stream(model="tiny-chat", messages=MESSAGES, max_tokens=20, temperature=0) as events:
        assert "".join(event.delta for event in events if event.type == "content.delta") == whole
        assert events.get_final_completion().choices[0].message.content == whole


def completions():
    answer = client.completions.create(model="tiny-chat", prompt=["Once upon a time", "The dog"], max_tokens=8, temperature=0, logprobs=3, n=2, seed=1, stop=["\n"], user="someone")
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) for choice in answer.choices)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(model="tiny-chat", prompt="The dog", max_tokens=8, temperature=0, stop=["\n"], stream=True))
    assert streamed == answer.choices[2].text


def logprobs():
    answer = client.chat.completions.create(model="tiny-chat", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens and all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)


def tools():
    tool = {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    plain = client.chat.completions.create(model="tiny-chat", messages=MESSAGES, max_tokens=1, temperature=0)
    answer = client.chat.completions.create(model="tiny-chat", messages=MESSAGES, tools=[tool], tool_choice="auto", max_tokens=10, temperature=0)
    assert answer.choices[0].message.tool_calls is None and answer.usage.prompt_tokens >= plain.usage.prompt_tokens
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}}
    history = MESSAGES + [{"role": "assistant", "tool_calls": [call], "content": ""}, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    assert client.chat.completions.create(model="tiny-chat", messages=history, tools=[tool], max_tokens=5).choices[0].finish_reason in ("stop", "length")


def models():
    assert [model.id for model in client.models.list()] == ["tiny-chat"]
    assert client.models.retrieve("tiny-chat").owned_by == "llmq"


def raises(error, act):
    try:
        act()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def errors():
    bad = raises(openai.BadRequestError, lambda: client.chat.completions.create(model="tiny-chat", messages=MESSAGES, temperature=5))
    assert bad.param == "temperature" and bad.status_code == 400 and bad.body["message"]
    long = raises(openai.BadRequestError, lambda: client.completions.create(model="tiny-chat", prompt="a " * 5000))
    assert long.code == "context_length_exceeded"
    raises(openai.NotFoundError, lambda: client.completions.create(model="gpt-5", prompt="a"))
    raises(openai.AuthenticationError, lambda: client.with_options(api_key="wrong").models.list())
    raises(openai.InternalServerError, lambda: client.embeddings.create(model="tiny-chat", input="a"))
    raises(openai.BadRequestError, lambda: client.completions.create(model="tiny-chat", prompt="a", extra_body={"guided_regex": "a+"}))
    long_answer = dict(model="tiny-chat", prompt="Once", max_tokens=500, n=16, extra_body={"ignore_eos": True})
    raises(openai.APITimeoutError, lambda: client.with_options(timeout=0.05).completions.create(**long_answer))
    closed = Server(llmq)
    closed.stop()
    raises(openai.APIConnectionError, lambda: openai.OpenAI(base_url=f"{closed.facts['url']}/v1", api_key="x", max_retries=0).models.list())


def raw():
    answer = client.chat.completions.with_raw_response.create(model="tiny-chat", messages=MESSAGES, max_tokens=3)
    assert answer.headers["content-type"] == "application/json" and answer.parse().choices
    assert answer.parse().id == "chatcmpl-" + answer.request_id
    named = client.completions.create(model="tiny-chat", prompt="Once", max_tokens=2, extra_headers={"X-Request-Id": "run-7"})
    assert (named.id, named._request_id) == ("cmpl-run-7", "run-7")
    with client.chat.completions.with_streaming_response.create(model="tiny-chat", messages=MESSAGES, max_tokens=3) as lines:
        assert any("chat.completion" in line for line in lines.iter_lines())


async def several(whole):
    async with openai.AsyncOpenAI(base_url=url, api_key="a-key-for-the-official-client") as together:
        async def one():
            text = ""
            async for chunk in await together.chat.completions.create(model="tiny-chat", messages=MESSAGES, max_tokens=20, temperature=0, stream=True):
                text += chunk.choices[0].delta.content or ""
            return text
        assert await asyncio.gather(*(one() for _ in range(16))) == [whole] * 16


def left_streams():
    """Streams that are closed early give their pages back."""
    for _ in range(3):
        answer = client.completions.create(model="tiny-chat", prompt="Once", max_tokens=500, n=4, stream=True, extra_body={"ignore_eos": True})
        next(iter(answer))
        answer.close()
    key = {"Authorization": "Bearer a-key-for-the-official-client"}
    end = time.monotonic() + 10
    while "llmq_kv_blocks_used{model_name=\"tiny-chat\"} 0\n" not in server.ask("GET", "/metrics", headers=key)[2]:
        assert time.monotonic() < end, "pages are still in use"
        time.sleep(0.05)


said = chat()
stream(said)
completions()
logprobs()
tools()
models()
errors()
raw()
asyncio.run(several(said))
left_streams()
assert server.stop() == 0
print(f"openai {openai.__version__}: chats, streams, completions, logprobs, tools, models, errors, time-outs, raw answers, async, closed streams")
