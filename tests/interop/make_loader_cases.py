#!/usr/bin/env python3
"""Asks vLLM itself which checkpoints it loads, without a GPU, and writes its answers for tests/unit/export/loader_cases_test.cpp.

make_loader_cases.py [--wheels DIR] [--out FILE] [--check]        with an interpreter that has torch, transformers and pydantic (peers: transformers)

The Python files of the pinned wheel (downloaded to DIR, by default ~/.cache/llmq-vllm; 340 MB, nothing of it enters the repository) decide what is loaded before any
kernel runs: the config is read, a scheme is chosen, a kernel says whether it can. Those files run here as they are, in front of stubs for everything else of vLLM and
for the device: an NVIDIA GPU of compute capability 8.0 or 9.0. compressed-tensors and Humming's kernels are those that the wheel pins, and Humming's own checks of
shapes and groups run, too. What only a kernel knows (whether its arithmetic is right) nobody asks here. --check compares the file with what would be written, and writes
nothing.
"""
import argparse, ast, contextlib, glob, importlib.abc, importlib.machinery, importlib.util, io, json, os, re, subprocess, sys, tempfile, types, zipfile

VERSION = "0.33.0"
LAYERS, KERNELS = "vllm.model_executor.layers.quantization", "vllm.model_executor.kernels.linear"
# The modules that run as they are; every other one of vLLM is a stub.
REAL = {"vllm.scalar_type", "vllm.distributed.utils", f"{KERNELS}", f"{KERNELS}.mixed_precision", f"{KERNELS}.scaled_mm.humming", f"{KERNELS}.scaled_mm.ScaledMMLinearKernel",
        *(f"{KERNELS}.mixed_precision.{name}" for name in ("MPLinearKernel", "conch", "cutlass", "exllama", "humming", "machete", "marlin", "triton_w4a16")),
        f"{LAYERS}.utils.humming.linear", f"{LAYERS}.utils.humming.priority", "humming.dtypes", "humming.config.enum", "humming.schema.base", "humming.schema.humming", "humming.utils.math",
        f"{LAYERS}.auto_awq", f"{LAYERS}.auto_gptq", f"{LAYERS}.base_config",
        *(f"{LAYERS}.utils.{name}" for name in ("gptq_utils", "marlin_utils", "machete_utils", "config_utils", "fp8_utils")),
        f"{LAYERS}.compressed_tensors.compressed_tensors", f"{LAYERS}.compressed_tensors.utils", f"{LAYERS}.compressed_tensors.schemes",
        *(f"{LAYERS}.compressed_tensors.schemes.compressed_tensors_{name}" for name in ("scheme", "wNa16", "w8a8_int8", "w8a8_fp8", "w8a16_fp8", "w4a8_int", "wNa8"))}
GPUS = {"8.0": 80, "9.0": 90}
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


