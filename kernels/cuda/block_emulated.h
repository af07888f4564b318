// A block on the host: every thread takes each step in turn, and what a device would leave undefined is
// thrown (kernels/cuda/block.h).
//
// PerThread and Array start as bytes 0xff, which no kernel may read before it wrote. An Array remembers for
// each element who wrote and who read it since the last barrier: two threads, one of them writing, is a race.
// An asynchronous copy arrives when it is waited for, not before. Sums of products are FP32, k after k; a
// device rounds them in an order of its own, which tests' bounds allow for.
#pragma once
#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/float_groups.h"

#define LLMQ_BLOCK inline
#define LLMQ_UNROLL

namespace llmq::cuda {

inline int anew(int value) { return value; }
inline unsigned long long next_number(unsigned long long* count) { return (*count)++; }
inline uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }

inline uint32_t add_pairs(uint32_t x, uint32_t y) {
  const auto sum = [&](int half) {
    return uint32_t{
        to_bfloat16(float_from_bits(x >> (16 * half) << 16) + float_from_bits(y >> (16 * half) << 16)).bits};
  };
  return sum(0) | sum(1) << 16;
}

inline uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  const auto product = [&](int half) {
    return uint32_t{
        to_bfloat16(float_from_bits(x >> (16 * half) << 16) * float_from_bits(y >> (16 * half) << 16)).bits};
  };
  return product(0) | product(1) << 16;
}

struct EmulationFault : std::logic_error {
  using std::logic_error::logic_error;
};

template <class T, int kThreads>
class PerThread {
 public:
  PerThread() : values_(kThreads) {
    std::memset(static_cast<void*>(values_.data()), 0xff, sizeof(T) * kThreads);
  }
  T& operator[](int thread) { return values_[static_cast<std::size_t>(thread)]; }
  const T& operator[](int thread) const { return values_[static_cast<std::size_t>(thread)]; }

 private:
  std::vector<T> values_;
};

// A copy on its way: how it arrives, and what it needs for that.
struct AsyncCopy {
  void (*arrive)(const AsyncCopy&);
  void* array;
  const void* from;
  int thread, place;
  bool present;
};

// Barriers and asynchronous copies of the block that is running; blocks run one after another on a host
// thread. Barriers are counted on from block to block: what was touched before `first` is of another block.
struct BlockProgress {
  int barriers = 0, first = 0;
  std::vector<AsyncCopy> open_copies;
  std::deque<std::vector<AsyncCopy>> copies;
  void begin_block() {
    first = ++barriers;
    copies.clear();
  }
};
inline BlockProgress& block_progress() {
  static thread_local BlockProgress progress;
  return progress;
}

template <class T, int kCount>
class Array {
 public:
  Array() : values_(kCount), touches_(kCount) {
    std::memset(static_cast<void*>(values_.data()), 0xff, sizeof(T) * kCount);
  }

  T get(int thread, int i) const {
    Touch& touch = touch_of(i, "reads");
    if (touch.written < progress_->first) fault(thread, i, "reads what nobody wrote, at");
    if (touch.written == now() && touch.writer != thread)
      fault(thread, i, "reads what another writes before the same barrier, at");
    touch.reader = touch.read == now() && touch.reader != thread ? kSeveral : thread;
    touch.read = now();
    return values_[static_cast<std::size_t>(i)];
  }
  void set(int thread, int i, T value) {
    Touch& touch = touch_of(i, "writes");
    if (touch.written == now() && touch.writer != thread)
      fault(thread, i, "writes what another writes before the same barrier, at");
    if (touch.read == now() && touch.reader != thread)
      fault(thread, i, "writes what another reads before the same barrier, at");
    touch.writer = thread;
    touch.written = now();
    values_[static_cast<std::size_t>(i)] = value;
  }
  void get4(int thread, int i, T* to) const {
    static_assert(sizeof(T) == 4);
    if (i % 4 != 0) fault(thread, i, "reads four elements of a place not aligned to 16 bytes, from");
    for (int e = 0; e < 4; ++e) to[e] = get(thread, i + e);
  }
  void copy_async(int thread, int i, const void* from, bool present) {
    constexpr int kElements = static_cast<int>(16 / sizeof(T));
    if (i % kElements != 0 || (present && reinterpret_cast<std::uintptr_t>(from) % 16 != 0))
      fault(thread, i, "copies between places not aligned to 16 bytes, to");
    // From when it starts until it arrives the place holds neither the old nor the new.
    for (int e = 0; e < kElements; ++e) {
      T poison;
      std::memset(static_cast<void*>(&poison), 0xff, sizeof(T));
      set(thread, i + e, poison);
      touches_[static_cast<std::size_t>(i) + static_cast<std::size_t>(e)].written = kNever;
    }
    progress_->open_copies.push_back({arrive, this, from, thread, i, present});
  }
  void copy_async_near(int thread, int i, const void* from, bool present) {
    copy_async(thread, i, from, present);
  }
  // As if it were the only one, and not at the beginning.
  uint32_t address(int i) const { return 1024 + static_cast<uint32_t>(i) * uint32_t{sizeof(T)}; }

