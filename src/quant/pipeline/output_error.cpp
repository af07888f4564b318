// The products of what a linear's output lacks with the linear's input, as one GEMM over the tokens:
// C = E^T X = linear(E^T, weight = X^T).
#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/half.h"
#include "calibration/joined_sums.h"
#include "quant/pipeline/activation_stream.h"

namespace llmq {
namespace {

// work(i) for i in [0, count), each for itself, by the threads of the pool.
template <class Work>
void each_number(std::size_t count, ThreadPool& pool, const Work& work) {
  constexpr std::size_t kPart = 1 << 16;
  pool.parallel_for((count + kPart - 1) / kPart, [&](std::size_t part, int) {
    for (std::size_t i = part * kPart, end = std::min(count, i + kPart); i < end; ++i) work(i);
  });
}

void add_all(ExactSums& sums, std::span<const float> numbers, ThreadPool& pool) {
  constexpr std::size_t kPart = 1 << 16;
  pool.parallel_for((numbers.size() + kPart - 1) / kPart, [&](std::size_t part, int) {
    const std::size_t first = part * kPart;
    sums.add(first, numbers.subspan(first, std::min(kPart, numbers.size() - first)));
  });
  sums.trim();
}

// to[c][r] = from[r][c]
template <typename T>
void turn_over(T* to, const T* from, std::int64_t rows, std::int64_t columns, ThreadPool& pool) {
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

ZeroedNumbers<double> ActivationStream::output_error_products(std::size_t part, int block,
                                                              const DeviceWeights& weights,
                                                              ActivationStream& original,
                                                              std::int64_t stride) {
  const SublayerSpec& sublayer = spec(block).sublayers.at(part);
  const SiteId site = sublayer.sites.back();
  const SiteSpec& last = spec(block).at(site);
  const LinearId output = sublayer.outputs().at(0);
  const std::int64_t out = spec(block).at(output).out_features, channels = last.channels;
  const DType dtype = activation_dtype(compute_);
  const float scale = sublayer.residual_scale;
  const auto element = static_cast<std::size_t>(element_bytes(dtype));
  ExactSums sum(static_cast<std::size_t>(out * channels));
  std::mutex mutex;
  each_chunk(static_cast<std::size_t>(stride), [&](DeviceSamples& lane, const SampleChunk& chunk,
                                                   std::size_t place) {
    const SampleChunk& same = original.chunks_.at(place);
    if (same.lane != chunk.lane) fail(ErrorKind::kInternal, "the original's samples lie elsewhere");
    Backend& backend = lane.backend();
    const LinearPart& linear = weights[chunk.lane].at(Part{output});
    const TensorView x =
        kept_ == site ? lane.last_input(last, chunk) : lane.run_to(site, block, weights[chunk.lane], chunk);
    const std::int64_t rows = x.rows();
    const auto count = static_cast<std::size_t>(rows * out);
    const Buffer given_out = backend.allocate(count * sizeof(float));
    const TensorView y = given_out.view(DType::kF32, {rows, out});
    backend.linear(y, x, *linear.weight, vector_view(linear.bias));
    std::vector<float> lacking = host_floats(backend, original.lanes_[same.lane].residual(same));
    const std::vector<float> here = host_floats(backend, lane.residual(chunk)),
                             given = host_floats(backend, y);
    each_number(count, backend.workers(),
                [&](std::size_t i) { lacking[i] = (lacking[i] - here[i]) / scale - given[i]; });
    std::vector<float> turned(count);
    turn_over(turned.data(), lacking.data(), rows, out, backend.workers());
    std::vector<std::byte> inputs(static_cast<std::size_t>(rows * channels) * element), across(inputs.size());
    backend.download(inputs.data(), x);
    if (dtype == DType::kBF16)
      turn_over(reinterpret_cast<std::uint16_t*>(across.data()),
                reinterpret_cast<std::uint16_t*>(inputs.data()), rows, channels, backend.workers());
    else
      turn_over(reinterpret_cast<float*>(across.data()), reinterpret_cast<float*>(inputs.data()), rows,
                channels, backend.workers());
    const std::vector<float> products =
        lane.product(turned, TensorView(across.data(), dtype, {channels, rows}), out);
    const std::lock_guard lock(mutex);
    add_all(sum, products, backend.workers());
  });
  return round_together(std::move(sum), *ranks_);
}

}  // namespace llmq
