// The fast transform is the product with Sylvester's matrix; what a recipe with `rotate` plans, and refuses.
#include "quant/rotation/value_rotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/error.h"
#include "model/open_checkpoint.h"
#include "quant/plan/plan.h"
#include "tests/support/stored_copy.h"
#include "tests/unit/quant/small_job.h"

namespace llmq {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Of numbers between which others lie, which stay.
TEST(RotateByHadamard, IsTheProductWithSylvestersMatrix) {
  for (const std::int64_t n : {1, 2, 4, 8, 64}) {
    constexpr std::int64_t kStride = 5, kWidth = 3;
    testing::Sequence sequence(static_cast<std::uint64_t>(n));
    std::vector<float> numbers(static_cast<std::size_t>(n * kStride));
    for (float& number : numbers) number = static_cast<float>(sequence.next(1000)) / 100 - 5;
    std::vector<float> rotated = numbers;
    rotate_by_hadamard(rotated, n, kStride, kWidth);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t w = 0; w < kStride; ++w) {
        const auto at = [&](std::int64_t k) { return static_cast<std::size_t>(k * kStride + w); };
        double sum = 0;
        for (std::int64_t k = 0; k < n; ++k)
          sum += (std::popcount(static_cast<std::uint64_t>(i & k)) % 2 == 0 ? 1 : -1) * numbers[at(k)];
        const double expected = w < kWidth ? sum / std::sqrt(static_cast<double>(n)) : numbers[at(i)];
        EXPECT_NEAR(rotated[at(i)], expected, 1e-5) << n << ": " << i << ", " << w;
      }
    rotate_by_hadamard(rotated, n, kStride, kWidth);
    for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(rotated[i], numbers[i], 1e-5);
  }
}

TEST(HadamardSize, IsTheGreatestPowerOfTwoThatDividesAHead) {
  EXPECT_EQ(hadamard_size(64), 64);
  EXPECT_EQ(hadamard_size(96), 32);
  EXPECT_EQ(hadamard_size(80), 16);
  EXPECT_EQ(hadamard_size(7), 1);
}

// Of a model with biases in q, k and v, or in all linears: what is read, folded into and written of them is
// that of a copy which was rotated and stored.
TEST(RotatedBiases, GiveTheBytesOfARotatedCopy) {
  for (const char* model : {"qwen2-window", "opt"}) {
    const testing::TemporaryDirectory disk;
    const std::string from = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/" + model + "/model";
    const Checkpoint checkpoint = open_checkpoint(system_io(), from);
    const Checkpoint rotated = with_rotated_values(checkpoint, ModelSpec::read(checkpoint), "r.yaml");
    testing::store_copy(rotated, disk / "copy");
    const auto digest_of = [&](const Checkpoint& source, const char* into) {
      testing::SmallJob job;
      job.recipe = "method: [awq, gptq]\nscheme: w4a16_g8_asym\n";
      job.target.directory = disk / into;
      return job.run(system_io(), source).digest;
    };
    const std::string of_rotated = digest_of(rotated, "one");
    EXPECT_EQ(of_rotated, digest_of(open_checkpoint(system_io(), (disk / "copy").string()), "two")) << model;
    EXPECT_NE(of_rotated, digest_of(checkpoint, "plain")) << model;
  }
}

class RotatedPlan : public ::testing::Test {
 protected:
  Plan plan(const std::string& more) const {
    const Recipe recipe = Recipe::parse(
        "method: gptq\nscheme: w4a16_g32_asym\ncalibration: {sequence_length: 32}\n" + more, "r.yaml");
    return make_plan(recipe, checkpoint_, spec_, Compute::kFloat32, 1, 0);
  }
  std::string refusal(const std::string& more) const {
    try {
      plan(more);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  testing::TemporaryDirectory disk_;
  Checkpoint checkpoint_ = open_checkpoint(system_io(), testing::write_tiny_checkpoint(disk_));
  ModelSpec spec_ = ModelSpec::read(checkpoint_);
};

TEST_F(RotatedPlan, NamesTheLinears) {
  EXPECT_TRUE(plan("").rotated.empty());
  EXPECT_TRUE(plan("rotate: {value: none}\n").rotated.empty());
  const std::vector<RotatedHeads> rotated = plan("rotate: {value: hadamard}\n").rotated;
  ASSERT_EQ(rotated.size(), 1u);
  EXPECT_EQ(rotated.front().size, spec_.blocks[0].attention()->head_dim);
  EXPECT_THAT(rotated.front().values,
              ElementsAre("model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj"));
  EXPECT_THAT(rotated.front().outputs,
              ElementsAre("model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"));
}

TEST_F(RotatedPlan, SaysWhatWasMeasuredToGainNothing) {
  const std::string nvfp4 =
      "rotate: {value: hadamard}\noverrides: [{match: 're:.*o_proj', scheme: nvfp4a16}]\n";
  EXPECT_THAT(plan(nvfp4).warnings, Contains(HasSubstr("rotate.value: weights of NVFP4 and MXFP4")));
  for (const char* other : {"", "overrides: [{match: 're:.*mlp.*', scheme: nvfp4a16}]\n"})
    EXPECT_THAT(plan(std::string("rotate: {value: hadamard}\n") + other).warnings,
                Not(Contains(HasSubstr("rotate.value"))))
        << other;
}

TEST_F(RotatedPlan, RefusesABudgetThatMayLeaveLinearsDense) {
  EXPECT_THAT(
      refusal("rotate: {value: hadamard}\ntarget_bits: 5\n"),
      HasSubstr("mixed.bits: the candidate that stays dense may be what makes or reads rotated values; "
                "write [4, 8], or leave out rotate"));
  EXPECT_EQ(refusal("rotate: {value: hadamard}\ntarget_bits: 5\nmixed: {bits: [4, 8]}\n"), "");
}

TEST_F(RotatedPlan, RefusesALinearThatStaysDense) {
  for (const char* left : {"ignore: ['re:.*layers.1.*o_proj']\n",
                           "overrides: [{match: 're:.*layers.1.*o_proj', scheme: dense}]\n"})
    EXPECT_THAT(
        refusal(std::string("rotate: {value: hadamard}\n") + left),
        HasSubstr("r.yaml: rotate.value: model.layers.1.self_attn.o_proj would be rotated, and it stays "
                  "dense; quantize the linears"));
}

}  // namespace
}  // namespace llmq
