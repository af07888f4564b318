"""Tokens per second of Transformers over WikiText-2, protocol hf-2048, every logit scored.   transformers_perplexity.py MODEL TEXT WINDOWS DTYPE THREADS"""
import sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model_path, text, windows, dtype, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), getattr(torch, sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(threads)
tokenizer, model = AutoTokenizer.from_pretrained(model_path), AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype).eval()
ids = tokenizer(open(text, encoding="utf-8").read(), return_tensors="pt")["input_ids"]
with torch.inference_mode():
    model(ids[:, :64])
    start = time.time()
    for i in range(windows):
        x = ids[:, i * 2048:(i + 1) * 2048]
        torch.nn.functional.cross_entropy(model(x).logits.float()[0, :-1], x[0, 1:])
print(windows * 2048 / (time.time() - start))
