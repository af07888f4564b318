// What an Engine holds: weights of every block on the backends that run it, the pages, and the rows of one
// step; and how a step's rows pass the blocks.
#pragma once
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/exchange.h"
#include "device/named_range.h"
#include "model/divided_block.h"
#include "model/embedding.h"
#include "model/mixers/mixer.h"
#include "model/output_head.h"
#include "model/run_sublayer.h"
#include "runtime/engine.h"
#include "runtime/kv_fitting.h"

namespace llmq {

// A tensor a backend reads by rows: the mapped file itself where the device is the host, else a copy on the
// device.
struct DeviceTable {
  Lease held;  // of a mapping whose bytes are there under a lease alone
  Buffer storage;
  TensorView view;
};
DeviceTable load_table(Backend& backend, const LinearSource& source, const std::string& name);

struct Engine::State {
  Checkpoint checkpoint;  // keeps the embedding's mapping alive
  std::shared_ptr<Backend> backend;
  Options options;
  ModelSpec spec, share;  // of the whole, and of what each member has
  std::vector<Backend*> members;
  std::vector<ForwardContext> contexts;  // of the members
  std::optional<ForwardContext> early_context;
  KvCache cache;
  std::vector<std::vector<BlockWeights>> blocks;  // by block, then by member
  DeviceTable embedding, position_table, block_table;
  std::unique_ptr<PreparedWeight> block_projection;
  NormWeights block_norm;
  NormWeights final_norm;
  std::unique_ptr<PreparedWeight> head;
  Buffer logits;                                          // grows to the largest asked for
  std::vector<std::unique_ptr<SequenceState>> snapshots;  // by place, once there was one
  // Of one step, kept so that the next allocates nothing.
  std::vector<BatchRows> rows;  // by page group: the same rows, by the pages of each
  std::vector<std::vector<std::vector<std::int32_t>>>
      in_pool;  // by page group and step, beside the first pool
  std::vector<std::int32_t> ids;
  std::vector<MemberBlock> in_block;
  TensorView embedded;  // of this step's rows, where blocks have an embedding
  Exchange exchange;
  std::vector<float> host_logits;  // where the device is not the host
  std::vector<Served> served;
  std::int64_t reordered = 0;  // packed linears that run dequantized because of the order of their columns
  std::int64_t dequantized = 0;
  std::shared_ptr<const PreparedAdapter> usual_adapter;
  std::uint64_t adapters = 0;  // that were prepared so far

  State(const Checkpoint& from, std::shared_ptr<Backend> on, const Options& with)
      : checkpoint(from),
        backend(std::move(on)),
        options(with),
        spec(ModelSpec::read(from)),
        share(member_spec(spec, static_cast<std::int64_t>(1 + with.further_members.size()))),
        members(members_of(*backend, with)),
        contexts(contexts_of(share, members, with)),
        early_context(early_context_of(spec, with)),
        cache(share, backends(), with.kv.value_or(KvType{activation_dtype(with.compute)}), with.kv_tokens,
              with.block_size, with.prefix_caching && (share.state_bytes() == 0 || room_for_snapshots() > 0),
              with.kv_window_tokens),
        rows(cache.blocks().groups()),
        in_pool(cache.blocks().groups()) {
    if (options.kv && options.kv->packed && early_context)
      fail(ErrorKind::kUnsupported, {"keys and values of few bits are kept on one device only",
                                     {},
                                     "--kv-cache-dtype",
                                     "leave it out, or leave --gpu-layers out"});
    if (share.state_bytes() > 0) cache.blocks().keep_snapshots(room_for_snapshots(), with.snapshots_apart);
    const LinearSource source = LinearSource::open(checkpoint);
    for (std::size_t block = 0; block < spec.blocks.size(); ++block)
      blocks.push_back(load_block_shares(backends_of(block), options.compute, source, spec.blocks[block],
                                         false, PackedWeights::kCodes));
    for (std::size_t block = 0; block < spec.blocks.size(); ++block)
      for (const LinearSpec& linear : spec.blocks[block].linears) count_served(source, linear, blocks[block]);
    embedding = load_table(*backend, source, spec.embedding.tensor);
    if (!spec.embedding.positions.empty())
      position_table = load_table(*backend, source, spec.embedding.positions);
    if (spec.block_embedding) load_block_embedding(source);
    final_norm = load_norm(*backend, source, spec.final_norm);
    head = prepare_head(*backend, options.compute, source, spec, options.head);
    prepare_packed_pages(source);
    served.push_back({options.head == HeadWeight::kInt8 ? "head, rounded to 8 bits" : "head", head->kernel, 1,
                      head->bytes});
  }

