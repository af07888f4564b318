// Granite's four numbers, where they come from and what reads them; the stacks of its experts. What they give
// is held by tests/golden/models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/cuda_backend.h"
#include "model/block_weights.h"
#include "model/embedding.h"
#include "tests/unit/model/scratch_model.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string granite_sentence(const ScratchModel& model) {
  return error_of([&] { ModelSpec::read(model.open()); });
}

struct ScratchGranite : ScratchModel {
  ScratchGranite() : ScratchModel("granite", "GraniteForCausalLM") {
    config["embedding_multiplier"] = 12.3;
    config["attention_multiplier"] = 0.015625;
    config["residual_multiplier"] = 0.22;
    config["logits_scaling"] = 8;
  }
};

TEST(Granite, NumbersOfItsConfig) {
  ScratchGranite model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.embedding.scale, 12.3f);
  EXPECT_EQ(spec.final_norm.scale, 0.125f);
  for (const BlockSpec& block : spec.blocks) {
    EXPECT_EQ(block.attention()->scale, 0.015625f);
    for (const SublayerSpec& part : block.sublayers) EXPECT_EQ(part.residual_scale, 0.22f);
  }
}

TEST(Granite, AbsentOnesAreOne) {
  const ScratchModel plain("granite", "GraniteForCausalLM");
  const ModelSpec spec = ModelSpec::read(plain.open());
  EXPECT_EQ(spec.blocks[0].attention()->scale, 1) << "not 1 / sqrt(head_dim)";
  EXPECT_EQ(spec.embedding.scale, 1);
  EXPECT_EQ(spec.final_norm.scale, 1);
  EXPECT_EQ(spec.blocks[1].sublayers[1].residual_scale, 1);
}

TEST(Granite, NumbersThatScaleNothingAreRefused) {
  for (const char* key :
       {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"})
    for (const Json& value : {Json(0), Json(-1.0), Json(1e9), Json("2")}) {
      ScratchGranite model;
      model.config[key] = value;
      EXPECT_THAT(granite_sentence(model), HasSubstr(key)) << value.dump();
    }
  ScratchModel llama;
  llama.config["embedding_multiplier"] = 2;
  EXPECT_THAT(granite_sentence(llama), HasSubstr("embedding_multiplier")) << "Llama has none";
}

// Calibration reads rows of the table from the file, generation looks them up on the device.
TEST(Granite, BothWaysToTheFirstResidualStreamHaveTheSameBits) {
  const ScratchGranite model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::vector<std::int32_t> ids = {3, 31, 0, 7, 7, 12}, positions = {0, 1, 2, 3, 4, 5};
  const std::vector<float> table = checkpoint.read_float32(checkpoint.at("model.embed_tokens.weight"));
  std::vector<float> want;
  for (const std::int32_t id : ids)
    for (int c = 0; c < 16; ++c) want.push_back(12.3f * table[static_cast<std::size_t>(16 * id + c)]);
  for (const auto& backend :
       {make_reference_backend(), make_fake_backend(), make_cpu_backend(2), make_emulated_cuda_backend(1)}) {
    const auto floats = [&](std::int64_t rows) {
      return backend->allocate(static_cast<std::size_t>(16 * rows) * sizeof(float));
    };
    const Buffer stored = floats(32), looked_up = floats(6), read = floats(6);
    const TensorView on_device = stored.view(DType::kF32, {32, 16}),
                     one = looked_up.view(DType::kF32, {6, 16}), other = read.view(DType::kF32, {6, 16});
    backend->upload(on_device, table.data());
    embed_rows(*backend, spec.embedding, on_device, {}, ids, positions, one);
    embed_samples(*backend, spec, checkpoint, std::vector<std::vector<std::int32_t>>{ids}, other);
    for (const TensorView& hidden : {one, other}) {
      std::vector<float> got(want.size());
      backend->download(got.data(), hidden);
      EXPECT_EQ(got, want) << backend->name();
    }
  }
}

TEST(Granite, ANormCanScaleWhatItGives) {
  NormSpec norm;
  norm.scale = 0.25f;
  EXPECT_EQ(norm.multiplier(3), 0.75f);
  EXPECT_EQ(norm.stored(0.75f), 3);
  norm.offset = 1;
  EXPECT_EQ(norm.multiplier(3), 1);
  EXPECT_EQ(norm.stored(1), 3);
  const auto backend = make_reference_backend();
  const float gain[] = {1, 2}, bias[] = {8, -4};
  const NormWeights loaded = load_norm(*backend, norm, gain, bias);
  const auto values = [](const Buffer& buffer) {
    const auto* const from = buffer.view(DType::kF32, {2}).as<float>();
    return std::vector<float>(from, from + 2);
  };
  EXPECT_THAT(values(loaded.gain), ElementsAre(0.5f, 0.75f));
  EXPECT_THAT(values(loaded.bias), ElementsAre(2.0f, -1.0f));
}

// The names are those that vLLM 0.33 looks for. input_linear has rows of gate and then of up for each expert,
// output_linear those of down.
TEST(GraniteMoe, StacksBecomeExperts) {
  ScratchModel model("granitemoe", "GraniteMoeForCausalLM");
  model.config["num_local_experts"] = 3;
  model.config["num_experts_per_tok"] = 2;
  for (const std::string block : {"model.layers.0.", "model.layers.1."})
    for (const char* linear : {"gate", "up", "down"})
      model.tensors.erase(block + "mlp." + linear + "_proj.weight");
  model.add_to_blocks("block_sparse_moe.input_linear.weight", scratch_ramp({3, 48, 16}));
  model.add_to_blocks("block_sparse_moe.output_linear.weight", scratch_ramp({3, 16, 24}));
  model.add_to_blocks("block_sparse_moe.router.layer.weight", scratch_ramp({3, 16}));
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  EXPECT_TRUE(spec.blocks[0].mixture()->normalized);
  const auto first = [&](const char* name) {
    return checkpoint
        .read_float32(checkpoint.at("model.layers.1.block_sparse_moe.experts." + std::string(name)))
        .at(0);
  };
  const auto ramp = [](int at) { return 0.001f * static_cast<float>(at % 977) - 0.4f; };
  EXPECT_EQ(first("2.gate_proj.weight"), ramp(2 * 48 * 16));
  EXPECT_EQ(first("2.up_proj.weight"), ramp((2 * 48 + 24) * 16));
  EXPECT_EQ(first("2.down_proj.weight"), ramp(2 * 16 * 24));
  EXPECT_EQ(spec.never_quantized().count("model.layers.0.block_sparse_moe.router.layer.weight"), 1u);

  model.config["num_local_experts"] = 4;
  EXPECT_THAT(granite_sentence(model), HasSubstr("block_sparse_moe.router.layer.weight"));
  model.config["num_local_experts"] = 3;
  model.config["shared_intermediate_size"] = 8;
  EXPECT_THAT(granite_sentence(model), HasSubstr("shared_intermediate_size"));
}

}  // namespace
}  // namespace llmq
