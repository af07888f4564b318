// Jobs over the stories model with a text of their own, as `llmq quantize` runs them.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "export/convert.h"
#include "job/quantize_job.h"
#include "model/open_checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {

inline constexpr const char* kStories = LLMQ_SOURCE_DIR "/tests/models/tinystories-656k";

class StoryJobTest : public ::testing::Test {
 protected:
  StoryJobTest() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Once upon a time there was a little girl who had a big red ball. ";
    text_ = scratch_.write("text.utf8", text).string();
  }

  using Change = std::function<void(ConvertRequest&)>;
  // A directory of the model's own name below `to`: a GGUF says the name of what it was made from.
  std::string converted(const std::string& from, const std::string& to, const Change& change) const {
    ConvertRequest request;
    request.source = from;
    request.target = {scratch_ / to / "tiny", true};
    std::filesystem::create_directories(scratch_ / to);
    change(request);
    convert(system_io(), open_checkpoint(system_io(), from), request);
    return (scratch_ / to / "tiny").string();
  }
  std::string of_type(const std::string& from, const std::string& to, const char* dtype) const {
    return converted(from, to, [&](ConvertRequest& request) { request.dtype = dtype; });
  }

  QuantizeRequest request(const std::string& model, const std::string& output,
                          const std::vector<std::string>& more = {}) const {
    QuantizeRequest request;
    request.paranoid = true;  // no digests of this machine's other runs
    request.recipe.source = "command line";
    request.recipe.model = model;
    request.recipe.output = (scratch_ / output).string();
    for (const char* usual :
         {"method=rtn", "scheme=w4a16_g32_asym", "calibration.samples=4", "calibration.sequence_length=32"})
      request.recipe.set(usual);
    request.recipe.set("calibration.text=[" + text_ + "]");
    for (const std::string& assignment : more) request.recipe.set(assignment);
    return request;
  }
  static JobSettings settings() {
    JobSettings settings;
    settings.devices = {make_cpu_backend(2)};
    settings.program = {"0.0.1", "abc1234", "llmq quantize"};
    return settings;
  }
  static JobEnd run(const QuantizeRequest& asked) {
    return QuantizeJob(system_io(), asked, settings()).run();
  }
  // Ends the run when a block of it is kept.
  static void interrupt(const QuantizeRequest& asked) {
    struct Interrupted {};
    int step = 12;
    JobSettings stopping = settings();
    stopping.on_step = [&step] {
      if (step-- == 0) throw Interrupted();
    };
    EXPECT_THROW(QuantizeJob(system_io(), asked, stopping).run(), Interrupted);
  }
  static std::string digest_of(const JobEnd& end) { return end.document.at("digest").as_string(); }
  Json report(const std::string& name) const { return Json::parse(scratch_.read(name), name); }
  static std::string refusal(const QuantizeRequest& asked) {
    try {
      run(asked);
    } catch (const Error& error) {
      EXPECT_FALSE(std::filesystem::exists(asked.recipe.output));
      return error.what();
    }
    return "";
  }

  TemporaryDirectory scratch_;
  std::string text_;
};

}  // namespace llmq::testing
