"""Families of another structure, whole: Phi-3 as tinystories stored with fused linears, which computes what tinystories
does; OPT, OLMo 2, StarCoder2 and Granite, GLM-4, Gemma 2 to 4, Cohere 2 and Falcon with random weights. Every method runs; what it writes loads in Transformers with equal perplexity (5e-5).
Mixtures of experts with random weights: rounded to nearest, their experts are Transformers' to the bit; GPTQ and AWQ run on them, and
other methods are refused by name.

    families_check.py LLMQ WORK            all of these
    families_check.py LLMQ WORK NAME...    golden models of make_random_models.py alone, as wide as groups need: a dense family's first run
"""
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, Cohere2Config, CohereConfig, DeepseekV2Config, DeepseekV3Config, FalconConfig, Gemma2Config, Gemma3TextConfig, Gemma4TextConfig, Glm4Config, Glm4MoeConfig, Glm4MoeLiteConfig, GraniteConfig, GraniteMoeConfig, Llama4TextConfig, MiniMaxM2Config, MixtralConfig, OPTConfig, Olmo2Config, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig, Qwen3NextConfig, Qwen3_5TextConfig, Starcoder2Config)

from make_random_models import add_further_block, as_fp8, make_config
from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity, perplexity

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
SAMPLES = calibration(4, 128)
# Symmetric: compressed-tensors 0.20 declares zero points with the shape of another layout (compressed_tensors_latest_check.py).
METHODS = {
    "rtn": ["scheme=w4a16_g32_sym"],
    "awq": ["scheme=w4a16_g32_sym", *SAMPLES],
    "gptq": ["scheme=w4a16_g32_sym", *SAMPLES],
    "awq,gptq": ["scheme=w4a16_g32_sym", *SAMPLES],
    "smoothquant": ["scheme=w8a8", *SAMPLES],
    "smoothquant,gptq": ["scheme=w8a8", *SAMPLES],
}


def give_tokenizer(folder):
    for name in TOKENIZER:
        shutil.copy(os.path.join(TINYSTORIES, name), folder)


