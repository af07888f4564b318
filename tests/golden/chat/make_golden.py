#!/usr/bin/env python3
"""Writes cases.json: what Transformers' apply_chat_template makes of every *.jinja beside this file; and calibration.json: the ids
that it gives chats with the small tokenizers of tests/fixtures, on the day on which llmq calibrates.

    make_golden.py        (with transformers 5.23)

A case is a template, a request (what llmq's ChatTemplate::render takes) and the text, or null where the template refuses the chat.
The clock stands still: strftime_now() sees 2026-07-26, and 2024-07-26 where calibration.json is made.
"""
import copy
import datetime
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

USER = {"role": "user", "content": "Hello, how are you?"}
SYSTEM = {"role": "system", "content": "  You are a pirate.\nAnswer \"briefly\".  "}
ANSWER = {"role": "assistant", "content": "I'm fine.\n\n<think>\nno\n</think>\n\nAnd you?"}
AGAIN = {"role": "user", "content": " Zażółć gęślą jaźń 你好 🦙 <b>&amp;</b> {{ 7 * 7 }}\n"}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city, in °C & °F.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "A \"city\""}, "days": {"type": "array", "items": {"type": "integer"}}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Łódź", "days": [1, 2], "exact": True, "scale": 1.5, "none": None}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"degrees\": 21}"}
REASONED = {"role": "assistant", "reasoning_content": "Let me see.", "content": "Well."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "In parts."}]}

CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, AGAIN],
    "system_turns": [SYSTEM, USER, ANSWER, AGAIN],
    "answered": [SYSTEM, USER, ANSWER],
    "called": [SYSTEM, USER, CALL, RESULT],
    "called_answered": [USER, CALL, RESULT, ANSWER, AGAIN],
    "reasoned": [USER, REASONED, AGAIN],
    "two_users": [USER, AGAIN],
    "parts": [PARTS],
    "null_content": [USER, {**CALL, "content": None}, RESULT],
}


def requests():
    for name, messages in CHATS.items():
        for tools in (None, TOOLS):
            for prompt in (False, True):
                if tools is None and name.startswith("called") and not prompt:
                    continue
                yield name, {"messages": messages, "tools": tools, "add_generation_prompt": prompt}
    yield "thinking_off", {"messages": CHATS["turns"], "tools": None, "add_generation_prompt": True, "enable_thinking": False}


# Chats of a calibration text, and with what they are read.
CALIBRATION = [{"messages": CHATS["one"]}, {"messages": CHATS["system_turns"]}, {"messages": CHATS["two_users"]},
               {"messages": CHATS["called_answered"], "tools": TOOLS}, {"messages": CHATS["parts"]}]
READERS = [("qwen2", "qwen2.5", {"eos_token": "<|endoftext|>"}), ("llama3", "llama-3.2", {"bos_token": "<|endoftext|>"}),
           ("llama2", "mistral-nemo", {"bos_token": "<s>", "eos_token": "</s>"}), ("llama2", "gemma-2", {"bos_token": "<s>"}),
           ("smollm", "smollm2", {"bos_token": "<|im_start|>"})]


class Clock(datetime.datetime):
    YEAR = 2026

    @classmethod
    def now(cls, tz=None):
        return cls(cls.YEAR, 7, 26, 9, 5, 0)


def peer(tokenizer=None, special=SPECIAL):
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import chat_template_utils
    from tokenizers import Tokenizer, models

    chat_template_utils.datetime = Clock
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer or Tokenizer(models.BPE()), **special)


def render(tokenizer, template, request):
    """The text, or None and why there is none."""
    given = copy.deepcopy(request)
    messages, tools = given.pop("messages"), given.pop("tools", None)
    try:
        return tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False, **given), ""
    except Exception as error:  # whatever Python makes of a template that goes wrong
        return None, f"{type(error).__name__}: {error}"


def calibration():
    """Of each tokenizer and template: the ids of each chat, or null where the template refuses it."""
    from tokenizers import Tokenizer

    Clock.YEAR = 2024
    cases = []
    for name, template, special in READERS:
        tokenizer = peer(Tokenizer.from_file(os.path.join(HERE, "..", "..", "fixtures", "tokenizers", f"{name}.json")), special)
        with open(os.path.join(HERE, f"{template}.jinja"), encoding="utf-8") as stream:
            tokenizer.chat_template = stream.read()
        ids = []
        for line in CALIBRATION:
            try:
                ids.append(tokenizer.apply_chat_template(copy.deepcopy(line["messages"]), tools=line.get("tools"), return_dict=False))
            except Exception as error:
                print(name, template, error, file=sys.stderr)
                ids.append(None)
        cases.append({"tokenizer": name, "template": f"{template}.jinja", "special_tokens": special, "ids": ids})
    with open(os.path.join(HERE, "calibration.json"), "w", encoding="utf-8") as out:
        out.write('{"lines": ' + json.dumps(CALIBRATION, ensure_ascii=False) + ',\n"cases": [\n')
        out.write(",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "]}\n")


def main():
    tokenizer = peer()
    cases = []
    for file in sorted(os.listdir(HERE)):
        if not file.endswith(".jinja"):
            continue
        with open(os.path.join(HERE, file), encoding="utf-8") as stream:
            template = stream.read()
        for name, request in requests():
            text, why = render(tokenizer, template, request)
            if text is None:
                print(file, name, why, file=sys.stderr)
            cases.append({"template": file, "name": name, "request": request, "text": text})
    # A request is written once and named by its number.
    known = []
    for case in cases:
        request = case.pop("request")
        if request not in known:
            known.append(request)
        case["request"] = known.index(request)
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as out:
        out.write(json.dumps({"special_tokens": SPECIAL, "requests": known, "cases": cases}, ensure_ascii=False, indent=0) + "\n")
    calibration()


if __name__ == "__main__":
    main()
