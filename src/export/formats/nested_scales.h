// Scales of NF4 in 8 bits (bnb_4bit_use_double_quant): what is left of each scale without their mean, in
// blocks of 256, as one of the 256 numbers of bitsandbytes' signed dynamic map.
//
//   scale j = map[code j] * absmax[j / 256] + offset,  offset = the mean
//
// bitsandbytes does not write the same bytes everywhere. Its mean is of sums in FP32, whose order depends on
// the processor and on threads, and may differ in its last places from ours, which is of sums in FP64. A
// code is the nearest one, ties to the lower, as in its plain backend and, but for ties, on CUDA; its kernel
// for processors takes it from a table of 65536 places, and is one off for a few in a thousand. The map is
// that of a processor with AVX2, where torch.linspace fuses its products.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace llmq {

inline constexpr std::size_t kScalesOfANest = 256;

struct NestedScales {
  std::vector<std::uint8_t> codes;
  std::vector<float> absmax;
  float offset = 0;
};

// create_dynamic_map() of bitsandbytes, in rising order.
const std::array<float, 256>& dynamic_map();
// Of one scale or more.
NestedScales nest_scales(std::span<const float> scales);

}  // namespace llmq
