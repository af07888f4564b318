// Products of rounded inputs with a weight of codes (device/low_precision.h has the arithmetic): panels of
// unsigned codes for INT8, two to a byte where they have 4 bits at most and groups are whole, else one; of
// BF16 numbers for floats, which hold every E4M3, and every code times the level of its group, exactly.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "device/cpu/packed_weight.h"
#include "device/low_precision.h"

namespace llmq {

class CodeWeight final : public CpuWeight {
 public:
  static constexpr Kind kKind = Kind::kCodes;
  explicit CodeWeight(const CpuWork& work) : CpuWeight(kKind, work) {}

  bool floats = false;
  FloatInputs inputs;  // floats in groups, whose sums have one group
  ActivationScale activation = ActivationScale::kToken;
  float input_scale = 0;
  std::int64_t group = 0, groups = 1;  // columns of the weight's input that share a scale
  std::int64_t group_step = 0;         // elements from one group to the next: whole units
  Buffer panels;
  std::int64_t panel_bytes = 0;         // of one panel over the whole depth
  std::optional<NarrowLayout> nibbles;  // codes of 4 bits, with their scales and zeros
  std::vector<float> scales;            // else [groups][out]
  std::vector<std::int32_t> zeros;      // [groups][out], INT8

  std::int64_t element() const { return floats ? 2 : 1; }  // bytes of a rounded input
  // Elements that the depth of a group is a multiple of: 4 bytes, or a word of codes.
  std::int64_t unit() const { return nibbles ? kNarrowBlock : 4 / element(); }
  std::int64_t depth(std::int64_t g) const {  // of group g, in whole units
    const std::int64_t columns = columns_of(g);
    return (columns + unit() - 1) / unit() * unit();
  }
  std::int64_t columns_of(std::int64_t g) const { return g + 1 < groups ? group : in_features - g * group; }
};

std::unique_ptr<CodeWeight> pack_codes(const CpuWork& work, const QuantizedMatrix& matrix, Compute compute);
// At most kMostCallsAtOnce, none of whose results is an input of another; inputs that several round alike are
// rounded once.
void multiply(const CpuWork& work, std::span<const ProductCall<CodeWeight>> calls);

}  // namespace llmq
