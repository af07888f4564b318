// Containers change, weights do not: every conversion is read back and compared bit for bit, or refused.
#include "export/convert.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/io.h"
#include "io/safetensors.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "tensor/stored_float.h"
#include "tests/support/tolerance.h"
#include "tests/unit/export/convert_fixture.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(ConvertTest, PackedToDenseIsTheDequantizedWeight) {
  const std::vector<PlannedModule> modules = pack("compressed-tensors", scheme_of(4, 32, false));
  const ConvertReport report = run(disk_ / "packed", disk_ / "dense", "safetensors");
  EXPECT_EQ(report.from, "compressed-tensors");
  EXPECT_EQ(report.dtype, "f32");
  const Checkpoint dense = open("dense");
  EXPECT_EQ(dense.config().find("quantization_config"), nullptr);
  EXPECT_EQ(dense.config().at("torch_dtype").as_string(), "float32");
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const QuantizedMatrix matrix = tiny_matrix(modules[i], i + 1);
    std::vector<float> wanted(matrix.codes.size());
    dequantize(matrix, wanted);
    EXPECT_EQ(dense.read_float32(dense.at(modules[i].module + ".weight")), wanted);
  }
  const StoredTensor& norm = dense.at("model.norm.weight");
  EXPECT_EQ(norm.view.dtype, DType::kF32);
  EXPECT_EQ(dense.read_float32(norm),
            open_checkpoint(system_io(), source_)
                .read_float32(open_checkpoint(system_io(), source_).at("model.norm.weight")));
}

// FP8 in blocks is a way to store numbers: written, they are BF16, those that are only carried along, too.
TEST_F(ConvertTest, Float8InBlocksIsWrittenAsItsNumbers) {
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/deepseek_v3-fp8/model";
  run(model, disk_ / "dense", "safetensors");
  const Checkpoint published = open_checkpoint(system_io(), model), dense = open("dense");
  EXPECT_EQ(dense.config().find("quantization_config"), nullptr);
  ASSERT_EQ(dense.tensors().size(), published.tensors().size());
  int joined = 0, carried = 0;
  for (const StoredTensor& tensor : published.tensors()) {
    const StoredTensor& written = dense.at(tensor.name);
    EXPECT_EQ(written.view.dtype, tensor.block_scales ? DType::kBF16 : tensor.view.dtype) << tensor.name;
    std::vector<float> wanted = published.read_float32(tensor);
    for (float& value : wanted) value = stored_float(value, written.view.dtype);
    EXPECT_EQ(dense.read_float32(written), wanted) << tensor.name;
    joined += tensor.block_scales.has_value();
    carried += tensor.block_scales && tensor.name.starts_with("model.layers.2.");
  }
  EXPECT_GT(joined, 40);
  EXPECT_GT(carried, 10);
}

// Neither a scale that is none nor a code that stands for no number becomes NaN in a file.
TEST_F(ConvertTest, WhatIsNoNumberIsNotWritten) {
  const auto refused = [&](const char* name, std::uint8_t code, float scale) {
    const Path folder = disk_ / name;
    system_io().make_directory(folder);
    SafetensorsWriter writer(system_io(), folder / "model.safetensors",
                             {{"a.weight", DType::kF8E4M3, {2, 4}}, {"a.weight_scale_inv", DType::kF32, {1}}},
                             {});
    std::vector<std::uint8_t> codes(8, 0x38);
    codes[6] = code;
    writer.add("a.weight", std::as_bytes(std::span(codes)));
    writer.add("a.weight_scale_inv", std::as_bytes(std::span(&scale, 1)));
    writer.finish();
    write_text_atomically(system_io(), folder / "config.json",
                          R"({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}})");
    return std::string(refusal(folder, disk_ / fmt::format("{}-out", name), "safetensors").what());
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(
      refused("scale", 0x38, kNaN),
      HasSubstr("scale/model.safetensors: a.weight: has the scale NaN for rows 0 to 1, columns 0 to 3"));
  EXPECT_THAT(refused("code", 0x7f, 1), HasSubstr("a.weight: holds NaN at row 1, column 2"));
}

TEST_F(ConvertTest, AwqAndCompressedTensorsHoldTheSameCodes) {
  const std::vector<PlannedModule> modules = pack("awq", scheme_of(4, 32, false, DType::kF16));
  run(disk_ / "packed", disk_ / "ct", "compressed-tensors");
  run(disk_ / "ct", disk_ / "back", "awq");
  const Checkpoint ct = open("ct"), back = open("back"), first = open("packed");
  EXPECT_EQ(ct.config().at("torch_dtype").as_string(), "float16");
  const LinearSource linears = LinearSource::open(ct);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const QuantizedMatrix wanted = tiny_matrix(modules[i], i + 1),
                          found = linears.quantized(modules[i].module);
    EXPECT_EQ(found.codes, wanted.codes);
    EXPECT_EQ(found.scales, wanted.scales);
    EXPECT_EQ(found.zeros, wanted.zeros);
  }
  ASSERT_EQ(back.tensors().size(), first.tensors().size());
  for (const StoredTensor& tensor : first.tensors()) {
    const StoredTensor& copy = back.at(tensor.name);
    EXPECT_EQ(copy.view.dtype, tensor.view.dtype);
    EXPECT_EQ(std::memcmp(copy.view.pointer, tensor.view.pointer, tensor.view.bytes()), 0) << tensor.name;
  }
}

