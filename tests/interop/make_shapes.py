#!/usr/bin/env python3
"""Writes tests/fixtures/shapes/: config and every tensor's name, type and shape of models that people download most.   make_shapes.py

The configurations are the published ones, written down here (Gemma 4's as other projects repeat it); names and shapes are those of the model that Transformers makes of them (on the `meta`
device, nothing is allocated), put back into the layout of the published files where Transformers keeps experts stacked. A name stands once with {N} where
N layers or experts have one each, and with {A,B,...} where those have. Needs torch and transformers (tests/interop).
"""
import json
import math
import re
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

OUT = Path(__file__).resolve().parents[1] / "fixtures/shapes"

QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936}

MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32000}

QWEN3_VL_2B = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000,
        "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936},
    "tie_word_embeddings": True, "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024, "in_channels": 3,
        "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl", "num_heads": 16, "num_position_embeddings": 2304,
        "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
    "vision_end_token_id": 151653, "vision_start_token_id": 151652}


GLM_47_FLASH = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "dtype": "bfloat16",
    "eos_token_id": [154820, 154827, 154829], "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240,
    "kv_lora_rank": 512, "max_position_embeddings": 202752, "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 20, "num_experts_per_tok": 4,
    "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "pad_token_id": 154820, "partial_rotary_factor": 1.0,
    "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
    "routed_scaling_factor": 1.8, "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880}


QWEN36 = {
    "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": 248044, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "initializer_range": 0.02, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False, "output_gate_type": "swish", "pad_token_id": None, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
                        "rope_type": "default"},
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 248320}


def qwen36(model_type, architecture, layers, **text):
    types = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    return {
        "architectures": [architecture], "image_token_id": 248056, "language_model_only": False, "model_type": model_type,
        "text_config": {**QWEN36, **text, "layer_types": types, "model_type": model_type + "_text", "num_hidden_layers": layers},
        "tie_word_embeddings": False, "video_token_id": 248057,
        "vision_config": {
            "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3,
            "initializer_range": 0.02, "intermediate_size": 4304, "model_type": model_type, "num_heads": 16, "num_position_embeddings": 2304,
            "out_hidden_size": text["hidden_size"], "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
        "vision_end_token_id": 248054, "vision_start_token_id": 248053}


QWEN36_27B = qwen36("qwen3_5", "Qwen3_5ForConditionalGeneration", 64, hidden_size=5120, intermediate_size=17408, linear_num_value_heads=48,
                    num_attention_heads=24, num_key_value_heads=4)
QWEN36_35B_A3B = qwen36("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", 40, hidden_size=2048, linear_num_value_heads=32, num_attention_heads=16,
                        num_key_value_heads=2, moe_intermediate_size=512, num_experts=256, num_experts_per_tok=8, router_aux_loss_coef=0.001,
                        shared_expert_intermediate_size=512)


GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
                            "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False, "use_cache": True,
    "vocab_size": 201088}
# 25.2 billion parameters of the decoder come out.
GEMMA4_26B_A4B = {
    "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None, "audio_token_id": 258881, "boa_token_id": 256000, "boi_token_id": 255999,
    "dtype": "bfloat16", "eoa_token_id": 258883, "eoa_token_index": 258883, "eoi_token_id": 258882, "eos_token_id": [1, 106], "image_token_id": 258880,
    "initializer_range": 0.02, "model_type": "gemma4",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": True,
        "eos_token_id": 1, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2816, "hidden_size_per_layer_input": 0, "initializer_range": 0.02, "intermediate_size": 2112,
        "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(30)], "max_position_embeddings": 262144,
        "model_type": "gemma4_text", "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2,
        "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 1024, "tie_word_embeddings": True, "top_k_experts": 8, "use_bidirectional_attention": "vision", "use_cache": True,
        "use_double_wide_mlp": False, "vocab_size": 262144, "vocab_size_per_layer_input": 262144},
    "tie_word_embeddings": True, "video_token_id": 258884,
    "vision_config": {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 72, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
        "initializer_range": 0.02, "intermediate_size": 4304, "max_position_embeddings": 131072, "model_type": "gemma4_vision", "num_attention_heads": 16,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240,
        "rms_norm_eps": 1e-06, "standardize": True, "use_clipped_linears": False},
    "vision_soft_tokens_per_image": 280}


