// What a device can do, in about twenty coarse operations. No device type appears here; CUDA, the CPU levels,
// the scalar double reference and the fake device implement it, and all pass the same parameterised tests
// (tests/kernels/backend).
//
// Laws every implementation obeys:
//  - Row invariance: row i of a result depends on row i of the input alone; the order of summation along K is
//    the same at any row count, batch and thread count. Nothing here depends on how many threads run.
//  - Views passed in are on the backend's own device (Error(kInternal) otherwise); host data crosses only
//    through upload/download.
//  - Shapes are facts here: callers checked them.
//
// Activations: residual stream and outputs of linears are F32; inputs of linears are of the compute dtype
// (F32 in float32 compute, BF16 in bfloat16 compute: BF16 products, FP32 sums).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "device/extensions.h"
#include "kernels/common/activation.h"
#include "kernels/common/look_back.h"
#include "tensor/buffer.h"
#include "tensor/exact_sums.h"
#include "tensor/kv_type.h"
#include "tensor/quantized_matrix.h"
#include "tensor/tensor_view.h"

namespace llmq {

enum class Compute : std::uint8_t { kFloat32, kBFloat16 };
inline const char* compute_name(Compute compute) {
  return compute == Compute::kFloat32 ? "float32" : "bfloat16";
}
inline std::optional<Compute> compute_named(std::string_view name) {
  if (name == "float32") return Compute::kFloat32;
  if (name == "bfloat16") return Compute::kBFloat16;
  return std::nullopt;
}
inline DType activation_dtype(Compute compute) {
  return compute == Compute::kFloat32 ? DType::kF32 : DType::kBF16;
}

// Which channels of n are the i-th pair: i and i + n/2, or 2i and 2i + 1.
enum class RopePairs : std::uint8_t { kHalves, kNeighbours };

// A weight laid out for one backend (re-tiled, converted). [out_features, in_features]. Only that backend
// looks inside (device/own_weight.h).
class PreparedWeight {
 public:
  virtual ~PreparedWeight() = default;
  virtual std::string prepared_by() const = 0;  // the backend, for errors
  std::int64_t out_features = 0, in_features = 0;
  Compute compute = Compute::kFloat32;
  std::size_t bytes = 0;
  std::string kernel;        // what multiplies it, for people: "4-bit codes", "bf16 panels"
  bool keeps_codes = false;  // of a quantized weight: it is not dequantized
};

// y = x w^T + bias, as linear() takes it.
struct LinearCall {
  TensorView y, x;
  const PreparedWeight* weight = nullptr;
  TensorView bias;
};

// One layer's paged KV cache: keys and values [blocks, block_size, kv_heads, head_dim] of `dtype` (F32 or
// BF16). The order of the elements of a block is the backend's own: store_kv() writes it, attention() reads
// it, a copy of all its bytes is that block. Packed ones are U8 [blocks, kv_heads, block_size, KvRow::bytes()
// of theirs]: rows as kernels/common/kv_row.h has them, the same on every backend.
struct KvPages {
  TensorView keys, values;
  int block_size = 16;
  std::optional<KvFormats> packed = {};
  float key_scale = 1, value_scale = 1;  // of kFloat8
};

// Rows [first_row, first_row + rows) of a batch are consecutive positions of one sequence; the first has
// position `context`. Position p lives in slot p % block_size of block block_table[p / block_size]. With a
// sliding window, or chunks, entries of blocks that lie wholly below kAttentionTile * (first_seen(context) /
// kAttentionTile) are not looked at.
inline constexpr int kAttentionTile = 64;  // keys at a time, from absolute positions 0, 64, 128, ... on
struct SequenceRows {
  std::int64_t first_row = 0, rows = 0, context = 0;
  std::span<const std::int32_t> block_table;  // host memory
};

struct AttentionProblem {
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;                  // usually 1/sqrt(head_dim)
  std::int64_t sliding_window = 0;  // 0: none; else position p sees p-window+1 .. p, or as `chunks` says
  Compute compute = Compute::kFloat32;
  float softcap = 0;      // 0: none; else a score s, scaled, counts as softcap * tanh(s / softcap)
  TensorView sinks = {};  // F32 [heads] on the device: a key of this score and of no value; empty: none
  bool chunks = false;    // the window begins at its last multiple
  LookBack look_back() const { return {sliding_window, chunks}; }
};

// Heads of the gated delta rule: value head h has query and key of head h / (value_heads / key_heads).
struct DeltaHeads {
  int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t keys() const { return std::int64_t{key_heads} * key_dim; }
  std::int64_t values() const { return std::int64_t{value_heads} * value_dim; }
  // Elements of the state of one sequence.
  std::int64_t state() const { return values() * key_dim; }
};
// What makes a row's two numbers of a value head: by how much its state decays, exp(-exp(rate) softplus(decay
// + shift)), and which share of the difference it takes, sigmoid(share). F32 [T, value_heads], and
// [value_heads].
struct DeltaGates {
  TensorView decay, share, rate, shift;
};

// What scoring needs of one row of logits, all in FP64 over the FP32 logits.
struct RowScore {
  double log_prob = 0;      // log softmax(logits)[target]
  std::int32_t argmax = 0;  // lowest index among equals
};

// The rows that two calls of Backend::gram() may part at are its multiples: no backend adds more of them at a
// time (AMX's tiles, 32).
inline constexpr std::int64_t kGramTokens = 32;

// What a device multiplies dense weights for: batches that may be of one row, or calibration's thousands,
// whose products may be a library's that takes rows by the tile. It decides how weights are laid out and what
// few rows cost, no bit.
enum class DeviceUse : std::uint8_t { kServing, kCalibration };

// What computes something where there is a choice, for people: "weights of 5120 by 1024", "cuBLASLt 13.1.0:
// algorithm 66, ..."; and why it is not the library, where it is not.
struct KernelChoice {
  std::string what, kernel, why;
  std::int64_t asked = 0;  // weights that were prepared, sums that were begun; 0: it is so for all
  // Whether all of them lack a faster one, which is said then (of one shape it is said when it is tried).
  bool is_second_best() const { return asked == 0 && !why.empty(); }
  std::string sentence() const { return what + " have the " + kernel + ": " + why; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu (avx512_bf16, 2 threads)", "reference", "fake"
  virtual std::string arithmetic() const { return name(); }  // what decides its bits: "cpu avx512_bf16"
  virtual Device device() const = 0;
  virtual int threads() const = 0;
  // The host's threads, which its own work runs on: whoever computes beside it takes these, since two pools
  // would wait for one another's cores. Not from two threads at once.
  virtual ThreadPool& workers() = 0;
  // Why it computes slower than llmq does elsewhere or otherwise, as a sentence; empty where it does not.
  virtual std::string slower_than_possible() const { return {}; }

  // What it can do beyond these operations.
  virtual const Extensions& extensions() const = 0;
  // Of what was prepared and summed so far (DeviceUse::kCalibration).
  virtual std::vector<KernelChoice> kernel_choices() const { return {}; }

  // Memory. What a caller starts takes effect in the order of the calls, however a device runs it.
  virtual Buffer allocate(std::size_t bytes) = 0;
  // the most that was held at once of memory that is not the host's
  virtual std::uint64_t peak_bytes() const { return 0; }
  // Of memory beside the host's: what buffers may take now, and what partial results may take where an
  // operation can be cut. Both 0 where tensors lie in the host's memory.
  virtual std::uint64_t free_bytes() const { return 0; }
  virtual std::uint64_t scratch_bytes() const { return 0; }
  // to.bytes(); from_host is free again at return
  virtual void upload(const TensorView& to, const void* from_host) = 0;
  virtual void download(void* to_host, const TensorView& from) = 0;  // from.bytes()
  virtual void synchronize() = 0;
  // to = from, a tensor of `owner`, from device to device in the order of both devices' work; false where
  // there is no such way, and the host has to carry it (device/exchange.h). Same dtype and shape; rows may be
  // strided.
  virtual bool copy_from(const TensorView& /*to*/, Backend& /*owner*/, const TensorView& /*from*/) {
    return false;
  }
  // What is started between the two belongs to `name`, for whoever looks at a profile (device/named_range.h).
  // They nest.
  virtual void begin_range(const std::string& /*name*/) {}
  virtual void end_range() noexcept {}

  // Weights. `weight` is host memory, [out, in], F32, BF16 or F16, contiguous; bfloat16 compute rounds
  // F32/F16 to BF16.
  virtual std::unique_ptr<PreparedWeight> prepare(const TensorView& weight, Compute compute) = 0;
  // A weight of codes. With 8-bit activations the inputs are rounded in linear() (device/low_precision.h has
  // the arithmetic: INT8 products are summed exactly). Else the codes stay in memory as they are; float32
  // compute then has the bits of prepare() on the dequantized weight, bfloat16 compute multiplies BF16 inputs
  // with the values themselves, which are not rounded to BF16 (docs/adr/0009).
  virtual std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix,
                                                            Compute compute) = 0;
  // Whether prepare_quantized() takes this weight of 16-bit activations; where not, the dequantized weight
  // does.
  virtual bool keeps_codes(const QuantizedMatrix& matrix, Compute compute) const = 0;
  // y[m, n] = sum_k x[m, k] w[n, k] (+ bias[n], F32): y F32 [M, N] (row_stride may exceed N), x [M, K] of the
  // compute dtype. bias may be an empty view.
  virtual void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
                      const TensorView& bias) = 0;

