// llmq verify --rebuild: the same bytes again, or what is not as it was; and whatever a manifest says,
// nothing is left or written elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>

#include "cli/program.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<std::string> awq_job(const std::string& model, const std::string& output,
                                 const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"quantize", "--model", model, "--output", output};
  for (const char* setting :
       {"method=awq", "scheme=w4a16_g32_asym", "calibration={samples: 4, sequence_length: 128}"})
    arguments.insert(arguments.end(), {"--set", setting});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void make(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  const Outcome outcome = run_llmq(arguments, environment);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

Outcome rebuild(const std::string& output, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"verify", output, "--rebuild", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_llmq(arguments);
}

void edit_manifest(const std::string& output, const std::function<void(Json&)>& edit) {
  Json manifest = Json::parse(read_file(output + "/manifest.json"), "manifest.json");
  edit(manifest);
  write_file(output + "/manifest.json", manifest.dump(1) + "\n");
}

Json& recipe_of(Json& manifest) {
  return manifest["predicate"]["buildDefinition"]["externalParameters"]["recipe"];
}

TEST(Rebuild, GivesTheSameBytesAtAnyThreadsAndMemoryLimit) {
  const Scratch scratch;
  make(awq_job(tinystories(), scratch / "q"));
  const Outcome once = rebuild(scratch / "q", {"--threads", "3"});
  ASSERT_EQ(once.exit_code, 0) << once.out << once.err;
  const Json said = once.json();
  EXPECT_TRUE(said.at("ok").as_bool());
  EXPECT_TRUE(said.at("rebuild").at("ok").as_bool());
  EXPECT_EQ(said.at("rebuild").at("compared").as_integer(), said.at("files").as_integer() - 4)
      << "all but the manifest and the three that hold times";
  EXPECT_TRUE(said.at("rebuild").at("otherwise").items().empty()) << once.out;
  EXPECT_EQ(rebuild(scratch / "q", {"--threads", "1", "--memory-limit", "1GiB"}).exit_code, 0);
  EXPECT_THAT(run_llmq({"verify", scratch / "q", "--rebuild"}).out, HasSubstr("came out the same"));
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"q"}) << "nothing is left beside it";
}

TEST(Rebuild, EveryRecipeThatWasRunCanBeRunAgain) {
  const Scratch scratch;
  const std::vector<std::vector<std::string>> jobs = {
      {"--set", "method=[awq, gptq]", "--set",
       "overrides=[{match: 're:.*down_proj', scheme: w8a16_g32_asym}]"},
      {"--set", "method=[smoothquant, gptq]", "--set", "scheme=w8a8", "--set", "kv_cache.dtype=int8"},
      {"--target-bits", "5.5", "--set", "mixed.samples=2"},
      {"--set", "method=[awq, gptq]", "--set",
       "overrides=[{match: 're:.*self_attn', scheme: nvfp4a16}, {match: 're:.*layers.0.mlp.down_proj', "
       "scheme: fp8}, {match: 're:.*layers.1.mlp.down_proj', scheme: dense}]"},
      {"--set", "method=rtn", "--set", "scheme=fp8_block", "--set", "ignore=[]"}};
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string output = scratch / ("q" + std::to_string(i));
    make(awq_job(tinystories(), output, jobs[i]));
    const Outcome outcome = rebuild(output);
    EXPECT_EQ(outcome.exit_code, 0) << jobs[i][1] << outcome.out << outcome.err;
  }
}