// Nobody would look for a part of such a stack, so that it goes out whole, in whatever type was asked for.
TEST_F(ConvertTest, StacksThatLoadersReadAloneStayStacks) {
  const std::string stack = "model.layers.0.mlp.experts.gate_up_proj";
  const Path folder = disk_ / "alternating";
  system_io().make_directory(folder);
  SafetensorsWriter writer(system_io(), folder / "model.safetensors", {{stack, DType::kF32, {2, 4, 8}}}, {});
  const std::vector<float> ones(64, 1.0f);
  writer.add(stack, std::as_bytes(std::span(ones)));
  writer.finish();
  write_text_atomically(system_io(), folder / "config.json", R"({"model_type": "gpt_oss"})");
  for (const auto& [name, type] : {std::pair{"f32", DType::kF32}, {"bf16", DType::kBF16}}) {
    ConvertRequest request;
    request.source = folder.string();
    request.target.directory = disk_ / name;
    request.to = "safetensors";
    request.dtype = name;
    convert(system_io(), open_checkpoint(system_io(), folder.string()), request);
    const Checkpoint written = Checkpoint::open(system_io(), (disk_ / name).string());
    ASSERT_EQ(written.tensors().size(), 1u);
    EXPECT_EQ(written.at(stack).view.dtype, type);
    EXPECT_EQ(written.at(stack).view.shape, (Shape{2, 4, 8}));
    EXPECT_EQ(written.read_float32(written.at(stack)), ones);
  }
}

// There and back, through the other container: the same bytes, and in between the same weights.
TEST_F(ConvertTest, EveryPackedContainerGivesBackTheBytes) {
  struct Case {
    const char *format, *through;
    int bits, group;
    bool symmetric, column_groups;
  };
  for (const Case& one :
       {Case{"gptq", "compressed-tensors", 4, 32, true, false},
        Case{"gptq", "compressed-tensors", 3, 32, true, true}, Case{"gptq", "gptq_v2", 8, 0, true, false},
        Case{"gptq", "awq", 4, 64, true, false}, Case{"gptq_v2", "awq", 4, 32, false, false},
        Case{"gptq_v2", "compressed-tensors", 4, 32, false, true},
        Case{"gptq_v2", "compressed-tensors", 2, 16, false, false},
        Case{"awq", "gptq_v2", 4, 0, false, false},
        Case{"compressed-tensors", "gptq_v2", 3, 64, false, false},
        Case{"compressed-tensors", "gptq", 8, 32, true, true}}) {
    SCOPED_TRACE(
        fmt::format("{} through {}, {} bits, group {}", one.format, one.through, one.bits, one.group));
    const std::vector<PlannedModule> modules =
        pack(one.format, scheme_of(one.bits, one.group, one.symmetric, DType::kF16), one.column_groups);
    for (const char* name : {"there", "back"}) std::filesystem::remove_all(disk_ / name);
    run(disk_ / "packed", disk_ / "there", one.through);
    run(disk_ / "there", disk_ / "back", one.format);
    const Checkpoint back = open("back"), first = open("packed"), there = open("there");
    ASSERT_EQ(back.tensors().size(), first.tensors().size());
    for (const StoredTensor& tensor : first.tensors()) {
      const StoredTensor& copy = back.at(tensor.name);
      EXPECT_EQ(copy.view.dtype, tensor.view.dtype);
      EXPECT_EQ(std::memcmp(copy.view.pointer, tensor.view.pointer, tensor.view.bytes()), 0) << tensor.name;
    }
    const bool says_symmetric = std::string(one.through) != "awq";  // awq stores zeros of 8 and no word of it
    if (says_symmetric || !one.symmetric) {
      EXPECT_EQ(back.config(), first.config());
    }
    EXPECT_EQ(system_io().exists(disk_ / "back" / "quantize_config.json"),
              std::string(one.format).starts_with("gptq"));
    const LinearSource linears = LinearSource::open(there);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const QuantizedMatrix wanted = tiny_matrix(modules[i], i + 1),
                            found = linears.quantized(modules[i].module);
      EXPECT_EQ(found.codes, wanted.codes);
      EXPECT_EQ(found.column_group, wanted.column_group);
    }
  }
}

