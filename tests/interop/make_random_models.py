#!/usr/bin/env python3
"""Writes small random-weight models of every supported family with Transformers' float32 logits beside them.

    make_random_models.py OUT [--hidden 32] [--layers 2] [--only NAME]

OUT/<name>/model/          config.json and model.safetensors, as Transformers 5 or 4 writes them
OUT/<name>/logits.safetensors   ids I32 [tokens], logits F32 [tokens, vocab] of Transformers, eager attention, float32

The committed set (tests/golden/models) is what `make_random_models.py tests/golden/models` writes with torch 2 and
transformers 5.23; weights depend on nothing but the seed (numpy's PCG64).
Weights are wide on purpose: at the usual initialization attention is uniform, and a wrong rope would not show.
"""
import argparse
import json
import pathlib
import shutil
import zlib

import numpy as np
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, Cohere2Config, CohereConfig, DeepseekV2Config, DeepseekV3Config, Ernie4_5Config, FalconConfig, Gemma2Config, Gemma3TextConfig, Gemma4TextConfig, Glm4Config, Glm4MoeConfig, Glm4MoeLiteConfig, GptOssConfig, GraniteConfig, GraniteMoeConfig, Llama4TextConfig, LlamaConfig, MiniMaxM2Config, Ministral3Config, MistralConfig, MixtralConfig, OPTConfig, Olmo2Config, Olmo3Config, OlmoeConfig, Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, Qwen3NextConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, SeedOssConfig, SmolLM3Config, Starcoder2Config)

from wrapper_models import WRAPPERS, AutoModelForImageTextToText, make_wrapper_config, name_layers, part_experts, save_wrapper

VOCAB = 97
TOKENS = 40


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)

# Chunks and floors that a sequence of 40 tells apart.
LLAMA4 = dict(attention_chunk_size=7, floor_scale=5, attn_scale=0.7, intermediate_size_mlp=56, num_local_experts=4, num_experts_per_tok=2)
GRANITE = dict(embedding_multiplier=1.7, attention_multiplier=0.23, residual_multiplier=0.37, logits_scaling=2.9)

# A block of each kind; value heads share key heads, and their widths differ.
HYBRID = dict(layer_types="hybrid", head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12)
# No embedding of each block; the last block has full attention.
GEMMA4 = dict(sliding_window=7, layer_types="alternate", hidden_size_per_layer_input=0)
QUARTER = rope(theta=10000000.0, partial_rotary_factor=0.25)
# Of a head 6 channels are plain and 4 turn, and values have another width than keys.
LATENT = dict(num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10,
              moe_intermediate_size=24, num_experts_per_tok=2)
MSCALE = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=0.5)
HALF = rope(theta=50000.0, partial_rotary_factor=0.5)
SECTIONS = dict(mrope_section=[2, 1, 1], mrope_interleaved=True)

