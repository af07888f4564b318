// Queries that grow with their position: the keys that say so, and the table that does it. What it gives is
// held by tests/golden/models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/forward_context.h"
#include "tests/unit/model/scratch_model.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

struct ScratchMinistral3 : ScratchModel {
  ScratchMinistral3() : ScratchModel("ministral3", "Ministral3ForCausalLM") {
    config["head_dim"] = 4;
    config.erase("rope_theta");
    config["rope_parameters"] = Json::object({{"rope_type", "yarn"},
                                              {"type", "yarn"},
                                              {"rope_theta", 1e6},
                                              {"factor", 4.0},
                                              {"original_max_position_embeddings", 16},
                                              {"mscale", 1.0},
                                              {"mscale_all_dim", 1.0},
                                              {"llama_4_scaling_beta", 0.1}});
  }
  std::string sentence() const {
    return error_of([&] { ModelSpec::read(open()); });
  }
};

TEST(Ministral3, QueriesHaveATableOfTheirOwn) {
  ScratchMinistral3 model;
  ModelSpec spec = ModelSpec::read(model.open());
  ASSERT_EQ(spec.ropes.size(), 2u);
  EXPECT_EQ(spec.ropes[0].growth, 0);
  EXPECT_EQ(spec.ropes[1].growth, 0.1);
  for (const BlockSpec& block : spec.blocks) {
    EXPECT_EQ(block.attention()->rope.table, 0u);
    EXPECT_EQ(block.attention()->query_table, 1u);
  }
  const RopeTable keys = make_rope_table(spec.ropes[0], spec.max_position, 64),
                  queries = make_rope_table(spec.ropes[1], spec.max_position, 64);
  for (std::size_t i = 0; i < keys.cosines.size(); ++i) {
    const double by = 1 + 0.1 * std::log(1 + std::floor(static_cast<double>(i / 2) / 16));
    EXPECT_NEAR(queries.cosines[i], by * keys.cosines[i], 3 * 0x1p-24 * by) << i;
    EXPECT_NEAR(queries.sines[i], by * keys.sines[i], 3 * 0x1p-24 * by) << i;
  }
  for (std::size_t i = 0; i < 2 * 16; ++i) EXPECT_EQ(queries.cosines[i], keys.cosines[i]) << i;

  model.config["rope_parameters"]["llama_4_scaling_beta"] = 0.0;
  spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.ropes.size(), 1u);
  EXPECT_FALSE(spec.blocks[0].attention()->query_table.has_value());
}

TEST(Ministral3, WhatDoesNotSayHowTheyGrowIsRefused) {
  ScratchMinistral3 model;
  Json& rope = model.config["rope_parameters"];
  rope["max_position_embeddings"] = 64;
  EXPECT_EQ(model.sentence(), "");
  rope["max_position_embeddings"] = 65;
  EXPECT_THAT(model.sentence(), HasSubstr("rope_parameters.max_position_embeddings"));
  rope.erase("max_position_embeddings");
  rope["llama_4_scaling_beta"] = -1;
  EXPECT_THAT(model.sentence(), HasSubstr("rope_parameters.llama_4_scaling_beta"));
  rope = Json::object({{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}});
  EXPECT_THAT(model.sentence(), HasSubstr("original_max_position_embeddings: is missing"));
  model.config.erase("rope_parameters");
  EXPECT_THAT(model.sentence(), HasSubstr("rope_parameters: is missing"));
  ScratchModel llama;
  llama.config["rope_scaling"] =
      Json::object({{"rope_type", "yarn"}, {"factor", 2.0}, {"llama_4_scaling_beta", 0.1}});
  EXPECT_THAT(error_of([&] { ModelSpec::read(llama.open()); }), HasSubstr("llama_4_scaling_beta"));
}

TEST(Ministral3, ATableOfQueriesThatIsNotThereIsRefused) {
  const ScratchMinistral3 model;
  ModelSpec spec = ModelSpec::read(model.open());
  spec.ropes.pop_back();
  EXPECT_THAT(error_of([&] { make_forward_context(spec, *make_reference_backend(), Compute::kFloat32, 8); }),
              HasSubstr("rope table 1"));
}

}  // namespace
}  // namespace llmq
