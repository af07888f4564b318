"""The trained mixture of experts that the repository carries: its perplexity is Transformers'; AWQ with GPTQ leaves at most three quarters of the divergence
that rounding leaves on held-out stories, at the same bytes; bits by budget leave less than equal bits do; three experts that hardly any token reaches cost at most 5 % against four times the tokens.

    trained_mixture_check.py LLMQ WORK
"""
import json
import os
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer import ROOT, expect, finish, llmq, own_perplexity, perplexity

MODEL = os.path.join(ROOT, "tests", "models", "tinystories-mixture")
STORIES = os.path.join(ROOT, "tests", "fixtures", "stories")
HELD_OUT, CALIBRATION = (os.path.join(STORIES, f"mixture_{name}.txt") for name in ("held_out", "calibration"))
STARVED, SHARE = 3, 0.006  # of the rows that an expert has on average once it is starved


def starved(folder):
    """A copy whose last router gives the first three experts hardly a row: their logits lose what the average row makes of the average row."""
    shutil.copytree(MODEL, folder)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(MODEL).encode(open(CALIBRATION, encoding="utf-8").read())[:32768]
    rows = []
    mlp = model.model.layers[-1].mlp
    mlp.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].reshape(-1, inputs[0].shape[-1])))
    with torch.inference_mode():
        model(torch.tensor(ids).view(-1, 256))
    x = torch.cat(rows)
    along = x.mean(0) / (x.mean(0) @ x.mean(0))
    tensors = load_file(os.path.join(MODEL, "model.safetensors"))
    name = f"model.layers.{len(model.model.layers) - 1}.block_sparse_moe.gate.weight"
    low, high = 0.0, 60.0
    for _ in range(30):
        less = (low + high) / 2
        router = tensors[name].float()
        router[:STARVED] -= less * along
        router = router.to(torch.bfloat16)
        share = ((x @ router.float().T).topk(2, -1).indices < STARVED).float().sum() / len(x) / STARVED
        low, high = (less, high) if share > SHARE else (low, less)
    save_file(tensors | {name: router}, os.path.join(folder, "model.safetensors"), {"format": "pt"})


class Bench:
    def __init__(self, program, work):
        self.program, self.work = program, pathlib.Path(work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def divergence(self, model, method, samples, *more):
        """(KL divergence on held-out stories, bytes, the report)"""
        out = self.work / "out"
        settings = [f"method={method}", "scheme=w4a16_g64_asym", f"calibration.text=[{CALIBRATION}]", f"calibration.samples={samples}",
                    "calibration.sequence_length=256", *more]
        done = llmq(self.program, "quantize", "--model", model, "--output", out, "--overwrite", *(w for s in settings for w in ("--set", s)))
        kl = llmq(self.program, "eval-ppl", out, "--against", model, "--text", HELD_OUT, "--context", 256)["against"]["kl_mean"]
        return kl, done["bytes_out"], json.loads((out / "report.json").read_text())


def main():
    program, work = sys.argv[1:3]
    bench = Bench(program, work)
    peer = perplexity(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval(), MODEL, 2, 256)
    mine = own_perplexity(program, MODEL, 2, "--context", 256, "--compute", "float32")
    expect(abs(mine / peer - 1) <= 5e-5, f"perplexity {mine:.4f}, Transformers {peer:.4f}")
    rounded, bytes_rounded, _ = bench.divergence(MODEL, "rtn", 64)
    best, bytes_best, _ = bench.divergence(MODEL, "[awq, gptq]", 64)
    expect(best <= 0.75 * rounded and bytes_best == bytes_rounded,
           f"AWQ and GPTQ leave KL {best:.5f}, rounding {rounded:.5f} ({1 - best / rounded:.0%} less), {bytes_best} and {bytes_rounded} bytes")
    budgeted, bytes_budgeted, report = bench.divergence(MODEL, "rtn", 64, "target_bits=4.3125", "mixed.bits=[3, 4, 8]")
    expect(budgeted <= 0.9 * rounded and bytes_budgeted <= bytes_rounded,
           f"bits by budget leave KL {budgeted:.5f} ({1 - budgeted / rounded:.0%} less than equal bits), {bytes_budgeted} and {bytes_rounded} bytes")
    of_experts = [(choice["experts"], len(choice["modules"])) for choice in report["mixed"]["choices"] if "experts" in choice]
    expect(of_experts == [(8, 24), (8, 24)], f"choices of experts: {of_experts}")
    folder = bench.work / "starved"
    starved(folder)
    few, _, report = bench.divergence(folder, "[awq, gptq]", 64)
    more, _, _ = bench.divergence(folder, "[awq, gptq]", 256)
    last = report["mixtures"][-1]
    expect(len(last["output_error"]) == 8 and last["output_error"][last["worst_expert"]] == last["output_error_max"] < 0.1,
           f"the worst expert, {last['worst_expert']}, gives {last['output_error_max']:.4f} of its output otherwise, the median one {last['output_error_median']:.4f}")
    expect(last["starved"] == list(range(STARVED)), f"experts {last['starved']} are starved, of {last['tokens']} rows")
    expect(few <= 1.05 * more, f"with starved experts KL {few:.5f}, with four times the tokens {more:.5f} ({few / more - 1:+.1%})")
    finish()


main()
