#include "tensor/ggml_search.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstddef>

namespace llmq {
namespace {

constexpr int kLanes = 4, kLongest = 32;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using Ints = int __attribute__((vector_size(4 * kLanes)));  // what comparing lanes gives: -1 or 0

// The codes of x under each lane's scale; nearest_int() and a clamp for finite products.
inline Lanes rounded(Lanes scaled, Lanes low, Lanes high) {
  const Lanes whole = (scaled + 0x1.8p23f) - 0x1.8p23f;
  const Lanes raised = whole > low ? whole : low;
  return raised < high ? raised : high;
}

std::uint8_t code(float scaled, int low, int high) {
  return static_cast<std::uint8_t>(std::clamp(nearest_int(scaled), low, high) - low);
}

// sum w x q and sum w q^2 of a candidate; the scale that fits its codes best is their quotient, and what that leaves is
// sum w x^2 - xq^2 / qq.
struct Products {
  float xq = 0, qq = 0;
};

// The number of largest magnitude, with its sign; the first of equals.
float largest(WeightedRun run) {
  float best = 0;
  for (int i = 0; i < run.size; ++i)
    if (std::fabs(run.x[i]) > std::fabs(best)) best = run.x[i];
  return best;
}

// Up to five sweeps that give one number at a time the code that the scale of all the others asks for, kept if the run then fits better.
// Codes are signed here. `others` : a number that alone has a code other than 0 stays.
void sweep(WeightedRun run, int low, int high, bool others, int* q, Products& sums) {
  for (int round = 0; round < 5; ++round) {
    bool changed = false;
    for (int i = 0; i < run.size; ++i) {
      const float w = run.weight[i], x = run.x[i], old = static_cast<float>(q[i]);
      Products rest{sums.xq - w * x * old, sums.qq - w * old * old};
      if (!(rest.xq > 0) || (others && !(rest.qq > 0))) continue;
      const int asked = std::clamp(nearest_int(x * rest.qq / rest.xq), low, high);
      if (asked == q[i]) continue;
      const auto l = static_cast<float>(asked);
      rest.xq += w * x * l;
      rest.qq += w * l * l;
      if (!(rest.qq > 0) || !(rest.xq * rest.xq * sums.qq > sums.xq * sums.xq * rest.qq)) continue;
      q[i] = asked;
      sums = rest;
      changed = true;
    }
    if (!changed) return;
  }
}

}  // namespace

float search_symmetric(WeightedRun run, int zero, std::uint8_t* q) {
  const float extreme = largest(run);
  if (std::fabs(extreme) < kNoNumbers) {
    std::fill_n(q, run.size, std::uint8_t{0});
    return 0;
  }
  // Candidate 0 gives the largest number the lowest code; the others miss it by 0.1 to 0.9 either way.
  constexpr int kCandidates = 20;  // the last repeats the first, to fill the lanes
  alignas(16) std::array<float, kCandidates> inverse{};
  const auto reach = static_cast<float>(zero);
  inverse[0] = inverse[kCandidates - 1] = -reach / extreme;
  for (int is = -9, c = 1; is <= 9; ++is)
    if (is != 0) inverse[static_cast<std::size_t>(c++)] = -(reach + 0.1f * static_cast<float>(is)) / extreme;

  float scale = 0, best = 0;
  std::size_t chosen = 0;
  for (std::size_t first = 0; first < kCandidates; first += kLanes) {
    Lanes inv, xq = {}, qq = {};
    std::memcpy(&inv, &inverse[first], sizeof inv);
    for (int i = 0; i < run.size; ++i) {
      const Lanes l = rounded(inv * run.x[i], Lanes{} - reach, Lanes{} + (reach - 1));
      const Lanes w = Lanes{} + run.weight[i];
      xq += w * run.x[i] * l;
      qq += w * l * l;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::size_t c = first + static_cast<std::size_t>(lane);
      const bool better = c == 0 || (qq[lane] > 0 && xq[lane] * xq[lane] > best * qq[lane]);
      if (!better || c == kCandidates - 1) continue;
      scale = qq[lane] != 0 ? xq[lane] / qq[lane] : 0.f;
      best = scale * xq[lane];
      chosen = c;
    }
  }
  for (int i = 0; i < run.size; ++i) q[i] = code(inverse[chosen] * run.x[i], -zero, zero - 1);
  return scale;
}

float sweep_symmetric(WeightedRun run, int zero, std::uint8_t* q) {
  const float extreme = largest(run);
  if (std::fabs(extreme) < kNoNumbers) {
    std::fill_n(q, run.size, std::uint8_t{0});
    return 0;
  }
  const float inverse = -static_cast<float>(zero) / extreme;
  std::array<int, kLongest> codes{};
  Products sums;
  for (int i = 0; i < run.size; ++i) {
    int& l = codes[static_cast<std::size_t>(i)];
    l = std::clamp(nearest_int(inverse * run.x[i]), -zero, zero - 1);
    const float w = run.weight[i], value = static_cast<float>(l);
    sums.xq += w * run.x[i] * value;
    sums.qq += w * value * value;
  }
  sweep(run, -zero, zero - 1, false, codes.data(), sums);
  for (int i = 0; i < run.size; ++i)
    q[i] = static_cast<std::uint8_t>(codes[static_cast<std::size_t>(i)] + zero);
  return sums.qq > 0 ? sums.xq / sums.qq : 0;
}

float search_positive(WeightedRun run, int top, std::uint8_t* q) {
  const float extreme = std::max(0.f, *std::max_element(run.x, run.x + run.size));
  if (extreme < kNoNumbers) {
    std::fill_n(q, run.size, std::uint8_t{0});
    return 0;
  }
  const auto high = static_cast<float>(top);
  const auto left_by = [&](float inverse) {
    const float scale = 1 / inverse;
    float left = 0;
    for (int i = 0; i < run.size; ++i) {
      const float diff =
          run.x[i] - scale * static_cast<float>(std::min(nearest_int(inverse * run.x[i]), top));
      left += run.weight[i] * diff * diff;
    }
    return left;
  };
  float inverse = high / extreme, least = left_by(inverse);
  for (int is = -4; is <= 4; ++is) {
    if (is == 0) continue;
    const float candidate = (0.1f * static_cast<float>(is) + high) / extreme, left = left_by(candidate);
    if (left < least) {
      least = left;
      inverse = candidate;
    }
  }
  std::array<int, kLongest> codes{};
  Products sums;
  for (int i = 0; i < run.size; ++i) {
    int& l = codes[static_cast<std::size_t>(i)];
    l = std::min(nearest_int(inverse * run.x[i]), top);
    const float w = run.weight[i], value = static_cast<float>(l);
    sums.xq += w * run.x[i] * value;
    sums.qq += w * value * value;
  }
  sweep(run, 0, top, true, codes.data(), sums);
  for (int i = 0; i < run.size; ++i) q[i] = static_cast<std::uint8_t>(codes[static_cast<std::size_t>(i)]);
  return sums.qq > 0 ? sums.xq / sums.qq : 0;
}

namespace {

Lanes select(Ints mask, Lanes yes, Lanes no) { return mask ? yes : no; }

// Four runs side by side, number i of run k in lane k.
struct AffineLanes {
  std::array<Lanes, kLongest> x, weight;
  int size;
  bool absolute;

