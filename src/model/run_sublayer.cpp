#include "model/run_sublayer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/mixers/mixer.h"

namespace llmq {
namespace {

// A tensor [rows, width] on each member. A single one costs no list, so that a decode step allocates nothing.
class OnEach {
 public:
  OnEach(std::span<const MemberBlock> members, DType dtype, std::int64_t rows, std::int64_t width) {
    const auto bytes =
        static_cast<std::size_t>(rows * width) * static_cast<std::size_t>(element_bytes(dtype));
    first_ = members.front().context->backend.allocate(bytes);
    view_ = first_.view(dtype, {rows, width});
    if (members.size() == 1) return;
    views_.push_back(view_);
    for (const MemberBlock& member : members.subspan(1)) {
      const Buffer& buffer = others_.emplace_back(member.context->backend.allocate(bytes));
      views_.push_back(buffer.view(dtype, {rows, width}));
    }
  }
  std::span<const TensorView> views() const {
    return views_.empty() ? std::span(&view_, 1) : std::span<const TensorView>(views_);
  }
  const TensorView& operator[](std::size_t member) const { return views()[member]; }

 private:
  Buffer first_;
  TensorView view_;
  std::vector<Buffer> others_;
  std::vector<TensorView> views_;
};

class SublayerRun {
 public:
  SublayerRun(std::span<const MemberBlock> members, int block, std::size_t part, const BatchRows& rows,
              Exchange& exchange)
      : members_(members),
        number_(block),
        place_(part),
        rows_(rows),
        exchange_(exchange),
        any_(*members.front().context),
        // Every member's ModelSpec has the same structure, but for the shares of what is divided.
        block_(any_.spec.blocks.at(static_cast<std::size_t>(block))),
        part_(block_.sublayers.at(part)),
        dtype_(activation_dtype(any_.compute)) {}

  void whole() {
    if (part_.joins_next) return;
    const std::int64_t count = members_.front().hidden.rows();
    if (part_.has_pages() || part_.has_state()) return rows(0, count);  // its rows see one another
    for_row_chunks(any_.chunks, count, row_floats() * many(),
                   [&](std::int64_t first, std::int64_t n) { rows(first, n); });
  }

  bool tapped(Tap& tap) {
    const std::int64_t count = members_.front().hidden.rows();
    const SiteId input = part_.sites.front();
    const TensorView x = tap.place(block_.at(input), input, count);
    before(0, 0, count, x);
    if (tap.at(input, x) == Tap::Flow::kStop) return false;
    if (!output_of(part_.mixer))
      fail(ErrorKind::kInternal, "{} has a mixture of experts: only what it reads is a site of all rows",
           block_.prefix);
    // A mixer beside another has the last site, and the first mixer those before it.
    const auto behind = std::span(part_.sites).subspan(1);
    const std::size_t own_sites = behind.size() - (part_.beside ? 1 : 0);
    std::vector<TensorView> inner;
    const auto passes = [&](const MixerSpec& kind, std::span<const SiteId> sites) {
      const MixerRun run = run_of(0, 0);
      return std::visit(
          [&](const auto& mixer) { return run_tapped(run, mixer, x, sites, tap, inner.emplace_back()); },
          kind);
    };
    if (!passes(part_.mixer, behind.first(own_sites))) return false;
    if (part_.beside && !passes(*part_.beside, behind.subspan(own_sites))) return false;
    if (part_.joins_next) return true;
    const std::vector<LinearId> outputs = part_.outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) add_output(outputs[i], {&inner[i], 1}, 0);
    return true;
  }

  void finish(const TensorView& inner) {
    if (!part_.joins_next) add_output(output_of(part_.mixer).value(), {&inner, 1}, 0);
  }

 private:
  // hidden rows [first, ...) += residual_scale * after(linear(inner)).
  void add_output(LinearId linear, std::span<const TensorView> inner, std::int64_t first) {
    const std::int64_t width = any_.spec.hidden_size;
    for_fitting_rows(any_.chunks, any_.fitting.get(), inner.front().rows(), width,
                     [&](std::int64_t from, std::int64_t count) {
                       const OnEach own(members_, DType::kF32, count, width / many());
                       for (std::size_t i = 0; i < members_.size(); ++i)
                         output(i, linear, first + from, inner[i].row_slice(from, count), own[i]);
                       if (members_.size() == 1) return add(own, first + from, count);
                       const OnEach whole(members_, DType::kF32, count, width);
                       gather(own, whole);
                       add(whole, first + from, count);
                     });
  }

