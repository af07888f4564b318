"""Random models of families that GGUF has in another form than Hugging Face: heads in another order, matrices split and turned, blocks behind the last."""
import glob, json, math, os, shutil, sys
import numpy as np
import torch
from peer import TINYSTORIES
from safetensors.torch import load_file, save_file
from transformers import (Cohere2Config, CohereConfig, DeepseekV2Config, DeepseekV3Config, AutoModelForImageTextToText, Ernie4_5Config, FalconConfig, Gemma4TextConfig, Glm4Config,
                          Glm4MoeConfig, Glm4MoeLiteConfig, Llama4TextConfig, Ministral3Config, Mistral3Config, Olmo3Config, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                          Qwen3NextConfig, SmolLM3Config, Starcoder2Config)
from make_random_models import fill

# SmolLM2's, whole beside llama.cpp, whose converter knows it by its ids of a text; else its first tokens, of which models are small.
VOCABULARY = 49152 if sys.argv[3:] else 4096

# Two value heads for each key head, so that their order shows; no power of two, so that a run that is too short shows, too.
HYBRID = dict(vocab_size=VOCABULARY, pad_token_id=None, hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
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


def first_tokens(source, directory, count):
    """A tokenizer of byte-pair merges with its first `count` tokens, each merged from others of them."""
    shutil.copytree(source, directory, ignore=lambda _, names: [name for name in names if "token" not in name and "chat_template" not in name])
    with open(f"{directory}/tokenizer.json", "r+", encoding="utf-8") as file:
        said = json.load(file)
        vocabulary = {token: number for token, number in said["model"]["vocab"].items() if number < count}
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in said["model"]["merges"]]
        said["model"].update(vocab=vocabulary, merges=[pair for pair in pairs if {*pair, "".join(pair)} <= vocabulary.keys()])
        file.seek(0), file.truncate()
        json.dump(said, file)
    return directory


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
        json.dump({key: value for key, value in {**said, **keys}.items() if value is not None or key not in keys}, file)
    return directory


def grouped_models(random_model, tokenizer, work):
    """GLM-4.5, the families over latents, and dense relatives."""
    glm = glm_tokenizer(tokenizer, f"{work}/glm-tokenizer")
    sigmoids, softmax = dict(scoring_func="sigmoid", topk_method="noaux_tc"), dict(scoring_func="softmax", topk_method="greedy")
    models = {
        "glm4_moe": random_model("glm4-moe-tiny", Glm4MoeConfig(
            **GROUPED, vocab_size=VOCABULARY + 8, num_key_value_heads=2, head_dim=64, n_group=2, topk_group=1, use_qk_norm=True, attention_bias=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5)), glm),
        "deepseek_v2": say(random_model("deepseek-v2-tiny", DeepseekV2Config(
            **GROUPED, **LATENT, vocab_size=VOCABULARY, q_lora_rank=96, n_group=1, topk_group=1, norm_topk_prob=False,
            rope_parameters=dict(**YARN, mscale=0.707, mscale_all_dim=0.707)), tokenizer), **softmax),
        "deepseek_v3": say(random_model("deepseek-v3-tiny", DeepseekV3Config(
            **GROUPED, **LATENT, vocab_size=VOCABULARY, q_lora_rank=96, n_group=4, topk_group=2, rope_parameters=dict(**YARN, mscale=1.0, mscale_all_dim=1.0)),
            tokenizer), **sigmoids),
        "glm4_moe_lite": say(random_model("glm4-moe-lite-tiny", Glm4MoeLiteConfig(
            **GROUPED, **LATENT, vocab_size=VOCABULARY + 8, q_lora_rank=96, n_group=1, topk_group=1, rope_interleave=True), glm), first_k_dense_replace=1, **sigmoids),
    }
    for name in ("glm4_moe", "glm4_moe_lite"):
        add_next_block(models[name])
    models["glm4"] = random_model("glm4-tiny", Glm4Config(**DENSE, vocab_size=VOCABULARY + 8, head_dim=64, attention_bias=True), glm)
    models["smollm3"] = random_model("smollm3-tiny", SmolLM3Config(**DENSE, vocab_size=VOCABULARY), tokenizer)
    return models


def wrapped_model(name, text, tokenizer, work):
    """A Mistral 3 with a tiny tower."""
    tower = dict(model_type="pixtral", hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, head_dim=16, image_size=16, patch_size=4)
    model, directory = AutoModelForImageTextToText.from_config(Mistral3Config(text_config=text, vision_config=tower, tie_word_embeddings=False)), f"{work}/{name}"
    fill(model, len(name))
    model.to(torch.bfloat16).save_pretrained(directory)
    for path in glob.glob(f"{tokenizer}/*token*"):
        shutil.copy(path, directory)
    return directory


