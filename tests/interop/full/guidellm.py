"""GuideLLM drives a server by its sweep over synthetic data, and no request fails.   guidellm.py LLMQ

Needs $LLMQ_PEERS/guidellm with guidellm 0.8.1 (`python3 -m venv DIR && DIR/bin/pip install guidellm==0.8.1`). Where it is missing the script says so and leaves with 77.
Synthetic prompts are made with the served model's own tokenizer.
"""
import json, os, pathlib, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from peer import ROOT, expect, finish  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "serve"))
from server import Server, chat_model  # noqa: E402

guidellm = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "guidellm" / "bin" / "guidellm"
if not guidellm.exists():
    print(f"SKIPPED: no {guidellm}; a virtual environment there with `pip install guidellm==0.8.1` is wanted")
    sys.exit(77)
SECONDS = os.environ.get("GUIDELLM_SECONDS", "10")
with tempfile.TemporaryDirectory() as work:
    model = chat_model(work)  # it asks for chats by itself
    server = Server(sys.argv[1], model)
    ran = subprocess.run([guidellm, "run", "--backend", f"kind=openai_http,target={server.facts['url']}", "--profile", "kind=sweep,sweep_size=3", "--constraint", f"kind=max_duration,seconds={SECONDS}",
                          "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16", "--tokenizer", f"kind=huggingface_auto,model={model}", "--output", f"kind=json,path={work}/out.json", "--disable-progress"],
                         cwd=work, env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "2", "GUIDELLM__MAX_CONCURRENCY": "32"}, capture_output=True, text=True)
    expect(ran.returncode == 0, f"guidellm run leaves with 0 (found {ran.returncode}: {(ran.stderr or ran.stdout)[-800:] if ran.returncode else ''})")
    found = sorted(pathlib.Path(work).glob("out*.json"))
    expect(bool(found), "guidellm writes a report")
    for path in found[:1]:
        for benchmark in json.loads(path.read_text())["benchmarks"]:
            totals = benchmark["metrics"]["request_totals"]
            print({key: totals[key] for key in ("successful", "errored", "incomplete", "total") if key in totals})
            expect(totals["errored"] == 0 and totals["successful"] > 0, "requests of a rate are answered")
    server.process.terminate()
finish()
