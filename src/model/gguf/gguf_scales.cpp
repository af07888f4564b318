#include "model/gguf/gguf_scales.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>

#include "model/gguf/gguf_family.h"
#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_names.h"

namespace llmq {
namespace {

constexpr std::string_view kScale = ".scale", kInputScale = ".input_scale", kWeight = ".weight";

void check_gguf_scales(const GgufHeader& header, const GgufTensor& tensor, std::int64_t matrices) {
  if (tensor.dtype != DType::kF32 || !(tensor.shape == Shape{matrices}))
    bad_gguf(header, tensor.name,
             fmt::format("is {} {}; a scale is F32 [{}], a number for each matrix of the weight",
                         dtype_row(tensor.dtype).name, tensor.shape.text(), matrices));
  for (std::int64_t i = 0; i < matrices; ++i) {
    float scale;
    std::memcpy(&scale, tensor.data + static_cast<std::size_t>(i) * sizeof scale, sizeof scale);
    if (!(scale > 0 && std::isfinite(scale)))
      bad_gguf(header, tensor.name,
               fmt::format("holds {} at {}; numbers are multiplied by it, and it is above 0", scale, i));
  }
}

}  // namespace

GgufScales::GgufScales(const GgufHeader& header, const GgufFamily& family, const GgufWidths& widths,
                       std::int64_t experts)
    : header_(header), family_(family), widths_(widths), experts_(experts) {
  for (const GgufTensor& tensor : header.tensors)
    if (tensor.name.ends_with(kWeight)) weights_.emplace(tensor.name, &tensor);
}

bool GgufScales::has(const GgufTensor& tensor) const {
  const bool of_inputs = tensor.name.ends_with(kInputScale);
  if (!of_inputs && !tensor.name.ends_with(kScale)) return false;
  if (!hugging_face_name(family_, tensor.name).name.empty()) return false;
  const std::string weight =
      tensor.name.substr(0, tensor.name.size() - (of_inputs ? kInputScale : kScale).size()) +
      std::string(kWeight);
  const auto found = weights_.find(weight);
  if (found == weights_.end()) return false;
  if (found->second->shape.rank() < 2)
    bad_gguf(header_, tensor.name, fmt::format("stands beside {}, which is no matrix", weight));
  if (gguf_block_of(weight) < 0 && weight != "output.weight")
    unsupported_gguf(header_, tensor.name, "llama.cpp multiplies linears of blocks and the head alone");
  if (!of_inputs && family_.part != nullptr && family_.part(name_in_gguf_block(weight), widths_))
    unsupported_gguf(header_, tensor.name,
                     fmt::format("a scale beside {}, whose rows lie in another order, is not read", weight));
  const bool stack = hugging_face_name(family_, weight).name.find('*') != std::string::npos;
  check_gguf_scales(header_, tensor, stack ? experts_ : 1);
  return true;
}

}  // namespace llmq
