// Lists of numbers copied to a backend: new memory that holds them, none for an empty list.
#pragma once
#include <cstdint>
#include <span>

#include "device/backend.h"

namespace llmq {

Buffer upload_values(Backend& backend, std::span<const float> values);
Buffer upload_values(Backend& backend, std::span<const std::int32_t> values);

}  // namespace llmq
