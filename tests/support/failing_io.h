// An Io whose k-th call fails, as a full or broken disk would, or whose files end early.
//
//   for (int k = 0; ; ++k) { FailingIo io(k); try { write(io); break; } catch (const Error&) { nothing half
//   done may remain } }
//
// Calls that change or read something count: open, create, read, write, reserve, sync, map, list,
// make_directory, rename, remove, sync_directory. From the k-th on every one but remove fails (a full disk
// stays full, and still lets go of files), unless `once`.
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tests/support/counting_io.h"

namespace llmq::testing {

class FailingIo final : public InterceptedIo {
 public:
  enum class How { kOnce, kFromThenOn };
  explicit FailingIo(int failing_call, How how = How::kFromThenOn,
                     std::string message = "No space left on device", Io& inner = system_io())
      : InterceptedIo(inner), failing_call_(failing_call), how_(how), message_(std::move(message)) {}

  // Files whose name ends with `suffix` seem to have `bytes` bytes at most.
  void cut_short(std::string suffix, std::uint64_t bytes) {
    cut_suffix_ = std::move(suffix);
    cut_bytes_ = bytes;
  }
  int calls() const { return calls_; }  // so far, failed ones too
  bool failed() const { return failures_ > 0; }

 private:
  void before(const char* operation, const Path& path) override {
    const int call = calls_++;
    const bool due = how_ == How::kOnce ? call == failing_call_ : call >= failing_call_ && failing_call_ >= 0;
    if (!due || (how_ == How::kFromThenOn && std::string_view(operation) == "remove")) return;
    ++failures_;
    fail(ErrorKind::kIo, {std::string(operation) + " failed: " + message_, path.string(), {}, {}});
  }
  std::uint64_t visible_bytes(const Path& path, std::uint64_t size) const override {
    return !cut_suffix_.empty() && path.string().ends_with(cut_suffix_) ? std::min(size, cut_bytes_) : size;
  }

  int failing_call_, calls_ = 0, failures_ = 0;
  How how_;
  std::string message_, cut_suffix_;
  std::uint64_t cut_bytes_ = 0;
};

}  // namespace llmq::testing