# name: (config class, overrides, stored dtype, what is rewritten after saving)
MODELS = {
    "llama-default": (LlamaConfig, dict(tie_word_embeddings=True, num_key_value_heads=4), "float32", []),
    "llama-linear-biases": (
        LlamaConfig,
        dict(attention_bias=True, mlp_bias=True, rope_parameters=rope("linear", factor=2.5)),
        "bfloat16",
        ["transformers4", "type"],
    ),
    "llama-dynamic-mqa": (
        LlamaConfig,
        dict(num_key_value_heads=1, max_position_embeddings=24, rope_parameters=rope("dynamic", factor=3.0)),
        "bfloat16",
        ["transformers4", "type"],
    ),
    "llama-yarn": (
        LlamaConfig,
        dict(rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=0.5)),
        "float32",
        [],
    ),
    "llama-llama3-gelu": (
        LlamaConfig,
        dict(hidden_act="gelu_pytorch_tanh", rope_parameters=rope("llama3", theta=500000.0, **LLAMA3)),
        "float16",
        ["transformers4"],
    ),
    "llama-tied-head-only": (LlamaConfig, dict(tie_word_embeddings=True), "bfloat16", ["transformers4", "head-only"]),
    "mistral-window": (MistralConfig, dict(sliding_window=7), "bfloat16", ["transformers4"]),
    "mistral-head-dim": (MistralConfig, dict(sliding_window=None, head_dim=16), "bfloat16", []),
    "qwen2-window": (
        Qwen2Config,
        dict(use_sliding_window=True, sliding_window=5, max_window_layers=1, tie_word_embeddings=True,
             rope_parameters=rope(theta=1000000.0)),
        "bfloat16",
        ["transformers4"],
    ),
    "qwen2-yarn": (
        Qwen2Config,
        dict(rope_parameters=rope("yarn", theta=1000000.0, factor=2.0, original_max_position_embeddings=32)),
        "bfloat16",
        ["transformers4", "type"],
    ),
    "qwen3": (Qwen3Config, dict(head_dim=16, tie_word_embeddings=True, rope_parameters=rope(theta=1000000.0)), "float32", []),
    "qwen3-biases-window": (
        Qwen3Config,
        dict(head_dim=12, attention_bias=True, use_sliding_window=True, sliding_window=6, max_window_layers=0,
             layer_types="alternate"),
        "bfloat16",
        [],
    ),
    # 40 tokens are beyond the first 16 positions (long factors), half of a head of 8 turns; and within 64 (short ones).
    "phi3-longrope": (
        Phi3Config,
        dict(original_max_position_embeddings=16,
             rope_parameters=rope("longrope", partial_rotary_factor=0.5, short_factor=[1.1, 1.3], long_factor=[1.5, 3.0])),
        "float32",
        [],
    ),
    "phi3-window": (
        Phi3Config,
        dict(sliding_window=7, original_max_position_embeddings=64, max_position_embeddings=256,
             rope_parameters=rope("longrope", short_factor=[1.1, 1.2, 1.3, 1.4], long_factor=[2.0, 3.0, 4.0, 5.0])),
        "bfloat16",
        ["transformers4", "type"],
    ),
    "olmo2": (Olmo2Config, dict(), "float32", []),
    "olmo2-biases": (Olmo2Config, dict(attention_bias=True, num_key_value_heads=4), "bfloat16", []),
    # A table of rope for each kind of block: one stretched, one not, with other bases.
    "olmo3": (
        Olmo3Config,
        dict(sliding_window=7, layer_types="alternate",
             rope_parameters={"full_attention": rope("yarn", theta=500000.0, factor=2.0, original_max_position_embeddings=32, beta_fast=8.0, beta_slow=0.5),
                              "sliding_attention": rope(theta=10000.0)}),
        "float32",
        [],
    ),
    "smollm3": (SmolLM3Config, dict(no_rope_layer_interval=2, tie_word_embeddings=True), "float32", []),
    "smollm3-window": (
        SmolLM3Config,
        dict(no_rope_layers="alternate", use_sliding_window=True, sliding_window=6, attention_bias=True, mlp_bias=True),
        "bfloat16",
        [],
    ),
    "seed_oss": (SeedOssConfig, dict(head_dim=12), "float32", []),
    "seed_oss-biases": (SeedOssConfig, dict(head_dim=16, attention_out_bias=True, mlp_bias=True), "bfloat16", []),
    "ernie4_5": (Ernie4_5Config, dict(head_dim=12, tie_word_embeddings=True), "float32", []),
    "ernie4_5-biases": (
        Ernie4_5Config,
        dict(head_dim=None, use_bias=True, rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=0.5)),
        "bfloat16",
        ["transformers4"],
    ),
    "starcoder2": (Starcoder2Config, dict(sliding_window=9), "float32", []),
    "starcoder2-no-biases": (Starcoder2Config, dict(use_bias=False, sliding_window=None, tie_word_embeddings=True), "bfloat16", []),
    "qwen3_moe": (
        Qwen3MoeConfig,
        dict(head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True),
        "float32",
        [],
    ),
    # Block 1 has an MLP, and the weights of a row's experts do not sum to 1.
    "qwen3_moe-dense-block": (
        Qwen3MoeConfig,
        dict(num_experts=4, num_experts_per_tok=3, moe_intermediate_size=16, mlp_only_layers=[1], attention_bias=True,
             tie_word_embeddings=True),
        "bfloat16",
        [],
    ),
    "qwen2_moe": (
        Qwen2MoeConfig,
        dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40),
        "float32",
        [],
    ),
    "qwen2_moe-step": (
        Qwen2MoeConfig,
        dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
             decoder_sparse_step=2, norm_topk_prob=True),
        "bfloat16",
        ["transformers4"],
    ),
    "mixtral": (MixtralConfig, dict(num_local_experts=4, num_experts_per_tok=2), "float32", []),
    "mixtral-window": (
        MixtralConfig,
        dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=7, rope_parameters=rope(theta=1000000.0)),
        "bfloat16",
        ["transformers4"],
    ),
    "olmoe": (OlmoeConfig, dict(num_experts=5, num_experts_per_tok=3), "float32", []),
    "olmoe-biases": (
        OlmoeConfig,
        dict(num_experts=4, num_experts_per_tok=4, norm_topk_prob=True, attention_bias=True, num_key_value_heads=4),
        "bfloat16",
        [],
    ),
    "granite": (GraniteConfig, GRANITE, "float32", []),
    "granite-biases": (
        GraniteConfig,
        dict(embedding_multiplier=12, attention_multiplier=0.5, logits_scaling=16, residual_multiplier=0.5, attention_bias=True,
             mlp_bias=True, tie_word_embeddings=True),
        "bfloat16",
        ["transformers4"],
    ),
    "granitemoe": (GraniteMoeConfig, dict(GRANITE, num_local_experts=5, num_experts_per_tok=2), "float32", []),
    "granitemoe-biases": (
        GraniteMoeConfig,
        dict(GRANITE, num_local_experts=3, num_experts_per_tok=3, attention_bias=True, tie_word_embeddings=True),
        "bfloat16",
        ["transformers4"],
    ),
    # Of 40 tokens all but 6 are beyond the length that was trained first, at four temperatures.
    "ministral3": (
        Ministral3Config,
        dict(head_dim=12, rope_parameters=rope("yarn", theta=1000000.0, factor=4.0, original_max_position_embeddings=6, beta_fast=8.0,
                                               beta_slow=0.5, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)),
        "float32",
        [],
    ),
    "ministral3-window": (
        Ministral3Config,
        dict(head_dim=16, sliding_window=9, tie_word_embeddings=True,
             rope_parameters=rope(original_max_position_embeddings=10, max_position_embeddings=64, llama_4_scaling_beta=0.7)),
        "bfloat16",
        [],
    ),
    "glm4": (Glm4Config, dict(head_dim=12, rope_parameters=rope(partial_rotary_factor=0.5)), "float32", []),
    "glm4-no-biases": (
        Glm4Config,
        dict(head_dim=16, attention_bias=False, tie_word_embeddings=True, rope_parameters=rope(theta=500.0, partial_rotary_factor=0.75)),
        "bfloat16",
        [],
    ),
    # Of the two blocks the first has an MLP; two groups of three experts, of which one is kept.
    "glm4_moe": (
        Glm4MoeConfig,
        dict(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=2, n_group=2, topk_group=1,
             routed_scaling_factor=1.7, use_qk_norm=True, attention_bias=True),
        "float32",
        ["further block"],
    ),
    "glm4_moe-plain": (
        Glm4MoeConfig,
        dict(n_routed_experts=5, num_experts_per_tok=3, moe_intermediate_size=16, first_k_dense_replace=0, norm_topk_prob=False,
             head_dim=12, tie_word_embeddings=True, rope_parameters=rope(theta=500.0, partial_rotary_factor=1.0 / 3)),
        "bfloat16",
        ["transformers4"],
    ),
    # Block 0 has an MLP; of two groups of three experts one is kept; scores and rope grow by different mscales.
    "deepseek_v3": (
        DeepseekV3Config,
        dict(LATENT, n_routed_experts=6, n_shared_experts=2, n_group=2, topk_group=1, first_k_dense_replace=1, attention_bias=True,
             num_nextn_predict_layers=1, rope_parameters=rope("yarn", mscale=1.0, mscale_all_dim=0.7, **MSCALE)),
        "float32",
        ["further block"],
    ),
    # Without q_a_proj, and channels that turn are halves.
    "deepseek_v3-halves": (
        DeepseekV3Config,
        dict(LATENT, q_lora_rank=None, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1,
             norm_topk_prob=False, rope_interleave=False, routed_scaling_factor=1.3, qk_rope_head_dim=8, tie_word_embeddings=True),
        "bfloat16",
        [],
    ),
    # As it was published: linears of FP8 with a scale for each block (of 8 x 16 here), those of the block behind the last, too.
    "deepseek_v3-fp8": (
        DeepseekV3Config,
        dict(LATENT, n_routed_experts=4, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1, num_nextn_predict_layers=1),
        "bfloat16",
        ["further block", "fp8"],
    ),
    # As it was published, under the name that Transformers does not know.
    "kimi_k2": (
        DeepseekV3Config,
        dict(LATENT, n_routed_experts=5, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=2.8,
             rope_parameters=rope("yarn", theta=50000.0, mscale=1.0, mscale_all_dim=1.0, **MSCALE)),
        "bfloat16",
        ["transformers4", "type", "kimi"],
    ),
    # As it was published: one group of two counts by its best expert alone.
    "deepseek_v2": (
        DeepseekV2Config,
        dict(LATENT, n_routed_experts=6, n_shared_experts=2, topk_method="group_limited_greedy", n_group=3, topk_group=2,
             first_k_dense_replace=1, routed_scaling_factor=1.6, num_experts_per_tok=3,
             rope_parameters=rope("yarn", mscale=0.7, mscale_all_dim=0.7, **MSCALE)),
        "float32",
        ["transformers4", "type", "deepseek"],
    ),
    "deepseek_v2-lite": (
        DeepseekV2Config,
        dict(LATENT, q_lora_rank=None, n_routed_experts=5, n_shared_experts=1, first_k_dense_replace=0, attention_bias=True),
        "bfloat16",
        [],
    ),
    "glm4_moe_lite": (
        Glm4MoeLiteConfig,
        dict(LATENT, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=3, rms_norm_eps=1e-5, rope_parameters=rope(theta=1000000.0)),
        "float32",
        ["further block"],
    ),
    "glm4_moe_lite-groups": (
        Glm4MoeLiteConfig,
        dict(LATENT, n_routed_experts=6, n_shared_experts=2, n_group=3, topk_group=2, num_experts_per_tok=4, mlp_layer_types=["sparse", "dense"],
             attention_bias=True, tie_word_embeddings=True),
        "bfloat16",
        ["transformers4"],
    ),
    "minimax_m2": (
        MiniMaxM2Config,
        dict(head_dim=12, num_local_experts=4, num_experts_per_tok=3, rope_parameters=rope(partial_rotary_factor=2.0 / 3)),
        "float32",
        [],
    ),
    # As it was published: rotary_dim says how much of a head turns, and keys say what Transformers' class does.
    "minimax_m2-published": (
        MiniMaxM2Config,
        dict(head_dim=16, num_local_experts=5, num_experts_per_tok=3, tie_word_embeddings=True,
             rope_parameters=rope(theta=5000000.0, partial_rotary_factor=0.5)),
        "bfloat16",
        ["transformers4", "rotary_dim"],
    ),
    "cohere": (CohereConfig, dict(logit_scale=0.3), "float32", []),
    "cohere-biases": (
        CohereConfig,
        dict(attention_bias=True, num_key_value_heads=4, tie_word_embeddings=True, logit_scale=0.25),
        "bfloat16",
        ["transformers4"],
    ),
    # Command R+: norms of heads, each with its own gain.
    "cohere-norms": (CohereConfig, dict(logit_scale=0.3, use_qk_norm=True), "bfloat16", []),
    "cohere2": (Cohere2Config, dict(logit_scale=0.7, sliding_window=7, layer_types="alternate"), "float32", []),
    "cohere2-biases": (
        Cohere2Config,
        dict(attention_bias=True, tie_word_embeddings=True, sliding_window=5,
             rope_parameters=rope(theta=50000.0)),
        "bfloat16",
        ["transformers4"],
    ),
    "falcon": (FalconConfig, dict(), "float32", []),
    "falcon-biases": (FalconConfig, dict(bias=True, ffn_hidden_size=48, tie_word_embeddings=True), "bfloat16", ["transformers4"]),
    # Rows of each KV head together: a norm for each of attention and MLP, as 40B has them; one for both, as Falcon2 11B.
    "falcon-40b": (FalconConfig, dict(new_decoder_architecture=True, num_kv_heads=2), "float32", []),
    "falcon-11b": (FalconConfig, dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, bias=True, tie_word_embeddings=False,
                                      rope_parameters=rope(theta=500042.0)), "bfloat16", ["transformers4"]),
    # Rope of full attention is stretched, that of the window is not and has another base.
    "gemma3_text": (
        Gemma3TextConfig,
        dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=7, layer_types="alternate", tie_word_embeddings=True,
             rope_parameters={"full_attention": rope("linear", theta=1000000.0, factor=8.0), "sliding_attention": rope(theta=10000.0)}),
        "float32",
        [],
    ),
    "gemma3_text-biases": (
        Gemma3TextConfig,
        dict(head_dim=16, query_pre_attn_scalar=8, sliding_window=5, layer_types="alternate", attention_bias=True,
             rope_parameters={"full_attention": rope("linear", theta=50000.0, factor=2.5), "sliding_attention": rope(theta=500.0)}),
        "bfloat16",
        ["transformers4"],
    ),
    "qwen3_next": (
        Qwen3NextConfig,
        dict(HYBRID, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=20, rope_parameters=QUARTER),
        "float32",
        ["mtp"],
    ),
    # Block 1 has an MLP, weights of experts do not sum to 1, and layer_types is left to the interval.
    "qwen3_next-interval": (
        Qwen3NextConfig,
        dict(HYBRID, mlp_only_layers=[1], norm_topk_prob=False, num_experts=4, num_experts_per_tok=3,
             moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_conv_kernel_dim=3, rope_parameters=HALF),
        "bfloat16",
        ["transformers4"],
    ),
    "qwen3_5_text": (Qwen3_5TextConfig, dict(HYBRID, rope_parameters={**HALF, **SECTIONS}), "float32", ["mtp"]),
    "qwen3_5_text-biases": (
        Qwen3_5TextConfig,
        dict(HYBRID, attention_bias=True, tie_word_embeddings=True, linear_num_value_heads=2, linear_value_head_dim=24, rope_parameters=QUARTER),
        "bfloat16",
        [],
    ),
    "qwen3_5_moe_text": (
        Qwen3_5MoeTextConfig,
        dict(HYBRID, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=20,
             rope_parameters={**HALF, **SECTIONS}),
        "bfloat16",
        ["mtp"],
    ),
    # Scores and logits go far into both caps.
    "gemma2": (
        Gemma2Config,
        dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=7, tie_word_embeddings=True, attn_logit_softcapping=3.0,
             final_logit_softcapping=20.0),
        "float32",
        [],
    ),
    "gemma2-biases": (
        Gemma2Config,
        dict(head_dim=16, query_pre_attn_scalar=8, sliding_window=5, attention_bias=True, attn_logit_softcapping=None,
             rope_parameters=rope(theta=500.0)),
        "bfloat16",
        ["transformers4"],
    ),
    # Heads of full attention are wider, 3 of their 12 angles turn, and their keys are their values.
    "gemma4_text": (
        Gemma4TextConfig,
        dict(GEMMA4, head_dim=12, global_head_dim=24, num_key_value_heads=4, num_global_key_value_heads=2, attention_k_eq_v=True,
             final_logit_softcapping=15.0, tie_word_embeddings=True),
        "float32",
        [],
    ),
    # As published: the heads of full attention by two keys of their own, of which one says nothing without attention_k_eq_v.
    "gemma4_text-biases": (
        Gemma4TextConfig,
        dict(GEMMA4, head_dim=16, global_head_dim=20, num_global_key_value_heads=1, sliding_window=5, attention_bias=True,
             rope_parameters={"full_attention": rope("proportional", theta=50000.0, partial_rotary_factor=0.5, factor=2.0),
                              "sliding_attention": rope(theta=500.0)}),
        "bfloat16",
        ["global keys"],
    ),
    "gemma4_text-moe": (
        Gemma4TextConfig,
        dict(GEMMA4, head_dim=12, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True, enable_moe_block=True,
             num_experts=5, top_k_experts=3, moe_intermediate_size=24, final_logit_softcapping=30.0, tie_word_embeddings=True),
        "float32",
        [],
    ),
    # E2B's form: the last two blocks read the pages of the first two and have an MLP twice as wide; each block has an embedding.
    "gemma4_text-shared": (
        Gemma4TextConfig,
        dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=7, head_dim=12, global_head_dim=24,
             num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB + 3,
             final_logit_softcapping=30.0, tie_word_embeddings=True),
        "float32",
        [],
    ),
    # Of two blocks with a window the last is shared; and as published, with keys and values that nobody reads.
    "gemma4_text-embedded": (
        Gemma4TextConfig,
        dict(num_hidden_layers=5, layer_types=["full_attention", *["sliding_attention"] * 3, "full_attention"], sliding_window=5, head_dim=16,
             global_head_dim=16, num_kv_shared_layers=2, hidden_size_per_layer_input=6, vocab_size_per_layer_input=VOCAB, attention_bias=True),
        "bfloat16",
        ["unread keys"],
    ),
    # Gates and ups go beyond the clamp at 7, sinks below and above the scores.
    "gpt_oss": (
        GptOssConfig,
        dict(head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=7,
             rope_parameters=rope("yarn", theta=150000.0, factor=4.0, beta_fast=8.0, beta_slow=0.5, truncate=False,
                                  original_max_position_embeddings=16)),
        "float32",
        [],
    ),
    "gpt_oss-transformers4": (
        GptOssConfig,
        dict(head_dim=12, num_local_experts=3, num_experts_per_tok=3, sliding_window=5, attention_bias=False,
             rope_parameters=rope("yarn", theta=1000.0, factor=2.0, truncate=False, original_max_position_embeddings=32)),
        "bfloat16",
        ["transformers4"],
    ),
    # As published: experts of codes and exponents, which Transformers dequantizes where it opens them.
    "gpt_oss-mxfp4": (
        GptOssConfig,
        dict(head_dim=8, num_local_experts=3, num_experts_per_tok=2, sliding_window=6, intermediate_size=64,
             rope_parameters=rope("yarn", theta=5000.0, factor=3.0, truncate=False, original_max_position_embeddings=16)),
        "bfloat16",
        ["mxfp4"],
    ),
    # Block 0 turns and sees its chunk, block 1 does neither; both have experts.
    "llama4_text": (
        Llama4TextConfig,
        dict(LLAMA4, head_dim=16, no_rope_layers="every other", rope_parameters=rope("llama3", theta=500000.0, **LLAMA3)),
        "float32",
        [],
    ),
    # Of six blocks each fourth does not turn and each second has experts; no lengths of heads are taken.
    "llama4_text-step": (
        Llama4TextConfig,
        dict(LLAMA4, num_hidden_layers=6, head_dim=12, interleave_moe_layer_step=2, use_qk_norm=False, attention_bias=True,
             attention_chunk_size=11, num_local_experts=3, num_experts_per_tok=1),
        "bfloat16",
        ["transformers4"],
    ),
    # One layer type beside the turn that it does not follow from, and no temperature.
    "llama4_text-lists": (
        Llama4TextConfig,
        dict(LLAMA4, num_hidden_layers=3, no_rope_layers=[0, 1, 1], moe_layers=[0, 2], attn_temperature_tuning=False,
             layer_types=["chunked_attention", "full_attention", "chunked_attention"]),
        "bfloat16",
        [],
    ),
    "opt": (OPTConfig, dict(ffn_dim=40, word_embed_proj_dim=None, tie_word_embeddings=True), "float32", []),
    "opt-untied": (OPTConfig, dict(ffn_dim=40, word_embed_proj_dim=None), "bfloat16", []),
}


