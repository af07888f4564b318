// The stages of a block over a backend. Wide intermediates (q/k/v, gate/up, a linear's output before it is
// added) live only for a chunk of rows; by row invariance the chunk size changes no result, only memory
// (RowChunks; FittingRows where a device has too little).
#include "model/decoder_block.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace llmq {
namespace {

Buffer upload_floats(Backend& backend, std::span<const float> values) {
  Buffer buffer = backend.allocate(values.size_bytes());
  backend.upload(buffer.view(DType::kF32, {static_cast<std::int64_t>(values.size())}), values.data());
  return buffer;
}

// One row of values; empty when the buffer is.
TensorView vector_view(const Buffer& buffer) {
  if (buffer.bytes() == 0) return {};
  return buffer.view(DType::kF32, {static_cast<std::int64_t>(buffer.bytes() / sizeof(float))});
}

LinearCall call_of(const BlockLinear& linear, const TensorView& x, const TensorView& y) {
  return {y, x, linear.weight.get(), vector_view(linear.bias)};
}

// The part of each sequence inside rows [first, first + count), renumbered from 0.
std::vector<SequenceRows> clip_sequences(const std::vector<SequenceRows>& sequences, std::int64_t first,
                                         std::int64_t count) {
  std::vector<SequenceRows> clipped;
  for (const SequenceRows& sequence : sequences) {
    const std::int64_t begin = std::max(sequence.first_row, first);
    const std::int64_t end = std::min(sequence.first_row + sequence.rows, first + count);
    if (begin >= end) continue;
    clipped.push_back(
        {begin - first, end - begin, sequence.context + begin - sequence.first_row, sequence.block_table});
  }
  return clipped;
}

// norm(q) and rope(norm(q)), in place; x F32 [rows, heads, head_dim].
void normalize_and_rotate(const ForwardContext& context, const Buffer& norm, const TensorView& x,
                          std::span<const std::int32_t> positions) {
  const std::int64_t head_dim = context.spec.head_dim;
  if (norm.bytes() != 0) {
    const TensorView heads(x.pointer, DType::kF32, {x.rows(), head_dim}, x.device);
    context.backend.rms_norm(heads, heads, vector_view(norm), context.spec.rms_norm_eps);
  }
  const Shape table{context.positions, head_dim / 2};
  context.backend.rope(x, positions, context.cosines.view(DType::kF32, table),
                       context.sines.view(DType::kF32, table));
}

}  // namespace

ForwardContext make_forward_context(const ModelSpec& spec, Backend& backend, Compute compute,
                                    std::int64_t positions) {
  const RopeTable table = make_rope_table(spec, positions);
  return ForwardContext{spec,
                        backend,
                        compute,
                        upload_floats(backend, table.cosines),
                        upload_floats(backend, table.sines),
                        positions,
                        row_chunks(backend.scratch_bytes())};
}

namespace {

void check_shape(const LinearSource& source, const LinearSpec& linear, const QuantizedMatrix& matrix) {
  if (matrix.out_features == linear.out_features && matrix.in_features == linear.in_features) return;
  fail(ErrorKind::kBadInput, {fmt::format("has shape [{}, {}], expected [{}, {}]", matrix.out_features,
                                          matrix.in_features, linear.out_features, linear.in_features),
                              source.checkpoint().path().string(),
                              linear.module + ".weight",
                              {}});
}

}  // namespace

std::unique_ptr<PreparedWeight> prepare_codes(Backend& backend, Compute compute,
                                              const QuantizedMatrix& matrix) {
  if (backend.keeps_codes(matrix, compute)) return backend.prepare_quantized(matrix, compute);
  ZeroedNumbers<float> values(matrix.codes.size());
  dequantize(matrix, values, backend.workers());
  return backend.prepare(
      TensorView(values.data(), DType::kF32, Shape{matrix.out_features, matrix.in_features}), compute);
}

namespace {

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
  const bool codes = packed == PackedWeights::kCodes;
  read.stored = source.stored(linear, allow_nonfinite);
  if (!read.stored && source.is_packed(linear.module) &&
      (codes || source.packed_shape(linear.module).scheme.activation_bits == 8)) {
    source.check_packed(linear);
    read.codes = source.quantized(linear.module);
  } else if (!read.stored && codes && source.checkpoint().is_gguf()) {
    read.codes = source.block_codes(linear.module + ".weight");
    if (read.codes) check_shape(source, linear, *read.codes);
  }
  if (!read.stored && !read.codes) read.values = source.weight(linear, pool, allow_nonfinite);
  if (std::optional<std::vector<float>> bias = source.bias(linear, allow_nonfinite))
    read.bias = std::move(*bias);
  return read;
}

