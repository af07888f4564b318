// A Llama of two blocks, small enough to write a thousand times: every tensor BF16 with values from a fixed
// sequence.
#pragma once
#include <fmt/format.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/half.h"
#include "export/output/model_writer.h"
#include "io/safetensors.h"
#include "model/model_spec.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {

inline constexpr const char* kTinyConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
  "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 96, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "bfloat16"
})";

// The next of a fixed sequence, in [0, below).
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next(std::uint64_t below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % below;
  }

 private:
  std::uint64_t state_;
};

inline std::vector<TensorDeclaration> tiny_tensors() {
  std::vector<TensorDeclaration> tensors = {{"model.embed_tokens.weight", DType::kBF16, {96, 64}},
                                            {"model.norm.weight", DType::kBF16, {64}}};
  const std::vector<std::pair<std::string, Shape>> block = {
      {"self_attn.q_proj", {64, 64}}, {"self_attn.k_proj", {32, 64}}, {"self_attn.v_proj", {32, 64}},
      {"self_attn.o_proj", {64, 64}}, {"mlp.gate_proj", {128, 64}},   {"mlp.up_proj", {128, 64}},
      {"mlp.down_proj", {64, 128}},   {"input_layernorm", {64}},      {"post_attention_layernorm", {64}}};
  for (int layer = 0; layer < 2; ++layer)
    for (const auto& [name, shape] : block)
      tensors.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), DType::kBF16, shape});
  return tensors;
}

inline std::vector<std::byte> bfloat16_bytes(std::size_t count, std::uint64_t seed) {
  Sequence sequence(seed);
  std::vector<std::byte> bytes(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits =
        to_bfloat16((static_cast<float>(sequence.next(2001)) - 1000.0f) / 4096.0f).bits;
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

inline std::string write_tiny_checkpoint(const TemporaryDirectory& directory,
                                         const std::string& name = "tiny") {
  directory.write(Path(name) / "config.json", kTinyConfig);
  directory.write(Path(name) / "tokenizer.json", "{\"not\": \"read here\"}\n");
  directory.write(Path(name) / "generation_config.json", "{ \"eos_token_id\":2 }");
  const std::vector<TensorDeclaration> tensors = tiny_tensors();
  SafetensorsWriter writer(system_io(), directory / name / "model.safetensors", tensors, {{"format", "pt"}});
  for (std::size_t i = 0; i < tensors.size(); ++i)
    writer.add(tensors[i].name, bfloat16_bytes(static_cast<std::size_t>(tensors[i].shape.elements()), i + 1));
  writer.finish();
  return (directory / name).string();
}

// Codes, scales and zeros of a scheme, not of any weight: writers and readers do not care.
inline QuantizedMatrix tiny_matrix(const PlannedModule& module, std::uint64_t seed) {
  Sequence sequence(seed);
  QuantizedMatrix matrix;
  matrix.scheme = module.scheme;
  matrix.out_features = module.out_features;
  matrix.in_features = module.in_features;
  const auto codes = static_cast<std::uint64_t>(module.scheme.code_count());
  for (std::int64_t i = 0; i < module.out_features * module.in_features; ++i)
    matrix.codes.push_back(static_cast<std::uint8_t>(sequence.next(codes)));
  for (std::int64_t i = 0; i < module.out_features * matrix.groups(); ++i) {
    matrix.scales.push_back((128.0f + static_cast<float>(sequence.next(128))) / 128.0f * 0x1p-8f);
    matrix.zeros.push_back(static_cast<std::uint8_t>(
        module.scheme.symmetric ? static_cast<std::uint64_t>(module.scheme.middle()) : sequence.next(codes)));
  }
  if (module.column_groups)
    for (std::int64_t k = 0; k < module.in_features; ++k)  // 5 is coprime to every width here
      matrix.column_group.push_back(static_cast<std::int32_t>(5 * k % module.in_features / matrix.group()));
  return matrix;
}

inline QuantScheme scheme_of(int bits, int group, bool symmetric, DType scale_dtype = DType::kBF16) {
  QuantScheme scheme;
  scheme.bits = bits;
  scheme.granularity = group > 0 ? Granularity::kGroup : Granularity::kChannel;
  scheme.group_size = group;
  scheme.symmetric = symmetric;
  scheme.scale_dtype = scale_dtype;
  return scheme;
}

inline std::vector<PlannedModule> every_linear(const ModelSpec& spec, const QuantScheme& scheme) {
  std::vector<PlannedModule> modules;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      modules.push_back({linear.module, scheme, linear.out_features, linear.in_features});
  return modules;
}

// Copies what is no weight of the modules.
inline void add_dense_tensors(ModelWriter& writer, const Checkpoint& checkpoint,
                              std::span<const PlannedModule> modules) {
  std::set<std::string> packed;
  for (const PlannedModule& module : modules) packed.insert(module.module + ".weight");
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (packed.count(tensor.name) == 0)
      writer.add_dense(tensor.name, tensor.view.dtype, tensor.view.shape,
                       {static_cast<const std::byte*>(tensor.view.pointer),
                        static_cast<std::size_t>(tensor.view.bytes())});
}

// Packs every module with tiny_matrix(seed = its index + 1), copies the dense tensors, publishes with a
// report.json.
inline void write_packed(Io& io, const std::string& format, const OutputTarget& target,
                         const Checkpoint& checkpoint, std::span<const PlannedModule> modules,
                         std::span<const std::string> ignored = {}) {
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto writer = open_writer(io, format, target, checkpoint, spec, modules, ignored);
  add_dense_tensors(*writer, checkpoint, modules);
  for (std::size_t i = 0; i < modules.size(); ++i)
    writer->add_quantized(modules[i].module, tiny_matrix(modules[i], i + 1));
  writer->finish({{"report.json", "{\"schema\": \"llmq.report/1\"}\n"}, {"README.md", "# card\n"}});
}

}  // namespace llmq::testing
