#include "model/block_weights.h"

#include <utility>

#include "base/error.h"
#include "device/upload_values.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

void check_shape(const LinearSource& source, const LinearSpec& linear, const QuantizedMatrix& matrix) {
  if (matrix.out_features == linear.out_features && matrix.in_features == linear.in_features) return;
  fail(ErrorKind::kBadInput, {fmt::format("has shape [{}, {}], expected [{}, {}]", matrix.out_features,
                                          matrix.in_features, linear.out_features, linear.in_features),
                              source.checkpoint().path().string(),
                              linear.weight.tensor,
                              {}});
}

// A linear on the host: the file's own bytes, codes, or numbers.
struct ReadLinear {
  std::optional<HeldTensor> stored;
  std::optional<QuantizedMatrix> codes;
  ZeroedNumbers<float> values;
  std::vector<float> bias;  // empty: none
};

ReadLinear read_linear(const LinearSource& source, const LinearSpec& linear, bool allow_nonfinite,
                       PackedWeights packed, ThreadPool& pool) {
  ReadLinear read;
  if (linear.absorbed) {  // some of its parts are transposed
    read.values = source.weight(linear, pool, allow_nonfinite);
    return read;
  }
  const bool codes = packed == PackedWeights::kCodes;
  read.stored = source.stored(linear, allow_nonfinite);
  if (!read.stored && source.is_packed(linear.module) &&
      (codes || source.packed_shape(linear.module).scheme.rounds_inputs())) {
    source.check_packed(linear);
    read.codes = source.quantized(linear.module);
  } else if (!read.stored && codes && !source.is_packed(linear.module)) {
    read.codes = source.block_codes(linear.weight.tensor);
    if (read.codes) check_shape(source, linear, *read.codes);
  }
  if (!read.stored && !read.codes) read.values = source.weight(linear, pool, allow_nonfinite);
  if (std::optional<std::vector<float>> bias = source.bias(linear, allow_nonfinite))
    read.bias = std::move(*bias);
  return read;
}

std::unique_ptr<PreparedWeight> prepare_matrix(Backend& backend, Compute compute,
                                               const QuantizedMatrix& matrix) {
  return matrix.scheme.rounds_inputs() ? backend.prepare_quantized(matrix, compute)
                                       : prepare_codes(backend, compute, matrix);
}

// A part of an absorbed linear, `weight` F32 [out, in]: those in even places from the other side.
std::unique_ptr<PreparedWeight> prepare_absorbed(Backend& backend, Compute compute, const TensorView& weight,
                                                 std::size_t part, std::int64_t first, std::int64_t count) {
  const TensorView rows = weight.row_slice(first, count);
  if (part % 2 != 0) return backend.prepare(rows, compute);
  const std::vector<float> turned = transposed(
      std::span(rows.as<const float>(), static_cast<std::size_t>(count * rows.cols())), count, rows.cols());
  return backend.prepare(TensorView(turned.data(), DType::kF32, Shape{rows.cols(), count}), compute);
}

// prepare(output rows [first, first + count)), which are the matrix itself where they are all.
template <typename Prepare>
std::unique_ptr<PreparedWeight> prepare_rows(const QuantizedMatrix& matrix, std::int64_t first,
                                             std::int64_t count, const Prepare& prepare) {
  if (count == matrix.out_features) return prepare(matrix);
  return prepare(row_slice(matrix, first, count));
}

// Output rows [first, first + count).
std::unique_ptr<PreparedWeight> prepare_rows(Backend& backend, Compute compute, const LinearSpec& linear,
                                             const ReadLinear& read, std::int64_t first, std::int64_t count) {
  if (read.codes)
    return prepare_rows(*read.codes, first, count,
                        [&](const QuantizedMatrix& rows) { return prepare_matrix(backend, compute, rows); });
  const TensorView whole = read.stored ? read.stored->view
                                       : TensorView(read.values.data(), DType::kF32,
                                                    Shape{linear.out_features, linear.in_features});
  return backend.prepare(whole.row_slice(first, count), compute);
}

std::vector<LinearId> all_of(const BlockSpec& block) {
  std::vector<LinearId> ids;
  for (const LinearSpec& linear : block.linears) ids.push_back(linear.id);
  return ids;
}

}  // namespace

std::size_t BlockLinear::bytes() const {
  std::size_t sum = 0;
  for (const LinearPart& part : parts) sum += part.weight->bytes;
  return sum;
}

