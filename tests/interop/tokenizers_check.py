"""Ids of `llmq tokenize` against Hugging Face tokenizers, on WikiText-2 and on random Unicode; and those of a calibration on chats against
Transformers' apply_chat_template.

    tokenizers_check.py LLMQ WORK [--model DIR_OR_GGUF [--reference TOKENIZER_JSON]] [--text FILE]... [--random 10000]

Without --model: every tokenizer of tests/fixtures/tokenizers. Random strings travel in one file, a private-use character between them (one process
answers all of them), and 20 of them alone, for what stands at the ends of a text.
"""
import argparse, functools, hashlib, json, os, random, shutil, struct

from tokenizers import Tokenizer

import peer

PIECES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "'s", "'RE", "'ſ", "the", "The", " fox", "1", "4567", "١", "½", "é", "e\u0301", "\u0323", "\u1100\u1161\u11a8",
          "你好", "🦙", "नी", "-", "##", "▁", "<0x41>", "</s>", "\x00"]


def random_text(rng):
    kind, out = rng.randrange(4), []
    for _ in range(rng.randrange(60)):
        point = rng.randrange(1, 0x110000 if kind == 0 else 0x3000)
        out.append(rng.choice(PIECES) if kind > 1 or 0xD800 <= point <= 0xDFFF else chr(point))
    return "".join(out)


@functools.cache
def random_texts(count):
    rng = random.Random(7)
    return [random_text(rng) for _ in range(count)]


def llmq_ids(program, model, text, work):
    path = os.path.join(work, "text.txt")
    with open(path, "w", encoding="utf-8", newline="") as f: f.write(text)
    return peer.llmq(program, "tokenize", model, "--text", path)["ids"]


def check(program, model, reference, files, count, work):
    reference = Tokenizer.from_file(reference)
    texts = random_texts(count)
    cases = [("random, joined", "\ue0ff".join(texts))] + [(f"random {i}", t) for i, t in enumerate(texts[:20])]
    for name in files:
        with open(name, encoding="utf-8", newline="") as f: cases.append((name, f.read()))
    differ = []
    for name, text in cases:
        # Without offsets in the text, a half of the time.
        want, got = reference.encode_batch_fast([text])[0].ids, llmq_ids(program, model, text, work)
        if want == got: continue
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        differ.append(f"{name} at id {at}: expected {want[at:at + 6]}, got {got[at:at + 6]}")
    peer.expect(not differ, f"{os.path.basename(model.rstrip('/'))}: {len(cases)} texts have the ids of Hugging Face tokenizers {'; '.join(differ[:5])}")


def check_chats(program, work, samples=4, length=64):
    """A model of the tests with a template: the report's hash is that of the first ids that Transformers makes of the same chats."""
    from transformers import PreTrainedTokenizerFast

    model, output, text = (os.path.join(work, name) for name in ("chatting", "chatted", "chats.jsonl"))
    shutil.copytree(peer.TINYSTORIES, model)
    template = "{{ bos_token }}{% for m in messages %}{{ '### ' + m.role + ': ' + m.content | trim + '<|end_story|>\\n' }}{% endfor %}"
    with open(os.path.join(model, "chat_template.jinja"), "w", encoding="utf-8") as f: f.write(template)
    rng = random.Random(11)
    chats = [[{"role": role, "content": random_text(rng)} for role in ("system", "user", "assistant")[rng.randrange(2):]] for _ in range(40)]
    with open(text, "w", encoding="utf-8") as f: f.writelines(json.dumps({"messages": chat}) + "\n" for chat in chats)
    reference = PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, "tokenizer.json"), bos_token="<|start_story|>", eos_token="<|end_story|>")
    ids = [i for chat in chats for i in reference.apply_chat_template(chat, chat_template=template, return_dict=False)][:samples * length]
    calibration = f"{{text: {text}, samples: {samples}, sequence_length: {length}, shuffle: false, chat_template: true}}"
    done = peer.llmq(program, "quantize", "--method", "rtn", "--model", model, "--output", output, "--set", "scheme=w8a8_channel_sym_static",
                     "--set", f"calibration={calibration}")
    want = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
    peer.expect(len(ids) == samples * length and done["calibration"]["sha256"] == want, f"{len(ids)} ids of a calibration on chats are those of apply_chat_template")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("llmq")
    args.add_argument("work")
    args.add_argument("--model")
    args.add_argument("--reference")
    args.add_argument("--text", action="append", default=[])
    args.add_argument("--random", type=int, default=10000)
    args = args.parse_args()
    files = args.text or [f for f in [peer.WIKITEXT] if os.path.exists(f)]
    if args.model:
        check(args.llmq, args.model, args.reference or os.path.join(args.model, "tokenizer.json"), files, args.random, args.work)
    else:
        fixtures = os.path.join(peer.ROOT, "tests", "fixtures", "tokenizers")
        for name in sorted(os.listdir(fixtures)):
            if not name.endswith(".json") or name == "golden.json": continue
            model = os.path.join(args.work, name[:-5])
            os.makedirs(model, exist_ok=True)
            shutil.copyfile(os.path.join(fixtures, name), os.path.join(model, "tokenizer.json"))
            check(args.llmq, model, os.path.join(model, "tokenizer.json"), files, args.random, args.work)
        # Kimi's ranks, which llmq reads as they are, beside what Transformers' converter makes of them.
        check(args.llmq, os.path.join(fixtures, "kimi"), os.path.join(fixtures, "kimi.json"), files, args.random, args.work)
        check_chats(args.llmq, args.work)
    peer.finish()


main()
