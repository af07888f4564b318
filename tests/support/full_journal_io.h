// An Io whose journals have room for so many records: the next one fails, as on a full disk, and leaves the
// job where it was.
#pragma once
#include "tests/support/counting_io.h"

namespace llmq::testing {

class FullJournalIo final : public InterceptedIo {
 public:
  // The first record is what the job is.
  explicit FullJournalIo(int records) : InterceptedIo(system_io()), room_(records) {}

 private:
  void before(const char* operation, const Path& path) override {
    if (std::string_view(operation) == "write" && path.filename() == "journal" && room_-- == 0)
      fail(ErrorKind::kIo, "no room");
  }
  int room_;
};

}  // namespace llmq::testing
