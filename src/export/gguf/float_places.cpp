#include "export/gguf/float_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "model/packed/packed_floats.h"

namespace llmq {
namespace {

// Of one module, as factors; the other name's reciprocal.
float nvfp4_factor(const Checkpoint& checkpoint, const std::string& module, const char* factor,
                   const char* divisor) {
  const StoredTensor* const own = checkpoint.find(module + factor);
  const StoredTensor& tensor = own != nullptr ? *own : checkpoint.at(module + divisor);
  const float stored = checkpoint.read_float32(tensor).at(0), value = own != nullptr ? stored : 1 / stored;
  if (!(value > 0 && std::isfinite(value)))
    fail(ErrorKind::kBadInput,
         {fmt::format("is {}, and numbers are {} by it", stored, own != nullptr ? "multiplied" : "divided"),
          checkpoint.path().string(), tensor.name, "was the download cut or changed?"});
  return value;
}

struct Nvfp4Scales {
  std::vector<float> weights, inputs;  // of each slab; 1 where inputs are not rounded
};

// The block type that has the codes of every matrix of a place; kF32: none.
DType type_of_codes(const GgufPlace& place, const LinearSource& linears) {
  std::set<DType> types;
  for (const GgufPlace::Matrix& matrix : place.matrices) {
    if (matrix.packed == nullptr || !linears.is_packed(matrix.packed->module)) return DType::kF32;
    const QuantScheme scheme = linears.packed_shape(matrix.packed->module).scheme;
    if (scheme.weight_type != WeightType::kFloat4 || scheme.scale_form() == ScaleForm::kNumber)
      return DType::kF32;
    types.insert(scheme.scale_form() == ScaleForm::kTwoLevel ? DType::kNVFP4 : DType::kMXFP4);
  }
  return types.size() == 1 ? *types.begin() : DType::kF32;
}

// nullopt where the codes of NVFP4 cannot stay.
std::optional<Nvfp4Scales> scales_of(const Checkpoint& checkpoint, const LinearSource& linears,
                                     const GgufPlace& place) {
  if (place.shape.back() % dtype_row(DType::kNVFP4).block_elements != 0) return std::nullopt;
  const std::size_t slabs = place.shape.rank() > 2 ? static_cast<std::size_t>(place.shape[0]) : 1,
                    each = place.matrices.size() / slabs;
  Nvfp4Scales scales;
  for (std::size_t i = 0; i < place.matrices.size(); ++i) {
    const std::string& module = place.matrices[i].packed->module;
    const float weight = nvfp4_factor(checkpoint, module, kFactorSuffix, kGlobalSuffix);
    const float inputs = linears.packed_shape(module).scheme.rounds_inputs()
                             ? nvfp4_factor(checkpoint, module, kInputScaleSuffix, kInputGlobalSuffix)
                             : 1;
    if (i % each == 0)
      scales.weights.push_back(weight), scales.inputs.push_back(inputs);
    else if (weight != scales.weights.back() || inputs != scales.inputs.back())
      return std::nullopt;
  }
  return scales;
}

void add_scales(const std::string& name, std::vector<float> values, std::vector<GgufPlace>& places) {
  if (std::all_of(values.begin(), values.end(), [](float value) { return value == 1; })) return;
  const Shape shape{std::ssize(values)};
  places.push_back({name, shape, {}, 0, std::move(values)});
}

}  // namespace

std::vector<DType> keep_float_codes(const Checkpoint& checkpoint, const LinearSource& linears,
                                    std::vector<GgufPlace>& places) {
  constexpr std::string_view kWeight = ".weight";
  std::set<std::string> names;
  for (const GgufPlace& place : places) names.insert(place.name);
  std::vector<DType> kept(places.size(), DType::kF32);
  std::string left;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const DType type = type_of_codes(places[i], linears);
    if (type == DType::kF32) continue;
    const std::string stem = places[i].name.substr(0, places[i].name.size() - kWeight.size());
    bool stays = !places[i].part;
    if (stays && type == DType::kNVFP4) {
      std::optional<Nvfp4Scales> scales;
      if (names.count(stem + ".scale") == 0) scales = scales_of(checkpoint, linears, places[i]);
      stays = scales.has_value();
      if (stays) {
        add_scales(stem + ".scale", std::move(scales->weights), places);
        add_scales(stem + ".input_scale", std::move(scales->inputs), places);
      }
    }
    if (stays)
      kept[i] = type;
    else if (left.empty())
      left = places[i].name;
  }
  if (!left.empty())
    Log::get().warn(
        fmt::format("{}: {} and others like it are no blocks of 4-bit floats in a GGUF, and are rounded "
                    "a second time to the type of the file",
                    checkpoint.path().string(), left));
  kept.resize(places.size(), DType::kF32);
  return kept;
}

}  // namespace llmq
