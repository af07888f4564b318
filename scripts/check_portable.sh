#!/usr/bin/env bash
# Another processor: cross-compiles for aarch64, runs the tests of everything that computes under qemu's user-mode emulation, and checks that the
# main job gives the digits the scalar level gives on this machine.   check_portable.sh [PROGRAM]
#
# The scalar level is plain C++: IEEE operations and std::fma in a written order, no contraction, transcendental functions of its own. So the bytes of
# the checkpoint and every digit of the perplexity must be equal on both, not merely close.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(realpath "${1:-build/cpu-release/tools/llmq}")
build=$PWD/build/aarch64
root=$build/root
jobs=$(nproc)

scripts/unpack_arm64.sh "$build"
cmake -S . -B "$build/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DLLMQ_ARM64_ROOT="$root" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" >/dev/null
cmake --build "$build/build" -j"$jobs" --target llmq llmq_portable_tests | tail -n 1

# Not what looks at the machine itself (its memory map, its cores, its speed, its death by a signal: the emulator answers for those), nor what
# takes minutes there and says nothing about a processor: thousands of runs, each killed or failed at another call, and whole runs on emulated devices.
scripts/run_ctest.sh "$build/build" -L 'unit|kernels|golden' -E 'EveryCall|DiskFaults|PowerLoss|MachineProbe|MachinePeaks|unit/runtime/.*Random|FakeDevice|IsClosedToTheHost|AvailableCores|unit/quant/Pipeline|DeviceMemory|FittingRows|unit/quant/Devices|_t[38]( |$)|ModelShapes|avx|amx|cuda'

model=tests/models/tinystories-656k
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
main_job() {  # main_job NAME PROGRAM...: the digest of the checkpoint and the digits of the perplexity
  local out=$work/$1; shift
  "$@" quantize --method awq --model "$model" --output "$out" --set scheme=w4a16_g64_asym --set calibration.samples=2 \
    --set calibration.sequence_length=64 --json | jq -r .digest
  "$@" eval-ppl "$out" --against "$model" --compute bfloat16 --context 128 --max-windows 2 --json | jq -c '[.ppl, .ppl_stderr, .against.kl_mean]'
}
emulated=$(main_job emulated qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" "$build/build/tools/llmq")
native=$(LLMQ_CPU_ISA=scalar main_job native "$host")
echo "aarch64, emulated:   ${emulated//$'\n'/ }"
echo "this machine, scalar: ${native//$'\n'/ }"
[ "$emulated" = "$native" ] || { echo "FAILED: the two differ" >&2; exit 1; }
echo "The same checkpoint and the same perplexity on both."
