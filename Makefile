# The commands of the README. Everything is built out of source, below build/.
JOBS ?= $(shell nproc)
BUILD := build/cpu-release

.PHONY: help build packages demo test interop-full check-all faults sanitize addresses races fuzz portable format tidy tidy-all documents bench bench-peers bench-large bench-overlap soak release install-dependencies clean

help:
	@echo "make demo       install what is missing, build, quantize a real model and show the proof"
	@echo "make test       install what is missing, build, run unit, kernel, golden, command-line, server and interop tests"
	@echo "make interop-full  other programs run what llmq writes (minutes; says what is missing)"
	@echo "make check-all  planted faults, sanitizers, fuzzing, another processor and clang-tidy over everything, on top"
	@echo "make format     refuse C++ files that clang-format would write otherwise (seconds)"
	@echo "make tidy       clang-format and clang-tidy over what you changed (TIDY_BASE=COMMIT: since then)"
	@echo "make documents  write docs/reference and the README's picture anew, check widths, links and commands"
	@echo "make build      the program alone: $(BUILD)/tools/llmq"
	@echo "make packages   a wheel for pip, a Debian package and a tree that may be moved, in build/packages"
	@echo "make release    from a clean tag: source archive, packages and SHA-256 sums in build/release"
	@echo "make bench      kernel benchmarks with their fraction of this machine's peak"
	@echo "make bench-peers  llama.cpp, Transformers, llm-compressor and GPTQModel in turn with llmq: a table of ratios (ONLY=quantize takes an hour)"
	@echo "make bench-large  8B- and 1.5B-shaped checkpoints quantized inside 3 GiB and 1.25 GiB (LAYERS=1, METHODS='rtn awq gptq'; 4 GB of disk)"
	@echo "make soak       half an hour of random traffic with clients that leave (SOAK_SECONDS=1800): memory stays flat, pages come back"
	@echo "make bench-overlap  reading, computing and writing alone and together, on two 8B-shaped blocks (METHODS='rtn gptq'; 9 GB of disk, 6 GB of memory)"

install-dependencies:
	@scripts/install_dependencies.sh build

# Without what tests alone need, where a build with it (`make test`) is not there.
EMULATION = $(if $(shell grep -s LLMQ_EMULATION:BOOL=ON $(BUILD)/CMakeCache.txt),ON,OFF)
build: install-dependencies
	cmake --preset cpu-release -DLLMQ_EMULATION=$(EMULATION)
	cmake --build $(BUILD) -j$(JOBS) --target llmq

packages:
	scripts/make_packages.sh build/packages
	@ls -l build/packages

demo: build
	@scripts/install_dependencies.sh demo
	scripts/demo.sh $(BUILD)/tools/llmq

test: install-dependencies
	@scripts/install_dependencies.sh interop packages
	cmake --preset cpu-release
	@# The peers' gigabytes come while the compiler works; a check that is earlier waits.
	@tests/interop/install_peers.sh $(BUILD)/tools/llmq ahead >/dev/null 2>&1 & cmake --build $(BUILD) -j$(JOBS)
	scripts/run_ctest.sh $(BUILD)

# Programs that take minutes to build or to run: llama.cpp's tools. One that is missing is named and skipped.
interop-full: build
	@for script in tests/interop/full/*.py; do echo "== $$script"; python3 $$script $(BUILD)/tools/llmq; status=$$?; \
	  [ $$status -eq 0 ] || [ $$status -eq 77 ] || exit 1; done

check-all:
	@for part in faults sanitize fuzz portable tidy-all; do \
	  start=$$(date +%s); $(MAKE) --no-print-directory $$part || exit 1; \
	  echo "== $$part took $$((($$(date +%s) - start) / 60)) min $$((($$(date +%s) - start) % 60)) s"; done

# Planted faults, each of which a named test must see. On top of what `make test` built.
faults: install-dependencies
	@scripts/install_dependencies.sh interop fuzz
	cmake --preset cpu-release
	cmake --build $(BUILD) -j$(JOBS)
	tests/faults/run_faults.py $(BUILD) $${FAULT_SECONDS:+--seconds $$FAULT_SECONDS}

# Memory errors and undefined behaviour, then data races.
sanitize: addresses races

# Memory errors and undefined behaviour (clang, the build that also fuzzes), by the tests that tests/CMakeLists.txt leaves there.
addresses: install-dependencies
	@scripts/install_dependencies.sh fuzz
	cmake --preset cpu-asan
	cmake --build build/cpu-asan -j$(JOBS) --target llmq_checks llmq
	scripts/run_addresses.sh build/cpu-asan

races: install-dependencies
	cmake --preset cpu-tsan
	cmake --build build/cpu-tsan -j$(JOBS) --target llmq_tsan_tests
	scripts/run_ctest.sh build/cpu-tsan -L 'tsan|sanitized_server'

fuzz: install-dependencies
	@scripts/install_dependencies.sh fuzz
	cmake --preset cpu-asan
	cmake --build build/cpu-asan -j$(JOBS) --target fuzz_all
	scripts/run_fuzzers.sh build/cpu-asan $${FUZZ_SECONDS:-60}

# The scalar level on another processor, aarch64 under qemu; the kernels for every architecture that is published, where nvcc is.
portable: build
	@scripts/install_dependencies.sh portable
	cmake --build $(BUILD) -j$(JOBS) --target llmq_cuda_every_architecture llmq_device_bench
	scripts/check_portable.sh $(BUILD)/tools/llmq

# First step of the gate: all C++ files are as clang-format-14 writes them.
format:
	@scripts/install_dependencies.sh format
	scripts/check_format.sh

# clang-format and clang-tidy over what differs from TIDY_BASE; tidy-all takes every source, in half an hour of two cores.
tidy: install-dependencies
	@scripts/install_dependencies.sh tidy
	cmake --preset separate
	cmake --build build/separate --target llmq_build_facts
	scripts/run_tidy.sh build/separate $${TIDY_BASE:-HEAD}

tidy-all:
	@$(MAKE) --no-print-directory tidy TIDY_BASE=all

# What of the documents is made from the program and from figures; then all that a test holds of them.
documents: build
	scripts/make_reference.py $(BUILD)/tools/llmq
	scripts/draw_proof.py
	scripts/check_documents.py $(BUILD)/tools/llmq

bench: install-dependencies
	cmake --preset bench
	cmake --build build/bench -j$(JOBS) --target llmq_bench_kernels
	build/bench/tests/bench/llmq_bench_kernels

bench-peers: build
	@scripts/install_dependencies.sh interop
	scripts/install_bench_peers.sh
	scripts/bench_peers.py $(BUILD)/tools/llmq $(MODEL) --only "$(ONLY)"

bench-large: install-dependencies
	cmake --preset cpu-release
	cmake --build $(BUILD) -j$(JOBS) --target llmq llmq_make_checkpoint llmq_watch_memory
	scripts/bench_large.sh $(BUILD)

bench-overlap: install-dependencies
	cmake --preset cpu-release
	cmake --build $(BUILD) -j$(JOBS) --target llmq llmq_make_checkpoint
	scripts/bench_overlap.sh $(BUILD)

soak: build
	tests/serve/soak_test.py $(BUILD)/tools/llmq $${SOAK_SECONDS:-1800}

# What is published of a version, from the tag that HEAD has; refuses any other tree (CONTRIBUTING.md).
release:
	@scripts/release.sh

clean:
	rm -rf build