TensorView vector_view(const Buffer& buffer) {
  if (buffer.bytes() == 0) return {};
  return buffer.view(DType::kF32, {static_cast<std::int64_t>(buffer.bytes() / sizeof(float))});
}

std::unique_ptr<PreparedWeight> prepare_codes(Backend& backend, Compute compute,
                                              const QuantizedMatrix& matrix) {
  if (backend.keeps_codes(matrix, compute)) return backend.prepare_quantized(matrix, compute);
  ZeroedNumbers<float> values(matrix.codes.size());
  dequantize(matrix, values, backend.workers());
  return backend.prepare(
      TensorView(values.data(), DType::kF32, Shape{matrix.out_features, matrix.in_features}), compute);
}

void set_weight(Backend& backend, Compute compute, const LinearSpec& linear, const TensorView& weight,
                BlockLinear& into) {
  into.parts.resize(linear.parts.size());
  ZeroedNumbers<float> values;
  TensorView whole = weight;
  if (linear.absorbed && weight.dtype != DType::kF32) {
    values = ZeroedNumbers<float>(static_cast<std::size_t>(weight.shape.elements()));
    to_float32(weight, values);
    whole = TensorView(values.data(), DType::kF32, weight.shape);
  }
  each_part(linear, [&](std::size_t part, std::int64_t first, std::int64_t rows) {
    into.parts[part].weight = linear.absorbed ? prepare_absorbed(backend, compute, whole, part, first, rows)
                                              : backend.prepare(weight.row_slice(first, rows), compute);
  });
}

void set_weight(Backend& backend, Compute compute, const LinearSpec& linear, const QuantizedMatrix& matrix,
                BlockLinear& into) {
  if (linear.absorbed) {
    ZeroedNumbers<float> values(matrix.codes.size());
    dequantize(matrix, values, backend.workers());
    const TensorView whole(values.data(), DType::kF32, Shape{matrix.out_features, matrix.in_features});
    return set_weight(backend, compute, linear, whole, into);
  }
  into.parts.resize(linear.parts.size());
  each_part(linear, [&](std::size_t part, std::int64_t first, std::int64_t rows) {
    into.parts[part].weight = prepare_rows(matrix, first, rows, [&](const QuantizedMatrix& own) {
      return backend.prepare_quantized(own, compute);
    });
  });
}

void set_bias(Backend& backend, const LinearSpec& linear, std::span<const float> bias, BlockLinear& into) {
  into.parts.resize(linear.parts.size());
  each_part(linear, [&](std::size_t part, std::int64_t first, std::int64_t rows) {
    into.parts[part].bias =
        upload_values(backend, bias.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)));
  });
}

