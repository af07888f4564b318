#include "export/adapter_fold.h"

#include <atomic>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "export/changed_tensor.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

void check_dense(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!is_block_type(tensor.view.dtype)) return;
  fail(ErrorKind::kUnsupported, {fmt::format("is quantized ({}), and adding to it would round it anew",
                                             dtype_row(tensor.view.dtype).name),
                                 checkpoint.path().string(), tensor.name,
                                 "fold the adapter into the model that it was made from, and quantize that"});
}

std::string file_of(const LoraAdapter& adapter) {
  return (adapter.directory() / "adapter_model.safetensors").string();
}

// A linear as it is read beneath, and what is added to it.
class FoldedLinear final : public ChangedTensor {
 public:
  FoldedLinear(std::shared_ptr<const AdapterFold> fold, const AdapterFold::Place& place,
               const StoredTensor& tensor)
      : ChangedTensor(fold->source().checkpoint(), tensor, place.linear.module),
        fold_(std::move(fold)),
        place_(place) {}

  void read(std::span<float> into, ThreadPool& pool) const override {
    beneath().read_float32(tensor(), into, pool);
    fold_->fold(fold_->pair(place_), 0, into, dtype(), tensor().name, pool);
  }
  std::uint64_t bytes_to_read() const override {
    return ChangedTensor::bytes_to_read() +
           fold_->adapter().bytes_of_pair(place_.block, place_.linear.id).read;
  }
  std::uint64_t bytes_kept_beside() const override {
    return fold_->adapter().bytes_of_pair(place_.block, place_.linear.id).kept;
  }
  std::uint64_t bytes_beside() const override {
    const LinearSpec& linear = place_.linear;
    return static_cast<std::uint64_t>(fold_->adapter().rank()) *
           static_cast<std::uint64_t>(linear.in_features + linear.out_features) * sizeof(float);
  }

 private:
  std::shared_ptr<const AdapterFold> fold_;
  AdapterFold::Place place_;
};

}  // namespace

AdapterFold::AdapterFold(LoraAdapter adapter, const Checkpoint& checkpoint, const ModelSpec& spec)
    : adapter_(std::move(adapter)), source_(LinearSource::open(checkpoint)) {
  for (const StoredTensor& tensor : checkpoint.tensors()) check_dense(checkpoint, tensor);
  for (std::size_t block = 0; block < spec.blocks.size(); ++block)
    for (const LinearSpec& linear : spec.blocks[block].linears) {
      if (!adapter_.changes(block, linear.id)) continue;
      if (const StoredTensor& weight = checkpoint.at(linear.weight.tensor); weight.stack >= 0)
        fail(ErrorKind::kUnsupported,
             {fmt::format("is a part of {}, which is written as it is stored",
                          checkpoint.stacks()[static_cast<std::size_t>(weight.stack)].name),
              checkpoint.path().string(), weight.name, "fold adapters that leave the experts alone"});
      places_[linear.weight.tensor] = {block, linear};
    }
}

void AdapterFold::fold(const LoraPair& pair, std::int64_t first, std::span<float> rows, DType dtype,
                       const std::string& tensor, ThreadPool& pool) const {
  const auto width = static_cast<std::size_t>(pair.in_features);
  const auto each_row = [&](const auto& see) {
    pool.parallel_for(rows.size() / width,
                      [&](std::size_t row, int) { see(rows.subspan(row * width, width)); });
  };
  std::atomic<std::size_t> before = 0, after = 0;
  const auto count = [](std::span<const float> row, std::atomic<std::size_t>& into) {
    for (const float value : row)
      if (!std::isfinite(value)) ++into;
  };
  each_row([&](std::span<float> row) { count(row, before); });
  add_lora_rows(pair, first, rows, pool);
  std::atomic<bool> too_large = false;
  each_row([&](std::span<float> row) {
    count(row, after);
    for (float& value : row) {
      if (storing_overflows(value, dtype)) too_large = true;
      value = stored_float(value, dtype);
    }
  });
  constexpr const char* kHint = "its matrices or its lora_alpha are too large";
  // Nothing that is added makes a number of what is none.
  if (after != before)
    fail(ErrorKind::kBadInput,
         {"leaves the range of FP32 with the adapter in it", file_of(adapter_), tensor, kHint});
  if (too_large)
    fail(ErrorKind::kUnsupported,
         {fmt::format("leaves the range of {} with the adapter in it", dtype_row(dtype).name),
          file_of(adapter_), tensor, kHint});
}

Checkpoint folded(const std::shared_ptr<const AdapterFold>& fold) {
  const Checkpoint& checkpoint = fold->source().checkpoint();
  ChangedTensors changed;
  for (const auto& [name, place] : fold->places())
    changed[name] = std::make_shared<const FoldedLinear>(fold, place, checkpoint.at(name));
  return with_changed(checkpoint, changed);
}

FoldWriter::FoldWriter(Io& io, const std::string& adapter, const Checkpoint& checkpoint, int threads)
    : spec_(ModelSpec::read(checkpoint)),
      fold_(LoraAdapter::open(io, adapter, spec_), checkpoint, spec_),
      pool_(threads > 0 ? threads : available_cores()) {}

bool FoldWriter::write(const TensorDeclaration& declared, ModelWriter& writer) {
  const auto found = fold_.places().find(declared.name);
  if (found == fold_.places().end()) return false;
  const LoraPair pair = fold_.pair(found->second);
  const auto append = [&](std::int64_t first, std::span<float> rows) {
    fold_.fold(pair, first, rows, declared.dtype, declared.name, pool_);
    writer.append_dense(declared.name, declared.dtype, declared.shape, stored_floats(rows, declared.dtype));
  };
  const LinearSource& source = fold_.source();
  if (!source.checkpoint().at(declared.name).in_order()) {
    ZeroedNumbers<float> whole = source.weight(found->second.linear, pool_);
    append(0, whole);
    return true;
  }
  std::vector<float> rows;
  source.finite(declared.name, [&](std::int64_t first, const TensorView& band) {
    rows.resize(static_cast<std::size_t>(band.shape.elements()));
    to_float32(band, rows);
    append(first, rows);
  });
  return true;
}

}  // namespace llmq
