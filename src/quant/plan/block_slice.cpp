#include "quant/plan/block_slice.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace llmq {
namespace {

constexpr std::int64_t kMultiple = 128, kVocabulary = 4096;

std::int64_t narrowed(std::int64_t size, std::int64_t divisor) {
  return std::min(size, std::max<std::int64_t>(1, (size / divisor + kMultiple / 2) / kMultiple) * kMultiple);
}

class Narrowing {
 public:
  explicit Narrowing(const LinearSource& source) : source_(source) {}

  // The first rows and columns of a tensor that is [rows, columns] or, with one row, [columns]: as it is
  // stored, or in FP32 where it is stored in blocks.
  void take(const std::string& name, std::int64_t rows, std::int64_t columns, bool flat = false) {
    if (name.empty()) return;
    const StoredTensor& tensor = source_.checkpoint().at(name);
    const Lease lease = source_.checkpoint().hold(tensor);
    const DTypeRow& type = dtype_row(tensor.view.dtype);
    const std::int64_t width = tensor.view.cols();
    const auto* const bytes = tensor.view.as<const std::byte>();
    if (type.block_elements == 1) return add(name, type.dtype, bytes, rows, width, columns, flat);
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    to_float32(TensorView(static_cast<const void*>(bytes), type.dtype, {rows, width}), values);
    add(name, DType::kF32, std::as_bytes(std::span(values)).data(), rows, width, columns, flat);
  }

  void take_linear(const LinearSpec& whole, const LinearSpec& narrow) {
    if (source_.is_packed(whole.module)) {
      ThreadPool here(1);
      const ZeroedNumbers<float> values = source_.weight(whole, here, true);
      add(whole.module + ".weight", DType::kF32, std::as_bytes(std::span(values)).data(), narrow.out_features,
          whole.in_features, narrow.in_features, false);
    } else {
      take(whole.module + ".weight", narrow.out_features, narrow.in_features);
    }
    if (whole.has_bias) take(whole.module + ".bias", 1, narrow.out_features, true);
  }

  Checkpoint checkpoint() const { return Checkpoint::of_tensors(tensors_, Json::object()); }

 private:
  // `from` has elements of a type without blocks, [rows, width].
  void add(const std::string& name, DType dtype, const std::byte* from, std::int64_t rows, std::int64_t width,
           std::int64_t columns, bool flat) {
    const auto element = static_cast<std::size_t>(dtype_row(dtype).block_bytes),
               row_bytes = static_cast<std::size_t>(columns) * element;
    Checkpoint::OwnedTensor& owned = tensors_.emplace_back();
    owned.name = name;
    owned.dtype = dtype;
    owned.shape = flat ? Shape{columns} : Shape{rows, columns};
    owned.bytes.resize(static_cast<std::size_t>(rows) * row_bytes);
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(owned.bytes.data() + static_cast<std::size_t>(r) * row_bytes,
                  from + static_cast<std::size_t>(r * width) * element, row_bytes);
  }

  const LinearSource& source_;
  std::vector<Checkpoint::OwnedTensor> tensors_;
};

}  // namespace

ModelSpec single_block(const ModelSpec& spec, std::size_t block) {
  ModelSpec one = spec;
  one.blocks = {spec.blocks.at(block)};
  return one;
}

NarrowModel narrow_model(const LinearSource& source, const ModelSpec& spec, std::size_t block,
                         std::int64_t divisor) {
  NarrowModel narrow{{}, single_block(spec, block)};
  ModelSpec& to = narrow.spec;
  const int by = static_cast<int>(divisor), repeat = spec.heads / spec.kv_heads;
  to.hidden_size = narrowed(spec.hidden_size, divisor);
  to.intermediate_size = narrowed(spec.intermediate_size, divisor);
  to.vocab_size = std::min(spec.vocab_size, kVocabulary);
  to.kv_heads = std::max(1, spec.kv_heads / by);
  to.heads = to.kv_heads * std::clamp(spec.heads / by / to.kv_heads, 1, repeat);
  const std::int64_t q = std::int64_t{to.heads} * to.head_dim, kv = std::int64_t{to.kv_heads} * to.head_dim;
  Narrowing narrowing(source);
  narrowing.take(spec.embedding, to.vocab_size, to.hidden_size);
  BlockSpec& structure = to.blocks.front();
  for (LinearSpec& linear : structure.linears) {
    const LinearSpec whole = linear;
    switch (linear.role) {
      case LinearRole::kQuery:
        linear.out_features = q, linear.in_features = to.hidden_size;
        break;
      case LinearRole::kKey:
      case LinearRole::kValue:
        linear.out_features = kv, linear.in_features = to.hidden_size;
        break;
      case LinearRole::kOutput:
        linear.out_features = to.hidden_size, linear.in_features = q;
        break;
      case LinearRole::kGate:
      case LinearRole::kUp:
        linear.out_features = to.intermediate_size, linear.in_features = to.hidden_size;
        break;
      case LinearRole::kDown:
        linear.out_features = to.hidden_size, linear.in_features = to.intermediate_size;
        break;
    }
    narrowing.take_linear(whole, linear);
  }
  for (FoldSpec& fold : structure.folds)
    if (fold.producer == FoldSpec::Producer::kGroupedValueRows) fold.repeat = to.heads / to.kv_heads;
  for (const std::string& norm : {structure.input_norm, structure.post_attention_norm})
    narrowing.take(norm, 1, to.hidden_size, true);
  for (const std::string& norm : {structure.query_norm, structure.key_norm})
    narrowing.take(norm, 1, to.head_dim, true);
  narrow.checkpoint = narrowing.checkpoint();
  return narrow;
}

}  // namespace llmq
