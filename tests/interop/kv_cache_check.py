"""The scales of a quantized KV cache are those of the keys and values that Transformers' own cache holds over the calibration tokens, and
compressed-tensors takes the checkpoint with its kv_cache_scheme.   kv_cache_check.py LLMQ WORK
"""
import sys
import tokenizers, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from peer import TINYSTORIES, WIKITEXT, expect, finish, llmq

program, work = sys.argv[1:3]
SAMPLES, LENGTH = 9, 100  # a length that does not fill the cache's blocks
tokenizer = tokenizers.Tokenizer.from_file(f"{TINYSTORIES}/tokenizer.json")
ids = torch.tensor(tokenizer.encode(open(WIKITEXT, encoding="utf-8").read()).ids[:SAMPLES * LENGTH]).reshape(SAMPLES, LENGTH)

for dtype, full in (("fp8", 448.0), ("int8", 127.5)):
    packed = f"{work}/{dtype}"
    llmq(program, "quantize", "--method", "awq", "--model", TINYSTORIES, "--output", packed, "--compute", "float32", "--set", "scheme=w4a16_g64_sym",
         "--set", f"calibration={{text: ['{WIKITEXT}'], samples: {SAMPLES}, sequence_length: {LENGTH}, shuffle: false}}", "--set", f"kv_cache.dtype={dtype}")
    llmq(program, "convert", packed, f"{packed}-dense", "--to", "safetensors", "--dtype", "f32")
    model = AutoModelForCausalLM.from_pretrained(f"{packed}-dense", dtype=torch.float32).eval()
    with torch.inference_mode():
        cache = model(ids, use_cache=True).past_key_values
    stored = load_file(f"{packed}/model.safetensors")
    for layer in range(model.config.num_hidden_layers):
        for which, tensor in (("k_scale", cache.layers[layer].keys), ("v_scale", cache.layers[layer].values)):
            mine, theirs = stored[f"model.layers.{layer}.self_attn.{which}"].item(), tensor.abs().max().item() / full
            # Both sides are float32 sums over a few hundred terms: the perplexities of the other checks agree as closely.
            expect(abs(mine / theirs - 1) <= 5e-5, f"{dtype}: layer {layer} {which} {mine:.8f}, from Transformers' cache {theirs:.8f}")
    loaded = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32)
    with torch.inference_mode():
        expect(torch.isfinite(loaded(ids[:1, :32]).logits).all().item(), f"{dtype}: Transformers with compressed-tensors loads and runs it")
finish()
