// A writer under a disk that fails from any call on: what is left has either no name or is whole.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/failing_io.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {

// write(io, path) writes one file; read(bytes) throws where it is not whole. How often a call failed.
inline int count_failures_of_a_disk(const std::function<void(Io&, const Path&)>& write,
                                    const std::function<void(const std::string& bytes)>& read) {
  int failures = 0;
  for (int call = 0;; ++call) {
    TemporaryDirectory directory;
    FailingIo io(call, FailingIo::How::kFromThenOn);
    try {
      write(io, directory / "m");
      return failures;
    } catch (const Error& error) {
      ++failures;
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      const auto left = system_io().list(directory.path());
      // Only the last call, syncing the directory, comes after the rename: the file is whole then.
      if (!left.empty()) {
        EXPECT_EQ(left, std::vector<std::string>{"m"});
        EXPECT_NO_THROW(read(directory.read("m")));
      }
    }
  }
}

}  // namespace llmq::testing
