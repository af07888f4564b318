// A run that is killed at any call to the disk and started again writes what an uninterrupted one writes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "model/open_checkpoint.h"
#include "small_job.h"
#include "tests/support/killing_io.h"
#include "tests/unit/model/scratch_gpt_oss.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kKilledAwq = "method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 3, clip: false}\n";
constexpr const char* kKilledGptq =
    "method: gptq\nscheme: w4a16_g32_sym\ngptq: {upstream_share: 0.5}\nignore: [lm_head, "
    "'re:.*layers.1.*o_proj']\n";

// What lies at the output's name is whole or nothing.
void expect_nothing_torn(const Path& output, const std::string& digest) {
  if (!system_io().exists(output) || system_io().list(output).empty()) return;
  EXPECT_EQ(output_digest(system_io(), output), digest);
  EXPECT_TRUE(system_io().exists(output / kReportFile));
}

// How many calls a run makes, each of which was its last once.
int kill_everywhere(const Checkpoint& checkpoint, const std::string& recipe, std::uint64_t shard_bytes) {
  const TemporaryDirectory models;
  const SmallJob whole{recipe, {models / "whole", false, shard_bytes}};
  const std::string digest = whole.run(system_io(), checkpoint).digest;
  for (int k = 0;; ++k) {
    SCOPED_TRACE(fmt::format("killed at call {}", k));
    const TemporaryDirectory disk;
    const SmallJob job{recipe, {disk / "out", false, shard_bytes}};
    const bool survived = survives([&] {
      KillingIo io(k);
      job.run(io, checkpoint);
    });
    expect_nothing_torn(disk / "out", digest);
    EXPECT_EQ(job.run(system_io(), checkpoint).digest, digest);
    EXPECT_EQ(output_digest(system_io(), disk / "out"), digest);
    EXPECT_THAT(system_io().list(disk.path()), ElementsAre("out"));
    if (survived) return k;
    if (::testing::Test::HasFailure()) return 0;
  }
}

int kill_everywhere(const std::string& recipe, std::uint64_t shard_bytes) {
  const TemporaryDirectory models;
  return kill_everywhere(open_checkpoint(system_io(), write_tiny_checkpoint(models)), recipe, shard_bytes);
}

