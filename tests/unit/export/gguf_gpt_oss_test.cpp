// gpt-oss as GGUF: published experts keep their codes, in either direction, and what llama.cpp does not know
// is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "export/gguf/family_limits.h"
#include "export/gguf/type_mix.h"
#include "model/gguf/gguf_fields.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::golden_model;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::to_gguf;

std::string stored_as(const GgufFile& file, const std::string& name) {
  const GgufTensor* const tensor = find_gguf_tensor(file.header, name);
  return tensor == nullptr ? "missing"
                           : std::string(dtype_row(tensor->dtype).name) + " " + tensor->shape.text();
}

std::string bytes_of(const GgufFile& file, const std::string& name) {
  const GgufTensor& tensor = *find_gguf_tensor(file.header, name);
  const auto bytes = std::span(tensor.data, tensor.bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class GptOssGguf : public ::testing::Test {
 protected:
  GgufFile written(const std::string& source, const std::string& name, const std::string& dtype) {
    to_gguf(system_io(), source, disk_ / name, dtype);
    return open_gguf(system_io(), disk_ / name);
  }
  TemporaryDirectory disk_;
};

TEST_F(GptOssGguf, SaysWhatItIs) {
  const GgufFile file = written(golden_model(disk_, "gpt_oss"), "m.gguf", "f16");
  EXPECT_EQ(file.header.integer("gpt-oss.attention.sliding_window"), 7);
  EXPECT_EQ(file.header.integer("gpt-oss.expert_count"), 5);
  EXPECT_EQ(file.header.number("gpt-oss.rope.scaling.yarn_beta_fast"), 8);
  EXPECT_EQ(stored_as(file, "blk.1.attn_sinks.weight"), "F32 [4]");
  EXPECT_EQ(stored_as(file, "blk.1.post_attention_norm.weight"), "F32 [32]");
  EXPECT_EQ(stored_as(file, "blk.0.ffn_gate_exps.weight"), "F16 [5, 40, 32]");
  EXPECT_EQ(stored_as(file, "blk.0.ffn_down_exps.weight"), "F16 [5, 32, 40]");
  EXPECT_EQ(stored_as(file, "blk.0.ffn_up_exps.bias"), "F32 [5, 40]");
  EXPECT_EQ(stored_as(file, "blk.0.ffn_gate_inp.bias"), "F32 [5]");
  EXPECT_EQ(stored_as(file, "blk.0.attn_output.bias"), "F32 [32]");
}

// Whatever type all else is given.
TEST_F(GptOssGguf, PublishedExpertsKeepTheirCodes) {
  const std::string source = golden_model(disk_, "gpt_oss-mxfp4");
  const Checkpoint checkpoint = open_checkpoint(system_io(), source);
  for (const char* dtype : {"f32", "bf16", "q8_0", "mxfp4_moe"}) {
    const GgufFile file = written(source, std::string(dtype) + ".gguf", dtype);
    EXPECT_EQ(stored_as(file, "blk.0.ffn_gate_exps.weight"), "MXFP4 [3, 64, 32]") << dtype;
    EXPECT_EQ(file.header.integer("general.file_type"), std::string_view(dtype) == "q8_0" ? 7 : 38) << dtype;
    const std::string rows = bytes_of(file, "blk.1.ffn_up_exps.weight");
    // Of expert 2, row 5: the sixth of up is the twelfth of the stored stack.
    const std::string stack = "model.layers.1.mlp.experts.gate_up_proj";
    const auto* const codes = checkpoint.at(stack + "_blocks").view.as<const std::uint8_t>();
    const auto* const scales = checkpoint.at(stack + "_scales").view.as<const std::uint8_t>();
    const std::size_t stored = 2 * 128 + 2 * 5 + 1, at = (2 * 64 + 5) * 17;
    EXPECT_EQ(static_cast<std::uint8_t>(rows[at]), scales[stored]) << dtype;
    for (std::size_t k = 0; k < 32; ++k) {
      const int ours = static_cast<std::uint8_t>(rows[at + 1 + k % 16]) >> (k / 16 * 4) & 15;
      EXPECT_EQ(ours, codes[stored * 16 + k / 2] >> (k % 2 * 4) & 15) << dtype << " " << k;
    }
  }
  const std::string path = (disk_ / "bf16.gguf").string();
  const GgufFile first = open_gguf(system_io(), path), again = written(path, "again.gguf", "mxfp4_moe");
  EXPECT_EQ(bytes_of(again, "blk.0.ffn_down_exps.weight"), bytes_of(first, "blk.0.ffn_down_exps.weight"));
  EXPECT_EQ(stored_as(again, "blk.0.attn_q.weight"), "Q8_0 [32, 32]");
  EXPECT_EQ(stored_as(written(path, "wide.gguf", "f16"), "blk.0.ffn_down_exps.weight"), "F16 [3, 32, 64]")
      << "who asks of a GGUF for F16 gets F16";
}

TEST_F(GptOssGguf, ExpertsThatAreRoundedAreGgmls) {
  const GgufFile file = written(golden_model(disk_, "gpt_oss"), "m.gguf", "mxfp4_moe");
  EXPECT_EQ(file.header.integer("general.file_type"), 38);
  EXPECT_EQ(stored_as(file, "blk.0.ffn_up_exps.weight"), "MXFP4 [5, 40, 32]");
  EXPECT_EQ(stored_as(file, "blk.0.ffn_down_exps.weight"), "F16 [5, 32, 40]") << "40 are no whole blocks";
  EXPECT_EQ(stored_as(file, "token_embd.weight"), "Q8_0 [97, 32]");
  EXPECT_EQ(stored_as(file, "blk.0.ffn_gate_inp.weight"), "F32 [5, 32]");
}

TEST_F(GptOssGguf, WhatLlamaCppDoesNotKnowIsRefused) {
  const std::string source = golden_model(disk_, "gpt_oss");
  ModelSpec spec = ModelSpec::read(open_checkpoint(system_io(), source));
  EXPECT_NO_THROW(check_gguf_family(spec, "m"));
  spec.blocks[1].pages.window = 7;
  expect_refusal(ErrorKind::kUnsupported, "full attention in every 2th block",
                 [&] { check_gguf_family(spec, "m"); });
  spec.blocks[1].pages.window = 0;
  spec.ropes[0].truncate = true;
  expect_refusal(ErrorKind::kUnsupported, "where truncate is false", [&] { check_gguf_family(spec, "m"); });
}

// Its experts apart would be passed over by whoever loads them.
TEST_F(GptOssGguf, NoDirectoryIsMadeOfIt) {
  written(golden_model(disk_, "gpt_oss"), "m.gguf", "f32");
  ConvertRequest request;
  request.source = (disk_ / "m.gguf").string();
  request.target.directory = disk_ / "out";
  request.to = "safetensors";
  expect_refusal(ErrorKind::kUnsupported, "no checkpoint of family gpt_oss is written as safetensors",
                 [&] { convert(system_io(), open_checkpoint(system_io(), request.source), request); });
}

}  // namespace
}  // namespace llmq
