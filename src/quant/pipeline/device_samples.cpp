#include "quant/pipeline/device_samples.h"

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

std::size_t bytes_for(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(element_bytes(dtype));
}

}  // namespace

DeviceSamples::DeviceSamples(const ForwardContext& context, const Sizes& sizes, std::unique_ptr<File> file)
    : context_(&context),
      sizes_(sizes),
      hidden_(context.backend, sizes.tokens, context.spec.hidden_size, sizes.longest_chunk, std::move(file)) {
  if (sizes.tokens == 0) return;
  const ModelSpec& spec = context.spec;
  const DType dtype = activation_dtype(context.compute);
  const std::int64_t widest = std::max(width(InputSite::kOutput), width(InputSite::kDown));
  near_ = context.backend.allocate(bytes_for(sizes.longest_chunk * spec.hidden_size, dtype));
  far_ = context.backend.allocate(
      bytes_for((sizes.keep_inputs ? sizes.tokens : sizes.longest_chunk) * widest, dtype));
  const Shape pages{sizes.pages, sizes.page_tokens, spec.kv_heads, spec.head_dim};
  keys_ = context.backend.allocate(bytes_for(pages.elements(), dtype));
  values_ = context.backend.allocate(bytes_for(pages.elements(), dtype));
  pages_ = {keys_.view(dtype, pages), values_.view(dtype, pages), static_cast<int>(sizes.page_tokens)};
}

std::int64_t DeviceSamples::width(InputSite site) const {
  const ModelSpec& spec = context_->spec;
  if (site == InputSite::kOutput) return std::int64_t{spec.heads} * spec.head_dim;
  return site == InputSite::kDown ? spec.intermediate_size : spec.hidden_size;
}

TensorView DeviceSamples::far_input(InputSite site, const SampleChunk& chunk) const {
  const TensorView all = far_.view(activation_dtype(context_->compute),
                                   {sizes_.keep_inputs ? sizes_.tokens : sizes_.longest_chunk, width(site)});
  return all.row_slice(sizes_.keep_inputs ? chunk.first : 0, chunk.tokens());
}

TensorView DeviceSamples::run_to(InputSite site, int block, const BlockWeights& weights,
                                 const SampleChunk& chunk) {
  const DType dtype = activation_dtype(context_->compute);
  const TensorView hidden = residual(chunk);
  const TensorView near = near_.view(dtype, {hidden.rows(), context_->spec.hidden_size});
  if (site == InputSite::kAttention || site == InputSite::kOutput)
    attention_input(*context_, weights, hidden, near);
  else
    mlp_input(*context_, weights, hidden, near);
  if (site == InputSite::kAttention || site == InputSite::kMlp) return near;
  const TensorView far = far_input(site, chunk);
  if (site == InputSite::kOutput) {
    attend(*context_, block, weights, near, chunk.rows, pages_, far);
    take_kv_extremes(chunk);
  } else {
    gate(*context_, weights, near, far);
  }
  return far;
}

void DeviceSamples::finish(LinearRole role, const BlockWeights& weights, const SampleChunk& chunk,
                           const TensorView& x) {
  add_linear(*context_, weights, role, x, residual(chunk));
  hidden_.save();
}

// Pages hold what longer chunks left behind, too: only the slots of this one count.
void DeviceSamples::take_kv_extremes(const SampleChunk& chunk) {
  if (!measures_kv_) return;
  Backend& backend = context_->backend;
  const std::int64_t heads = pages_.keys.shape[2], head_dim = pages_.keys.shape[3];
  const auto largest = [&](const TensorView& view) {
    std::vector<float> numbers(static_cast<std::size_t>(view.shape.elements()));
    backend.download(numbers.data(), view);
    float most = 0;
    for (const float number : numbers) most = std::max(most, std::fabs(number));
    return most;
  };
  for_fitting_rows(context_->chunks, context_->fitting.get(), chunk.tokens(), 2 * heads * head_dim,
                   [&](std::int64_t first, std::int64_t count) {
                     const Shape shape{count, heads, head_dim};
                     const auto bytes = static_cast<std::size_t>(shape.elements()) * sizeof(float);
                     const Buffer keys = backend.allocate(bytes), values = backend.allocate(bytes);
                     const TensorView k = keys.view(DType::kF32, shape), v = values.view(DType::kF32, shape);
                     backend.load_kv(
                         k, v, pages_,
                         std::span(chunk.rows.slots)
                             .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
                     extremes.keys = std::max(extremes.keys, largest(k));
                     extremes.values = std::max(extremes.values, largest(v));
                   });
}

std::vector<float> DeviceSamples::product(const std::vector<float>& turned, const TensorView& across,
                                          std::int64_t out) const {
  Backend& backend = context_->backend;
  const std::int64_t channels = across.rows(), rows = across.cols();
  const auto prepared = backend.prepare(across, context_->compute);
  const Buffer wide = backend.allocate(turned.size() * sizeof(float));
  const TensorView full = wide.view(DType::kF32, {out, rows});
  backend.upload(full, turned.data());
  Buffer narrow;
  TensorView e = full;
  if (context_->compute == Compute::kBFloat16) {
    narrow = backend.allocate(turned.size() * 2);
    e = narrow.view(DType::kBF16, {out, rows});
    backend.convert(e, full);
  }
  std::vector<float> sums(static_cast<std::size_t>(out * channels));
  const Buffer product = backend.allocate(sums.size() * sizeof(float));
  const TensorView c = product.view(DType::kF32, {out, channels});
  backend.linear(c, e, *prepared, TensorView{});
  backend.download(sums.data(), c);
  return sums;
}

}  // namespace llmq
