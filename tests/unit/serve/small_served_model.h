// The small trained model as a server has it: its name, its limits and its tokenizer.
#pragma once
#include "serve/served_model.h"

namespace llmq::testing {

inline const ServedModel& small_served_model() {
  static const ServedModel served{
      "m", {}, 0, 512, 2048, Tokenizer::open(system_io(), LLMQ_SOURCE_DIR "/tests/models/tinystories-656k"),
      {}};
  return served;
}

}  // namespace llmq::testing
