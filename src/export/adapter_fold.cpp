#include "export/adapter_fold.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "export/dense_values.h"

namespace llmq {

AdapterFold::AdapterFold(Io& io, const std::string& adapter, const Checkpoint& checkpoint, int threads)
    : spec_(ModelSpec::read(checkpoint)),
      adapter_(LoraAdapter::open(io, adapter, spec_)),
      source_(LinearSource::open(checkpoint)),
      pool_(threads > 0 ? threads : available_cores()) {
  for (const StoredTensor& tensor : checkpoint.tensors()) check_dense(checkpoint, tensor);
  for (std::size_t block = 0; block < spec_.blocks.size(); ++block)
    for (const LinearSpec& linear : spec_.blocks[block].linears) {
      if (!adapter_.changes(block, linear.id)) continue;
      if (const StoredTensor& weight = checkpoint.at(linear.weight.tensor); weight.stack >= 0)
        fail(ErrorKind::kUnsupported,
             {fmt::format("is a part of {}, which is written as it is stored",
                          checkpoint.stacks()[static_cast<std::size_t>(weight.stack)].name),
              checkpoint.path().string(), weight.name, "fold adapters that leave the experts alone"});
      places_[linear.weight.tensor] = {block, &linear};
    }
}

bool AdapterFold::write(const TensorDeclaration& declared, ModelWriter& writer) {
  const auto found = places_.find(declared.name);
  if (found == places_.end()) return false;
  const LinearSpec& linear = *found->second.linear;
  const LoraPair pair = adapter_.pair(found->second.block, linear.id);
  if (!source_.checkpoint().at(declared.name).in_order()) {
    ZeroedNumbers<float> whole = source_.weight(linear, pool_);
    fold(pair, 0, whole, declared, writer);
  } else {
    std::vector<float> rows;
    source_.finite(declared.name, [&](std::int64_t first, const TensorView& band) {
      rows.resize(static_cast<std::size_t>(band.shape.elements()));
      to_float32(band, rows);
      fold(pair, first, rows, declared, writer);
    });
  }
  return true;
}

void AdapterFold::check_dense(const Checkpoint& checkpoint, const StoredTensor& tensor) const {
  if (!is_block_type(tensor.view.dtype)) return;
  fail(ErrorKind::kUnsupported, {fmt::format("is quantized ({}), and adding to it would round it anew",
                                             dtype_row(tensor.view.dtype).name),
                                 checkpoint.path().string(), tensor.name,
                                 "fold the adapter into the model that it was made from, and quantize that"});
}

void AdapterFold::fold(const LoraPair& pair, std::int64_t first, std::span<float> rows,
                       const TensorDeclaration& declared, ModelWriter& writer) {
  add_lora_rows(pair, first, rows, pool_);
  const std::string file = adapter_.directory().string();
  bytes_.resize(rows.size() * static_cast<std::size_t>(element_bytes(declared.dtype)));
  store_values(rows, declared.dtype, declared.name, file, bytes_.data());
  if (!std::all_of(rows.begin(), rows.end(), [](float value) { return std::isfinite(value); }))
    fail(ErrorKind::kBadInput, {"leaves the range of FP32 with the adapter in it", file, declared.name,
                                "its matrices or its lora_alpha are too large"});
  writer.append_dense(declared.name, declared.dtype, declared.shape, bytes_);
}

}  // namespace llmq
