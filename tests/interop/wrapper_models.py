"""Random-weight models of vision-language wrappers, for make_random_models.py: a tiny tower beside a decoder of the usual sizes.

Checkpoints have their names in one of three layouts, and configs in one of two; Transformers reads all of them and saves one. A model here
says which it has: "saved" (what save_pretrained of Transformers 5 writes), "memory" (model.language_model.*, as Transformers holds it), and
"flat" in addition (the decoder's keys beside vision_config, as Qwen2-VL was published). "transposed" and "parted" say how experts lie.
"""
import json

from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, Gemma3Config, Gemma4Config, InternVLConfig, Llama4Config, LlavaConfig, Mistral3Config, Qwen2VLConfig, Qwen2_5_VLConfig, Qwen3VLConfig, Qwen3VLMoeConfig, Qwen3_5Config, Qwen3_5MoeConfig


def sections(kind="default", theta=1000000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, "mrope_section": "of a head", **more}


QWEN2_TOWER = dict(depth=2, embed_dim=8, num_heads=2, patch_size=2, mlp_ratio=2, spatial_merge_size=1)
QWEN25_TOWER = dict(depth=2, hidden_size=8, num_heads=2, intermediate_size=12, patch_size=2, spatial_merge_size=1, window_size=8, fullatt_block_indexes=[0])
QWEN3_TOWER = dict(depth=2, hidden_size=8, num_heads=2, intermediate_size=12, patch_size=2, spatial_merge_size=1, num_position_embeddings=4, deepstack_visual_indexes=[0])
QWEN35_TOWER = dict(depth=2, hidden_size=8, num_heads=2, intermediate_size=12, patch_size=2, spatial_merge_size=1, num_position_embeddings=4)
HYBRID = dict(layer_types="hybrid", head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
              linear_value_head_dim=8, rope_parameters=dict(sections(theta=10000000.0, mrope_interleaved=True), partial_rotary_factor=0.5))
CLIP = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=8,
            patch_size=4, projection_dim=16)
PIXTRAL = dict(model_type="pixtral", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=8,
               patch_size=4, head_dim=8)
SIGLIP = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4)
INTERNVIT = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=[8, 8], patch_size=[4, 4])

GEMMA4_TOWER = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8, patch_size=2,
                    position_embedding_size=16)
GEMMA4_AUDIO = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, subsampling_conv_channels=[4, 2], output_proj_dims=12)
GEMMA4 = dict(layer_types="alternate", hidden_size_per_layer_input=0, pad_token_id=0)

LLAMA4 = dict(head_dim=16, no_rope_layers="every other", attention_chunk_size=7, floor_scale=5, attn_scale=0.7, intermediate_size_mlp=128,
              num_local_experts=4, num_experts_per_tok=2)
LLAMA4_TOWER = dict(hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vision_output_dim=24, image_size=8, patch_size=2,
                    projector_input_dim=24, projector_output_dim=24)