TEST(Rebuild, ABudgetAmongSchemesCanBeSpentAgain) {
  const Scratch scratch;
  make({"quantize", "--method", "awq,gptq", "--model", tinystories(), "--output", scratch / "q",
        "--target-bits", "4.6", "--set", "calibration={samples: 4, sequence_length: 128}", "--set",
        "mixed={samples: 2, schemes: [w4a16_g64_asym, nvfp4a16, fp8, dense]}"});
  const Outcome outcome = rebuild(scratch / "q");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST(Rebuild, OfAVersionLeavesNothingAmongTheVersions) {
  const Scratch scratch;
  make(awq_job(tinystories(), scratch / "q", {"--set", "output.versioned=true"}));
  EXPECT_EQ(rebuild(scratch / "q/latest").exit_code, 0);
  EXPECT_EQ(names_in(scratch / "q").size(), 2u);
  EXPECT_EQ(names_in(scratch.path()).size(), 1u);
}

// An output and a manifest that fit each other, and that the job never made.
TEST(Rebuild, NamesTheFileAndTheTensorThatDoNotComeOut) {
  const Scratch scratch;
  make(awq_job(tinystories(), scratch / "q"));
  const std::string file = scratch / "q/model.safetensors", written = sha256_of(file);
  std::string weights = read_file(file);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, weights.data(), sizeof header_bytes);
  const std::string tensor = "model.layers.1.mlp.up_proj.weight_packed";
  const Json header = Json::parse(weights.substr(8, header_bytes), "header");
  const auto first = static_cast<std::size_t>(header.at(tensor).at("data_offsets").items()[0].as_integer());
  char& code = weights[8 + header_bytes + first + 5];
  code = static_cast<char>(code ^ 1);
  write_file(file, weights);
  edit_manifest(scratch / "q", [&](Json& manifest) {
    for (Json& subject : manifest["subject"].items())
      if (subject.at("name").as_string() == "model.safetensors")
        subject["digest"]["sha256"] = sha256_of(file);
  });
  ASSERT_EQ(run_llmq({"verify", scratch / "q"}).exit_code, 0) << "which only a rebuild sees";
  const Outcome outcome = rebuild(scratch / "q");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const Json said = outcome.json();
  EXPECT_FALSE(said.at("ok").as_bool());
  const Json::Array& outputs = said.at("rebuild").at("outputs").items();
  ASSERT_EQ(outputs.size(), 1u) << outcome.out;
  EXPECT_EQ(outputs[0].at("path").as_string(), "model.safetensors");
  EXPECT_EQ(outputs[0].at("expected").as_string(), sha256_of(file));
  EXPECT_EQ(outputs[0].at("found").as_string(), written);
  EXPECT_EQ(said.at("rebuild").at("first_tensor").as_string(), tensor);
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"q"});
}

TEST(Rebuild, SaysWhichInputsAreNotWhatWasRead) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  write_file(scratch / "text.txt", read_file(std::string(LLMQ_SOURCE_DIR) + "/share/calibration/c4.utf8"));
  make(awq_job(model, scratch / "q", {"--set", "calibration.text=[" + (scratch / "text.txt") + "]"}));
  const std::string before = sha256_of(scratch / "text.txt");
  write_file(scratch / "text.txt", read_file(scratch / "text.txt") + "x");
  fs::remove(model + "/generation_config.json");
  const Outcome changed = rebuild(scratch / "q");
  EXPECT_EQ(changed.exit_code, 2) << changed.err;
  const Json::Array inputs = changed.json().at("rebuild").at("inputs").items();
  ASSERT_EQ(inputs.size(), 2u) << changed.out;
  EXPECT_EQ(inputs[0].at("path").as_string(), "calibration/text.txt");
  EXPECT_EQ(inputs[0].at("expected").as_string(), before);
  EXPECT_EQ(inputs[0].at("found").as_string(), sha256_of(scratch / "text.txt"));
  EXPECT_EQ(inputs[1].at("path").as_string(), "model/generation_config.json");
  EXPECT_TRUE(inputs[1].at("found").is_null());
  fs::remove(scratch / "text.txt");
  EXPECT_THAT(run_llmq({"verify", scratch / "q", "--rebuild"}).out,
              HasSubstr("input missing: calibration/text.txt"));
}

