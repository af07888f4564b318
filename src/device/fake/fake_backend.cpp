// A device without a device: closed memory, the reference's arithmetic. What would fail on a GPU for want of
// a copy fails here.
//
// Every operation opens the memory of its own tensors, hands the reference the same views under the host's
// name, and closes it again.
#include "base/error.h"
#include "device/backend.h"
#include "device/fake/closed_memory.h"
#include "device/on_device.h"
#include "device/own_weight.h"

namespace llmq {
namespace {

class FakeWeight final : public PreparedWeight {
 public:
  std::string prepared_by() const override { return "fake"; }
  std::unique_ptr<PreparedWeight> inner;
};

TensorView on_host(const TensorView& view) {
  TensorView host = view;
  host.device = {};
  return host;
}

KvPages on_host(const KvPages& pages) {
  KvPages host = pages;
  host.keys = on_host(pages.keys);
  host.values = on_host(pages.values);
  return host;
}

class FakeBackend final : public Backend {
 public:
  std::string name() const override { return "fake"; }
  Device device() const override { return kFakeDevice; }
  int threads() const override { return 1; }
  ThreadPool& workers() override { return reference_->workers(); }

  // The reference has none, and would have to be given an open memory if it had.
  const Extensions& extensions() const override { return kNoExtensions; }

  Buffer allocate(std::size_t bytes) override { return Buffer(memory_, bytes); }
  void upload(const TensorView& to, const void* from_host) override {
    require_host("upload", from_host);
    const ClosedMemory::Opening open(*memory_, "upload", {&to});
    reference_->upload(on_host(to), from_host);
  }
  void download(void* to_host, const TensorView& from) override {
    require_host("download", to_host);
    const ClosedMemory::Opening open(*memory_, "download", {&from});
    reference_->download(to_host, on_host(from));
  }
  void synchronize() override {}

  std::unique_ptr<PreparedWeight> prepare(const TensorView& weight, Compute compute) override {
    require_on({}, "prepare", {&weight});
    require_host("prepare", weight.pointer);
    return wrapped(reference_->prepare(weight, compute));
  }
  std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) override {
    return wrapped(reference_->prepare_quantized(matrix, compute));
  }
  bool keeps_codes(const QuantizedMatrix& matrix, Compute compute) const override {
    return reference_->keeps_codes(matrix, compute);
  }

