// llmq_linears trace MODEL IDS DIR: the inputs of every linear as llmq computes them in FP32 for one
// sequence. llmq_linears apply MODEL DIR: every linear on inputs that another library computed.
//
// IDS holds little-endian int32 token ids, at most as many as RowSample keeps. Inputs are float32 [tokens,
// in] in DIR/<module>.x, outputs float32 [tokens, out] in DIR/<module>.y, one file per linear of the blocks.
#include <fmt/core.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/io.h"
#include "device/backend.h"
#include "model/block_weights.h"
#include "model/open_checkpoint.h"
#include "quant/pipeline/activation_stream.h"

namespace {

using namespace llmq;

template <typename T>
std::vector<T> read_values(const std::string& path) {
  const std::string bytes = read_text(system_io(), path, std::uint64_t{1} << 32);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

void write_values(const std::string& path, const float* values, std::int64_t count) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count) * 4);
}

void trace(const std::string& model, const std::string& ids, const std::string& directory) {
  const std::shared_ptr<Backend> backend = make_backend({});
  const Checkpoint checkpoint = open_checkpoint(system_io(), model);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  CalibrationSet set;
  set.samples.push_back(read_values<std::int32_t>(ids));
  const std::int64_t tokens = set.tokens();
  if (tokens > RowSample::kWanted)
    fail(ErrorKind::kUsage, "a sequence of {} tokens; {} are the most", tokens, RowSample::kWanted);
  const ForwardContext context = make_forward_context(spec, *backend, Compute::kFloat32, tokens);
  ActivationStream stream(context, set, tokens, false);
  stream.embed(checkpoint, set);
  for (std::size_t b = 0; b < spec.blocks.size(); ++b) {
    const int block = static_cast<int>(b);
    const BlockSpec& structure = spec.blocks[b];
    const BlockWeights weights = load_block(*backend, context.compute, source, structure);
    for (std::size_t part = 0; part < structure.sublayers.size(); ++part) {
      for (const SiteId site : structure.sublayers[part].sites) {
        RowSample rows;
        stream.statistics(site, block, weights, Samples::kAll, &rows);
        for (const LinearId reader : structure.at(site).readers)
          write_values(directory + "/" + structure.at(reader).module + ".x", rows.row(0),
                       rows.rows() * rows.channels());
      }
      stream.finish(part, block, weights);
    }
  }
}

void apply(const std::string& model, const std::string& directory) {
  const std::shared_ptr<Backend> backend = make_backend({});
  const Checkpoint checkpoint = open_checkpoint(system_io(), model);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) {
      const std::vector<float> x = read_values<float>(directory + "/" + linear.module + ".x");
      const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / linear.in_features;
      const BlockLinear prepared = prepare_linear(*backend, Compute::kFloat32, source, linear);
      const Buffer in = backend->allocate(x.size() * sizeof(float)),
                   out = backend->allocate(static_cast<std::size_t>(tokens * linear.out_features) * 4);
      const TensorView in_view = in.view(DType::kF32, {tokens, linear.in_features}),
                       out_view = out.view(DType::kF32, {tokens, linear.out_features});
      backend->upload(in_view, x.data());
      std::int64_t first = 0;
      for (std::size_t part = 0; part < prepared.parts.size(); ++part) {
        TensorView columns(out_view.as<float>() + first, DType::kF32, {tokens, linear.parts[part]},
                           out_view.device);
        columns.row_stride = linear.out_features;
        backend->linear(columns, in_view, *prepared.parts[part].weight,
                        vector_view(prepared.parts[part].bias));
        first += linear.parts[part];
      }
      std::vector<float> y(static_cast<std::size_t>(tokens * linear.out_features));
      backend->download(y.data(), out_view);
      write_values(directory + "/" + linear.module + ".y", y.data(), tokens * linear.out_features);
    }
}

}  // namespace

int main(int count, char** words) {
  const std::string verb = count > 1 ? words[1] : "";
  if (!(verb == "trace" && count == 5) && !(verb == "apply" && count == 4))
    return fmt::print(stderr, "usage: llmq_linears trace MODEL IDS DIR | apply MODEL DIR\n"), 2;
  try {
    if (verb == "trace")
      trace(words[2], words[3], words[4]);
    else
      apply(words[2], words[3]);
  } catch (const llmq::Error& error) {
    fmt::print(stderr, "llmq_linears: {}\n", error.what());
    return llmq::exit_code(error.kind());
  }
  return 0;
}