std::vector<BlockLinear> prepare_linear_shares(std::span<Backend* const> members, Compute compute,
                                               const LinearSource& source, const LinearSpec& linear,
                                               bool allow_nonfinite, PackedWeights packed) {
  const ReadLinear read = read_linear(source, linear, allow_nonfinite, packed, members.front()->workers());
  std::vector<BlockLinear> shares(members.size());
  each_share(linear, members.size(), [&](std::size_t member, std::int64_t first, std::int64_t count) {
    const std::size_t part = shares[member].parts.size();
    LinearPart& share = shares[member].parts.emplace_back();
    share.weight = linear.absorbed
                       ? prepare_absorbed(*members[member], compute,
                                          TensorView(read.values.data(), DType::kF32,
                                                     Shape{linear.out_features, linear.in_features}),
                                          part, first, count)
                       : prepare_rows(*members[member], compute, linear, read, first, count);
    if (!read.bias.empty())
      share.bias = upload_values(
          *members[member],
          std::span(read.bias).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  });
  return shares;
}

BlockLinear prepare_linear(Backend& backend, Compute compute, const LinearSource& source,
                           const LinearSpec& linear, bool allow_nonfinite, PackedWeights packed) {
  Backend* const only = &backend;
  return std::move(
      prepare_linear_shares({&only, 1}, compute, source, linear, allow_nonfinite, packed).front());
}

void load_bias(Backend& backend, const LinearSource& source, const LinearSpec& linear, bool allow_nonfinite,
               BlockLinear& into) {
  if (const std::optional<std::vector<float>> bias = source.bias(linear, allow_nonfinite))
    set_bias(backend, linear, *bias, into);
}

void load_mixer_tensors(std::span<Backend* const> members, const LinearSource& source, const BlockSpec& block,
                        bool allow_nonfinite, std::span<BlockWeights> shares) {
  for (std::size_t i = 0; i < block.tensors.size(); ++i) {
    const MixerTensor& tensor = block.tensors[i];
    std::vector<float> stored = source.tensor(tensor.place.tensor, allow_nonfinite);
    const std::int64_t columns = tensor.shape.back();
    if (tensor.transposed)
      stored = transposed(std::span<const float>(stored), static_cast<std::int64_t>(stored.size()) / columns,
                          columns);
    const std::size_t own = stored.size() / (tensor.by_heads ? members.size() : 1);
    for (std::size_t member = 0; member < members.size(); ++member) {
      const std::span<const float> values =
          std::span<const float>(stored).subspan(tensor.by_heads ? member * own : 0, own);
      if (tensor.on_host)
        shares[member].host_tensors[i].assign(values.begin(), values.end());
      else
        shares[member].tensors[i] = upload_values(*members[member], values);
    }
  }
}

NormWeights load_norm(Backend& backend, const NormSpec& norm, std::span<const float> gain,
                      std::span<const float> bias) {
  std::vector<float> factor(gain.begin(), gain.end());
  for (float& value : factor) value = norm.multiplier(value);
  if (gain.empty()) factor.assign(static_cast<std::size_t>(norm.width), norm.scaled(1));
  std::vector<float> shift(bias.begin(), bias.end());
  for (float& value : shift) value = norm.scaled(value);
  return {upload_values(backend, factor), shift.empty() ? Buffer() : upload_values(backend, shift)};
}

namespace {

// Read once for all members, each of which has the whole of it, or the gains of its own heads.
std::vector<NormWeights> load_norms(std::span<Backend* const> members, const LinearSource& source,
                                    const NormSpec& norm, bool allow_nonfinite) {
  std::vector<float> gain;
  if (norm.gain.exists()) gain = source.tensor(norm.gain.tensor, allow_nonfinite);
  std::vector<float> bias;
  if (norm.bias.exists()) bias = source.tensor(norm.bias.tensor, allow_nonfinite);
  std::vector<NormWeights> norms;
  const std::size_t own = gain.size() / (norm.heads > 0 ? members.size() : 1);
  for (std::size_t member = 0; member < members.size(); ++member)
    norms.push_back(load_norm(*members[member], norm,
                              std::span<const float>(gain).subspan(norm.heads > 0 ? member * own : 0, own),
                              bias));
  return norms;
}

std::vector<BlockWeights> load_shares(std::span<Backend* const> members, Compute compute,
                                      const LinearSource& source, const BlockSpec& block,
                                      std::span<const LinearId> linears, bool allow_nonfinite,
                                      PackedWeights packed) {
  std::vector<BlockWeights> shares;
  for (std::size_t member = 0; member < members.size(); ++member) shares.emplace_back(block);
  for (const LinearId id : linears) {
    std::vector<BlockLinear> parts =
        prepare_linear_shares(members, compute, source, block.at(id), allow_nonfinite, packed);
    for (std::size_t member = 0; member < members.size(); ++member)
      shares[member].at(id) = std::move(parts[member]);
  }
  for (std::size_t i = 0; i < block.norms.size(); ++i) {
    std::vector<NormWeights> norms = load_norms(members, source, block.norms[i], allow_nonfinite);
    for (std::size_t member = 0; member < members.size(); ++member)
      shares[member].norms[i] = std::move(norms[member]);
  }
  load_mixer_tensors(members, source, block, allow_nonfinite, shares);
  return shares;
}

}  // namespace

NormWeights load_norm(Backend& backend, const LinearSource& source, const NormSpec& norm,
                      bool allow_nonfinite) {
  Backend* const only = &backend;
  return std::move(load_norms({&only, 1}, source, norm, allow_nonfinite).front());
}

std::vector<BlockWeights> load_block_shares(std::span<Backend* const> members, Compute compute,
                                            const LinearSource& source, const BlockSpec& block,
                                            bool allow_nonfinite, PackedWeights packed) {
  return load_shares(members, compute, source, block, all_of(block), allow_nonfinite, packed);
}

BlockWeights load_block(Backend& backend, Compute compute, const LinearSource& source, const BlockSpec& block,
                        std::span<const LinearId> linears, bool allow_nonfinite, PackedWeights packed) {
  Backend* const only = &backend;
  return std::move(load_shares({&only, 1}, compute, source, block, linears, allow_nonfinite, packed).front());
}

BlockWeights load_block(Backend& backend, Compute compute, const LinearSource& source, const BlockSpec& block,
                        bool allow_nonfinite, PackedWeights packed) {
  return load_block(backend, compute, source, block, all_of(block), allow_nonfinite, packed);
}

}  // namespace llmq