  AffineLanes(WeightedRun first, bool judge_absolute) : size(first.size), absolute(judge_absolute) {
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < size; ++i) {
        x[static_cast<std::size_t>(i)][lane] = first.x[lane * size + i];
        weight[static_cast<std::size_t>(i)][lane] = first.weight[lane * size + i];
      }
  }

  // Codes where code 0 stands for `lowest`. A range so small that its inverse is no number gives every number the code 0, as nearest_int() does.
  void round(Lanes inverse, Lanes lowest, Lanes top, Lanes* q) const {
    inverse = inverse <= FLT_MAX ? inverse : Lanes{};
    for (int i = 0; i < size; ++i)
      q[i] = rounded(inverse * (x[static_cast<std::size_t>(i)] - lowest), Lanes{}, top);
  }

  Lanes left(Lanes scale, Lanes lowest, const Lanes* q) const {
    Lanes sum = {};
    for (int i = 0; i < size; ++i) {
      const Lanes diff = scale * q[i] + lowest - x[static_cast<std::size_t>(i)];
      sum += weight[static_cast<std::size_t>(i)] * (absolute ? (diff < 0.f ? -diff : diff) : diff * diff);
    }
    return sum;
  }
};

}  // namespace

void search_affine(WeightedRun first, int top, AffineCandidates candidates, AffineFit* fits,
                   std::uint8_t* codes) {
  const AffineLanes lanes(first, candidates.absolute);
  Lanes lowest = lanes.x[0], highest = lanes.x[0], sum_w = lanes.weight[0],
        sum_x = lanes.weight[0] * lanes.x[0];
  for (int i = 1; i < lanes.size; ++i) {
    const Lanes x = lanes.x[static_cast<std::size_t>(i)], w = lanes.weight[static_cast<std::size_t>(i)];
    lowest = x < lowest ? x : lowest;
    highest = x > highest ? x : highest;
    sum_w += w;
    sum_x += w * x;
  }
  lowest = lowest > 0.f ? Lanes{} : lowest;
  const Ints constant = highest == lowest;
  const Lanes high = Lanes{} + static_cast<float>(top);
  std::array<Lanes, kLongest> best, q;
  const Lanes inverse = high / (highest - lowest);
  Lanes scale = 1 / inverse;
  lanes.round(inverse, lowest, high, best.data());
  Lanes least = lanes.left(scale, lowest, best.data());
  for (int c = 0; c < candidates.count; ++c) {
    const float reach = candidates.first + candidates.step * static_cast<float>(c) + static_cast<float>(top);
    lanes.round(reach / (highest - lowest), lowest, high, q.data());
    // The least-squares line through (code, number). One that would have all codes above 0 passes through 0 instead.
    Lanes sum_q = {}, sum_qq = {}, sum_xq = {};
    for (int i = 0; i < lanes.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const Lanes wq = lanes.weight[at] * q[at];
      sum_q += wq;
      sum_qq += wq * q[at];
      sum_xq += wq * lanes.x[at];
    }
    const Lanes determinant = sum_w * sum_qq - sum_q * sum_q;
    const Lanes slope = (sum_w * sum_xq - sum_x * sum_q) / determinant,
                offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
    const Ints above = offset > 0.f;
    const Lanes line = select(above, sum_xq / sum_qq, slope), start = select(above, Lanes{}, offset);
    const Lanes left = lanes.left(line, start, q.data());
    const Ints better = (determinant > 0.f) & (left < least);
    least = select(better, left, least);
    scale = select(better, line, scale);
    lowest = select(better, start, lowest);  // where later candidates start from
    for (int i = 0; i < lanes.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      best[at] = select(better, q[at], best[at]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    fits[lane] = {constant[lane] != 0 ? 0.f : scale[lane], -lowest[lane]};
    for (int i = 0; i < lanes.size; ++i)
      codes[lane * lanes.size + i] = static_cast<std::uint8_t>(best[static_cast<std::size_t>(i)][lane]);
  }
}

}  // namespace llmq
