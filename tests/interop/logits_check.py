"""Float32 logits of random-weight models of every family, and of real ones, against Transformers.   logits_check.py LLMQ_LOGITS WORK

Errors within 1e-5 of the logits' range, and the same next token wherever the two best logits differ by more than twice that. Real models: the
one committed with the project, and the directories named in LLMQ_LOGITS_MODELS (separated by colons).
"""
import os, pathlib, subprocess, sys
import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
import make_random_models
from peer import TINYSTORIES, WIKITEXT, expect, finish

program, work = sys.argv[1], pathlib.Path(sys.argv[2])


def ours(model, ids):
    ids.astype("<i4").tofile(work / "ids")
    subprocess.run([program, model, work / "ids", work / "logits", os.environ.get("LLMQ_DEVICE", "auto")], check=True)
    return np.fromfile(work / "logits", "<f4").reshape(len(ids), -1)


def theirs(model, ids):
    peer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return peer(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()


def compare(name, model, ids, peer):
    mine = ours(model, ids)
    span = float(peer.max()) - float(peer.min())
    worst = float(np.abs(mine.astype(np.float64) - peer).max()) / span
    best = np.sort(peer, axis=1)[:, -2:]
    clear = best[:, 1].astype(np.float64) - best[:, 0] > 2e-5 * span
    same = mine.argmax(1)[clear] == peer.argmax(1)[clear]
    expect(worst <= 1e-5 and same.all(), f"{name}: worst error {worst:.2e} of the range {span:.1f}, next token equal in {same.sum()} of {clear.sum()} clear rows")


make_random_models.TOKENS = 96
for name in [*make_random_models.MODELS, *make_random_models.WRAPPERS]:
    make_random_models.write_model(name, work, hidden=64, layers=3)
    said = load_file(work / name / "logits.safetensors")  # by Transformers, of what is written beside it
    compare(name, work / name / "model", said["ids"], said["logits"])

text = open(WIKITEXT, encoding="utf-8").read(20000)
for model in [TINYSTORIES, *filter(None, os.environ.get("LLMQ_LOGITS_MODELS", "").split(":"))]:
    tokens = int(os.environ.get("LLMQ_LOGITS_TOKENS", "256"))
    ids = np.array(AutoTokenizer.from_pretrained(model)(text)["input_ids"][:tokens])
    compare(os.path.basename(model), model, ids, theirs(model, ids))
finish()