  // linear() for each, none of whose results is an input of another: one round of the workers where rows are
  // few.
  virtual void linears(std::span<const LinearCall> calls) {
    for (const LinearCall& call : calls) linear(call.y, call.x, *call.weight, call.bias);
  }

  // y[t] = table[ids[t]]: y F32 [T, H], table F32/BF16/F16 [V, H] on the device, ids host.
  virtual void embed(const TensorView& y, const TensorView& table, std::span<const std::int32_t> ids) = 0;
  // y = x / sqrt(mean(x^2) + eps) * gain, over the last dimension; x F32, gain F32, y F32 or BF16. Also per
  // head: view [T*heads, head_dim]. y may be x.
  virtual void rms_norm(const TensorView& y, const TensorView& x, const TensorView& gain, float eps) = 0;
  // y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * gain + bias, as rms_norm(); bias may be an empty view.
  // gain may be [g, H]: row r is multiplied by row r % g of it, so that each head may have its own.
  virtual void layer_norm(const TensorView& y, const TensorView& x, const TensorView& gain,
                          const TensorView& bias, float eps) = 0;
  // Rotates pairs of channels of x [T, heads, head_dim] F32 in place by angle positions[t]; cosines and sines
  // F32 [max_position, head_dim/2] on the device. positions host.
  virtual void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
                    const TensorView& sines, RopePairs pairs) = 0;
  // Writes k and v F32 [T, kv_heads, head_dim] to slots (block * block_size + offset), rounding to the pages'
  // dtype.
  virtual void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                        std::span<const std::int64_t> slots) = 0;
  // The other way: k and v F32 [T, kv_heads, head_dim] are what the slots hold.
  virtual void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
                       std::span<const std::int64_t> slots) = 0;
  // Causal attention of q F32 [T, heads, head_dim] over the pages; out [T, heads*head_dim] of the compute
  // dtype. Online softmax over tiles of kAttentionTile keys: never an S x S matrix, and row i does not depend
  // on its batch.
  virtual void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                         std::span<const SequenceRows> sequences, const AttentionProblem& problem) = 0;
  // What rows leave for those behind them in a state of fixed size. Both take consecutive rows of one
  // sequence and change its state; rows go one after another, so no result depends on where it is cut.
  //
  // y[t, c] = silu(sum_j weight[j, c] x[t - taps + 1 + j, c]), where `before` [taps - 1, C] stands before the
  // first row; then it is the last taps - 1 of all these rows. y, x F32 [T, C] (row strides free, y is not
  // x), weight F32 [taps, C].
  virtual void causal_conv(const TensorView& y, const TensorView& x, const TensorView& weight,
                           const TensorView& before) = 0;
  // The gated delta rule, for each value head with its state S [key_dim, value_dim], row by row:
  //   k, q = k / |k|, q / |q| / sqrt(key_dim)     |x| = sqrt(sum x^2 + 1e-6)
  //   S = decay S;  S += k (share (v - S^T k))^T;  out = S^T q
  // q, k F32 [T, key_heads * key_dim], v, out F32 [T, value_heads * value_dim], row strides free; state F32
  // [value_heads, key_dim, value_dim].
  virtual void delta_rule(const TensorView& out, const TensorView& q, const TensorView& k,
                          const TensorView& v, const DeltaGates& gates, const TensorView& state,
                          const DeltaHeads& heads) = 0;
  // y = act(gate) * up (or what activation.h makes of up); gate, up F32 [T, I] (strides free), y F32 or BF16.
  virtual void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                                Activation act) = 0;
  // y = act(x); x F32 [T, I] (row strides free), y F32 or BF16. y may be x.
  virtual void activate(const TensorView& y, const TensorView& x, Activation act) = 0;
  // x = cap * tanh(x / cap), F32 in place (row strides free); cap > 0.
  virtual void softcap(const TensorView& x, float cap) = 0;
  // into += scale * x, F32; the product is rounded before the sum.
  virtual void add(const TensorView& into, const TensorView& x, float scale) = 0;
  // into[rows[i]] += scales[i] * x[i], F32, the product rounded before the sum. rows and scales host, one for
  // each row of x; rows rise, so that each is added to once.
  virtual void add_rows(const TensorView& into, const TensorView& x, std::span<const std::int32_t> rows,
                        std::span<const float> scales) = 0;
  virtual void convert(const TensorView& to, const TensorView& from) = 0;  // F32 or BF16, one shape

  // Scoring. logits F32 [R, V] on the device; results on the host, one per row.
  virtual void score_rows(const TensorView& logits, std::span<const std::int32_t> targets,
                          std::span<RowScore> scores) = 0;
  // score_rows() of the logits x w^T, x [R, K] of the compute dtype, behind softcap() where that is not 0,
  // without all of them in memory: the same digits.
  virtual void score_products(const TensorView& x, const PreparedWeight& w, float softcap,
                              std::span<const std::int32_t> targets, std::span<RowScore> scores);
  // KL(softmax(p) || softmax(q)) in nats per row, FP64; exactly 0 for equal rows.
  virtual void divergence(const TensorView& p, const TensorView& q, std::span<double> kl) = 0;

  // Calibration. gram: upper triangle (col >= row) of F32 [K, K] += sum_t x[t]^T x[t], exact products of x's
  // dtype (F32 or BF16) summed in FP32 in token order. `before`: how many rows g already holds, which x's
  // follow; a multiple of kGramTokens (else Error(kInternal)), as matrix units sum that many tokens at once.
  // So any split of rows that follow a g of zeros gives the same bits (the reference sums a call in FP64).
  // Callers feed at most 4096 rows to one g and then drain it (calibration/input_stats.h).
  virtual void gram(const TensorView& g, const TensorView& x, std::int64_t before = 0) = 0;
  // triangle += upper triangle of g (row i: columns i..K-1), on the host; that of g is 0 then.
  virtual void drain_gram(ExactSums& triangle, const TensorView& g) = 0;
  virtual void clear(const TensorView& to);  // = 0; any plain type
  // absolute_sum[k] += sum_t |x[t,k]| (FP64, one chain over the rows), absolute_max[k] = max(.., |x[t,k]|):
  // host results.
  virtual void channel_stats(const TensorView& x, std::span<double> absolute_sum,
                             std::span<float> absolute_max) = 0;
  // loss[r] = d[r] G d[r]^T for each row of d [R, K] F32; G symmetric, prepared from its full F32 square. The
  // products' precision is G's compute type; sums over k are FP32 per row, FP64 across tiles.
  virtual void quadratic_form(std::span<double> loss, const TensorView& d, const PreparedWeight& g) = 0;
};

