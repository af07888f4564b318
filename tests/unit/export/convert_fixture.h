// A tiny checkpoint, packed and converted.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "export/convert.h"
#include "model/open_checkpoint.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() : source_(write_tiny_checkpoint(disk_)) {}

  std::vector<PlannedModule> pack(const std::string& format, const QuantScheme& scheme,
                                  bool column_groups = false) {
    const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
    std::vector<PlannedModule> modules = every_linear(ModelSpec::read(checkpoint), scheme);
    for (PlannedModule& m : modules) m.column_groups = column_groups;
    write_packed(system_io(), format, {disk_ / "packed", true}, checkpoint, modules);
    return modules;
  }

  ConvertReport run(const Path& from, const Path& to, const std::string& format,
                    std::optional<std::string> dtype = {}) {
    ConvertRequest request;
    request.source = from.string();
    request.target.directory = to;
    request.to = format;
    request.dtype = std::move(dtype);
    return convert(system_io(), open_checkpoint(system_io(), request.source), request);
  }

  Error refusal(const Path& from, const Path& to, const std::string& format,
                std::optional<std::string> dtype = {}) {
    try {
      run(from, to, format, std::move(dtype));
    } catch (const Error& error) {
      EXPECT_FALSE(system_io().exists(to));
      return error;
    }
    ADD_FAILURE() << "no error";
    return Error(ErrorKind::kInternal, {});
  }

  Checkpoint open(const char* name) { return open_checkpoint(system_io(), (disk_ / name).string()); }

  TemporaryDirectory disk_;
  std::string source_;
};

}  // namespace llmq::testing
