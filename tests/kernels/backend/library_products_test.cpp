// A library's products on a device for calibration have the bits of the own kernels, which serve: at any
// place, in any number, at the shapes of models.
#include "backend_fixture.h"

namespace llmq::testing {
namespace {

constexpr std::int64_t kWholeSum = 4096;

class LibraryProducts : public BackendTest {
 protected:
  bool on_gpu() const { return GetParam().name == "cuda_calibration"; }
  std::shared_ptr<Backend> serving() const {
    return on_gpu() ? make_cuda_backend(0, 1) : make_emulated_cuda_backend(1);
  }
  void print_choices() {
    for (const KernelChoice& choice : backend().kernel_choices())
      std::printf("%s: %s%s%s\n", choice.what.c_str(), choice.kernel.c_str(),
                  choice.why.empty() ? "" : ", because ", choice.why.c_str());
  }
};

TEST_P(LibraryProducts, LinearsHaveTheBitsOfTheOwnKernels) {
  using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const auto own = serving();
  for (const auto& sizes : on_gpu()
                               ? Sizes{{1024, 5120}, {5120, 1024}, {4096, 4096}, {1000, 5000}, {6144, 776}}
                               : Sizes{{64, 96}}) {
    const std::int64_t n = sizes.first, k = sizes.second;
    const std::int64_t rows = on_gpu() ? 5000 : 300;
    Numbers numbers(41);
    const std::vector<float> x = numbers.values(rows * k, 6), w = numbers.values(n * k, 6);
    const TensorView values(w.data(), DType::kF32, {n, k});
    const auto weight = backend().prepare(values, Compute::kBFloat16);
    EXPECT_NE(weight->kernel, "bf16 fragments") << n << " by " << k;
    const auto run = [&](Backend& on, const TensorView& in, const PreparedWeight& of, std::int64_t first,
                         std::int64_t count) {
      const Placed out = poisoned(on, DType::kF32, {count, n});
      on.linear(out.view, in.row_slice(first, count), of, {});
      return get(on, out.view);
    };
    const Placed theirs = put(*own, DType::kBF16, {rows, k}, x),
                 in = put(backend(), DType::kBF16, {rows, k}, x);
    const std::vector<float> all = run(*own, theirs.view, *own->prepare(values, Compute::kBFloat16), 0, rows);
    EXPECT_TRUE(same_bits(run(backend(), in.view, *weight, 0, rows), all)) << n << " by " << k;
    for (const std::int64_t count : {1, 77, 255, 256, 300, 1280, 2560, 4095, 4096, 4097})
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{129}, rows - count}) {
        if (first < 0 || first + count > rows) continue;
        ASSERT_TRUE(same_bits(run(backend(), in.view, *weight, first, count), rows_of(all, first, count, n)))
            << count << " rows from " << first << ", N " << n << " K " << k;
      }
  }
  print_choices();
}

// Whole sums, rows behind them, and fewer rows, which have zeros behind them; panels that do not end at a
// multiple of a tile.
TEST_P(LibraryProducts, GramMatricesHaveTheBitsOfTheOwnKernels) {
  const auto own = serving();
  for (const std::int64_t k :
       on_gpu() ? std::vector<std::int64_t>{2056, 5120} : std::vector<std::int64_t>{24}) {
    Numbers numbers(43);
    const std::int64_t rows = kWholeSum + 300;
    const std::vector<float> x = numbers.values(rows * k, 6);
    const auto run = [&](Backend& on, std::int64_t first, std::int64_t behind) {
      const Placed in = put(on, DType::kBF16, {rows, k}, x), g = poisoned(on, DType::kF32, {k, k});
      on.clear(g.view);
      on.gram(g.view, in.view.row_slice(0, first));
      if (behind > 0) on.gram(g.view, in.view.row_slice(first, behind), first);
      std::vector<float> square = get(on, g.view);
      for (std::int64_t i = 0; i < k; ++i)
        std::fill_n(square.begin() + i * k, i, 0.0f);  // the lower triangle is nobody's business
      return square;
    };
    EXPECT_TRUE(same_bits(run(backend(), kWholeSum, 300), run(*own, kWholeSum, 300))) << k << " channels";
    for (const std::int64_t fewer : {2048, 3000, 4000, 4095})
      EXPECT_TRUE(same_bits(run(backend(), fewer, 0), run(*own, fewer, 0))) << fewer << " rows of " << k;
  }
  print_choices();
  for (const KernelChoice& choice : backend().kernel_choices()) {
    if (choice.what.starts_with("some ")) continue;
    EXPECT_EQ(choice.why, "") << choice.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, LibraryProducts,
                         ::testing::Values(BackendParam{"cuda_stand_in", 1},
                                           BackendParam{"cuda_calibration", 1}),
                         param_name);

}  // namespace
}  // namespace llmq::testing
