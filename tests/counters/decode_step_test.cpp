// One decoded token asks nothing of the heap and nothing of the system, and reads no more than the weights as
// they are packed.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/io.h"
#include "cli/program.h"
#include "counters/counted_calls.h"
#include "model/open_checkpoint.h"
#include "runtime/serving_engine.h"

namespace llmq::testing {
namespace {

struct Case {
  Compute compute;
  int threads;
  std::int64_t batch;
  bool packed = false;  // 4-bit weights in groups of 32, the head in 8 bits
  std::optional<KvFormats> pages = {};
};

// The small model, quantized by the program once per process.
std::string packed_model() {
  static const Scratch scratch;
  static const std::string path = [] {
    const std::string out = scratch / "w4";
    const Outcome outcome = run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output",
                                      out, "--set", "scheme=w4a16_g32_sym"});
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.err);
    return out;
  }();
  return path;
}

Engine load(const Case& c) {
  Engine::Options options;
  options.compute = c.compute;
  options.max_context = 512;
  options.kv_tokens = 512 * c.batch;
  if (c.packed) options.head = HeadWeight::kInt8;
  if (c.pages)
    options.kv = KvType{DType::kBF16, c.pages}, options.kv_probe = std::vector<std::int32_t>(64, 5);
  return Engine::load(open_checkpoint(system_io(), c.packed ? packed_model() : tinystories()),
                      make_cpu_backend(c.threads), options);
}

constexpr Case kCases[] = {{Compute::kBFloat16, 1, 1},
                           {Compute::kBFloat16, 2, 1},
                           {Compute::kBFloat16, 2, 5},
                           {Compute::kFloat32, 2, 1},
                           {Compute::kBFloat16, 2, 1, true},
                           {Compute::kBFloat16, 2, 5, true},
                           {Compute::kBFloat16, 2, 5, true, kKvInt4}};
constexpr int kSteps = 20;  // more than positions in a block of the cache

// A batch that has been decoded for a while.
struct Warm {
  explicit Warm(const Case& c) : engine(load(c)), batch(engine, nullptr, {{8, 512, 512, 8}, 0}) {
    GenerationRequest request;
    request.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    request.max_tokens = 512;
    request.ignore_eos = true;
    for (; request.id < static_cast<std::uint64_t>(c.batch); ++request.id)
      if (batch.submit(request)) throw std::runtime_error("refused");
    for (int step = 0; step < kSteps; ++step) batch.step();
  }
  Engine engine;
  ServingEngine batch;
};

// What every round of `steps` steps needs shows in the least of many: on a busy machine a thread may take
// part for the first time in any step, and then its scratch memory is made; or look for another in vain and
// sleep.
std::uint64_t least_of_rounds(ServingEngine& batch, int rounds, int steps, std::uint64_t (*counter)()) {
  std::uint64_t least = UINT64_MAX;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t before = counter();
    for (int step = 0; step < steps; ++step) batch.step();
    least = std::min(least, counter() - before);
  }
  return least;
}

std::string words(const Case& c) {
  return "compute " + std::to_string(static_cast<int>(c.compute)) + ", threads " + std::to_string(c.threads) +
         ", batch " + std::to_string(c.batch);
}

TEST(DecodeStep, AllocatesNothing) {
  for (const Case& c : kCases) {
    Warm warm(c);
    EXPECT_EQ(least_of_rounds(warm.batch, 12, kSteps, allocations), 0u) << words(c);
  }
}

// All threads are there before the system calls are watched: the watch cannot make new ones.
TEST(DecodeStep, NeedsNoSystemCall) {
  std::vector<std::unique_ptr<Warm>> all;
  for (const Case& c : kCases) all.push_back(std::make_unique<Warm>(c));
  if (!watch_system_calls())
    GTEST_SKIP() << "this system does not let a process count its system calls (seccomp)";
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(least_of_rounds(all[i]->batch, 400, 1, system_calls), 0u)
        << words(kCases[i]) << "; the last was number " << last_system_call();
  const std::uint64_t before = system_calls();
  ::getppid();
  EXPECT_EQ(system_calls() - before, 1u) << "the watch sees nothing";
}

// Blocks of hidden 128, 8 heads and 4 KV heads of 16, intermediate 384, vocabulary 2048: every width a
// multiple of every panel. Of 4 bits in groups of 32: half a byte a weight and two a group; of the head in 8
// bits, in groups of 32 at the least, a byte and two a group.
TEST(DecodeStep, ReadsTheWeightsAsTheyArePacked) {
  constexpr double kLinears = 2 * (128.0 * 128 * 2 + 128 * 64 * 2 + 128 * 384 * 3), kHead = 2048.0 * 128;
  const Engine dense = load({Compute::kBFloat16, 1, 1}), packed = load({Compute::kBFloat16, 1, 1, true});
  EXPECT_EQ(static_cast<double>(dense.weight_bytes()), 2 * (kLinears + kHead));
  EXPECT_LE(static_cast<double>(packed.weight_bytes()), kLinears * (0.5 + 2. / 32) + kHead * (1 + 2. / 32));
}

}  // namespace
}  // namespace llmq::testing
