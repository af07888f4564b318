#include "export/formats/nf4.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "export/formats/absmax_blocks.h"
#include "export/formats/nested_scales.h"
#include "export/formats/packed_formats.h"
#include "export/output/packed_writer.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

constexpr std::size_t kNumbersOfAScale = 64;
constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

// torch.bucketize over the middles.
std::uint8_t nf4_code(float scaled) {
  std::uint8_t code = 0;
  for (std::size_t k = 0; k + 1 < kNf4.size(); ++k)
    code = static_cast<std::uint8_t>(code + (scaled > (kNf4[k] + kNf4[k + 1]) / 2 ? 1 : 0));
  return code;
}

constexpr std::size_t kOffsetText = 22;  // of any FP32 number that is not negative, as a double

// Python's json.dumps; with nested scales as long as it can get, so that its length is known without them.
std::string state_text(const PlannedModule& m, const Nf4Form& form, float offset = 0) {
  const std::string said =
      fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                  kNumbersOfAScale, torch_dtype_name(form.dtype), m.out_features, m.in_features);
  if (!form.nested) return said + "}";
  const std::string number = Json(static_cast<double>(offset)).dump();
  return said +
         fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {}}})",
                     kScalesOfANest, number) +
         std::string(kOffsetText - number.size(), ' ');
}

}  // namespace

std::vector<PlannedModule> nf4_modules(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const auto refuse = [&](const std::string& where, const char* message) {
    fail(ErrorKind::kUnsupported,
         {message, checkpoint.path().string(), where, "write it by llmq quantize, in a format of its own"});
  };
  if (spec.wrapper) refuse({}, "has a vision tower, which is not written in NF4");
  std::vector<PlannedModule> modules;
  for (const BlockSpec& block : spec.blocks) {
    if (block.mixture() != nullptr)
      refuse(block.prefix, "has experts, which Transformers does not load in NF4");
    for (const LinearSpec& linear : block.linears) {
      if (!linear.quantizable) continue;
      if (linear.in_features % 2 != 0) refuse(linear.module, "has rows of an odd length");
      modules.push_back({linear.module, {}, linear.out_features, linear.in_features});
    }
  }
  return modules;
}

std::vector<TensorDeclaration> declare_nf4(const PlannedModule& m, const Nf4Form& form) {
  const auto blocks = [](std::int64_t count, std::size_t block) {
    const auto size = static_cast<std::int64_t>(block);
    return (count + size - 1) / size;
  };
  const std::int64_t numbers = m.out_features * m.in_features, scales = blocks(numbers, kNumbersOfAScale);
  const std::string weight = m.module + ".weight";
  std::vector<TensorDeclaration> tensors = {
      {weight, DType::kU8, {numbers / 2, 1}},
      {weight + ".absmax", form.nested ? DType::kU8 : DType::kF32, {scales}}};
  if (form.nested) {
    tensors.push_back({weight + ".nested_absmax", DType::kF32, {blocks(scales, kScalesOfANest)}});
    tensors.push_back({weight + ".nested_quant_map", DType::kF32, {std::ssize(dynamic_map())}});
  }
  tensors.push_back({weight + ".quant_map", DType::kF32, {std::ssize(kNf4)}});
  tensors.push_back(
      {weight + ".quant_state.bitsandbytes__nf4", DType::kU8, {std::ssize(state_text(m, form))}});
  return tensors;
}

std::vector<PackedTensor> pack_nf4(const PlannedModule& m, std::span<const float> weight,
                                   const Nf4Form& form) {
  std::vector<float> x(weight.begin(), weight.end());
  for (float& value : x) {
    if (storing_overflows(value, form.dtype))
      fail(ErrorKind::kBadInput,
           {fmt::format("holds {}, which {} does not", value, dtype_row(form.dtype).name),
            {},
            m.module + ".weight",
            "write bf16"});
    value = stored_float(value, form.dtype);
  }
  std::vector<std::uint8_t> codes(x.size());
  const std::vector<float> scales = round_in_blocks(x, kNumbersOfAScale, nf4_code, codes);
  std::vector<std::byte> pairs(codes.size() / 2);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    pairs[i] = static_cast<std::byte>(codes[2 * i] << 4 | codes[2 * i + 1]);
  const auto copied = [](const auto& of) {
    const auto raw = std::as_bytes(std::span(of));
    return std::vector<std::byte>(raw.begin(), raw.end());
  };
  std::vector<std::vector<std::byte>> bytes = {std::move(pairs)};  // in the order of declare_nf4()
  std::string state = state_text(m, form);
  if (form.nested) {
    const NestedScales nested = nest_scales(scales);
    bytes.push_back(copied(nested.codes));
    bytes.push_back(scale_bytes(nested.absmax, DType::kF32));
    bytes.push_back(scale_bytes(dynamic_map(), DType::kF32));
    state = state_text(m, form, nested.offset);
  } else {
    bytes.push_back(scale_bytes(scales, DType::kF32));
  }
  bytes.push_back(scale_bytes(kNf4, DType::kF32));
  bytes.push_back(copied(state));
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declared : declare_nf4(m, form))
    tensors.push_back({std::move(declared), std::move(bytes[tensors.size()])});
  return tensors;
}

Json nf4_config(const std::vector<std::string>& dense, const Nf4Form& form) {
  Json skipped = Json::array();
  for (const std::string& module : dense) skipped.push_back(module);
  return Json::object({{"_load_in_4bit", true},
                       {"_load_in_8bit", false},
                       {"bnb_4bit_compute_dtype", std::string(torch_dtype_name(form.dtype))},
                       {"bnb_4bit_quant_storage", "uint8"},
                       {"bnb_4bit_quant_type", "nf4"},
                       {"bnb_4bit_use_double_quant", form.nested},
                       {"llm_int8_enable_fp32_cpu_offload", false},
                       {"llm_int8_has_fp16_weight", false},
                       {"llm_int8_skip_modules", std::move(skipped)},
                       {"llm_int8_threshold", 6.0},
                       {"load_in_4bit", true},
                       {"load_in_8bit", false},
                       {"quant_method", "bitsandbytes"}});
}

}  // namespace llmq
