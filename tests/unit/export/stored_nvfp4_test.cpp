// NVFP4 of compressed-tensors and modelopt, and MXFP4 of the former, as a GGUF: the same codes and scales, of
// NVFP4 the tensor's number beside them, and the numbers of the source when it is read again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/linear_source.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"
#include "tests/unit/export/convert_fixture.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/export/named_scheme.h"

namespace llmq::testing {
namespace {

constexpr const char* kExperts = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128,
  "moe_intermediate_size": 64, "num_experts": 3, "num_experts_per_tok": 2, "norm_topk_prob": true, "head_dim": 32,
  "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 9, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "bfloat16"
})";

// Of module number i; no two are alike.
QuantizedMatrix matrix_of_floats(const PlannedModule& module, std::size_t i) {
  QuantizedMatrix matrix = tiny_matrix(module, i + 1);
  if (module.scheme.scale_form() == ScaleForm::kExponent) {
    for (std::size_t k = 0; k < matrix.scales.size(); ++k)
      matrix.scales[k] = mxfp4_scale(static_cast<std::uint8_t>((k * 5 + i) % 240));
    return matrix;
  }
  matrix.global_scale = 3.0f + static_cast<float>(i);
  if (module.scheme.calibrates_inputs()) matrix.input_scale = 0.25f + static_cast<float>(i);
  for (std::size_t k = 0; k < matrix.scales.size(); ++k)
    matrix.scales[k] = nvfp4_scale(static_cast<std::uint8_t>(1 + (k + i) % 126), matrix.global_scale);
  return matrix;
}

