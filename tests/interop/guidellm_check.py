"""GuideLLM sweeps over the rates of `llmq serve` with synthetic texts: each request is answered, in the lengths that were asked for.   guidellm_check.py LLMQ WORK

The model is tinystories-656k. LLMQ_GUIDELLM_REQUESTS (24) is the number of requests at each rate, of which the first is one request after another and the second is
all at once: a number, not a time, in which a busy machine might answer none.

Eight texts are made ahead. By itself GuideLLM makes 4,096, and where a rate ends before they are made, the process that makes them waits for ever for a reader of a
full pipe, and the sweep for that process: seen in 1 of 2 runs beside six busy loops on two cores.
"""
import json, os, pathlib, subprocess, sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "serve"))
from peer import expect, finish
from server import MODEL, Server

program, work = sys.argv[1:3]
GUIDELLM, REQUESTS = os.path.join(os.path.dirname(sys.executable), "guidellm"), os.environ.get("LLMQ_GUIDELLM_REQUESTS", "24")
PROMPT, OUTPUT, RATES = 48, 24, 4

server = Server(program, MODEL, "--max-num-seqs", "16")
command = [GUIDELLM, "run", "--backend", f"kind=openai_http,target={server.facts['url']},request_format=/v1/completions", "--profile", f"kind=sweep,sweep_size={RATES}",
           "--constraint", f"kind=max_requests,count={REQUESTS}", "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
           "--data-loader", "kind=pytorch,prefetch_factor=8",
           "--tokenizer", f"kind=huggingface_auto,model={MODEL}", "--output", f"kind=json,path={work}/sweep.json", "--disable-console"]
done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1",
                                                                               "GUIDELLM__MP_CONTEXT_TYPE": "forkserver"}, timeout=600)
if done.returncode != 0:
    sys.exit(f"FAILED: {' '.join(command)} left with {done.returncode}: {(done.stderr + done.stdout)[-3000:]}")
with open(f"{work}/sweep.json", encoding="utf-8") as file:
    sweep = json.load(file)
expect(len(sweep["benchmarks"]) == RATES, f"guidellm 0.8.1 ran {len(sweep['benchmarks'])} rates")
for benchmark in sweep["benchmarks"]:
    metrics, name = benchmark["metrics"], benchmark["config"]["strategy"]["type_"]
    totals = metrics["request_totals"]
    middle = {key: metrics[key]["successful"]["median"] for key in ("prompt_token_count", "output_token_count", "time_to_first_token_ms", "inter_token_latency_ms")}
    rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    expect(totals["errored"] == 0 and totals["successful"] > 0, f"{name}: {totals['successful']} requests answered, {totals['errored']} failed, {rate:.0f} tokens/s, "
           f"first token after {middle['time_to_first_token_ms']:.1f} ms, then {middle['inter_token_latency_ms']:.2f} ms each")
    expect(middle["output_token_count"] == OUTPUT and abs(middle["prompt_token_count"] - PROMPT) <= 2, f"{name}: {middle['prompt_token_count']} tokens in, {middle['output_token_count']} out")
expect(server.stop() == 0, "the server left with 0")
finish()
