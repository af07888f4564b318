"""vLLM's own answers are still those that the table of loaders is held against (tests/unit/export/loader_cases.json).   loader_cases.py LLMQ

Needs the pinned wheels in ~/.cache/llmq-vllm (tests/interop/make_loader_cases.py says which and downloads them: 340 MB) and the interop checks' environment
$LLMQ_PEERS/transformers. Where one is missing the script says so and leaves with 77.
"""
import glob, os, pathlib, subprocess, sys

here = pathlib.Path(__file__).resolve().parent
python = pathlib.Path(os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))) / "transformers" / "bin" / "python"
wheels = os.path.expanduser("~/.cache/llmq-vllm")
if not python.exists() or not glob.glob(f"{wheels}/vllm-*.whl"):
    print(f"SKIPPED: no {python}, or no wheel of vLLM in {wheels}; `{python} tests/interop/make_loader_cases.py` downloads it")
    sys.exit(77)
sys.exit(subprocess.run([python, here.parent / "make_loader_cases.py", "--wheels", wheels, "--check"]).returncode)
