#include "model/packed/unpacked.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "model/linear_source.h"
#include "model/packed/packed_tensors.h"
#include "model/packed/quantization_config.h"

namespace llmq {
namespace {

using Sentences = std::vector<std::string>;

class UnpackedLinear final : public Unpacking {
 public:
  UnpackedLinear(const LinearSource& source, std::shared_ptr<const QuantizationConfig> quantization,
                 const std::string& module, std::shared_ptr<const Sentences> told)
      : source_(source), quantization_(std::move(quantization)), told_(std::move(told)) {
    linear_.module = module;
    linear_.weight.tensor = module + kDenseSuffix;
  }

  void read(std::span<float> into, ThreadPool& pool) const override {
    const Checkpoint& packed = source_.checkpoint();
    dequantize(read_packed(packed, open_packed(packed, *quantization_, linear_.module), true), into, pool);
  }
  void read_ahead() const override { source_.read_ahead(linear_); }
  void release() const override {
    for (const std::string& name : names()) source_.checkpoint().release(source_.checkpoint().at(name));
  }
  std::uint64_t bytes_to_read() const override { return source_.bytes_to_read(linear_).all; }
  std::uint64_t bytes_kept() const override { return source_.bytes_to_read(linear_).kept; }
  std::uint64_t bytes_on_disk() const override {
    std::uint64_t bytes = 0;
    for (const std::string& name : names()) bytes += source_.checkpoint().at(name).bytes_on_disk();
    return bytes;
  }
  Sentences told() const override { return *told_; }

  // What it is made of.
  std::vector<std::string> names() const { return source_.tensors_of(linear_); }

 private:
  LinearSource source_;
  std::shared_ptr<const QuantizationConfig> quantization_;
  std::shared_ptr<const Sentences> told_;
  LinearSpec linear_;
};

Sentences what_is_lost(const LinearSource& source, const std::vector<PackedShape>& shapes) {
  std::set<std::string> schemes, of_inputs;
  std::int64_t rounding = 0;
  for (const PackedShape& shape : shapes) {
    schemes.insert(shape.scheme.text());
    if (!shape.scheme.rounds_inputs()) continue;
    of_inputs.insert(shape.scheme.text());
    ++rounding;
  }
  Sentences told = {fmt::format(
      "{} linears are stored as {} {}, and those that are quantized are rounded a second time: what the "
      "first rounding lost stays lost, and is in a KL only where it is measured --against the original model",
      shapes.size(), format_name(source.format()), fmt::join(schemes, ", "))};
  if (rounding > 0)
    told.push_back(fmt::format(
        "{} of these round their inputs ({}), which is left out: inputs are rounded as the new scheme says",
        rounding, fmt::join(of_inputs, ", ")));
  if (source.kv_cache())
    told.emplace_back(
        "the stored scales of a KV cache are left out: kv_cache in the recipe has new ones calibrated");
  return told;
}

// Of keys and values, or what one of the packed linears is made of.
bool is_left_out(const StoredTensor& tensor, const std::set<std::string>& packed, bool kv_cache) {
  const auto ends = [&](std::string_view suffix) { return tensor.name.ends_with(suffix); };
  return packed.contains(tensor.name) || (kv_cache && (ends(".k_scale") || ends(".v_scale")));
}

}  // namespace

Checkpoint unpacked(const Checkpoint& checkpoint) {
  const LinearSource source = LinearSource::open(checkpoint);
  if (source.format() == PackedFormat::kNone) return checkpoint;
  const auto quantization = std::make_shared<const QuantizationConfig>(
      QuantizationConfig::read(checkpoint.config(), checkpoint.quantization_file().string()));
  const std::vector<std::string> modules = source.packed_modules();
  std::vector<PackedShape> shapes;
  for (const std::string& module : modules) shapes.push_back(source.packed_shape(module));
  const auto told = std::make_shared<const Sentences>(what_is_lost(source, shapes));
  std::vector<StoredTensor> tensors;
  std::set<std::string> packed;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    auto unpacking = std::make_shared<const UnpackedLinear>(source, quantization, modules[i], told);
    for (std::string& name : unpacking->names()) packed.insert(std::move(name));
    StoredTensor& tensor = tensors.emplace_back();
    tensor.name = modules[i] + kDenseSuffix;
    tensor.view = TensorView(static_cast<const void*>(nullptr), DType::kF32,
                             Shape{shapes[i].out_features, shapes[i].in_features});
    tensor.unpacking = std::move(unpacking);
  }
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (!is_left_out(tensor, packed, source.kv_cache().has_value())) tensors.push_back(tensor);
  Json config = checkpoint.config();
  config.erase("quantization_config");
  return checkpoint.showing(std::move(tensors), std::move(config));
}

bool is_unpacked(const Checkpoint& checkpoint) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [](const StoredTensor& tensor) { return tensor.unpacking != nullptr; });
}

const ChangedNumbers* changed_numbers(const StoredTensor& tensor) {
  return dynamic_cast<const ChangedNumbers*>(tensor.unpacking.get());
}

DType stored_type(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!tensor.unpacking) return tensor.view.dtype;
  if (const ChangedNumbers* changed = changed_numbers(tensor); changed != nullptr && changed->rounded_to())
    return *changed->rounded_to();
  for (const StoredTensor& beside : checkpoint.tensors())
    if (beside.view.dtype == DType::kF16 || beside.view.dtype == DType::kBF16) return beside.view.dtype;
  return DType::kBF16;
}

}  // namespace llmq
