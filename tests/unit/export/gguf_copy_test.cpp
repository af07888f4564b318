// A GGUF made of a GGUF: what has its type already is copied to the byte, and what is rounded to other codes
// is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "export/gguf/gguf_file.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using testing::expect_refusal;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;
using testing::to_gguf;

// Rows of 256, which llama.cpp's K types divide.
class WideModel : public ScratchModel {
 public:
  WideModel() {
    config["hidden_size"] = config["intermediate_size"] = 256;
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"] = scratch_ramp({32, 256});
    tensors["model.norm.weight"] = scratch_ramp({256});
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      add_to_blocks(norm, scratch_ramp({256}));
    for (const char* linear : {"self_attn.q_proj.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight",
                               "mlp.up_proj.weight", "mlp.down_proj.weight"})
      add_to_blocks(linear, scratch_ramp({256, 256}));
    for (const char* linear : {"self_attn.k_proj.weight", "self_attn.v_proj.weight"})
      add_to_blocks(linear, scratch_ramp({128, 256}));
  }
};

class CopiedGguf : public ::testing::Test {
 protected:
  CopiedGguf() {
    const Checkpoint source = model_.open();
    write_text_atomically(system_io(), source.path() / "tokenizer.json", testing::kFewLetters);
    model_path_ = source.path().string();
  }
  // What it warned of.
  std::string written(const std::string& source, const std::string& name,
                      const std::optional<std::string>& dtype, std::uint64_t split = 0) {
    ::testing::internal::CaptureStderr();
    report_ = to_gguf(system_io(), source, disk_ / name, dtype, split);
    return ::testing::internal::GetCapturedStderr();
  }
  std::string path(const std::string& name) const { return (disk_ / name).string(); }
  // Codes that no rounding gives: the largest of a block would be 127.
  void spoil(const std::string& name, char code, std::uint64_t from, std::uint64_t count) {
    std::string bytes = disk_.read(name);
    const GgufFile file = open_gguf(system_io(), disk_ / name);
    for (const GgufTensor& tensor : file.header.tensors)
      if (tensor.dtype == DType::kQ8_0) bytes.replace(tensor.offset + from, count, count, code);
    disk_.write(name, bytes);
  }

  WideModel model_;
  std::string model_path_;
  TemporaryDirectory disk_;
  ConvertReport report_;
};

TEST_F(CopiedGguf, KeepsEveryTypeWhereNoneIsAsked) {
  for (const std::string dtype : {"q4_k_m", "q8_0", "iq4_xs", "f16"}) {
    const std::string name = dtype + ".gguf", copy = dtype + "-copy.gguf", same = dtype + "-same.gguf";
    written(model_path_, name, dtype);
    if (dtype == "q8_0") spoil(name, 1, 2, 32);
    EXPECT_EQ(written(path(name), copy, {}), "");
    EXPECT_EQ(report_.dtype, "as stored");
    EXPECT_EQ(disk_.read(copy), disk_.read(name)) << dtype;
    EXPECT_EQ(written(path(name), same, dtype), "") << "of every tensor the type that it has";
    EXPECT_EQ(disk_.read(same), disk_.read(name)) << dtype;
  }
  EXPECT_EQ(find_gguf_tensor(open_gguf(system_io(), disk_ / "q4_k_m-copy.gguf").header, "blk.0.attn_q.weight")
                ->dtype,
            DType::kQ4_K);
  // Its numbers rounded again are others.
  written(path("q4_k_m.gguf"), "numbers.gguf", "f32");
  written(path("numbers.gguf"), "again.gguf", "q4_k_m");
  EXPECT_NE(disk_.read("again.gguf"), disk_.read("q4_k_m.gguf"));
}

TEST_F(CopiedGguf, IsCutAndJoinedWithoutALoss) {
  written(model_path_, "whole.gguf", "q4_k_m");
  EXPECT_EQ(written(path("whole.gguf"), "m.gguf", {}, 60'000), "");
  std::string first;
  int parts = 0;
  for (const std::string& name : system_io().list(disk_.path()))
    if (name.starts_with("m-") && name.ends_with(".gguf") && parts++ == 0) first = name;
  EXPECT_GT(parts, 3);
  written(path(first), "joined.gguf", {});
  EXPECT_EQ(disk_.read("joined.gguf"), disk_.read("whole.gguf"));
}

// One sentence, of numbers that were codes and become others; the rest of such a file is copied.
TEST_F(CopiedGguf, ASecondRoundingIsSaidOnce) {
  written(model_path_, "source.gguf", "q4_k_m");
  const std::string said = written(path("source.gguf"), "q4_k_s.gguf", "q5_k_m");
  EXPECT_THAT(said, HasSubstr("is stored as Q4_K and is rounded a second time, and those like it: what the "
                              "first rounding lost stays lost"));
  EXPECT_EQ(said.find("second time"), said.rfind("second time"));
  const GgufFile source = open_gguf(system_io(), disk_ / "source.gguf"),
                 made = open_gguf(system_io(), disk_ / "q4_k_s.gguf");
  int copied = 0;
  for (const GgufTensor& tensor : made.header.tensors) {
    const GgufTensor& before = *find_gguf_tensor(source.header, tensor.name);
    if (!is_block_type(tensor.dtype) || tensor.dtype != before.dtype) continue;
    EXPECT_EQ(std::memcmp(tensor.data, before.data, before.bytes), 0) << tensor.name;
    ++copied;
  }
  EXPECT_GT(copied, 0) << "Q6_K is in both";
  EXPECT_EQ(written(path("source.gguf"), "f32.gguf", "f32"), "") << "exact";
  EXPECT_EQ(written(model_path_, "first.gguf", "q4_k_m"), "");
}

TEST_F(CopiedGguf, BlocksWithoutAValueAreRefused) {
  written(model_path_, "m.gguf", "q8_0");
  spoil("m.gguf", '\x7f', 0, 2);  // the scale: NaN
  for (const std::optional<std::string>& dtype : {std::optional<std::string>(), {"q8_0"}})
    expect_refusal(ErrorKind::kBadInput, "holds NaN at row 0, column 0; get",
                   [&] { to_gguf(system_io(), path("m.gguf"), disk_ / "out.gguf", dtype); });
}

// llmq quantize rounds anew what it is told to round: an importance would choose other codes.
TEST_F(CopiedGguf, QuantizeRoundsAnew) {
  written(model_path_, "m.gguf", "q8_0");
  spoil("m.gguf", 1, 2, 32);
  const Checkpoint source = open_checkpoint(system_io(), path("m.gguf"));
  const ModelSpec spec = ModelSpec::read(source);
  GgufRequest request;
  request.target = {disk_ / "out.gguf", true};
  request.file_type = find_gguf_file_type("q8_0");
  GgufOutput output(system_io(), source, spec, request);
  ThreadPool pool(1);
  output.publish(output.write(nullptr, pool));
  EXPECT_EQ(disk_.read("out.gguf").size(), disk_.read("m.gguf").size());
  EXPECT_NE(disk_.read("out.gguf"), disk_.read("m.gguf"));
}

}  // namespace
}  // namespace llmq