# name: (config class, keys of the decoder, of the tower, of the wrapper, stored dtype, layouts)
WRAPPERS = {
    "qwen2_vl": (Qwen2VLConfig, dict(rope_parameters=sections()), QWEN2_TOWER, {}, "float32", ["saved"]),
    # As published: one object, the type "mrope", and a window from block 1 on.
    "qwen2_vl-flat": (
        Qwen2VLConfig,
        dict(rope_parameters=sections(), use_sliding_window=True, sliding_window=7, max_window_layers=1),
        QWEN2_TOWER, dict(tie_word_embeddings=True), "bfloat16", ["saved", "flat"],
    ),
    # Sections and a stretched rope at once, as Qwen2.5-VL's card has it for long videos.
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        dict(rope_parameters=sections("yarn", factor=4.0, original_max_position_embeddings=16)),
        QWEN25_TOWER, {}, "float32", ["memory"],
    ),
    "qwen2_5_vl-flat": (Qwen2_5_VLConfig, dict(rope_parameters=sections()), QWEN25_TOWER, {}, "bfloat16", ["saved", "flat"]),
    "qwen3_vl": (
        Qwen3VLConfig, dict(head_dim=16, rope_parameters=sections(theta=5000000.0, mrope_interleaved=True)),
        QWEN3_TOWER, dict(tie_word_embeddings=True), "float32", ["saved"],
    ),
    "qwen3_vl-biases": (
        Qwen3VLConfig, dict(head_dim=24, attention_bias=True, rope_parameters=sections(theta=5000000.0, mrope_interleaved=True)),
        QWEN3_TOWER, {}, "bfloat16", ["saved"],
    ),
    "qwen3_5": (Qwen3_5Config, HYBRID, QWEN35_TOWER, {}, "float32", ["saved"]),
    "qwen3_5_moe": (
        Qwen3_5MoeConfig,
        dict(HYBRID, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24),
        QWEN35_TOWER, {}, "bfloat16", ["memory"],
    ),
    # Experts are stacked, of the first each transposed, as published; block 1 of the second has an MLP.
    "qwen3_vl_moe": (
        Qwen3VLMoeConfig,
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
             rope_parameters=sections(theta=5000000.0, mrope_interleaved=True)),
        QWEN3_TOWER, {}, "float32", ["saved", "transposed"],
    ),
    "qwen3_vl_moe-dense-block": (
        Qwen3VLMoeConfig,
        dict(head_dim=24, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=16, mlp_only_layers=[1], attention_bias=True,
             rope_parameters=sections(theta=5000000.0, mrope_interleaved=True)),
        QWEN3_TOWER, dict(tie_word_embeddings=True), "bfloat16", ["saved"],
    ),
    # The class ties, the decoder's config says that it does not, and there is no head.
    "mistral3": (Mistral3Config, dict(model_type="mistral", sliding_window=None), PIXTRAL, {}, "float32", ["saved"]),
    "mistral3-head": (
        Mistral3Config, dict(model_type="mistral", head_dim=12, sliding_window=9), PIXTRAL, dict(tie_word_embeddings=False), "bfloat16",
        ["memory"],
    ),
    # As Ministral 3 is published.
    "mistral3-ministral": (
        Mistral3Config,
        dict(model_type="ministral3", head_dim=12, sliding_window=None,
             rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=4.0, beta_fast=8.0, beta_slow=0.5, mscale=1.0, mscale_all_dim=1.0,
                                  llama_4_scaling_beta=0.4, original_max_position_embeddings=6)),
        PIXTRAL, dict(tie_word_embeddings=False), "float32", ["saved"],
    ),
    "llava": (LlavaConfig, dict(model_type="llama"), CLIP, {}, "float32", ["saved"]),
    "llava-qwen2": (LlavaConfig, dict(model_type="qwen2"), CLIP, {}, "bfloat16", ["memory"]),
    "gemma3": (
        Gemma3Config,
        dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=7, layer_types="alternate",
             rope_parameters={"full_attention": dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                              "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}),
        SIGLIP, dict(mm_tokens_per_image=4, boi_token_index=90, eoi_token_index=91, image_token_index=92), "float32", ["saved"],
    ),
    "gemma3-memory": (
        Gemma3Config,
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=5, layer_types="alternate"),
        SIGLIP, dict(mm_tokens_per_image=4, boi_token_index=90, eoi_token_index=91, image_token_index=92), "bfloat16", ["memory"],
    ),
    "gemma4": (
        Gemma4Config,
        dict(GEMMA4, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, sliding_window=7, attention_k_eq_v=True, final_logit_softcapping=30.0),
        dict(GEMMA4_TOWER, use_clipped_linears=True, standardize=True), {}, "bfloat16", ["saved"],
    ),
    # Experts and a tower for sound.
    "gemma4-audio": (
        Gemma4Config,
        dict(GEMMA4, head_dim=16, global_head_dim=32, sliding_window=5, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=64),
        GEMMA4_TOWER, dict(audio_config=GEMMA4_AUDIO), "float32", ["saved"],
    ),
    # E2B's form, around which both towers stand.
    "gemma4-embedded": (
        Gemma4Config,
        dict(num_hidden_layers=4, layer_types="alternate", pad_token_id=0, head_dim=16, global_head_dim=32, sliding_window=5, num_kv_shared_layers=2,
             use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=97),
        GEMMA4_TOWER, dict(audio_config=GEMMA4_AUDIO), "bfloat16", ["saved"],
    ),
    # As published: the decoder is a model of its own, language_model.
    "llama4": (Llama4Config, LLAMA4, LLAMA4_TOWER, {}, "float32", ["saved"]),
    # Experts lie alone, as quantizers write them; block 1 has an MLP.
    "llama4-parted": (Llama4Config, dict(LLAMA4, moe_layers=[0], num_experts_per_tok=1), LLAMA4_TOWER, {}, "bfloat16", ["saved", "parted"]),
    "internvl": (InternVLConfig, dict(model_type="qwen2"), INTERNVIT, {}, "float32", ["saved"]),
    "internvl-qwen3": (
        InternVLConfig, dict(model_type="qwen3", head_dim=16), INTERNVIT, dict(tie_word_embeddings=False), "bfloat16", ["saved"],
    ),
}


