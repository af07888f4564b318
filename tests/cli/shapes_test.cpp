// The preset recipes of models too large to lie here are planned against checkpoints of their true names,
// types and shapes (tests/fixtures/shapes, written by tests/interop/make_shapes.py), whose weights are holes
// in a sparse file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/json.h"
#include "cli/program.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Calls `each` for the names that `pattern` stands for: {N} is every number below N, {A,B,...} each of those.
void each_name(const std::string& pattern, const std::function<void(const std::string&)>& each) {
  const std::size_t open = pattern.find('{'), close = pattern.find('}');
  if (open == std::string::npos) return each(pattern);
  const std::string said = pattern.substr(open + 1, close - open - 1);
  const auto with = [&](const std::string& number) {
    each_name(pattern.substr(0, open) + number + pattern.substr(close + 1), each);
  };
  if (said.find(',') == std::string::npos) {
    for (int i = 0; i < std::stoi(said); ++i) with(std::to_string(i));
    return;
  }
  std::stringstream numbers(said);
  for (std::string number; std::getline(numbers, number, ',');) with(number);
}

std::int64_t bytes_of_element(const std::string& type) {
  return type == "F32" ? 4 : type == "U8" || type == "F8_E4M3" ? 1 : 2;
}

// A model directory of that shape below `scratch`: 60 GB that take a few MB of disk.
std::string sparse_model(const Scratch& scratch, const std::string& shape) {
  const std::string source = std::string(LLMQ_SOURCE_DIR) + "/tests/fixtures/shapes/" + shape + ".json",
                    model = scratch / shape;
  const Json described = Json::parse(read_file(source), source);
  Json header = Json::object({});
  std::int64_t end = 0;
  for (const auto& [pattern, value] : described.at("tensors").members())
    each_name(pattern, [&, &value = value](const std::string& name) {
      const std::int64_t begin = end;
      std::int64_t bytes = bytes_of_element(value.items().at(0).as_string());
      for (const Json& extent : value.items().at(1).items()) bytes *= extent.as_integer();
      end += bytes;
      header.members().emplace_back(name,
                                    Json::object({{"dtype", value.items().at(0)},
                                                  {"shape", value.items().at(1)},
                                                  {"data_offsets", Json::array({Json(begin), Json(end)})}}));
    });
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  fs::create_directory(model);
  write_file(model + "/config.json", described.at("config").dump());
  fs::copy(tinystories() + "/tokenizer.json", model);
  write_file(model + "/model.safetensors", length + text);
  fs::resize_file(model + "/model.safetensors", text.size() + 8 + static_cast<std::uint64_t>(end));
  return model;
}

struct Preset {
  const char *recipe, *shape;
  std::int64_t linears;
  double most;  // of the model's bytes, in the output
};

class PresetOfShape : public ::testing::TestWithParam<Preset> {};

// Of few samples: a plan runs a share of a block to tell the time, which no test looks at.
TEST_P(PresetOfShape, IsPlannedForEveryLinear) {
  const Scratch scratch;
  const std::string recipe = std::string(LLMQ_SOURCE_DIR) + "/recipes/" + GetParam().recipe;
  const Outcome outcome =
      run_llmq({"quantize", "--recipe", recipe, "--model", sparse_model(scratch, GetParam().shape),
                "--output", scratch / "out", "--dry-run", "--json", "--set", "calibration.samples=2", "--set",
                "calibration.sequence_length=128"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  const Json plan = outcome.json();
  EXPECT_EQ(static_cast<std::int64_t>(plan.at("modules").items().size()), GetParam().linears);
  EXPECT_LT(static_cast<double>(plan.at("bytes_out").as_integer()),
            GetParam().most * static_cast<double>(plan.at("bytes_in").as_integer()));
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

// A pass for every expert costs more than a file of activations: a limit takes the file first.
TEST(PlanOfShape, AMemoryLimitTakesAFileBeforeItTakesManyPasses) {
  const Scratch scratch;
  const std::string model = sparse_model(scratch, "qwen3-30b-a3b");
  const auto planned = [&](const std::string& limit) {
    const Outcome outcome = run_llmq(
        {"quantize", "--recipe", std::string(LLMQ_SOURCE_DIR) + "/recipes/qwen3-30b-a3b.yaml", "--model",
         model, "--output", scratch / "out", "--dry-run", "--json", "--memory-limit", limit});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return outcome.json();
  };
  const Json some = planned("12GiB"), little = planned("6GiB");
  EXPECT_GE(some.at("experts_at_once").as_integer(), 16);
  EXPECT_FALSE(some.at("activations_in_file").as_bool());
  EXPECT_EQ(little.at("experts_at_once").as_integer(), 128);
  EXPECT_TRUE(little.at("activations_in_file").as_bool());
}

// Linears of a block times blocks: four of attention, or five over latents; three of each expert, or of the
// MLP. In the small model with a vision tower, that and the embedding are a third. Of Gemma 4, full attention
// has no v_proj, and an MLP stands beside the experts.
INSTANTIATE_TEST_SUITE_P(
    Published, PresetOfShape,
    ::testing::Values(
        Preset{"qwen3-30b-a3b.yaml", "qwen3-30b-a3b", 48 * (4 + 128 * 3), 0.28},
        Preset{"mixtral-8x7b.yaml", "mixtral-8x7b", 32 * (4 + 8 * 3), 0.27},
        Preset{"gemma-4-26b-a4b.yaml", "gemma-4-26b-a4b", 25 * 4 + 5 * 3 + 30 * (3 + 128 * 3), 0.36},
        Preset{"qwen3.6-27b.yaml", "qwen3.6-27b", 48 * (3 + 3) + 16 * (4 + 3), 0.4},
        Preset{"qwen3.6-35b-a3b.yaml", "qwen3.6-35b-a3b", 30 * 3 + 10 * 4 + 40 * 257 * 3, 0.35},
        // What publishers of such models choose: attention left out or FP8 beside experts in NVFP4.
        Preset{"qwen3.6-35b-a3b-fp8.yaml", "qwen3.6-35b-a3b", 10 * 4 + 40 * 257 * 3, 0.55},
        Preset{"qwen3.6-35b-a3b-nvfp4.yaml", "qwen3.6-35b-a3b", 10 * 4 + 40 * 257 * 3, 0.351},
        Preset{"llama-4-scout-nvfp4.yaml", "llama-4-scout", 48 * 17 * 3, 0.321},
        // Published as MXFP4: what goes out is as large as what comes in.
        Preset{"gpt-oss-20b.yaml", "gpt-oss-20b", 24 * 32 * 3, 1.05},
        Preset{"glm-4.7-flash.yaml", "glm-4.7-flash", 47 * 5 + 3 + 46 * 65 * 3, 0.31},
        Preset{"qwen3-vl-2b.yaml", "qwen3-vl-2b", 28 * (4 + 3), 0.52}),
    [](const auto& tested) {
      std::string name = fs::path(tested.param.recipe).stem();
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

}  // namespace
}  // namespace llmq::testing
