// Several devices of one kind, or several ranks, and one of them: the same bytes, whatever the samples'
// length and whoever is late.
#include <gmock/gmock.h>

#include <atomic>

#include "base/error.h"
#include "captured_output.h"
#include "device/cuda/cuda_backend.h"
#include "quant/methods/gram_loss.h"
#include "quant/pipeline/activation_stream.h"
#include "ranks/agreement.h"
#include "ranks/thread_ranks.h"
#include "small_job.h"
#include "support/named_parts.h"
#include "support/recording_device.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq {
namespace {

std::vector<std::shared_ptr<Backend>> devices_of(const std::string& kind, int count) {
  std::vector<std::shared_ptr<Backend>> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back(kind == "cpu" ? make_cpu_backend(1) : make_emulated_cuda_backend(1, {i}));
  return devices;
}

struct Work {
  std::string kind, recipe;
  std::int64_t samples, length, chunk;
  Compute compute = Compute::kFloat32;
};

CapturedOutput quantize_work(const Work& work, int count) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Recipe recipe =
      Recipe::parse(work.recipe + fmt::format("calibration: {{samples: {}, sequence_length: {}}}\n",
                                              work.samples, work.length),
                    "r.yaml");
  Plan plan = make_plan(recipe, checkpoint, spec, work.compute, 1, 0);
  plan.chunk_tokens = work.chunk;
  const std::vector<std::shared_ptr<Backend>> devices = devices_of(work.kind, count);
  PipelineOptions options;
  options.further_devices.assign(devices.begin() + 1, devices.end());
  CapturedOutput output;
  run_pipeline(plan, checkpoint, spec, some_samples(work.samples, work.length), *devices.front(), output,
               options);
  return output;
}

void expect_same_output(const CapturedOutput& a, const CapturedOutput& b) {
  ASSERT_EQ(a.quantized.size(), b.quantized.size());
  for (const auto& [name, matrix] : a.quantized) {
    const QuantizedMatrix& other = b.quantized.at(name);
    EXPECT_EQ(matrix.codes, other.codes) << name;
    EXPECT_EQ(matrix.scales, other.scales) << name;
    EXPECT_EQ(matrix.zeros, other.zeros) << name;
    EXPECT_EQ(matrix.input_scale, other.input_scale) << name;
    EXPECT_EQ(matrix.loss, other.loss) << name;
  }
  EXPECT_EQ(a.dense, b.dense);
}

TEST(Devices, AProfileNamesBlocksAndStages) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Recipe recipe = Recipe::parse(
      "method: gptq\nscheme: w4a16_g32_sym\ncalibration: {samples: 1, sequence_length: 16}\n", "r.yaml");
  testing::DeviceNotes notes;
  CapturedOutput output;
  run_pipeline(make_plan(recipe, checkpoint, spec, Compute::kFloat32, 1, 0), checkpoint, spec,
               some_samples(1, 16), *testing::recording_backend(notes), output, {});
  EXPECT_EQ(notes.open, 0);
  for (const std::size_t block : {0, 1}) {
    const auto begin = std::find(notes.ranges.begin(), notes.ranges.end(), fmt::format("block {}", block));
    ASSERT_NE(begin, notes.ranges.end());
    for (const std::string& stage :
         {std::string("x_attn statistics"), fmt::format("model.layers.{}.self_attn.q_proj", block),
          std::string("x_o forward")})
      EXPECT_NE(std::find(begin, notes.ranges.end(), " " + stage), notes.ranges.end()) << stage;
  }
}

// Chunks of 20 tokens end inside what is summed at once, and three chunks are no multiple of two devices.
// awq,gptq folds, takes back upstream error from every second chunk or from all, and the cache's scales are
// maxima over all chunks.
TEST(Devices, SumsThatEndInsideAChunkAreThoseOfOneDevice) {
  for (const char* recipe :
       {"method: [awq, gptq]\nscheme: w4a16_g32_asym\nformat: compressed-tensors\nkv_cache: {dtype: "
        "fp8}\nawq: {grid: 3}\n",
        "method: smoothquant\nscheme: w8a8_channel_sym_static\nformat: compressed-tensors\n"}) {
    const Work work{"cpu", recipe, 5, 20, 20};
    const CapturedOutput one = quantize_work(work, 1);
    for (const int count : {2, 3}) expect_same_output(quantize_work(work, count), one);
  }
}