  std::int32_t room_for_snapshots() const {
    return static_cast<std::int32_t>(
        std::min<std::uint64_t>(options.snapshot_bytes / share.state_bytes(), INT32_MAX));
  }

  // On one device; member_spec() refuses several.
  void load_block_embedding(const LinearSource& source) {
    if (early_context)
      fail(ErrorKind::kUnsupported, {"a model with an embedding of each block is on one device only",
                                     {},
                                     "--gpu-layers",
                                     "leave it out"});
    const BlockEmbeddingSpec& own = *spec.block_embedding;
    block_table = load_table(*backend, source, own.table);
    const StoredTensor& weight = source.finite(own.weight());
    const std::vector<float> values = checkpoint.read_float32(weight);
    block_projection =
        backend->prepare(TensorView(values.data(), DType::kF32, weight.view.shape), options.compute);
    block_norm = load_norm(*backend, source, own.norm);
  }
  // What the blocks have of it, of the residual stream before the first; empty: the model has none.
  Buffer embed_blocks(const TensorView& hidden) {
    if (!spec.block_embedding) return {};
    const std::int64_t width = static_cast<std::int64_t>(spec.blocks.size()) * spec.block_embedding->width;
    Buffer storage = backend->allocate(static_cast<std::size_t>(hidden.rows() * width) * sizeof(float));
    embedded = storage.view(DType::kF32, {hidden.rows(), width});
    llmq::embed_blocks(*backend, options.compute, *spec.block_embedding,
                       {block_table.view, *block_projection, block_norm}, ids, hidden, embedded);
    return storage;
  }

  // The block's columns; empty where there are none.
  TensorView embedded_of(std::size_t block) const {
    if (!spec.block_embedding) return {};
    TensorView own = embedded;
    own.row_stride = embedded.cols();
    own.shape = Shape{embedded.rows(), spec.block_embedding->width};
    own.pointer = own.as<float>() + static_cast<std::int64_t>(block) * spec.block_embedding->width;
    return own;
  }

  static std::vector<Backend*> members_of(Backend& first, const Options& options) {
    if (options.early.count > 0 && !options.further_members.empty())
      fail(ErrorKind::kUnsupported, {"a model is divided over devices as a whole, not in part",
                                     {},
                                     "--tensor-parallel-size",
                                     "leave it out, or leave --gpu-layers out"});
    std::vector<Backend*> all = {&first};
    for (const std::shared_ptr<Backend>& member : options.further_members) all.push_back(member.get());
    return all;
  }
  static std::vector<ForwardContext> contexts_of(const ModelSpec& share, std::span<Backend* const> members,
                                                 const Options& options) {
    std::vector<ForwardContext> contexts;
    for (Backend* const member : members) {
      contexts.push_back(make_forward_context(share, *member, options.compute, options.max_context));
      contexts.back().member = contexts.size() - 1;
    }
    return contexts;
  }
  static std::optional<ForwardContext> early_context_of(const ModelSpec& spec, const Options& options) {
    if (options.early.count == 0) return std::nullopt;
    if (options.early.count < 0 || static_cast<std::size_t>(options.early.count) > spec.blocks.size())
      fail(ErrorKind::kInternal, "{} early blocks of {}", options.early.count, spec.blocks.size());
    return make_forward_context(spec, *options.early.backend, options.compute, options.max_context);
  }
  std::span<const ForwardContext> contexts_of_block(std::size_t block) const {
    if (block < static_cast<std::size_t>(options.early.count)) return {&*early_context, 1};
    return contexts;
  }
  std::vector<Backend*> backends_of(std::size_t block) const {
    std::vector<Backend*> all;
    for (const ForwardContext& context : contexts_of_block(block)) all.push_back(&context.backend);
    return all;
  }
  std::vector<Backend*> backends() const {
    std::vector<Backend*> all;
    for (std::size_t block = 0; block < spec.blocks.size(); ++block)
      for (Backend* const one : backends_of(block)) all.push_back(one);
    return all;
  }

