"""Where the tasks of this folder have their documents: beside this file, wherever the tree was installed."""
import json
from pathlib import Path

import datasets

HERE = Path(__file__).resolve().parent


def lines(file, **_):
    """The documents of a JSONL file of this folder. What else is passed is lm-eval's metadata."""
    text = (HERE / file).read_text(encoding="utf-8")
    return {"test": datasets.Dataset.from_list([json.loads(line) for line in text.split("\n") if line])}


def wikitext(characters=None, **_):
    """WikiText-2's test split as one document, byte for byte; --metadata '{"characters": N}' takes its beginning."""
    text = (HERE.parent / "wikitext-2" / "wiki.test.raw").read_bytes().decode("utf-8")
    return {"test": datasets.Dataset.from_list([{"text": text[:characters]}])}