def fused_tinystories(folder):
    """tinystories' weights as Phi-3 stores them: rows of q, k, v one behind another, and of gate and up."""
    os.makedirs(folder)
    tensors = load_file(os.path.join(TINYSTORIES, "model.safetensors"))
    config = json.load(open(os.path.join(TINYSTORIES, "config.json")))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for fused, parts in (("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                             ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))):
            rows = [tensors.pop(f"{prefix}{part}.weight") for part in parts]
            tensors[f"{prefix}{fused}.weight"] = torch.cat(rows).contiguous()
    if config["tie_word_embeddings"] and "model.embed_tokens.weight" not in tensors:
        tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
        config.pop(key)
    config.update(architectures=["Phi3ForCausalLM"], model_type="phi3", pad_token_id=None,
                  original_max_position_embeddings=config["max_position_embeddings"])
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    give_tokenizer(folder)
    return folder


OPT = OPTConfig(vocab_size=2048, hidden_size=96, ffn_dim=192, num_hidden_layers=2, num_attention_heads=6,
                max_position_embeddings=512, word_embed_proj_dim=96, bos_token_id=1, eos_token_id=2, pad_token_id=0)
OLMO2 = Olmo2Config(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
                    num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)

STARCODER2 = Starcoder2Config(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
                              num_key_value_heads=3, max_position_embeddings=512, sliding_window=100, bos_token_id=1, eos_token_id=2)

GRANITE = dict(embedding_multiplier=6.0, attention_multiplier=0.11, residual_multiplier=0.45, logits_scaling=1.7)
DENSE_GRANITE = GraniteConfig(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
                              num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, **GRANITE)
GEMMA3 = Gemma3TextConfig(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6, head_dim=16,
                          num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, sliding_window=100,
                          layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=24)
GEMMA2 = Gemma2Config(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6, head_dim=16,
                      num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, sliding_window=100,
                      query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=5.0)
GEMMA4 = dict(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6, head_dim=16, global_head_dim=32,
              num_key_value_heads=3, num_global_key_value_heads=1, attention_k_eq_v=True, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
              pad_token_id=0, sliding_window=100, layer_types=["sliding_attention", "full_attention"], hidden_size_per_layer_input=0, final_logit_softcapping=5.0)
GLM4 = Glm4Config(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6, head_dim=16,
                  num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
HYBRID = dict(layer_types=["linear_attention", "full_attention"], head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=16, linear_value_head_dim=24)
QWEN35 = Qwen3_5TextConfig(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=3,
                           num_key_value_heads=1, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, **HYBRID)
COHERE2 = Cohere2Config(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
                        num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                        sliding_window=100, layer_types=["sliding_attention", "full_attention"], logit_scale=0.4)
COHERE_NORMS = CohereConfig(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
                            num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                            logit_scale=0.4, use_qk_norm=True)
FALCON = FalconConfig(vocab_size=2048, hidden_size=96, ffn_hidden_size=192, num_hidden_layers=2, num_attention_heads=6,
                      max_position_embeddings=512, bos_token_id=1, eos_token_id=2)
FALCON_40B = FalconConfig(vocab_size=2048, hidden_size=96, ffn_hidden_size=192, num_hidden_layers=2, num_attention_heads=6,
                          num_kv_heads=3, new_decoder_architecture=True, max_position_embeddings=512, bos_token_id=1, eos_token_id=2)

SPARSE = dict(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
              num_key_value_heads=3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
              num_experts_per_tok=2)
LATENT = {**SPARSE, "num_key_value_heads": 6, "kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
          "v_head_dim": 16, "moe_intermediate_size": 64, "n_routed_experts": 4}
MIXTURES = {
    "qwen3_moe": Qwen3MoeConfig(**SPARSE, head_dim=16, num_experts=4, moe_intermediate_size=64, mlp_only_layers=[0]),
    "qwen2_moe": Qwen2MoeConfig(**SPARSE, num_experts=4, moe_intermediate_size=64, shared_expert_intermediate_size=128),
    "mixtral": MixtralConfig(**SPARSE, num_local_experts=4),
    "olmoe": OlmoeConfig(**SPARSE, num_experts=4),
    "qwen3_next": Qwen3NextConfig(**SPARSE, **HYBRID, num_experts=4, moe_intermediate_size=64, shared_expert_intermediate_size=64),
    "granitemoe": GraniteMoeConfig(**SPARSE, **GRANITE, num_local_experts=4),
    "glm4_moe": Glm4MoeConfig(**SPARSE, n_routed_experts=4, moe_intermediate_size=64, n_group=2, topk_group=1, use_qk_norm=True,
                              routed_scaling_factor=1.6),
    "gemma4_text": Gemma4TextConfig(**GEMMA4, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=64),
    "deepseek_v2": DeepseekV2Config(**{**LATENT, "q_lora_rank": None}, first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=2,
                                    topk_group=1, routed_scaling_factor=1.4),
    "deepseek_v3": DeepseekV3Config(**LATENT, first_k_dense_replace=1, n_group=2, topk_group=1, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128, mscale=1.0, mscale_all_dim=0.8)),
    "glm4_moe_lite": Glm4MoeLiteConfig(**LATENT),
    "llama4_text": Llama4TextConfig(**SPARSE, head_dim=16, num_local_experts=4, intermediate_size_mlp=160, no_rope_layers=[1, 0],
                                    attention_chunk_size=100, floor_scale=60, attn_scale=0.7),
    "minimax_m2": MiniMaxM2Config(**SPARSE, head_dim=16, num_local_experts=4, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
}
FURTHER = ("glm4_moe", "deepseek_v3", "glm4_moe_lite")  # have a block behind the last
# Transformers reads stacks alone, so what is compared with it is a copy that is stacked again.
STACKED = {
    "granitemoe": (".block_sparse_moe.experts.", "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
    "gemma4_text": (".experts.", "experts.gate_up_proj", "experts.down_proj"),
    "llama4_text": (".feed_forward.experts.", "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", True),
}


def random_model(config, folder):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
            elif name.endswith("router.scale"):  # so that a row's experts differ by more than roundings
                parameter.copy_(8 + 2 * torch.randn_like(parameter))
            elif "norm" in name or name.endswith("per_expert_scale"):
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif "embed_" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn_like(buffer))
            elif name.endswith("layer_scalar"):
                buffer.copy_(0.7 + 0.2 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    if config.model_type in FURTHER:
        add_further_block(Path(folder), config.num_hidden_layers)
    give_tokenizer(folder)
    return folder


def check_further_block(family, name, source, output, last):
    """The block behind the last, which Transformers passes over, keeps its bytes."""
    before, after = ({key: value for key, value in load_file(os.path.join(folder, "model.safetensors")).items()
                      if key.startswith(f"model.layers.{last}.")} for folder in (source, output))
    expect(len(before) > 10 and before.keys() == after.keys() and
           all(value.dtype == after[key].dtype and torch.equal(value, after[key]) for key, value in before.items()),
           f"{family}, {name}: {len(before)} tensors of the block behind the last are the source's")
    asked = json.load(open(os.path.join(output, "config.json"))).get("quantization_config", {})
    left = [*asked.get("ignore", []), *asked.get("dynamic", {}), *(asked.get("modules_to_not_convert") or [])]
    expect(not asked or any(f"layers.{last}" in rule.replace("\\", "") for rule in left),
           f"{family}, {name}: loaders are told to leave it alone")


def stacked(folder, mixture, both, down, turned=False):
    """A copy of the model whose experts, behind `mixture` in a name, are stacks under these names of a block; perhaps each the transpose."""
    other = folder + "-stacked"
    shutil.copytree(folder, other)
    path = os.path.join(other, "model.safetensors")
    tensors = load_file(path)
    for prefix in sorted({name.split(mixture)[0] for name in tensors if mixture in name}):
        def take(linear):
            return [tensors.pop(f"{prefix}{mixture}{e}.{linear}.weight") for e in range(4)]
        tensors[f"{prefix}.{both}"] = torch.stack([torch.cat(pair) for pair in zip(take("gate_proj"), take("up_proj"))])
        tensors[f"{prefix}.{down}"] = torch.stack(take("down_proj"))
        if turned:
            for name in (f"{prefix}.{both}", f"{prefix}.{down}"):
                tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    return other


def check_against_transformers(program, name, folder, peers_copy=None):
    model = AutoModelForCausalLM.from_pretrained(peers_copy or folder, dtype=torch.float32, attn_implementation="eager").eval()
    peer = perplexity(model, folder, 2, 512)
    mine = own_perplexity(program, folder, 2)
    expect(abs(mine / peer - 1) <= 5e-5, f"{name}: perplexity {mine:.6f}, Transformers {peer:.6f}")
    return mine


def check_family(program, family, source, work, packed=True):
    """Without `packed` Transformers is given dense tensors of what was rounded: it loads no packed model of the family."""
    original = check_against_transformers(program, family, source)
    for method, settings in METHODS.items():
        output = os.path.join(work, f"{family}-{method.replace(',', '-')}")
        if not packed and "smoothquant" not in method:
            settings = [*settings, "format=safetensors"]
        llmq(program, "quantize", "--model", source, "--output", output, "--method", method,
             *[a for s in settings for a in ("--set", s)])
        check = llmq(program, "verify", output)
        expect(check["ok"], f"{family}, {method}: the output is what its manifest says")
        if "smoothquant" in method:  # Transformers rounds inputs of 8 bits elsewhere
            found = own_perplexity(program, output, 2)
            expect(abs(found / original - 1) < 0.05, f"{family}, {method}: perplexity {found:.4f} of {original:.4f}")
        else:
            check_against_transformers(program, f"{family}, {method}", output)


def expert_weights(folder):
    """Transformers' parameters of all experts, which it stacks."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: value.detach() for name, value in model.named_parameters() if ".experts." in name}


def check_budget(program, family, output, work):
    """Experts of a layer have one scheme, and each program that reads the output finds it."""
    choices = json.load(open(os.path.join(output, "report.json")))["mixed"]["choices"]
    of_experts = [choice for choice in choices if "experts" in choice]
    expect(len({choice["bits"] for choice in choices}) == 2 and all(len(c["modules"]) == 12 and c["experts"] == 4 for c in of_experts) and of_experts,
           f"{family}: of {len(choices)} choices {len(of_experts)} are of all experts of a layer")
    own_perplexity(program, output, 2)
    if family in STACKED:
        return
    dense = os.path.join(work, f"{family}-budget-dense")
    llmq(program, "convert", output, dense, "--to", "safetensors", "--dtype", "f32")
    # Transformers 5.23 has one scheme for all experts of a model, and what is written says so where layers differ.
    verdicts = {v["loader"]: v for v in json.load(open(os.path.join(output, "report.json")))["loaders"]}
    differ = len({choice["bits"] for choice in of_experts}) > 1
    transformers = next(v for name, v in verdicts.items() if name.startswith("Transformers"))
    expect(transformers["fits"] != differ, f"{family}: Transformers {'does not take' if differ else 'takes'} experts of these bits: {transformers}")
    if differ:
        return
    theirs, ours = expert_weights(output), expert_weights(dense)
    expect(len(ours) > 0 and theirs.keys() == ours.keys() and all(torch.equal(theirs[name], value.bfloat16().float()) for name, value in ours.items()),
           f"{family}: {len(ours)} stacks of experts with bits by budget as Transformers unpacks them")


def check_mixture(program, family, source, work):
    original = check_against_transformers(program, family, source)

    def quantized(name, *settings, method="rtn"):
        output = os.path.join(work, f"{family}-{name}")
        llmq(program, "quantize", "--model", source, "--output", output, "--method", method,
             *[a for s in settings for a in ("--set", s)])
        expect(llmq(program, "verify", output)["ok"], f"{family}, {name}: the output is what its manifest says")
        if family in FURTHER:
            check_further_block(family, name, source, output, MIXTURES[family].num_hidden_layers)
        return output

    dense = quantized("dense", "scheme=w4a16_g32_sym", "format=safetensors")
    peers_copy = stacked(dense, *STACKED[family]) if family in STACKED else dense
    wanted = check_against_transformers(program, f"{family}, dense", dense, peers_copy)
    packed = quantized("packed", "scheme=w4a16_g32_sym")
    found = own_perplexity(program, packed, 2)
    expect(found == wanted, f"{family}: packed and dense have one perplexity: {found!r}, {wanted!r}")
    if family not in STACKED:
        theirs, ours = expert_weights(packed), expert_weights(dense)
        # Transformers unpacks experts to BF16 on its way to the type that it was asked for.
        expect(len(ours) > 0 and theirs.keys() == ours.keys() and
               all(torch.equal(theirs[name], value.bfloat16().float()) for name, value in ours.items()),
               f"{family}: {len(ours)} stacks of experts as Transformers unpacks them")
    for form in ("gptq", "awq"):
        output = quantized(form, "scheme=w4a16_g32_sym" if form == "gptq" else "scheme=w4a16_g32_asym", f"format={form}")
        asked = json.load(open(os.path.join(output, "config.json")))["quantization_config"]
        left = asked["dynamic"] if form == "gptq" else asked["modules_to_not_convert"]
        expect(any("gate" in name or "router" in name for name in left), f"{family}, {form}: loaders are told that routers are dense")
        own_perplexity(program, output, 2)
    few = calibration(8, 64)
    for method in ("gptq", "awq", "awq,gptq"):
        calibrated = quantized(f"calibrated-{method}", "scheme=w4a16_g32_sym", *few, method=method)
        mixtures = json.load(open(os.path.join(calibrated, "report.json")))["mixtures"]
        expect(all(sum(m["tokens"]) % 512 == 0 and len(m["tokens"]) == m["experts"] for m in mixtures),
               f"{family}, {method}: every token of {len(mixtures)} blocks went to as many experts as the router asks for")
        own_perplexity(program, calibrated, 2)
    # Folds alone: 8 bits lose little (0.3 % of Mixtral's, whose random router has near ties, without a fold, too).
    folded = quantized("folded", "scheme=w8a16_g32_asym", "format=safetensors", *few, method="awq")
    found = check_against_transformers(program, f"{family}, folded", folded,
                                       stacked(folded, *STACKED[family]) if family in STACKED else folded)
    expect(abs(found / original - 1) < 5e-3, f"{family}, folded: perplexity {found:.5f} of {original:.5f}")
    smoothed = quantized("smoothed", "scheme=w8a8", *few, method="smoothquant")
    found = own_perplexity(program, smoothed, 2)
    expect(abs(found / original - 1) < 0.05, f"{family}, smoothquant: perplexity {found:.4f} of {original:.4f}")
    check_budget(program, family, quantized("budget", "scheme=w4a16_g32_sym", *few, "target_bits=6", "mixed.bits=[4, 8]"), work)


def check_shared_pages(program, family, source, work):
    """Blocks that read the pages of others: every method, and a budget of bits refused."""
    check_family(program, family, source, work)
    refused = subprocess.run([program, "quantize", "--model", source, "--output", os.path.join(work, "refused"), "--method", "gptq",
                              "--set", "target_bits=4.5"], capture_output=True, text=True)
    expect(refused.returncode == 2 and "read the pages of others" in refused.stderr, f"{family}: a budget of bits is refused by name: {refused.stderr.strip()}")


def check_float8_source(program, source, work):
    """A model as DeepSeek publishes it, in FP8 with a scale for each block: quantized, it has the codes of the numbers that it stands for."""
    published = os.path.join(work, "published")
    shutil.copytree(source, published)
    plain = as_fp8(Path(published), (128, 128))
    check_against_transformers(program, "deepseek_v3 in FP8", published, plain)
    codes = []
    for name, model in (("fp8", published), ("plain", plain)):
        output = os.path.join(work, f"from-{name}")
        llmq(program, "quantize", "--model", model, "--output", output, "--method", "rtn", "--set", "scheme=w4a16_g32_sym")
        codes.append({key: value for key, value in load_file(os.path.join(output, "model.safetensors")).items()
                      if key.endswith(("weight_packed", "weight_scale"))})
    expect(len(codes[0]) > 20 and codes[0].keys() == codes[1].keys() and all(torch.equal(value, codes[1][key]) for key, value in codes[0].items()),
           f"deepseek_v3 in FP8: {len(codes[0])} tensors of codes and scales are those of its numbers")


def golden_form(name):
    config = make_config(name, 128, 2)
    config.vocab_size, config.max_position_embeddings, config.intermediate_size = 2048, 512, 192
    if getattr(config, "head_dim", None):
        config.head_dim = 32
    return config


def main():
    program, work, named = *sys.argv[1:3], sys.argv[3:]
    for name in named:
        check_family(program, name, random_model(golden_form(name), os.path.join(work, name)), work)
    if named:
        finish()
    phi3 = fused_tinystories(os.path.join(work, "phi3"))
    ours = own_perplexity(program, TINYSTORIES, 2)
    fused = own_perplexity(program, phi3, 2)
    expect(ours == fused, f"phi3: the perplexity of tinystories, {ours!r}, with fused linears {fused!r}")
    check_family(program, "phi3", phi3, work)
    opt = random_model(OPT, os.path.join(work, "opt"))
    check_family(program, "opt", opt, work)
    refused = subprocess.run([program, "quantize", "--method", "rtn", "--model", opt, "--output",
                              os.path.join(work, "opt.gguf"), "--set", "format=gguf"],
                             capture_output=True, text=True)
    expect(refused.returncode == 2 and "family opt" in refused.stderr,
           f"opt: a GGUF is refused by name: {refused.stderr.strip()}")
    check_family(program, "granite", random_model(DENSE_GRANITE, os.path.join(work, "granite")), work)
    check_family(program, "gemma2", random_model(GEMMA2, os.path.join(work, "gemma2")), work)
    check_family(program, "gemma3", random_model(GEMMA3, os.path.join(work, "gemma3")), work)
    check_family(program, "gemma4", random_model(Gemma4TextConfig(**GEMMA4), os.path.join(work, "gemma4")), work)
    shared = dict(GEMMA4, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2, use_double_wide_mlp=True,
                  hidden_size_per_layer_input=32, vocab_size_per_layer_input=2048, attention_k_eq_v=False)
    check_shared_pages(program, "gemma4-shared", random_model(Gemma4TextConfig(**shared), os.path.join(work, "gemma4-shared")), work)
    check_family(program, "qwen3_5_text", random_model(QWEN35, os.path.join(work, "qwen3_5_text")), work)
    check_family(program, "glm4", random_model(GLM4, os.path.join(work, "glm4")), work)
    check_family(program, "cohere2", random_model(COHERE2, os.path.join(work, "cohere2")), work)
    check_family(program, "cohere-norms", random_model(COHERE_NORMS, os.path.join(work, "cohere-norms")), work)
    check_family(program, "falcon", random_model(FALCON, os.path.join(work, "falcon")), work, packed=False)
    check_family(program, "falcon-40b", random_model(FALCON_40B, os.path.join(work, "falcon-40b")), work, packed=False)
    check_family(program, "starcoder2", random_model(STARCODER2, os.path.join(work, "starcoder2")), work)
    olmo2 = random_model(OLMO2, os.path.join(work, "olmo2"))
    check_family(program, "olmo2", olmo2, work)
    random = own_perplexity(program, olmo2, 2)
    for family, model, ppl in (("phi3", phi3, ours), ("olmo2", olmo2, random)):
        gguf = os.path.join(work, f"{family}.gguf")
        subprocess.run([program, "convert", model, gguf, "--to", "gguf", "--dtype", "f32"], check=True)
        read = own_perplexity(program, gguf, 2)
        expect(read == ppl, f"{family}: the perplexity of its GGUF, {read!r}, is that of its safetensors, {ppl!r}")
    for family, config in MIXTURES.items():
        check_mixture(program, family, random_model(config, os.path.join(work, family)), work)
    check_float8_source(program, os.path.join(work, "deepseek_v3"), work)
    finish()


main()
