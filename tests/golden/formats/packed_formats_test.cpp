// The bytes llmq stores for a quantized linear equal those of the libraries whose formats they are.
//
// golden.json was written by compressed-tensors 0.20.0 and GPTQModel 7.7.0 from the same codes, scales and
// zeros (make_golden.py beside it).
#include <gtest/gtest.h>

#include "base/error.h"
#include "export/formats/packed_formats.h"
#include "tests/golden/formats/golden_cases.h"

namespace llmq {
namespace {

DType dtype_of(const Json& name) { return dtype_from_safetensors(name.as_string()).value(); }

template <typename T>
std::vector<T> flat(const Json& rows) {
  std::vector<T> values;
  for (const Json& row : rows.items())
    for (const Json& value : row.items()) values.push_back(static_cast<T>(value.as_double()));
  return values;
}

PlannedModule planned(const QuantizedMatrix& matrix) {
  return {"layer", matrix.scheme, matrix.out_features, matrix.in_features, !matrix.column_group.empty()};
}

QuantizedMatrix matrix_of(const Json& one) {
  QuantizedMatrix matrix;
  const Json& group = one.at("group_size");
  matrix.scheme.bits = static_cast<int>(one.at("bits").as_integer());
  matrix.scheme.granularity = group.is_null() ? Granularity::kChannel : Granularity::kGroup;
  matrix.scheme.group_size = group.is_null() ? 0 : static_cast<int>(group.as_integer());
  matrix.scheme.symmetric = one.at("symmetric").as_bool();
  matrix.scheme.scale_dtype = dtype_of(one.at("scale_dtype"));
  matrix.out_features = static_cast<std::int64_t>(one.at("codes").items().size());
  matrix.in_features = static_cast<std::int64_t>(one.at("codes").items()[0].items().size());
  matrix.codes = flat<std::uint8_t>(one.at("codes"));
  matrix.scales = flat<float>(one.at("scales"));
  matrix.zeros = flat<std::uint8_t>(one.at("zeros"));
  if (const Json* index = one.find("column_group"))
    for (const Json& group_of_column : index->items())
      matrix.column_group.push_back(static_cast<std::int32_t>(group_of_column.as_integer()));
  return matrix;
}

TEST(PackedFormats, BytesEqualTheLibraries) {
  const Json cases = golden_cases("golden.json");
  ASSERT_EQ(cases.items().size(), 24u);
  for (const Json& one : cases.items()) {
    SCOPED_TRACE(one.at("format").as_string() + " " + one.at("name").as_string());
    const PackedFormatRow& format = packed_format(one.at("format").as_string());
    const QuantizedMatrix matrix = matrix_of(one);
    const std::vector<PackedTensor> tensors = format.pack(planned(matrix), matrix);
    EXPECT_EQ(tensors.size(), one.at("tensors").members().size());
    for (const PackedTensor& tensor : tensors) {
      SCOPED_TRACE(tensor.declaration.name);
      const Json* wanted =
          one.at("tensors").find(tensor.declaration.name.substr(std::string("layer.").size()));
      ASSERT_NE(wanted, nullptr);
      EXPECT_EQ(tensor.declaration.dtype, dtype_of(wanted->at("dtype")));
      EXPECT_EQ(shape_json(tensor.declaration.shape), wanted->at("shape"));
      EXPECT_EQ(hex(tensor.bytes), wanted->at("hex").as_string());
    }
  }
}

TEST(PackedFormats, DeclarationsAreWhatIsPacked) {
  const Json cases = golden_cases("golden.json");
  for (const Json& one : cases.items()) {
    SCOPED_TRACE(one.at("format").as_string() + " " + one.at("name").as_string());
    const PackedFormatRow& format = packed_format(one.at("format").as_string());
    const QuantizedMatrix matrix = matrix_of(one);
    const auto declared = format.declare(planned(matrix));
    const auto packed = format.pack(planned(matrix), matrix);
    ASSERT_EQ(declared.size(), packed.size());
    for (std::size_t i = 0; i < declared.size(); ++i) {
      EXPECT_EQ(declared[i].name, packed[i].declaration.name);
      EXPECT_EQ(declared[i].dtype, packed[i].declaration.dtype);
      EXPECT_EQ(declared[i].shape, packed[i].declaration.shape);
      const TensorView view(static_cast<const void*>(nullptr), declared[i].dtype, declared[i].shape);
      EXPECT_EQ(view.bytes(), packed[i].bytes.size());
    }
  }
}

QuantizedMatrix two_groups(std::uint8_t zero, std::uint8_t code) {
  QuantizedMatrix matrix;
  matrix.scheme.group_size = 16;
  matrix.scheme.scale_dtype = DType::kF16;
  matrix.out_features = 8;
  matrix.in_features = 32;
  matrix.codes.assign(8 * 32, 3);
  matrix.codes[5 * 32 + 17] = code;
  matrix.zeros.assign(8 * 2, 4);
  matrix.zeros[5 * 2 + 1] = zero;
  matrix.scales.assign(8 * 2, 0.5f);
  return matrix;
}

// (c + 1) - (z + 1) = c - z: the group with a zero of 0 moves up as a whole.
TEST(PackedFormats, GptqV1LiftsAZeroOfNothing) {
  const QuantizedMatrix matrix = two_groups(0, 14);
  const auto tensors = packed_format("gptq").pack(planned(matrix), matrix);
  QuantizedMatrix lifted = two_groups(1, 15);
  for (std::size_t k = 16; k < 32; ++k)
    if (k != 17) lifted.codes[5 * 32 + k] = 4;
  const auto wanted = packed_format("gptq").pack(planned(lifted), lifted);
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(hex(tensors[i].bytes), hex(wanted[i].bytes));
  std::vector<float> before(matrix.codes.size()), after(matrix.codes.size());
  dequantize(matrix, before);
  dequantize(lifted, after);
  EXPECT_EQ(before, after);
}

TEST(PackedFormats, GptqV1RefusesAZeroItCannotLift) {
  const QuantizedMatrix matrix = two_groups(0, 15);
  try {
    packed_format("gptq").pack(planned(matrix), matrix);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(error.detail().where, "layer");
    EXPECT_EQ(error.detail().message,
              "output 5 has a zero of 0 in group 1, which format gptq (v1) cannot store");
    EXPECT_EQ(error.detail().hint, "format: gptq_v2 stores it");
  }
  EXPECT_EQ(packed_format("gptq_v2").pack(planned(matrix), matrix).size(), 4u);
}

TEST(PackedFormats, GptqConfigNamesWhatDiffersAndWhatIsLeftOut) {
  QuantScheme four, eight;
  four.symmetric = eight.symmetric = true;
  eight.bits = 8;
  eight.granularity = Granularity::kChannel;
  const std::vector<PlannedModule> modules = {{"model.layers.0.self_attn.q_proj", four, 128, 128, true},
                                              {"model.layers.0.mlp.down_proj", eight, 128, 128}};
  const std::vector<std::string> ignored = {"model.layers.0.mlp.up_proj", "lm_head"};
  const Json config = packed_format("gptq").config({modules, ignored});
  EXPECT_EQ(
      config.dump(),
      R"({"bits":4,"checkpoint_format":"gptq","desc_act":true,"format":"gptq","group_size":128,"lm_head":false,)"
      R"("meta":{"quantizer":["llmq"]},"method":"gptq","pack_dtype":"int32","quant_method":"gptq",)"
      R"("static_groups":false,"sym":true,"true_sequential":true,"dynamic":{)"
      R"("+:^model\\.layers\\.0\\.mlp\\.down_proj$":{"bits":8,"group_size":-1,"sym":true,"desc_act":false},)"
      R"("-:^model\\.layers\\.0\\.mlp\\.up_proj$":{},"-:^model\\.layers\\.0\\.mlp\\.gate_up_proj$":{}}})");
}

}  // namespace
}  // namespace llmq