TEST_F(ConvertTest, WhatAContainerHasNoPlaceForIsRefused) {
  pack("gptq", scheme_of(4, 32, true, DType::kF16), true);
  Error error = refusal(disk_ / "packed", disk_ / "awq", "awq");
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("format awq has no group index"));
  EXPECT_EQ(error.detail().where, "model.layers.0.mlp.down_proj");
  pack("gptq_v2", scheme_of(4, 32, false, DType::kF16));
  error = refusal(disk_ / "packed", disk_ / "v1", "gptq");  // random zeros and codes: 0 and 15 meet
  EXPECT_THAT(error.what(), HasSubstr("has a zero of 0 in group"));
  EXPECT_EQ(error.detail().hint, "format: gptq_v2 stores it");
  pack("compressed-tensors", scheme_of(5, 32, true, DType::kF16));
  EXPECT_THAT(refusal(disk_ / "packed", disk_ / "g", "gptq").what(),
              HasSubstr("codes of 2, 3, 4 and 8 bits, not of 5"));
  pack("gptq", scheme_of(8, 32, true, DType::kF16));
  EXPECT_THAT(refusal(disk_ / "packed", disk_ / "awq", "awq").what(), HasSubstr("4-bit codes, not 8-bit"));
}

// Numbers without a scheme have other outputs than linears that round their inputs.
TEST_F(ConvertTest, SaysWhereInputsAreNoLongerRounded) {
  const auto said = [&](const char* to) {
    ::testing::internal::CaptureStderr();
    run(disk_ / "packed", disk_ / to, "safetensors");
    return ::testing::internal::GetCapturedStderr();
  };
  QuantScheme scheme = scheme_of(8, 0, true, DType::kBF16);
  pack("compressed-tensors", scheme);
  EXPECT_EQ(said("weights"), "");
  scheme.granularity = Granularity::kChannel;
  scheme.activation_bits = 8;
  scheme.activation_scale = ActivationScale::kToken;
  const std::size_t linears = pack("compressed-tensors", scheme).size();
  EXPECT_THAT(said("inputs"), HasSubstr(fmt::format("packed: {} linears round their inputs (w8a8", linears)));
}

// Full-range symmetric scales may be negative: every container keeps the sign.
TEST_F(ConvertTest, NegativeScalesKeepTheirSign) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::vector<PlannedModule> modules = every_linear(spec, scheme_of(4, 32, true, DType::kF16));
  std::vector<QuantizedMatrix> wanted;
  const auto writer = open_writer(system_io(), "compressed-tensors", {disk_ / "packed", false}, checkpoint,
                                  spec, modules, {});
  for (std::size_t i = 0; i < modules.size(); ++i) {
    wanted.push_back(tiny_matrix(modules[i], i + 1));
    for (std::size_t s = i % 3; s < wanted[i].scales.size(); s += 3) wanted[i].scales[s] *= -1;
    writer->add_quantized(modules[i].module, wanted[i]);
  }
  add_dense_tensors(*writer, checkpoint, modules);
  writer->finish({});
  run(disk_ / "packed", disk_ / "gptq", "gptq");
  run(disk_ / "gptq", disk_ / "awq", "awq");
  for (const char* name : {"packed", "gptq", "awq"}) {
    const Checkpoint stored = open(name);
    const LinearSource linears = LinearSource::open(stored);
    for (std::size_t i = 0; i < modules.size(); ++i)
      EXPECT_EQ(linears.quantized(modules[i].module).scales, wanted[i].scales) << name;
  }
}

