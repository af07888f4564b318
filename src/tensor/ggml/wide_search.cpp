// Better scales than ggml's for sum_i w_i (x_i - x'_i)^2, in the same blocks.
//
//   1. in each sub-block, the scale (and minimum) that fits it best alone: a grid of candidates, each with
//      the least-squares line through its codes; the best one is rounded and fitted again
//   2. blocks of 256: d (and m) and the integers of all sub-blocks together. From the integers nearest to
//      step 1's scales, and from ggml's, in turn: each sub-block takes the best of the integers beside its
//      own, judged by the error with the codes that they give; d and m follow by least squares over the
//      block, rounded to F16; until that stays
//   3. what would be stored is compared with ggml's block: the better one is kept
//
// Four sub-blocks stand side by side in vector lanes; only step 2's sums over a block, in double precision,
// cross them. Cost per number: about 3 vector operations for each of 64 to 80 candidates; K types 3 more for
// each of up to 90 steps. With a table (ggml_table.h) an operation of those three is 45.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "tensor/ggml_choice.h"
#include "tensor/ggml_lanes.h"
#include "tensor/ggml_table.h"

namespace llmq {
namespace {

// x' = scale * l + offset for integers l.
struct Line {
  Lanes scale = {}, offset = {};
};

// What codes may be, as integers around 0, and whether a line may leave 0.
struct IntegerCodes {
  Lanes low, high;
  bool offset, offset_below_zero;

  explicit IntegerCodes(const BlockLayout& layout)
      : low(all_lanes(static_cast<float>(
            layout.dtype == DType::kQ8_0 ? -127 : -layout.zero))),  // as ggml, without -128
        high(all_lanes(static_cast<float>(layout.top() - layout.zero))),
        offset(layout.has_minimum()),
        offset_below_zero(layout.elements == 256) {}

  Lanes nearest(Lanes scaled) const { return rounded(scaled, low, high); }
  static std::uint8_t code(float nearest, int zero) {
    return static_cast<std::uint8_t>(nearest + static_cast<float>(zero));
  }
};

// The values of a table in the place of integers.
struct TableCodes {
  Lanes low = all_lanes(kUnevenValues.front()), high = all_lanes(kUnevenValues.back());
  static constexpr bool offset = false, offset_below_zero = false;

  explicit TableCodes(const BlockLayout&) {}
  static Lanes nearest(Lanes scaled) { return table_values(scaled); }
  static std::uint8_t code(float nearest, int) { return table_code(nearest); }
};

// sums of w l, w l^2 and w x l over a sub-block
struct Moments {
  Lanes l = {}, ll = {}, xl = {};
};

Lanes guarded_inverse(Lanes scale) {
  const Lanes inverse = 1 / scale;
  return select((inverse >= -0x1p120f) & (inverse <= 0x1p120f), inverse, Lanes{});
}

// The grids. Edges, with a minimum: how far inside the range of the numbers the lowest and the highest code
// lie, as parts of it. Reaches, without: the code that the number of largest magnitude asks for, as a part of
// the lowest code and of its opposite; what is not there is clipped.
struct Grid {
  float first, step;
  int count;
  float at(int i) const { return first + step * static_cast<float>(i); }
};
constexpr Grid kEdges{-0.04f, 0.03f, 8}, kReaches{0.5f, 0.015f, 40};
constexpr int kFitsAgain = 3, kRounds = 5;

// The largest sub-block's integers start this far below the largest possible, so that they can move both
// ways.
constexpr float kHeadroom = 1.05f;

// Four sub-blocks and their weights.
template <class Codes>
class SubBlocks {
 public:
  SubBlocks(const BlockLayout& layout, const float* x, const float* weight)
      : runs_(x, weight, layout.sub_block), range_(layout) {
    for (std::size_t i = 0; i < runs_.size; ++i) {
      sum_w_ += runs_.weight[i];
      sum_x_ += runs_.weight[i] * runs_.x[i];
    }
  }

