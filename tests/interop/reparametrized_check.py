"""A trained model written as models of other families that compute the same: its perplexity stays to 6 digits, and its linears round to the same codes.

    reparametrized_check.py LLMQ WORK [MODEL]

MODEL is a Llama with a tied head (SmolLM2-135M; left out, the model that the repository carries). Its forms: q, k, v and gate, up fused (Phi-3); every
multiplier of Granite a power of two; the decoder of a LLaVA; an MLP parted into four experts of which each row has all, with a router of zeros and output
matrices times four, whose weights of 1/4 are exact: an expert's matrices apart (Mixtral), stacked beside a shared expert of zeros (Qwen2-MoE), and
stacked with Granite's multipliers (GraniteMoe); stacked as transposes beside a shared expert of zeros, where the sigmoid of 0 halves what experts read
(Llama 4). Gemma's and Qwen3-Next's norms of 1 + w are none of them: their blocks normalize what mixers give, or heads, and no weight undoes that.
"""
import json
import os
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity

EXPERTS = 4
SAMPLES = calibration(8, 256)
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
DROPPED = ("architectures", "model_type", "transformers_version", "pretraining_tp", "mlp_bias")
MLP = ("gate_proj", "up_proj", "down_proj")


class Source:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.tensors = load_file(self.folder / "model.safetensors")
        head = self.tensors.pop("lm_head.weight", None)
        self.tensors.setdefault("model.embed_tokens.weight", head)
        self.linears = [n.removesuffix(".weight") for n in self.tensors if n.endswith("_proj.weight")]

    def keys(self, model_type, **more):
        return {**{k: v for k, v in self.config.items() if k not in DROPPED}, "model_type": model_type, **more}


class Form:
    """config, tensors, and where each linear of the source lies: [(module, rows, columns, factor)]"""

    def __init__(self, config):
        self.config, self.tensors, self.parts = config, {}, {}


def plain(source, config, renamed=lambda name: name):
    form = Form(config)
    form.tensors = {renamed(n): t for n, t in source.tensors.items()}
    form.parts = {n: [(renamed(n), slice(None), slice(None), 1)] for n in source.linears}
    return form


def fused(source):
    form = plain(source, source.keys("phi3", pad_token_id=source.config.get("pad_token_id") or 0,
                                     original_max_position_embeddings=source.config["max_position_embeddings"]))
    for layer in range(source.config["num_hidden_layers"]):
        for whole, names in ((f"model.layers.{layer}.self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                             (f"model.layers.{layer}.mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))):
            modules = [f"model.layers.{layer}.{n}" for n in names]
            rows = [form.tensors.pop(m + ".weight") for m in modules]
            form.tensors[whole + ".weight"] = torch.cat(rows)
            at = 0
            for module, part in zip(modules, rows):
                form.parts[module] = [(whole, slice(at, at + len(part)), slice(None), 1)]
                at += len(part)
    return form


def granite_keys(source, model_type):
    head = source.config.get("head_dim") or source.config["hidden_size"] // source.config["num_attention_heads"]
    return source.keys(model_type, embedding_multiplier=2.0, residual_multiplier=0.5, attention_multiplier=head ** -0.5 / 4, logits_scaling=0.5)


def with_multipliers(source, form):
    """The head reads the halved embedding, so logits_scaling is 1/2; queries are times 4; outputs times 2."""
    for name, tensor in form.tensors.items():
        factor = 0.5 if "embed_tokens" in name else 4 if "q_proj" in name else 2 if "o_proj" in name or "output_linear" in name or "down_proj" in name else 1
        form.tensors[name] = tensor * factor
    for module, parts in form.parts.items():
        factor = 4 if "q_proj" in module else 2 if "o_proj" in module or "down_proj" in module else 1
        form.parts[module] = [(m, r, c, f * factor) for m, r, c, f in parts]
    return form