std::unique_ptr<PreparedWeight> prepare_matrix(Backend& backend, Compute compute,
                                               const QuantizedMatrix& matrix) {
  return matrix.scheme.activation_bits == 8 ? backend.prepare_quantized(matrix, compute)
                                            : prepare_codes(backend, compute, matrix);
}

// Output rows [first, first + count).
std::unique_ptr<PreparedWeight> prepare_rows(Backend& backend, Compute compute, const LinearSpec& linear,
                                             const ReadLinear& read, std::int64_t first, std::int64_t count) {
  if (read.codes && count == linear.out_features) return prepare_matrix(backend, compute, *read.codes);
  if (read.codes) return prepare_matrix(backend, compute, row_slice(*read.codes, first, count));
  const TensorView whole = read.stored ? read.stored->view
                                       : TensorView(read.values.data(), DType::kF32,
                                                    Shape{linear.out_features, linear.in_features});
  return backend.prepare(whole.row_slice(first, count), compute);
}

}  // namespace

std::vector<BlockLinear> prepare_linear_shares(std::span<Backend* const> members, Compute compute,
                                               const LinearSource& source, const LinearSpec& linear,
                                               bool allow_nonfinite, PackedWeights packed) {
  const ReadLinear read = read_linear(source, linear, allow_nonfinite, packed, members.front()->workers());
  const std::int64_t count = linear.out_features / static_cast<std::int64_t>(members.size());
  std::vector<BlockLinear> shares;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const std::int64_t first = static_cast<std::int64_t>(member) * count;
    BlockLinear& share = shares.emplace_back();
    share.weight = prepare_rows(*members[member], compute, linear, read, first, count);
    if (!read.bias.empty())
      share.bias = upload_floats(
          *members[member],
          std::span(read.bias).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  }
  return shares;
}

BlockLinear prepare_linear(Backend& backend, Compute compute, const LinearSource& source,
                           const LinearSpec& linear, bool allow_nonfinite, PackedWeights packed) {
  Backend* const only = &backend;
  return std::move(
      prepare_linear_shares({&only, 1}, compute, source, linear, allow_nonfinite, packed).front());
}

Buffer load_bias(Backend& backend, const LinearSource& source, const LinearSpec& linear,
                 bool allow_nonfinite) {
  const std::optional<std::vector<float>> bias = source.bias(linear, allow_nonfinite);
  return bias ? upload_floats(backend, *bias) : Buffer();
}

std::vector<BlockWeights> load_block_shares(std::span<Backend* const> members, Compute compute,
                                            const LinearSource& source, const ModelSpec& spec, int block,
                                            bool allow_nonfinite, std::span<const LinearRole> roles,
                                            PackedWeights packed) {
  const BlockSpec& structure = spec.blocks.at(static_cast<std::size_t>(block));
  std::vector<BlockWeights> shares(members.size());
  for (const LinearRole role : roles) {
    std::vector<BlockLinear> linears =
        prepare_linear_shares(members, compute, source, structure.linear(role), allow_nonfinite, packed);
    for (std::size_t member = 0; member < members.size(); ++member)
      shares[member].linear(role) = std::move(linears[member]);
  }
  const auto load_norm = [&](const std::string& tensor, Buffer BlockWeights::*norm) {
    if (tensor.empty()) return;
    const std::vector<float> values = source.tensor(tensor, allow_nonfinite);
    for (std::size_t member = 0; member < members.size(); ++member)
      shares[member].*norm = upload_floats(*members[member], values);
  };
  load_norm(structure.input_norm, &BlockWeights::input_norm);
  load_norm(structure.post_attention_norm, &BlockWeights::post_attention_norm);
  load_norm(structure.query_norm, &BlockWeights::query_norm);
  load_norm(structure.key_norm, &BlockWeights::key_norm);
  return shares;
}

BlockWeights load_block(Backend& backend, Compute compute, const LinearSource& source, const ModelSpec& spec,
                        int block, bool allow_nonfinite, std::span<const LinearRole> roles,
                        PackedWeights packed) {
  Backend* const only = &backend;
  return std::move(
      load_block_shares({&only, 1}, compute, source, spec, block, allow_nonfinite, roles, packed).front());
}

void attention_input(const ForwardContext& context, const BlockWeights& weights, const TensorView& hidden,
                     const TensorView& x_attn) {
  context.backend.rms_norm(x_attn, hidden, vector_view(weights.input_norm), context.spec.rms_norm_eps);
}