 private:
  static constexpr int kNever = -1, kSeveral = -2;
  struct Touch {
    int written = kNever, writer = 0, read = kNever, reader = 0;
  };

  static void arrive(const AsyncCopy& copy) {
    for (int e = 0; e < static_cast<int>(16 / sizeof(T)); ++e) {
      T value{};
      if (copy.present) std::memcpy(&value, static_cast<const T*>(copy.from) + e, sizeof(T));
      static_cast<Array*>(copy.array)->set(copy.thread, copy.place + e, value);
    }
  }
  int now() const { return progress_->barriers; }
  [[noreturn]] void fault(int thread, int i, const char* what) const {
    throw EmulationFault("thread " + std::to_string(thread) + " " + what + " element " + std::to_string(i) +
                         " of " + std::to_string(kCount) + ", after " +
                         std::to_string(now() - progress_->first) + " barriers");
  }
  Touch& touch_of(int i, const char* what) const {
    if (i < 0 || i >= kCount) fault(-1, i, what);
    return touches_[static_cast<std::size_t>(i)];
  }

  BlockProgress* const progress_ = &block_progress();
  std::vector<T> values_;
  mutable std::vector<Touch> touches_;
};

template <int kThreads>
class Block {
 public:
  int x = 0, y = 0, z = 0;

  template <class F>
  void each(const F& step) const {
    for (int thread = 0; thread < kThreads; ++thread) step(thread);
  }
  void barrier() const { ++block_progress().barriers; }

  void commit_copies() const {
    block_progress().copies.push_back(std::exchange(block_progress().open_copies, {}));
  }
  template <int kLeft>
  void wait_copies() const {
    auto& copies = block_progress().copies;
    for (; copies.size() > kLeft; copies.pop_front())
      for (const AsyncCopy& copy : copies.front()) copy.arrive(copy);
  }

