// A model ready to run: weights of any kind, a paged KV cache, a backend.
//
// forward() runs rows of any number of sequences, prompts and single tokens alike, and returns hidden states;
// the block forward is the one calibration runs (model/run_sublayer.h). A result never depends on batch
// mates, chunking or thread count (row invariance).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/backend.h"
#include "model/output_head.h"
#include "model/run_sublayer.h"
#include "runtime/kv_cache.h"

namespace llmq {

// The first `count` blocks of a model, and their pages, on a backend of their own.
struct EarlyBlocks {
  std::shared_ptr<Backend> backend;
  int count = 0;
};

class Engine {
 public:
  struct Options {
    Compute compute = Compute::kBFloat16;
    std::int64_t max_context = 2048;  // positions of the rope tables
    std::int64_t kv_tokens = 2048;    // capacity of the KV cache, all sequences together
    // of these, in layers that a window passes, where their pages have a size of their own; 0: as many
    std::int64_t kv_window_tokens = 0;
    int block_size = 16;
    bool prefix_caching = true;
    // Of a model with recurrent states: room for snapshots of them, without which no prefix is found, and so
    // many positions between two of a prompt (kv_blocks.h). The memory is taken as it is needed.
    std::uint64_t snapshot_bytes = std::uint64_t{1} << 30;
    std::int64_t snapshots_apart = 64;
    HeadWeight head = HeadWeight::kStored;
    std::optional<KvType> kv;  // of the KV cache; the compute type's numbers when absent
    // What the model reads once, when its pages are INT8 or INT4, to find coordinates in which they lose
    // least (runtime/kv_fitting.h); without it keys and values are stored as they are. FP8 takes the
    // checkpoint's own scales, where it has them.
    std::vector<std::int32_t> kv_probe = {};
    // The engine's own backend has all the rest: embedding, later blocks, head. The residual stream goes
    // between the two by way of the host.
    EarlyBlocks early = {};
    // With them the model is divided (model/divided_block.h): the engine's own backend is the first member,
    // and has the embedding, the final norm and the head besides.
    std::vector<std::shared_ptr<Backend>> further_members = {};
  };
  static Engine load(const Checkpoint& checkpoint, std::shared_ptr<Backend> backend, const Options& options);

  const ModelSpec& spec() const;
  Backend& backend() const;
  const std::shared_ptr<Backend>& shared_backend() const;  // for another engine of the same threads
  KvCache& cache();
  const Options& options() const;
  // of its backend, and of the early blocks' or the other members' where there are any
  std::string device_name() const;
  // Of the weights that every step reads once, whatever its rows: all linears and the head.
  std::size_t weight_bytes() const;
  // Of those, what a step of so many rows reads at most: not every expert of a mixture.
  double bytes_read(std::int64_t rows) const;
  // What kernel serves which weights: the linears of one scheme ("w4a16_g64_sym", "bf16") by one kernel, and
  // the head.
  struct Served {
    std::string weights, kernel;
    std::int64_t linears = 0;
    std::size_t bytes = 0;
  };
  const std::vector<Served>& served() const;
  // Sentences about weights and kernels that could be faster on this machine.
  std::vector<std::string> slower_than_possible() const;

  // An adapter for the steps that name it; one of this engine's model.
  std::shared_ptr<const PreparedAdapter> prepare(const LoraAdapter& adapter);
  // Every row whose step names no adapter gets this one: before the first forward(), because pages depend on
  // it.
  void adapt(const LoraAdapter& adapter);

  // What a sequence of this model leaves beside its pages; null: nothing (docs/adr/0023-recurrent-state.md).
  std::unique_ptr<SequenceState> new_state() const;

  // One of cache().blocks().snapshots().
  SequenceState& snapshot(std::int32_t slot);
  SequenceState* snapshot_with_room(std::int32_t slot);  // null where there is no memory for it
  std::int64_t snapshots_made() const;                   // that have memory
  // Guesses that `state` has read from `length` on were wrong (SequenceState::guess_from).
  void take_back(SequenceState& state, std::int64_t length);

  // `tokens` of a sequence stand at positions first, first + 1, ...; `tables` has its blocks by page group,
  // with room for them.
  struct Step {
    std::span<const std::int32_t> tokens;
    std::int64_t first = 0;
    std::span<const PageTable> tables;
    const PreparedAdapter* adapter = nullptr;
    SequenceState* state = nullptr;  // of a model that has one; at `first`, or at any length where that is 0
    std::span<const StateSave> saves =
        {};  // of that state, at positions behind `first` that the step reaches
  };
  // Final-normed hidden states of all rows, compute dtype [T, hidden_size]; keys and values go to the pages.
  Buffer forward(std::span<const Step> steps);
  // The same for a sequence that is extended by these tokens.
  Buffer forward(KvSequence& sequence, std::span<const std::int32_t> tokens);
  // logits F32 [R, vocab] of given rows of forward()'s result (views into a scratch buffer valid until the
  // next call).
  TensorView logits(const TensorView& normed_rows);
  // The scores of given rows of forward()'s result, without their logits in memory.
  void score(const TensorView& normed_rows, std::span<const std::int32_t> targets,
             std::span<RowScore> scores);
  // of logits(); the caller may change them. Valid until the next call
  std::span<float> on_host(const TensorView& logits);
  // Logits [rows.size(), vocab] of some rows of forward()'s result, `total` rows, as logits() gives them; or
  // on_host().
  TensorView logits_of(const Buffer& normed, std::int64_t total, std::span<const std::int32_t> rows);
  std::span<float> host_logits(const Buffer& normed, std::int64_t total, std::span<const std::int32_t> rows) {
    return on_host(logits_of(normed, total, rows));
  }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace llmq