  // With those of a sublayer that runs within.
  std::int64_t row_floats() const {
    const std::int64_t joined =
        part_.joined ? block_.sublayers[place_ - 1].row_floats() + 3 * any_.spec.hidden_size : 0;
    return own(0).row_floats() + joined;
  }
  std::int64_t many() const { return static_cast<std::int64_t>(members_.size()); }
  Backend& backend(std::size_t i) const { return members_[i].context->backend; }
  // The sublayer as member i has it.
  const SublayerSpec& own(std::size_t i) const {
    return members_[i].context->spec.blocks[static_cast<std::size_t>(number_)].sublayers[place_];
  }
  void gather(const OnEach& parts, const OnEach& wholes) {
    std::vector<Backend*> backends;
    for (const MemberBlock& member : members_) backends.push_back(&member.context->backend);
    exchange_.gather(backends, parts.views(), wholes.views());
  }

  void before(std::size_t i, std::int64_t first, std::int64_t count, const TensorView& x) {
    run_before(backend(i), block_, *members_[i].weights, part_, members_[i].hidden.row_slice(first, count),
               x);
  }

  // `kind`: as member i has it.
  void mix(std::size_t i, const MixerSpec& kind, std::int64_t first, const TensorView& x,
           const TensorView& inner) {
    const MixerRun run = run_of(i, first);
    std::visit([&](const auto& mixer) { run_mixer(run, mixer, x, inner); }, kind);
  }
  MixerRun run_of(std::size_t i, std::int64_t first) const {
    const MemberBlock& member = members_[i];
    return {*member.context, *member.weights, rows_,   member.pages,
            member.hidden,   member.embedded, number_, first};
  }

  // y F32 += what this sublayer, which joins the next, gives for rows [first, first + y.rows()): a block with
  // such sublayers is on one member (model/divided_block.h).
  void join(const TensorView& y, std::int64_t first) {
    const std::int64_t count = y.rows();
    const OnEach given(members_, DType::kF32, count, y.cols());
    const OnEach inner(members_, dtype_, count, inner_width_of(part_.mixer));
    {
      const OnEach x(members_, dtype_, count, y.cols());
      before(0, first, count, x[0]);
      mix(0, part_.mixer, first, x[0], inner[0]);
    }
    output(0, output_of(part_.mixer).value(), first, inner[0], given[0]);
    after(0, part_.after, given[0]);
    backend(0).add(y, given[0], 1);
  }

  // The mixer gives what is added; a sublayer of this kind is on one member (model/divided_block.h).
  void mixed_rows(std::int64_t first, std::int64_t count) {
    const OnEach y(members_, DType::kF32, count, any_.spec.hidden_size);
    {
      const OnEach x(members_, dtype_, count, any_.spec.hidden_size);
      before(0, first, count, x[0]);
      mix(0, part_.mixer, first, x[0], y[0]);
    }
    add(y, first, count);
  }

  void rows(std::int64_t first, std::int64_t count) {
    if (!output_of(part_.mixer)) return mixed_rows(first, count);
    std::optional<OnEach> x(std::in_place, members_, dtype_, count, any_.spec.hidden_size);
    for (std::size_t i = 0; i < members_.size(); ++i) before(i, first, count, (*x)[i]);
    {
      const OnEach inner(members_, dtype_, count, inner_width_of(own(0).mixer));
      for (std::size_t i = 0; i < members_.size(); ++i) mix(i, own(i).mixer, first, (*x)[i], inner[i]);
      if (!part_.beside) x.reset();
      add_gathered(output_of(part_.mixer).value(), inner, first, count);
    }
    if (part_.beside) add_beside(*x, first, count);
  }

  // What stands beside the mixer reads x, which was made before the residual stream grew.
  void add_beside(const OnEach& x, std::int64_t first, std::int64_t count) {
    const std::int64_t width = inner_width_of(*own(0).beside), floats = row_floats_of(*own(0).beside);
    for_row_chunks(any_.chunks, count, floats * many(), [&](std::int64_t from, std::int64_t n) {
      const OnEach inner(members_, dtype_, n, width);
      for (std::size_t i = 0; i < members_.size(); ++i)
        mix(i, *own(i).beside, first + from, x[i].row_slice(from, n), inner[i]);
      add_gathered(output_of(*part_.beside).value(), inner, first + from, n);
    });
  }

