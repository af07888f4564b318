"""Two load generators ask `llmq serve`, unchanged: the request function of `vllm bench serve`, and locust.   load_tools.py LLMQ

Needs locust 2.47.0, aiohttp, regex and tqdm in $LLMQ_PEERS/load (python3 -m venv, then pip install locust==2.47.0 aiohttp regex tqdm), and for the first
vllm-0.33.0-*.whl in ~/.cache/llmq-vllm (pip download --no-deps vllm==0.33.0): its file vllm/benchmarks/lib/endpoint_request_func.py is run as it is, for it imports
nothing else of vLLM. Where the environment is missing the script says so and leaves with 77; a wheel that is missing is named.
"""
import asyncio, csv, glob, importlib.util, os, pathlib, subprocess, sys, tempfile, zipfile

HERE = pathlib.Path(__file__).resolve().parent
WHEELS = os.environ.get("LLMQ_VLLM", os.path.expanduser("~/.cache/llmq-vllm")) + "/vllm-0.33.0-*.whl"
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "serve")]
from peer import expect, finish, run_in
from server import Server, chat_model

run_in("load", ["aiohttp", "regex", "tqdm"], "locust==2.47.0 aiohttp regex tqdm")
import aiohttp

CLIENTS, REQUESTS, TOKENS = 16, 64, 24


def request_functions(wheel, work):
    """The module of vLLM's wheel."""
    path = f"{work}/endpoint_request_func.py"
    with zipfile.ZipFile(wheel) as files, open(path, "wb") as file:
        file.write(files.read("vllm/benchmarks/lib/endpoint_request_func.py"))
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def bench(functions, function, url, path):
    limit = asyncio.Semaphore(CLIENTS)

    async def one(session, number):
        asked = functions.RequestFuncInput(prompt=f"Once upon a time there was dog number {number}", api_url=url + path, prompt_len=9, output_len=TOKENS, model="tiny-chat",
                                           ignore_eos=True, request_id=f"bench-{number}", extra_body={"temperature": 0})
        async with limit:
            return await function(asked, session)

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(one(session, number) for number in range(REQUESTS)))


def check_bench(server, work):
    wheels = glob.glob(WHEELS)
    if not wheels:
        print(f"SKIPPED: no {WHEELS}; pip download --no-deps vllm==0.33.0 puts it there")
        return
    functions = request_functions(wheels[0], work)
    for name, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        outputs = asyncio.run(bench(functions, functions.ASYNC_REQUEST_FUNCS[name], server.facts["url"], path))
        bad = [output.error for output in outputs if not output.success]
        expect(not bad, f"vllm bench serve, backend {name}: {len(outputs) - len(bad)} of {len(outputs)} requests succeeded {bad[:1] or ''}")
        expect({output.output_tokens for output in outputs} == {TOKENS} and all(output.ttft > 0 and output.itl for output in outputs),
               f"vllm bench serve, backend {name}: {TOKENS} tokens each, median time to the first {sorted(output.ttft for output in outputs)[REQUESTS // 2] * 1000:.1f} ms")


def check_locust(server, work):
    command = [sys.executable, "-m", "locust", "-f", str(HERE / "locust" / "stories.py"), "--headless", "--users", str(CLIENTS), "--spawn-rate", str(CLIENTS), "--run-time", "5s",
               "--host", server.facts["url"], "--csv", f"{work}/locust", "--exit-code-on-error", "1", "--loglevel", "WARNING", "--only-summary"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"locust left with {done.returncode} {'' if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]}")
    with open(f"{work}/locust_stats.csv", encoding="utf-8") as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    for name in ("/v1/completions", "/v1/chat/completions", "time to the first token"):
        row = rows.get(name)
        expect(row is not None and int(row["Request Count"]) > 0 and row["Failure Count"] == "0",
               f"locust: {name}: {row and row['Request Count']} measured, {row and row['Failure Count']} failed, median {row and row['Median Response Time']} ms")


with tempfile.TemporaryDirectory() as work:
    server = Server(sys.argv[1], chat_model(work), "--max-num-seqs", str(CLIENTS))
    check_bench(server, work)
    check_locust(server, work)
    expect(server.stop() == 0, "the server left with 0")
finish()
