"""Vision-language checkpoints: a decoder in each wrapper, random weights, a tiny tower. Text has Transformers' perplexity (5e-5), before and
after; the tower and the processors' files are the source's to the byte; what llmq wrote loads in Transformers with the tower as it was.
A tower that is rounded on request loads with the numbers that llmq wrote, and loaders find each of its linears.
Of a mixture of experts Transformers reads stacks alone: what is compared with it is a dense output that is stacked again.

    wrappers_check.py LLMQ WORK [MODEL ...]
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest.mock

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText
from transformers.models.siglip.modeling_siglip import SiglipPreTrainedModel

from make_random_models import fill
from peer import TINYSTORIES, calibration, expect, finish, llmq, own_perplexity, perplexity, same_bits
from wrapper_models import WRAPPERS, make_wrapper_config, save_wrapper

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json", "chat_template.jinja")
SAMPLES = calibration(4, 128)
SIZES = dict(vocab_size=2048, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
             max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
# One linear of the decoder stays dense, so that loaders have to find its name as well; another scheme names all of them.
DENSE = 'ignore=[lm_head, "re:.*layers.1.mlp.down_proj"]'
CASES = {
    "rtn": ["method=rtn", "scheme=w4a16_g32_sym", DENSE],
    "mixed": ["method=rtn", "scheme=w4a16_g32_sym", DENSE, 'overrides=[{match: "re:.*o_proj", scheme: w8a16_g32_sym}]'],
    "awq,gptq": ["method=[awq, gptq]", "scheme=w4a16_g32_sym", *SAMPLES],
}
# The same of a mixture, whose other method is GPTQ.
ROUTED = 'ignore=[lm_head, "re:.*layers.1.self_attn.o_proj"]'
ROUTED_CASES = {
    "rtn": ["method=rtn", "scheme=w4a16_g32_sym", ROUTED],
    "dense": ["method=rtn", "scheme=w4a16_g32_sym", ROUTED, "format=safetensors"],
    "gptq": ["method=gptq", "scheme=w4a16_g32_sym", *SAMPLES],
}
# Of a mixture, where a block has its router and its experts.
EXPERTS = {"qwen3_vl_moe": ("mlp.gate", "mlp.experts"), "gemma4-audio": ("router.proj", "experts"), "llama4": ("feed_forward.router", "feed_forward.experts")}
TOWER = re.compile(r"(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|embed_vision|audio_tower|embed_audio)\.")


def write_source(name, work):
    config = make_wrapper_config(name, SIZES)
    model = AutoModelForImageTextToText.from_config(config)
    fill(model, 11)
    with torch.no_grad():  # whose tokens are about as likely as one another, so that a perplexity says something of all of them
        for key, parameter in model.named_parameters():
            if "embed_tokens" in key or "lm_head" in key:
                parameter.mul_(0.2)
    folder = pathlib.Path(work) / name
    save_wrapper(name, model, folder)
    for file in TOKENIZER:
        shutil.copy(os.path.join(TINYSTORIES, file), folder)
    for file in PROCESSORS:
        (folder / file).write_text('{"of": "%s %s"}\n' % (name, file))
    return str(folder)


def tower_of(tensors):
    return {key: value for key, value in tensors.items() if TOWER.match(key)}


def check_text(program, what, folder):
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    peer, mine = perplexity(model, folder, 1, 512), own_perplexity(program, folder, 1)
    expect(abs(mine / peer - 1) <= 5e-5, f"{what}: perplexity {mine:.6f}, Transformers {peer:.6f}")
    return model


def quantize(program, source, output, *settings):
    llmq(program, "quantize", "--model", source, "--output", output, *[a for s in settings for a in ("--set", s)])
    expect(llmq(program, "verify", output)["ok"], f"{os.path.basename(output)}: the output is what its manifest says")


def check_copied(what, source, output):
    before, after = (tower_of(load_file(f"{folder}/model.safetensors")) for folder in (source, output))
    expect(len(before) > 10 and before.keys() == after.keys() and all(same_bits(after[key], value) for key, value in before.items()),
           f"{what}: {len(before)} tensors outside the decoder are the source's")
    for file in PROCESSORS:
        with open(f"{source}/{file}", "rb") as a, open(f"{output}/{file}", "rb") as b:
            expect(a.read() == b.read(), f"{what}: {file} is the source's")


def unpacked_tower(model):
    """The tower's tensors once the model has run: packed linears have a weight then, and scales beside it."""
    return {key: value for key, value in tower_of(model.state_dict()).items() if not key.endswith((".weight_scale", ".weight_shape"))}


def differing(found, wanted):
    wrong = sorted(found.keys() ^ wanted.keys()) + [key for key in found.keys() & wanted.keys() if not torch.equal(found[key], wanted[key])]
    return f": not {', '.join(wrong[:4])}" if wrong else ""