  // The best line found alone.
  Line fit() const {
    Lanes lowest = runs_.x[0], highest = runs_.x[0];
    for (std::size_t i = 1; i < runs_.size; ++i) {
      lowest = runs_.x[i] < lowest ? runs_.x[i] : lowest;
      highest = runs_.x[i] > highest ? runs_.x[i] : highest;
    }
    Line best;
    Lanes most = all_lanes(-1);
    const auto consider = [&](Line start) {
      const Moments sums = moments(start);
      const Line line = fitted(sums);
      const Lanes explained =
          line.scale * sums.xl + line.offset * sum_x_;  // of sum w x^2, as for any least-squares line
      const LaneMask better = explained > most;
      most = select(better, explained, most);
      best = {select(better, line.scale, best.scale), select(better, line.offset, best.offset)};
    };
    if (range_.offset) {
      if (range_.offset_below_zero) lowest = lowest > 0.f ? Lanes{} : lowest;
      const Lanes range = highest - lowest;
      for (int below = 0; below < kEdges.count; ++below)
        for (int above = 0; above < kEdges.count; ++above)
          consider({range * (1 - kEdges.at(below) - kEdges.at(above)) / range_.high,
                    lowest + kEdges.at(below) * range});
    } else {
      const Lanes extreme = -lowest > highest ? lowest : highest;
      for (int c = 0; c < kReaches.count; ++c)
        for (const float side : {1.f, -1.f})
          consider({extreme / (range_.low * (side * kReaches.at(c))), Lanes{}});
    }
    for (int round = 0; round < kFitsAgain; ++round) consider(best);
    return best;
  }

  Lanes code(std::size_t i, const Line& line, Lanes inverse) const {
    return range_.nearest((runs_.x[i] - line.offset) * inverse);
  }

  // With the codes that the line itself gives.
  Lanes error(const Line& line) const {
    const Lanes inverse = guarded_inverse(line.scale);
    Lanes sum = {};
    for (std::size_t i = 0; i < runs_.size; ++i) {
      const Lanes diff = line.scale * code(i, line, inverse) + line.offset - runs_.x[i];
      sum += runs_.weight[i] * diff * diff;
    }
    return sum;
  }

  Moments moments(const Line& line) const {
    const Lanes inverse = guarded_inverse(line.scale);
    Moments sums;
    for (std::size_t i = 0; i < runs_.size; ++i) {
      const Lanes l = code(i, line, inverse), wl = runs_.weight[i] * l;
      sums.l += wl;
      sums.ll += wl * l;
      sums.xl += wl * runs_.x[i];
    }
    return sums;
  }

  void write_codes(const Line& line, int zero, std::uint8_t* q) const {
    const Lanes inverse = guarded_inverse(line.scale);
    for (std::size_t i = 0; i < runs_.size; ++i) {
      const Lanes l = code(i, line, inverse);
      for (std::size_t lane = 0; lane < kLanes; ++lane) q[lane * runs_.size + i] = Codes::code(l[lane], zero);
    }
  }

  Lanes sum_w() const { return sum_w_; }
  Lanes sum_x() const { return sum_x_; }

 private:
  // The least-squares line through codes of these moments; 0 where there is none.
  Line fitted(const Moments& m) const {
    const Lanes through_zero = select(m.ll > 0.f, m.xl / m.ll, Lanes{});
    if (!range_.offset) return {through_zero, Lanes{}};
    const Lanes determinant = sum_w_ * m.ll - m.l * m.l;
    const Lanes scale = (sum_w_ * m.xl - sum_x_ * m.l) / determinant,
                offset = (m.ll * sum_x_ - m.l * m.xl) / determinant;
    LaneMask usable = determinant > 0.f;
    if (range_.offset_below_zero) usable &= offset <= 0.f;
    return {select(usable, scale, through_zero), select(usable, offset, Lanes{})};
  }

  RunLanes runs_;
  Codes range_;
  Lanes sum_w_ = {}, sum_x_ = {};
};

double stored_error(const BlockLayout& layout, const BlockFields& fields, const BlockInput& input) {
  std::array<float, 256> values;
  block_values(layout, fields, values.data());
  double sum = 0;
  for (int i = 0; i < layout.elements; ++i) {
    const double diff =
        static_cast<double>(values[static_cast<std::size_t>(i)]) - static_cast<double>(input.x[i]);
    sum += static_cast<double>(input.importance[i]) * diff * diff;
  }
  return sum;
}

// ---- K types

// d, m and the integers of a block's sub-blocks, as floats in lanes.
struct Units {
  float d = 0, m = 0;
  std::array<Lanes, 4> s{}, t{};
};

template <class Codes>
class SuperBlock {
 public:
  SuperBlock(const BlockLayout& layout, const BlockInput& input)
      : layout_(layout), groups_(static_cast<std::size_t>(layout.sub_blocks() / kLanes)) {
    const int step = kLanes * layout.sub_block;
    for (std::size_t g = 0; g < groups_; ++g) {
      const int first = static_cast<int>(g) * step;
      sub_blocks_[g].emplace(layout, input.x + first, input.importance + first);
    }
  }

