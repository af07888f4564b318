#include "quant/pipeline/device_samples.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace llmq {
namespace {

std::size_t bytes_for(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(element_bytes(dtype));
}

// Channels of the sites between a sublayer's first and its last, before `site` or of all; those of one
// sublayer are there together.
std::int64_t channels_between(const BlockSpec& block, const SublayerSpec& part,
                              std::optional<SiteId> site = {}) {
  std::int64_t sum = 0;
  for (const SiteId id : part.sites_between()) {
    if (id == site) break;
    sum += block.at(id).channels;
  }
  return sum;
}

std::int64_t most_between(const ModelSpec& spec) {
  std::int64_t most = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const SublayerSpec& part : block.sublayers) most = std::max(most, channels_between(block, part));
  return most;
}

// The blocks whose pages later ones read.
std::set<std::size_t> page_owners(const ModelSpec& spec) {
  std::set<std::size_t> owners;
  for (const BlockSpec& block : spec.blocks)
    if (const AttentionSpec* const attention = block.attention();
        attention != nullptr && attention->shared_pages)
      owners.insert(*attention->shared_pages);
  return owners;
}

}  // namespace

DeviceSamples::DeviceSamples(const ForwardContext& context, const Sizes& sizes, std::unique_ptr<File> file)
    : context_(&context),
      sizes_(sizes),
      hidden_(context.backend, sizes.tokens, context.spec.hidden_size, sizes.longest_chunk, std::move(file)) {
  if (sizes.tokens == 0) return;
  const ModelSpec& spec = context.spec;
  const DType dtype = activation_dtype(context.compute);
  first_ = context.backend.allocate(bytes_for(sizes.longest_chunk * spec.hidden_size, dtype));
  if (const std::int64_t between = most_between(spec); between > 0)
    between_ = context.backend.allocate(bytes_for(sizes.longest_chunk * between, dtype));
  last_ = context.backend.allocate(
      bytes_for((sizes.keep_inputs ? sizes.tokens : sizes.longest_chunk) * spec.widest_inner(), dtype));
  const std::int64_t page = sizes.pages * sizes.page_tokens * spec.widest_page();
  keys_ = context.backend.allocate(bytes_for(page, dtype));
  values_ = context.backend.allocate(bytes_for(page, dtype));
  const std::int64_t chunks = (sizes.tokens + sizes.longest_chunk - 1) / sizes.longest_chunk;
  for (const std::size_t owner : page_owners(spec)) {
    const PagesSpec& own = spec.blocks.at(owner).pages;
    const std::size_t all =
        bytes_for(chunks * sizes.pages * sizes.page_tokens * own.kv_heads * own.head_dim, dtype);
    held_[owner] = {context.backend.allocate(all), context.backend.allocate(all)};
  }
  if (spec.block_embedding)
    embedded_ =
        context.backend.allocate(bytes_for(sizes.longest_chunk * spec.block_embedding->width, DType::kF32));
}

std::uint64_t DeviceSamples::bytes(const ModelSpec& spec, Compute compute, const Tokens& tokens) {
  const auto element = static_cast<std::uint64_t>(element_bytes(activation_dtype(compute))),
             hidden = static_cast<std::uint64_t>(spec.hidden_size),
             page = static_cast<std::uint64_t>(spec.widest_page()),
             inner = static_cast<std::uint64_t>(spec.widest_inner()),
             between = static_cast<std::uint64_t>(most_between(spec));
  std::uint64_t shared = 0, embedded = 0;
  for (const std::size_t owner : page_owners(spec))
    shared += static_cast<std::uint64_t>(spec.blocks.at(owner).pages.kv_heads) *
              static_cast<std::uint64_t>(spec.blocks.at(owner).pages.head_dim);
  if (spec.block_embedding) embedded = static_cast<std::uint64_t>(spec.block_embedding->width);
  return tokens.residual * hidden * sizeof(float) + tokens.first_site * embedded * sizeof(float) +
         2 * tokens.shared_pages * shared * element +
         (tokens.first_site * (hidden + between) + 2 * tokens.pages * page + tokens.last_site * inner) *
             element;
}

KvPages DeviceSamples::pages(int block, const SampleChunk& chunk) const {
  const std::vector<BlockSpec>& blocks = context_->spec.blocks;
  const auto number = static_cast<std::size_t>(block);
  const AttentionSpec* const attention = blocks[number].attention();
  const std::size_t owner = attention == nullptr ? number : attention->shared_pages.value_or(number);
  const PagesSpec& spec = blocks[owner].pages;
  const DType dtype = activation_dtype(context_->compute);
  const Shape shape{sizes_.pages, sizes_.page_tokens, spec.kv_heads, spec.head_dim};
  const auto size = static_cast<int>(sizes_.page_tokens);
  const auto held = held_.find(owner);
  if (held == held_.end()) return {keys_.view(dtype, shape), values_.view(dtype, shape), size};
  // All chunks before this one are of the longest.
  const std::int64_t first = chunk.first / sizes_.longest_chunk * shape.elements() * element_bytes(dtype);
  const auto own = [&](const Buffer& all) {
    const std::int64_t pages =
        static_cast<std::int64_t>(all.bytes()) / (shape.elements() / sizes_.pages * element_bytes(dtype));
    TensorView view = all.view(dtype, {pages, shape[1], shape[2], shape[3]});
    view.pointer = view.as<std::byte>() + first;
    view.shape = shape;
    return view;
  };
  return {own(held->second.keys), own(held->second.values), size};
}