  // `hidden` of every member of these blocks.
  void run(std::size_t first, std::size_t end, std::span<const TensorView> hidden) {
    for (std::size_t block = first; block < end; ++block) {
      const std::span<const ForwardContext> context = contexts_of_block(block);
      const NamedRange range(context.front().backend, "block " + std::to_string(block));
      in_block.clear();
      for (std::size_t i = 0; i < context.size(); ++i)
        in_block.push_back({&context[i], &blocks[block][i], cache.pages(static_cast<int>(block), i),
                            hidden[i], embedded_of(block)});
      run_block(in_block, static_cast<int>(block), rows[cache.group_of(block)], exchange);
    }
  }
  void run_early(const TensorView& hidden) {
    Backend& there = early_context->backend;
    const Buffer copy = there.allocate(hidden.bytes());
    const TensorView moved = copy.view(DType::kF32, hidden.shape);
    exchange.copy(*backend, hidden, there, moved);
    run(0, static_cast<std::size_t>(options.early.count), {&moved, 1});
    exchange.copy(there, moved, *backend, hidden);
  }
  // What the first member has at `hidden`, and copies of it for the others.
  struct OnMembers {
    std::vector<Buffer> copies;
    std::vector<TensorView> views;
  };
  OnMembers on_members(const TensorView& hidden) {
    OnMembers all{{}, {hidden}};
    for (std::size_t i = 1; i < members.size(); ++i) {
      const Buffer& copy = all.copies.emplace_back(members[i]->allocate(hidden.bytes()));
      all.views.push_back(copy.view(hidden.dtype, hidden.shape));
      exchange.copy(*backend, hidden, *members[i], all.views.back());
    }
    return all;
  }

  void run_rest(const TensorView& hidden) {
    const auto first = static_cast<std::size_t>(options.early.count);
    if (members.size() == 1) return run(first, blocks.size(), {&hidden, 1});
    run(first, blocks.size(), on_members(hidden).views);
  }

  // Why keys and values of few bits are not fitted to this model; null where they are.
  const char* why_not_fitted() const {
    if (spec.state_bytes() > 0)
      return "keys and values of few bits are not fitted in a model with gated delta nets";
    if (spec.shares_pages())
      return "keys and values of few bits are not fitted in a model whose blocks share pages";
    for (const BlockSpec& block : spec.blocks)
      if (block.latent_attention() != nullptr)
        return "latents of few bits are not fitted, and pages of this model hold latents";
    return nullptr;
  }
  void prepare_packed_pages(const LinearSource& source) {
    const std::optional<KvFormats> packed = options.kv ? options.kv->packed : std::nullopt;
    // Those of a checkpoint are of E4M3, whose largest number they make that of keys or values.
    if (packed == kKvFloat8 && source.kv_cache() == KvCacheType::kFloat8)
      for (std::size_t layer = 0; layer < blocks.size(); ++layer)
        if (spec.blocks[layer].pages.kv_heads > 0)
          cache.set_scales(static_cast<int>(layer),
                           source.tensor(kv_scale_name(spec.blocks[layer], "k_scale")).front(),
                           source.tensor(kv_scale_name(spec.blocks[layer], "v_scale")).front());
    if (!packed || options.kv_probe.empty()) return;
    if (const char* const why = why_not_fitted(); why != nullptr)
      fail(ErrorKind::kUnsupported, {why, {}, "--kv-cache-dtype", "leave it out, or take fp8"});
    const Shape shape{static_cast<std::int64_t>(options.kv_probe.size()), spec.hidden_size};
    const Buffer hidden = backend->allocate(static_cast<std::size_t>(shape.elements()) * sizeof(float));
    const TensorView view = hidden.view(DType::kF32, shape);
    std::vector<std::int32_t> positions(options.kv_probe.size());
    std::iota(positions.begin(), positions.end(), 0);
    embed(view, options.kv_probe, positions);
    fit_kv_bases(contexts, blocks, on_members(view).views, exchange);
  }

  // The residual stream before the first block.
  void embed(const TensorView& hidden, std::span<const std::int32_t> tokens,
             std::span<const std::int32_t> positions) {
    embed_rows(*backend, spec.embedding, embedding.view, position_table.view, tokens, positions, hidden);
  }