// Nothing of one device is given to another: their memory has different names, which every operation checks.
TEST(Devices, EmulatedOnesGiveTheBytesOfOne) {
  const Work work{"emulated",
                  "method: [awq, gptq]\nscheme: w4a16_g32_sym\nawq: {grid: 2}\nignore: ['re:.*layers.1.*', "
                  "'re:.*(q|k|v|gate|up)_proj']\n",
                  3, 16, 16};
  expect_same_output(quantize_work(work, 2), quantize_work(work, 1));
}

// Chunks of 4,096 tokens and of fewer, and a rest.
TEST(Devices, StatisticsOfSeveralCollectorsHaveTheBitsOfOne) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  for (const std::int64_t length : {std::int64_t{512}, std::int64_t{200}}) {
    const CalibrationSet samples = some_samples(11000 / length, length);
    std::vector<std::byte> expected;
    for (const int count : {1, 2, 3}) {
      const std::vector<std::shared_ptr<Backend>> devices = devices_of("cpu", count);
      std::vector<ForwardContext> contexts;
      std::vector<BlockWeights> weights;
      for (const auto& device : devices) {
        contexts.push_back(make_forward_context(spec, *device, Compute::kBFloat16, length));
        weights.push_back(load_block(*device, Compute::kBFloat16, source, spec.blocks[0]));
      }
      ActivationStream stream(contexts, samples, 4096 / length * length, {});
      stream.embed(checkpoint, samples);
      const InputStats stats =
          stream.statistics(site_named(spec.blocks[0], "x_attn"), 0, weights, Samples::kAll);
      if (count == 1) expected = stats.save();
      EXPECT_EQ(stats.tokens(), samples.tokens());
      EXPECT_TRUE(stats.save() == expected) << count << " devices, samples of " << length;
    }
  }
}

// A chunk of 20 tokens for each of the three samples.
testing::SmallJob ranked_job(const std::string& recipe, const Path& output, int threads = 1) {
  testing::SmallJob job{recipe, {output, false, 20'000}, threads};
  job.chunk_tokens = 20;
  return job;
}

// What ranks read is their own, as in processes.
Checkpoint opened_again(const Checkpoint& checkpoint) {
  return open_checkpoint(system_io(), checkpoint.path().string());
}

// By so many ranks, of which no two have room for as many experts; what rank 0 gives back. `on_step` is told
// which rank it is.
testing::SmallJob::Result run_by_ranks(
    const testing::SmallJob& job, const Checkpoint& checkpoint, int count,
    const std::function<void(int)>& on_step = [](int) {}, Io& io = system_io()) {
  testing::SmallJob::Result result;
  run_as_ranks(count, [&](Ranks& ranks) {
    testing::SmallJob own = job;
    own.target.ranks = &ranks;
    own.threads = 1 + ranks.rank() % 2;
    own.experts_at_once = 2 + ranks.rank();
    own.on_step = [&] { on_step(ranks.rank()); };
    const testing::SmallJob::Result found = own.run(io, opened_again(checkpoint));
    if (ranks.rank() == 0) result = found;
  });
  return result;
}

Json without_history(const QuantizeReport& report) {
  Json json = report.to_json();
  for (const char* history : {"seconds", "seconds_by_part", "resumed_blocks"}) json.erase(history);
  return json;
}

Checkpoint small_mixture() {
  static ScratchMixture model;
  model.config["vocab_size"] = 96;
  for (const char* table : {"model.embed_tokens.weight", "lm_head.weight"})
    model.tensors[table] = noise_tensor({96, ScratchMixture::kHidden}, 7);
  return model.open();
}

void expect_the_bytes_of_one_rank(const Checkpoint& checkpoint, const std::string& recipe) {
  SCOPED_TRACE(recipe);
  const testing::TemporaryDirectory disk;
  const testing::SmallJob::Result once = ranked_job(recipe, disk / "one").run(system_io(), checkpoint);
  for (const int count : {2, 3}) {
    const Path output = disk / fmt::format("by-{}", count);
    const testing::SmallJob::Result shared = run_by_ranks(ranked_job(recipe, output), checkpoint, count);
    EXPECT_EQ(shared.digest, once.digest) << count << " ranks";
    EXPECT_EQ(output_digest(system_io(), output), once.digest);
    EXPECT_EQ(without_history(shared.report), without_history(once.report)) << count << " ranks";
  }
}

TEST(RankedSamples, EveryMethodGivesTheBytesAndTheReportOfOneProcess) {
  const testing::TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), testing::write_tiny_checkpoint(models));
  for (const char* recipe :
       {"method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 3}\nkv_cache: {dtype: fp8}\n",
        "method: gptq\nscheme: w4a16_g32_sym\nformat: gptq\ngptq: {upstream_share: 0.5}\n",
        "method: [awq, gptq]\nscheme: w4a16_g32_asym\nawq: {grid: 3}\n",
        "method: [smoothquant, gptq]\nscheme: w4a8_g32\n",
        "method: smoothquant\nscheme: w8a8_channel_sym_static\nformat: compressed-tensors\n",
        "method: gptq\nscheme: nvfp4\n"})
    expect_the_bytes_of_one_rank(checkpoint, recipe);
}

