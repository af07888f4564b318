// What `llmq deploy` prints of a directory whose name means something to YAML, to Compose and to Kubernetes;
// and that it asks the verdicts on loaders. tests/cli/deploy_test.cpp has the rest.
#include "job/deploy/deployment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "export/deploy/manifest.h"
#include "support/temporary_directory.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

std::string manifest_of(const std::string& model, const std::string& target) {
  DeploymentRequest request;
  request.model = model;
  request.target = target;
  request.machine = find_machine("h100-sxm").value();
  return deployment(system_io(), request).at("manifest").as_string();
}

TEST(Deployment, NamesStayTexts) {
  const TemporaryDirectory scratch;
  const std::string model = (scratch / "a\"b: $(X) ${Y}\n- z").string();
  std::filesystem::copy(LLMQ_SOURCE_DIR "/tests/models/tinystories-656k", model);
  EXPECT_THAT(manifest_of(model, "kubernetes"), HasSubstr("- \"/models/a\\\"b: $$(X) ${Y}\\x0a- z\"\n"));
  EXPECT_THAT(manifest_of(model, "compose"), HasSubstr("- \"/models/a\\\"b: $$(X) $${Y}\\x0a- z\"\n"));
}

TEST(Deployment, QuotesWhatYamlWouldReadOtherwise) {
  EXPECT_EQ(yaml_quoted("a\nb\x7F\\\""), "\"a\\x0ab\\x7f\\\\\\\"\"");
  EXPECT_EQ(yaml_quoted("\xC2\x85|\xE2\x80\xA8|\xE2\x80\xA9|\xC3\xA4"), "\"\\x85|\\L|\\P|\xC3\xA4\"");
}

TEST(Deployment, WhatVllmDoesNotLoadIsNotDeployedThere) {
  const std::string three_bits = LLMQ_SOURCE_DIR "/tests/golden/models/autoround-auto-gptq-mixed/model";
  try {
    manifest_of(three_bits, "compose");
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not load in vLLM 0.33"));
  }
}

}  // namespace
}  // namespace llmq::testing
