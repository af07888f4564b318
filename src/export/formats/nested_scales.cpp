#include "export/formats/nested_scales.h"

#include <cmath>
#include <numeric>

#include "export/formats/absmax_blocks.h"

namespace llmq {
namespace {

constexpr int kDecades = 7;

// 2^k numbers of the decade that ends at 10^(k - 6), each the middle of its part of [0.1, 1], with both
// signs; and 0 and 1.
std::array<float, 256> make_dynamic_map() {
  std::array<float, 256> map{};
  std::size_t filled = 0;
  for (int k = 0; k < kDecades; ++k) {
    const int parts = 1 << k;
    const float step = (1 - 0.1f) / static_cast<float>(parts);
    const auto edge = [&](int i) {  // torch.linspace(0.1, 1, parts + 1)
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.f);
    };
    const auto top = static_cast<float>(std::pow(10., k - kDecades + 1));
    for (int i = 0; i < parts; ++i) {
      const float middle = top * ((edge(i) + edge(i + 1)) / 2);
      map[filled++] = middle;
      map[filled++] = -middle;
    }
  }
  map[filled++] = 0;
  map[filled] = 1;
  std::sort(map.begin(), map.end());
  return map;
}

std::array<float, 255> middles_of(const std::array<float, 256>& map) {
  std::array<float, 255> middles{};
  for (std::size_t k = 0; k < middles.size(); ++k) middles[k] = (map[k] + map[k + 1]) / 2;
  return middles;
}

}  // namespace

const std::array<float, 256>& dynamic_map() {
  static const std::array<float, 256> map = make_dynamic_map();
  return map;
}

NestedScales nest_scales(std::span<const float> scales) {
  static const std::array<float, 255> middles = middles_of(dynamic_map());
  NestedScales nested;
  nested.offset = static_cast<float>(std::accumulate(scales.begin(), scales.end(), 0.) /
                                     static_cast<double>(scales.size()));
  std::vector<float> left(scales.begin(), scales.end());
  for (float& scale : left) scale -= nested.offset;
  nested.codes.resize(left.size());
  const auto nearest = [](float x) {
    return static_cast<std::uint8_t>(std::lower_bound(middles.begin(), middles.end(), x) - middles.begin());
  };
  nested.absmax = round_in_blocks(left, kScalesOfANest, nearest, nested.codes);
  return nested;
}

}  // namespace llmq