// The scales of a KV cache stay with the format that has a place for them, and are not weights.
TEST_F(ConvertTest, KvCacheScalesStayOrAreRefused) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::vector<PlannedModule> modules = every_linear(spec, scheme_of(4, 32, true, DType::kF16));
  const auto writer = open_writer(system_io(), "compressed-tensors", {disk_ / "packed", false}, checkpoint,
                                  spec, modules, {}, {KvCacheType::kFloat8, {}});
  for (std::size_t i = 0; i < modules.size(); ++i)
    writer->add_quantized(modules[i].module, tiny_matrix(modules[i], i + 1));
  add_dense_tensors(*writer, checkpoint, modules);
  for (int layer = 0; layer < 2; ++layer)
    for (const char* which : {"k_scale", "v_scale"}) {
      const float scale = 0.125f * static_cast<float>(layer + 1);
      writer->add_dense(kv_scale_name(spec.blocks[static_cast<std::size_t>(layer)], which), DType::kF32, {1},
                        std::as_bytes(std::span(&scale, 1)));
    }
  writer->finish({});
  const Checkpoint stored = open("packed");
  EXPECT_EQ(stored.config().at("quantization_config").at("kv_cache_scheme").at("type").as_string(), "float");
  ModelSpec::read(stored);
  EXPECT_EQ(LinearSource::open(stored).kv_cache(), KvCacheType::kFloat8);
  EXPECT_THAT(refusal(disk_ / "packed", disk_ / "gptq", "gptq").what(),
              HasSubstr("no place for the scales of a KV cache"));
  ::testing::internal::CaptureStderr();
  run(disk_ / "packed", disk_ / "dense", "safetensors");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("packed: 4 scales of its KV cache are left out, for which --to safetensors has no "
                        "place"));
  EXPECT_EQ(open("dense").find("model.layers.1.self_attn.k_scale"), nullptr);
  ModelSpec::read(open("dense"));
  ::testing::internal::CaptureStderr();
  run(disk_ / "packed", disk_ / "same", "compressed-tensors");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(open("same").read_float32(open("same").at("model.layers.1.self_attn.v_scale")),
            std::vector<float>{0.25f});
  EXPECT_EQ(open("same").config(), stored.config());
}

TEST_F(ConvertTest, SymmetricCodesGetAZeroOfEight) {
  const std::vector<PlannedModule> modules = pack("compressed-tensors", scheme_of(4, 64, true));
  run(disk_ / "packed", disk_ / "awq", "awq");
  const Checkpoint awq = open("awq");
  const QuantizedMatrix found = LinearSource::open(awq).quantized(modules[3].module);
  EXPECT_EQ(found.codes, tiny_matrix(modules[3], 4).codes);
  EXPECT_EQ(found.zeros, tiny_matrix(modules[3], 4).zeros);
}

TEST_F(ConvertTest, AScaleThatF16CannotHoldIsRefusedByName) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  std::vector<PlannedModule> modules = {{"model.layers.0.mlp.up_proj", scheme_of(4, 64, true), 128, 64}};
  const auto writer = open_writer(system_io(), "compressed-tensors", {disk_ / "packed", false}, checkpoint,
                                  spec, modules, {});
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (tensor.name != "model.layers.0.mlp.up_proj.weight")
      writer->add_dense(tensor.name, tensor.view.dtype, tensor.view.shape,
                        {static_cast<const std::byte*>(tensor.view.pointer),
                         static_cast<std::size_t>(tensor.view.bytes())});
  QuantizedMatrix matrix = tiny_matrix(modules[0], 7);
  matrix.scales[5] = 0x1.02p-20f;  // BF16 has the exponent; F16 is down to 4 bits there
  writer->add_quantized(modules[0].module, matrix);
  writer->finish({});
  // Every other linear is dense, so the config must say which ones are packed.
  Json config = Json::parse(disk_.read("packed/config.json"), "config.json");
  config["quantization_config"]["config_groups"]["group_0"]["targets"] = Json::array({modules[0].module});
  disk_.write("packed/config.json", config.dump(2));
  const Error error = refusal(disk_ / "packed", disk_ / "awq", "awq");
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("cannot be stored exactly as F16"));
  EXPECT_EQ(error.detail().where, modules[0].module);
}

