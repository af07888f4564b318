// The products of what a linear's output lacks with the linear's input, as one GEMM over the tokens:
// C = E^T X = linear(E^T, weight = X^T).
#include <cstring>

#include "base/half.h"
#include "quant/activation_stream.h"

namespace llmq {
namespace {

// to[c][r] = from[r][c]
template <typename T>
void turn(T* to, const T* from, std::int64_t rows, std::int64_t columns, ThreadPool& pool) {
  constexpr std::int64_t kTile = 32;
  pool.parallel_for(static_cast<std::size_t>((rows + kTile - 1) / kTile), [&](std::size_t tile, int) {
    const std::int64_t first = static_cast<std::int64_t>(tile) * kTile, end = std::min(rows, first + kTile);
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = first; r < end; ++r) to[c * rows + r] = from[r * columns + c];
  });
}

std::vector<float> host_floats(Backend& backend, const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.shape.elements()));
  backend.download(values.data(), view);
  return values;
}

}  // namespace

std::vector<double> ActivationStream::missing_output(InputSite site, int block, const BlockWeights& weights,
                                                     LinearRole role, ActivationStream& original,
                                                     std::int64_t stride, ThreadPool& pool) {
  Backend& backend = context_.backend;
  const BlockLinear& linear = weights.linear(role);
  const std::int64_t out = linear.weight->out_features, channels = width(site);
  const DType dtype = activation_dtype(context_.compute);
  const auto element = static_cast<std::size_t>(element_bytes(dtype));
  std::vector<double> sum(static_cast<std::size_t>(out * channels));
  for (std::size_t c = 0; c < original.chunks_.size(); ++c) {
    const Chunk& chunk = chunks_[c * static_cast<std::size_t>(stride)];
    const TensorView x = kept_ == site ? far_input(site, chunk) : run_to(site, block, weights, chunk);
    const std::int64_t rows = x.rows();
    const auto count = static_cast<std::size_t>(rows * out);
    const Buffer output = backend.allocate(count * sizeof(float));
    const TensorView y = output.view(DType::kF32, {rows, out});
    backend.linear(y, x, *linear.weight,
                   linear.bias.bytes() == 0 ? TensorView{} : linear.bias.view(DType::kF32, {out}));
    std::vector<float> lacking = host_floats(backend, original.residual(original.chunks_[c]));
    const std::vector<float> here = host_floats(backend, residual(chunk)), given = host_floats(backend, y);
    for (std::size_t i = 0; i < count; ++i) lacking[i] = lacking[i] - here[i] - given[i];
    std::vector<float> turned(count);
    turn(turned.data(), lacking.data(), rows, out, pool);
    std::vector<std::byte> inputs(static_cast<std::size_t>(rows * channels) * element), across(inputs.size());
    backend.download(inputs.data(), x);
    if (dtype == DType::kBF16)
      turn(reinterpret_cast<std::uint16_t*>(across.data()), reinterpret_cast<std::uint16_t*>(inputs.data()),
           rows, channels, pool);
    else
      turn(reinterpret_cast<float*>(across.data()), reinterpret_cast<float*>(inputs.data()), rows, channels,
           pool);
    add_products(sum, turned, TensorView(across.data(), dtype, {channels, rows}), out);
  }
  return sum;
}

void ActivationStream::add_products(std::vector<double>& sum, const std::vector<float>& turned,
                                    const TensorView& across, std::int64_t out) const {
  Backend& backend = context_.backend;
  const std::int64_t channels = across.rows(), rows = across.cols();
  const auto prepared = backend.prepare(across, context_.compute);
  const Buffer wide = backend.allocate(turned.size() * sizeof(float));
  const TensorView full = wide.view(DType::kF32, {out, rows});
  backend.upload(full, turned.data());
  Buffer narrow;
  TensorView e = full;
  if (context_.compute == Compute::kBFloat16) {
    narrow = backend.allocate(turned.size() * 2);
    e = narrow.view(DType::kBF16, {out, rows});
    backend.convert(e, full);
  }
  const Buffer product = backend.allocate(sum.size() * sizeof(float));
  const TensorView c = product.view(DType::kF32, {out, channels});
  backend.linear(c, e, *prepared, TensorView{});
  const std::vector<float> chunk = host_floats(backend, c);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(chunk[i]);
}

}  // namespace llmq
