// What an adapter may be: each rule by breaking it, and the sum against its definition in FP64.
#include "model/adapters/lora_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "scratch_model.h"
#include "support/named_parts.h"
#include "support/temporary_directory.h"
#include "support/tiny_adapter.h"
#include "support/tolerance.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

class LoraAdapterTest : public ::testing::Test {
 protected:
  LoraAdapterTest() : spec_(ModelSpec::read(model_.open())) {}

  LinearId named(std::size_t block, const char* name) const {
    return linear_named(spec_.blocks[block], name).id;
  }
  TinyAdapter usual() const {
    TinyAdapter adapter;
    adapter.make(spec_);
    return adapter;
  }
  LoraAdapter open(const TinyAdapter& adapter) {
    return LoraAdapter::open(system_io(), adapter.write((disk_ / "adapter").string()), spec_);
  }
  std::string refusal(const std::function<void(TinyAdapter&)>& bend) {
    TinyAdapter adapter = usual();
    bend(adapter);
    return error_of([&] { open(adapter); });
  }
  std::string refusal_of_field(const char* key, const Json& value) {
    return refusal([&](TinyAdapter& adapter) { adapter.config[key] = value; });
  }

  ScratchModel model_;
  ModelSpec spec_;
  TemporaryDirectory disk_;
};

const char* kQuery = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

TEST_F(LoraAdapterTest, GivesTheMatricesOfEveryLinear) {
  const TinyAdapter written = usual();
  const LoraAdapter adapter = open(written);
  EXPECT_EQ(adapter.linears(), 14u);
  EXPECT_EQ(adapter.rank(), 4);
  const LoraPair pair = adapter.pair(1, named(1, "down_proj"));
  EXPECT_EQ(pair.in_features, 24);
  EXPECT_EQ(pair.out_features, 16);
  EXPECT_EQ(pair.scale, 2.0f);
  EXPECT_EQ(pair.down, written.values[26]);
  EXPECT_EQ(pair.up, written.values[27]);
}

TEST_F(LoraAdapterTest, TargetsThatAreNotNamedAreLeftAlone) {
  TinyAdapter some;
  some.config["target_modules"] = Json::array({"v_proj", "not_of_this_model"});
  some.make(spec_);
  const LoraAdapter adapter = open(some);
  EXPECT_TRUE(adapter.changes(0, named(0, "v_proj")));
  EXPECT_FALSE(adapter.changes(0, named(0, "q_proj")));
}

TEST_F(LoraAdapterTest, ScaleFollowsRankAndAlpha) {
  TinyAdapter adapter = usual();
  adapter.config["use_rslora"] = true;
  adapter.config["alpha_pattern"] =
      Json::object({{"layers.1.self_attn.k_proj", 3.0}, {"k_proj", 5.0}, {"proj", 7}});
  const LoraAdapter found = open(adapter);
  const auto scale = [&](std::size_t block, const char* name) {
    return found.pair(block, named(block, name)).scale;
  };
  EXPECT_EQ(scale(0, "q_proj"), 4.0f) << "a key matches whole parts of a name";
  EXPECT_EQ(scale(0, "k_proj"), 2.5f);
  EXPECT_EQ(scale(1, "k_proj"), 1.5f) << "the first that matches";
}

TEST_F(LoraAdapterTest, RankPatternSaysTheShapes) {
  EXPECT_THAT(refusal_of_field("rank_pattern", Json::object({{"q_proj", 2}})),
              HasSubstr("has shape [4, 16], expected [2, 16]"));
  TinyAdapter adapter = usual();
  adapter.config["r"] = 9;
  adapter.config["rank_pattern"] = Json::object({{".*_proj", 4}});
  EXPECT_EQ(open(adapter).pair(0, named(0, "gate_proj")).scale, 2.0f);
}

TEST_F(LoraAdapterTest, WhatIsNotCarriedOutIsRefusedByName) {
  const std::vector<std::pair<const char*, Json>> fields = {
      {"use_dora", true},
      {"modules_to_save", Json::array({"lm_head"})},
      {"bias", "all"},
      {"lora_bias", true},
      {"peft_type", "IA3"},
      {"init_lora_weights", "pissa"},
      {"target_parameters", Json::array({"x"})},
      {"layer_replication", Json::array({Json::array({0, 1})})},
      {"a_field_of_tomorrow", 1}};
  for (const auto& [key, value] : fields) {
    const std::string said = refusal_of_field(key, value);
    EXPECT_THAT(said, HasSubstr("unsupported|")) << key;
    EXPECT_THAT(said, HasSubstr(key));
    EXPECT_THAT(said, HasSubstr("adapter_config.json"));
  }
}

