// A number's bytes at the end of a text, in this machine's order, which is little-endian like the files'.
#pragma once
#include <cstring>
#include <string>

namespace llmq {

template <typename T>
void put_number(std::string& bytes, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof value);
}

}  // namespace llmq
