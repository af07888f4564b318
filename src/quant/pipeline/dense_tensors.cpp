#include "quant/pipeline/dense_tensors.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

bool is_packed_weight(const QuantizeRun& run, const std::string& tensor) {
  return run.replaced.count(tensor) != 0;
}

// What no fold can change, and can be copied as it is looked at.
bool is_copied_first(const QuantizeRun& run, const StoredTensor& tensor) {
  return tensor.view.shape.rank() > 1 && tensor.in_order() && tensor.stack < 0 &&
         tensor.view.shape.elements() != 0 && run.never_quantized.count(tensor.name) == 0;
}

constexpr std::uint64_t kSyncedBytes = std::uint64_t{128}
                                       << 20;  // at most so much waits to be sent to the disk

// Rows as they are stored, or converted.
void copy_band(QuantizeRun& run, const StoredTensor& tensor, const TensorView& band) {
  const DType dtype = written_dtype(tensor);
  const Shape& shape = tensor.view.shape;
  if (dtype == band.dtype) {
    run.writing.append_dense_now(tensor.name, dtype, shape,
                                 {band.as<const std::byte>(), static_cast<std::size_t>(band.bytes())});
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(band.shape.elements()));
  to_float32(band, values);
  run.writing.append_dense_now(tensor.name, dtype, shape, stored_floats(values, dtype));
}

// Those of which no part is quantized, to the byte.
void copy_stacks(QuantizeRun& run) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  for (const StoredStack& stack : checkpoint.stacks()) {
    if (is_packed_weight(run, stack.parts.front())) continue;
    for (const StoredTensor& tensor : stack.tensors) {
      if (!run.writing.writer().writes(tensor.name)) continue;
      checkpoint.each_band(tensor,
                           [&](std::int64_t, const TensorView& band) { copy_band(run, tensor, band); });
      run.writing.sync();
    }
  }
}

// Whether this rank writes it; of a part of a stack, the stack.
bool is_written_here(const QuantizeRun& run, const StoredTensor& tensor) {
  const std::vector<StoredStack>& stacks = run.source.checkpoint().stacks();
  return run.writing.writer().writes(
      tensor.stack < 0 ? tensor.name : stacks[static_cast<std::size_t>(tensor.stack)].tensors.front().name);
}

// Warnings of the tensors by their places among all, in that order, whichever rank looked at each.
void take_warnings(QuantizeRun& run, const Json& own) {
  std::vector<Json> all = gathered_items(run.writing.writer().ranks(), own);
  std::sort(all.begin(), all.end(), [](const Json& a, const Json& b) {
    return a.items()[0].as_integer() < b.items()[0].as_integer();
  });
  for (const Json& warning : all) run.report.warnings.push_back(warning.items()[1].as_string());
}

}  // namespace

// What can be large is copied on the way, a band of rows at a time, so that it is read once and written while
// the blocks are worked on.
void check_dense(QuantizeRun& run) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  std::uint64_t unsynced = 0;
  Json warnings = Json::array();
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (is_packed_weight(run, tensor.name) || !is_written_here(run, tensor)) continue;
    const bool copied = is_copied_first(run, tensor);
    std::int64_t rows = 0;  // copied so far
    const Checkpoint::EachBand copy = [&](std::int64_t first, const TensorView& band) {
      if (first < rows) return;
      copy_band(run, tensor, band);
      rows = first + band.rows();
      if ((unsynced += band.bytes()) < kSyncedBytes) return;
      run.writing.sync();
      unsynced = 0;
    };
    try {
      if (is_float(tensor.view.dtype) || tensor.is_scaled())
        run.source.finite(tensor.name, copied ? copy : Checkpoint::EachBand());
    } catch (const Error& error) {
      if (!run.options.allow_nonfinite || error.kind() != ErrorKind::kBadInput) throw;
      warnings.push_back(Json::array({static_cast<std::int64_t>(&tensor - checkpoint.tensors().data()),
                                      tensor.name + " " + error.detail().message + " and stays as it is"}));
    }
    if (!copied) continue;
    if (rows < tensor.view.rows()) checkpoint.each_band(tensor, copy);
    run.written_dense.insert(tensor.name);
  }
  take_warnings(run, warnings);
  copy_stacks(run);
  run.writing.sync();
  run.clock.charge("dense tensors");
}

void write_dense(QuantizeRun& run) {
  for (const StoredTensor& tensor : run.source.checkpoint().tensors()) {
    if (is_packed_weight(run, tensor.name) || tensor.stack >= 0 ||
        run.written_dense.count(tensor.name) != 0 || !is_written_here(run, tensor))
      continue;
    const DType dtype = written_dtype(tensor);
    const bool as_stored = dtype == tensor.view.dtype && tensor.in_order();
    const Lease lease = as_stored ? run.source.checkpoint().hold(tensor) : Lease();
    const std::vector<std::byte> converted =
        as_stored ? std::vector<std::byte>()
                  : stored_floats(run.source.checkpoint().read_float32(tensor), dtype);
    const std::span<const std::byte> stored = {tensor.view.as<const std::byte>(),
                                               static_cast<std::size_t>(tensor.view.bytes())};
    run.writing.add_dense_now(tensor.name, dtype, tensor.view.shape,
                              as_stored ? stored : std::span(converted));
  }
  run.clock.charge("writing");
}

void read_dense_ahead(const QuantizeRun& run) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (!is_packed_weight(run, tensor.name) && is_copied_first(run, tensor) && is_written_here(run, tensor))
      checkpoint.read_ahead(tensor);
}

std::uint64_t copied_band_bytes(const StoredTensor& tensor) {
  const auto elements = static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.view.shape.elements(), 0)),
             band = std::min(elements, static_cast<std::uint64_t>(Checkpoint::kBandElements));
  if (elements == 0) return 0;
  const std::uint64_t stored = tensor.view.bytes() / (elements / band);
  const DType written = written_dtype(tensor);
  return written == tensor.view.dtype
             ? stored
             : stored + band * (sizeof(float) + static_cast<std::uint64_t>(element_bytes(written)));
}

}  // namespace llmq
