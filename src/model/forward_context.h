// What a forward pass needs beside weights: constant over a run, or of one batch.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/adapters/prepared_adapter.h"
#include "model/block_weights.h"
#include "model/fitting_rows.h"
#include "model/model_spec.h"
#include "model/row_chunks.h"
#include "model/sequence_state.h"

namespace llmq {

// A table of the model's on the device: F32 [positions, dims/2].
struct RopeOnDevice {
  Buffer cosines, sines;
};

// Constant over a run: the model, the device, the arithmetic, the rope tables on the device.
struct ForwardContext {
  const ModelSpec& spec;
  Backend& backend;
  Compute compute;
  std::vector<RopeOnDevice> ropes;  // as in ModelSpec
  std::int64_t positions = 0;
  RowChunks chunks = {};
  std::size_t member = 0;  // of those that a model is divided over (model/divided_block.h)
  // of whoever goes on where memory runs out; null: that ends the work
  std::unique_ptr<FittingRows> fitting = {};
};
ForwardContext make_forward_context(const ModelSpec& spec, Backend& backend, Compute compute,
                                    std::int64_t positions);

// The rows of a batch: which sequence, which positions, which KV slots.
struct BatchRows {
  std::vector<std::int32_t> positions;  // [T]
  std::vector<std::int64_t> slots;      // [T]
  std::vector<SequenceRows> sequences;
  // Of each sequence, where blocks have one; none: every sequence begins at position 0 and ends here.
  std::vector<SequenceState*> states;
  std::vector<AdapterRun> adapters;  // rising; of the rows that have one
};

// One member in one block; a single one has the whole model.
struct MemberBlock {
  const ForwardContext* context;  // of the member's ModelSpec
  const BlockWeights* weights;
  KvPages pages;
  TensorView hidden;  // F32 [T, hidden_size]: the same on every member, before and after
  TensorView embedded =
      {};  // F32 [T, width]: what the block has of ModelSpec::block_embedding, if there is one
};

}  // namespace llmq
