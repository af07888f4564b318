#!/usr/bin/env python3
"""How many guesses of a draft are right, over guesses a round and answers at once; greedy, so the clock has no part in it.

    bench_acceptance.py LLMQ MODEL DRAFT TEXT [--guesses 1,2,..,8] [--batches 1,2,4,8,16] [--new-tokens 96]

Prompts are the first 60 characters of the first 32 lines of TEXT longer than 80. For every K and batch a server of its own answers all of them, by its
own counters. With p the share of right guesses among those that were looked at (a guess behind a wrong one is not), a round should give
(1 - p^(K+1)) / (1 - p) tokens, if guesses were right or wrong without regard to those before them.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import urllib.request


def numbers(text):
    return [int(part) for part in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("llmq", "model", "draft", "text"):
        parser.add_argument(name)
    parser.add_argument("--guesses", type=numbers, default=list(range(1, 9)))
    parser.add_argument("--batches", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--new-tokens", type=int, default=96)
    return parser.parse_args()


def prompts_of(text):
    with open(text, encoding="utf-8") as file:
        found = [line[:60] for line in file.read().split("\n") if len(line) > 80][:32]
    assert len(found) == 32, f"{text} has {len(found)} lines longer than 80 characters, 32 are wanted"
    return found


def served(o, guesses, batch):
    """Rounds, guesses, and right ones at each place of a round, of all answers."""
    command = [o.llmq, "serve", o.model, "--draft", o.draft, "--num-draft-tokens", str(guesses), "--max-num-seqs", str(batch), "--max-model-len", "512", "--port", "0", "--json", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            text = ""
            while True:
                line = server.stdout.readline()
                assert line, "the server did not start"
                text += line
                try:
                    url = json.loads(text)["url"]
                    break
                except ValueError:
                    continue

            def ask(prompt):
                body = {"model": os.path.basename(os.path.normpath(o.model)), "prompt": prompt, "max_tokens": o.new_tokens, "temperature": 0, "ignore_eos": True}
                request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=600) as answer:
                    choice = json.load(answer)
                assert choice["usage"]["completion_tokens"] == o.new_tokens, choice
                return choice["choices"][0]["text"]

            with concurrent.futures.ThreadPoolExecutor(batch) as clients:
                texts = list(clients.map(ask, o.prompts))
            with urllib.request.urlopen(url + "/metrics") as page:
                metrics = page.read().decode()
        finally:
            server.terminate()
    count = lambda name: int(float(re.search(rf"^llmq_spec_decode_{name}{{.*}} (\S+)$", metrics, re.M)[1]))
    places = {int(place): int(float(n)) for place, n in re.findall(r'^llmq_spec_decode_num_accepted_tokens_per_pos_total{.*position="(\d+)".*} (\S+)$', metrics, re.M)}
    return texts, count("num_drafts_total"), count("num_draft_tokens_total"), [places.get(i, 0) for i in range(guesses)]


def main():
    o = arguments()
    o.prompts = prompts_of(o.text)
    print("| K | batch | rounds | accepted / proposed | acceptance | p | tokens a round | (1 - p^(K+1)) / (1 - p) |\n|---|---|---|---|---|---|---|---|")
    first = None
    for guesses in o.guesses:
        for batch in o.batches:
            texts, rounds, proposed, right = served(o, guesses, batch)
            first = first or texts
            assert texts == first, f"K = {guesses}, batch {batch}: a text is not the one of the first row"
            accepted = sum(right)
            p = accepted / (rounds + sum(right[:-1]))  # every round looks at its first guess, and at each behind a right one
            expected = guesses + 1 if p == 1 else (1 - p ** (guesses + 1)) / (1 - p)
            print(f"| {guesses} | {batch} | {rounds} | {accepted} / {proposed} | {accepted / proposed:.3f} | {p:.3f} | {1 + accepted / rounds:.3f} | {expected:.3f} |", flush=True)


if __name__ == "__main__":
    main()