// What the block multiplies, made anew for every chunk.
TensorView DeviceSamples::embedded(int block, const SampleChunk& chunk) {
  const auto number = static_cast<std::size_t>(block);
  if (!embedding_ || embedding_->block() != number)
    embedding_.emplace(context_->backend, context_->compute, context_->spec, *checkpoint_, number);
  const TensorView own =
      embedded_.view(DType::kF32, {sizes_.longest_chunk, context_->spec.block_embedding->width})
          .row_slice(0, chunk.tokens());
  embedding_->embed(chunk.samples, own);
  return own;
}

MemberBlock DeviceSamples::in_block(int block, std::size_t part, const BlockWeights& weights,
                                    const SampleChunk& chunk) {
  const SublayerSpec& sublayer = context_->spec.blocks[static_cast<std::size_t>(block)].sublayers[part];
  const bool embeds = std::holds_alternative<EmbeddedSpec>(sublayer.mixer);
  return {context_, &weights, pages(block, chunk), residual(chunk),
          embeds ? embedded(block, chunk) : TensorView()};
}

TensorView DeviceSamples::last_input(const SiteSpec& site, const SampleChunk& chunk) const {
  const TensorView all =
      last_.view(activation_dtype(context_->compute),
                 {sizes_.keep_inputs ? sizes_.tokens : sizes_.longest_chunk, site.channels});
  return all.row_slice(sizes_.keep_inputs ? chunk.first : 0, chunk.tokens());
}

TensorView DeviceSamples::run_to(SiteId site, int block, const BlockWeights& weights,
                                 const SampleChunk& chunk) {
  // Stops the walk where the input of the site asked for is there.
  class StopAt final : public Tap {
   public:
    StopAt(const DeviceSamples& samples, const SampleChunk& chunk, const BlockSpec& block,
           const SublayerSpec& part, SiteId site)
        : samples_(samples), chunk_(chunk), block_(block), part_(part), site_(site) {}
    TensorView place(const SiteSpec& spec, SiteId id, std::int64_t rows) override {
      if (id == part_.sites.back()) return samples_.last_input(spec, chunk_);
      const DType dtype = activation_dtype(samples_.context_->compute);
      if (id == part_.sites.front()) return samples_.first_.view(dtype, {rows, spec.channels});
      const std::int64_t before = channels_between(block_, part_, id);
      const TensorView from =
          samples_.between_.view(dtype, {before + spec.channels, rows}).row_slice(before, spec.channels);
      return TensorView(from.pointer, dtype, {rows, spec.channels}, from.device);
    }
    Flow at(SiteId id, const TensorView& x) override {
      if (id != site_) return Flow::kGoOn;
      found = x;
      return Flow::kStop;
    }
    TensorView found;

   private:
    const DeviceSamples& samples_;
    const SampleChunk& chunk_;
    const BlockSpec& block_;
    const SublayerSpec& part_;
    SiteId site_;
  };
  const BlockSpec& spec = context_->spec.blocks[static_cast<std::size_t>(block)];
  const std::size_t number = spec.part_of(site);
  const SublayerSpec& part = spec.sublayers[number];
  StopAt stop(*this, chunk, spec, part, site);
  run_sublayer(in_block(block, number, weights, chunk), block, number, chunk.rows, stop);
  if (part.has_pages() && site == part.sites.back()) take_kv_extremes(block, chunk);
  return stop.found;
}

void DeviceSamples::finish(std::size_t part, int block, const BlockWeights& weights, const SampleChunk& chunk,
                           const TensorView& x) {
  const MemberBlock member = in_block(block, part, weights, chunk);
  finish_sublayer(member, block, part, chunk.rows, x);
  const BlockSpec& spec = member.context->spec.blocks[static_cast<std::size_t>(block)];
  if (spec.sublayers[part].joined && spec.writes_pages(part)) take_kv_extremes(block, chunk);
  hidden_.save();
}

void DeviceSamples::finish(std::size_t part, int block, const BlockWeights& weights,
                           const SampleChunk& chunk) {
  const MemberBlock member = in_block(block, part, weights, chunk);
  Exchange alone;
  run_sublayer({&member, 1}, block, part, chunk.rows, alone);
  if (member.context->spec.blocks[static_cast<std::size_t>(block)].writes_pages(part))
    take_kv_extremes(block, chunk);
  hidden_.save();
}

// Pages hold what longer chunks left behind, too: only the slots of this one count.
void DeviceSamples::take_kv_extremes(int block, const SampleChunk& chunk) {
  if (!measures_kv_) return;
  const KvPages held = pages(block, chunk);
  Backend& backend = context_->backend;
  const std::int64_t heads = held.keys.shape[2], head_dim = held.keys.shape[3];
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
                         k, v, held,
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
