"""Seconds that a Python library quantizes for, loading and saving not counted, on the first tokens of a text.   quantize.py TOOL METHOD MODEL TEXT SAMPLES OUT

TOOL METHOD: llmcompressor gptq|awq|smoothquant, gptqmodel gptq. W4, symmetric (awq: asymmetric), groups of 64; smoothquant is W8A8, alpha 0.5, rounding to nearest.
Samples of 512 tokens follow one another in the text, unshuffled, as llmq's do with calibration.shuffle=false.
"""
import os, sys, time
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", str(os.cpu_count()))
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tool, method, source, text, samples, out = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6]
LENGTH, GROUP = 512, 64
tokenizer = AutoTokenizer.from_pretrained(source)
ids = tokenizer(open(text, encoding="utf-8", errors="ignore").read())["input_ids"]
rows = [{"input_ids": ids[i * LENGTH:(i + 1) * LENGTH], "attention_mask": [1] * LENGTH} for i in range(samples)]

if tool == "gptqmodel":
    from gptqmodel import GPTQModel, QuantizeConfig
    model = GPTQModel.load(source, QuantizeConfig(bits=4, group_size=GROUP, sym=True), device="cpu")
    start = time.time()
    model.quantize(rows, batch_size=1)
else:
    import llmcompressor.pipelines.cache as cache
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    for name in dir(cache):  # it pins host memory, which fails where there is no NVIDIA driver
        if hasattr(getattr(cache, name), "_pin_intermediate"):
            getattr(cache, name)._pin_intermediate = classmethod(lambda cls, value=None: None)
    weights = QuantizationArgs(num_bits=4, type="int", symmetric=method != "awq", strategy="group", group_size=GROUP)
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
    recipe = {"gptq": lambda: [GPTQModifier(config_groups=groups, ignore=["lm_head"])],
              "awq": lambda: [AWQModifier(), QuantizationModifier(config_groups=groups, ignore=["lm_head"])],
              "smoothquant": lambda: [SmoothQuantModifier(smoothing_strength=0.5), QuantizationModifier(scheme="W8A8", targets=["Linear"], ignore=["lm_head"])]}[method]()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    start = time.time()
    oneshot(model=model, recipe=recipe, dataset=Dataset.from_list(rows), max_seq_length=LENGTH, num_calibration_samples=samples)
print(time.time() - start)
