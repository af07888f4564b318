#!/usr/bin/env python3
"""Asks lm-evaluation-harness 0.4.13 which windows it cuts, and how it counts words, for tests/unit/evaluate.

make_lm_eval_golden.py [--check]        with an interpreter that has lm_eval (peers: lmeval)

It writes tests/golden/lm_eval/windows.json. A case is a text of `tokens` ids, which are their own places, with -1 as the prefix
token; `max_length` is that of local-completions, which asks get_rolling_token_windows() for two less (one place for the token
that is generated, one for the context). A window is [its first id, its length, how many of its last ids are scored].
--check compares the file with what would be written, and writes nothing.
"""
import json, os, sys

from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "lm_eval", "windows.json")
PREFIX = -1
LENGTHS = [(tokens, length) for length in (4, 5, 8, 19) for tokens in (1, 2, 3, 5, 6, 7, 12, 13, 17, 18, 34, 35, 50)]
TEXTS = ["", "one", "two words", " at both ends ", "a\n\n b\t\tc", "no\u00a0break\u3000ideographic", "\u200bzero width\u2060none", "\x1cseparators\x1d\x1e\x1fhere",
         "next\x85line", "ogham\u1680mark", "thin\u2009and\u202fnarrow\u205fspace", "line\u2028paragraph\u2029end", "mongolian\u180enone", "\ufeffmark"]


def windows(tokens, max_length):
    made = []
    for pair in get_rolling_token_windows(list(range(tokens)), PREFIX, max_length - 2, 1):
        context, scored = make_disjoint_window(pair)
        whole = context + scored
        assert whole == list(range(whole[0], whole[0] + len(whole)))
        made.append([whole[0], len(whole), len(scored)])
    return made


document = {"cases": [{"tokens": tokens, "max_length": length, "windows": windows(tokens, length)} for tokens, length in LENGTHS],
            "words": [{"text": text, "words": ConfigurableTask.count_words(text)} for text in TEXTS]}
rows = {key: ",\n  ".join(json.dumps(row) for row in value) for key, value in document.items()}
text = "{" + ",\n".join(f' "{key}": [\n  {value}\n ]' for key, value in rows.items())[1:] + "\n}\n"
assert json.loads(text) == document
if "--check" in sys.argv:
    with open(FILE, encoding="utf-8") as file:
        sys.exit(0 if file.read() == text else f"{FILE} is not what lm_eval says now")
with open(FILE, "w", encoding="utf-8") as file:
    file.write(text)
