"""llama.cpp's converter and llama-quantize write the GGUF files that llmq writes, of every family that both know.   gguf_files.py LLMQ [MODEL...]

What `interop/gguf` leaves out because it takes half an hour: gguf_check.py of all models, or of those named. Needs the environment `transformers` of the interop checks
(`make test` installs it) and llama.cpp's source and tools; where one of those is missing the script says so and leaves with 77.
"""
import os, pathlib, subprocess, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from peer import run_in

run_in("transformers", ["torch", "transformers", "gguf"], "what tests/interop/peer_packages.sh names")
peers = os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))
source = os.environ.get("LLMQ_LLAMA_CPP", f"{peers}/src/lcpp/vendor/llama.cpp")
for needed in (f"{source}/convert_hf_to_gguf.py", f"{peers}/llama.cpp/bin/llama-quantize"):
    if not os.path.isfile(needed):
        print(f"SKIPPED: no {needed}; scripts/install_bench_peers.sh builds llama.cpp from the source that the sdist of llama-cpp-python carries")
        sys.exit(77)
settings = {"OMP_NUM_THREADS": "1", "LLMQ_PEER_FILES": f"{peers}/files", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
with tempfile.TemporaryDirectory() as work:
    command = [sys.executable, HERE.parent / "gguf_check.py", os.path.abspath(sys.argv[1]), work, *(sys.argv[2:] or ["all"])]
    sys.exit(subprocess.run(command, env={**os.environ, **settings}).returncode)
