"""GPTQModel loads llmq's AutoAWQ `gemm` checkpoint: the same dequantized weights to the bit, the same perplexity within 5e-5 in float32.

Called by gptq_check.py, in whose process GPTQModel is: to import it takes longer than this check.
"""
import torch
from safetensors.torch import load_file
from gptqmodel import BACKEND, GPTQModel
from peer import TINYSTORIES, expect, llmq, own_perplexity, perplexity, same_bits


def check(program, work):
    packed, dense = f"{work}/awq", f"{work}/dense"
    llmq(program, "quantize", "--method", "awq", "--model", TINYSTORIES, "--output", packed, "--set", "format=awq", "--set", "scheme=w4a16_g64_asym",
         "--set", "calibration.samples=8", "--set", "calibration.sequence_length=256")
    llmq(program, "convert", packed, dense, "--to", "safetensors", "--dtype", "f32")
    ours = {k: v for k, v in load_file(f"{dense}/model.safetensors").items() if k.endswith("_proj.weight")}

    # The scales are stored as F16; left to itself, GPTQModel rounds them to BF16 on a CPU with BF16 instructions.
    loaded = GPTQModel.load(packed, device="cpu", dtype=torch.float16, backend=BACKEND.AWQ_TORCH if hasattr(BACKEND, "AWQ_TORCH") else BACKEND.TORCH_AWQ)
    order = [0, 4, 1, 5, 2, 6, 3, 7]  # the nibble of a word that holds output 8c + i

    def unpack(words):
        nibbles = torch.stack([(words >> (4 * order[i])) & 15 for i in range(8)], dim=-1)
        return nibbles.reshape(words.shape[0], -1)

    modules = {name: module for name, module in loaded.model.named_modules() if hasattr(module, "qweight")}
    expect(len(modules) == 14, "GPTQModel replaced the 14 linears by its kernel")
    for name, module in modules.items():
        group = module.in_features // module.scales.shape[0]
        codes, zeros = unpack(module.qweight), unpack(module.qzeros).repeat_interleave(group, 0)
        theirs = ((codes - zeros).float() * module.scales.float().repeat_interleave(group, 0)).T.contiguous()
        key = (name if name.startswith("model.") else "model." + name) + ".weight"
        expect(same_bits(theirs, ours[key]), f"{name}: dequantized weights equal to the bit")
        # The kernel itself rounds the product of code and scale to F16; in float32 the module is its codes, zeros and scales.
        module.forward = lambda x, weight=theirs: torch.nn.functional.linear(x, weight)
    mine = own_perplexity(program, packed, 4)
    model = loaded.model.float()
    stored = load_file(f"{packed}/model.safetensors")  # embedding and norms are F32 there, and went through F16 above
    stored["model.embed_tokens.weight"] = stored.pop("lm_head.weight")  # tied
    for key, parameter in model.named_parameters():
        parameter.data.copy_(stored[key])
    peer = perplexity(model, packed, 4, 512)
    expect(abs(mine / peer - 1) <= 5e-5, f"perplexity {mine:.6f}, GPTQModel {peer:.6f}")
