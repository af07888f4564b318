// Tensor memory on the host (kernels/cuda/tensor_memory/tensor_memory.h). Products run as late as they may,
// when they are waited for; descriptors are read as CUTLASS's headers define them, with numbers of this
// file's own. What was not published, or not waited for, is thrown.
#pragma once

namespace llmq::cuda {

template <int kThreads, int kColumns>
class TensorMemory {
 public:
  struct Shared {};

  void allocate(const Block<kThreads>& block, Shared&) {
    words_.assign(std::size_t{kThreads} * kColumns, ~0u);
    block.barrier();
  }
  void release(const Block<kThreads>& block) {
    if (!waiting_.empty()) throw EmulationFault("products were not waited for");
    words_.clear();
    block.barrier();
  }

  template <class Word>
  void store(int column, const Word& word) {
    if (!waiting_.empty()) throw EmulationFault("tensor memory is written beside products");
    published_ = false;
    for (int t = 0; t < kThreads; ++t) at(t, column) = word(t);
  }
  template <class To>
  void load8(int column, const To& to) {
    if (!waiting_.empty()) throw EmulationFault("sums are read beside products");
    for (int t = 0; t < kThreads; ++t)
      for (int i = 0; i < 8; ++i) to(t)[i] = float_from_bits(at(t, column + i));
  }
  void publish(const Block<kThreads>& block) {
    published_ = true;
    block.barrier();
  }

  template <bool kExponents, int kCount>
  void multiply(const Array<uint32_t, kCount>& shared, const TensorProduct& product) {
    if (!published_) throw EmulationFault("a product of scales that were not published");
    waiting_.push_back([this, &shared, product] { run<kExponents>(shared, product); });
  }
  void finish(const Block<kThreads>& block) {
    for (const auto& product : waiting_) product();
    waiting_.clear();
    block.barrier();
  }
  bool arrived(int) const { return true; }

 private:
  uint32_t& at(int lane, int column) {
    if (column < 0 || column >= kColumns) throw EmulationFault("a column outside of what was allocated");
    return words_[static_cast<std::size_t>(lane * kColumns + column)];
  }
  static uint32_t bits(uint64_t word, int first, int count) {
    return static_cast<uint32_t>(word >> first & ((uint64_t{1} << count) - 1));
  }
  static void demand(bool holds, const char* what) {
    if (!holds) throw EmulationFault(std::string("tcgen05.mma: ") + what);
  }

  // numbers[row][k] of an operand, read by thread 0, which starts products.
  template <int kCount>
  static std::vector<double> numbers(const Array<uint32_t, kCount>& shared, uint64_t descriptor, int rows) {
    demand(bits(descriptor, 46, 3) == 1 && bits(descriptor, 49, 15) == 0, "constants of an operand");
    const int address = static_cast<int>(bits(descriptor, 0, 14) * 16 - shared.address(0)),
              leading = static_cast<int>(bits(descriptor, 16, 14) * 16),
              stride = static_cast<int>(bits(descriptor, 32, 14) * 16);
    std::vector<double> result;
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < 64; ++k) {
        const int byte = address + row / 8 * stride + k / 32 * leading + row % 8 * 16 + k % 32 / 2;
        result.push_back(e2m1_number(shared.get(0, byte / 4) >> (byte % 4 * 8 + k % 2 * 4) & 15));
      }
    return result;
  }
  template <bool kExponents>
  double scale(int column, int row, int first_byte, int k, int quarter) {
    const uint32_t word = at(quarter * 32 + row % 32, column + row / 32),
                   byte = word >> (first_byte + k / (kExponents ? 32 : 16)) * 8 & 0xff;
    if constexpr (kExponents) return double{byte == 0xff ? NAN : power_of_two_at(byte)};
    return double{to_float(Float8{static_cast<uint8_t>(byte)})};
  }

  template <bool kExponents, int kCount>
  void run(const Array<uint32_t, kCount>& shared, const TensorProduct& p) {
    const uint32_t how = p.instruction;
    const int b_byte = static_cast<int>(bits(how, 4, 2)), a_byte = static_cast<int>(bits(how, 29, 2)),
              columns = static_cast<int>(bits(how, 17, 6) * 8),
              rows = static_cast<int>(bits(how, 24, 5) * 16);
    demand(rows == 128 && columns >= 8 && columns <= 256, "a shape that is none");
    demand(bits(how, 7, 3) == 1 && bits(how, 10, 3) == 1, "a format other than E2M1");
    demand(bits(how, 23, 1) == (kExponents ? 1u : 0u), "a format of scales of the other kind");
    demand((bits(how, 0, 4) | bits(how, 6, 1) | bits(how, 13, 4) | bits(how, 31, 1)) == 0, "bits that are 0");
    demand(kExponents ? a_byte % 2 == 0 && b_byte % 2 == 0 : a_byte == 0 && b_byte == 0, "a first scale");
    const std::vector<double> a = numbers(shared, p.a, rows), b = numbers(shared, p.b, columns);
    const auto code = [](const std::vector<double>& of, int row, int k) {
      return of[static_cast<std::size_t>(row * 64 + k)];
    };
    for (int n = 0; n < columns; ++n)
      for (int m = 0; m < rows; ++m) {
        const int quarter = m / 32;  // a quarter of the lanes reads its own copy of the scales
        float sum = p.add ? float_from_bits(at(m, p.sums + n)) : 0;
        for (int first = 0; first < 64; first += 16) {
          const double scales = scale<kExponents>(p.a_scales, m, a_byte, first, quarter) *
                                scale<kExponents>(p.b_scales, n, b_byte, first, quarter);
          for (int k = first; k < first + 16; ++k)
            sum = static_cast<float>(sum + scales * (code(a, m, k) * code(b, n, k)));
        }
        at(m, p.sums + n) = bits_from_float(sum);
      }
  }

  std::vector<uint32_t> words_;
  std::vector<std::function<void()>> waiting_;
  bool published_ = false;
};

}  // namespace llmq::cuda