def in_llava(source):
    text = source.keys("llama", architectures=["LlamaForCausalLM"])
    tower = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    form = plain(source, {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": text, "vision_config": tower,
                          "image_token_index": 5, "tie_word_embeddings": True}, lambda n: n.replace("model.", "model.language_model.", 1))
    form.tensors["model.vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.ones(16, 3, 14, 14)
    form.tensors["model.multi_modal_projector.linear_1.weight"] = torch.ones(source.config["hidden_size"], 16)
    return form


def parted(source, config, router, experts, names, stacked):
    """The MLP as experts below a block: `names` of gate, up and output, or of gate with up and of output where they are stacked."""
    form = plain(source, config)
    width = source.config["intermediate_size"] // EXPERTS
    for layer in range(source.config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        gate, up, down = (form.tensors.pop(f"{block}mlp.{n}.weight") for n in MLP)
        form.tensors[f"{block}{router}.weight"] = torch.zeros(EXPERTS, gate.shape[1], dtype=gate.dtype)
        for n in MLP:
            form.parts[f"{block}mlp.{n}"] = []
        cut = [slice(e * width, (e + 1) * width) for e in range(EXPERTS)]
        if stacked:
            form.tensors[f"{block}{names[0]}"] = torch.stack([torch.cat([gate[c], up[c]]) for c in cut])
            form.tensors[f"{block}{names[1]}"] = torch.stack([down[:, c] * EXPERTS for c in cut])
        for e, c in enumerate(cut):
            module = [f"{block}{experts}.{e}.{n}" for n in (MLP if stacked else names)]
            if not stacked:
                form.tensors.update({module[0] + ".weight": gate[c], module[1] + ".weight": up[c], module[2] + ".weight": down[:, c] * EXPERTS})
            for n, m, factor in zip(MLP, module, (1, 1, EXPERTS)):
                form.parts[f"{block}mlp.{n}"].append((m, slice(None), slice(None), factor))
    return form


def mixtral(source):
    width = source.config["intermediate_size"] // EXPERTS
    config = source.keys("mixtral", num_local_experts=EXPERTS, num_experts_per_tok=EXPERTS, sliding_window=None, intermediate_size=width)
    return parted(source, config, "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2"), False)


def qwen2_moe(source):
    width = source.config["intermediate_size"] // EXPERTS
    form = parted(source, source.keys("qwen2_moe", num_experts=EXPERTS, num_experts_per_tok=EXPERTS, norm_topk_prob=False, moe_intermediate_size=width,
                                      shared_expert_intermediate_size=32, decoder_sparse_step=1, mlp_only_layers=[], qkv_bias=False),
                  "mlp.gate", "mlp.experts", ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), True)
    hidden = source.config["hidden_size"]
    for layer in range(source.config["num_hidden_layers"]):
        shared = f"model.layers.{layer}.mlp.shared_expert"
        one = form.tensors["model.norm.weight"].dtype
        form.tensors |= {f"{shared}.gate_proj.weight": torch.zeros(32, hidden, dtype=one), f"{shared}.up_proj.weight": torch.zeros(32, hidden, dtype=one),
                         f"{shared}.down_proj.weight": torch.zeros(hidden, 32, dtype=one), f"{shared}_gate.weight": torch.zeros(1, hidden, dtype=one)}
    return form