def decoder_sizes(hidden, layers):
    return dict(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=hidden + 8, num_hidden_layers=layers,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
                 bos_token_id=1, eos_token_id=2, pad_token_id=None)


def make_config(name, hidden, layers):
    cls, overrides, dtype, _ = MODELS[name]
    sizes = {**decoder_sizes(hidden, layers), **overrides}
    if cls is OPTConfig:
        for key in ("intermediate_size", "num_key_value_heads"):
            sizes.pop(key)
        # Positions are learned, so that there are none beyond the table's.
        sizes.update(word_embed_proj_dim=hidden, ffn_dim=hidden + 8, pad_token_id=0, max_position_embeddings=max(64, TOKENS))
    if cls is FalconConfig:
        for key in ("intermediate_size", "num_key_value_heads"):
            sizes.pop(key)
    name_layers(sizes, layers)
    if sizes.get("no_rope_layers") == "alternate":
        sizes["no_rope_layers"] = [i % 2 for i in range(layers)]
    if kinds := sizes.get("mlp_layer_types"):
        sizes["mlp_layer_types"] = [kinds[i % len(kinds)] for i in range(layers)]
    if cls is Phi3Config:
        sizes["rope_parameters"] = stretched(sizes["rope_parameters"], hidden // sizes["num_attention_heads"])
    return cls(**sizes)


def stretched(parameters, head_dim):
    """longrope's parameters with a factor for each pair of a rotated head: those listed are for heads of 8, wider ones repeat each."""
    wider = {key: np.repeat(parameters[key], head_dim // 8).tolist() for key in ("short_factor", "long_factor")}
    return {**parameters, **wider}


def shifts_norm(name, config):
    """Whether this norm multiplies by 1 + what is stored."""
    text = config.get_text_config().model_type
    return text in ("gemma2", "gemma3_text") or text.startswith(("qwen3_next", "qwen3_5")) and "linear_attn" not in name


def add_mtp(folder):
    """Tensors that Transformers passes over, as checkpoints have them beside the decoder."""
    shard = folder / "model.safetensors"
    tensors = load_file(shard)
    random = np.random.default_rng(7)
    for name, shape in {"fc.weight": (4, 8), "layers.0.mlp.experts.gate_up_proj": (2, 6, 4), "layers.0.mlp.experts.down_proj": (2, 4, 3),
                        "norm.weight": (4,)}.items():
        tensors["mtp." + name] = torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(torch.bfloat16)
    save_file(tensors, shard, metadata={"format": "pt"})


def fill(model, seed):
    """Every parameter from numpy's generator, in name order, so that a torch version changes nothing."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            shape = tuple(parameter.shape)
            if name.endswith("sinks"):
                values = 3 * random.standard_normal(shape)
            elif name.endswith("bias"):
                values = 0.3 * random.standard_normal(shape)
            elif "norm" in name and shifts_norm(name, model.config):  # 1 + w, of few bits: a fold by powers of two is exact
                values = np.round(64 * 0.2 * random.standard_normal(shape)) / 64
            elif name.endswith("A_log"):
                values = 0.5 * random.standard_normal(shape)
            elif name.endswith("router.scale"):  # so that a row's experts differ by more than roundings
                values = 8 + 2 * random.standard_normal(shape)
            elif "norm" in name or name.endswith("per_expert_scale"):
                values = 1 + 0.2 * random.standard_normal(shape)
            elif "embed_" in name or "lm_head" in name:
                values = random.standard_normal(shape)
            else:
                gain = 6.0 if "gate_up_proj" in name and model.config.model_type == "gpt_oss" else 2.0 if "q_proj" in name or "k_proj" in name else 1.0
                values = gain * random.standard_normal(shape) / np.sqrt(shape[-1])
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith(("put_min", "put_max")):  # what a tower's linears are clipped to
                buffer.fill_(-4.0 if name.endswith("min") else 4.0)
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.from_numpy((0.7 + 0.2 * random.standard_normal(tuple(buffer.shape))).astype(np.float32)))
            if name.endswith("e_score_correction_bias"):  # of the size of the scores' own spread, so that it changes choices
                buffer.copy_(torch.from_numpy((0.3 * random.standard_normal(tuple(buffer.shape))).astype(np.float32)))


def as_transformers_4(path, older_type_key):
    """config.json as Transformers 4 writes it: rope_theta and rope_scaling, torch_dtype, no layer_types."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    if "sliding_attention" in parameters:  # Gemma 3
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = len(config["layer_types"])
        parameters = parameters["full_attention"]
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    config["rope_scaling"] = None if kind == "default" else {("type" if older_type_key else "rope_type"): kind, **parameters}
    config["torch_dtype"] = config.pop("dtype")
    types = config.pop("layer_types", None) or []
    if "linear_attention" in types:
        config["full_attention_interval"] = types.index("full_attention") + 1
    config["transformers_version"] = "4.41.2"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def add_unread_keys(folder):
    """Keys and values of blocks that read another's pages, which Transformers passes over."""
    shard = folder / "model.safetensors"
    tensors = load_file(shard)
    for block, owner in ((3, 2), (4, 0)):
        for part in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
            tensors[f"model.layers.{block}.self_attn.{part}"] = 0.5 * tensors[f"model.layers.{owner}.self_attn.{part}"]
    save_file(tensors, shard, metadata={"format": "pt"})


def name_global_heads(path):
    """The heads of full attention by the keys of Gemma 4's releases."""
    config = json.loads(path.read_text())
    config["global_head_dim"] = next(iter(config.pop("per_layer_config").values()))["head_dim"]
    config.update(num_global_key_value_heads=1, use_bidirectional_attention="vision")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_mxfp4(folder, seed):
    """Random codes and exponents in the place of the experts' matrices, in the layout of gpt-oss's releases."""
    random = np.random.default_rng(seed + 2)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        tensors[name + "_blocks"] = torch.from_numpy(random.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8))
        tensors[name + "_scales"] = torch.from_numpy(random.integers(122, 127, (experts, rows, columns // 32), dtype=np.uint8))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_fp8(folder, block=(8, 16)):
    """Linears as DeepSeek publishes them; a folder beside it has the numbers that they stand for, for Transformers."""
    plain = folder.parent / "plain"
    shutil.copytree(folder, plain)
    tensors = load_file(folder / "model.safetensors")
    numbers = {name: tensor.float() for name, tensor in tensors.items()}
    for name in [name for name in tensors if name.endswith("proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")]:
        weight = numbers[name]
        rows, columns = (-(-size // side) for size, side in zip(weight.shape, block))
        scales = torch.ones(rows, columns)
        codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        for r in range(rows):
            for c in range(columns):
                part = (slice(r * block[0], (r + 1) * block[0]), slice(c * block[1], (c + 1) * block[1]))
                scales[r, c] = weight[part].abs().max() / 448
                codes[part] = (weight[part] / scales[r, c]).to(torch.float8_e4m3fn)
                numbers[name][part] = codes[part].float() * scales[r, c]
        tensors[name], tensors[name + "_scale_inv"] = codes, scales
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(numbers, plain / "model.safetensors", metadata={"format": "pt"})
    rewrite(folder / "config.json", quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                                             weight_block_size=list(block)))
    return plain


def add_further_block(folder, layers):
    """A block behind the last, which predicts a further token: as GLM stores it, and Transformers passes over it."""
    shard = folder / "model.safetensors"
    tensors = load_file(shard)
    last, further = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    for name in [name for name in tensors if name.startswith(last)]:
        tensors[further + name.removeprefix(last)] = tensors[name] * 0.5
    hidden = tensors["model.norm.weight"]
    tensors[further + "eh_proj.weight"] = torch.outer(hidden, torch.cat([hidden, hidden]))
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[further + name + ".weight"] = hidden.clone()
    save_file(tensors, shard, metadata={"format": "pt"})


def rewrite(path, **keys):
    config = json.loads(path.read_text())
    config.update(keys)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def auto_class(name):
    return AutoModelForImageTextToText if name in WRAPPERS else AutoModelForCausalLM


def write_model(name, out, hidden, layers):
    wrapped = name in WRAPPERS
    dtype = WRAPPERS[name][4] if wrapped else MODELS[name][2]
    edits = [] if wrapped else MODELS[name][3]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    config = make_wrapper_config(name, decoder_sizes(hidden, layers)) if wrapped else make_config(name, hidden, layers)
    model = auto_class(name).from_config(config)
    seed = zlib.crc32(name.encode())
    fill(model, seed)
    model = model.to(getattr(torch, dtype))
    if wrapped:
        save_wrapper(name, model, folder / "model")
    else:
        model.save_pretrained(folder / "model")
    (folder / "model" / "generation_config.json").unlink(missing_ok=True)
    if "transformers4" in edits:
        as_transformers_4(folder / "model" / "config.json", "type" in edits)
    if "mtp" in edits:
        add_mtp(folder / "model")
    if "mxfp4" in edits:
        as_mxfp4(folder / "model", seed)
    if "unread keys" in edits:
        add_unread_keys(folder / "model")
    if "global keys" in edits:
        name_global_heads(folder / "model" / "config.json")
    if "deepseek" in edits:  # keys of its releases, which say what Transformers' class does
        rewrite(folder / "model" / "config.json", scoring_func="softmax", moe_layer_freq=1, ep_size=1, aux_loss_alpha=0.001, seq_aux=True)
    if "rotary_dim" in edits:
        path = folder / "model" / "config.json"
        said = json.loads(path.read_text())
        said["rotary_dim"] = int(said.pop("partial_rotary_factor") * said["head_dim"])
        said.update(scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, qk_norm_type="per_layer", shared_intermediate_size=0,
                    attn_type_list=[1] * layers, use_mtp=True, num_mtp_modules=3)
        path.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
    if "further block" in edits:
        add_further_block(folder / "model", layers)
    plain = as_fp8(folder / "model") if "fp8" in edits else None
    if "head-only" in edits:
        shard = folder / "model" / "model.safetensors"
        tensors = load_file(shard)
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
        save_file(tensors, shard, metadata={"format": "pt"})

    loaded = auto_class(name).from_pretrained(plain or folder / "model", dtype=torch.float32, attn_implementation="eager").eval()
    decoder = getattr(loaded, "model", loaded)
    for table in (loaded.get_input_embeddings(), getattr(getattr(decoder, "language_model", decoder), "embed_tokens_per_layer", None)):
        if hasattr(table, "embed_scale"):  # rounded to the type of the weights, which here are loaded as float32
            table.embed_scale.copy_(table.embed_scale.to(getattr(torch, dtype)))
    ids = np.random.default_rng(seed + 1).integers(3, VOCAB, TOKENS, dtype=np.int32)
    with torch.no_grad():
        logits = loaded(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()
    save_numpy({"ids": ids, "logits": np.ascontiguousarray(logits)}, folder / "logits.safetensors")
    if plain:
        shutil.rmtree(plain)
    if wrapped and "parted" in WRAPPERS[name][5]:  # Transformers 5.23 reads stacks of them alone
        part_experts(folder / "model" / "model.safetensors")
    if "kimi" in edits:
        rewrite(folder / "model" / "config.json", model_type="kimi_k2", scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1,
                ep_size=1, seq_aux=True, aux_loss_alpha=0.001, num_nextn_predict_layers=0)
    print(f"{name}: {sum(p.numel() for p in loaded.parameters())} parameters, logits {logits.min():.3f} .. {logits.max():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--only", choices=sorted([*MODELS, *WRAPPERS]))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in [arguments.only] if arguments.only else [*MODELS, *WRAPPERS]:
        write_model(name, arguments.out, arguments.hidden, arguments.layers)


if __name__ == "__main__":
    main()
