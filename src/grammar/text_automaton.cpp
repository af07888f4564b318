#include "grammar/text_automaton.h"

#include <algorithm>

#include "base/error.h"

namespace llmq {
namespace {

using Kind = TextNode::Kind;

std::uint64_t pair_of(std::int32_t a, std::int32_t b) {
  return std::uint64_t{static_cast<std::uint32_t>(a)} << 32 | static_cast<std::uint32_t>(b);
}

}  // namespace

TextAutomaton::TextAutomaton(std::shared_ptr<const TextProgram> program)
    : program_(std::move(program)), frames_(1, Frame{-1, 0, 0}) {
  bool begins[257] = {true};  // a class of bytes begins here
  for (const TextNode& node : program_->nodes)
    if (node.kind == Kind::kByte) begins[node.low] = begins[node.high + 1] = true;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    classes_ += begins[byte];
    class_of_[byte] = static_cast<std::uint8_t>(classes_ - 1);
  }
}

void TextAutomaton::renew() {
  work_ = 0;
  pending_.clear();
  reached_.clear();
  if (!seen_.empty()) seen_.clear();
  accepts_ = false;
}

TextAutomaton::State TextAutomaton::start() {
  reach({program_->start, 0});
  return state_of_reached();
}

std::int32_t TextAutomaton::frame(TextPlace back, std::int32_t parent) {
  const auto found = frame_of_.try_emplace(pair_of(back, parent), static_cast<std::int32_t>(frames_.size()));
  if (found.second) frames_.push_back({back, parent, frames_[static_cast<std::size_t>(parent)].depth + 1});
  return found.first->second;
}

// All places that need no byte to be reached; of them those are kept that read one.
void TextAutomaton::reach(Place place) {
  const auto visit = [this](TextPlace node, std::int32_t stack) {
    const int depth = frames_[static_cast<std::size_t>(stack)].depth;
    if (program_->nodes[static_cast<std::size_t>(node)].levels + depth > TextProgram::kMostLevels) return;
    if (++work_ > kMostWork)
      fail(ErrorKind::kUnsupported,
           "the constraint has too many ways to go on: more than {} were looked at for one token", kMostWork);
    if (seen_.insert(pair_of(node, stack)).second) pending_.push_back({node, stack});
  };
  visit(place.node, place.stack);
  while (!pending_.empty()) {
    const Place at = pending_.back();
    pending_.pop_back();
    const TextNode& node = program_->nodes[static_cast<std::size_t>(at.node)];
    switch (node.kind) {
      case Kind::kByte:
        reached_.push_back(at);
        break;
      case Kind::kSplit:
        visit(node.next, at.stack);
        visit(node.other, at.stack);
        break;
      case Kind::kCall:
        visit(node.other, frame(node.next, at.stack));
        break;
      case Kind::kEnd:
        if (at.stack == 0) {
          accepts_ = true;
        } else {
          const Frame& back = frames_[static_cast<std::size_t>(at.stack)];
          visit(back.back, back.parent);
        }
        break;
    }
  }
}

TextAutomaton::State TextAutomaton::state_of_reached() {
  std::sort(reached_.begin(), reached_.end());
  std::uint64_t hash = accepts_;
  for (const Place& place : reached_)
    hash = (hash ^ pair_of(place.node, place.stack)) * 0x9e3779b97f4a7c15u + (hash >> 29);
  State state = kDead;
  const auto same = state_of_.equal_range(hash);
  for (auto it = same.first; it != same.second && state == kDead; ++it) {
    const Set& set = states_[static_cast<std::size_t>(it->second)];
    if (set.accepts == accepts_ &&
        std::equal(reached_.begin(), reached_.end(), places_.begin() + static_cast<std::ptrdiff_t>(set.begin),
                   places_.begin() + static_cast<std::ptrdiff_t>(set.begin + set.count)))
      state = it->second;
  }
  if (state == kDead && (accepts_ || !reached_.empty())) {
    if (states_.size() == kMostStates)
      fail(ErrorKind::kUnsupported,
           "the constraint has too many states: more than {} were reached for one token", kMostStates);
    state = static_cast<State>(states_.size());
    states_.push_back({places_.size(), reached_.size(), accepts_});
    places_.insert(places_.end(), reached_.begin(), reached_.end());
    tables_.resize(tables_.size() + classes_, kUnknown);
    state_of_.emplace(hash, state);
  }
  reached_.clear();
  seen_.clear();
  accepts_ = false;
  return state;
}

TextAutomaton::State TextAutomaton::make_step(State state, std::uint8_t byte) {
  constexpr std::size_t kLooksForAVisit = 32;  // looking at a place costs little beside reaching one
  const Set set = states_[static_cast<std::size_t>(state)];
  work_ += 1 + set.count / kLooksForAVisit;
  for (std::size_t i = set.begin; i < set.begin + set.count; ++i) {
    const Place place = places_[i];
    const TextNode& node = program_->nodes[static_cast<std::size_t>(place.node)];
    if (byte >= node.low && byte <= node.high) reach({node.next, place.stack});
  }
  const State next = state_of_reached();
  tables_[static_cast<std::size_t>(state) * classes_ + class_of_[byte]] = next;
  return next;
}

TextAutomaton::State TextAutomaton::restart(State kept) {
  const Set set = states_[static_cast<std::size_t>(kept)];
  const std::vector<Place> places(places_.begin() + static_cast<std::ptrdiff_t>(set.begin),
                                  places_.begin() + static_cast<std::ptrdiff_t>(set.begin + set.count));
  const std::vector<Frame> frames = std::move(frames_);
  tables_.clear();
  states_.clear();
  places_.clear();
  frame_of_.clear();
  state_of_.clear();
  frames_.assign(1, Frame{-1, 0, 0});
  accepts_ = set.accepts;
  for (const Place& place : places) {
    std::vector<TextPlace> backs;  // the innermost rule first
    for (std::int32_t stack = place.stack; stack != 0; stack = frames[static_cast<std::size_t>(stack)].parent)
      backs.push_back(frames[static_cast<std::size_t>(stack)].back);
    std::int32_t stack = 0;
    for (std::size_t i = backs.size(); i-- > 0;) stack = frame(backs[i], stack);
    reached_.push_back({place.node, stack});
  }
  return state_of_reached();
}

}  // namespace llmq