def granitemoe(source):
    width = source.config["intermediate_size"] // EXPERTS
    form = parted(source, granite_keys(source, "granitemoe") | {"num_local_experts": EXPERTS, "num_experts_per_tok": EXPERTS, "intermediate_size": width},
                  "block_sparse_moe.router.layer", "block_sparse_moe.experts",
                  ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"), True)
    return with_multipliers(source, form)


def llama4(source):
    """Stacks of transposes. A row's experts have all of it, halved by the sigmoid of 0, so gate and up are doubled; a rope of neighbours."""
    layers, heads = source.config["num_hidden_layers"], source.config["num_attention_heads"]
    width, dim = source.config["intermediate_size"] // EXPERTS, source.config.get("head_dim") or source.config["hidden_size"] // heads
    config = source.keys("llama4_text", num_local_experts=EXPERTS, num_experts_per_tok=EXPERTS, interleave_moe_layer_step=1, intermediate_size=width,
                         intermediate_size_mlp=source.config["intermediate_size"], head_dim=dim, use_qk_norm=False, no_rope_layers=[1] * layers,
                         attention_chunk_size=source.config["max_position_embeddings"], attn_temperature_tuning=False)
    stacks = ("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj")
    form = parted(source, config, "feed_forward.router", "feed_forward.experts", stacks, True)
    for layer in range(layers):
        block = f"model.layers.{layer}."
        for stack, factor in zip(stacks, (2, 1 / EXPERTS)):
            form.tensors[block + stack] = (form.tensors[block + stack] * factor).transpose(1, 2)
        for n, factor in zip(MLP, (2, 2, 1)):
            form.parts[f"{block}mlp.{n}"] = [(m, r, c, factor) for m, r, c, _ in form.parts[f"{block}mlp.{n}"]]
        for n in ("q_proj", "k_proj"):
            rows = form.tensors[f"{block}self_attn.{n}.weight"]
            place = torch.arange(len(rows)).view(-1, 2, dim // 2).transpose(1, 2).reshape(-1)
            form.tensors[f"{block}self_attn.{n}.weight"] = rows[place]
            form.parts[f"{block}self_attn.{n}"] = [(f"{block}self_attn.{n}", place.argsort(), slice(None), 1)]
        one, hidden = form.tensors["model.norm.weight"].dtype, source.config["hidden_size"]
        for n, shape in zip(MLP, ((width, hidden), (width, hidden), (hidden, width))):
            form.tensors[f"{block}feed_forward.shared_expert.{n}.weight"] = torch.zeros(shape, dtype=one)
    return form


FORMS = {
    "phi3": fused,
    "granite": lambda s: with_multipliers(s, plain(s, granite_keys(s, "granite"))),
    "llava": in_llava,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "granitemoe": granitemoe,
    "llama4": llama4,
}
CALIBRATED = ("phi3", "granite", "llava")  # whose linears see the same rows


def write(source, form, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({n: t.contiguous() for n, t in form.tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(form.config, indent=1))
    for file in FILES:
        if (source.folder / file).exists():
            shutil.copy(source.folder / file, folder)


def quantized(program, model, out, method):
    shutil.rmtree(out, ignore_errors=True)
    settings = [f"method={method}", "scheme=w4a16_g32_sym"] + (SAMPLES if method != "rtn" else [])
    llmq(program, "quantize", "--model", model, "--output", out, *(w for s in settings for w in ("--set", s)))
    tensors = {}
    for file in sorted(pathlib.Path(out).glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def codes_differ(source, form, mine, its):
    """The linears of the source whose codes or scales are others in the form"""
    wrong = []
    for module, parts in form.parts.items():
        along = 1 if module.endswith("down_proj") and len(parts) > 1 else 0
        packed = torch.cat([its[m + ".weight_packed"][r, c] for m, r, c, _ in parts], along)
        scale = torch.cat([its[m + ".weight_scale"][r, c] / f for m, r, c, f in parts], along)
        if not (torch.equal(packed, mine[module + ".weight_packed"]) and torch.equal(scale, mine[module + ".weight_scale"])):
            wrong.append(module)
    return wrong


def main():
    program, work = sys.argv[1], pathlib.Path(sys.argv[2])
    source = Source(sys.argv[3] if len(sys.argv) > 3 else TINYSTORIES)
    plain_folder = work / "llama"
    write(source, plain(source, source.config), plain_folder)
    windows = (4, "--compute", "float32")
    want = own_perplexity(program, plain_folder, *windows)
    rounded = {m: quantized(program, plain_folder, work / "llama-q", m) for m in ("rtn", "gptq")}
    for name, make in FORMS.items():
        form, folder = make(source), work / name
        write(source, form, folder)
        got = own_perplexity(program, folder, *windows)
        expect(abs(got / want - 1) < 5e-7, f"{name}: perplexity {got:.7g}, as {want:.7g} to 6 digits")
        for method in ("rtn", "gptq") if name in CALIBRATED else ("rtn",):
            wrong = codes_differ(source, form, rounded[method], quantized(program, folder, work / f"{name}-q", method))
            expect(not wrong, f"{name}: {method} gives all {len(form.parts)} linears the codes and scales that they have in the original"
                   + (f", but {len(wrong)}: {', '.join(wrong[:5])}" if wrong else ""))
    finish()


main()
