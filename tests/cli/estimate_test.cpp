// What is said before a run is what the run then writes; what does not fit is marked; the advice follows the
// budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "cli/program.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Json& scheme_of(const Json& estimate, const std::string& name) {
  for (const Json& scheme : estimate.at("schemes").items())
    if (scheme.at("scheme").as_string() == name) return scheme;
  throw std::runtime_error("no scheme " + name + " in " + estimate.dump());
}

// A named machine's rates come from a table: no probe, so these run at once.
Outcome estimate(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"estimate", tinystories(), "--machine", "l4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_llmq(arguments);
}

TEST(Estimate, SizesAreThoseThatQuantizeWrites) {
  const Scratch scratch;
  const Json json =
      estimate({"--scheme", "w4a16_g32_asym,w8a16_g64_sym,w8a8,fp8,w3a16_channel_asym", "--json"}).json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.estimate/1");
  ASSERT_EQ(json.at("schemes").items().size(), 5u);
  for (const Json& scheme : json.at("schemes").items()) {
    const std::string name = scheme.at("scheme").as_string(), output = scratch / name;
    ASSERT_EQ(run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output", output, "--set",
                        "scheme=" + name})
                  .exit_code,
              0)
        << name;
    const std::string file = read_file(output + "/model.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    EXPECT_EQ(scheme.at("weight_bytes").as_integer(), static_cast<std::int64_t>(file.size() - 8 - header))
        << name;
  }
}

TEST(Estimate, AGgufsSizeIsThatOfItsTensors) {
  const Scratch scratch;
  const Json json = estimate({"--scheme", "q8_0,q4_k_m", "--json"}).json();
  for (const char* type : {"q8_0", "q4_k_m"}) {
    const std::string output = scratch / (std::string(type) + ".gguf");
    ASSERT_EQ(run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output", output, "--set",
                        "format=gguf", "--set", "scheme=" + std::string(type)})
                  .exit_code,
              0);
    const Json listed = run_llmq({"inspect", output, "--json"}).json();
    EXPECT_EQ(scheme_of(json, type).at("weight_bytes"), listed.at("bytes")) << type;
  }
}

TEST(Estimate, CountsTheCacheAndMarksWhatDoesNotFit) {
  // 2 blocks, 4 KV heads of 16 would be 2 * 2 * 64 * 2 bytes a token; the model's own config says.
  const Json config = Json::parse(read_file(tinystories() + "/config.json"), "config.json");
  const std::int64_t heads = config.at("num_attention_heads").as_integer(),
                     kv_heads = config.find("num_key_value_heads")
                                    ? config.at("num_key_value_heads").as_integer()
                                    : heads,
                     per_token = 4 * config.at("num_hidden_layers").as_integer() * kv_heads *
                                 (config.at("hidden_size").as_integer() / heads);
  const std::int64_t weights = scheme_of(estimate({"--scheme", "original", "--json"}).json(), "original")
                                   .at("weight_bytes")
                                   .as_integer();
  // Room for 3 sequences of 100 tokens and not one token more.
  const std::int64_t budget = weights + 300 * per_token;
  const Outcome outcome = estimate({"--scheme", "original", "--context", "100", "--batch", "1,3,4",
                                    "--budget", std::to_string(budget), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json.at("kv_bytes_per_token").as_integer(), per_token);
  const Json::Array& cells = json.at("schemes").items()[0].at("cells").items();
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[1].at("kv_bytes").as_integer(), 300 * per_token);
  EXPECT_EQ(cells[1].at("bytes").as_integer(), budget);
  EXPECT_TRUE(cells[0].at("fits").as_bool());
  EXPECT_TRUE(cells[1].at("fits").as_bool());
  EXPECT_FALSE(cells[2].at("fits").as_bool());
  EXPECT_THAT(estimate({"--scheme", "original", "--context", "100", "--batch", "1,4", "--budget",
                        std::to_string(budget)})
                  .out,
              HasSubstr("(no)"));
}