void project(const ForwardContext& context, const BlockWeights& weights, const TensorView& x,
             std::span<const std::int32_t> positions, const TensorView& q, const TensorView& k,
             const TensorView& v, const RowAdapters& adapters) {
  const auto flat = [&](const TensorView& heads) {
    return TensorView(heads.pointer, DType::kF32, {x.rows(), heads.shape[1] * heads.shape[2]}, heads.device);
  };
  const LinearCall calls[] = {call_of(weights.linear(LinearRole::kQuery), x, flat(q)),
                              call_of(weights.linear(LinearRole::kKey), x, flat(k)),
                              call_of(weights.linear(LinearRole::kValue), x, flat(v))};
  context.backend.linears(calls);
  const AdaptedOutput outputs[] = {
      {LinearRole::kQuery, calls[0].y}, {LinearRole::kKey, calls[1].y}, {LinearRole::kValue, calls[2].y}};
  add_adapters(context.backend, adapters, x, outputs);
  normalize_and_rotate(context, weights.query_norm, q, positions);
  normalize_and_rotate(context, weights.key_norm, k, positions);
}

namespace {

// F32 [rows, heads, head_dim] of the device.
struct Heads {
  Buffer storage;
  TensorView view;
  Heads(Backend& backend, std::int64_t rows, std::int64_t heads, std::int64_t head_dim)
      : storage(backend.allocate(static_cast<std::size_t>(rows * heads * head_dim) * sizeof(float))),
        view(storage.view(DType::kF32, {rows, heads, head_dim})) {}
};

// Where a block's pages have a basis of their own, what is stored and asked goes into it, and what comes out
// of it back.
struct PageBasis {
  const ForwardContext& context;
  const KvBasis& basis;

  void enter(Heads& q, Heads& k, Heads& v) const {
    if (basis.empty()) return;
    replace(
        q, [&](const TensorView& changed) { change_basis(context.backend, changed, q.view, basis.queries); });
    replace(k,
            [&](const TensorView& changed) { change_basis(context.backend, changed, k.view, basis.keys); });
    replace(v,
            [&](const TensorView& changed) { mix_heads(context.backend, changed, v.view, *basis.mixing); });
  }

  // `out` [T, heads * head_dim] in place.
  void leave(const TensorView& out) const {
    if (basis.empty()) return;
    const ModelSpec& spec = context.spec;
    Heads wide(context.backend, out.rows(), spec.heads, spec.head_dim),
        back(context.backend, out.rows(), spec.heads, spec.head_dim);
    const auto flat = [&](const Heads& heads) { return heads.storage.view(DType::kF32, out.shape); };
    context.backend.convert(flat(wide), out);
    mix_heads(context.backend, back.view, wide.view, *basis.mixing);
    context.backend.convert(out, flat(back));
  }

 private:
  template <class Fill>
  void replace(Heads& x, const Fill& fill) const {
    Heads changed(context.backend, x.view.shape[0], x.view.shape[1], x.view.shape[2]);
    fill(changed.view);
    x = std::move(changed);
  }
};

}  // namespace

void attend(const ForwardContext& context, int block, const BlockWeights& weights, const TensorView& x_attn,
            const BatchRows& rows, const KvPages& pages, const TensorView& x_o) {
  const ModelSpec& spec = context.spec;
  const AttentionProblem problem{spec.heads,
                                 spec.kv_heads,
                                 spec.head_dim,
                                 1.0f / std::sqrt(static_cast<float>(spec.head_dim)),
                                 spec.blocks.at(static_cast<std::size_t>(block)).sliding_window,
                                 context.compute};
  const std::int64_t width = std::int64_t{spec.heads + 2 * spec.kv_heads} * spec.head_dim;
  const PageBasis basis{context, weights.kv_basis};
  // Later rows of a sequence never enter an earlier row's result, so keys of a chunk are stored just before
  // its queries run.
  for_fitting_rows(
      context.chunks, context.fitting.get(), x_attn.rows(), width,
      [&](std::int64_t first, std::int64_t count) {
        Heads q(context.backend, count, spec.heads, spec.head_dim),
            k(context.backend, count, spec.kv_heads, spec.head_dim),
            v(context.backend, count, spec.kv_heads, spec.head_dim);
        const auto from = static_cast<std::size_t>(first), many = static_cast<std::size_t>(count);
        project(context, weights, x_attn.row_slice(first, count),
                std::span(rows.positions).subspan(from, many), q.view, k.view, v.view,
                {rows.adapters, static_cast<std::size_t>(block), first, context.member});
        basis.enter(q, k, v);
        context.backend.store_kv(pages, k.view, v.view, std::span(rows.slots).subspan(from, many));
        const TensorView out = x_o.row_slice(first, count);
        if (count == x_attn.rows())
          context.backend.attention(out, q.view, pages, rows.sequences, problem);
        else
          context.backend.attention(out, q.view, pages, clip_sequences(rows.sequences, first, count),
                                    problem);
        basis.leave(out);
      });
}