  // The integers nearest to what each sub-block asks for alone.
  Units from_lines() const {
    Units units;
    std::array<Line, 4> lines;
    float extreme = 0, deepest = 0;
    for (std::size_t g = 0; g < groups_; ++g) {
      lines[g] = sub_blocks_[g]->fit();
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        if (std::fabs(lines[g].scale[lane]) > std::fabs(extreme)) extreme = lines[g].scale[lane];
        deepest = std::max(deepest, -lines[g].offset[lane]);
      }
    }
    const int furthest = layout_.scale_low < 0 ? layout_.scale_low : layout_.scale_high;
    units.d = half(kHeadroom * extreme / static_cast<float>(furthest));
    units.m = half(kHeadroom * deepest / static_cast<float>(layout_.scale_high));
    const Lanes per_d = guarded_inverse(all_lanes(units.d)), per_m = guarded_inverse(all_lanes(units.m));
    for (std::size_t g = 0; g < groups_; ++g) {
      units.s[g] = rounded(lines[g].scale * per_d, low(), high());
      units.t[g] = rounded(-lines[g].offset * per_m, Lanes{}, high());
    }
    return units;
  }

  Units from_fields(const BlockFields& fields) const {
    Units units{to_float(fields.d), to_float(fields.m)};
    for (std::size_t g = 0; g < groups_; ++g)
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        units.s[g][lane] = static_cast<float>(fields.s[g * kLanes + lane]);
        units.t[g][lane] = static_cast<float>(fields.t[g * kLanes + lane]);
      }
    return units;
  }

  BlockFields to_fields(const Units& units) const {
    BlockFields fields{to_float16(units.d), to_float16(units.m)};
    for (std::size_t g = 0; g < groups_; ++g) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        fields.s[g * kLanes + lane] = static_cast<int>(units.s[g][lane]);
        fields.t[g * kLanes + lane] = static_cast<int>(units.t[g][lane]);
      }
      const int first = static_cast<int>(g) * kLanes * layout_.sub_block;
      sub_blocks_[g]->write_codes(line(units, g), layout_.zero, fields.q.data() + first);
    }
    return fields;
  }

  // Integers and units in turn, until neither helps.
  Units settled(Units units) const {
    Units best;
    double least = INFINITY;
    for (int round = 0; round < kRounds; ++round) {
      const double error = step_integers(units);
      if (!(error < least)) break;
      least = error;
      best = units;
      refit(units);
    }
    return best;
  }

 private:
  static float half(float value) { return to_float(to_float16(value)); }
  Lanes low() const { return all_lanes(static_cast<float>(layout_.scale_low)); }
  Lanes high() const { return all_lanes(static_cast<float>(layout_.scale_high)); }
  Line line(const Units& units, std::size_t g) const {
    return {units.d * units.s[g], -(units.m * units.t[g])};
  }

  // Every sub-block takes the best of the integers up to one away. Returns the block's error.
  double step_integers(Units& units) const {
    double total = 0;
    const int reach = layout_.has_minimum() ? 1 : 0;
    for (std::size_t g = 0; g < groups_; ++g) {
      const Lanes s0 = units.s[g], t0 = units.t[g];
      Lanes least = all_lanes(INFINITY);
      for (int ds = -1; ds <= 1; ++ds)
        for (int dt = -reach; dt <= reach; ++dt) {
          const Lanes s = rounded(s0 + static_cast<float>(ds), low(), high()),
                      t = rounded(t0 + static_cast<float>(dt), Lanes{}, high());
          const Lanes error = sub_blocks_[g]->error({units.d * s, -(units.m * t)});
          const LaneMask better = error < least;
          least = select(better, error, least);
          units.s[g] = select(better, s, units.s[g]);
          units.t[g] = select(better, t, units.t[g]);
        }
      for (std::size_t lane = 0; lane < kLanes; ++lane) total += static_cast<double>(least[lane]);
    }
    return total;
  }

  // d and m that fit the codes and integers best:  d A - m B = P, d B - m C = Q.
  void refit(Units& units) const {
    double a = 0, b = 0, c = 0, p = 0, q = 0;
    for (std::size_t g = 0; g < groups_; ++g) {
      const Moments sums = sub_blocks_[g]->moments(line(units, g));
      const Lanes s = units.s[g], t = units.t[g];
      const Lanes la = s * s * sums.ll, lb = s * t * sums.l, lc = t * t * sub_blocks_[g]->sum_w(),
                  lp = s * sums.xl, lq = t * sub_blocks_[g]->sum_x();
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        a += static_cast<double>(la[lane]);
        b += static_cast<double>(lb[lane]);
        c += static_cast<double>(lc[lane]);
        p += static_cast<double>(lp[lane]);
        q += static_cast<double>(lq[lane]);
      }
    }
    if (!(a > 0)) return;
    double m = static_cast<double>(units.m);
    if (a * c - b * b > 1e-9 * a * c) m = std::max(0.0, (b * p - a * q) / (a * c - b * b));
    units.d = half(static_cast<float>((p + m * b) / a));
    units.m = half(static_cast<float>(m));
  }

  const BlockLayout& layout_;
  std::size_t groups_;
  std::array<std::optional<SubBlocks<Codes>>, 4> sub_blocks_;
};

