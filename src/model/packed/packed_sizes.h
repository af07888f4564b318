// How large a packed weight may say that it is, and how many groups its rows have.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "base/checked.h"
#include "model/tensor_reading.h"
#include "tensor/quant_scheme.h"

namespace llmq {

inline std::int64_t groups_of_packed(const Checkpoint& checkpoint, const std::string& name,
                                     const QuantScheme& scheme, std::int64_t in_features) {
  const std::int64_t group = scheme.group_of(in_features);
  if (in_features % group != 0)
    bad_tensor(checkpoint, name,
               fmt::format("has {} input columns, which group_size {} does not divide", in_features, group));
  return in_features / group;
}

inline void check_packed_size(const Checkpoint& checkpoint, const std::string& name, std::int64_t out,
                              std::int64_t in) {
  constexpr std::uint64_t kMostElements = std::uint64_t{1} << 36;
  const auto elements = checked_mul(static_cast<std::uint64_t>(std::max<std::int64_t>(out, 0)),
                                    static_cast<std::uint64_t>(std::max<std::int64_t>(in, 0)));
  if (out < 1 || in < 1 || out >= (std::int64_t{1} << 31) || in >= (std::int64_t{1} << 31) || !elements ||
      *elements > kMostElements)
    bad_tensor(checkpoint, name, fmt::format("describes a weight of {} x {}", out, in));
}

}  // namespace llmq
