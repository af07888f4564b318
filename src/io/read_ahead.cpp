#include "io/read_ahead.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace llmq {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

}  // namespace

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::add(const Mapping& mapping, std::uint64_t offset, std::uint64_t size, std::uint64_t window) {
  const std::lock_guard lock(mutex_);
  window_ = window;
  if (find(mapping, offset) != ranges_.end()) return;  // nobody took it the last time
  auto range = std::make_unique<Range>();
  range->mapping = &mapping;
  range->offset = offset;
  range->size = size;
  range->leases.reserve(static_cast<std::size_t>(size / kPiece + 1));
  ranges_.push_back(std::move(range));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

ReadAhead::Ranges::iterator ReadAhead::find(const Mapping& mapping, std::uint64_t offset) {
  return std::find_if(ranges_.begin(), ranges_.end(), [&](const std::unique_ptr<Range>& range) {
    return range->mapping == &mapping && range->offset == offset;
  });
}

Lease ReadAhead::take_over(const Mapping& mapping, std::uint64_t offset, std::uint64_t size) {
  std::unique_lock lock(mutex_);
  const auto found = find(mapping, offset);
  if (found == ranges_.end()) return {};
  Range& range = **found;
  range.taken = true;  // its reader stops behind the piece at hand
  const bool begun = range.read > 0 || reading_ == &range;
  lock.unlock();
  Lease lease;
  std::exception_ptr error;
  try {
    if (begun) lease = mapping.lease(offset, size);
  } catch (...) {
    error = std::current_exception();
  }
  const std::unique_ptr<Range> gone = remove(range);
  if (error) std::rethrow_exception(error);
  return lease;
}

// When nothing of it is being read any more.
std::unique_ptr<ReadAhead::Range> ReadAhead::remove(const Range& range) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reading_ != &range; });
  const auto place = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const std::unique_ptr<Range>& r) { return r.get() == &range; });
  std::unique_ptr<Range> gone = std::move(*place);
  ranges_.erase(place);
  held_ -= gone->read;
  changed_.notify_all();
  return gone;
}

// The first range of which a piece is to be read and has room; null: there is none now.
ReadAhead::Range* ReadAhead::next() {
  for (const std::unique_ptr<Range>& range : ranges_)
    if (!range->taken && range->read < range->size)
      return held_ + std::min(kPiece, range->size - range->read) <= window_ ? range.get() : nullptr;
  return nullptr;
}

void ReadAhead::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || next() != nullptr; });
    if (stop_) return;
    Range& range = *next();
    const std::uint64_t at = range.offset + range.read, size = std::min(kPiece, range.size - range.read);
    reading_ = &range;
    lock.unlock();
    Lease lease;
    bool failed = false;
    try {
      range.mapping->read_ahead(at, size);
      lease = range.mapping->lease(at, size);
    } catch (const std::exception&) {
      failed = true;
    }
    lock.lock();
    reading_ = nullptr;
    if (failed) {
      range.taken = true;
    } else {
      range.leases.push_back(std::move(lease));
      range.read += size;
      held_ += size;
    }
    changed_.notify_all();
  }
}

}  // namespace llmq