TEST(RankedSamples, SoDoRanksOfSeveralDevicesEach) {
  const testing::TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), testing::write_tiny_checkpoint(models));
  testing::SmallJob job =
      ranked_job("method: [awq, gptq]\nscheme: w4a16_g32_asym\nawq: {grid: 2}\n", models / "one");
  const std::string digest = job.run(system_io(), checkpoint).digest;
  job.target.directory = models / "shared";
  job.further_devices = 1;
  EXPECT_EQ(run_by_ranks(job, checkpoint, 2).digest, digest);
}

// Rows of experts lie among those of other ranks, some have none, and 8-bit inputs are judged on some rows.
TEST(RankedSamples, SoDoExpertsOfAMixture) {
  for (const char* recipe : {"method: [awq, gptq]\nscheme: w4a16_g8_sym\n", "method: gptq\nscheme: w8a8\n"})
    expect_the_bytes_of_one_rank(small_mixture(), recipe);
}

struct RankEnds {};

// A rank ends at a linear, or at a block that it replays; others go on from the blocks that all had.
TEST(RankedSamples, AnotherNumberOfRanksGoesOn) {
  const testing::TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), testing::write_tiny_checkpoint(models));
  const std::string recipe = "method: [awq, gptq]\nscheme: w4a16_g32_asym\nawq: {grid: 2}\n";
  const testing::SmallJob::Result once = ranked_job(recipe, models / "whole").run(system_io(), checkpoint);
  int number = 0;
  for (const auto& [before, after] : std::vector<std::pair<int, int>>{{3, 1}, {1, 3}, {2, 3}, {3, 2}}) {
    for (const int step : {3, 8, 13}) {
      const int victim = step % before;
      SCOPED_TRACE(fmt::format("rank {} of {} ends at step {}, {} go on", victim, before, step, after));
      const testing::SmallJob job = ranked_job(recipe, models / fmt::format("parts{}", ++number));
      std::atomic<int> left = step;
      EXPECT_THROW(run_by_ranks(job, checkpoint, before,
                                [&](int rank) {
                                  if (rank == victim && left-- == 0) throw RankEnds();
                                }),
                   RankEnds);
      EXPECT_FALSE(system_io().exists(job.target.directory));
      const testing::SmallJob::Result done = run_by_ranks(job, checkpoint, after);
      EXPECT_EQ(done.digest, once.digest);
      EXPECT_EQ(output_digest(system_io(), job.target.directory), once.digest);
      EXPECT_EQ(without_history(done.report), without_history(once.report));
    }
    const testing::SmallJob job = ranked_job(recipe, models / fmt::format("parts{}", ++number));
    testing::FullJournalIo io(testing::kRecordsToTheFirstBlock);
    EXPECT_THROW(run_by_ranks(
                     job, checkpoint, before, [](int) {}, io),
                 Error);
    const testing::SmallJob::Result done = run_by_ranks(job, checkpoint, after);
    EXPECT_EQ(done.report.resumed_blocks, 1) << before << " ranks had finished it, and " << after << " go on";
    EXPECT_EQ(done.digest, once.digest);
    EXPECT_EQ(without_history(done.report), without_history(once.report));
  }
}

