// The kernels for products with weights, in the order in which they are asked:
//
//   panels             numbers: one round of the workers for all the linears
//   rounded inputs     codes and inputs of 8 bits: one round for all
//   codes, few rows    codes of 2 to 8 bits expanded in registers: one round for all
//   codes              expanded a panel at a time: one linear
//   one by one         linears of different kinds, or whose codes want a panel each; but codes of few rows
//                      among them, as most experts of a step have, together
#include "device/cpu/cpu_products.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "device/cpu/code_weight.h"
#include "device/cpu/narrow_weight.h"
#include "device/cpu/packed_weight.h"
#include "device/product_list.h"

namespace llmq {
namespace {

using Calls = std::span<const ProductCall<CpuWeight>>;

std::string calls_text(Calls calls) {
  std::string text;
  for (const ProductCall<CpuWeight>& call : calls)
    text += fmt::format("{}of {} {} and a weight [{}, {}] of {}", text.empty() ? "" : ", ",
                        dtype_row(call.x.dtype).name, call.x.shape.text(), call.w->out_features,
                        call.w->in_features, call.w->kernel);
  return text;
}

template <class Weight>
bool all_are(const Calls& calls) {
  return std::all_of(calls.begin(), calls.end(),
                     [](const ProductCall<CpuWeight>& call) { return call.w->kind == Weight::kKind; });
}

// Calls whose weights all are of this kind, as calls of this kind.
template <class Weight>
class CallsOf {
 public:
  explicit CallsOf(const Calls& calls) : count_(calls.size()) {
    for (std::size_t i = 0; i < count_; ++i)
      calls_.at(i) = {calls[i].y, calls[i].x, static_cast<const Weight*>(calls[i].w), calls[i].bias};
  }
  std::span<const ProductCall<Weight>> all() const { return std::span(calls_).first(count_); }

 private:
  std::array<ProductCall<Weight>, kMostCallsAtOnce> calls_;
  std::size_t count_;
};

bool is_narrow_of_few_rows(const ProductCall<CpuWeight>& call) {
  if (call.w->kind != NarrowWeight::kKind) return false;
  return has_few_rows({call.y, call.x, static_cast<const NarrowWeight*>(call.w), call.bias});
}

bool are_narrow_of_few_rows(const Calls& calls) {
  return std::all_of(calls.begin(), calls.end(), is_narrow_of_few_rows);
}

void multiply_by_kind(const CpuWork& work, const Calls& calls) {
  std::array<ProductCall<CpuWeight>, kMostCallsAtOnce> few;
  std::size_t count = 0;
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (is_narrow_of_few_rows(calls[i]))
      few.at(count++) = calls[i];
    else
      multiply(work, calls.subspan(i, 1));
  multiply(work, std::span(few).first(count));
}

struct CpuProduct {
  bool (*supports)(const Calls&);
  void (*run)(const CpuWork&, const Calls&);
};

constexpr CpuProduct kCpuProducts[] = {
    {all_are<PackedWeight>,
     [](const CpuWork& work, const Calls& calls) { multiply(work, CallsOf<PackedWeight>(calls).all()); }},
    {all_are<CodeWeight>,
     [](const CpuWork& work, const Calls& calls) { multiply(work, CallsOf<CodeWeight>(calls).all()); }},
    {are_narrow_of_few_rows,
     [](const CpuWork& work, const Calls& calls) { multiply_few(work, CallsOf<NarrowWeight>(calls).all()); }},
    {[](const Calls& calls) { return calls.size() == 1 && all_are<NarrowWeight>(calls); },
     [](const CpuWork& work, const Calls& calls) {
       const CallsOf<NarrowWeight> narrow(calls);
       const ProductCall<NarrowWeight>& call = narrow.all().front();
       multiply(work, call.y, call.x, *call.w, call.bias);
     }},
    {[](const Calls& calls) { return calls.size() > 1; }, multiply_by_kind},
};

}  // namespace

void multiply(const CpuWork& work, Calls calls) {
  if (!calls.empty()) first_supporting(kCpuProducts, calls, calls_text).run(work, calls);
}

}  // namespace llmq
