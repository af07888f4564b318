"""Adapters as PEFT makes and saves them: folded by `llmq merge` and run beside the model, against PEFT itself.   lora_check.py LLMQ WORK"""
import sys
import tokenizers, torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from peer import TINYSTORIES, expect, finish, llmq, own_perplexity, perplexity

program, work = sys.argv[1:3]
PROMPTS, TOKENS, WINDOWS, WIDTH = ["Once upon a time, there was a", "The dog", "Lily and her mom went to the park."], 40, 4, 256
CASES = {
    "plain": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 6, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
    "patterns": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "down_proj", "up_proj"], "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 7},
                 "alpha_pattern": {"k_proj": 3, ".*self_attn.q_proj": 11}},
    "regex": {"r": 3, "lora_alpha": 3, "target_modules": r".*layers\.[01]\.(self_attn\.o_proj|mlp\.gate_proj)", "fan_in_fan_out": True},
}
tokenizer = tokenizers.Tokenizer.from_file(f"{TINYSTORIES}/tokenizer.json")
torch.manual_seed(1)


def dense(directory=TINYSTORIES):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def greedy(model, prompt):
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)[0][ids.shape[1]:].tolist()


def folded_as_exactly(name, adapter, merged):
    """Every weight is W + s B A but for the roundings of rank + 2 operations on FP32 numbers."""
    before, after, wrong, changed = load_file(f"{TINYSTORIES}/model.safetensors"), load_file(f"{merged}/model.safetensors"), 0, 0
    model = PeftModel.from_pretrained(dense(), adapter)
    modules = {key.removeprefix("base_model.model.") + ".weight": module for key, module in model.named_modules() if hasattr(module, "lora_A") and module.lora_A}
    for key, weight in after.items():
        if key not in modules:
            wrong += not torch.equal(weight, before[key])
            continue
        module = modules[key]
        a, b, scale = module.lora_A["default"].weight.double(), module.lora_B["default"].weight.double(), module.scaling["default"]
        exact, magnitude = before[key].double() + scale * (b @ a), before[key].double().abs() + abs(scale) * (b.abs() @ a.abs())
        wrong += bool(((weight.double() - exact).abs() > (a.shape[0] + 2) * 2 ** -24 * 1.01 * magnitude).any())
        changed += not torch.equal(weight, before[key])
    expect(wrong == 0 and changed == len(modules), f"{name}: merge changes {changed} of {len(after)} tensors, PEFT's {len(modules)}, and none is wrong")


plain = perplexity(dense(), TINYSTORIES, WINDOWS, WIDTH)
for name, words in CASES.items():
    adapter, merged = f"{work}/{name}", f"{work}/{name}-merged"
    model = get_peft_model(dense(), LoraConfig(task_type="CAUSAL_LM", **words)).eval()
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(adapter)
    llmq(program, "merge", TINYSTORIES, "--lora", adapter, merged)
    folded_as_exactly(name, adapter, merged)
    for prompt in PROMPTS:
        wanted = greedy(model, prompt)
        found = llmq(program, "generate", TINYSTORIES, "--lora", adapter, "--prompt", prompt, "--max-tokens", TOKENS, "--ignore-eos", "--compute", "float32")["token_ids"][:len(wanted)]
        expect(found == wanted, f"{name}: {len(wanted)} greedy tokens behind {prompt!r} are PEFT's")
    theirs = perplexity(model, TINYSTORIES, WINDOWS, WIDTH)
    mine = own_perplexity(program, TINYSTORIES, WINDOWS, "--lora", adapter, "--context", WIDTH)
    expect(abs(mine / theirs - 1) <= 5e-5 and abs(theirs / plain - 1) > 0.01, f"{name}: perplexity {mine:.5f}, PEFT's {theirs:.5f}, without the adapter {plain:.5f}")
finish()