TEST_F(LoraAdapterTest, BadFieldsAreOneSentence) {
  EXPECT_THAT(refusal_of_field("r", 1 << 30), HasSubstr("r: is 1073741824, which is not between 1 and 1024"));
  EXPECT_THAT(refusal_of_field("r", 0), HasSubstr("not between"));
  EXPECT_THAT(refusal_of_field("r", 8), HasSubstr("has shape [4, 16], expected [8, 16]"));
  EXPECT_THAT(refusal_of_field("lora_alpha", "8"), HasSubstr("expected a number"));
  EXPECT_THAT(refusal_of_field("lora_alpha", 1e300), HasSubstr("not between"));
  EXPECT_THAT(refusal_of_field("rank_pattern", Json::object({{"(", 4}})), HasSubstr("no regular expression"));
  EXPECT_THAT(refusal_of_field("target_modules", 5), HasSubstr("expected a list of names"));
}

TEST_F(LoraAdapterTest, BadTensorsAreOneSentence) {
  EXPECT_THAT(refusal([](TinyAdapter& a) { a.left_out = {kQuery}; }),
              HasSubstr("q_proj.lora_A.weight: is missing beside its other half"));
  EXPECT_THAT(refusal([](TinyAdapter& a) {
                a.left_out = {a.tensors[0].name, a.tensors[1].name};
              }),
              HasSubstr("is missing, though target_modules"));
  EXPECT_THAT(refusal_of_field("target_modules", Json::array({"q_proj"})),
              HasSubstr("k_proj.lora_A.weight: is of a linear that target_modules"));
  EXPECT_THAT(refusal([](TinyAdapter& a) { a.values[3][1] = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("k_proj.lora_B.weight: holds nan at element 1"));
  EXPECT_THAT(refusal([](TinyAdapter& a) { a.values[0][0] = std::numeric_limits<float>::infinity(); }),
              HasSubstr("holds inf"));
  EXPECT_THAT(refusal([](TinyAdapter& a) {
                a.tensors[0].shape = {8, 8};
              }),
              HasSubstr("has shape [8, 8], expected [4, 16]"));
  EXPECT_THAT(refusal([](TinyAdapter& a) {
                a.tensors.push_back({"base_model.model.lm_head.lora_A.weight", DType::kF32, {1}});
                a.values.push_back({1});
              }),
              HasSubstr("lm_head.lora_A.weight: is no LoRA matrix of a linear"));
  EXPECT_THAT(refusal([](TinyAdapter& a) {
                a.tensors.clear();
                a.values.clear();
                a.config["target_modules"] = "all-linear";
              }),
              HasSubstr("holds no matrix"));
}

TEST_F(LoraAdapterTest, MissingFilesAreOneSentence) {
  const auto refusal_at = [&](const Path& directory) {
    return error_of([&] { LoraAdapter::open(system_io(), directory, spec_); });
  };
  EXPECT_THAT(refusal_at(disk_ / "nowhere"), HasSubstr("no such directory"));
  disk_.write("config only/adapter_config.json", "[]");
  EXPECT_THAT(refusal_at(disk_ / "config only"), HasSubstr("pickled weights"));
  disk_.write("config only/adapter_model.safetensors", "none");
  EXPECT_THAT(refusal_at(disk_ / "config only"), HasSubstr("expected an object"));
}

// Each entry is a sum of `rank` products, then a product and an addition: rank + 2 roundings on its way.
TEST_F(LoraAdapterTest, RowsAreTheSumInFp64) {
  const LoraPair pair = open(usual()).pair(0, named(0, "down_proj"));
  const auto rank = static_cast<std::size_t>(pair.rank), width = static_cast<std::size_t>(pair.in_features);
  std::vector<float> rows(5 * width, 0.25f);
  ThreadPool pool(2);
  add_lora_rows(pair, 3, rows, pool);
  for (std::size_t row = 0; row < 5; ++row)
    for (std::size_t i = 0; i < width; ++i) {
      double sum = 0, magnitude = 0.25;
      for (std::size_t k = 0; k < rank; ++k) {
        const double product = static_cast<double>(pair.up[(row + 3) * rank + k]) *
                               static_cast<double>(pair.down[k * width + i]);
        sum += product;
        magnitude += static_cast<double>(pair.scale) * std::abs(product);
      }
      const double wanted = 0.25 + static_cast<double>(pair.scale) * sum;
      EXPECT_NEAR(static_cast<double>(rows[row * width + i]), wanted,
                  gamma(static_cast<int>(rank) + 2) * magnitude);
    }
}

}  // namespace
}  // namespace llmq::testing
