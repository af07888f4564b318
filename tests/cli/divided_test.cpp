// One model divided over several devices (--tensor-parallel-size): every digit and every token is that of one
// device, whatever its weights are; what cannot be divided is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Json said(std::vector<std::string> words, const std::string& members) {
  words.insert(words.end(), {"--tensor-parallel-size", members, "--json"});
  const Outcome outcome = run_llmq(words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.json();
}

TEST(Divided, EveryFormOfAModelGivesTheFiguresOfOneDevice) {
  const Scratch scratch;
  const std::vector<std::string> models = {
      tinystories(),
      rounded_model(scratch, "w4", {"scheme=w4a16_g32_asym"}),
      rounded_model(scratch, "w8a8", {"scheme=w8a8"}),
      rounded_model(scratch, "fp8", {"scheme=fp8_block"}),
      rounded_model(scratch, "q4.gguf", {"format=gguf", "scheme=q4_1"}),
  };
  for (const std::string& model : models)
    for (const std::string compute : {"float32", "bfloat16"}) {
      const std::vector<std::string> measure = {"eval-ppl",  model, "--max-windows", "1",
                                                "--context", "96",  "--compute",     compute};
      const std::vector<std::string> tell = {"generate",     model,  "--prompt", "Once upon a time",
                                             "--max-tokens", "20",   "--draft",  "ngram",
                                             "--compute",    compute};
      const Json figures = said(measure, "1"), story = said(tell, "1");
      for (const std::string members : {"2", "4"}) {
        const Json divided = said(measure, members);
        EXPECT_EQ(divided.at("ppl").as_double(), figures.at("ppl").as_double())
            << model << " " << compute << " " << members;
        EXPECT_EQ(divided.at("mean_nll").as_double(), figures.at("mean_nll").as_double());
        EXPECT_EQ(divided.at("kernels").items().size(), figures.at("kernels").items().size());
        EXPECT_THAT(divided.at("device").as_string(), StartsWith(members + " x cpu"));
      }
      EXPECT_EQ(said(tell, "2").at("token_ids").dump(), story.at("token_ids").dump())
          << model << " " << compute;
    }
}

TEST(Divided, WhatCannotBeDividedIsRefused) {
  const auto refused = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"eval-ppl", tinystories(), "--max-windows", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--tensor-parallel-size"));
    return outcome.err;
  };
  EXPECT_THAT(refused({"--tensor-parallel-size", "3"}),
              HasSubstr("the model's 8 attention heads cannot be divided over 3 devices"));
  EXPECT_THAT(refused({"--tensor-parallel-size", "8"}), HasSubstr("4 KV heads"));
  EXPECT_THAT(refused({"--tensor-parallel-size", "8"}), HasSubstr("use one of 1, 2, 4"));
  refused({"--tensor-parallel-size", "0"});
  refused({"--tensor-parallel-size", "-2"});
  refused({"--tensor-parallel-size", "many"});
  refused({"--tensor-parallel-size", "2", "--device", "emulated", "--gpu-layers", "1"});
  EXPECT_THAT(refused({"--tensor-parallel-size", "2", "--device", "cuda:1"}),
              HasSubstr("--device cuda:1 is one device"));
}

}  // namespace
}  // namespace llmq::testing
