// Which file is mapped where, for the one sentence that is said when a mapped file ends while it is read.
//
// Reading a mapped page that has no file behind it any more is SIGBUS: the read cannot go on, and nothing can
// be thrown out of a signal handler. So this is the one place under src/ where the process ends without
// unwinding: the handler looks the address up in a table, writes the sentence that was made when the file was
// mapped, and calls _exit(1). It calls write(2) and _exit() only, which POSIX names async-signal-safe, and
// reads atomics; what a run had journalled is as after a kill. Any other SIGBUS is the system's.
#pragma once
#include <cstddef>
#include <string>

#include "base/error.h"

namespace llmq {

// From now on; `words` makes the text for an error, and it goes to `descriptor`. Of files that were mapped
// before nothing is known.
void explain_files_that_end(int descriptor, std::string (*words)(const Error&));

// A mapping in the table for as long as this lives; nothing before explain_files_that_end().
class MappedRange {
 public:
  MappedRange(const void* address, std::size_t size, const std::string& file);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

 private:
  int slot_ = -1;
};

}  // namespace llmq