// Every layer and head, keys and values together: elements, and what they need beside them.
TEST(Estimate, CountsTheCacheInEveryType) {
  const Json config = Json::parse(read_file(tinystories() + "/config.json"), "config.json");
  const auto field = [&](const char* name) { return config.at(name).as_integer(); };
  const std::int64_t kv_heads = config.find("num_key_value_heads") ? field("num_key_value_heads")
                                                                   : field("num_attention_heads"),
                     head_dim = field("hidden_size") / field("num_attention_heads"),
                     heads = field("num_hidden_layers") * kv_heads;
  const std::vector<std::pair<std::string, std::int64_t>> head_bytes = {
      // of a key and its value
      {"bf16", 4 * head_dim},       {"fp16", 4 * head_dim},
      {"int8", 2 * (head_dim + 2)}, {"int4", head_dim * 5 / 8 + 2 + head_dim / 2 + 2},
      {"fp8", 2 * head_dim},        {"fp8_e5m2", 2 * head_dim}};
  std::int64_t before = 0;
  for (const auto& [type, bytes] : head_bytes) {
    const Json json = estimate({"--scheme", "original", "--context", "100", "--batch", "3",
                                "--kv-cache-dtype", type, "--json"})
                          .json();
    EXPECT_EQ(json.at("kv_cache").at("dtype").as_string(), type);
    EXPECT_EQ(json.at("kv_cache").at("reason").as_string(), "asked for");
    EXPECT_EQ(json.at("kv_bytes_per_token").as_integer(), heads * bytes) << type;
    const Json& cell = json.at("schemes").items()[0].at("cells").items()[0];
    EXPECT_EQ(cell.at("kv_bytes").as_integer(), 300 * heads * bytes) << type;
    EXPECT_NE(cell.at("kv_bytes").as_integer() == before, type != "fp16" && type != "fp8_e5m2") << type;
    before = cell.at("kv_bytes").as_integer();
  }
  EXPECT_EQ(estimate({"--kv-cache-dtype", "int5"}).exit_code, 2);
}

TEST(Estimate, TakesTheCheckpointsCacheTypeAndSaysSo) {
  const Scratch scratch;
  EXPECT_EQ(estimate({"--scheme", "original", "--json"}).json().at("kv_cache").at("reason").as_string(),
            "the default");
  ASSERT_EQ(
      run_llmq({"quantize", "--method", "gptq", "--model", tinystories(), "--output", scratch / "q", "--set",
                "kv_cache.dtype=fp8", "--set", "calibration={samples: 2, sequence_length: 64}"})
          .exit_code,
      0);
  const std::vector<std::string> words = {"estimate", scratch / "q", "--machine",
                                          "l4",       "--scheme",    "original"};
  EXPECT_THAT(run_llmq(words).out, HasSubstr("in fp8 (the checkpoint asks for it)"));
}

// bytes / bandwidth where memory is the limit: an L4 moves 300 GB/s (NVIDIA's data sheet).
TEST(Estimate, DecodingIsTheRooflinesMemorySide) {
  const Json json =
      estimate({"--scheme", "original,w4a16", "--context", "64", "--batch", "1", "--json"}).json();
  double before = 0;
  for (const Json& scheme : json.at("schemes").items()) {
    const Json& cell = scheme.at("cells").items()[0];
    const double bytes = scheme.at("weight_bytes").as_double() + cell.at("kv_bytes").as_double();
    const double rate = cell.at("decode_tokens_per_second").as_double();
    EXPECT_GE(rate, 300e9 / bytes * 0.999) << "an embedding that is only looked up is not read whole";
    EXPECT_LE(rate, 300e9 / bytes * 2);
    EXPECT_GT(rate, before) << "fewer bytes, more tokens";
    before = rate;
  }
}

TEST(Estimate, RecommendsTheMostBitsThatFit) {
  const auto recommended = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--context", "64", "--batch", "1", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return estimate(arguments).json();
  };
  const Json all = recommended({});
  EXPECT_EQ(all.at("recommended").as_string(), "fp8") << "an L4 multiplies FP8";
  const auto bytes = [&](const char* name) {
    return scheme_of(all, name).at("cells").items()[0].at("bytes").as_integer();
  };
  const Json a100 = run_llmq({"estimate", tinystories(), "--machine", "A100 80GB", "--json"}).json();
  EXPECT_THAT(a100.at("recommended").as_string(), HasSubstr("w8a8")) << "an A100 has no FP8";
  const Json four =
      recommended({"--scheme", "w8a16_g64_sym,w4a16_g64_sym", "--budget", std::to_string(bytes("fp8") - 1)});
  EXPECT_EQ(four.at("recommended").as_string(), "w4a16_g64_sym");
  EXPECT_THAT(four.at("reason").as_string(), HasSubstr("too large: w8a16_g64_sym"));
  const Json none = recommended({"--budget", "1000"});
  EXPECT_TRUE(none.at("recommended").is_null());
  EXPECT_THAT(none.at("reason").as_string(), HasSubstr("no scheme fits"));
}

