"""What NVIDIA's own package exports is read to the bit, and what llmq writes so is read as it was meant.   nvidia_modelopt.py LLMQ

nvidia-modelopt 0.47.0 quantizes the tiny model, exports it, and dequantizes it again; llmq converts the directory to dense FP32. llama.cpp's converter reads what
llmq writes. Needs an environment "modelopt" beside the other peers with nvidia-modelopt==0.47.0, torch, transformers and gguf; without it the script says so and
leaves with 77. Two minutes.
"""
import copy, json, os, pathlib, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from peer import TINYSTORIES, expect, finish, llmq, run_in  # noqa: E402

run_in("modelopt", ["modelopt", "torch", "transformers", "gguf"], "nvidia-modelopt==0.47.0 with torch, transformers and gguf")
import shutil, subprocess, torch  # noqa: E402
from gguf import GGUFReader, dequantize  # noqa: E402
import modelopt.torch.quantization as mtq  # noqa: E402
from modelopt.torch.export import export_hf_checkpoint  # noqa: E402
from modelopt.torch.quantization.qtensor import NVFP4QTensor  # noqa: E402
from modelopt.torch.quantization.utils.core_utils import update_quant_cfg_with_kv_cache_quant  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

program = os.path.abspath(sys.argv[1])
work = tempfile.mkdtemp(prefix="llmq-modelopt-")
converter = os.environ.get("LLMQ_LLAMA_CPP", os.path.expanduser("~/.cache/llmq-peers/src/lcpp/vendor/llama.cpp")) + "/convert_hf_to_gguf.py"  # left out where it is not
PARTS = {"ffn_down": "mlp.down_proj", "ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
ids = torch.randint(3, 2000, (8, 64), generator=torch.Generator().manual_seed(1))
CONFIGS = {"NVFP4": (mtq.NVFP4_DEFAULT_CFG, "nvfp4"), "W4A16_NVFP4": (mtq.W4A16_NVFP4_CFG, "nvfp4a16"), "FP8": (mtq.FP8_DEFAULT_CFG, "fp8_static"),
           "FP8_PER_CHANNEL_PER_TOKEN": (mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG, "fp8"), "fp8_pb_wo": (mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG, "fp8_block"),
           "FP8 with a KV cache": (update_quant_cfg_with_kv_cache_quant(copy.deepcopy(mtq.FP8_DEFAULT_CFG), mtq.FP8_KV_CFG["quant_cfg"]), "fp8_static")}


def widened(tensors, name):
    """The weight as the package means it, in FP32."""
    codes, scale = tensors[name], tensors[name + "_scale"]
    if codes.dtype == torch.uint8:
        shape = (codes.shape[0], codes.shape[1] * 2)
        return NVFP4QTensor(shape, torch.float32, codes).dequantize(torch.float32, scale=scale, double_scale=tensors[name + "_scale_2"], block_sizes={-1: 16})
    if scale.dim() == 4: scale = scale[:, 0, :, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)[:codes.shape[0], :codes.shape[1]]
    if scale.dim() == 1: scale = scale[:, None]
    return codes.float() * scale


def same(directory, title, linears=14):
    packed = load_file(f"{directory}/model.safetensors")
    llmq(program, "convert", directory, f"{directory}-f32", "--to", "safetensors")
    dense = load_file(f"{directory}-f32/model.safetensors")
    names = [name for name in packed if name.endswith(".weight") and name + "_scale" in packed]
    wrong = [name for name in names if not torch.equal(widened(packed, name), dense[name])]  # -0 is 0 to the package
    expect(len(names) == linears and not wrong, f"{title}: {linears} linears equal{': not ' + ', '.join(wrong[:3]) if wrong else ''}")
    return packed


for title, (config, scheme) in CONFIGS.items():
    directory = f"{work}/{title.replace(' ', '-')}"
    model = AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.bfloat16)
    export_hf_checkpoint(mtq.quantize(model, copy.deepcopy(config), lambda m: m(ids)), export_dir=directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(f"{TINYSTORIES}/{name}"): shutil.copy(f"{TINYSTORIES}/{name}", directory)
    packed = same(directory, title)
    found = llmq(program, "inspect", directory)
    expect((found["format"], found["scheme"]) == ("modelopt", scheme), f"{title}: inspect says {found['format']}, {found['scheme']}")
    own = json.load(open(f"{directory}/config.json"))
    said = own.pop("quantization_config")
    if "KV" in title:
        expect(any(name.endswith("k_proj.k_scale") for name in packed) and "kv_cache_scheme" in said, f"{title}: it has scales of keys")
    ppl = llmq(program, "eval-ppl", directory, "--max-windows", 2)["ppl"]
    json.dump(own, open(f"{directory}/config.json", "w"))  # the older file alone
    expect(llmq(program, "eval-ppl", directory, "--max-windows", 2)["ppl"] == ppl, f"{title}: perplexity {ppl:.4f}, by hf_quant_config.json alone as well")

for scheme in ("nvfp4", "nvfp4a16", "fp8_static", "fp8"):  # k and v have 64 rows, less than a block
    directory = f"{work}/ours-{scheme}"
    llmq(program, "quantize", "--model", TINYSTORIES, "--output", directory, "--method", "rtn", "--set", f"scheme={scheme}", "--set", "format=modelopt",
         "--set", "calibration.samples=8", "--set", "calibration.sequence_length=128")
    packed = same(directory, f"written {scheme}")
    for suffix in {"nvfp4": ("weight_scale_2", "input_scale"), "nvfp4a16": ("weight_scale_2",)}.get(scheme, ()):
        factors = {packed[f"model.layers.0.self_attn.{part}_proj.{suffix}"].item() for part in "qkv"}
        expect(len(factors) == 1 and all(torch.frexp(torch.tensor(f))[0] == 0.5 for f in factors), f"written {scheme}: q, k and v share a power of two as {suffix}")
    if not os.path.exists(converter): continue
    subprocess.run([sys.executable, converter, directory, "--outfile", f"{directory}.gguf", "--outtype", "f32"], check=True, capture_output=True)
    theirs, ours, wrong = {t.name: t for t in GGUFReader(f"{directory}.gguf").tensors}, load_file(f"{directory}-f32/model.safetensors"), []
    for block, (part, module) in ((block, names) for block in (0, 1) for names in PARTS.items()):
        tensor, scale = theirs[f"blk.{block}.{part}.weight"], theirs.get(f"blk.{block}.{part}.scale")
        values = dequantize(tensor.data, tensor.tensor_type) * (1 if scale is None else scale.data.reshape(-1)[0])
        if not torch.equal(torch.from_numpy(values).float(), ours[f"model.layers.{block}.{module}.weight"]): wrong.append(f"{block}.{part}")
    expect(not wrong, f"written {scheme}: llama.cpp's converter makes the same weights of it{': not ' + ', '.join(wrong) if wrong else ''}")
shutil.rmtree(work)
finish()
