"""AutoRound quantizes a model into each of its containers, and llmq reads them: weights to the bit, perplexity as Transformers computes it.   autoround.py LLMQ

Needs auto-round 0.16.1 in $LLMQ_PEERS/autoround (python3 -m venv, then pip install auto-round==0.16.1; minutes, for it brings torch). Where it is missing the script says
so and leaves with 77. What CI holds instead are checkpoints that AutoRound wrote (tests/golden/models/autoround-*, by tests/interop/make_autoround_golden.py).

The model is tinystories-656k; its linears are tuned for a few steps, so that rounding is AutoRound's own. Perplexity is that of Transformers with the weights that
AutoRound says its codes mean (5e-5). Where Transformers loads the checkpoint by itself (AutoRound's own container of symmetric codes; 0.16.1 stumbles over the others on
a CPU), its torch kernel rounds each product of a code and a scale to F16, and the bound is wider.
"""
import math, os, pathlib, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HF_HUB_OFFLINE"] = "", "1"
sys.path.insert(0, str(HERE.parent))
from peer import TINYSTORIES, WIKITEXT, expect, finish, llmq, perplexity, run_in

run_in("autoround", ["auto_round"], "auto-round==0.16.1")
import json
import auto_round
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from make_autoround_golden import MIXED, meaning, scheme_of

program = sys.argv[1]
WINDOWS, WIDTH, BOUND, KERNEL_BOUND = 4, 512, 5e-5, 2e-3
RUNS = {  # name -> format, bits, symmetric, steps, modules with another scheme
    "gptq": ("auto_gptq", 4, True, 8, {}),
    "gptq mixed": ("auto_gptq", 4, True, 0, MIXED),
    "awq": ("auto_awq", 4, False, 8, {}),
    "own, as gptq": ("auto_round", 4, True, 8, {}),
    "own, as gptq, 2 bits": ("auto_round", 2, True, 0, {}),
    "own, as gptq, mixed": ("auto_round", 4, True, 0, MIXED),
    "own, as awq": ("auto_round", 4, False, 8, {}),
    "own, as gptq v2": ("auto_round:gptqmodel", 4, False, 0, {}),
}


def quantize(work, form, bits, symmetric, steps, others):
    tokenizer = AutoTokenizer.from_pretrained(TINYSTORIES)
    ids = tokenizer(open(WIKITEXT, encoding="utf-8").read()[:60000], return_tensors="pt")["input_ids"][0]
    rows = [ids[i * 128:(i + 1) * 128][None] for i in range(16)]
    model = AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.bfloat16)
    run = auto_round.AutoRound(model, tokenizer, bits=bits, group_size=64, sym=symmetric, iters=steps, nsamples=16, seqlen=128, batch_size=8, dataset=rows, device_map="cpu",
                               disable_opt_rtn=True, layer_config={key: dict(value) for key, value in others.items()})
    run.quantize_and_save(work, format=form)
    (config,) = pathlib.Path(work).rglob("config.json")
    return config.parent


for name, run in RUNS.items():
    with tempfile.TemporaryDirectory() as work:
        model = quantize(f"{work}/model", *run)
        config, tensors = json.loads((model / "config.json").read_text()), load_file(model / "model.safetensors")
        scheme = llmq(program, "inspect", model)["scheme"]
        llmq(program, "convert", model, f"{work}/dense", "--to", "safetensors", "--dtype", "f32")
        dense = load_file(f"{work}/dense/model.safetensors")
        packed = [key.removesuffix(".qweight") for key in tensors if key.endswith(".qweight")]
        with torch.inference_mode():
            weights = {module + ".weight": meaning(tensors, module, *scheme_of(config, module)) for module in packed}
        # Equal, not to the bit: 0 times a scale below 0 is -0 there.
        expect(len(packed) >= 12 and all(torch.equal(dense[key], weights[key]) for key in weights), f"{name} ({scheme}): {len(packed)} linears have equal weights")
        reference = AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32)
        stored = {key: value.float() for key, value in tensors.items() if key.endswith(".weight")}
        reference.load_state_dict({**stored, **weights, "lm_head.weight": stored["model.embed_tokens.weight"]})
        ours = llmq(program, "eval-ppl", model, "--max-windows", WINDOWS)["ppl"]
        theirs = perplexity(reference, str(model), WINDOWS, WIDTH, WIKITEXT)
        expect(abs(math.log(ours / theirs)) < BOUND, f"{name}: perplexity {ours:.5f}, Transformers {theirs:.5f}")
        if name.startswith("own, as gptq") and run[2]:
            loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, device_map="cpu")
            theirs = perplexity(loaded, str(model), WINDOWS, WIDTH, WIKITEXT)
            expect(abs(math.log(ours / theirs)) < KERNEL_BOUND, f"{name}: perplexity {ours:.5f}, Transformers with AutoRound's kernel {theirs:.5f}")
finish()
