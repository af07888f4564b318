// What a reader may do with any bytes: read them, or refuse them by an Error that names the file.
#pragma once
#include <cstdlib>

#include "base/error.h"

namespace llmq {

// Ends the process where read() fails in another way.
template <typename Read>
void expect_named(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    const bool kind = error.kind() == ErrorKind::kBadInput || error.kind() == ErrorKind::kUnsupported;
    if (!kind || error.detail().file.empty() || error.detail().message.empty()) std::abort();
  }
}

}  // namespace llmq
