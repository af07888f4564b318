// The channels of values rotated (quant/rotation/value_rotation.h) change no function: the logits of every
// family are those of its own weights, but for the rounding of FP32 sums. What has a gate, a latent or a norm
// in between is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "golden_logits.h"
#include "golden_models.h"
#include "quant/rotation/value_rotation.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using testing::logits_of;
using testing::read_tensors;
using testing::Tensors;

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

// Relative to the largest of `before`.
float difference(const std::vector<float>& after, const std::vector<float>& before) {
  std::vector<float> apart;
  for (std::size_t i = 0; i < before.size(); ++i) apart.push_back(after.at(i) - before[i]);
  return largest(apart) / largest(before);
}

// What stands between values and the linear that reads what attention makes of them.
std::string refusal(const std::string& model) {
  const auto is = [&](const char* family) { return model.starts_with(family); };
  if (is("deepseek") || is("kimi") || is("glm4_moe_lite")) return "its values are made of latents";
  if (is("qwen3_5") || is("qwen3_next")) return "a gate multiplies each channel of what attention gives";
  if (model == "gemma4" || model == "gemma4_text" || model == "gemma4_text-moe")
    return "keys and values are made by one linear";
  return "";
}

class RotatedModel : public ::testing::TestWithParam<std::string> {
 protected:
  const Path model_ = testing::model_folder(GetParam());
  const testing::TemporaryDirectory directory_;
};

TEST_P(RotatedModel, ComputesTheSame) {
  const Tensors as_stored = read_tensors(open_checkpoint(system_io(), model_.string()));
  const Checkpoint checkpoint = testing::write_model(as_stored, model_, directory_.path());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  std::string refused;
  Tensors rotated = as_stored;
  try {
    rotated = read_tensors(with_rotated_values(checkpoint, spec, "r.yaml"));
  } catch (const Error& error) {
    refused = error.what();
  }
  if (const std::string expected = refusal(GetParam()); !expected.empty()) {
    EXPECT_THAT(refused, HasSubstr(expected));
    return;
  }
  ASSERT_EQ(refused, "");
  const std::vector<float> before = logits_of(checkpoint);
  EXPECT_LT(difference(logits_of(rotated, model_), before), 2e-5f);
  // Each of the linears was changed, and none has a share in the sameness that it need not have.
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec& attention = *block.attention();
    for (const LinearId id : {attention.output, attention.value.linear}) {
      if (attention.shared_pages && id != attention.output) continue;
      const std::string& name = block.at(id).weight.tensor;
      EXPECT_GT(difference(rotated.at(name).second, as_stored.at(name).second), 0.1f) << name;
      Tensors half = rotated;
      half.at(name) = as_stored.at(name);
      if (&block != &spec.blocks.front()) continue;
      EXPECT_GT(difference(logits_of(half, model_), before), 1e-4f) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RotatedModel, ::testing::ValuesIn(testing::dense_golden_names()),
                         [](const auto& test) { return testing::as_test_name(test.param); });

}  // namespace
}  // namespace llmq