class Nvfp4Gguf : public ConvertTest {
 protected:
  // A model, packed, and the GGUF of it.
  std::vector<PlannedModule> write(const std::string& model, const char* format, const char* scheme,
                                   const char* dtype = "bf16") {
    const Checkpoint dense = open_checkpoint(system_io(), model);
    const ModelSpec spec = ModelSpec::read(dense);
    std::vector<PlannedModule> modules = every_linear(spec, scheme_named(scheme));
    std::filesystem::remove_all(disk_ / "packed");
    const auto writer =
        open_writer(system_io(), format, {disk_ / "packed", true}, dense, spec, modules, {}, {});
    add_dense_tensors(*writer, dense, modules);
    for (std::size_t i = 0; i < modules.size(); ++i)
      writer->add_quantized(modules[i].module, matrix_of_floats(modules[i], i));
    writer->finish({});
    std::filesystem::remove(disk_ / "m.gguf");
    write_text_atomically(system_io(), disk_ / "packed/tokenizer.json", kFewLetters);
    to_gguf(system_io(), (disk_ / "packed").string(), disk_ / "m.gguf", dtype);
    return modules;
  }
  std::string model_of_experts() {
    disk_.write("experts/config.json", kExperts);
    std::vector<TensorDeclaration> tensors = {{"model.embed_tokens.weight", DType::kBF16, {9, 64}},
                                              {"model.norm.weight", DType::kBF16, {64}}};
    const std::string block = "model.layers.0.";
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, Shape>>{{"self_attn.q_proj", {64, 64}},
                                                    {"self_attn.k_proj", {32, 64}},
                                                    {"self_attn.v_proj", {32, 64}},
                                                    {"self_attn.o_proj", {64, 64}},
                                                    {"self_attn.q_norm", {32}},
                                                    {"self_attn.k_norm", {32}},
                                                    {"input_layernorm", {64}},
                                                    {"post_attention_layernorm", {64}},
                                                    {"mlp.gate", {3, 64}}})
      tensors.push_back({block + name + ".weight", DType::kBF16, shape});
    for (int expert = 0; expert < 3; ++expert)
      for (const char* linear : {"gate", "up", "down"})
        tensors.push_back(
            {fmt::format("{}mlp.experts.{}.{}_proj.weight", block, expert, linear), DType::kBF16, {64, 64}});
    SafetensorsWriter writer(system_io(), disk_ / "experts/model.safetensors", tensors, {{"format", "pt"}});
    for (std::size_t i = 0; i < tensors.size(); ++i)
      writer.add(tensors[i].name,
                 bfloat16_bytes(static_cast<std::size_t>(tensors[i].shape.elements()), i + 1));
    writer.finish();
    return (disk_ / "experts").string();
  }
  GgufFile file() { return open_gguf(system_io(), disk_ / "m.gguf"); }
  static std::vector<float> numbers(const GgufFile& file, const std::string& name) {
    const GgufTensor* const tensor = find_gguf_tensor(file.header, name);
    if (tensor == nullptr) return {};
    EXPECT_EQ(tensor->dtype, DType::kF32);
    std::vector<float> values(static_cast<std::size_t>(tensor->shape.elements()));
    std::memcpy(values.data(), tensor->data, tensor->bytes);
    return values;
  }
  // What the packed model's linears stand for, and what the file's do.
  void expect_the_same_numbers(const std::vector<PlannedModule>& modules) {
    const LinearSource packed = LinearSource::open(open("packed")), read = LinearSource::open(open("m.gguf"));
    for (const PlannedModule& m : modules) {
      std::vector<float> wanted(static_cast<std::size_t>(m.out_features * m.in_features)), of_codes(wanted);
      dequantize(packed.quantized(m.module), wanted);
      for (float& value : wanted) value += 0.0f;  // ggml knows no -0
      const StoredTensor& tensor = read.checkpoint().at(m.module + ".weight");
      EXPECT_EQ(read.checkpoint().read_float32(tensor), wanted) << m.module;
      const std::optional<QuantizedMatrix> codes = read.block_codes(m.module + ".weight");
      ASSERT_TRUE(codes.has_value()) << m.module;
      dequantize(*codes, of_codes);
      EXPECT_EQ(std::memcmp(of_codes.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << m.module;
    }
  }
};

TEST_F(Nvfp4Gguf, KeepsCodesAndNumbersOfModelopt) {
  for (const char* dtype : {"bf16", "q8_0"}) {
    const std::vector<PlannedModule> modules = write(source_, "modelopt", "nvfp4a16", dtype);
    const GgufFile written = file();
    const GgufTensor& query = *find_gguf_tensor(written.header, "blk.0.attn_q.weight");
    EXPECT_EQ(query.dtype, DType::kNVFP4);
    const QuantizedMatrix wanted = matrix_of_floats(modules[0], 0);
    ASSERT_EQ(modules[0].module, "model.layers.0.self_attn.q_proj");
    // Row 1 of the file is row 16 of the model, whose halves of heads turn together.
    const auto* const block = reinterpret_cast<const std::uint8_t*>(query.data) + 36;
    EXPECT_EQ(block[2], nvfp4_byte_of(wanted.scales[16 * 4 + 2], wanted.global_scale));
    EXPECT_EQ(block[4 + 8 * 2 + 3] & 15, wanted.codes[16 * 64 + 32 + 3]);
    EXPECT_EQ(block[4 + 8 * 2 + 3] >> 4, wanted.codes[16 * 64 + 32 + 11]);
    EXPECT_EQ(numbers(written, "blk.0.attn_q.scale"), std::vector<float>{1.0f / 3});
    EXPECT_EQ(numbers(written, "blk.0.attn_q.input_scale"), std::vector<float>{}) << "of 16 bits";
    EXPECT_EQ(find_gguf_tensor(written.header, "token_embd.weight")->dtype,
              std::string_view(dtype) == "bf16" ? DType::kBF16 : DType::kQ8_0);
    EXPECT_EQ(written.header.integer("general.file_type"), std::string_view(dtype) == "bf16" ? 39 : 7);
    expect_the_same_numbers(modules);
  }
}

TEST_F(Nvfp4Gguf, OfCompressedTensorsTheReciprocalStandsBeside) {
  write(source_, "compressed-tensors", "nvfp4");
  const GgufFile written = file();
  EXPECT_EQ(find_gguf_tensor(written.header, "blk.1.ffn_down.weight")->dtype, DType::kNVFP4);
  EXPECT_EQ(numbers(written, "blk.0.attn_k.scale"), std::vector<float>{1.0f / 4});
  EXPECT_EQ(numbers(written, "blk.0.attn_k.input_scale"), std::vector<float>{1.0f / 1.25f});
  EXPECT_EQ(numbers(written, "blk.0.attn_q.input_scale"), std::vector<float>{4});
}

TEST_F(Nvfp4Gguf, EachExpertHasItsOwnNumber) {
  const std::vector<PlannedModule> modules = write(model_of_experts(), "modelopt", "nvfp4");
  const GgufFile written = file();
  EXPECT_EQ(find_gguf_tensor(written.header, "blk.0.ffn_up_exps.weight")->dtype, DType::kNVFP4);
  std::vector<float> wanted;
  for (std::size_t i = 0; i < modules.size(); ++i)
    if (modules[i].module.ends_with("up_proj"))
      wanted.push_back(1 / matrix_of_floats(modules[i], i).global_scale);
  EXPECT_EQ(numbers(written, "blk.0.ffn_up_exps.scale"), wanted);
  EXPECT_EQ(numbers(written, "blk.0.ffn_up_exps.input_scale").size(), 3u);
  expect_the_same_numbers(modules);
}

// As llama-quantize: what is rounded anew keeps the number beside it.
TEST_F(Nvfp4Gguf, WrittenAgainItKeepsTheNumberBesideIt) {
  const std::vector<PlannedModule> modules = write(source_, "modelopt", "nvfp4a16");
  const std::string path = (disk_ / "m.gguf").string();
  to_gguf(system_io(), path, disk_ / "wide.gguf", "f32");
  const GgufFile wide = open_gguf(system_io(), disk_ / "wide.gguf");
  EXPECT_EQ(find_gguf_tensor(wide.header, "blk.0.attn_q.weight")->dtype, DType::kF32);
  EXPECT_EQ(numbers(wide, "blk.0.attn_q.scale"), std::vector<float>{1.0f / 3});
  const Checkpoint one = open("m.gguf"), other = open("wide.gguf");
  for (const PlannedModule& m : modules) {
    const std::vector<float> wanted = one.read_float32(one.at(m.module + ".weight")),
                             found = other.read_float32(other.at(m.module + ".weight"));
    for (std::size_t i = 0; i < wanted.size(); ++i)  // three roundings of 2^-24, of products in another order
      ASSERT_NEAR(found[i], wanted[i], 0x1p-22 * std::abs(wanted[i])) << m.module << " " << i;
  }
}

TEST_F(Nvfp4Gguf, KeepsBlocksOfMxfp4) {
  for (const std::string& model : {source_, model_of_experts()}) {
    const std::vector<PlannedModule> modules = write(model, "compressed-tensors", "mxfp4");
    const GgufFile written = file();
    const GgufTensor& output = *find_gguf_tensor(written.header, "blk.0.attn_output.weight");
    EXPECT_EQ(output.dtype, DType::kMXFP4);
    std::size_t i = 0;
    while (modules[i].module != "model.layers.0.self_attn.o_proj") ++i;
    const QuantizedMatrix wanted = matrix_of_floats(modules[i], i);
    const auto* const block = reinterpret_cast<const std::uint8_t*>(output.data) + 3 * 17;
    EXPECT_EQ(block[0], mxfp4_byte(wanted.scales[3]));
    EXPECT_EQ(block[1 + 5] & 15, wanted.codes[3 * 32 + 5]);
    EXPECT_EQ(block[1 + 5] >> 4, wanted.codes[3 * 32 + 21]);
    EXPECT_EQ(find_gguf_tensor(written.header, "blk.0.attn_output.scale"), nullptr);
    EXPECT_EQ(written.header.integer("general.file_type"), 38);
    expect_the_same_numbers(modules);
  }
}

// What a type of llama-quantize rounds has no number beside it.
TEST_F(Nvfp4Gguf, RoundedToAnotherTypeNothingStandsBeside) {
  write(source_, "modelopt", "nvfp4a16", "q4_0");
  const GgufFile written = file();
  EXPECT_EQ(find_gguf_tensor(written.header, "blk.0.attn_q.weight")->dtype, DType::kQ4_0);
  EXPECT_EQ(find_gguf_tensor(written.header, "blk.0.attn_q.scale"), nullptr);
}

}  // namespace
}  // namespace llmq::testing
