// How many rows of differences GramLoss judges in one call of Backend::quadratic_form, which reads the whole
// Gram square: 2 MiB of them on the host, where they stay in the cache; a quarter of the scratch of a device
// that has memory of its own, for its matrix units are fed by rows that share what is read of the square. No
// row's loss depends on it. quant/plan/device_memory.cpp plans with the same number.
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmq {

// Where operations may take `device_scratch` bytes of a device's own memory; 0: it has none.
inline std::int64_t quadratic_form_rows(std::int64_t channels, std::uint64_t device_scratch) {
  const std::int64_t numbers =
      std::max<std::int64_t>(1 << 19, static_cast<std::int64_t>(device_scratch / 4 / sizeof(float)));
  return std::clamp<std::int64_t>(numbers / channels, 16, numbers / 64);
}

}  // namespace llmq
