"""Manifests of `llmq deploy` are what the programs that read them take: Kubernetes' own schemas, the Compose specification, the flags of vLLM 0.33.   deploy.py LLMQ

Needs $LLMQ_PEERS/deploy (`python3 -m venv DIR && DIR/bin/pip install kubernetes-validate==1.37.0 check-jsonschema==0.39.0`) and the wheel of vLLM in ~/.cache/llmq-vllm
(tests/interop/make_loader_cases.py downloads it). Where one is missing the script says so and leaves with 77. KServe's resource and the values of vllm-stack have no
schema on PyPI: their keys are held to those that their own sources have (kserve v1alpha2 llm_inference_service_types.go, vllm-stack 0.1.12 values.yaml).
"""
import ast, glob, json, os, pathlib, subprocess, sys, tempfile, zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from peer import TINYSTORIES, expect, finish  # noqa: E402

program = sys.argv[1]
peer = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "deploy" / "bin"
wheels = glob.glob(os.path.expanduser("~/.cache/llmq-vllm/vllm-0.33.0-*.whl"))
if not (peer / "kubernetes-validate").exists() or not wheels:
    print(f"SKIPPED: no {peer}/kubernetes-validate (`pip install kubernetes-validate==1.37.0 check-jsonschema==0.39.0`), or no wheel of vLLM 0.33.0 in ~/.cache/llmq-vllm")
    sys.exit(77)
if pathlib.Path(sys.executable).parent != peer:
    os.execv(peer / "python", [str(peer / "python"), *sys.argv])
import yaml  # noqa: E402  (kubernetes-validate brings it)
SHARE = pathlib.Path(__file__).resolve().parents[3] / "share"

KSERVE = {"model", "replicas", "scaling", "parallelism", "template", "worker", "prefill", "router", "kvCacheOffloading", "tracing", "baseRefs", "speculativeDecoding"}
KSERVE_MODEL = {"uri", "name", "criticality", "lora"}  # LLMModelSpec
POOL = {"selector": {"matchLabels"}, "endpointPickerRef": {"group", "kind", "name", "port", "failureMode"}}  # inference.networking.k8s.io/v1 InferencePoolSpec
STACK = {"name", "repository", "tag", "modelURL", "replicaCount", "requestCPU", "requestMemory", "requestGPU", "pvcStorage", "pvcExistingClaimName", "vllmConfig", "lmcacheConfig", "keda"}
STACK_VLLM = {"enablePrefixCaching", "enableChunkedPrefill", "maxModelLen", "dtype", "tensorParallelSize", "maxNumSeqs", "gpuMemoryUtilization", "extraArgs"}


def vllm_facts():
    """Flags that are added by name or made from fields of the configurations, and the types of a KV cache: out of the wheel's own files."""
    flags, kv_types = set(), set()
    with zipfile.ZipFile(wheels[0]) as wheel:
        for name in wheel.namelist():
            if name.startswith(("vllm/engine/arg_utils", "vllm/entrypoints/", "vllm/config/")) and name.endswith(".py"):
                tree = ast.parse(wheel.read(name))
                for node in ast.walk(tree):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
                        flags.add(node.value)
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and name.startswith("vllm/entrypoints/"):
                        flags.add("--" + node.target.id.replace("_", "-"))
                    if isinstance(node, (ast.Assign, ast.AnnAssign)) and "CacheDType" in ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target):
                        kv_types |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return flags, kv_types


def manifest(*words):
    done = subprocess.run([program, "deploy", TINYSTORIES, *words], capture_output=True, text=True)
    expect(done.returncode == 0, f"llmq deploy {' '.join(words)} leaves with 0 {done.stderr}")
    return done.stdout


def validated(text, *command):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([*map(str, command), file.name], capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr)[-600:]


flags, kv_types = vllm_facts()
print(f"vLLM 0.33.0: {len(flags)} flags, {len(kv_types)} types of a KV cache")


