# The commands of the README. Everything is built out of source, below build/.
JOBS ?= $(shell nproc)
BUILD := build/cpu-release

.PHONY: help build demo test check-all sanitize fuzz portable interop bench install-dependencies clean

help:
	@echo "make demo       install what is missing, build, quantize a real model and show the proof"
	@echo "make test       install what is missing, build, run unit, kernel, golden, command-line and interop tests"
	@echo "make check-all  sanitizers, fuzzing, fault injection and the portable build, on top"
	@echo "make build      the program alone: $(BUILD)/tools/llmq"
	@echo "make bench      kernel benchmarks with their fraction of this machine's peak"

install-dependencies:
	@scripts/install_dependencies.sh build

build: install-dependencies
	cmake --preset cpu-release
	cmake --build $(BUILD) -j$(JOBS) --target llmq

demo: build
	@scripts/install_dependencies.sh demo
	scripts/demo.sh $(BUILD)/tools/llmq

test: install-dependencies
	@scripts/install_dependencies.sh interop
	cmake --preset cpu-release
	cmake --build $(BUILD) -j$(JOBS)
	scripts/run_ctest.sh $(BUILD)

check-all: sanitize fuzz portable

sanitize: install-dependencies
	cmake --preset cpu-asan
	cmake --build build/cpu-asan -j$(JOBS)
	scripts/run_ctest.sh build/cpu-asan -L 'unit|kernels|golden|fuzz|faults'
	cmake --preset cpu-tsan
	cmake --build build/cpu-tsan -j$(JOBS) --target llmq_tsan_tests
	scripts/run_ctest.sh build/cpu-tsan -L tsan

fuzz: install-dependencies
	@scripts/install_dependencies.sh fuzz
	cmake --preset fuzz
	cmake --build build/fuzz -j$(JOBS) --target fuzz_all
	scripts/run_fuzzers.sh build/fuzz $${FUZZ_SECONDS:-60}

# The scalar level on another architecture: aarch64 under qemu.
portable:
	@scripts/install_dependencies.sh portable
	scripts/check_portable.sh

bench: install-dependencies
	cmake --preset bench
	cmake --build build/bench -j$(JOBS) --target llmq_bench
	build/bench/tests/bench/llmq_bench

clean:
	rm -rf build
