#include "model/divided_block.h"

#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"

namespace llmq {
namespace {

// A tensor [rows, width] on each member.
struct OnEach {
  std::vector<Buffer> storage;
  std::vector<TensorView> views;
  OnEach(std::span<const MemberBlock> members, DType dtype, std::int64_t rows, std::int64_t width) {
    for (const MemberBlock& member : members) {
      const Buffer& buffer = storage.emplace_back(member.context->backend.allocate(
          static_cast<std::size_t>(rows * width) * static_cast<std::size_t>(element_bytes(dtype))));
      views.push_back(buffer.view(dtype, {rows, width}));
    }
  }
};

std::vector<Backend*> backends_of(std::span<const MemberBlock> members) {
  std::vector<Backend*> backends;
  for (const MemberBlock& member : members) backends.push_back(&member.context->backend);
  return backends;
}

// hidden rows [first, ...) += linear(x), of which each member computes its own columns.
void add_divided(std::span<const MemberBlock> members, int block, LinearRole role, const OnEach& x,
                 const BatchRows& rows, std::int64_t first, Exchange& exchange) {
  const std::vector<Backend*> backends = backends_of(members);
  const ForwardContext& any = *members.front().context;
  const std::int64_t width = any.spec.hidden_size,
                     own_width = width / static_cast<std::int64_t>(members.size());
  for_row_chunks(any.chunks, x.views.front().rows(), width, [&](std::int64_t from, std::int64_t count) {
    const OnEach own(members, DType::kF32, count, own_width), whole(members, DType::kF32, count, width);
    for (std::size_t i = 0; i < members.size(); ++i)
      apply_linear(
          *members[i].context, *members[i].weights, role, x.views[i].row_slice(from, count), own.views[i],
          {rows.adapters, static_cast<std::size_t>(block), first + from, members[i].context->member});
    exchange.gather(backends, own.views, whole.views);
    for (std::size_t i = 0; i < members.size(); ++i)
      backends[i]->add(members[i].hidden.row_slice(first + from, count), whole.views[i]);
  });
}

}  // namespace

ModelSpec member_spec(const ModelSpec& spec, std::int64_t members) {
  const std::pair<const char*, std::int64_t> divided[] = {{"attention heads", spec.heads},
                                                          {"KV heads", spec.kv_heads},
                                                          {"rows of gate and up", spec.intermediate_size},
                                                          {"rows of o and down", spec.hidden_size}};
  std::int64_t common = 0;
  for (const auto& part : divided) common = std::gcd(common, part.second);
  for (const auto& part : divided) {
    if (members >= 1 && part.second % members == 0) continue;
    std::string numbers;
    for (std::int64_t n = 1; n <= common; ++n)
      if (common % n == 0) numbers += (numbers.empty() ? "" : ", ") + std::to_string(n);
    fail(ErrorKind::kUsage, {fmt::format("the model's {} {} cannot be divided over {} devices", part.second,
                                         part.first, members),
                             {},
                             "--tensor-parallel-size",
                             "for this model use one of " + numbers});
  }
  ModelSpec share = spec;
  share.heads /= static_cast<int>(members);
  share.kv_heads /= static_cast<int>(members);
  share.intermediate_size /= members;
  for (BlockSpec& block : share.blocks)
    for (LinearSpec& linear : block.linears) linear.out_features /= members;
  return share;
}

void forward_members(std::span<const MemberBlock> members, int block, const BatchRows& rows,
                     Exchange& exchange) {
  const MemberBlock& first_member = members.front();
  if (members.size() == 1)
    return forward_block(*first_member.context, block, *first_member.weights, rows, first_member.pages,
                         first_member.hidden);
  const std::vector<Backend*> backends = backends_of(members);
  const ForwardContext& any = *first_member.context;
  const DType dtype = activation_dtype(any.compute);
  const auto many = static_cast<std::int64_t>(members.size());
  const std::int64_t count = first_member.hidden.rows(),
                     heads = std::int64_t{any.spec.heads} * any.spec.head_dim,
                     middle = any.spec.intermediate_size;
  {
    const OnEach own(members, dtype, count, heads), x_o(members, dtype, count, heads * many);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const MemberBlock& member = members[i];
      const Buffer x_attn = backends[i]->allocate(
          static_cast<std::size_t>(count * any.spec.hidden_size * element_bytes(dtype)));
      const TensorView view = x_attn.view(dtype, {count, any.spec.hidden_size});
      attention_input(*member.context, *member.weights, member.hidden, view);
      attend(*member.context, block, *member.weights, view, rows, member.pages, own.views[i]);
    }
    exchange.gather(backends, own.views, x_o.views);
    add_divided(members, block, LinearRole::kOutput, x_o, rows, 0, exchange);
  }
  for_row_chunks(any.chunks, count, 2 * middle * many, [&](std::int64_t first, std::int64_t n) {
    const OnEach x_mlp(members, dtype, n, any.spec.hidden_size), own(members, dtype, n, middle),
        x_down(members, dtype, n, middle * many);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const MemberBlock& member = members[i];
      mlp_input(*member.context, *member.weights, member.hidden.row_slice(first, n), x_mlp.views[i]);
      gate(*member.context, *member.weights, x_mlp.views[i], own.views[i],
           {rows.adapters, static_cast<std::size_t>(block), first, member.context->member});
    }
    exchange.gather(backends, own.views, x_down.views);
    add_divided(members, block, LinearRole::kDown, x_down, rows, first, exchange);
  });
}

}  // namespace llmq
