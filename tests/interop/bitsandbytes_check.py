"""bitsandbytes through Transformers: it loads llmq's NF4, with nested scales and without, and dequantizes the numbers that llmq reads, to the bit; llmq reads what it
saves; and a QLoRA adapter that PEFT makes beside the 4-bit model is folded into it and quantized by AWQ.

bitsandbytes_check.py LLMQ WORK
"""
import json, shutil, sys
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity, perplexity, same_bits

program, work = sys.argv[1:3]
# Where a processor has AVX-512 BF16, the package packs codes anew in their first product, which it then computes in BF16.
bnb.nn.modules.has_avx512bf16 = lambda: False
WINDOWS, WIDTH = 4, 256


def linears_of(model):
    return {path: module for path, module in model.named_modules() if isinstance(module, bnb.nn.Linear4bit)}


def numbers(module):
    return bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)


def check(name, packed, nested, runs=True):
    """Of a directory, whoever wrote it."""
    dense = f"{work}/{name}-dense"
    llmq(program, "convert", packed, dense, "--to", "safetensors", "--dtype", "f32")
    model = AutoModelForCausalLM.from_pretrained(packed, dtype=torch.float32)
    linears, ours = linears_of(model), load_file(f"{dense}/model.safetensors")
    expect(len(linears) == 14 and all(module.weight.quant_state.nested == nested for module in linears.values()), f"{name}: 14 linears of NF4, nested scales: {nested}")
    expect(all(same_bits(numbers(module).float(), ours[f"{path}.weight"]) for path, module in linears.items()), f"{name}: the numbers of bitsandbytes to the bit")
    if runs:  # in FP32, as llmq does
        mine, theirs = own_perplexity(program, packed, WINDOWS, "--context", WIDTH), perplexity(model, packed, WINDOWS, WIDTH)
        expect(abs(mine / theirs - 1) <= 5e-5, f"{name}: perplexity {mine:.5f}, bitsandbytes {theirs:.5f}")
    return model, linears


def apart(ours, theirs):
    """How many nested scales are one step from the package's, whose kernel for processors takes codes from a table of 65536 places; and how many there are."""
    states = [(module.weight.quant_state, theirs[path].weight.quant_state) for path, module in ours.items()]
    steps = torch.cat([(a.absmax.int() - b.absmax.int()).abs() for a, b in states])
    same = all(torch.equal(module.weight.data, theirs[path].weight.data) for path, module in ours.items())
    near = all(torch.allclose(a.state2.code, b.state2.code, rtol=2**-22, atol=0) and torch.isclose(a.offset, b.offset, rtol=2**-22, atol=0) for a, b in states)
    return int(steps.sum()), steps.numel(), same and near and int(steps.max()) <= 1


llmq(program, "convert", TINYSTORIES, f"{work}/single", "--to", "bitsandbytes", "--dtype", "bf16")
check("single", f"{work}/single", False, runs=False)
llmq(program, "convert", TINYSTORIES, f"{work}/nested", "--to", "bitsandbytes", "--dtype", "f32", "--double-quant")
model, linears = check("nested", f"{work}/nested", True)
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32)
own = AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32, quantization_config=config)
count, of, close = apart(linears, linears_of(own))
expect(close and count <= of // 100, f"nested: the codes of bitsandbytes' own rounding; {count} of {of} nested scales are one step from its own")
own.save_pretrained(f"{work}/saved")
shutil.copy(f"{TINYSTORIES}/tokenizer.json", f"{work}/saved")
check("saved", f"{work}/saved", True)

# QLoRA: trained beside NF4, folded into what NF4 stands for, and quantized anew.
torch.manual_seed(1)
trained = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")).eval()
for key, parameter in trained.named_parameters():
    if "lora_B" in key:
        torch.nn.init.normal_(parameter, std=0.2)
trained.save_pretrained(f"{work}/adapter")
theirs = perplexity(trained, f"{work}/nested", WINDOWS, WIDTH)
llmq(program, "merge", f"{work}/nested", "--lora", f"{work}/adapter", f"{work}/merged")
beside = own_perplexity(program, f"{work}/nested", WINDOWS, "--lora", f"{work}/adapter", "--context", WIDTH)
merged = own_perplexity(program, f"{work}/merged", WINDOWS, "--context", WIDTH)
expect(max(abs(beside / theirs - 1), abs(merged / theirs - 1)) <= 5e-5, f"QLoRA: perplexity {beside:.5f} beside NF4, {merged:.5f} merged, PEFT's {theirs:.5f}")
settings = [word for setting in ["scheme=w4a16_g64_asym", *calibration(4, 128)] for word in ("--set", setting)]
llmq(program, "quantize", "--method", "awq", "--model", f"{work}/merged", "--output", f"{work}/awq", *settings)
packed = own_perplexity(program, f"{work}/awq", WINDOWS, "--context", WIDTH)
expect(abs(packed / theirs - 1) <= 0.1, f"QLoRA: perplexity {packed:.5f} after AWQ")
expect("quantization_config" not in json.load(open(f"{work}/merged/config.json")), "QLoRA: the merged model is dense")
finish()