template <class Codes>
void improve_k_block(const BlockLayout& layout, const BlockInput& input, BlockFields& fields) {
  const SuperBlock<Codes> block(layout, input);
  const BlockFields found[] = {block.to_fields(block.settled(block.from_lines())),
                               block.to_fields(block.settled(block.from_fields(fields)))};
  double least = stored_error(layout, fields, input);
  for (const BlockFields& candidate : found) {
    const double error = stored_error(layout, candidate, input);
    if (error < least && std::isfinite(to_float(candidate.d)) && std::isfinite(to_float(candidate.m))) {
      least = error;
      fields = candidate;
    }
  }
}

// ---- blocks of 32: one line each

template <class Codes>
void improve_plain_blocks(const BlockLayout& layout, const BlockInput& first, int count,
                          BlockFields* fields) {
  std::array<float, std::size_t{32} * kLanes> x{}, weight{};
  const std::size_t size = 32 * static_cast<std::size_t>(count);
  std::copy_n(first.x, size, x.begin());
  std::copy_n(first.importance, size, weight.begin());
  const SubBlocks<Codes> blocks(layout, x.data(), weight.data());
  Line line = blocks.fit();
  std::array<BlockFields, kLanes> found;
  for (std::size_t k = 0; k < kLanes; ++k) {
    found[k].d = to_float16(line.scale[k]);
    found[k].m = to_float16(line.offset[k]);
    found[k].s[0] = 1;
    found[k].t[0] = -1;
    line.scale[k] = to_float(found[k].d);
    line.offset[k] = to_float(found[k].m);
  }
  std::array<std::uint8_t, std::size_t{32} * kLanes> q;
  blocks.write_codes(line, layout.zero, q.data());
  for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
    std::copy_n(q.data() + 32 * k, 32, found[k].q.data());
    const BlockInput input{x.data() + 32 * k, weight.data() + 32 * k, first.mean_square};
    fields[k].s[0] = 1;
    fields[k].t[0] = -1;
    if (stored_error(layout, found[k], input) < stored_error(layout, fields[k], input)) fields[k] = found[k];
  }
}

template <class Codes>
void improve_with(const BlockLayout& layout, const BlockInput& first, int count, BlockFields* fields) {
  if (layout.elements == 32) return improve_plain_blocks<Codes>(layout, first, count, fields);
  for (int k = 0; k < count; ++k) {
    const int before = 256 * k;
    improve_k_block<Codes>(layout, {first.x + before, first.importance + before, first.mean_square},
                           fields[k]);
  }
}

}  // namespace

void improve_blocks(const BlockLayout& layout, const BlockInput& first, int count, BlockFields* fields) {
  if (layout.values != nullptr) return improve_with<TableCodes>(layout, first, count, fields);
  improve_with<IntegerCodes>(layout, first, count, fields);
}

}  // namespace llmq
