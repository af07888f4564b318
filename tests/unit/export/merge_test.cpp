// An adapter folded into a model: W + scale B A, rounded once.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/adapters/lora_adapter.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "tests/support/tiny_adapter.h"
#include "tests/support/tolerance.h"
#include "tests/unit/export/convert_fixture.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

class MergeTest : public ConvertTest {
 protected:
  MergeTest() : adapter_(write_tiny_adapter(ModelSpec::read(open("tiny")), disk_ / "adapter")) {}

  ConvertReport merge(const Path& from, const Path& to, std::optional<std::string> dtype = {}) {
    ConvertRequest request;
    request.source = from.string();
    request.adapter = adapter_;
    request.target.directory = to;
    request.dtype = std::move(dtype);
    return convert(system_io(), open_checkpoint(system_io(), request.source), request);
  }

  std::string adapter_;
};

// W + scale B A in FP64, in a linear's own order.
std::vector<double> folded_in_fp64(const std::vector<float>& weight, const LoraPair& pair) {
  std::vector<double> folded(weight.begin(), weight.end());
  const auto rank = static_cast<std::size_t>(pair.rank), width = static_cast<std::size_t>(pair.in_features);
  for (std::size_t i = 0; i < folded.size(); ++i)
    for (std::size_t k = 0; k < rank; ++k)
      folded[i] += static_cast<double>(pair.scale) * static_cast<double>(pair.up[i / width * rank + k]) *
                   static_cast<double>(pair.down[k * width + i % width]);
  return folded;
}

TEST_F(MergeTest, ALinearGetsTheProductAndEverythingElseStays) {
  const ConvertReport report = merge(source_, disk_ / "merged");
  EXPECT_EQ(report.folded, 14u);
  EXPECT_EQ(report.dtype, "as stored");
  const Checkpoint before = open("tiny"), after = open("merged");
  const ModelSpec spec = ModelSpec::read(before);
  const LoraAdapter adapter = LoraAdapter::open(system_io(), adapter_, spec);
  std::set<std::string> changed;
  for (std::size_t block = 0; block < spec.blocks.size(); ++block)
    for (const LinearSpec& linear : spec.blocks[block].linears) {
      const std::string name = linear.module + ".weight";
      changed.insert(name);
      const std::vector<double> wanted =
          folded_in_fp64(before.read_float32(before.at(name)), adapter.pair(block, linear.id));
      EXPECT_EQ(after.at(name).view.dtype, DType::kBF16);
      const std::vector<float> found = after.read_float32(after.at(name));
      // One rounding to BF16 of a sum whose terms, below 1 together, meet rank + 2 roundings to FP32.
      for (std::size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(static_cast<double>(found[i]), wanted[i],
                    bf16_rounding_bound(wanted[i]) + (1 + kBf16Roundoff) * gamma(6))
            << name << " " << i;
    }
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const StoredTensor& tensor : before.tensors()) {
    if (changed.count(tensor.name) != 0) continue;
    const StoredTensor& kept = after.at(tensor.name);
    ASSERT_EQ(kept.view.dtype, tensor.view.dtype);
    EXPECT_EQ(std::memcmp(kept.view.pointer, tensor.view.pointer, tensor.view.bytes()), 0) << tensor.name;
  }
  EXPECT_EQ(disk_.read("merged/tokenizer.json"), disk_.read("tiny/tokenizer.json"));
}

TEST_F(MergeTest, RoundsOnce) {
  merge(source_, disk_ / "f32", "f32");
  merge(source_, disk_ / "bf16");
  const Checkpoint exact = open("f32"), rounded = open("bf16");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const std::vector<float> whole = exact.read_float32(exact.at(name)),
                           found = rounded.read_float32(rounded.at(name));
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(found[i], to_float(to_bfloat16(whole[i])));
}

TEST_F(MergeTest, AQuantizedModelIsRefused) {
  pack("compressed-tensors", scheme_of(4, 32, false));
  const std::string said = [&]() -> std::string {
    try {
      merge(disk_ / "packed", disk_ / "merged");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }();
  EXPECT_THAT(said, HasSubstr("is quantized (compressed-tensors)"));
  EXPECT_FALSE(system_io().exists(disk_ / "merged"));
}

TEST_F(MergeTest, WhatLeavesTheRangeIsRefusedAndNothingIsLeft) {
  TinyAdapter huge;
  huge.size = 1e20f;
  huge.make(ModelSpec::read(open("tiny")));
  adapter_ = huge.write((disk_ / "huge").string());
  EXPECT_THROW(merge(source_, disk_ / "merged"), Error);
  EXPECT_FALSE(system_io().exists(disk_ / "merged"));
}

}  // namespace
}  // namespace llmq::testing
