#include "export/formats/nf4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
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

// Codes, a byte each, and the scale of each run. A run at the end that is shorter is divided, not multiplied,
// as the package does.
std::vector<float> round_to_nf4(std::span<const float> x, std::span<std::uint8_t> codes) {
  constexpr float kLeast = 1e-38f;
  std::vector<float> scales;
  for (std::size_t first = 0; first < x.size(); first += kNumbersOfAScale) {
    const std::size_t end = std::min(first + kNumbersOfAScale, x.size());
    const bool whole = end - first == kNumbersOfAScale;
    float largest = 0;
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float divisor = std::max(largest, kLeast), inverse = 1 / divisor;
    scales.push_back(whole ? largest : divisor);
    for (std::size_t i = first; i < end; ++i)
      codes[i] = nf4_code(std::clamp(whole ? x[i] * inverse : x[i] / divisor, -1.f, 1.f));
  }
  return scales;
}

std::string state_text(const PlannedModule& m, DType dtype) {
  return fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}]}})",
                     kNumbersOfAScale, torch_dtype_name(dtype), m.out_features, m.in_features);
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

std::vector<TensorDeclaration> declare_nf4(const PlannedModule& m, DType dtype) {
  const std::int64_t numbers = m.out_features * m.in_features,
                     scales = (numbers + static_cast<std::int64_t>(kNumbersOfAScale) - 1) /
                              static_cast<std::int64_t>(kNumbersOfAScale);
  const std::string weight = m.module + ".weight";
  return {{weight, DType::kU8, {numbers / 2, 1}},
          {weight + ".absmax", DType::kF32, {scales}},
          {weight + ".quant_map", DType::kF32, {std::ssize(kNf4)}},
          {weight + ".quant_state.bitsandbytes__nf4", DType::kU8, {std::ssize(state_text(m, dtype))}}};
}

std::vector<PackedTensor> pack_nf4(const PlannedModule& m, std::span<const float> weight, DType dtype) {
  std::vector<float> x(weight.begin(), weight.end());
  for (float& value : x) {
    if (storing_overflows(value, dtype))
      fail(ErrorKind::kBadInput, {fmt::format("holds {}, which {} does not", value, dtype_row(dtype).name),
                                  {},
                                  m.module + ".weight",
                                  "write bf16"});
    value = stored_float(value, dtype);
  }
  std::vector<std::uint8_t> codes(x.size());
  const std::vector<float> scales = round_to_nf4(x, codes);
  std::vector<std::byte> pairs(codes.size() / 2);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    pairs[i] = static_cast<std::byte>(codes[2 * i] << 4 | codes[2 * i + 1]);
  const std::string state = state_text(m, dtype);
  const std::vector<TensorDeclaration> declared = declare_nf4(m, dtype);
  std::vector<PackedTensor> tensors;
  tensors.push_back({declared[0], std::move(pairs)});
  tensors.push_back({declared[1], scale_bytes(scales, DType::kF32)});
  tensors.push_back({declared[2], scale_bytes(kNf4, DType::kF32)});
  const auto text = std::as_bytes(std::span(state));
  tensors.push_back({declared[3], {text.begin(), text.end()}});
  return tensors;
}

Json nf4_config(const std::vector<std::string>& dense, DType dtype) {
  Json skipped = Json::array();
  for (const std::string& module : dense) skipped.push_back(module);
  return Json::object({{"_load_in_4bit", true},
                       {"_load_in_8bit", false},
                       {"bnb_4bit_compute_dtype", std::string(torch_dtype_name(dtype))},
                       {"bnb_4bit_quant_storage", "uint8"},
                       {"bnb_4bit_quant_type", "nf4"},
                       {"bnb_4bit_use_double_quant", false},
                       {"llm_int8_enable_fp32_cpu_offload", false},
                       {"llm_int8_has_fp16_weight", false},
                       {"llm_int8_skip_modules", std::move(skipped)},
                       {"llm_int8_threshold", 6.0},
                       {"load_in_4bit", true},
                       {"load_in_8bit", false},
                       {"quant_method", "bitsandbytes"}});
}

}  // namespace llmq