// What all of them see is said once for all; what one does is that one's.
TEST(RankedSamples, ActivationsThatAreNotFiniteEndAllAlike) {
  const testing::TemporaryDirectory disk;
  ScratchModel model;
  model.tensors["model.layers.0.input_layernorm.weight"] =
      scratch_tensor("F32", {16}, std::vector<float>(16, 3e38f));
  model.config["vocab_size"] = 96;
  for (const char* table : {"model.embed_tokens.weight", "lm_head.weight"})
    model.tensors[table] = noise_tensor({96, 16}, 7);
  const Checkpoint checkpoint = model.open();
  std::atomic<int> told = 0;
  run_as_ranks(3, [&](Ranks& ranks) {
    testing::SmallJob job = ranked_job("method: gptq\nscheme: w4a16_g8_sym\n", disk / "out");
    job.target.ranks = &ranks;
    try {
      job.run(system_io(), opened_again(checkpoint));
    } catch (const RanksRefused& refused) {
      EXPECT_THAT(refused.what(), ::testing::HasSubstr("are not finite"));
      ++told;
    }
  });
  EXPECT_EQ(told, 3);
}

// What rows lose is found by whoever has them, on hosts and on devices that make differences themselves.
TEST(RankedSamples, RowsAreDealtWhereTheyAreJudged) {
  constexpr std::int64_t kRows = 70, kChannels = 32;
  const std::vector<float> weight = floats_of(noise_tensor({kRows, kChannels}, 5)),
                           gram = floats_of(noise_tensor({kChannels, kChannels}, 6));
  QuantScheme scheme;
  scheme.group_size = 16;
  const std::vector<float> ones(kChannels, 1.0f), halves(kChannels, 0.5f);
  const std::vector<const std::vector<float>*> scales = {&ones, &halves};
  const std::vector<GramLoss::Shrink> shrinks = {{1, 1}, {0.5f, 0.75f}, {0.25f, 1}};
  for (const char* kind : {"cpu", "emulated"}) {
    std::vector<std::vector<double>> expected;
    for (const int size : {1, 2, 3})
      run_as_ranks(size, [&](Ranks& ranks) {
        const std::shared_ptr<Backend> backend = devices_of(kind, 1).front();
        ThreadPool& pool = backend->workers();
        GramLoss loss(gram, kChannels, *backend, Compute::kFloat32, {}, ranks);
        const auto row = [&](std::int64_t i) { return weight.data() + i * kChannels; };
        std::vector<std::vector<double>> found = loss.scaled_losses(
            kRows,
            [&](std::int64_t i) {
              return GramLoss::Row{row(i), &scheme};
            },
            scales, pool);
        found.push_back(loss.shrunk_losses(
            kRows,
            [&](std::int64_t i) {
              return GramLoss::RangedRow{row(i), {-0.5f, 0.5f}};
            },
            shrinks, scheme, pool));
        found.push_back({output_energy(weight, kRows, kChannels, loss, pool)});
        if (size == 1) expected = found;
        EXPECT_EQ(found, expected) << kind << ", rank " << ranks.rank() << " of " << size;
      });
  }
}

// Every chunk is one rank's, and those of the original model's samples lie where the same ones of the
// quantized model lie.
TEST(RankedSamples, ChunksAreDealtInRuns) {
  for (const int size : {1, 2, 3, 7})
    for (const std::int64_t chunks : {7, 8, 64})
      for (const std::size_t stride : {1, 2, 3, 9}) {
        std::atomic<std::size_t> all = 0, some = 0;
        run_as_ranks(size, [&](Ranks& ranks) {
          const ChunkRun own = own_chunks(chunks, ranks), every = own.every(stride);
          EXPECT_GT(own.end, own.first);
          for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(chunks); ++chunk) {
            all += own.has(chunk);
            if (chunk % stride != 0) continue;
            some += every.has(chunk / stride);
            EXPECT_EQ(own.has(chunk), every.has(chunk / stride));
          }
        });
        EXPECT_EQ(all, static_cast<std::size_t>(chunks));
        EXPECT_EQ(some, (static_cast<std::size_t>(chunks) + stride - 1) / stride);
      }
}

}  // namespace
}  // namespace llmq