class StubType(type):
    """A class for any name: a base, a decorator, a decorator with arguments, a module's attribute, a type in an annotation."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = StubType(name, (), {})
        setattr(cls, name, made)
        return made

    def __call__(cls, *arguments, **named):
        if len(arguments) == 1 and not named and callable(arguments[0]) and not isinstance(arguments[0], StubType):
            return arguments[0]
        return cls

    def __or__(cls, other): return cls
    def __ror__(cls, other): return cls
    def __getitem__(cls, item): return cls
    def __bool__(cls): return False
    def __iter__(cls): return iter(())


class StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = StubType(name, (), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root, given):
        self.root, self.given = root, given

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ("vllm", "humming"):
            return None
        file = os.path.join(self.root, *name.split("."))
        if name in REAL:
            package = os.path.isdir(file)
            source = os.path.join(file, "__init__.py") if package else file + ".py"
            return importlib.util.spec_from_file_location(name, source, submodule_search_locations=[file] if package else None)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = StubModule(spec.name)
        module.__path__ = []
        for key, value in self.given.get(spec.name, {}).items():
            setattr(module, key, value)
        return module

    def exec_module(self, module):
        pass


class Gpu:
    """What vLLM asks of an NVIDIA GPU."""
    capability = 80

    def get_device_capability(self, *_):
        class Capability(tuple):
            def to_int(self): return self[0] * 10 + self[1]
        return Capability(divmod(self.capability, 10))

    def is_cuda(self): return True
    def is_cuda_alike(self): return True
    def is_device_capability(self, capability, *_): return self.capability == capability
    def has_device_capability(self, capability, *_): return self.capability >= capability
    def __getattr__(self, name):
        if name.startswith("is_"):
            return lambda *_, **__: False
        raise AttributeError(name)


class Settings:
    """vllm.envs where nobody sets anything."""
    VLLM_DISABLED_KERNELS = ()

    def __getattr__(self, name): return None


def linears(torch):
    """The classes of vllm.model_executor.layers.linear and .parameter, as far as it takes to say which tensors a linear expects."""
    class LinearBase(torch.nn.Module):
        has_bias = False

    class Parameter(torch.nn.Parameter):
        def __new__(cls, data, **dimensions):
            made = torch.Tensor._make_subclass(cls, data, False)
            made.__dict__.update({key: value for key, value in dimensions.items() if key in ("input_dim", "output_dim", "packed_dim", "packed_factor")})
            return made

    names = ("BasevLLMParameter", "BlockQuantScaleParameter", "ChannelQuantScaleParameter", "GroupQuantScaleParameter", "ModelWeightParameter", "PackedColumnParameter",
             "PackedvLLMParameter", "PerTensorScaleParameter")
    return ({"LinearBase": LinearBase, "Linear": type("Linear", (LinearBase,), {}), "LinearMethodBase": type("LinearMethodBase", (), {}),
             "UnquantizedLinearMethod": type("UnquantizedLinearMethod", (), {})}, {name: type(name, (Parameter,), {}) for name in names})


def replace_parameter(layer, name, value):
    delattr(layer, name)
    layer.register_parameter(name, value)


def nesting_of(source):
    """Humming's own rule for groups, taken out of its tuner: (group size, width of a tile) -> reasons against it."""
    function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "_get_tile_rejection_reasons")
    scope = {}
    exec("from __future__ import annotations\n" + ast.unparse(function), scope)

    def reasons(group, width):
        layer = types.SimpleNamespace(input_scale_group_size=0, weight_scale_group_size=group, shape_n=256, shape_k=1024)
        schedule = types.SimpleNamespace(block_shape=(64, 128, width), warp_shape=(64, 32, width), multi_cast_size_a=0, use_stream_k=False)
        return scope[function.name](types.SimpleNamespace(layer_config=layer, use_batch_invariant=False), schedule)
    return reasons


