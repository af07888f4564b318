// Lists that came from the host lately, as they lie on the device: the positions, slots and block tables of a
// batch are the same for every layer, and a list that is there already is not copied again.
//
// What is handed out is read only, and stays as long as somebody holds it. Not from two threads at once.
#pragma once
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "tensor/buffer.h"

namespace llmq {

class RecentLists {
 public:
  static constexpr std::size_t kLists = 128, kMostBytes = std::size_t{1} << 18;  // longer ones are not kept

  // The list's place on the device; put(bytes) copies it there where it is new.
  template <class Put>
  std::shared_ptr<const Buffer> find(std::span<const std::byte> bytes, const Put& put) {
    const auto same = [&](const Entry& entry) {
      return entry.bytes.size() == bytes.size() &&
             (bytes.empty() || std::memcmp(entry.bytes.data(), bytes.data(), bytes.size()) == 0);
    };
    const auto known = std::find_if(entries_.begin(), entries_.end(), same);
    if (known != entries_.end()) {
      std::rotate(entries_.begin(), known, known + 1);  // the latest first
      return entries_.front().there;
    }
    auto there = std::make_shared<const Buffer>(put(bytes));
    if (bytes.size() > kMostBytes) return there;
    if (entries_.size() == kLists) entries_.pop_back();
    entries_.push_front({{bytes.begin(), bytes.end()}, there});
    return there;
  }

 private:
  struct Entry {
    std::vector<std::byte> bytes;
    std::shared_ptr<const Buffer> there;
  };
  std::deque<Entry> entries_;
};

}  // namespace llmq
