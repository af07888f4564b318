// What the readers of weights have in common: how a file that is not what it says is refused, and what no
// honest file exceeds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace llmq {

inline constexpr std::size_t kMostTensors = 1'000'000;
inline constexpr std::int64_t kMostExperts = 1 << 12;  // of a layer
inline constexpr std::size_t kMostStacked = 1 << 18;   // matrices; the largest models have 70,000
inline constexpr std::size_t kMostTensorNameBytes = 4096;

// Error(kBadInput): `message`, the file, and the place in it.
[[noreturn]] inline void refuse_damaged(const std::string& file, std::string where, std::string message) {
  fail(ErrorKind::kBadInput, {std::move(message), file, std::move(where),
                              "the file is damaged or incomplete; download or write it again"});
}

}  // namespace llmq
