// Reads ranges of mapped files before they are asked for, in the order in which they are named, on a thread
// of its own.
//
// What it has read it holds under leases of a few megabytes, at most `window` bytes; then it waits until
// somebody took some of it. An error of the disk ends the range: whoever asks for it meets the error itself.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/io.h"

namespace llmq {

class ReadAhead {
 public:
  ReadAhead() = default;
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The mapping outlives this.
  void add(const Mapping& mapping, std::uint64_t offset, std::uint64_t size, std::uint64_t window);
  // A lease on the range when its reading has begun, and on nothing when it has not; either way the range is
  // not read ahead any more.
  Lease take_over(const Mapping& mapping, std::uint64_t offset, std::uint64_t size);

 private:
  struct Range {
    const Mapping* mapping = nullptr;
    std::uint64_t offset = 0, size = 0;
    std::uint64_t read = 0;  // of `size`
    bool taken = false;
    std::vector<Lease> leases;
  };
  using Ranges = std::deque<std::unique_ptr<Range>>;
  Ranges::iterator find(const Mapping& mapping, std::uint64_t offset);
  void run();
  Range* next();
  std::unique_ptr<Range> remove(const Range& range);

  std::mutex mutex_;
  std::condition_variable changed_;
  Ranges ranges_;
  std::uint64_t window_ = 0, held_ = 0;
  bool stop_ = false;
  Range* reading_ = nullptr;
  std::thread thread_;
};

}  // namespace llmq
