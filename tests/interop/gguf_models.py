"""Random models of families that GGUF has in another form than Hugging Face: heads in another order, matrices split and turned, blocks behind the last."""
import glob, json, os, shutil
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4Config, Glm4MoeConfig, Glm4MoeLiteConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig, SmolLM3Config

# Two value heads for each key head, so that their order shows; no power of two, so that a run that is too short shows, too.
HYBRID = dict(vocab_size=49152, pad_token_id=None, hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
              head_dim=64, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, linear_num_key_heads=3,
              linear_num_value_heads=6, linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=96)
SECTIONS = dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2], mrope_interleaved=True)

GROUPED = dict(pad_token_id=None, hidden_size=256, intermediate_size=512, moe_intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
               max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, n_routed_experts=8, num_experts_per_tok=2,
               n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.7)
DENSE = dict(pad_token_id=None, hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
LATENT = dict(kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48, num_key_value_heads=4)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
GLM_TOKENS = ("[gMASK]", "<|user|>", "<|observation|>")


def glm_tokenizer(source, directory):
    """The tokenizer of another model with the tokens that GLM's vocabularies are known by."""
    os.makedirs(directory, exist_ok=True)
    for path in glob.glob(f"{source}/*token*") + glob.glob(f"{source}/chat_template*"):
        shutil.copy(path, directory)
    with open(f"{directory}/tokenizer.json", "r+", encoding="utf-8") as file:
        said = json.load(file)
        first = max(token["id"] for token in said["added_tokens"])
        first = max(first, max(said["model"]["vocab"].values())) + 1
        for i, content in enumerate(GLM_TOKENS):
            said["added_tokens"].append(dict(id=first + i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True))
        file.seek(0), file.truncate()
        json.dump(said, file)
    return directory


def say(directory, **keys):
    """What published configs say and Transformers' class has no key of."""
    with open(f"{directory}/config.json", "r+", encoding="utf-8") as file:
        said = json.load(file)
        file.seek(0), file.truncate()
        json.dump({**said, **keys}, file)
    return directory


def grouped_models(random_model, tokenizer, work):
    """GLM-4.5, the families over latents, and dense relatives."""
    glm = glm_tokenizer(tokenizer, f"{work}/glm-tokenizer")
    sigmoids, softmax = dict(scoring_func="sigmoid", topk_method="noaux_tc"), dict(scoring_func="softmax", topk_method="greedy")
    models = {
        "glm4_moe": random_model("glm4-moe-tiny", Glm4MoeConfig(
            **GROUPED, vocab_size=49160, num_key_value_heads=2, head_dim=64, n_group=2, topk_group=1, use_qk_norm=True, attention_bias=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5)), glm),
        "deepseek_v2": say(random_model("deepseek-v2-tiny", DeepseekV2Config(
            **GROUPED, **LATENT, vocab_size=49152, q_lora_rank=96, n_group=1, topk_group=1, norm_topk_prob=False,
            rope_parameters=dict(**YARN, mscale=0.707, mscale_all_dim=0.707)), tokenizer), **softmax),
        "deepseek_v3": say(random_model("deepseek-v3-tiny", DeepseekV3Config(
            **GROUPED, **LATENT, vocab_size=49152, q_lora_rank=96, n_group=4, topk_group=2, rope_parameters=dict(**YARN, mscale=1.0, mscale_all_dim=1.0)),
            tokenizer), **sigmoids),
        "glm4_moe_lite": say(random_model("glm4-moe-lite-tiny", Glm4MoeLiteConfig(
            **GROUPED, **LATENT, vocab_size=49160, q_lora_rank=96, n_group=1, topk_group=1, rope_interleave=True), glm), first_k_dense_replace=1, **sigmoids),
    }
    for name in ("glm4_moe", "glm4_moe_lite"):
        add_next_block(models[name])
    models["glm4"] = random_model("glm4-tiny", Glm4Config(**DENSE, vocab_size=49160, head_dim=64, attention_bias=True), glm)
    models["smollm3"] = random_model("smollm3-tiny", SmolLM3Config(**DENSE, vocab_size=49152), tokenizer)
    return models