  void add_gathered(LinearId linear, const OnEach& inner, std::int64_t first, std::int64_t count) {
    if (members_.size() == 1) return add_output(linear, inner.views(), first);
    const OnEach whole(members_, dtype_, count, inner[0].cols() * many());
    gather(inner, whole);
    add_output(linear, whole.views(), first);
  }

  void output(std::size_t i, LinearId linear, std::int64_t first, const TensorView& inner,
              const TensorView& y) {
    const PartOutput output{{linear, 0}, y};
    run_linears(backend(i), *members_[i].weights, inner, {&output, 1}, run_of(i, first).adapters());
  }

  void after(std::size_t i, const std::optional<NormId>& norm, const TensorView& y) {
    if (norm) run_norm(backend(i), block_.at(*norm), members_[i].weights->at(*norm), y, y);
  }

  // Of the mixer that gives it last.
  void add(const OnEach& y, std::int64_t first, std::int64_t count) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const TensorView hidden = members_[i].hidden.row_slice(first, count);
      after(i, part_.after, y[i]);
      if (part_.joined) SublayerRun(members_, number_, place_ - 1, rows_, exchange_).join(y[i], first);
      after(i, part_.joint, y[i]);
      backend(i).add(hidden, y[i], part_.residual_scale);
      if (part_.factor) scale(i, hidden, y[i]);
    }
  }

  // hidden *= the sublayer's factor, by way of `rows`.
  void scale(std::size_t i, const TensorView& hidden, const TensorView& rows) {
    backend(i).clear(rows);
    backend(i).add(rows, hidden, members_[i].weights->on_host(*part_.factor).front());
    backend(i).convert(hidden, rows);
  }

  std::span<const MemberBlock> members_;
  int number_;
  std::size_t place_;
  const BatchRows& rows_;
  Exchange& exchange_;
  const ForwardContext& any_;
  const BlockSpec& block_;
  const SublayerSpec& part_;
  DType dtype_;
};

}  // namespace

void run_linears(Backend& backend, const BlockWeights& weights, const TensorView& x,
                 std::span<const PartOutput> outputs, const RowAdapters& adapters) {
  std::array<LinearCall, kMostParts> calls;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const LinearPart& linear = weights.at(outputs[i].part);
    calls.at(i) = {outputs[i].y, x, linear.weight.get(), vector_view(linear.bias)};
  }
  backend.linears(std::span<const LinearCall>(calls).first(outputs.size()));
  add_adapters(backend, adapters, x, outputs);
}

void run_norm(Backend& backend, const NormSpec& spec, const NormWeights& weights, const TensorView& x,
              const TensorView& y) {
  if (spec.kind == NormSpec::Kind::kRms)
    backend.rms_norm(y, x, vector_view(weights.gain), spec.eps);
  else
    backend.layer_norm(y, x,
                       weights.gain.view(DType::kF32, {std::max<std::int64_t>(spec.heads, 1), spec.width}),
                       vector_view(weights.bias), spec.eps);
}

void run_before(Backend& backend, const BlockSpec& block, const BlockWeights& weights,
                const SublayerSpec& part, const TensorView& h, const TensorView& x) {
  if (part.before)
    run_norm(backend, block.at(*part.before), weights.at(*part.before), h, x);
  else
    backend.convert(x, h);
}

void run_sublayer(std::span<const MemberBlock> members, int block, std::size_t part, const BatchRows& rows,
                  Exchange& exchange) {
  SublayerRun(members, block, part, rows, exchange).whole();
}

bool run_sublayer(const MemberBlock& member, int block, std::size_t part, const BatchRows& rows, Tap& tap) {
  Exchange alone;
  return SublayerRun({&member, 1}, block, part, rows, alone).tapped(tap);
}

void finish_sublayer(const MemberBlock& member, int block, std::size_t part, const BatchRows& rows,
                     const TensorView& inner) {
  Exchange alone;
  SublayerRun({&member, 1}, block, part, rows, alone).finish(inner);
}

void run_block(std::span<const MemberBlock> members, int block, const BatchRows& rows, Exchange& exchange) {
  const BlockSpec& spec = members.front().context->spec.blocks.at(static_cast<std::size_t>(block));
  for (std::size_t part = 0; part < spec.sublayers.size(); ++part)
    run_sublayer(members, block, part, rows, exchange);
}

void run_block(const MemberBlock& member, int block, const BatchRows& rows) {
  Exchange alone;
  run_block({&member, 1}, block, rows, alone);
}

}  // namespace llmq
