// A text walked through an automaton byte by byte, and the set of bytes that any text may hold.
#pragma once
#include <cstdint>
#include <string_view>

#include "grammar/text_automaton.h"

namespace llmq::testing {

inline ByteSet all_bytes() {
  ByteSet bytes;
  bytes.fill(true);
  return bytes;
}

// Where the automaton is behind `text`: kDead where no text begins with it.
inline TextAutomaton::State after(TextAutomaton& automaton, std::string_view text) {
  automaton.renew();
  TextAutomaton::State state = automaton.start();
  for (std::size_t i = 0; i < text.size() && state != TextAutomaton::kDead; ++i)
    state = automaton.step(state, static_cast<std::uint8_t>(text[i]));
  return state;
}

inline bool accepts(TextAutomaton& automaton, std::string_view text) {
  const TextAutomaton::State state = after(automaton, text);
  return state != TextAutomaton::kDead && automaton.accepts(state);
}

}  // namespace llmq::testing