def check_rounded_tower(program, name, source, wanted):
    output, dense = f"{source}-vision", f"{source}-vision-dense"
    # Of Gemma 4 the tower has layers with linears of these names.
    left = DENSE.replace(".*layers", ".*language_model.*layers") if name == "gemma4" else DENSE
    quantize(program, source, output, "method=rtn", "scheme=w4a16_g32_sym", left, "vision=w8a16")
    llmq(program, "convert", output, dense, "--to", "safetensors", "--dtype", "f32")
    # Transformers 5.23 asks each linear of a SigLIP tower for a dense weight, to initialize what it then leaves alone: llmq warns of it.
    with unittest.mock.patch.object(SiglipPreTrainedModel, "_init_weights", lambda self, module: None):
        found = unpacked_tower(check_text(program, f"{name}, vision", output))
    ours = tower_of(AutoModelForImageTextToText.from_pretrained(dense, dtype=torch.float32).state_dict())
    expect(found.keys() == ours.keys() == wanted.keys() and all(torch.equal(found[key], value) for key, value in ours.items()),
           f"{name}, vision: Transformers has the tower that was written, {len(found)} tensors{differing(found, ours)}")
    packed = {key[:-len(".weight_packed")] for key in tower_of(load_file(f"{output}/model.safetensors")) if key.endswith(".weight_packed")}
    changed = {key for key, value in wanted.items() if not torch.equal(ours[key], value)}
    in_blocks = {key for key, value in wanted.items() if value.ndim == 2 and re.search(r"\.(blocks|layers|layer)\.\d+\.", key)}
    expect(0 < len(changed) and changed <= in_blocks and len(packed) == len(in_blocks), f"{name}, vision: {len(packed)} linears of its blocks are rounded, and nothing else")
    far = max(((ours[key] - wanted[key]).abs().amax(1) / wanted[key].abs().amax(1)).max().item() for key in changed)
    expect(far <= 1.02 / 254 + 2 ** -8, f"{name}, vision: no weight moved by more than {far:.5f} of its channel's largest")
    asked = json.load(open(f"{output}/config.json"))["quantization_config"]

    def fits(rules, full):
        return any(re.match(rule[3:], full) if rule.startswith("re:") else rule == full for rule in rules)
    eight = [g["targets"] for g in asked["config_groups"].values() if g["weights"]["num_bits"] == 8]
    matrices = {key[:-len(".weight")] for key, value in wanted.items() if value.ndim == 2 and key.endswith(".weight")}
    for by, names in (("vLLM", {name.removeprefix("model.") for name in packed}), ("Transformers", {key[:-len(".weight")] for key in in_blocks})):
        wrong = [n for n in names if not fits(eight[0], n) or fits(asked["ignore"], n)]
        expect(len(eight) == 1 and not wrong, f"{name}, vision: {by} finds the scheme of {len(names)} linears{': not of ' + ', '.join(wrong) if wrong else ''}")
    left = [n for n in matrices - {key[:-len(".weight")] for key in in_blocks} if not fits(asked["ignore"], n)]
    expect(not left, f"{name}, vision: what lies beside the blocks is in ignore{': not ' + ', '.join(left) if left else ''}")
    for form, why in (("gptq", "GPTQ"), ("awq", "awq")):
        refused = subprocess.run([program, "quantize", "--method", "rtn", "--model", source, "--output", f"{source}-refused", "--set", f"format={form}",
                                  "--set", "scheme=w4a16_g32_" + ("sym" if form == "gptq" else "asym"), "--vision", "w8a16"], capture_output=True, text=True)
        expect(refused.returncode == 2 and "tower" in refused.stderr and why in refused.stderr, f"{name}, {form}: refused by name: {refused.stderr.strip()}")


def check_wrapper(program, name, work):
    source = write_source(name, work)
    wanted = tower_of(check_text(program, name, source).state_dict())
    for case, settings in CASES.items():
        output = f"{source}-{case.replace(',', '-')}"
        quantize(program, source, output, *settings)
        check_copied(f"{name}, {case}", source, output)
        found = tower_of(check_text(program, f"{name}, {case}", output).state_dict())
        expect(found.keys() == wanted.keys() and all(same_bits(found[key], value) for key, value in wanted.items()),
               f"{name}, {case}: Transformers has the tower of the source, {len(found)} tensors")
    check_rounded_tower(program, name, source, wanted)
    for form, scheme in (("gptq", "w4a16_g32_sym"), ("awq", "w4a16_g32_asym")):
        output = f"{source}-{form}"
        quantize(program, source, output, "method=rtn", f"scheme={scheme}", f"format={form}", DENSE)
        check_copied(f"{name}, {form}", source, output)
        check_names(name, form, output)
        own_perplexity(program, output, 1)
    if name.startswith(("gemma4", "llama4", "mistral3")):  # of which the decoder is written (gguf_check.py, tests/unit/export)
        return
    refused = subprocess.run([program, "quantize", "--method", "rtn", "--model", source, "--output", f"{source}.gguf", "--set", "format=gguf"],
                             capture_output=True, text=True)
    expect(refused.returncode == 2 and f"a {json.load(open(source + '/config.json'))['model_type']} is not written as GGUF" in refused.stderr,
           f"{name}: a GGUF is refused by name: {refused.stderr.strip()}")


