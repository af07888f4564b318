// Which tensor two files of weights part at.
#include "export/first_difference.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/gguf_writer.h"
#include "io/safetensors.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

const std::vector<TensorDeclaration> kTensors = {
    {"a", DType::kF32, {2}}, {"b", DType::kF32, {3}}, {"c", DType::kF32, {1}}};

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

template <typename Writer>
void fill(Writer& writer, float b, float c) {
  writer.append("a", bytes_of({1, 2}));
  writer.append("b", bytes_of({3, b, 5}));
  writer.append("c", bytes_of({c}));
  writer.finish();
}

void write_safetensors(const Path& file, float b, float c, const std::string& note = "x") {
  SafetensorsWriter writer(system_io(), file, kTensors, {{"note", note}});
  fill(writer, b, c);
}

void write_gguf_file(const Path& file, float b, float c) {
  GgufMetadata metadata;
  metadata.set_string("general.architecture", "llama");
  GgufWriter writer(system_io(), file, metadata, kTensors);
  fill(writer, b, c);
}

TEST(FirstDifferenceTest, IsTheFirstTensorOfWhichAByteDiffers) {
  const TemporaryDirectory disk;
  for (const std::string& type : {std::string(".safetensors"), std::string(".gguf")}) {
    const auto write = [&](const std::string& name, float b, float c) {
      const Path file = disk / (name + type);
      type == ".gguf" ? write_gguf_file(file, b, c) : write_safetensors(file, b, c);
      return file;
    };
    const Path one = write("one", 4, 6), same = write("same", 4, 6), in_c = write("in_c", 4, -6),
               in_both = write("in_both", -4, -6);
    EXPECT_EQ(first_difference(system_io(), one, same), "") << type;
    EXPECT_EQ(first_difference(system_io(), one, in_c), "c") << type;
    EXPECT_EQ(first_difference(system_io(), one, in_both), "b") << type;
  }
}

TEST(FirstDifferenceTest, ATableThatDiffersIsNamedAndOtherFilesHaveNone) {
  const TemporaryDirectory disk;
  write_safetensors(disk / "one.safetensors", 4, 6);
  write_safetensors(disk / "note.safetensors", 4, 6, "y");
  disk.write("short.safetensors", "no");
  disk.write("a.json", "{}");
  disk.write("b.json", "[]");
  EXPECT_EQ(first_difference(system_io(), disk / "one.safetensors", disk / "note.safetensors"),
            "the table of tensors");
  EXPECT_EQ(first_difference(system_io(), disk / "one.safetensors", disk / "short.safetensors"), "");
  EXPECT_EQ(first_difference(system_io(), disk / "a.json", disk / "b.json"), "");
}

}  // namespace
}  // namespace llmq::testing
