// What `llmq quantize` plans to need, and what the same run's largest resident set was: within 10 % of each
// other, from a run whose memory is mostly the program to one that is mostly Gram matrices. Dropping a term
// of the plan (quant/plan/plan_costs.cpp) leaves the bound in one of these runs; only the tokenizer, the
// codes of one linear and the heap's gaps are too small for that.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "cli/program.h"

namespace llmq::testing {
namespace {

constexpr double kBound = 0.1;  // what a plan promises: docs/adr/0007

// A model whose inputs and vocabulary are as wide as asked; weights of BF16, spread evenly.
std::string wide_model(const Scratch& scratch, std::int64_t hidden, std::int64_t intermediate,
                       std::int64_t vocabulary, int blocks) {
  const std::string directory = copy_of_model(scratch, "wide");
  Json config = Json::parse(read_file(directory + "/config.json"), "config.json");
  config["hidden_size"] = hidden;
  config["intermediate_size"] = intermediate;
  config["num_hidden_layers"] = std::int64_t{blocks};
  config["vocab_size"] = vocabulary;
  config["torch_dtype"] = "bfloat16";
  write_file(directory + "/config.json", config.dump());

  const std::int64_t kv = hidden / 2;  // the small model has half as many KV heads
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors = {
      {"model.embed_tokens.weight", {vocabulary, hidden}}, {"model.norm.weight", {hidden}}};
  for (int i = 0; i < blocks; ++i) {
    const std::string block = "model.layers." + std::to_string(i) + ".";
    tensors.insert(tensors.end(), {{block + "input_layernorm.weight", {hidden}},
                                   {block + "post_attention_layernorm.weight", {hidden}},
                                   {block + "self_attn.q_proj.weight", {hidden, hidden}},
                                   {block + "self_attn.k_proj.weight", {kv, hidden}},
                                   {block + "self_attn.v_proj.weight", {kv, hidden}},
                                   {block + "self_attn.o_proj.weight", {hidden, hidden}},
                                   {block + "mlp.gate_proj.weight", {intermediate, hidden}},
                                   {block + "mlp.up_proj.weight", {intermediate, hidden}},
                                   {block + "mlp.down_proj.weight", {hidden, intermediate}}});
  }
  Json header = Json::object();
  std::string bytes;
  std::uint32_t state = 1;
  for (const auto& [name, shape] : tensors) {
    Json extents = Json::array();
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      extents.push_back(extent);
      count *= extent;
    }
    const std::size_t begin = bytes.size();
    bytes.resize(begin + static_cast<std::size_t>(count) * 2);
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      // +-2^-6 to 2^-5 in linears, 1 to 2 in gains
      const auto value = static_cast<std::uint16_t>(
          shape.size() == 1 ? 0x3f80u | (state >> 25) : 0x3c80u | (state >> 25) | (state & 0x10000u) >> 1);
      std::memcpy(bytes.data() + begin + 2 * static_cast<std::size_t>(i), &value, 2);
    }
    header[name] = Json::object({{"dtype", "BF16"},
                                 {"shape", extents},
                                 {"data_offsets", Json::array({static_cast<std::int64_t>(begin),
                                                               static_cast<std::int64_t>(bytes.size())})}});
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  write_file(directory + "/model.safetensors", file + text + bytes);
  return directory;
}

void expect_as_planned(const std::string& model, const std::string& output, const std::string& method,
                       int samples, const std::string& compute, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"quantize",
                                        "--method",
                                        method,
                                        "--model",
                                        model,
                                        "--output",
                                        output,
                                        "--threads",
                                        "2",
                                        "--set",
                                        "calibration.samples=" + std::to_string(samples),
                                        "--set",
                                        "calibration.sequence_length=512",
                                        "--compute",
                                        compute,
                                        "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_llmq(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  const double planned = json.at("planned_peak_bytes").as_double(),
               found = json.at("peak_rss_bytes").as_double();
  ::testing::Test::RecordProperty(method + std::to_string(samples), std::to_string(planned / found));
  EXPECT_LE(std::abs(planned / found - 1), kBound)
      << method << " " << samples << " x 512, " << compute << ": planned " << planned / 1e6 << " MB, found "
      << found / 1e6;
}

TEST(Memory, SmallModelNeedsWhatIsPlanned) {
  const Scratch scratch;
  expect_as_planned(tinystories(), scratch / "rtn", "rtn", 1, "bfloat16");
  expect_as_planned(tinystories(), scratch / "few", "awq", 2, "bfloat16");
  expect_as_planned(tinystories(), scratch / "some", "awq", 16, "bfloat16");
  expect_as_planned(tinystories(), scratch / "many", "awq", 64, "float32");
}

TEST(Memory, WideInputsNeedWhatIsPlanned) {
  const Scratch scratch;
  const std::string model = wide_model(scratch, 256, 3072, 2048, 1);
  expect_as_planned(model, scratch / "awq", "awq", 1, "bfloat16");
  expect_as_planned(model, scratch / "gptq", "gptq", 1, "bfloat16");
  expect_as_planned(model, scratch / "awq-gptq", "[awq, gptq]", 8, "bfloat16");
}

TEST(Memory, ManyRowsNeedWhatIsPlanned) {
  const Scratch scratch;
  const std::string model = wide_model(scratch, 256, 16384, 2048, 2);
  expect_as_planned(model, scratch / "awq", "awq", 1, "float32",
                    {"--set", "ignore=[lm_head, 're:.*down_proj']"});
}

TEST(Memory, WideVocabularyNeedsWhatIsPlanned) {
  const Scratch scratch;
  const std::string model = wide_model(scratch, 1024, 1024, 16384, 1);
  expect_as_planned(model, scratch / "rtn", "rtn", 1, "bfloat16");
}

TEST(Memory, AGgufNeedsWhatIsPlanned) {
  const Scratch scratch;
  const std::vector<std::string> gguf = {"--set", "format=gguf", "--set", "scheme=q4_k_m"};
  expect_as_planned(tinystories(), scratch / "few.gguf", "rtn", 1, "bfloat16", gguf);
  expect_as_planned(tinystories(), scratch / "many.gguf", "imatrix", 64, "bfloat16", gguf);
  expect_as_planned(wide_model(scratch, 256, 16384, 2048, 1), scratch / "wide.gguf", "imatrix", 4, "bfloat16",
                    gguf);
}

// Codes are numbers one linear at a time, and those left alone are copied as numbers.
TEST(Memory, APackedSourceNeedsWhatIsPlanned) {
  const Scratch scratch;
  const std::string packed = scratch / "packed";
  const Outcome made =
      run_llmq({"quantize", "--method", "rtn", "--model", wide_model(scratch, 256, 16384, 2048, 2),
                "--output", packed, "--set", "format=gptq", "--set", "scheme=w4a16_g32_sym"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  expect_as_planned(packed, scratch / "rtn", "rtn", 1, "bfloat16");
  expect_as_planned(packed, scratch / "left", "rtn", 1, "bfloat16",
                    {"--set", "ignore=[lm_head, 're:.*down_proj']"});
  expect_as_planned(packed, scratch / "awq", "awq", 1, "bfloat16",
                    {"--set", "ignore=[lm_head, 're:.*down_proj']"});
  expect_as_planned(packed, scratch / "q.gguf", "rtn", 1, "bfloat16",
                    {"--set", "format=gguf", "--set", "scheme=q4_k_m"});
}

TEST(Memory, AGgufsTimeIsPredictedInTheRunsParts) {
  const Scratch scratch;
  for (const std::string method : {"rtn", "imatrix"}) {
    const Outcome outcome =
        run_llmq({"quantize", "--method", method, "--model", tinystories(), "--output", scratch / "out.gguf",
                  "--set", "format=gguf", "--set", "scheme=q4_k_m", "--dry-run", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json time = outcome.json().at("time"), &parts = time.at("seconds_by_part");
    double sum = 0;
    for (const auto& [part, seconds] : parts.members()) {
      EXPECT_GT(seconds.as_double(), 0) << part;
      sum += seconds.as_double();
    }
    EXPECT_NEAR(time.at("seconds").as_double(), sum, 1e-9);
    EXPECT_EQ(parts.members().size(), method == "rtn" ? 2u : 3u) << "rounding, writing; and importance";
    EXPECT_FALSE(std::filesystem::exists(scratch / "out.gguf"));
  }
}

}  // namespace
}  // namespace llmq::testing