LLAMA_4_SCOUT = {
    "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092,
    "model_type": "llama4",
    "text_config": {
        "attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0, "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008],
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760, "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
        "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16, "output_router_logits": False,
        "pad_token_id": 200018, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "torch_dtype": "bfloat16", "use_cache": True,
        "use_qk_norm": True, "vocab_size": 202048},
    "torch_dtype": "bfloat16",
    "vision_config": {
        "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 1408, "image_size": 336, "initializer_range": 0.02, "intermediate_size": 5632,
        "model_type": "llama4_vision_model", "multi_modal_projector_bias": False, "norm_eps": 1e-05, "num_attention_heads": 16, "num_channels": 3,
        "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_dropout": 0.0, "projector_input_dim": 4096,
        "projector_output_dim": 4096, "rope_theta": 10000, "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        "vision_output_dim": 4096}}


def with_mtp(tensors, hidden):
    """The tensors that predict a further token: a block of full attention, and what is before and behind it. Transformers passes over them."""
    block = "model.language_model.layers.3."
    return tensors + [("mtp." + n.removeprefix("model.language_model.").replace("layers.3.", "layers.0."), s) for n, s in tensors if n.startswith(block)] + [
        ("mtp.fc.weight", [hidden, 2 * hidden]), *((f"mtp.{n}.weight", [hidden]) for n in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"))]


def with_further_block(tensors, config):
    """The block behind the last, which predicts a further token, and what is before and behind it."""
    hidden, vocabulary, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    last, further = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    return tensors + [(further + n.removeprefix(last), s) for n, s in tensors if n.startswith(last)] + [
        (further + "eh_proj.weight", [hidden, 2 * hidden]), *((f"{further}{n}.weight", [hidden]) for n in ("enorm", "hnorm", "shared_head.norm")),
        *((f"{further}{n}.weight", [vocabulary, hidden]) for n in ("embed_tokens", "shared_head.head"))]


def experts_apart(gate, up, down):
    """From the stacked experts of Transformers to a tensor for each matrix of each expert."""
    def part(name, shape):
        prefix = name[:name.rfind("experts.") + len("experts.")]
        if name.endswith("experts.gate_up_proj"):
            return [(f"{prefix}{e}.{which}.weight", [shape[1] // 2, shape[2]]) for e in range(shape[0]) for which in (gate, up)]
        if name.endswith("experts.down_proj"):
            return [(f"{prefix}{e}.{down}.weight", list(shape[1:])) for e in range(shape[0])]
        return [(name, list(shape))]
    return part


def mixtral(name, shape):
    return [(n.replace(".mlp.", ".block_sparse_moe."), s) for n, s in experts_apart("w1", "w3", "w2")(name, shape)]


def mxfp4(name, shape):
    """Experts as codes and exponents, which have a type of their own."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return [(name, list(shape))]
    experts, columns, rows = shape
    return [(name + "_blocks", [experts, rows, columns // 32, 16], "U8"), (name + "_scales", [experts, rows, columns // 32], "U8")]


MODELS = {
    "qwen3-30b-a3b": (QWEN3_30B_A3B, AutoModelForCausalLM, experts_apart("gate_proj", "up_proj", "down_proj")),
    "mixtral-8x7b": (MIXTRAL_8X7B, AutoModelForCausalLM, mixtral),
    "glm-4.7-flash": (GLM_47_FLASH, AutoModelForCausalLM, experts_apart("gate_proj", "up_proj", "down_proj")),
    "qwen3-vl-2b": (QWEN3_VL_2B, AutoModelForImageTextToText, lambda name, shape: [(name, list(shape))]),
    "gemma-4-26b-a4b": (GEMMA4_26B_A4B, AutoModelForImageTextToText, lambda name, shape: [(name, list(shape))]),
    "qwen3.6-27b": (QWEN36_27B, AutoModelForImageTextToText, lambda name, shape: [(name, list(shape))]),
    "qwen3.6-35b-a3b": (QWEN36_35B_A3B, AutoModelForImageTextToText, lambda name, shape: [(name, list(shape))]),
    "llama-4-scout": (LLAMA_4_SCOUT, AutoModelForImageTextToText, lambda name, shape: [(name, list(shape))]),
    "gpt-oss-20b": (GPT_OSS_20B, AutoModelForCausalLM, mxfp4),
}


def collapsed(tensors):
    """{name with {N} or {A,B,...}: [type, shape]}"""
    seen = {}
    for name, shape, *of_its_own in tensors:
        numbers = tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.)", name))
        seen.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "{}", name), tuple(shape), *of_its_own), []).append(numbers)
    result = {}
    for (pattern, shape, *of_its_own), numbers in seen.items():
        places = [sorted({n[i] for n in numbers}) for i in range(len(numbers[0]))]
        if math.prod(map(len, places)) != len(numbers):
            raise SystemExit(f"{pattern}: {len(numbers)} of {places}")
        words = ["{%d}" % len(p) if p == list(range(len(p))) else str(p[0]) if len(p) == 1 else "{%s}" % ",".join(map(str, p)) for p in places]
        result[pattern.format(*words)] = [of_its_own[0] if of_its_own else "BF16", list(shape)]
    return result


def main():
    for name, (config, loader, layout) in MODELS.items():
        read = AutoConfig.for_model(**config)
        with torch.device("meta"):
            model = loader.from_config(read, dtype=torch.bfloat16)
        tied = set(getattr(model, "all_tied_weights_keys", None) or ())
        tensors = [part for n, t in model.state_dict().items() if n not in tied for part in layout(n, t.shape)]
        if "mtp_num_hidden_layers" in config.get("text_config", {}):
            tensors = with_mtp(tensors, config["text_config"]["hidden_size"])
        if config.get("num_nextn_predict_layers"):
            tensors = with_further_block(tensors, config)
        lines = [f"    {json.dumps(n)}: {json.dumps(value)}" for n, value in collapsed(tensors).items()]
        text = json.dumps(config, indent=1)
        (OUT / f"{name}.json").write_text('{\n"config": %s,\n"tensors": {\n%s\n}\n}\n' % (text, ",\n".join(lines)))
        print(name, len(tensors))


main()
