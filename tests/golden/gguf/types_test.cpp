// The types of every tensor against those that llama-quantize gave (types.json; make_types.py beside it made
// it).
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/io.h"
#include "base/json.h"
#include "export/gguf/type_mix.h"
#include "model/gguf/gguf_family.h"

namespace llmq {
namespace {

std::vector<GgufMixTensor> tensors_of(const Json& model) {
  const std::int64_t hidden = model.at("hidden").as_integer(), heads = model.at("heads").as_integer();
  const std::int64_t keys = hidden / heads * model.at("kv_heads").as_integer();
  const std::int64_t intermediate = model.at("intermediate").as_integer();
  const bool fused = model.at("architecture").as_string() == "phi3";
  std::vector<GgufMixTensor> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back({name, DType::kF32, shape});
  };
  add("token_embd.weight", {32, hidden});
  add("output_norm.weight", Shape{hidden});
  if (!model.at("tied").as_bool()) add("output.weight", {32, hidden});
  for (std::int64_t i = 0; i < model.at("layers").as_integer(); ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    add(block + "attn_norm.weight", Shape{hidden});
    add(block + "ffn_norm.weight", Shape{hidden});
    if (fused) {
      add(block + "attn_qkv.weight", {hidden + 2 * keys, hidden});
      add(block + "ffn_up.weight", {2 * intermediate, hidden});
    } else {
      add(block + "attn_q.weight", {hidden, hidden});
      add(block + "attn_k.weight", {keys, hidden});
      add(block + "attn_v.weight", {keys, hidden});
      add(block + "ffn_gate.weight", {intermediate, hidden});
      add(block + "ffn_up.weight", {intermediate, hidden});
    }
    add(block + "attn_output.weight", {hidden, hidden});
    add(block + "ffn_down.weight", {hidden, intermediate});
    if (model.at("architecture").as_string() == "qwen2") add(block + "attn_q.bias", Shape{hidden});
  }
  std::sort(tensors.begin(), tensors.end(), [](const GgufMixTensor& a, const GgufMixTensor& b) {
    return gguf_tensor_before(a.name, b.name);
  });
  return tensors;
}

std::vector<std::string> expanded(const std::string& runs) {
  std::vector<std::string> types;
  std::istringstream words(runs);
  for (std::string word; words >> word;) {
    const std::size_t star = word.find('*');
    types.insert(types.end(), std::stoul(word.substr(star + 1)), word.substr(0, star));
  }
  return types;
}

// Families that share an architecture agree in what it makes large.
const GgufFamily& family_of(const std::string& architecture) {
  for (const Family* family : families())
    if (family->gguf != nullptr && family->gguf->architecture == architecture) return *family->gguf;
  fail(ErrorKind::kBadInput, "no family is written as {}", architecture);
}

TEST(GgufTypes, AreThoseOfLlamaQuantize) {
  const Path path = Path(LLMQ_SOURCE_DIR) / "tests/golden/gguf/types.json";
  const Json table = Json::parse(read_text(system_io(), path), path.string());
  int compared = 0;
  for (const Json& model : table.items()) {
    const GgufMixModel mix{family_of(model.at("architecture").as_string()).large,
                           static_cast<int>(model.at("layers").as_integer()),
                           static_cast<int>(model.at("heads").as_integer()),
                           static_cast<int>(model.at("kv_heads").as_integer()), 0};
    const std::vector<GgufMixTensor> tensors = tensors_of(model);
    const Json& types = model.at("types");
    for (const auto& [key, unused] : types.members()) {
      if (key.find(' ') != std::string::npos) continue;
      const GgufFileType* file_type = find_gguf_file_type(key);
      ASSERT_NE(file_type, nullptr) << key;
      for (const bool importance : {false, true}) {
        const Json* weighted = importance ? types.find(key + " importance") : nullptr;
        const std::vector<std::string> expected =
            expanded((weighted != nullptr ? *weighted : types.at(key)).as_string());
        const std::vector<DType> found = choose_gguf_types(*file_type, mix, tensors, importance);
        std::size_t at = 0;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          if (tensors[i].shape.rank() < 2) {
            EXPECT_EQ(found[i], DType::kF32) << tensors[i].name;
            continue;
          }
          ASSERT_LT(at, expected.size());
          EXPECT_EQ(dtype_row(found[i]).name, expected[at++])
              << model.at("name").as_string() << ", " << key << (importance ? " with importance, " : ", ")
              << tensors[i].name;
        }
        EXPECT_EQ(at, expected.size());
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 8 * 16 * 2);
}

TEST(GgufTypes, NamesInAnyCase) {
  EXPECT_EQ(find_gguf_file_type("q4_k_m")->id, 15u);
  EXPECT_EQ(find_gguf_file_type("Q4_K")->id, 15u);
  EXPECT_EQ(find_gguf_file_type("bf16")->id, 32u);
  EXPECT_EQ(find_gguf_file_type("q4_k_x"), nullptr);
  EXPECT_EQ(find_gguf_file_type(""), nullptr);
}

}  // namespace
}  // namespace llmq
