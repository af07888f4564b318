#include "model/adapters/prepared_adapter.h"

#include <algorithm>

#include "base/error.h"

namespace llmq {
namespace {

struct Floats {
  Buffer buffer;
  TensorView view;
};

Floats floats(Backend& backend, std::int64_t rows, std::int64_t width) {
  Floats made{backend.allocate(static_cast<std::size_t>(rows * width) * sizeof(float)), {}};
  made.view = made.buffer.view(DType::kF32, {rows, width});
  return made;
}

// The runs that meet rows [first, first + rows), counted from there.
std::vector<AdapterRun> clip(const RowAdapters& adapters, std::int64_t rows) {
  std::vector<AdapterRun> clipped;
  for (const AdapterRun& run : adapters.runs) {
    const std::int64_t begin = std::max(run.first - adapters.first, std::int64_t{0});
    const std::int64_t end = std::min(run.first + run.count - adapters.first, rows);
    if (begin < end) clipped.push_back({begin, end - begin, run.adapter});
  }
  return clipped;
}

// All runs are of one adapter.
void add_one(Backend& backend, const RowAdapters& adapters, std::span<const AdapterRun> runs,
             const TensorView& x, std::span<const PartOutput> outputs) {
  const auto& linears = runs.front().adapter->members.at(adapters.member).at(adapters.block);
  const auto linear_of = [&](const PartOutput& output) -> const PreparedAdapter::Linear* {
    const std::vector<PreparedAdapter::Linear>& parts = linears[static_cast<std::size_t>(output.part.linear)];
    return parts.empty() ? nullptr : &parts.at(output.part.part);
  };
  if (std::none_of(outputs.begin(), outputs.end(),
                   [&](const PartOutput& output) { return linear_of(output) != nullptr; }))
    return;
  std::vector<std::int32_t> rows;
  for (const AdapterRun& run : runs)
    for (std::int64_t row = run.first; row < run.first + run.count; ++row)
      rows.push_back(static_cast<std::int32_t>(row));
  const auto count = static_cast<std::int64_t>(rows.size());
  const Floats gathered = floats(backend, count, x.cols());
  backend.embed(gathered.view, x, rows);  // rows of a table, widened
  std::vector<Floats> narrow, wide;
  std::vector<LinearCall> down, up;
  for (const PartOutput& output : outputs) {
    const PreparedAdapter::Linear* linear = linear_of(output);
    narrow.push_back(linear ? floats(backend, count, linear->down->out_features) : Floats());
    wide.push_back(linear ? floats(backend, count, linear->up->out_features) : Floats());
    if (!linear) continue;
    down.push_back({narrow.back().view, gathered.view, linear->down.get(), {}});
    up.push_back({wide.back().view, narrow.back().view, linear->up.get(), {}});
  }
  backend.linears(down);
  backend.linears(up);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!linear_of(outputs[i])) continue;
    std::int64_t at = 0;
    for (const AdapterRun& run : runs) {
      backend.add(outputs[i].y.row_slice(run.first, run.count), wide[i].view.row_slice(at, run.count), 1);
      at += run.count;
    }
  }
}

}  // namespace

PreparedAdapter prepare_adapter(std::span<Backend* const> members, const LoraAdapter& adapter,
                                const ModelSpec& spec) {
  PreparedAdapter prepared;
  prepared.members.resize(members.size());
  for (std::size_t b = 0; b < spec.blocks.size(); ++b) {
    const BlockSpec& block = spec.blocks[b];
    for (auto& blocks : prepared.members) blocks.emplace_back(block.linears.size());
    for (const LinearSpec& linear : block.linears) {
      if (!adapter.changes(b, linear.id)) continue;
      if (block.sublayer_of(linear.site).outputs().empty())
        fail(ErrorKind::kUnsupported, {"no adapter of a mixture of experts is applied while a model runs",
                                       {},
                                       linear.module,
                                       "llmq merge writes it into the weights"});
      if (linear.absorbed)
        fail(ErrorKind::kUnsupported,
             {"no adapter of what attention over latents absorbs is applied while a model runs",
              {},
              linear.module,
              "llmq merge writes it into the weights"});
      LoraPair pair = adapter.pair(b, linear.id);
      for (float& value : pair.up) value *= pair.scale;
      const TensorView down(pair.down.data(), DType::kF32, {pair.rank, pair.in_features}),
          up(pair.up.data(), DType::kF32, {pair.out_features, pair.rank});
      each_share(linear, members.size(), [&](std::size_t member, std::int64_t first, std::int64_t count) {
        auto& parts = prepared.members[member][b][static_cast<std::size_t>(linear.id)];
        PreparedAdapter::Linear& made = parts.emplace_back();
        made.down = members[member]->prepare(down, Compute::kFloat32);
        made.up = members[member]->prepare(up.row_slice(first, count), Compute::kFloat32);
        prepared.bytes += made.down->bytes + made.up->bytes;
      });
    }
  }
  return prepared;
}

void add_adapters(Backend& backend, const RowAdapters& adapters, const TensorView& x,
                  std::span<const PartOutput> outputs) {
  if (adapters.runs.empty()) return;
  std::vector<AdapterRun> left = clip(adapters, x.rows());
  while (!left.empty()) {
    const PreparedAdapter* adapter = left.front().adapter;
    const auto others = std::stable_partition(left.begin(), left.end(),
                                              [&](const AdapterRun& run) { return run.adapter == adapter; });
    add_one(backend, adapters, {left.begin(), others}, x, outputs);
    left.erase(left.begin(), others);
  }
}

}  // namespace llmq
