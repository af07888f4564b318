// Walks a network of texts byte by byte: a deterministic automaton whose states are made when they are first
// reached.
//
// A state is the set of places at which the texts so far may stand, each with the rules it will return to.
// From every state that is not kDead the text can be finished. Its table over classes of bytes (those that no
// node tells apart) is filled as it is used.
//
// Budgets, so that no network can cost much: places looked at between two calls of renew(), and states;
// beyond either Error(kUnsupported). Memory: at most kMostStates tables; restart() gives back all but one
// state.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/text_program.h"

namespace llmq {

class TextAutomaton {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;
  static constexpr std::size_t kMostWork = 1u << 17, kMostStates = 1u << 14;

  explicit TextAutomaton(std::shared_ptr<const TextProgram> program);

  State start();
  State step(State state, std::uint8_t byte) {
    const State known = tables_[static_cast<std::size_t>(state) * classes_ + class_of_[byte]];
    return known != kUnknown ? known : make_step(state, byte);
  }
  bool accepts(State state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  // The text is finished and nothing can follow.
  bool complete(State state) const {
    return accepts(state) && states_[static_cast<std::size_t>(state)].count == 0;
  }

  // Begins a new budget; what a failure left of a set that was being made is dropped.
  void renew();
  std::size_t states() const { return states_.size(); }
  std::size_t places() const { return places_.size() + frames_.size(); }  // what the states stand on
  // Forgets all states but this one, and returns its new name.
  State restart(State kept);

 private:
  static constexpr State kUnknown = -2;
  struct Place {
    TextPlace node;
    std::int32_t stack;  // 0: none
    bool operator==(const Place&) const = default;
    auto operator<=>(const Place&) const = default;  // NOLINT(modernize-use-nullptr): it compares with 0
  };
  struct Frame {
    TextPlace back;
    std::int32_t parent, depth;
  };
  struct Set {
    std::size_t begin = 0, count = 0;
    bool accepts = false;
  };
  State make_step(State state, std::uint8_t byte);
  void reach(Place place);
  State state_of_reached();
  std::int32_t frame(TextPlace back, std::int32_t parent);

  std::shared_ptr<const TextProgram> program_;
  std::uint8_t class_of_[256];
  std::size_t classes_ = 0;
  std::vector<State> tables_;
  std::vector<Set> states_;
  std::vector<Place> places_;  // of all states
  std::vector<Frame> frames_;
  std::unordered_map<std::uint64_t, std::int32_t> frame_of_;
  std::unordered_multimap<std::uint64_t, State> state_of_;  // by hash
  // Of the set that is being made.
  std::vector<Place> pending_, reached_;
  std::unordered_set<std::uint64_t> seen_;
  bool accepts_ = false;
  std::size_t work_ = 0;
};

}  // namespace llmq
