// What the readers of weights have in common: how a file that is not what it says is refused, and what no
// honest file exceeds.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

#include "base/error.h"

namespace llmq {

inline constexpr std::size_t kMostTensors = 1'000'000;
inline constexpr std::size_t kMostTensorNameBytes = 4096;

// Error(kBadInput): `message`, the file, and the place in it.
[[noreturn]] inline void refuse_damaged(const std::string& file, std::string where, std::string message) {
  fail(ErrorKind::kBadInput, {std::move(message), file, std::move(where),
                              "the file is damaged or incomplete; download or write it again"});
}

}  // namespace llmq