def stack_experts(folder, experts):
    """A copy with each block's experts in two tensors, as Transformers holds them."""
    other = f"{folder}-stacked"
    shutil.copytree(folder, other)
    tensors = load_file(f"{other}/model.safetensors")
    for prefix in sorted({name.split(f".{experts}.")[0] + f".{experts}" for name in tensors if f".{experts}.0." in name}):
        count = sum(name.startswith(f"{prefix}.") and name.endswith(".up_proj.weight") for name in tensors)

        def take(linear):
            return [tensors.pop(f"{prefix}.{e}.{linear}_proj.weight") for e in range(count)]
        tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(take("gate"), take("up"))])
        tensors[f"{prefix}.down_proj"] = torch.stack(take("down"))
        if "feed_forward" in experts:  # Llama 4 has the transpose of each
            for name in (f"{prefix}.gate_up_proj", f"{prefix}.down_proj"):
                tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, f"{other}/model.safetensors", metadata={"format": "pt"})
    return other


def check_routed_wrapper(program, name, work):
    source = write_source(name, work)
    wanted = tower_of(check_text(program, name, source).state_dict())
    ppl = {}
    for case, settings in ROUTED_CASES.items():
        output = f"{source}-{case}"
        quantize(program, source, output, *settings)
        check_copied(f"{name}, {case}", source, output)
        ppl[case] = own_perplexity(program, output, 1)
    expect(ppl["rtn"] == ppl["dense"], f"{name}: packed and dense have one perplexity: {ppl['rtn']!r}, {ppl['dense']!r}")
    router, experts = EXPERTS[name]
    stacked = stack_experts(f"{source}-dense", experts)
    found = tower_of(check_text(program, f"{name}, dense and stacked again", stacked).state_dict())
    expect(found.keys() == wanted.keys() and all(same_bits(found[key], value) for key, value in wanted.items()),
           f"{name}: Transformers has the tower of the source, {len(found)} tensors")
    for form, scheme in (("gptq", "w4a16_g32_sym"), ("awq", "w4a16_g32_asym")):
        output = f"{source}-as-{form}"
        quantize(program, source, output, "method=rtn", f"scheme={scheme}", f"format={form}", ROUTED)
        check_copied(f"{name}, {form}", source, output)
        check_names(name, form, output, ["layers.1.self_attn.o_proj", f"layers.0.{router}"],
                    ["layers.0.self_attn.o_proj", f"layers.1.{experts}.3.up_proj", f"layers.1.{experts}.0.gate_proj"])


def check_names(name, form, output, left=("layers.1.mlp.down_proj",), packed=("layers.0.mlp.down_proj", "layers.1.mlp.up_proj")):
    """The rules of vLLM (auto_gptq: re.match of `dynamic`; auto_awq: substrings) and of Transformers (quantizers_utils), on the names both have."""
    asked = json.load(open(f"{output}/config.json"))["quantization_config"]
    own = name.startswith("llama4")  # has one name of a linear for all
    root = "visual" if WRAPPERS[name][0].__name__.startswith("Qwen") else "vision_model.model" if own else "vision_tower"

    def is_left(full, by):
        if form == "gptq":
            return any(re.match(rule[2:], full) for rule in asked["dynamic"] if rule.startswith("-:"))
        names = asked["modules_to_not_convert"]
        if by == "vLLM":
            return any(key in full for key in names)
        return any(re.match(rf"(?:{key})(?:(?<=\.)|(?=\.|$))", full) or full.endswith(key) for key in names)

    for by, decoder, above in (("vLLM", "language_model.model.", ""), ("Transformers", "language_model.model." if own else "model.language_model.", "" if own else "model.")):
        wrong = [n for n in (decoder + n for n in left) if not is_left(n, by)]
        wrong += [n for n in (decoder + n for n in packed) if is_left(n, by)]
        wrong += [n for n in [f"{above}{root}.layers.0.mlp.fc1"] if not is_left(n, by)]
        expect(not wrong, f"{name}, {form}: {by} leaves dense what is, and nothing else{': not ' + ', '.join(wrong) if wrong else ''}")


def main():
    program, work = sys.argv[1:3]
    for name in sys.argv[3:] or ("qwen2_vl-flat", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "mistral3", "llava", "internvl-qwen3", "gemma3-memory", "gemma4", "gemma4-audio", "llama4"):
        (check_routed_wrapper if name in EXPERTS else check_wrapper)(program, name, work)
    finish()


main()
