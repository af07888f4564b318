// Products with weights that stay in few bits (kernels/cpu/ops/narrow.h) in AMX's tiles: codes become panels
// of BF16 in L1 while the tiles multiply those before, and the sums of a group go through memory to their
// scales.
//
// Up to 32 rows share one expansion. One or two are for few_rows.cpp, in the same bits.
#pragma once
#include "kernels/cpu/amx/few_rows.h"
#include "kernels/cpu/amx/tile_products.h"

namespace llmq {
namespace {

// Steps of kNarrowStep codes through the groups of all panels, in order.
class NarrowSteps {
 public:
  explicit NarrowSteps(const NarrowProduct& p) : p_(p), panel_(p.b) { begin_panel(); }

  bool done() const { return column_ >= p_.columns; }
  int64_t column() const { return column_; }
  int64_t group() const { return group_; }
  int64_t first() const { return first_; }  // code of the group
  int64_t count() const {
    const int64_t left = p_.layout.group - first_;
    return left < kNarrowStep ? left : kNarrowStep;
  }
  bool begins_group() const { return first_ == 0; }
  bool ends_group() const { return first_ + kNarrowStep >= p_.layout.group; }
  bool ends_panel() const { return ends_group() && group_ + 1 == p_.layout.groups; }
  int turn() const { return turn_; }  // 0 and 1 alternately
  NarrowGroup bytes() const { return {&p_.layout, at_, factors_}; }

  void next() {
    turn_ ^= 1;
    const bool group_ended = ends_group(), panel_ended = ends_panel();
    first_ = group_ended ? 0 : first_ + kNarrowStep;
    if (panel_ended) {
      column_ += kTilePanel;
      panel_ += panel_bytes_;
      begin_panel();
    } else if (group_ended) {
      ++group_;
      at_ += group_bytes_;
      if (--together_ == 0) {
        together_ = p_.layout.together;
        factors_ += p_.layout.factor_bytes_of_block(kTilePanel);
      }
    }
  }

 private:
  void begin_panel() {
    group_ = 0;
    together_ = p_.layout.together;
    factors_ = panel_;
    at_ = panel_ + front_;
  }

  const NarrowProduct& p_;
  const int64_t panel_bytes_ = p_.layout.panel_bytes(kTilePanel),
                group_bytes_ = p_.layout.group_bytes(kTilePanel),
                front_ = p_.layout.factor_bytes(kTilePanel, p_.layout.groups);
  const unsigned char *panel_, *at_ = nullptr, *factors_ = nullptr;
  int64_t column_ = 0, group_ = 0, first_ = 0, together_ = 0;
  int turn_ = 0;
};

// Up to 32 rows against codes: kNarrowStep of a column are expanded while the tiles multiply those before.
// Up to 16 rows have two sets of sums, of which one is scaled while the next group goes into the other.
template <class Tiles, bool Two>
class NarrowTiles {
 public:
  explicit NarrowTiles(const NarrowProduct& p) : p_(p) {}

  __attribute__((noinline)) void multiply() {
    Tiles::configure(tiles_for(p_.rows, units_));
    NarrowSteps ahead(p_);
    expand(ahead);
    int set = 0;
    for (NarrowSteps step(p_); !step.done(); step.next()) {
      if constexpr (Two)
        add<0>(step);
      else
        set == 0 ? add<0>(step) : add<1>(step);
      finish();
      ahead.next();
      if (!ahead.done()) expand(ahead);
      if (!step.ends_group()) continue;
      waiting_ = {scales_[step.turn()], offsets_[step.turn()], step.group(), set, true};
      if constexpr (!Two) set ^= 1;
      if (!step.ends_panel()) continue;
      finish();
      put_rows(p_.c + step.column(), p_.c_row, y_, p_.rows, p_.columns - step.column());
    }
    Tiles::release();
  }

 private:
  template <int Set>
  using Panel = PanelTiles<Tiles, Pairs, Two, Set>;

  // Sums of a whole group that are still in their tiles.
  struct Waiting {
    const float *scales = nullptr, *offsets = nullptr;
    int64_t group = 0;
    int set = 0;
    bool is = false;
  };

  LLMQ_INLINE void expand(const NarrowSteps& at) {
    by_rows_.narrow_unpack[kBf16](codes_[at.turn()], scales_[at.turn()], offsets_[at.turn()], at.bytes(),
                                  at.first(), at.count());
  }
  template <int Set>
  LLMQ_INLINE void add(const NarrowSteps& at) {
    if (at.begins_group()) {
      if constexpr (Two) finish();
      Panel<Set>::zero();
      if (at.group() == 0)
        take_rows(y_, p_.start == nullptr ? nullptr : p_.start + at.column(), 0, p_.rows,
                  p_.columns - at.column());
    }
    const auto* const a =
        static_cast<const unsigned char*>(p_.a) + (at.group() * p_.layout.group + at.first()) * 2;
    Panel<Set>::add(RowBlock{a, p_.a_row, p_.rows, false}, codes_[at.turn()], at.count() * 2, units_);
  }
  LLMQ_INLINE void finish() {
    if (!waiting_.is) return;
    waiting_.is = false;
    if constexpr (Two)
      Panel<0>::store(sums_, kTilePanel);
    else
      waiting_.set == 0 ? Panel<0>::store(sums_, kTilePanel) : Panel<1>::store(sums_, kTilePanel);
    const bool minima = p_.layout.minima;
    add_scaled(y_, sums_,
               {waiting_.scales, minima ? waiting_.offsets : nullptr,
                minima ? p_.sums + waiting_.group : nullptr, p_.sums_row},
               p_.rows);
  }

  const NarrowProduct& p_;
  const CpuKernels& by_rows_ = avx512_bf16_kernels();
  const int64_t units_ = p_.layout.group / 2 < kTileUnits ? p_.layout.group / 2 : kTileUnits;  // of a tile
  Waiting waiting_;
  alignas(64) unsigned char codes_[2][kNarrowStep * kTilePanel * 2];
  alignas(64) float scales_[2][kTilePanel], offsets_[2][kTilePanel], sums_[2 * kTileRows * kTilePanel],
      y_[2 * kTileRows * kTilePanel];
};

// `narrow_gemm` of the level.
template <class Tiles>
void tile_narrow_gemm(const NarrowProduct& p) {
  NarrowProduct some = p;
  for (int64_t row = 0; row < p.rows; row += 2 * kTileRows) {
    some.rows = p.rows - row < 2 * kTileRows ? p.rows - row : 2 * kTileRows;
    some.a = static_cast<const unsigned char*>(p.a) + row * p.a_row;
    some.c = p.c + row * p.c_row;
    if (p.sums != nullptr) some.sums = p.sums + row * p.sums_row;
    if (!multiply_few_rows(some))
      some.rows > kTileRows ? NarrowTiles<Tiles, true>(some).multiply()
                            : NarrowTiles<Tiles, false>(some).multiply();
  }
}

}  // namespace
}  // namespace llmq