  void count_served(const LinearSource& source, const LinearSpec& linear,
                    std::span<const BlockWeights> shares) {
    const std::string& module = linear.module;
    const PreparedWeight& weight = *shares.front().at(linear.id).parts.front().weight;
    const bool packed = source.is_packed(module);
    std::string name;
    if (packed) {
      const PackedShape shape = source.packed_shape(module);
      name = shape.scheme.text();
      if (shape.scheme.activation_bits == 16 && !weight.keeps_codes) {
        ++dequantized;
        if (shape.column_groups) ++reordered;
      }
    } else {
      name = dtype_row(checkpoint.at(linear.weight.tensor).view.dtype).name;
    }
    const auto same = std::find_if(served.begin(), served.end(), [&](const Served& s) {
      return s.weights == name && s.kernel == weight.kernel;
    });
    Served& entry = same != served.end() ? *same : served.emplace_back(Served{name, weight.kernel, 0, 0});
    ++entry.linears;
    for (const BlockWeights& one : shares) entry.bytes += one.at(linear.id).bytes();
  }

  void check(const Step& step) const {
    const std::int64_t length = step.first + static_cast<std::int64_t>(step.tokens.size());
    if (length > options.max_context)
      fail(ErrorKind::kResource, "a sequence of {} positions exceeds the context of {}", length,
           options.max_context);
    if (spec.state_bytes() > 0 &&
        (step.state == nullptr || (step.first != 0 && step.state->length() != step.first)))
      fail(ErrorKind::kInternal, "a sequence goes on at position {}, where its recurrent state is not",
           step.first);
    for (const StateSave& save : step.saves)
      if (step.state == nullptr || save.position <= step.first || save.position > length)
        fail(ErrorKind::kInternal, "a step of positions {} to {} leaves no state of {}", step.first, length,
             save.position);
    if (step.tables.size() != rows.size())
      fail(ErrorKind::kInternal, "a sequence has {} tables for {} page groups", step.tables.size(),
           rows.size());
    for (const PageTable& table : step.tables)
      if (step.first < 0 || length > static_cast<std::int64_t>(table.blocks.size()) * options.block_size)
        fail(ErrorKind::kInternal, "{} positions do not stand in {} blocks of {}", length,
             table.blocks.size(), options.block_size);
    for (const std::int32_t id : step.tokens)
      if (id < 0 || id >= spec.vocab_size)
        fail(ErrorKind::kBadInput, "token id {} is outside the model's vocabulary of {}", id,
             spec.vocab_size);
  }

  // Where every step's rows stand.
  void place(std::span<const Step> steps) {
    ids.clear();
    for (const Step& step : steps) {
      check(step);
      ids.insert(ids.end(), step.tokens.begin(), step.tokens.end());
    }
    for (std::size_t group = 0; group < rows.size(); ++group) place(steps, group, rows[group]);
  }
  // Pages as their pool counts them.
  const std::vector<std::int32_t>& places_in_pool(const std::vector<std::int32_t>& pages, std::size_t group,
                                                  std::size_t step) {
    const std::int32_t begin = cache.blocks().begin_of(cache.blocks().pool_of(group));
    if (begin == 0) return pages;
    std::vector<std::int32_t>& own = in_pool[group][step];
    own.clear();
    for (const std::int32_t page : pages) own.push_back(page == kNoBlock ? kNoBlock : page - begin);
    return own;
  }
  void place(std::span<const Step> steps, std::size_t group, BatchRows& into) {
    into.positions.clear();
    into.slots.clear();
    into.sequences.clear();
    into.adapters.clear();
    into.states.clear();
    std::int64_t at = 0;
    if (in_pool[group].size() < steps.size()) in_pool[group].resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      const auto count = static_cast<std::int64_t>(step.tokens.size());
      const std::vector<std::int32_t>& table = places_in_pool(step.tables[group].blocks, group, i);
      if (const PreparedAdapter* adapter = step.adapter ? step.adapter : usual_adapter.get();
          adapter != nullptr && count > 0)
        into.adapters.push_back({at, count, adapter});
      into.sequences.push_back({at, count, step.first, table});
      if (step.state != nullptr) into.states.push_back(step.state);
      for (std::int64_t p = step.first; p < step.first + count; ++p) {
        into.positions.push_back(static_cast<std::int32_t>(p));
        const std::int64_t block = table[static_cast<std::size_t>(p / options.block_size)];
        into.slots.push_back(block * options.block_size + p % options.block_size);
      }
      at += count;
    }
  }
};

}  // namespace llmq