  void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
              const TensorView& bias) override {
    const ClosedMemory::Opening open(*memory_, "linear", {&y, &x, &bias});
    reference_->linear(on_host(y), on_host(x), inner(w), on_host(bias));
  }
  void embed(const TensorView& y, const TensorView& table, std::span<const std::int32_t> ids) override {
    const ClosedMemory::Opening open(*memory_, "embed", {&y, &table});
    reference_->embed(on_host(y), on_host(table), ids);
  }
  void rms_norm(const TensorView& y, const TensorView& x, const TensorView& gain, float eps) override {
    const ClosedMemory::Opening open(*memory_, "rms_norm", {&y, &x, &gain});
    reference_->rms_norm(on_host(y), on_host(x), on_host(gain), eps);
  }
  void layer_norm(const TensorView& y, const TensorView& x, const TensorView& gain, const TensorView& bias,
                  float eps) override {
    const ClosedMemory::Opening open(*memory_, "layer_norm", {&y, &x, &gain, &bias});
    reference_->layer_norm(on_host(y), on_host(x), on_host(gain), on_host(bias), eps);
  }
  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines, RopePairs pairs) override {
    const ClosedMemory::Opening open(*memory_, "rope", {&x, &cosines, &sines});
    reference_->rope(on_host(x), positions, on_host(cosines), on_host(sines), pairs);
  }
  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    const ClosedMemory::Opening open(*memory_, "store_kv", {&pages.keys, &pages.values, &k, &v});
    reference_->store_kv(on_host(pages), on_host(k), on_host(v), slots);
  }
  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    const ClosedMemory::Opening open(*memory_, "load_kv", {&pages.keys, &pages.values, &k, &v});
    reference_->load_kv(on_host(k), on_host(v), on_host(pages), slots);
  }
  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    const ClosedMemory::Opening open(*memory_, "attention",
                                     {&out, &q, &pages.keys, &pages.values, &problem.sinks});
    AttentionProblem host = problem;
    host.sinks = on_host(problem.sinks);
    reference_->attention(on_host(out), on_host(q), on_host(pages), sequences, host);
  }
  void causal_conv(const TensorView& y, const TensorView& x, const TensorView& weight,
                   const TensorView& before) override {
    const ClosedMemory::Opening open(*memory_, "causal_conv", {&y, &x, &weight, &before});
    reference_->causal_conv(on_host(y), on_host(x), on_host(weight), on_host(before));
  }
  void delta_rule(const TensorView& out, const TensorView& q, const TensorView& k, const TensorView& v,
                  const DeltaGates& gates, const TensorView& state, const DeltaHeads& heads) override {
    const ClosedMemory::Opening open(
        *memory_, "delta_rule",
        {&out, &q, &k, &v, &gates.decay, &gates.share, &gates.rate, &gates.shift, &state});
    reference_->delta_rule(
        on_host(out), on_host(q), on_host(k), on_host(v),
        {on_host(gates.decay), on_host(gates.share), on_host(gates.rate), on_host(gates.shift)},
        on_host(state), heads);
  }
  void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                        Activation act) override {
    const ClosedMemory::Opening open(*memory_, "gated_activation", {&y, &gate, &up});
    reference_->gated_activation(on_host(y), on_host(gate), on_host(up), act);
  }
  void activate(const TensorView& y, const TensorView& x, Activation act) override {
    const ClosedMemory::Opening open(*memory_, "activate", {&y, &x});
    reference_->activate(on_host(y), on_host(x), act);
  }
  void softcap(const TensorView& x, float cap) override {
    const ClosedMemory::Opening open(*memory_, "softcap", {&x});
    reference_->softcap(on_host(x), cap);
  }
  void add(const TensorView& into, const TensorView& x, float scale) override {
    const ClosedMemory::Opening open(*memory_, "add", {&into, &x});
    reference_->add(on_host(into), on_host(x), scale);
  }
  void add_rows(const TensorView& into, const TensorView& x, std::span<const std::int32_t> rows,
                std::span<const float> scales) override {
    const ClosedMemory::Opening open(*memory_, "add_rows", {&into, &x});
    reference_->add_rows(on_host(into), on_host(x), rows, scales);
  }
  void convert(const TensorView& to, const TensorView& from) override {
    const ClosedMemory::Opening open(*memory_, "convert", {&to, &from});
    reference_->convert(on_host(to), on_host(from));
  }
  void score_rows(const TensorView& logits, std::span<const std::int32_t> targets,
                  std::span<RowScore> scores) override {
    const ClosedMemory::Opening open(*memory_, "score_rows", {&logits});
    reference_->score_rows(on_host(logits), targets, scores);
  }
  void divergence(const TensorView& p, const TensorView& q, std::span<double> kl) override {
    const ClosedMemory::Opening open(*memory_, "divergence", {&p, &q});
    reference_->divergence(on_host(p), on_host(q), kl);
  }
  void gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    const ClosedMemory::Opening open(*memory_, "gram", {&g, &x});
    reference_->gram(on_host(g), on_host(x), before);
  }
  void drain_gram(ExactSums& triangle, const TensorView& g) override {
    const ClosedMemory::Opening open(*memory_, "drain_gram", {&g});
    reference_->drain_gram(triangle, on_host(g));
  }
  void channel_stats(const TensorView& x, std::span<double> absolute_sum,
                     std::span<float> absolute_max) override {
    const ClosedMemory::Opening open(*memory_, "channel_stats", {&x});
    reference_->channel_stats(on_host(x), absolute_sum, absolute_max);
  }
  void quadratic_form(std::span<double> loss, const TensorView& d, const PreparedWeight& g) override {
    const ClosedMemory::Opening open(*memory_, "quadratic_form", {&d});
    reference_->quadratic_form(loss, on_host(d), inner(g));
  }

 private:
  void require_host(const char* operation, const void* pointer) const {
    if (memory_->owns(pointer))
      fail(ErrorKind::kInternal, "{} was given device memory where host memory belongs", operation);
  }
  static std::unique_ptr<PreparedWeight> wrapped(std::unique_ptr<PreparedWeight> weight) {
    auto prepared = std::make_unique<FakeWeight>();
    prepared->out_features = weight->out_features;
    prepared->in_features = weight->in_features;
    prepared->compute = weight->compute;
    prepared->bytes = weight->bytes;
    prepared->kernel = weight->kernel;
    prepared->keeps_codes = weight->keeps_codes;
    prepared->inner = std::move(weight);
    return prepared;
  }
  const PreparedWeight& inner(const PreparedWeight& weight) const {
    return *own_weight<FakeWeight>(weight, *this).inner;
  }

  std::shared_ptr<ClosedMemory> memory_ = std::make_shared<ClosedMemory>();
  std::shared_ptr<Backend> reference_ = make_reference_backend();
};

}  // namespace

std::shared_ptr<Backend> make_fake_backend() { return std::make_shared<FakeBackend>(); }

}  // namespace llmq
