// What an expert gives beside the original expert, as the report has it: by its definition, with folds, and
// however many experts go at once; one that is broken stands out by name.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "noisy_mixture.h"

namespace llmq {
namespace {

constexpr const char* kWithoutAttention =
    "scheme: w3a16_g8_sym\nignore: [lm_head, 're:.*self_attn.*']\n"
    "calibration: {samples: 4, sequence_length: 24}\n";

// E(x) in double precision.
std::vector<double> given(const std::vector<float>& gate, const std::vector<float>& up,
                          const std::vector<float>& down, const float* x) {
  constexpr auto kIn = static_cast<std::size_t>(ScratchMixture::kHidden),
                 kInner = static_cast<std::size_t>(ScratchMixture::kWidth);
  std::vector<double> inner(kInner), y(kIn);
  for (std::size_t n = 0; n < kInner; ++n) {
    double g = 0, u = 0;
    for (std::size_t k = 0; k < kIn; ++k) {
      g += static_cast<double>(gate[n * kIn + k]) * x[k];
      u += static_cast<double>(up[n * kIn + k]) * x[k];
    }
    inner[n] = g / (1 + std::exp(-g)) * u;
  }
  for (std::size_t n = 0; n < kIn; ++n)
    for (std::size_t k = 0; k < kInner; ++k) y[n] += static_cast<double>(down[n * kInner + k]) * inner[k];
  return y;
}

std::vector<float> dequantized_values(const QuantizedMatrix& matrix) {
  std::vector<float> values(matrix.codes.size());
  ThreadPool one(1);
  dequantize(matrix, values, one);
  return values;
}

TEST(ExpertError, IsTheChangeOfWhatItGivesToItsRows) {
  NoisyMixture model;
  model.starve_expert_0();  // it is judged on all rows
  const Checkpoint checkpoint = model.open();
  const ExpertJob job(std::string("method: gptq\n") + kWithoutAttention, checkpoint);
  const Json& mixture = job.report.mixtures.front();
  BehindAttention at(model);
  for (std::size_t e = 0; e < 5; ++e) {
    const auto name = [&](const char* linear) {
      return fmt::format("model.layers.0.mlp.experts.{}.{}_proj", e, linear);
    };
    std::vector<float> was[3], is[3];
    for (const auto& [i, linear] : {std::pair{0, "gate"}, {1, "up"}, {2, "down"}}) {
      was[i] = floats_of(model.tensors.at(name(linear) + ".weight"));
      is[i] = dequantized_values(job.output.quantized.at(name(linear)));
    }
    double changed = 0, whole = 0;
    const SeenExpert seen{&at.mixture().experts[e], e == 0 ? std::nullopt : std::optional(e)};
    at.stream.each_expert_input(0, at.weights, {&seen, 1}, ExpertInput::kOfGateAndUp,
                                [&](std::size_t, const TensorView& x) {
                                  for (std::int64_t r = 0; r < x.rows(); ++r) {
                                    const auto before = given(was[0], was[1], was[2], x.row<float>(r)),
                                               after = given(is[0], is[1], is[2], x.row<float>(r));
                                    for (std::size_t i = 0; i < before.size(); ++i) {
                                      changed += std::pow(after[i] - before[i], 2);
                                      whole += std::pow(before[i], 2);
                                    }
                                  }
                                });
    ASSERT_GT(whole, 0);
    // FP32 against double over sums of 24 products.
    EXPECT_NEAR(mixture.at("output_error").items()[e].as_double() / (changed / whole), 1, 1e-4) << e;
  }
}

std::vector<double> errors_of(const Json& mixture) {
  std::vector<double> errors;
  for (const Json& error : mixture.at("output_error").items()) errors.push_back(error.as_double());
  return errors;
}

// One large weight in each group leaves the others of it no codes.
TEST(ExpertError, NamesTheBrokenExpert) {
  NoisyMixture model;
  ScratchTensor& down = model.tensors.at("model.layers.1.mlp.experts.3.down_proj.weight");
  std::vector<float> values = floats_of(down);
  for (std::size_t i = 0; i < values.size(); i += 8) values[i] *= 1e-3f, values[i + 1] = 40;
  // The channels of the large ones are nearly silent: what is lost is what the expert gives.
  down = scratch_tensor("F32", down.shape, values);
  for (const char* linear : {"up_proj", "gate_proj"}) {
    ScratchTensor& rows = model.tensors.at(fmt::format("model.layers.1.mlp.experts.3.{}.weight", linear));
    std::vector<float> into = floats_of(rows);
    for (std::size_t n = 1; n < 24; n += 8)
      for (std::size_t k = 0; k < 16; ++k) into[n * 16 + k] *= 1e-3f;
    rows = scratch_tensor("F32", rows.shape, into);
  }
  const ExpertJob job(std::string("method: gptq\n") + kWithoutAttention, model.open());
  const Json& last = job.report.mixtures.back();
  const std::vector<double> errors = errors_of(last);
  EXPECT_EQ(last.at("worst_expert").as_integer(), 3);
  EXPECT_EQ(last.at("output_error_max").as_double(), errors[3]);
  std::vector<double> sorted = errors;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(last.at("output_error_min").as_double(), sorted.front());
  EXPECT_EQ(last.at("output_error_median").as_double(), sorted[2]);
  EXPECT_GT(errors[3], 3 * sorted[3]) << "it stands out";
}

// A fold changes what experts read and what they are, and nothing of what they give.
TEST(ExpertError, IsThatOfRoundingAloneBehindAFold) {
  const NoisyMixture model;
  const auto errors = [&](const std::string& scheme, std::int64_t at_once = 0) {
    const ExpertJob job("method: awq\nscheme: " + scheme +
                            "\nignore: [lm_head, 're:.*self_attn.*']\n"
                            "calibration: {samples: 4, sequence_length: 24}\n",
                        model.open(), 2, at_once);
    return errors_of(job.report.mixtures.front());
  };
  for (const double error : errors("w8a16_g8_sym")) EXPECT_LT(error, 1e-3);
  const std::vector<double> few_bits = errors("w3a16_g8_sym");
  for (const double error : few_bits) EXPECT_TRUE(error > 1e-3 && error < 0.5) << error;
  EXPECT_EQ(errors("w3a16_g8_sym", 1), few_bits);
  EXPECT_EQ(errors("w3a16_g8_sym", 2), few_bits);
}

}  // namespace
}  // namespace llmq