struct BackendRequest {
  // auto (device/automatic_device.h) | cpu | cuda[:N] | reference | fake | emulated[:N] (CUDA's kernels on
  // the host)
  std::string device = "auto";
  int threads = 0;              // 0: available_cores()
  std::string arithmetic = {};  // of the backend (Backend::arithmetic()); empty: the device's best
  DeviceUse use = DeviceUse::kServing;
};

// What every processor with AVX2 and FMA computes alike, those with AVX-512 or AMX too: the order of every
// sum is that of its eight lanes. The kernels on host memory beside the backend (device/host_*.h) give the
// same bits at every level.
inline constexpr const char* kPortableArithmetic = "cpu avx2";

// Error(kUnsupported) for a device this build or machine does not have, saying what would do.
std::shared_ptr<Backend> make_backend(const BackendRequest& request);

// One per implementation; make_backend dispatches. make_cuda_backend comes from
// device/cuda/runtime_device.cpp or device/no_cuda.cpp.
std::shared_ptr<Backend> make_reference_backend();
std::shared_ptr<Backend> make_cpu_backend(
    int threads);  // level chosen once: LLMQ_CPU_ISA=scalar|avx2|avx512|amx or the best present
std::shared_ptr<Backend>
make_fake_backend();  // its memory is closed to the host; its work is run by the reference
// `threads` of the host, for workers()
std::shared_ptr<Backend> make_cuda_backend(int index, int threads, DeviceUse use = DeviceUse::kServing);

}  // namespace llmq