def further_models(random_model, tokenizer, work):
    """name: directory."""
    models = {
        "qwen3_next": random_model("qwen3-next-tiny", Qwen3NextConfig(**HYBRID, **EXPERTS), tokenizer),
        "qwen3_5": random_model("qwen35-tiny", Qwen3_5TextConfig(**HYBRID, rope_parameters=SECTIONS), tokenizer, torch.float32),
        "qwen3_5_moe": random_model("qwen35-moe-tiny", Qwen3_5MoeTextConfig(**HYBRID, **EXPERTS, rope_parameters=SECTIONS), tokenizer),
    }
    add_mtp(models["qwen3_next"], "model.layers.3.", stacked=False)
    add_mtp(models["qwen3_5_moe"], "model.layers.3.", stacked=True)
    return models | grouped_models(random_model, tokenizer, work)


def without_mtp(directory):
    """Whether the checkpoint has no block that predicts a further token, of which the converter has to be told."""
    tensors = load_file(f"{directory}/model.safetensors")
    layers = json.load(open(f"{directory}/config.json", encoding="utf-8"))["num_hidden_layers"]
    return not any(name.startswith(("mtp.", f"model.layers.{layers}.")) for name in tensors)


def add_next_block(directory):
    """A block like the last, behind it, as GLM's checkpoints have it."""
    path = f"{directory}/model.safetensors"
    tensors, layers = load_file(path), GROUPED["num_hidden_layers"]
    random, last, at = np.random.default_rng(6), f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    hidden, kind, vocabulary = *tensors["model.norm.weight"].shape, tensors["model.norm.weight"].dtype, tensors["lm_head.weight"].shape[0]

    def numbers(*shape, kind=kind):
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(kind)

    further = {at + name.removeprefix(last): numbers(*tensor.shape, kind=tensor.dtype) for name, tensor in tensors.items() if name.startswith(last)}
    further |= {f"{at}{norm}.weight": numbers(hidden) for norm in ("enorm", "hnorm", "shared_head.norm")}
    further |= {f"{at}eh_proj.weight": numbers(hidden, 2 * hidden), f"{at}embed_tokens.weight": numbers(vocabulary, hidden),
                f"{at}shared_head.head.weight": numbers(vocabulary, hidden)}
    save_file({**tensors, **further}, path, metadata={"format": "pt"})
    say(directory, num_nextn_predict_layers=1)


def add_mtp(directory, block, stacked):
    """A block like `block`, and what joins it, as published checkpoints have it."""
    path = f"{directory}/model.safetensors"
    tensors = load_file(path)
    random = np.random.default_rng(5)
    hidden, kind = tensors["model.norm.weight"].shape[0], tensors["model.norm.weight"].dtype

    def numbers(*shape):
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(kind)

    further = {f"mtp.layers.0.{name.removeprefix(block)}": numbers(*tensor.shape) for name, tensor in tensors.items() if name.startswith(block)}
    if stacked:
        experts = sorted({name.split(".experts.")[1].split(".")[0] for name in further if ".experts." in name and name.split(".experts.")[1][0].isdigit()}, key=int)
        at = "mtp.layers.0.mlp.experts"
        if experts:
            further[f"{at}.gate_up_proj"] = torch.stack([torch.cat([further.pop(f"{at}.{e}.{part}_proj.weight") for part in ("gate", "up")]) for e in experts])
            further[f"{at}.down_proj"] = torch.stack([further.pop(f"{at}.{e}.down_proj.weight") for e in experts])
    further |= {"mtp.fc.weight": numbers(hidden, 2 * hidden), "mtp.norm.weight": numbers(hidden), "mtp.pre_fc_norm_embedding.weight": numbers(hidden),
                "mtp.pre_fc_norm_hidden.weight": numbers(hidden)}
    save_file({**tensors, **{name: tensor.contiguous() for name, tensor in further.items()}}, path, metadata={"format": "pt"})
    say(directory, mtp_num_hidden_layers=1)