TEST(Estimate, SaysWhatAModelCannotHaveAndRefusesWhatIsNoScheme) {
  const Json json = estimate({"--scheme", "w4a16_g48_asym,w4a16", "--json"}).json();
  EXPECT_TRUE(scheme_of(json, "w4a16_g48_asym").at("refusal").is_string());
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--scheme", "w4a17x"},
                                                {"--context", "1000000000"},
                                                {"--batch", "0"},
                                                {"--machine", "abacus"},
                                                {"--budget", "lots"}})
    EXPECT_EQ(estimate(wrong).exit_code, 2) << wrong[1];
}

TEST(Estimate, ProbesThisMachine) {
  const Json json =
      run_llmq({"estimate", tinystories(), "--scheme", "w4a16", "--threads", "1", "--json"}).json();
  EXPECT_THAT(json.at("machine").at("name").as_string(), HasSubstr("cpu"));
  EXPECT_GT(json.at("machine").at("bytes_per_second").as_double(), 1e6);
  EXPECT_GT(json.at("schemes").items()[0].at("prefill_tokens_per_second").as_double(), 0);
}

// Time and memory are the machine's, traffic is of shapes: twice the nodes less one of what a rank sums up.
TEST(Estimate, NodesShareAQuantization) {
  const Words asked = {"estimate",  tinystories(), "--nodes", "4",
                       "--method",  "gptq",        "--set",   "calibration.samples=24",
                       "--network", "10Gb/s"};
  Words as_json = asked;
  as_json.push_back("--json");
  const Json found = run_llmq(as_json).json();
  EXPECT_EQ(found.at("schema").as_string(), "llmq.nodes/1");
  EXPECT_EQ(found.at("chunks").as_integer(), 3);
  EXPECT_DOUBLE_EQ(found.at("network_bytes_per_second").as_double(), 1.25e9);
  ASSERT_EQ(found.at("nodes").items().size(), 3u);  // 1, 2 and 3 of the four asked for
  const Json &two = found.at("nodes").items()[1], &three = found.at("nodes").items()[2];
  EXPECT_EQ(three.at("nodes").as_integer(), 3);
  EXPECT_NEAR(static_cast<double>(three.at("traffic_bytes").as_integer()) /
                  static_cast<double>(two.at("traffic_bytes").as_integer()),
              2, 0.01);
  const Outcome words = run_llmq(asked);
  EXPECT_THAT(words.out, HasSubstr("10 Gb/s between them"));
  EXPECT_THAT(words.out, HasSubstr("measured on no network"));
}

TEST(Estimate, NodesShareTheMeasuringPassOfMixedPrecision) {
  const Json found = run_llmq({"estimate", tinystories(), "--nodes", "2", "--method", "rtn", "--set",
                               "target_bits=5", "--set", "calibration.samples=16", "--json"})
                         .json();
  EXPECT_GT(found.at("seconds_by_part").at("measuring pass of mixed precision").as_double(), 0);
  ASSERT_EQ(found.at("nodes").items().size(), 2u) << "of two chunks, though there is one shard";
  EXPECT_GT(found.at("nodes").items()[1].at("traffic_bytes").as_integer(), 100'000);
}

TEST(Estimate, NodesAreAskedForAQuantizationAlone) {
  const auto refused = [](const Words& words, const std::string& reason) {
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  };
  refused({"estimate", tinystories(), "--nodes", "2"}, "no method is given");
  refused({"estimate", tinystories(), "--nodes", "2", "--machine", "l4"}, "predicted on this machine");
  refused({"estimate", tinystories(), "--network", "1Gb/s"}, "--nodes 8");
  refused({"estimate", tinystories(), "--nodes", "2", "--method", "rtn", "--network", "fast"},
          "'fast' is no speed of a network");
  refused(
      {"quantize", "--method", "rtn", "--model", tinystories(), "--output", "nowhere", "--network", "1Gb/s"},
      "add --dry-run");
}

}  // namespace
}  // namespace llmq::testing