def name_layers(sizes, layers):
    """For "alternate" or "hybrid" the types of so many blocks: every other one has full attention. Or every other one does not turn."""
    if sizes.get("no_rope_layers") == "every other":
        sizes["no_rope_layers"] = [1 - i % 2 for i in range(layers)]
    other = {"alternate": "sliding_attention", "hybrid": "linear_attention"}.get(str(sizes.get("layer_types")))
    if other:
        sizes["layer_types"] = ["full_attention" if i % 2 else other for i in range(layers)]


def make_wrapper_config(name, sizes):
    """`sizes`: of the decoder."""
    cls, own, tower, around, _, _ = WRAPPERS[name]
    text = {**sizes, **own}
    text.pop("tie_word_embeddings")
    name_layers(text, text["num_hidden_layers"])
    rope = text.get("rope_parameters", {})
    if "mrope_section" in rope:
        angles = int(text.get("head_dim", text["hidden_size"] // text["num_attention_heads"]) * rope.get("partial_rotary_factor", 1)) // 2
        few = angles // 4
        text["rope_parameters"] = {**rope, "mrope_section": [angles - few - few - few // 2, few, few + few // 2]}
    vision = dict(tower)
    if cls is Qwen2VLConfig:
        vision["hidden_size"] = text["hidden_size"]
    elif cls in (Qwen2_5_VLConfig, Qwen3VLConfig, Qwen3VLMoeConfig, Qwen3_5Config, Qwen3_5MoeConfig):
        vision["out_hidden_size"] = text["hidden_size"]
    return cls(text_config=text, vision_config=vision, **around)


def part_experts(shard):
    """Stacks of matrices, each transposed, as linears of their own."""
    tensors = load_file(shard)
    for name in [name for name in tensors if name.endswith("experts.gate_up_proj")]:
        below = name.removesuffix("gate_up_proj")
        gates, ups = tensors.pop(name).transpose(1, 2).chunk(2, 1)
        for kind, stack in (("gate", gates), ("up", ups), ("down", tensors.pop(below + "down_proj").transpose(1, 2))):
            for expert, matrix in enumerate(stack):
                tensors[f"{below}{expert}.{kind}_proj.weight"] = matrix.contiguous()
    save_file(tensors, shard, metadata={"format": "pt"})


def save_wrapper(name, model, folder):
    layouts = WRAPPERS[name][5]
    model.save_pretrained(folder)
    if "memory" in layouts:
        tied = model.config.tie_word_embeddings
        tensors = {key: value.contiguous() for key, value in model.state_dict().items() if not (tied and key == "lm_head.weight")}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if "transposed" in layouts:
        tensors = load_file(folder / "model.safetensors")
        tensors.update({key: value.transpose(1, 2).contiguous() for key, value in tensors.items() if ".mlp.experts." in key})
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if "flat" in layouts:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        text = config.pop("text_config")
        for key in ("model_type", "dtype", "layer_types"):
            text.pop(key, None)
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope.pop("rope_theta")
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.41.2"
        path.write_text(json.dumps({**config, **text}, indent=2, sort_keys=True) + "\n")