def dense_models(random_model, tokenizer, work):
    """Families of dense blocks, as their class saves them and as they were published."""
    grows = dict(YARN, rope_theta=1e6, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
    stretched = dict(full_attention=dict(YARN, rope_theta=5e5, attention_factor=0.1 * math.log(4) + 1), sliding_attention=dict(rope_type="default", rope_theta=5e5))
    models = {
        "olmo3": random_model("olmo3-tiny", Olmo3Config(**DENSE, vocab_size=VOCABULARY, sliding_window=64, rope_parameters=stretched), tokenizer),
        "ministral3": random_model("ministral3-tiny", Ministral3Config(**DENSE, vocab_size=VOCABULARY, head_dim=32, rope_parameters=grows), tokenizer),
        # Of a vocabulary of SentencePiece's, as the converter wants it.
        "ernie4_5": random_model("ernie4_5-tiny", Ernie4_5Config(**{**DENSE, "tie_word_embeddings": True}, vocab_size=2048, head_dim=128), TINYSTORIES),
        "starcoder2": random_model("starcoder2-tiny", Starcoder2Config(**DENSE, vocab_size=VOCABULARY, sliding_window=None, use_bias=True), tokenizer),
        "starcoder2-window": random_model("starcoder2-window-tiny", Starcoder2Config(**{**DENSE, "tie_word_embeddings": True}, vocab_size=VOCABULARY, sliding_window=16),
                                          tokenizer),
    }
    # Norms of heads in models of 64 blocks.
    tied = {**DENSE, "vocab_size": VOCABULARY, "tie_word_embeddings": True, "logit_scale": 0.0625}
    models["cohere"] = say(random_model("cohere-tiny", CohereConfig(**tied, rope_parameters=dict(rope_type="default", rope_theta=8e6)), tokenizer),
                           model_max_length=4096)
    deep = {**tied, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 64, "logit_scale": 5 / 6}
    models["cohere-norms"] = random_model("cohere-norms-tiny", CohereConfig(**deep, use_qk_norm=True), tokenizer)
    models["cohere2"] = say(random_model("cohere2-tiny", Cohere2Config(**tied, sliding_window=16, rope_parameters=dict(rope_type="default", rope_theta=5e4)),
                                         tokenizer), rotary_pct=1.0)
    # In a wrapper: the converter takes the decoder for mistral3, whichever Mistral it is, and leaves the tower out.
    small = {**DENSE, "vocab_size": VOCABULARY, "head_dim": 32}
    text = dict(small, model_type="mistral", sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e9))
    models["mistral-tower"] = wrapped_model("mistral-tower-tiny", text, tokenizer, work)
    models["ministral-tower"] = wrapped_model("ministral-tower-tiny", dict(small, model_type="ministral3", rope_parameters=grows), tokenizer, work)
    # As Transformers 4 wrote them.
    models["olmo3-4"] = shutil.copytree(models["olmo3"], f"{work}/olmo3-4-tiny")
    say(models["olmo3-4"], rope_parameters=None, rope_theta=5e5, rope_scaling={key: value for key, value in stretched["full_attention"].items() if key != "rope_theta"})
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
    return models | grouped_models(random_model, tokenizer, work) | dense_models(random_model, tokenizer, work)


# Eight queries share a key in some: llama-quantize gives their attn_qkv more bits.
FALCON = dict(vocab_size=VOCABULARY, hidden_size=256, num_hidden_layers=17, num_attention_heads=8, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)


def falcon_models(random_model, tokenizer):
    """7B's form; 40B's; Falcon2 11B's, with one norm and a rope that the converter passes over."""
    grouped = dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False)
    models = {
        "falcon": random_model("falcon-tiny", FalconConfig(**FALCON), tokenizer),
        "falcon-40b": random_model("falcon-40b-tiny", FalconConfig(**grouped), tokenizer),
        "falcon-11b": random_model("falcon-11b-tiny", FalconConfig(**dict(grouped, max_position_embeddings=4096), num_ln_in_parallel_attn=1,
                                                                   rope_parameters=dict(rope_type="default", rope_theta=500042.0)), tokenizer),
    }
    say(models["falcon"], num_kv_heads=1)  # Transformers writes one for each head, by which the converter orders rows, and reads it of nobody but 40B
    return models


LLAMA4 = dict(vocab_size=VOCABULARY, pad_token_id=None, hidden_size=256, intermediate_size=64, intermediate_size_mlp=512, num_hidden_layers=8,
              num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
              num_experts_per_tok=1, tie_word_embeddings=False)