TEST_F(ConvertTest, DenseTypesChangeOnlyWhenAsked) {
  run(source_, disk_ / "same", "safetensors");
  run(source_, disk_ / "wide", "safetensors", "f32");
  run(disk_ / "wide", disk_ / "narrow", "safetensors", "bf16");
  const Checkpoint source = open_checkpoint(system_io(), source_), same = open("same"),
                   narrow = open("narrow");
  EXPECT_EQ(open("wide").at("model.norm.weight").view.dtype, DType::kF32);
  for (const StoredTensor& tensor : source.tensors())
    for (const Checkpoint* copy : {&same, &narrow}) {
      EXPECT_EQ(copy->at(tensor.name).view.dtype, DType::kBF16);
      EXPECT_EQ(std::memcmp(copy->at(tensor.name).view.pointer, tensor.view.pointer, tensor.view.bytes()), 0)
          << tensor.name;
    }
  EXPECT_EQ(disk_.read("same/config.json"), source.config().dump(2) + "\n");
}

TEST_F(ConvertTest, AValueThatLeavesF16IsRefusedByName) {
  SafetensorsWriter writer(system_io(), disk_ / "big.safetensors", {{"model.norm.weight", DType::kF32, {2}}},
                           {});
  const std::vector<float> values = {1, 70000};
  writer.add("model.norm.weight", std::as_bytes(std::span(values)));
  writer.finish();
  disk_.write("big/config.json", kTinyConfig);
  system_io().rename(disk_ / "big.safetensors", disk_ / "big/model.safetensors");
  const Error error = refusal(disk_ / "big", disk_ / "out", "safetensors", "f16");
  EXPECT_EQ(error.detail().where, "model.norm.weight");
  EXPECT_THAT(error.what(), HasSubstr("70000"));
}

TEST_F(ConvertTest, RefusesWhatThisVersionDoesNotWrite) {
  EXPECT_THAT(refusal(source_, disk_ / "out", "onnx").what(),
              HasSubstr("'onnx' is not written by this version"));
  EXPECT_THAT(refusal(source_, disk_ / "out", "onnx").detail().hint,
              AllOf(HasSubstr("gguf"), HasSubstr("bitsandbytes"), HasSubstr("mlx")));
  EXPECT_THAT(refusal(source_, disk_ / "out", "mlx", "w4a16_g64_sym").what(), HasSubstr("leave out _sym"));
  EXPECT_THAT(refusal(source_, disk_ / "out.gguf", "gguf", "q4_k_x").what(), HasSubstr("q4_k_m"));
  EXPECT_THAT(refusal(source_, disk_ / "out", "safetensors", "q8_0").what(),
              HasSubstr("'q8_0' is not written by this version"));
  EXPECT_THAT(refusal(source_, disk_ / "out", "awq").what(), HasSubstr("llmq quantize"));
  pack("awq", scheme_of(4, 32, false, DType::kF16));
  EXPECT_EQ(refusal(disk_ / "packed", disk_ / "out", "compressed-tensors", "f16").kind(), ErrorKind::kUsage);
  pack("compressed-tensors", scheme_of(8, 32, false));
  EXPECT_THAT(refusal(disk_ / "packed", disk_ / "out", "awq").what(), HasSubstr("4-bit"));
}

TEST_F(ConvertTest, NeverWritesOverItsSource) {
  pack("awq", scheme_of(4, 32, false, DType::kF16));
  ConvertRequest request;
  request.source = (disk_ / "packed").string();
  request.target.directory = disk_ / "packed/";
  request.target.overwrite = true;
  EXPECT_THROW(convert(system_io(), open_checkpoint(system_io(), request.source), request), Error);
  EXPECT_TRUE(system_io().exists(disk_ / "packed/config.json"));
}

}  // namespace
}  // namespace llmq::testing
