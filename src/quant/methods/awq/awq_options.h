// What a recipe may say of AWQ: its keys awq.*.
#pragma once
#include <cstdint>

namespace llmq {

struct AwqOptions {
  int grid = 20;
  enum class Duo : std::uint8_t { kNo, kYes, kBoth } duo_scaling = Duo::kBoth;
  bool clip = true;
  // Not AWQ but the baseline that its paper compares it with: this share of the input channels stays as it
  // is, the rest is rounded to nearest, no scale moves (quant/methods/awq/salient_columns.h). 0: AWQ.
  double salient_fp16 = 0;
  bool operator==(const AwqOptions&) const = default;
};

}  // namespace llmq