def llama4_models(random_model, tokenizer):
    """Scout's form, experts in all blocks and a stretched rope; Maverick's, in every other block and without the length of heads."""
    stretched = dict(rope_type="llama3", rope_theta=500000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=8192)
    return {
        "llama4": random_model("llama4-tiny", Llama4TextConfig(**LLAMA4, num_local_experts=4, interleave_moe_layer_step=1, use_qk_norm=True,
                                                               rope_parameters=stretched), tokenizer),
        "llama4-128": random_model("llama4-128-tiny", Llama4TextConfig(**dict(LLAMA4, intermediate_size=32), num_local_experts=128, interleave_moe_layer_step=2,
                                                                       use_qk_norm=False, rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
                                   tokenizer),
    }


GEMMA4 = dict(vocab_size=2053, pad_token_id=0, hidden_size=256, intermediate_size=320, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
              head_dim=32, max_position_embeddings=128, sliding_window=64, bos_token_id=1, eos_token_id=2, final_logit_softcapping=20.0,
              layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"] + ["sliding_attention", "full_attention"] * 2)
SHARING_TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"] + ["sliding_attention"] * 2 + [
    "full_attention"]
GEMMA4_TOKENS = ("<|channel>", "<|image|>", "<|turn>", "<plain>", "<|\"|>")


def gemma4_tokenizer(directory):
    """tinystories' as Gemma's are: no space before a text; with tokens that are added, of which one is a user's, one is named and two are always shown."""
    os.makedirs(directory, exist_ok=True)
    with open(f"{TINYSTORIES}/tokenizer.json", encoding="utf-8") as file:
        said = json.load(file)
    said["normalizer"] = said["normalizer"]["normalizers"][1]
    said["decoder"]["decoders"].pop()
    for i, content in enumerate(GEMMA4_TOKENS):
        said["added_tokens"].append(dict(id=2048 + i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False,
                                         special=content.startswith("<|")))
    with open(f"{directory}/tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(said, file)
    with open(f"{directory}/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|start_story|>", eos_token="<|end_story|>", pad_token="<unk>", unk_token="<unk>",
                       extra_special_tokens=["<|image|>"]), file)
    return directory


def gemma4_models(random_model, work):
    """Dense, with heads of their own for full attention; with experts and values that are keys; with shared pages and an embedding of all blocks.

    Factors of embeddings are roots that no type rounds: a GGUF of F32 has another type than the checkpoint, and the factor is of its type.
    """
    tokenizer = gemma4_tokenizer(f"{work}/gemma4-tokenizer")
    models = {
        "gemma4": random_model("gemma4-tiny", Gemma4TextConfig(**GEMMA4, global_head_dim=64, hidden_size_per_layer_input=0), tokenizer),
        "gemma4-moe": random_model("gemma4-moe-tiny", Gemma4TextConfig(**GEMMA4, global_head_dim=64, num_global_key_value_heads=1, attention_k_eq_v=True,
                                                                       hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=8, top_k_experts=2,
                                                                       moe_intermediate_size=64), tokenizer),
        # llama.cpp reads the pages of the last two blocks that have some, of which the last is of full attention.
        "gemma4-embedded": random_model("gemma4-embedded-tiny", Gemma4TextConfig(**{**GEMMA4, "layer_types": SHARING_TYPES}, global_head_dim=64, num_kv_shared_layers=3, use_double_wide_mlp=True,
                                                                                 hidden_size_per_layer_input=64, vocab_size_per_layer_input=2053), tokenizer),
    }
    add_unread_keys(models["gemma4-embedded"])
    return models


def add_unread_keys(directory):
    """Keys and values of blocks that read those of others, which published checkpoints have and Transformers passes over."""
    path = f"{directory}/model.safetensors"
    tensors, random = load_file(path), np.random.default_rng(7)
    for at, like in ((5, 3), (6, 3), (7, 4)):  # of the same kind
        for name in ("k_proj", "v_proj", "k_norm"):
            own = tensors[f"model.layers.{like}.self_attn.{name}.weight"]
            tensors[f"model.layers.{at}.self_attn.{name}.weight"] = torch.from_numpy(random.standard_normal(own.shape).astype(np.float32)).to(own.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


# Where llmq writes what the converter leaves out or takes for granted.
BESIDES_THE_CONVERTER = {"falcon-11b": {"falcon.rope.freq_base", "falcon.context_length"}}


def latest_models(random_model, tokenizer, work):
    """name: directory. Their GGUFs have exactly the perplexity of their safetensors."""
    return falcon_models(random_model, tokenizer) | llama4_models(random_model, tokenizer) | gemma4_models(random_model, work)


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
