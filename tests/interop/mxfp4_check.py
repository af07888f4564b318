"""gpt-oss as it was published: what llmq writes as MXFP4 is what Transformers widens, and published experts keep their bytes.   mxfp4_check.py LLMQ WORK

A model with random weights stands in for gpt-oss: BF16 as Transformers stores it, then as MXFP4 by llmq. Transformers loads that with `dequantize`, for
whose kernels there is no device here.
"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from peer import TINYSTORIES, expect, finish, llmq, own_perplexity, perplexity

program, work = sys.argv[1:3]
LAYERS = 2


def random_model(folder):
    """Gates and ups beyond the clamp at 7, weights of an expert of several sizes, rows of zeros."""
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(GptOssConfig(
        vocab_size=2048, hidden_size=96, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
        num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=512, sliding_window=100, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=64)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if name.endswith("bias") else 1 if name.endswith(("norm.weight", "sinks")) else parameter.shape[-1] ** -0.5
            parameter.copy_(scale * torch.randn_like(parameter) + (name.endswith("norm.weight")))
            if "experts.gate_up_proj" in name and not name.endswith("bias"):
                parameter.mul_(2.0 ** torch.randint(-3, 4, parameter.shape[:1])[:, None, None])
                parameter[0, :, 5] = 0
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        shutil.copy(os.path.join(TINYSTORIES, name), folder)
    return folder


def tensors_of(folder):
    return load_file(os.path.join(folder, "model.safetensors"))


def quantize(source, name, *settings):
    output = os.path.join(work, name)
    llmq(program, "quantize", "--model", source, "--output", output, "--method", "rtn", "--set", "scheme=mxfp4", "--set", "format=mxfp4",
         *[a for s in settings for a in ("--set", s)])
    expect(llmq(program, "verify", output)["ok"], f"{name}: the output is what its manifest says")
    return output


def check_perplexity(name, folder):
    """In the FP32 of both: the weights are those of MXFP4, BF16 and no others."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", quantization_config=Mxfp4Config(dequantize=True))
    peer = perplexity(model.float().eval(), folder, 2, 512)
    mine = own_perplexity(program, folder, 2)
    expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, Transformers {peer:.6f}")
    return model


source = random_model(os.path.join(work, "bf16"))
experts = quantize(source, "experts", "ignore=['re:.*self_attn']")
model = check_perplexity("experts", experts)
before, after = tensors_of(source), tensors_of(experts)
stacks = [name for name in before if name.endswith(("gate_up_proj", "down_proj"))]
expect(all(name.removesuffix("_blocks").removesuffix("_scales") in before for name in after), f"{len(after)} tensors, under published names")
expect(len(stacks) == 2 * LAYERS and all(name in stacks or torch.equal(before[name], after[name]) for name in before), "all but the experts' matrices keep their bytes")
for name in stacks:
    theirs = convert_moe_packed_tensors(after[name + "_blocks"], after[name + "_scales"], dtype=torch.float32)
    loaded = dict(model.named_parameters())[name].float()
    expect(torch.equal(theirs, loaded), f"{name}: as Transformers unpacks it")
    error = ((theirs - before[name].float()).norm() / before[name].float().norm()).item()
    expect(error < 0.12, f"{name}: rounded to MXFP4 it is {error:.3f} off, relative to its norm")

# Published experts: one block rounded anew, which changes no value; the other carried.
again = quantize(experts, "again", "ignore=['re:.*self_attn', 're:.*layers.0.']")
once, twice = after, tensors_of(again)
carried = [name for name in once if "layers.1." not in name or ".mlp.experts." not in name]
expect(len(carried) > 20 and all(torch.equal(once[name], twice[name]) for name in carried), f"{len(carried)} tensors that no rounding touches keep their bytes")
for name in (n for n in stacks if "layers.1." in n):
    a, b = (convert_moe_packed_tensors(t[name + "_blocks"], t[name + "_scales"], dtype=torch.float32) for t in (once, twice))
    expect(torch.equal(a, b), f"{name}: rounded again it is the same numbers")
expect(own_perplexity(program, again, 2) == own_perplexity(program, experts, 2), "and has one perplexity")

# An adapter on attention goes into a published model, whose experts stay.
adapter = os.path.join(work, "adapter")
os.makedirs(adapter)
prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
save_file({prefix + "A.weight": torch.randn(2, 96) / 10, prefix + "B.weight": torch.randn(96, 2) / 10}, os.path.join(adapter, "adapter_model.safetensors"))
json.dump(dict(peft_type="LORA", r=2, lora_alpha=4, target_modules=["q_proj"], layers_to_transform=[0], task_type="CAUSAL_LM"), open(os.path.join(adapter, "adapter_config.json"), "w"))
merged = os.path.join(work, "merged")
llmq(program, "merge", experts, merged, "--lora", adapter)
changed = [name for name, tensor in tensors_of(merged).items() if not torch.equal(tensor, after[name])]
expect(changed == ["model.layers.0.self_attn.q_proj.weight"], f"merge changes {changed}")
check_perplexity("merged", merged)
finish()
