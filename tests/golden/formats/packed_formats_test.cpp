// The bytes llmq stores for a quantized linear equal those of the libraries whose formats they are.
//
// golden.json was written by compressed-tensors 0.20.0 and GPTQModel 7.7.0 from the same codes, scales and
// zeros (make_golden.py beside it).
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/json.h"
#include "export/packed_formats.h"

namespace llmq {
namespace {

Json golden_cases() {
  const std::string path = LLMQ_SOURCE_DIR "/tests/golden/formats/golden.json";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str(), path);
}

DType dtype_of(const Json& name) { return dtype_from_safetensors(name.as_string()).value(); }

template <typename T>
std::vector<T> flat(const Json& rows) {
  std::vector<T> values;
  for (const Json& row : rows.items())
    for (const Json& value : row.items()) values.push_back(static_cast<T>(value.as_double()));
  return values;
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
  return matrix;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

Json shape_json(const Shape& shape) {
  Json extents = Json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

TEST(PackedFormats, BytesEqualTheLibraries) {
  const Json cases = golden_cases();
  ASSERT_EQ(cases.items().size(), 13u);
  for (const Json& one : cases.items()) {
    SCOPED_TRACE(one.at("format").as_string() + " " + one.at("name").as_string());
    const PackedFormatRow& format = packed_format(one.at("format").as_string());
    const std::vector<PackedTensor> tensors = format.pack("layer", matrix_of(one));
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
  const Json cases = golden_cases();
  for (const Json& one : cases.items()) {
    SCOPED_TRACE(one.at("format").as_string() + " " + one.at("name").as_string());
    const PackedFormatRow& format = packed_format(one.at("format").as_string());
    const QuantizedMatrix matrix = matrix_of(one);
    const auto declared = format.declare({"layer", matrix.scheme, matrix.out_features, matrix.in_features});
    const auto packed = format.pack("layer", matrix);
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

}  // namespace
}  // namespace llmq
