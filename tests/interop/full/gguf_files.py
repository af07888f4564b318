"""llama.cpp's converter and llama-quantize write the GGUF files that llmq writes, of every family that both know.   gguf_files.py LLMQ [MODEL...]

What `interop/gguf` leaves out because it takes half an hour: gguf_check.py of all models, or of those named. Needs llama.cpp's source and tools; where one of them is
missing the script says so and leaves with 77.
"""
import os, pathlib, sys

peers = os.environ.get("LLMQ_PEERS", os.path.expanduser("~/.cache/llmq-peers"))
source = os.environ.get("LLMQ_LLAMA_CPP", f"{peers}/src/lcpp/vendor/llama.cpp")
for needed in (f"{source}/convert_hf_to_gguf.py", f"{peers}/llama.cpp/bin/llama-quantize"):
    if not os.path.isfile(needed):
        print(f"SKIPPED: no {needed}; scripts/install_bench_peers.sh builds llama.cpp from the source that the sdist of llama-cpp-python carries")
        sys.exit(77)
check = pathlib.Path(__file__).resolve().parents[1] / "run_check.sh"
os.execv(check, [check, "gguf", os.path.abspath(sys.argv[1]), *(sys.argv[2:] or ["all"])])