def download(wheels, requirement):
    name, version = requirement.split("==")
    found = glob.glob(os.path.join(wheels, f"{name.replace('-', '_')}-{version}-*.whl"))
    if not found:
        os.makedirs(wheels, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", wheels, requirement], check=True)
        found = glob.glob(os.path.join(wheels, f"{name.replace('-', '_')}-{version}-*.whl"))
    return found[0]


# What the compiled kernel behind AutoAWQLinearMethod says to what it does not take; the program's table has these three.
AWQ_KERNEL = (b"Group size should be a multiple of 32", b"OC is not multiple of cta_N = 64", b"OC is not multiple of Group size")


def unpack(wheels, into):
    """The Python files of the wheels; what the wheel of vLLM requires of others is the version it pins."""
    with zipfile.ZipFile(download(wheels, f"vllm=={VERSION}")) as wheel:
        library = wheel.read("vllm/_C_stable_libtorch.abi3.so")
        assert all(sentence in library for sentence in AWQ_KERNEL)
        metadata = wheel.read(f"vllm-{VERSION}.dist-info/METADATA").decode()
        for name in wheel.namelist():
            if name[:-3].replace("/", ".").removesuffix(".__init__") in REAL:
                wheel.extract(name, into)
    pinned = {name: version for name, version in re.findall(r"^Requires-Dist: ([\w-]+)(?:\[\w+\])?==(\S+?)(?:;.*)?$", metadata, re.M)}
    for required in ("compressed-tensors", "humming-kernels"):
        with zipfile.ZipFile(download(wheels, f"{required}=={pinned[required]}")) as wheel:
            wheel.extractall(into)
    return pinned


class InputsAsTheyAre:
    """Humming's schema of inputs that are not rounded."""
    a_dtype = static_tensor_scale_name = None

    def convert_humming(self, **_): return self, {}


# How vLLM, compressed-tensors and Humming begin to refuse.
REFUSALS = ("Unsupported quantization config", "GPTQ group activation ordering", "Compressed-tensors group/dynamic activation ordering", "Marlin does not support",
            "No compressed-tensors compatible scheme", "Weight output_partition_size", "Humming:", "weight shape mismatched", "zero_point shape mismatched")


class Vllm:
    def __init__(self, root, pinned):
        import torch
        self.torch, self.gpu = torch, Gpu()
        torch.cuda.device = lambda *_: contextlib.nullcontext()  # tensors have shapes here and no values
        classes, parameters = linears(torch)
        self.linear, self.nesting = classes["Linear"], nesting_of(open(os.path.join(root, "humming", "tune", "candidate.py")).read())
        replacing = {"replace_parameter": replace_parameter}
        humming = {"HummingInputSchema": InputsAsTheyAre, "BaseInputSchema": InputsAsTheyAre, "prepare_and_transform_humming_tensors": self.check_humming}
        chosen = StubType("chosen", (), {})
        given = {"vllm": {"envs": Settings()}, "vllm.platforms": {"current_platform": self.gpu},
                 "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
                 "vllm.distributed": {"get_tensor_model_parallel_world_size": lambda: 1, "get_tensor_model_parallel_rank": lambda: 0},
                 "vllm.utils.import_utils": {"has_humming": lambda: True}, "vllm.utils.humming": humming, "vllm.model_executor.parameter": parameters,
                 "vllm.model_executor.utils": replacing, f"{LAYERS}.utils": replacing,
                 "vllm.utils.collection_utils": {"is_list_of": lambda value, kind: isinstance(value, list) and all(isinstance(v, kind) for v in value)},
                 "vllm.utils.math_utils": {"round_up": lambda value, to: -(-value // to) * to},
                 "vllm.model_executor.layers.linear": classes,
                 "vllm.model_executor.layers.fused_moe": {"RoutedExperts": type("RoutedExperts", (), {})},
                 "vllm.model_executor.layers.attention": {"Attention": type("Attention", (), {})},
                 "vllm.model_executor.layers.vocab_parallel_embedding": {"ParallelLMHead": type("ParallelLMHead", (), {}), "VocabParallelEmbedding": type("VocabParallelEmbedding", (), {})},
                 f"{LAYERS}.compressed_tensors.transform.linear": {"get_linear_transform_schemes": lambda *_: ({}, {})}}
        sys.path.insert(0, root)
        sys.meta_path.insert(0, Finder(root, given))
        sys.modules["vllm.envs"] = given["vllm"]["envs"]
        from importlib import import_module
        import_module("humming.dtypes")
        schema = import_module("humming.schema.humming")
        schema.HummingWeightSchema.convert_symmetric_integer_weight = lambda self, tensors: (self, tensors)  # a step that looks at values
        humming["BaseWeightSchema"] = import_module("humming.schema.base").BaseWeightSchema
        sys.modules["humming.schema"].WEIGHT_SCHEMA_MAP = {"humming": schema.HummingWeightSchema}
        layers = import_module(f"{LAYERS}.utils.humming.linear")
        sys.modules[f"{LAYERS}.utils.humming"].__dict__.update({name: value for name, value in vars(layers).items() if "humming" in name})
        sys.modules["vllm.utils.humming"] = types.SimpleNamespace(**humming, create_humming_locks=lambda *_: None)
        self.kernels = import_module(KERNELS)
        self.gptq = import_module(f"{LAYERS}.auto_gptq")
        self.gptq_utils = import_module(f"{LAYERS}.utils.gptq_utils")
        self.awq = import_module(f"{LAYERS}.auto_awq")
        self.marlin = import_module(f"{LAYERS}.utils.marlin_utils")
        self.compressed = import_module(f"{LAYERS}.compressed_tensors.compressed_tensors")
        self.gpu._enum = self.kernels.PlatformEnum.CUDA
        # Nobody set --linear-backend, nor its environment variables.
        self.kernels._get_linear_backend = lambda **_: "auto"
        self.kernels.prioritize_humming = import_module(f"{LAYERS}.utils.humming.priority").prioritize_humming
        # Of the kernels for 8-bit inputs the last one of the list takes every shape, so that a scheme which gets this far is loaded.
        last = import_module(f"{KERNELS}.scaled_mm.humming")
        assert last.HummingFP8ScaledMMLinearKernel.can_implement(None)[0] and last.HummingFP8ScaledMMLinearKernel.is_supported(80)[0]
        assert last.HummingInt8ScaledMMLinearKernel.can_implement(None)[0] and last.HummingInt8ScaledMMLinearKernel.is_supported(80)[0]
        for scheme in ("w8a8_int8", "w8a8_fp8", "w8a16_fp8"):
            module = import_module(f"{LAYERS}.compressed_tensors.schemes.compressed_tensors_{scheme}")
            for name in ("init_int8_linear_kernel", "init_fp8_linear_kernel", "init_wfp8_a16_linear_kernel"):
                if hasattr(module, name):
                    setattr(module, name, lambda **_: chosen)

    def ask(self, linear, config):
        """What becomes of the linear on each GPU: the kernel, or the refusal's first sentence. An error of another kind is one of this script."""
        answers = {}
        for gpu, capability in GPUS.items():
            self.gpu.capability = capability
            try:
                with contextlib.redirect_stdout(io.StringIO()), self.torch.device("meta"):
                    answers[gpu] = getattr(self, "take_" + config["quant_method"].replace("-", "_"))(linear, json.loads(json.dumps(config)))
            except (ValueError, AssertionError, NotImplementedError, RuntimeError) as refusal:
                sentence = re.split(r"(?<=[.:]) |\n| for layer_name", str(refusal))[0]
                if not sentence.startswith(REFUSALS):
                    raise
                answers[gpu] = "refuses: " + sentence
        return answers

    def create(self, method, layer, linear):
        """Calls create_weights() as LinearBase does on one GPU."""
        out = sum(linear["out"])
        method.create_weights(layer=layer, input_size_per_partition=linear["in"], output_partition_sizes=linear["out"], input_size=linear["in"], output_size=out,
                              params_dtype=self.torch.bfloat16, weight_loader=None)
        layer.input_size = layer.input_size_per_partition = linear["in"]

    def check_humming(self, tensors, shape_n, shape_k, weight_schema, torch_dtype, **_):
        """In front of Humming's kernels: what its schema says of the tensors, and its tuner on a Hopper GPU of the group. Tiles there are 64 wide."""
        weight_schema.validate_tensors(tensors, shape_n, shape_k, torch_dtype)
        if reasons := self.nesting(weight_schema.weight_scale_group_size, 64):
            raise ValueError(f"Humming: {reasons[0]}")
        raise StopIteration

    def kernel_of(self, name, linear, group, method, layer):
        answer = name
        if name == "MarlinLinearKernel" and self.marlin.marlin_padded_nk(sum(linear["out"]), linear["in"], group) != (sum(linear["out"]), linear["in"]):
            answer += ", padded"
        if name == "HummingLinearKernel":
            layer.params_dtype, layer.output_partition_sizes = self.torch.bfloat16, linear["out"]
            with contextlib.suppress(StopIteration):
                method.process_weights_after_loading(layer)
        return answer

    def take_gptq(self, linear, config):
        quantization = self.gptq.AutoGPTQConfig.from_config(config)
        quantization.packed_modules_mapping = FUSED
        layer = self.linear()
        method = self.gptq_utils.get_linear_quant_method(quantization, layer, linear["name"], self.gptq.AutoGPTQLinearMethod)
        self.gptq.AutoGPTQLinearMethod._kernel_backends_being_used = used = set()
        self.create(method, layer, linear)
        return self.kernel_of(used.pop(), linear, method.quant_config.group_size, method, layer)

    def take_awq(self, linear, config):
        quantization = self.awq.AutoAWQConfig.from_config(config)
        quantization.packed_modules_mapping = FUSED
        layer = self.linear()
        layer.input_size = layer.input_size_per_partition = linear["in"]
        layer.output_size = layer.output_size_per_partition = sum(linear["out"])
        method = quantization.get_quant_method(layer, linear["name"])
        self.awq.AutoAWQMarlinLinearMethod._kernel_backends_being_used = used = set()
        self.create(method, layer, linear)
        return self.kernel_of(used.pop() if used else type(method).__name__, linear, quantization.group_size, method, layer)

    def take_compressed_tensors(self, linear, config):
        quantization = self.compressed.CompressedTensorsConfig.from_config(config)
        quantization.packed_modules_mapping = FUSED
        layer = self.linear()
        scheme = quantization.get_scheme(layer, linear["name"])
        type(scheme)._kernel_backends_being_used = used = set()
        self.create(scheme, layer, linear)
        return self.kernel_of(used.pop() if used else type(scheme).__name__, linear, getattr(scheme, "group_size", -1), scheme, layer)


# Configs as llmq writes them (src/export/formats); unit tests hold llmq's against these keys.
def gptq(bits, symmetric, group, order=False):
    return {"bits": bits, "checkpoint_format": "gptq_v2", "desc_act": order, "group_size": group, "lm_head": False, "quant_method": "gptq", "sym": symmetric}


def awq(bits, symmetric, group, order=False):
    return {"bits": bits, "group_size": group, "modules_to_not_convert": ["lm_head"], "quant_method": "awq", "version": "gemm", "zero_point": True}


def arguments(bits, symmetric, group, **others):
    strategy = "group" if group > 0 else "channel"
    return {"actorder": None, "block_structure": None, "dynamic": False, "group_size": group if group > 0 else None, "num_bits": bits, "observer": "memoryless_minmax",
            "observer_kwargs": {}, "scale_dtype": None, "strategy": strategy, "symmetric": symmetric, "type": "int", "zp_dtype": None if symmetric else "torch.int8", **others}


def compressed(form, weights, inputs=None):
    return {"config_groups": {"group_0": {"format": form, "input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}}, "format": form,
            "ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
            "transform_config": {}, "version": "0.20.0"}


def packed(bits, symmetric, group, order=False):
    return compressed("pack-quantized", arguments(bits, symmetric, group, **({"actorder": "group"} if order else {})))


# What llmq calls the inputs and weights of each scheme that rounds inputs (src/tensor/quant_scheme.h).
TOKEN = arguments(8, True, -1, dynamic=True, observer=None, strategy="token")
TENSOR = arguments(8, True, -1, observer="minmax", strategy="tensor")
FLOAT = {"type": "float"}
ROUNDED = {
    "w8a8_channel_sym": compressed("int-quantized", arguments(8, True, -1), TOKEN),
    "w8a8_channel_sym_static": compressed("int-quantized", arguments(8, True, -1), TENSOR),
    "w8a8_channel_asym": compressed("int-quantized", arguments(8, False, -1), TOKEN),
    "w8a8_g128_sym": compressed("int-quantized", arguments(8, True, 128), TOKEN),
    "w8a8_tensor_sym": compressed("int-quantized", arguments(8, True, -1, strategy="tensor"), TOKEN),
    "w4a8_g128_sym": compressed("int-quantized", arguments(4, True, 128), TOKEN),
    "w4a8_g64_sym": compressed("int-quantized", arguments(4, True, 64), TOKEN),
    "w4a8_channel_sym": compressed("int-quantized", arguments(4, True, -1), TOKEN),
    "w4a8_g128_asym": compressed("int-quantized", arguments(4, False, 128), TOKEN),
    "w3a8_g128_sym": compressed("int-quantized", arguments(3, True, 128), TOKEN),
    "fp8": compressed("float-quantized", arguments(8, True, -1, **FLOAT), {**TOKEN, **FLOAT}),
    "fp8_static": compressed("float-quantized", arguments(8, True, -1, strategy="tensor", **FLOAT), {**TENSOR, **FLOAT}),
    "fp8_block": compressed("float-quantized", arguments(8, True, -1, strategy="block", block_structure=[128, 128], **FLOAT),
                            {**TOKEN, **FLOAT, "strategy": "group", "group_size": 128}),
}
LINEAR = "model.layers.0.self_attn.o_proj"
# in -> out of single linears: tiny, SmolLM2, multiples of 128, and none of 64, 32, 16.
SHAPES = [(1024, 1024), (128, 128), (576, 576), (576, 1536), (1536, 576), (192, 64), (4096, 11008), (768, 96), (256, 72), (96, 40)]


def cases():
    for form, config in (("gptq", gptq), ("awq", awq), ("compressed-tensors", packed)):
        for bits in (2, 3, 4, 5, 8) if form == "compressed-tensors" else (2, 3, 4, 8) if form == "gptq" else (4,):
            for symmetric in (True, False):
                for group in (-1, 16, 32, 48, 64, 96, 128, 256):
                    for size, out in SHAPES:
                        order = form != "awq" and (size, out) == (1024, 1024)
                        for reordered in (False, True) if order else (False,):
                            if size % (group if group > 0 else size) == 0 and (form != "gptq" or (size * bits % 32 == 0 and out * bits % 32 == 0)):
                                if not (reordered and form == "compressed-tensors" and group < 0):
                                    yield form, f"w{bits}a16_{'channel' if group < 0 else f'g{group}'}_{'sym' if symmetric else 'asym'}", reordered, size, [out], \
                                        config(bits, symmetric, group, reordered)
    for scheme, config in ROUNDED.items():
        for size, out in SHAPES:
            group = config["config_groups"]["group_0"]["weights"]["group_size"]
            if not group or size % group == 0:
                yield "compressed-tensors", scheme, False, size, [out], config
        for parts in ([576, 192, 192], [1024, 256, 256], [1024, 256, 192]):
            if not config["config_groups"]["group_0"]["weights"]["group_size"]:
                yield "compressed-tensors", scheme, False, 1024, parts, config


def argument_fields():
    """What a group of the config may say: compressed-tensors refuses every other key."""
    from compressed_tensors.quantization import QuantizationArgs
    assert QuantizationArgs.model_config["extra"] == "forbid"
    return sorted(QuantizationArgs.model_fields)


def derive(wheels):
    with tempfile.TemporaryDirectory() as root:
        pinned = unpack(wheels, root)
        vllm = Vllm(root, pinned)
        rows = {}  # what is asked -> what is said -> of which shapes
        for form, scheme, reordered, size, out, config in cases():
            name = LINEAR if len(out) == 1 else "model.layers.0.self_attn.qkv_proj"
            said = vllm.ask({"name": name, "in": size, "out": out}, config)
            rows.setdefault((form, scheme, reordered), {}).setdefault(tuple(said.items()), []).append([size, *out])
        rows = [{"format": form, "scheme": scheme, "reordered": reordered, "answers": [{**dict(said), "shapes": shapes} for said, shapes in answers.items()]}
                for (form, scheme, reordered), answers in rows.items()]
        return {"vllm": VERSION, "compressed_tensors": pinned["compressed-tensors"], "quantization_methods": methods(wheels), "quantization_arguments": argument_fields(), "cases": rows}


def methods(wheels):
    """The values of quant_method that the wheel knows by itself; others are plug-ins."""
    with zipfile.ZipFile(download(wheels, f"vllm=={VERSION}")) as wheel:
        source = wheel.read("vllm/model_executor/layers/quantization/__init__.py").decode()
    return sorted(re.findall(r'"([^"]+)"', re.search(r"QuantizationMethods = Literal\[(.*?)\]", source, re.S).group(1)))


def text_of(derived):
    head = {key: value for key, value in derived.items() if key != "cases"}
    return json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n  ' + ",\n  ".join(json.dumps(row) for row in derived["cases"]) + "\n ]\n}\n"


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", default=os.path.expanduser("~/.cache/llmq-vllm"))
    parser.add_argument("--out", default=os.path.join(here, "..", "unit", "export", "loader_cases.json"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = text_of(derive(options.wheels))
    if options.check:
        if open(options.out).read() != text:
            sys.exit(f"FAILED: vLLM {VERSION} gives other answers than {options.out}; run this without --check and look at the difference")
        print(f"ok: {options.out} has the answers of vLLM {VERSION}")
    else:
        with open(options.out, "w") as out:
            out.write(text)