  template <class To, class From>
  void exchange(const To& to, const From& from, int mask) const {
    using Value = std::decay_t<decltype(from(0))>;
    std::vector<Value> values;
    values.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) values.push_back(from(t));
    for (int t = 0; t < kThreads; ++t) to(t) = values[static_cast<std::size_t>(t ^ mask)];
  }

  void converge() const {}

  template <bool kTurned, class To, int kCount, class Place>
  void load_matrices(const To& to, const Array<uint32_t, kCount>& from, const Place& place) const {
    for (int warp = 0; warp < kThreads; warp += kWarp) {
      int rows[kWarp];  // of matrix lane / 8 the row lane % 8
      for (int lane = 0; lane < kWarp; ++lane) {
        rows[lane] = place(warp + lane);
        if (rows[lane] % 4 != 0)
          throw EmulationFault("a row of a matrix lies at word " + std::to_string(rows[lane]) +
                               ", not at a multiple of 16 bytes");
      }
      for (int lane = 0; lane < kWarp; ++lane) {
        uint32_t* const words = to(warp + lane);
        const int row = lane / 4, pair = lane % 4;
        const auto number = [&](int from_row, int column) {  // read by this thread
          return from.get(warp + lane, rows[from_row] + column / 2) >> (16 * (column % 2)) & 0xffffu;
        };
        for (int matrix = 0; matrix < 4; ++matrix)
          words[matrix] =
              kTurned ? number(matrix * 8 + pair * 2, row) | number(matrix * 8 + pair * 2 + 1, row) << 16
                      : from.get(warp + lane, rows[matrix * 8 + row] + pair);
      }
    }
  }

  template <class D, class A, class B>
  void mma_bf16(const D& d, const A& a, const B& b) const {
    multiply_bf16(d, a, b);
  }
  template <class D, class A, class B>
  void mma_s8(const D& d, const A& a, const B& b) const {
    multiply_s8(d, a, b);
  }

  template <class D, class A, class B>
  void multiply_bf16(const D& d, const A& a, const B& b) const {
    const auto value = [](uint32_t word, int half) { return float_from_bits(word >> (16 * half) << 16); };
    products<16, float>(d, a, b, value, [](int, const auto& left, const auto& right, auto& sums) {
      if (exact_products(left) && exact_products(right))
        add_products(left, right, sums, [](float p, float q, float sum) { return sum + p * q; });
      else
        add_products(left, right, sums, [](float p, float q, float sum) { return fmaf(p, q, sum); });
    });
  }
  template <class D, class A, class B>
  void multiply_s8(const D& d, const A& a, const B& b) const {
    const auto value = [](uint32_t word, int byte) {
      return int32_t{static_cast<int8_t>(word >> (8 * byte))};
    };
    products<32, int32_t>(d, a, b, value, [](int, const auto& left, const auto& right, auto& sums) {
      add_products(left, right, sums, [](int32_t p, int32_t q, int32_t sum) { return sum + p * q; });
    });
  }
  // Scaled products are exact in FP64; k after k, each sum is rounded to FP32.
  template <bool kExponents, class D, class A, class B, class ScaleA, class ScaleB>
  void multiply_float4(const D& d, const A& a, const B& b, const ScaleA& scale_a,
                       const ScaleB& scale_b) const {
    const auto value = [](uint32_t word, int code) { return e2m1_number(word >> (4 * code) & 15); };
    const auto scale = [](uint32_t word, int k) {
      const uint32_t byte = word >> (k / (kExponents ? 32 : 16) * 8) & 0xff;
      if constexpr (kExponents) return double{byte == 0xff ? NAN : power_of_two_at(byte)};
      return double{to_float(Float8{static_cast<uint8_t>(byte)})};
    };
    products<64, float>(d, a, b, value, [&](int warp, const auto& left, const auto& right, auto& sums) {
      double scaled[64][8];
      for (int column = 0; column < 8; ++column)
        for (int k = 0; k < 64; ++k)
          scaled[k][column] = scale(scale_b(warp + column * 4), k) * double{right[k][column]};
      for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 64; ++k) {
          const double number = scale(scale_a(warp + row % 8 * 4 + row / 8), k) * double{left[row][k]};
          for (int column = 0; column < 8; ++column)
            sums[row][column] = static_cast<float>(sums[row][column] + number * scaled[k][column]);
        }
    });
  }

 private:
  // Whether the product of any two such BF16 numbers is one of FP32, so that to add it rounds once.
  template <int kRows, int kColumns>
  static bool exact_products(const float (&numbers)[kRows][kColumns]) {
    bool exact = true;
    for (const auto& row : numbers)
      for (const float number : row) {
        const float size = fabsf(number);
        exact &= size == 0 || (size >= 0x1p-63f && size < 0x1p63f);
      }
    return exact;
  }
  // sums[row][column] takes left[row][k] right[k][column] with k rising.
  template <class Number, int kDepth, class Add>
  static void add_products(const Number (&left)[16][kDepth], const Number (&right)[kDepth][8],
                           Number (&sums)[16][8], const Add& add) {
    for (int row = 0; row < 16; ++row) {
      Number own[8];
      for (int column = 0; column < 8; ++column) own[column] = sums[row][column];
      for (int k = 0; k < kDepth; ++k)
        for (int column = 0; column < 8; ++column)
          own[column] = add(left[row][k], right[k][column], own[column]);
      for (int column = 0; column < 8; ++column) sums[row][column] = own[column];
    }
  }

  // Matrices of each warp from the fragments, multiply(first thread, A, B, D), and D to the fragments.
  template <int kDepth, class Number, class D, class A, class B, class Value, class Multiply>
  static void products(const D& d, const A& a, const B& b, const Value& value, const Multiply& multiply) {
    constexpr int kPerWord = kDepth / 8;
    for (int warp = 0; warp < kThreads; warp += kWarp) {
      Number left[16][kDepth], right[kDepth][8], sums[16][8];
      const auto each_sum = [&](const auto& use) {
        for (int lane = 0; lane < kWarp; ++lane) {
          auto& own = d(warp + lane).v;
          for (int i = 0; i < 4; ++i) use(own[i], sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
        }
      };
      for (int lane = 0; lane < kWarp; ++lane) {
        const int group = lane / 4, t = lane % 4;
        const auto& fa = a(warp + lane);
        const auto& fb = b(warp + lane);
        for (int e = 0; e < kPerWord; ++e) {
          for (int word = 0; word < 4; ++word)
            left[group + word % 2 * 8][t * kPerWord + e + word / 2 * (kDepth / 2)] = value(fa.v[word], e);
          for (int word = 0; word < 2; ++word)
            right[t * kPerWord + e + word * (kDepth / 2)][group] = value(fb.v[word], e);
        }
      }
      each_sum([](Number own, Number& sum) { sum = own; });
      multiply(warp, left, right, sums);
      each_sum([](Number& own, Number sum) { own = sum; });
    }
  }
};

}  // namespace llmq::cuda
