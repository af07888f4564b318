// Rope tables against Transformers' own (rope_vectors.json, written by tests/interop/make_rope_vectors.py).
//
// Bound. Both sides round the same operations to FP32; only powers, cos and sin may differ, by one unit in
// the last place each (a vector library's against a correctly rounded one). A frequency passes at most eight
// roundings that such a unit can move (power, reciprocal, the ramp's products and sums), so angles differ by
// at most 8 * 2^-23 of themselves, and cos or sin by that much more than two of their own roundings (2 *
// 2^-23, times yarn's factor).
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/io.h"
#include "base/json.h"
#include "model/families/family.h"

namespace llmq {
namespace {

Json load_rope_cases() {
  const Path path = Path(LLMQ_SOURCE_DIR) / "tests/unit/model/rope_vectors.json";
  return Json::parse(read_text(system_io(), path), path.string());
}

ModelSpec spec_of(const Json& rope_case) {
  ModelSpec spec;
  spec.max_position = rope_case.at("max_position").as_integer();
  ConfigFields fields(rope_case.at("config"), "config.json", "");
  spec.ropes = {read_rope(fields, spec.max_position, rope_case.at("head_dim").as_integer())};
  fields.refuse_unread({});
  return spec;
}

TEST(Rope, EqualsTransformersForEveryKind) {
  std::size_t values = 0, different = 0;
  const Json cases = load_rope_cases();
  for (const Json& rope_case : cases.items()) {
    SCOPED_TRACE(rope_case.at("name").as_string());
    const ModelSpec spec = spec_of(rope_case);
    const RopeSpec& rope = spec.ropes.front();
    const RopeTable table = make_rope_table(rope, spec.max_position, rope_case.at("length").as_integer());
    const auto half = static_cast<std::size_t>(rope.dims / 2);
    ASSERT_EQ(table.cosines.size(), static_cast<std::size_t>(table.positions) * half);
    // Position 0: every angle is 0, so the cosine is yarn's factor itself.
    const double factor = table.cosines[0];
    for (std::size_t row = 0; row < rope_case.at("positions").items().size(); ++row) {
      const auto position = static_cast<std::size_t>(rope_case.at("positions").items()[row].as_integer());
      for (std::size_t i = 0; i < half; ++i) {
        const auto frequency_bound =
            std::abs(static_cast<double>(position)) *
            std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.dims));
        const double bound = factor * (8 * frequency_bound + 2) * std::pow(2.0, -23);
        const std::size_t at = position * half + i;
        const double cos = rope_case.at("cos").items()[row].items()[i].as_double();
        const double sin = rope_case.at("sin").items()[row].items()[i].as_double();
        ASSERT_NEAR(table.cosines[at], cos, bound) << "position " << position << ", pair " << i;
        ASSERT_NEAR(table.sines[at], sin, bound) << "position " << position << ", pair " << i;
        values += 2;
        different +=
            (table.cosines[at] != static_cast<float>(cos)) + (table.sines[at] != static_cast<float>(sin));
      }
    }
  }
  RecordProperty("values", static_cast<int>(values));
  RecordProperty("not_bit_equal", static_cast<int>(different));
  EXPECT_GT(values, 3000u);
  EXPECT_LT(different, values / 10);  // last-bit differences are the exception
}

TEST(Rope, DynamicDependsOnTheLength) {
  RopeSpec rope;
  rope.dims = 16;
  rope.kind = RopeKind::kDynamic;
  rope.factor = 2;
  const RopeTable within = make_rope_table(rope, 32, 32), grown = make_rope_table(rope, 32, 33);
  EXPECT_EQ(within.cosines[8], grown.cosines[8]);  // the first frequency is 1 in both
  EXPECT_NE(within.cosines[9], grown.cosines[9]);
}

TEST(Rope, RefusesEmptyAndImpossibleTables) {
  RopeSpec rope;
  rope.dims = 16;
  for (const std::int64_t positions : {std::int64_t{0}, std::int64_t{-4}, std::int64_t{1} << 60})
    EXPECT_ANY_THROW(make_rope_table(rope, 64, positions));
}

std::string rope_refusal(const std::string& config) {
  const Json json = Json::parse(config, "config.json");
  try {
    ConfigFields fields(json, "config.json", "");
    read_rope(fields, 2048, 16);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RopeFields, RefusesWhatItDoesNotKnowByName) {
  EXPECT_NE(
      rope_refusal(R"({"rope_scaling":{"type":"ntk","factor":2}})").find("rope_scaling.type: is \"ntk\""),
      std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":{"type":"longrope","factor":2}})")
                .find("rope_scaling.short_factor: is no list of 8 factors"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":{"type":"linear","rope_type":"yarn","factor":2}})")
                .find("rope_scaling.rope_type"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":{"type":"linear"}})").find("rope_scaling.factor: is missing"),
            std::string::npos);
  EXPECT_NE(
      rope_refusal(R"({"rope_scaling":{"type":"linear","factor":0}})").find("rope_scaling.factor: is 0"),
      std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":{"type":"linear","factor":1e300}})").find("rope_scaling.factor"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":{"type":"linear","factor":"2"}})").find("expected a number"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":{"type":"linear","factor":2,"long_factor":[1]}})")
                .find("rope_scaling.long_factor"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_scaling":[1]})").find("expected an object, found an array"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_theta":-5})").find("rope_theta: is -5"), std::string::npos);
  EXPECT_NE(
      rope_refusal(R"({"rope_theta":10000,"rope_parameters":{"rope_type":"default","rope_theta":20000}})")
          .find("rope_parameters.rope_theta"),
      std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5}})")
                .find("partial_rotary_factor"),
            std::string::npos);
  EXPECT_NE(rope_refusal(R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})")
                .find("rope_parameters.full_attention"),
            std::string::npos);
  EXPECT_NE(
      rope_refusal(
          R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":3}})")
          .find("high_freq_factor"),
      std::string::npos);
  EXPECT_EQ(rope_refusal(R"({"rope_scaling":{"type":"linear","rope_type":"linear","factor":2}})"), "");
}

}  // namespace
}  // namespace llmq