TEST(Resume, AwqKilledAtEveryCall) { EXPECT_GT(kill_everywhere(kKilledAwq, 5'000'000'000), 60); }
TEST(Resume, GptqKilledAtEveryCall) { EXPECT_GT(kill_everywhere(kKilledGptq, 100'000), 80); }
TEST(Resume, RoundingKilledAtEveryCall) {
  EXPECT_GT(kill_everywhere("method: rtn\nscheme: w8a16_channel_sym\n", 5'000'000'000), 60);
}

// Stacks of one block are copied, those of the other are put together in memory.
TEST(Resume, StacksKilledAtEveryCall) {
  ScratchGptOss model;
  model.as_mxfp4();
  EXPECT_GT(kill_everywhere(model.open(),
                            "method: rtn\nscheme: mxfp4\nformat: mxfp4\nignore: ['re:.*self_attn', "
                            "'re:.*layers.0.']\n",
                            20'000),
            60);
}

// Leaves the pipeline at the end of the first block.
void interrupt_after_first_block(const SmallJob& job, const Checkpoint& checkpoint) {
  FullJournalIo io(kRecordsToTheFirstBlock);
  EXPECT_THROW(job.run(io, checkpoint), Error);
}

// Every way of computing in the blocks goes on from the files alone: nothing of the first block's work was
// only in memory.
TEST(Resume, GoesOnUnderEveryMethodAndFormat) {
  const TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(models));
  for (const std::string& recipe : std::vector<std::string>{
           kKilledAwq, kKilledGptq, "method: awq\nscheme: w4a16_g32_asym\nformat: awq\nawq: {grid: 3}\n",
           "method: gptq\nscheme: w4a16_g32_sym\nformat: gptq\n",
           "method: gptq\nscheme: w3a16_g32_asym\nformat: gptq_v2\n",
           "method: gptq\nscheme: w4a16_g32_asym\ngptq: {order: act}\n",
           "method: smoothquant\nscheme: w8a8\n", "method: [smoothquant, gptq]\nscheme: w4a8_g32\n",
           "method: rtn\nscheme: fp8\n",
           "method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 3}\nkv_cache: {dtype: fp8}\n",
           "method: [awq, gptq]\nscheme: w4a16_g32_asym\n"}) {
    SCOPED_TRACE(recipe);
    const TemporaryDirectory disk;
    const SmallJob whole{recipe, {disk / "whole", false}}, parts{recipe, {disk / "parts", false}, 3};
    const SmallJob::Result once = whole.run(system_io(), checkpoint);
    interrupt_after_first_block(parts, checkpoint);
    EXPECT_THAT(system_io().list(disk.path()), ElementsAre("parts.unfinished", "whole"));
    const SmallJob::Result resumed = parts.run(system_io(), checkpoint);
    EXPECT_EQ(resumed.report.resumed_blocks, 1);
    EXPECT_EQ(resumed.digest, once.digest);
    Json before = once.report.to_json(), after = resumed.report.to_json();
    for (const char* history : {"seconds", "seconds_by_part", "resumed_blocks"})
      before.erase(history), after.erase(history);
    EXPECT_EQ(before, after) << "the report is that of one run";
  }
}

// A mixture's experts: the report of those of the first block, and the samples through it once more.
TEST(Resume, GoesOnBehindCalibratedExperts) {
  ScratchMixture model;
  model.config["vocab_size"] = 96;
  for (const char* table : {"model.embed_tokens.weight", "lm_head.weight"})
    model.tensors[table] = noise_tensor({96, ScratchMixture::kHidden}, 7);
  const Checkpoint checkpoint = model.open();
  for (const char* method : {"method: gptq\n", "method: awq\n", "method: [awq, gptq]\n"}) {
    SCOPED_TRACE(method);
    const TemporaryDirectory disk;
    const std::string recipe = std::string(method) + "scheme: w4a16_g8_sym\n";
    const SmallJob whole{recipe, {disk / "whole", false}}, parts{recipe, {disk / "parts", false}, 3};
    const SmallJob::Result once = whole.run(system_io(), checkpoint);
    interrupt_after_first_block(parts, checkpoint);
    const SmallJob::Result resumed = parts.run(system_io(), checkpoint);
    EXPECT_EQ(resumed.report.resumed_blocks, 1);
    EXPECT_EQ(resumed.digest, once.digest);
    ASSERT_EQ(once.report.mixtures.size(), 2u);
    EXPECT_EQ(resumed.report.mixtures, once.report.mixtures);
  }
}

// What a fold makes of a reader that stays dense is read from the files, too.
TEST(Resume, GoesOnBehindReadersThatAreNeverQuantized) {
  const TemporaryDirectory models, disk;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(models));
  const auto router = [](ModelSpec& spec) {
    for (BlockSpec& block : spec.blocks)
      for (LinearSpec& linear : block.linears)
        if (linear.module.ends_with("gate_proj")) linear.quantizable = false;
  };
  constexpr const char* kFolded = "method: smoothquant\nscheme: w8a8\nsmoothquant: {alpha: 0.5}\n";
  const SmallJob whole{kFolded, {disk / "whole", false}, 1, router},
      parts{kFolded, {disk / "parts", false}, 3, router};
  const SmallJob::Result once = whole.run(system_io(), checkpoint);
  const auto gate = [](const Checkpoint& from) {
    return from.read_float32(from.at("model.layers.0.mlp.gate_proj.weight"));
  };
  EXPECT_NE(gate(open_checkpoint(system_io(), (disk / "whole").string())), gate(checkpoint));
  interrupt_after_first_block(parts, checkpoint);
  const SmallJob::Result resumed = parts.run(system_io(), checkpoint);
  EXPECT_EQ(resumed.report.resumed_blocks, 1);
  EXPECT_EQ(resumed.digest, once.digest);
}

TEST(Resume, SameBytesAtAnyThreadCountInOnePartOrTwo) {
  const TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(models));
  for (const char* recipe : {kKilledAwq, kKilledGptq}) {
    std::set<std::string> digests;
    for (const int threads : {1, 2, 3, 8}) {
      const TemporaryDirectory disk;
      digests.insert(SmallJob{recipe, {disk / "whole", false}, threads}.run(system_io(), checkpoint).digest);
      interrupt_after_first_block({recipe, {disk / "parts", false}, threads}, checkpoint);
      const SmallJob rest{recipe, {disk / "parts", false}, 9 - threads};
      digests.insert(rest.run(system_io(), checkpoint).digest);
    }
    EXPECT_EQ(digests.size(), 1u) << recipe;
  }
}

TEST(Resume, AnotherJobIsToldWhatDiffers) {
  const TemporaryDirectory disk;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(disk));
  SmallJob job{kKilledAwq, {disk / "out", false}};
  interrupt_after_first_block(job, checkpoint);
  job.recipe = "method: rtn\nscheme: w4a16_g32_asym\n";
  try {
    job.run(system_io(), checkpoint);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("recipe has changed"));
    EXPECT_THAT(error.what(), HasSubstr("--restart"));
  }
  EXPECT_FALSE(system_io().exists(disk / "out"));
  job.target.restart = true;
  EXPECT_EQ(job.run(system_io(), checkpoint).report.resumed_blocks, 0);
  EXPECT_THAT(system_io().list(disk.path()), ElementsAre("out", "tiny"));
}

// Bytes that are not what the journal says are done again, with every block after them.
TEST(Resume, ADamagedBlockIsDoneAgain) {
  const TemporaryDirectory disk;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(disk));
  const SmallJob whole{kKilledAwq, {disk / "whole", false}}, job{kKilledAwq, {disk / "out", false}};
  const std::string digest = whole.run(system_io(), checkpoint).digest;
  interrupt_after_first_block(job, checkpoint);
  {
    const auto file = system_io().open_to_write(disk / "out.unfinished/files/model.safetensors");
    const auto shards = Checkpoint::open_shards(system_io(), disk.path(),
                                                {disk / "out.unfinished/files/model.safetensors"}, Json());
    const std::byte flipped{0x5a};
    file->write_at(shards.at("model.layers.0.self_attn.q_proj.weight_packed").offset + 3, {&flipped, 1});
  }
  const SmallJob::Result result = job.run(system_io(), checkpoint);
  EXPECT_EQ(result.report.resumed_blocks, 0);
  EXPECT_EQ(result.digest, digest);
}

}  // namespace
}  // namespace llmq::testing
