// A file written by the gguf package: every block type that is read, against the values that package gives
// (fixtures/make_block_types.py).
#include <gtest/gtest.h>

#include <cstring>

#include "io/gguf.h"

namespace llmq {
namespace {

const Path kFixtures = Path(LLMQ_SOURCE_DIR) / "tests/unit/io/fixtures";

TEST(GgufFixture, EveryBlockTypeMeansWhatGgmlSays) {
  const GgufFile file = open_gguf(system_io(), kFixtures / "block_types.gguf");
  const std::string golden = read_text(system_io(), kFixtures / "block_types.float32");
  EXPECT_EQ(file.header.string("general.architecture"), "fixture");
  ASSERT_EQ(file.header.tensors.size(), 13u);
  std::size_t at = 0;
  for (const GgufTensor& tensor : file.header.tensors) {
    SCOPED_TRACE(tensor.name);
    EXPECT_EQ(tensor.name, std::string(dtype_row(tensor.dtype).name) + ".weight");
    ASSERT_EQ(tensor.shape, (Shape{2, 256}));
    std::vector<float> values(512), expected(512);
    to_float32(TensorView(static_cast<const void*>(tensor.data), tensor.dtype, tensor.shape), values);
    ASSERT_LE(at + 2048, golden.size());
    std::memcpy(expected.data(), golden.data() + at, 2048);
    at += 2048;
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], expected[i]) << i;
  }
  EXPECT_EQ(at, golden.size());
}

}  // namespace
}  // namespace llmq