def check_flags(words, what):
    unknown = [word for word in words if word.startswith("--") and word not in flags]
    expect(not unknown, f"{what}: vLLM has every flag {unknown}")
    if "--kv-cache-dtype" in words:
        expect(words[words.index("--kv-cache-dtype") + 1] in kv_types, f"{what}: vLLM has the type of the KV cache")
    for flag in ("--speculative-config", "--kv-transfer-config"):
        if flag in words:
            json.loads(words[words.index(flag) + 1])


with tempfile.TemporaryDirectory() as work:
    draft = os.path.join(work, "draft")
    os.symlink(os.path.join(os.path.dirname(TINYSTORIES), "tinystories-draft"), draft)
    for engine in ("vllm", "llmq"):
        for more in ([], ["--draft", "ngram"], ["--draft", draft, "--kv-cache-dtype", "int8", "--replicas", "2"], ["--kv-cache-dtype", "fp8"]):
            chosen = ["--engine", engine, *more]
            for target in ("kubernetes", "llm-d"):
                documents = list(yaml.safe_load_all(text := manifest("--to", target, *chosen)))
                known = "\n---\n".join(yaml.safe_dump(one) for one in documents if one["kind"] != "InferencePool")
                ok, said = validated(known, peer / "kubernetes-validate", "--strict", "-k", "1.37")
                expect(ok, f"{target} {chosen}: kubernetes-validate takes it {'' if ok else said}")
                container = documents[0]["spec"]["template"]["spec"]["containers"][0]
                if engine == "vllm":
                    check_flags(container["args"], f"{target} {chosen}")
                if target == "llm-d":
                    pool = documents[1]["spec"]
                    expect(set(pool) == {"targetPorts", *POOL} and all(set(pool[key]) <= keys for key, keys in POOL.items()) and pool["targetPorts"] == [{"number": 8000}]
                           and pool["selector"]["matchLabels"].items() <= documents[0]["spec"]["template"]["metadata"]["labels"].items(), f"{target}: keys of an InferencePool, which finds the pods")
                else:
                    expect(documents[1]["spec"]["selector"].items() <= documents[0]["spec"]["template"]["metadata"]["labels"].items(), f"{target}: the Service finds the pods")
                    monitored = yaml.safe_load((SHARE / "monitoring" / "servicemonitor.yaml").read_text())["spec"]["selector"]["matchLabels"]
                    expect((monitored.items() <= documents[1]["metadata"]["labels"].items()) == (engine == "llmq"), f"{target}: the ServiceMonitor of share/ finds the Service of llmq alone")
                expect(documents[1]["kind"] == {"kubernetes": "Service", "llm-d": "InferencePool"}[target], f"{target}: what stands before the servers")
            ok, said = validated(manifest("--to", "compose", *chosen), peer / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
            expect(ok, f"compose {chosen}: the Compose specification takes it {'' if ok else said}")
            spec = yaml.safe_load(manifest("--to", "kserve", *chosen))["spec"]
            expect(set(spec) <= KSERVE and set(spec["model"]) <= KSERVE_MODEL and spec["template"]["containers"][0]["name"] == "main", f"kserve {chosen}: keys of LLMInferenceService")
            if engine == "vllm":
                import shlex
                check_flags(shlex.split(spec["template"]["containers"][0]["env"][0]["value"]), f"kserve {chosen}")
                values = yaml.safe_load(manifest("--to", "vllm-stack", *chosen))["servingEngineSpec"]["modelSpec"][0]
                expect(set(values) <= STACK and set(values["vllmConfig"]) <= STACK_VLLM, f"vllm-stack {chosen}: keys of its values")
                check_flags(values["vllmConfig"]["extraArgs"], f"vllm-stack {chosen}")
spec = yaml.safe_load(manifest("--to", "kserve", "--disaggregate", "2:1"))["spec"]
expect(spec["replicas"] == 1 and spec["prefill"]["replicas"] == 2 and spec["prefill"]["template"]["containers"][0]["name"] == "main", "kserve: two that prefill, one that decodes")
finish()
