// Weights [rows][columns] to [places][rows], as the kernels of tile_rounding.h and group_search.h take them,
// and steps back to codes. A block turns 32 x 32 numbers in shared memory, so that neighbours in memory are
// neighbouring threads on either side.
#pragma once
#include "kernels/common/row_search.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

template <class T>
struct TurnedTile {
  static constexpr int kSide = 32, kThreads = 256, kPadded = kSide + 1;
  struct Shared {
    Array<T, kSide * kPadded> values;
  };
  static Grid grid(int64_t columns, int64_t rows) {
    return {blocks_for(columns, kSide), static_cast<int>(blocks_for(rows, kSide))};
  }

  // from(place, row) by threads of neighbouring rows or, by_places, of neighbouring places; to(place, row,
  // value) by the others.
  template <class From, class To>
  static LLMQ_BLOCK void run(Block<kThreads>& block, Shared& shared, int64_t columns, int64_t rows,
                             bool by_places, const From& from, const To& to) {
    const auto each = [&](int t, bool places, const auto& use) {
      for (int i = t / kSide; i < kSide; i += kThreads / kSide) {
        const int p = places ? t % kSide : i, r = places ? i : t % kSide;
        const int64_t place = int64_t{block.x} * kSide + p, row = int64_t{block.y} * kSide + r;
        if (place < columns && row < rows) use(place, row, p * kPadded + r);
      }
    };
    block.each([&](int t) {
      each(t, by_places,
           [&](int64_t place, int64_t row, int at) { shared.values.set(t, at, from(place, row)); });
    });
    block.barrier();
    block.each([&](int t) {
      each(t, !by_places,
           [&](int64_t place, int64_t row, int at) { to(place, row, shared.values.get(t, at)); });
    });
  }
};

struct PlaceColumns {
  using Tile = TurnedTile<float>;
  using Shared = Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  struct Arguments {
    PlacedColumns places;
    const float* weight = nullptr;  // [rows][columns]
    float* placed = nullptr;        // [places][rows]
    int64_t rows = 0;
  };
  static Grid grid(const Arguments& a) { return Tile::grid(a.places.columns, a.rows); }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int64_t columns = a.places.columns;
    Tile::run(
        block, shared, columns, a.rows, true,
        [&](int64_t place, int64_t row) {
          return a.places.column[place] < 0 ? 0.0f : a.weight[row * columns + a.places.column[place]];
        },
        [&](int64_t place, int64_t row, float value) { a.placed[place * a.rows + row] = value; });
  }
};

struct WriteCodes {
  using Tile = TurnedTile<uint8_t>;
  using Shared = Tile::Shared;
  static constexpr int kThreads = Tile::kThreads;
  struct Arguments {
    PlacedCodes placed;
    int64_t rows = 0;
  };
  static Grid grid(const Arguments& a) { return Tile::grid(a.placed.places.columns, a.rows); }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const PlacedCodes& p = a.placed;
    const int32_t* const column = p.places.column;
    Tile::run(
        block, shared, p.places.columns, a.rows, false,
        [&](int64_t place, int64_t row) {
          const float steps = column[place] < 0 ? 0.0f : p.steps[place * a.rows + row];
          return static_cast<uint8_t>(steps + p.zero[p.group[place] * a.rows + row]);
        },
        [&](int64_t place, int64_t row, uint8_t code) {
          p.codes[row * p.places.columns + (column[place] < 0 ? ~column[place] : column[place])] = code;
        });
  }
};

}  // namespace llmq::cuda
