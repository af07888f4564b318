// The Backend over a CudaDevice: operations turned into arguments of kernels. Shapes checked by callers
// become sizes, host lists become device arrays, results that belong to the host come back.
#include "device/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/cuda/cuda_attention.h"
#include "device/cuda/cuda_calibration.h"
#include "device/cuda/cuda_extensions.h"
#include "device/cuda/cuda_products.h"
#include "device/cuda/cuda_work.h"
#include "device/cuda/dense/dense_products.h"
#include "device/own_weight.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<CudaDevice> device, int threads, DeviceUse use)
      : work_(std::move(device), threads), products_(products_for(use)) {
    if (work_.device().float4_linear() == nullptr) return;
    float4_fault_ = float4_fault(work_);
    by_codes_ = float4_fault_.empty();
  }

  std::string name() const override { return work_.device().name(); }
  std::string arithmetic() const override {
    return work_.device().arithmetic() + (by_codes_ ? ", E2M1 by E2M1" : "");
  }
  Device device() const override { return work_.place(); }
  int threads() const override { return work_.threads(); }
  ThreadPool& workers() override { return work_.pool(); }
  const Extensions& extensions() const override { return extensions_.all(); }
  std::vector<KernelChoice> kernel_choices() const override { return products_->choices(); }
  std::string slower_than_possible() const override {
    if (float4_fault_.empty()) return {};
    return name() + ": " +
           KernelChoice{"products of E2M1 by E2M1", "kernels of E2M1 by BF16", float4_fault_}.sentence();
  }

  // Memory.
  Buffer allocate(std::size_t bytes) override { return Buffer(work_.device().memory(), bytes); }
  std::uint64_t peak_bytes() const override { return work_.device().peak_bytes(); }
  std::uint64_t free_bytes() const override {
    const std::uint64_t free = work_.device().free_bytes();
    return free - std::min(free, products_->reserved_bytes());
  }
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(work_.device().scratch_bytes());
  }
  void upload(const TensorView& to, const void* from_host) override {
    require_on(device(), "upload", {&to});
    const char* const from = static_cast<const char*>(from_host);
    if (to.contiguous()) return work_.device().copy_in(to.pointer, from, to.bytes());
    for_each_row(to, [&](std::size_t offset, std::size_t bytes, char* row) {
      work_.device().copy_in(row, from + offset, bytes);
    });
  }
  void download(void* to_host, const TensorView& from) override {
    require_on(device(), "download", {&from});
    work_.copy_down(to_host, from);
  }
  void synchronize() override { work_.device().synchronize(); }
  bool copy_from(const TensorView& to, Backend& owner, const TensorView& from) override {
    auto* const other = dynamic_cast<CudaBackend*>(&owner);
    if (other == nullptr) return false;
    require_on(device(), "copy_from", {&to});
    require_on(other->device(), "copy_from", {&from});
    const auto element = static_cast<std::size_t>(element_bytes(to.dtype));
    return work_.device().copy_across(
        other->work_.device(),
        {to.pointer, from.pointer, static_cast<std::size_t>(to.row_stride) * element,
         static_cast<std::size_t>(from.row_stride) * element, static_cast<std::size_t>(to.cols()) * element,
         static_cast<std::size_t>(to.rows())});
  }
  void begin_range(const std::string& name) override { work_.device().begin_range(name); }
  void end_range() noexcept override { work_.device().end_range(); }

  void clear(const TensorView& to) override {
    require_on(device(), "clear", {&to});
    if (to.contiguous()) return work_.device().zero(to.pointer, to.bytes());
    for_each_row(to, [&](std::size_t, std::size_t bytes, char* row) { work_.device().zero(row, bytes); });
  }

  // Weights.
  std::unique_ptr<PreparedWeight> prepare(const TensorView& weight, Compute compute) override {
    require_on({}, "prepare", {&weight});
    return dense_weight(work_.device(), *products_, weight, compute, work_.pool());
  }
  std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) override {
    return code_weight(work_.device(), matrix, compute, by_codes_);
  }
  bool keeps_codes(const QuantizedMatrix& matrix, Compute compute) const override {
    if (!matrix.kept_columns.empty() || matrix.code_values) return false;
    if (matrix.scheme.weight_type != WeightType::kFloat4)
      return matrix.scheme.scale_form() == ScaleForm::kNumber;
    return compute == Compute::kFloat32 || has_scale_bytes(matrix);
  }

  void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
              const TensorView& bias) override {
    require_on(device(), "linear", {&y, &x, &bias});
    multiply(work_, y, x, own(w), bias.as<const float>());
  }

  // A forward pass.
  void embed(const TensorView& y, const TensorView& table, std::span<const std::int32_t> ids) override {
    require_on(device(), "embed", {&y, &table});
    const Buffer on_device = work_.copy_of(ids);
    work_.start("embed", work_.kernels().embed,
                {static_cast<std::int64_t>(ids.size()) * table.cols(), table.cols(), rows_of(y),
                 rows_of(table), on_device.as<std::int32_t>()},
                y);
  }

  void rms_norm(const TensorView& y, const TensorView& x, const TensorView& gain, float eps) override {
    require_on(device(), "rms_norm", {&y, &x, &gain});
    work_.start("rms_norm", work_.kernels().rms_norm,
                {x.rows(), x.cols(), rows_of(y), rows_of(x), gain.as<const float>(), eps}, x);
  }

  void layer_norm(const TensorView& y, const TensorView& x, const TensorView& gain, const TensorView& bias,
                  float eps) override {
    require_on(device(), "layer_norm", {&y, &x, &gain, &bias});
    work_.start("layer_norm", work_.kernels().layer_norm,
                {x.rows(), x.cols(), rows_of(y), rows_of(x), gain.as<const float>(), bias.as<const float>(),
                 eps, gain.rows()},
                x);
  }

  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines, RopePairs pairs) override {
    require_on(device(), "rope", {&x, &cosines, &sines});
    const auto on_device = work_.list_of(positions);
    work_.start("rope", work_.kernels().rope,
                {x.rows() * (x.cols() / 2), x.shape[1], x.cols() / 2, rows_of(x), rows_of(cosines),
                 rows_of(sines), on_device->as<std::int32_t>(), pairs == RopePairs::kNeighbours},
                x);
  }

  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    move_kv(work_, "store_kv", pages, k, v, slots, true);
  }
  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    move_kv(work_, "load_kv", pages, k, v, slots, false);
  }

  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    require_on(device(), "attention", {&out, &q, &pages.keys, &pages.values, &problem.sinks});
    attend(work_, out, q, pages, sequences, problem);
  }

  void causal_conv(const TensorView& y, const TensorView& x, const TensorView& weight,
                   const TensorView& before) override {
    require_on(device(), "causal_conv", {&y, &x, &weight, &before});
    work_.start("causal_conv", work_.kernels().causal_conv,
                {x.cols(), rows_of(y), rows_of(x), rows_of(weight), rows_of(before), weight.rows(), x.rows()},
                x);
  }

  void delta_rule(const TensorView& out, const TensorView& q, const TensorView& k, const TensorView& v,
                  const DeltaGates& gates, const TensorView& state, const DeltaHeads& heads) override {
    require_on(device(), "delta_rule",
               {&out, &q, &k, &v, &gates.decay, &gates.share, &gates.rate, &gates.shift, &state});
    work_.start("delta_rule", work_.kernels().delta_rule,
                {q.rows(), heads.value_heads, heads.value_heads / heads.key_heads, heads.key_dim,
                 heads.value_dim, rows_of(out), rows_of(q), rows_of(k), rows_of(v), rows_of(gates.decay),
                 rows_of(gates.share), gates.rate.as<const float>(), gates.shift.as<const float>(),
                 state.as<float>(), 1.0f / std::sqrt(static_cast<float>(heads.key_dim))},
                q);
  }

  void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                        Activation act) override {
    require_on(device(), "gated_activation", {&y, &gate, &up});
    work_.start("gated_activation", work_.kernels().gated_activation,
                {gate.rows() * gate.cols(), gate.cols(), rows_of(y), rows_of(gate), rows_of(up), act}, gate);
  }

  void activate(const TensorView& y, const TensorView& x, Activation act) override {
    require_on(device(), "activate", {&y, &x});
    work_.start("activate", work_.kernels().activate,
                {x.rows() * x.cols(), x.cols(), rows_of(y), rows_of(x), act}, x);
  }

  void softcap(const TensorView& x, float cap) override {
    require_on(device(), "softcap", {&x});
    work_.start("softcap", work_.kernels().softcap, {x.rows() * x.cols(), x.cols(), rows_of(x), cap}, x);
  }

  void add(const TensorView& into, const TensorView& x, float scale) override {
    require_on(device(), "add", {&into, &x});
    work_.start("add", work_.kernels().add, {x.rows() * x.cols(), x.cols(), rows_of(into), rows_of(x), scale},
                x);
  }

  void add_rows(const TensorView& into, const TensorView& x, std::span<const std::int32_t> rows,
                std::span<const float> scales) override {
    require_on(device(), "add_rows", {&into, &x});
    const Buffer places = work_.copy_of(rows), factors = work_.copy_of(scales);
    work_.start("add_rows", work_.kernels().add_rows,
                {static_cast<std::int64_t>(rows.size()) * x.cols(), x.cols(), rows_of(into), rows_of(x),
                 places.as<std::int32_t>(), factors.as<float>()},
                x);
  }

  void convert(const TensorView& to, const TensorView& from) override {
    require_on(device(), "convert", {&to, &from});
    work_.start("convert", work_.kernels().convert,
                {from.rows() * from.cols(), from.cols(), rows_of(to), rows_of(from)}, from);
  }

  // Scoring.
  void score_rows(const TensorView& logits, std::span<const std::int32_t> targets,
                  std::span<RowScore> scores) override {
    require_on(device(), "score_rows", {&logits});
    const std::size_t rows = scores.size();
    const Buffer on_device = work_.copy_of(targets), log_prob = work_.scratch(rows * sizeof(double)),
                 argmax = work_.scratch(rows * sizeof(std::int32_t));
    work_.start("score_rows", work_.kernels().score_rows,
                {static_cast<std::int64_t>(rows), logits.cols(), rows_of(logits),
                 on_device.as<std::int32_t>(), log_prob.as<double>(), argmax.as<std::int32_t>()},
                logits);
    const auto logs = work_.copy_back<double>(log_prob, rows);
    const auto greatest = work_.copy_back<std::int32_t>(argmax, rows);
    for (std::size_t r = 0; r < rows; ++r) scores[r] = {logs[r], greatest[r]};
  }

  void divergence(const TensorView& p, const TensorView& q, std::span<double> kl) override {
    require_on(device(), "divergence", {&p, &q});
    const Buffer result = work_.scratch(kl.size_bytes());
    work_.start("divergence", work_.kernels().divergence,
                {static_cast<std::int64_t>(kl.size()), p.cols(), rows_of(p), rows_of(q), result.as<double>()},
                p);
    work_.device().copy_out(kl.data(), result.get(), kl.size_bytes());
  }

  // Calibration.
  void gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_on(device(), "gram", {&g, &x});
    products_->add_gram(g, x, before);
  }
  void drain_gram(ExactSums& triangle, const TensorView& g) override {
    require_on(device(), "drain_gram", {&g});
    add_gram(work_, triangle, g);
    clear(g);
  }
  void channel_stats(const TensorView& x, std::span<double> absolute_sum,
                     std::span<float> absolute_max) override {
    require_on(device(), "channel_stats", {&x});
    sum_channels(work_, x, absolute_sum, absolute_max);
  }
  void quadratic_form(std::span<double> loss, const TensorView& d, const PreparedWeight& g) override {
    require_on(device(), "quadratic_form", {&d});
    evaluate_form(work_, loss, d, own(g));
  }

 private:
  const CudaWeight& own(const PreparedWeight& weight) const {
    return own_weight<CudaWeight>(weight, *this,
                                  [&](const CudaWeight& mine) { return mine.owner == &work_.device(); });
  }

  std::unique_ptr<DenseProducts> products_for(DeviceUse use) {
    if (use == DeviceUse::kServing) return make_own_products(work_, {});
    DenseLibrary* library = nullptr;
    try {
      library = work_.device().dense_library();
    } catch (const Error& error) {  // it does not start, or has no memory to work in
      if (error.kind() != ErrorKind::kDevice && error.kind() != ErrorKind::kResource) throw;
      return make_own_products(work_, error.what());
    }
    if (library == nullptr) return make_own_products(work_, work_.device().why_no_dense_library());
    return make_library_products(work_, *library);
  }

  CudaWork work_;
  std::unique_ptr<DenseProducts> products_;
  bool by_codes_ = false;     // E2M1 by E2M1
  std::string float4_fault_;  // why not, where the device has such products
  CudaExtensions extensions_{work_};
};

}  // namespace

std::shared_ptr<Backend> make_backend_on(std::unique_ptr<CudaDevice> device, int threads, DeviceUse use) {
  return std::make_shared<CudaBackend>(std::move(device), threads, use);
}

std::shared_ptr<Backend> make_emulated_cuda_backend(int threads, const EmulatedDeviceSpec& spec,
                                                    DeviceUse use) {
  return make_backend_on(make_emulated_device(spec), threads, use);
}

}  // namespace llmq