void apply_linear(const ForwardContext& context, const BlockWeights& weights, LinearRole role,
                  const TensorView& x, const TensorView& y, const RowAdapters& adapters) {
  const BlockLinear& linear = weights.linear(role);
  context.backend.linear(y, x, *linear.weight, vector_view(linear.bias));
  const AdaptedOutput output{role, y};
  add_adapters(context.backend, adapters, x, std::span(&output, 1));
}

void add_linear(const ForwardContext& context, const BlockWeights& weights, LinearRole role,
                const TensorView& x, const TensorView& hidden, const RowAdapters& adapters) {
  for_fitting_rows(
      context.chunks, context.fitting.get(), x.rows(), hidden.cols(),
      [&](std::int64_t first, std::int64_t count) {
        const Buffer y =
            context.backend.allocate(static_cast<std::size_t>(count * hidden.cols()) * sizeof(float));
        const TensorView y_view = y.view(DType::kF32, {count, hidden.cols()});
        apply_linear(context, weights, role, x.row_slice(first, count), y_view, adapters.from(first));
        context.backend.add(hidden.row_slice(first, count), y_view);
      });
}

void mlp_input(const ForwardContext& context, const BlockWeights& weights, const TensorView& hidden,
               const TensorView& x_mlp) {
  context.backend.rms_norm(x_mlp, hidden, vector_view(weights.post_attention_norm),
                           context.spec.rms_norm_eps);
}

void gate(const ForwardContext& context, const BlockWeights& weights, const TensorView& x_mlp,
          const TensorView& x_down, const RowAdapters& adapters) {
  const std::int64_t width = context.spec.intermediate_size;
  const Activation activation = context.spec.silu ? Activation::kSilu : Activation::kGeluTanh;
  for_fitting_rows(
      context.chunks, context.fitting.get(), x_mlp.rows(), 2 * width,
      [&](std::int64_t first, std::int64_t count) {
        const std::size_t bytes = static_cast<std::size_t>(count * width) * sizeof(float);
        const Buffer gate_out = context.backend.allocate(bytes), up_out = context.backend.allocate(bytes);
        const TensorView gate_view = gate_out.view(DType::kF32, {count, width});
        const TensorView up_view = up_out.view(DType::kF32, {count, width});
        const TensorView x = x_mlp.row_slice(first, count);
        const LinearCall calls[] = {call_of(weights.linear(LinearRole::kGate), x, gate_view),
                                    call_of(weights.linear(LinearRole::kUp), x, up_view)};
        context.backend.linears(calls);
        const AdaptedOutput outputs[] = {{LinearRole::kGate, gate_view}, {LinearRole::kUp, up_view}};
        add_adapters(context.backend, adapters.from(first), x, outputs);
        context.backend.gated_activation(x_down.row_slice(first, count), gate_view, up_view, activation);
      });
}

void forward_block(const ForwardContext& context, int block, const BlockWeights& weights,
                   const BatchRows& rows, const KvPages& pages, const TensorView& hidden) {
  const ModelSpec& spec = context.spec;
  const DType dtype = activation_dtype(context.compute);
  const std::int64_t count = hidden.rows(), q_size = std::int64_t{spec.heads} * spec.head_dim;
  const RowAdapters adapters{rows.adapters, static_cast<std::size_t>(block), 0, context.member};
  const auto buffer = [&](std::int64_t n, std::int64_t width) {
    return context.backend.allocate(static_cast<std::size_t>(n * width) *
                                    static_cast<std::size_t>(element_bytes(dtype)));
  };
  {
    const Buffer x_attn = buffer(count, spec.hidden_size), x_o = buffer(count, q_size);
    const TensorView x_attn_view = x_attn.view(dtype, {count, spec.hidden_size}),
                     x_o_view = x_o.view(dtype, {count, q_size});
    attention_input(context, weights, hidden, x_attn_view);
    attend(context, block, weights, x_attn_view, rows, pages, x_o_view);
    add_linear(context, weights, LinearRole::kOutput, x_o_view, hidden, adapters);
  }
  for_row_chunks(context.chunks, count, 2 * spec.intermediate_size, [&](std::int64_t first, std::int64_t n) {
    const Buffer x_mlp = buffer(n, spec.hidden_size), x_down = buffer(n, spec.intermediate_size);
    const TensorView x_mlp_view = x_mlp.view(dtype, {n, spec.hidden_size});
    const TensorView x_down_view = x_down.view(dtype, {n, spec.intermediate_size});
    const TensorView part = hidden.row_slice(first, n);
    mlp_input(context, weights, part, x_mlp_view);
    gate(context, weights, x_mlp_view, x_down_view, adapters.from(first));
    add_linear(context, weights, LinearRole::kDown, x_down_view, part, adapters.from(first));
  });
}

}  // namespace llmq