TEST(Rebuild, TakesTheModelFromWhereItLiesNow) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  make(awq_job(model, scratch / "q"));
  fs::rename(model, scratch / "moved");
  const Outcome gone = run_llmq({"verify", scratch / "q", "--rebuild"});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.err, HasSubstr("--model"));
  EXPECT_EQ(rebuild(scratch / "q", {"--model", scratch / "moved"}).exit_code, 0);
  EXPECT_EQ(run_llmq({"verify", scratch / "q", "--model", scratch / "moved"}).exit_code, 2);
}

TEST(Rebuild, ComputesAtTheLevelOfTheManifestAndSaysWhenThereIsNone) {
  const Scratch scratch;
  make(awq_job(tinystories(), scratch / "q", {"--set", "awq={grid: 1, clip: false}"}),
       {"LLMQ_CPU_ISA=scalar"});
  const Outcome same = rebuild(scratch / "q");
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_TRUE(same.json().at("rebuild").at("otherwise").items().empty()) << same.out;

  make({"quantize", "--method", "rtn", "--model", tinystories(), "--output", scratch / "r"});
  edit_manifest(scratch / "r", [](Json& manifest) {
    manifest["predicate"]["buildDefinition"]["internalParameters"]["backend"] = "cpu abacus";
    manifest["predicate"]["runDetails"]["builder"]["version"]["commit"] = "0000000";
  });
  const Outcome other = rebuild(scratch / "r");
  EXPECT_EQ(other.exit_code, 0) << "equal bytes are equal whoever made them: " << other.err;
  const Json::Array said = other.json().at("rebuild").at("otherwise").items();
  ASSERT_EQ(said.size(), 2u) << other.out;
  EXPECT_EQ(said[0].at("what").as_string(), "llmq");
  EXPECT_THAT(said[0].at("then").as_string(), HasSubstr("0000000"));
  EXPECT_EQ(said[1].at("then").as_string(), "cpu abacus");
  EXPECT_THAT(other.err, HasSubstr("was cpu abacus and is"));
}

TEST(Rebuild, AManifestHasNothingWrittenWhereItNamesAPlace) {
  const Scratch scratch;
  make(awq_job(tinystories(), scratch / "q"));
  edit_manifest(scratch / "q", [&](Json& manifest) {
    recipe_of(manifest)["output"] = scratch / "elsewhere";
    recipe_of(manifest)["gguf"]["imatrix_out"] = scratch / "elsewhere.imatrix";
    recipe_of(manifest)["evaluate"] = Json::object({{"max_windows", 1}, {"max_kl", 0.0}});
  });
  const Outcome outcome = rebuild(scratch / "q");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"q"});

  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"method", Json(5)}, {"unheard_of", Json("x")}, {"scheme", Json::object({{"bits", 99}})}}) {
    const std::string output = scratch / ("q_" + key);
    fs::copy(scratch / "q", output);
    edit_manifest(output, [&key = key, &value = value](Json& manifest) { recipe_of(manifest)[key] = value; });
    const Outcome wrong = rebuild(output);
    EXPECT_EQ(wrong.exit_code, 2) << key;
    EXPECT_THAT(wrong.out, HasSubstr("manifest.json")) << key;
  }
}

TEST(Rebuild, StoppedItLeavesNothingAndKilledItIsTakenOver) {
  const Scratch scratch;
  make(awq_job(tinystories(), scratch / "q", {"--set", "calibration.samples=8"}));
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(rebuild(scratch / "q").exit_code, 0);
  const double once = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const double share : {0.3, 0.5, 0.7}) {
    const Outcome stopped = run_llmq_until(once * share, SIGINT, {"verify", scratch / "q", "--rebuild"});
    EXPECT_TRUE(stopped.exit_code == 0 || stopped.exit_code == 130) << stopped.exit_code;
    EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"q"}) << share;
  }
  run_llmq_until(once * 0.6, SIGKILL, {"verify", scratch / "q", "--rebuild"});
  EXPECT_EQ(rebuild(scratch / "q").exit_code, 0);
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"q"});
}

}  // namespace
}  // namespace llmq::testing
