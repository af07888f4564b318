#include "export/gguf_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/sha256.h"
#include "export/gguf_metadata.h"
#include "export/gguf_tensors.h"
#include "io/digest_cache.h"
#include "io/gguf_writer.h"

namespace llmq {
namespace {

constexpr std::int64_t kSlabValues = 1 << 22;  // FP32 values in flight: 16 MiB

// What a model is called: the last part of its path, without ".gguf"; a hub name whole.
std::string model_name(Io& io, const Checkpoint& checkpoint, const std::string& name) {
  if (!io.exists(name) && name.find('/') != std::string::npos && name[0] != '/' && name[0] != '.')
    return name;
  Path path = std::filesystem::absolute(checkpoint.path()).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

void write_plain(std::span<const float> values, std::span<std::byte> bytes) {
  for (const float value : values)
    if (!std::isfinite(value)) fail(ErrorKind::kBadInput, "holds {}", value);
  std::memcpy(bytes.data(), values.data(), bytes.size());
}

// One tensor, a slab of rows after the other.
void write_tensor(GgufTensorSource& source, std::size_t index, DType type, std::span<const float> importance,
                  BlockSearch search, GgufWriter& writer, ThreadPool& pool) {
  const GgufMixTensor& tensor = source.tensors()[index];
  const std::int64_t columns = tensor.shape.back(),
                     rows = tensor.shape.elements() / std::max<std::int64_t>(columns, 1);
  const std::int64_t slab = std::max<std::int64_t>(1, kSlabValues / std::max<std::int64_t>(columns, 1));
  const std::uint64_t row_bytes = ggml_row_bytes(type, columns);
  std::vector<std::byte> bytes;
  for (std::int64_t first = 0; first < rows; first += slab) {
    const std::int64_t count = std::min(slab, rows - first);
    const std::vector<float> values = source.rows(index, first, count);
    bytes.resize(static_cast<std::size_t>(row_bytes) * static_cast<std::size_t>(count));
    if (type == DType::kF32)
      write_plain(values, bytes);
    else
      quantize_ggml_rows(type, values, columns, importance, search, bytes, pool);
    writer.append(tensor.name, bytes);
  }
  source.release(index);
}

// As llama-quantize: an embedding is looked up, not multiplied, and goes without; any other weight whose inputs are of another number is an error.
std::vector<float> importance_of(const GgufRequest& request, const GgufMixTensor& tensor,
                                 const std::string& file) {
  if (request.importance == nullptr || tensor.shape.rank() < 2) return {};
  std::vector<float> values = request.importance->importance(tensor.name);
  if (values.empty() || static_cast<std::int64_t>(values.size()) == tensor.shape.back()) return values;
  if (tensor.name == "token_embd.weight") return {};
  fail(ErrorKind::kBadInput, {fmt::format("the importance matrix has {} values for it, and it has {} inputs",
                                          values.size(), tensor.shape.back()),
                              file, tensor.name, "use one that was made with this model"});
}

}  // namespace

double GgufWritten::bits_per_weight() const {
  double bits = 0, weights = 0;
  for (const Tensor& tensor : tensors) {
    const auto count = static_cast<double>(tensor.shape.elements());
    weights += count;
    bits += 8.0 * count * dtype_row(tensor.dtype).block_bytes / dtype_row(tensor.dtype).block_elements;
  }
  return weights == 0 ? 0 : bits / weights;
}

void check_gguf_destination(Io& io, const Path& destination, bool overwrite, const Path& source) {
  const std::string file = destination.string();
  if (destination.extension() != ".gguf")
    fail(ErrorKind::kUsage,
         {"a GGUF is one file, and this name does not end in .gguf", file, {}, "write to NAME.gguf"});
  if (!io.exists(destination)) return;
  if (io.is_directory(destination))
    fail(ErrorKind::kUsage, {"a directory of this name exists already", file, {}, "choose another name"});
  std::error_code ignored;
  if (std::filesystem::equivalent(destination, source, ignored))
    fail(ErrorKind::kUsage, {"the output is the model that is read", file, {}, "choose another name"});
  if (!overwrite)
    fail(ErrorKind::kUsage, {"the file exists already", file, {}, "choose another name, or add --overwrite"});
  std::array<std::byte, 4> magic{};
  const std::unique_ptr<File> existing = io.open(destination);
  if (existing->size() >= magic.size()) existing->read_at(0, magic);
  if (std::memcmp(magic.data(), "GGUF", magic.size()) != 0)
    fail(ErrorKind::kUsage,
         {"the file that exists is no GGUF and is not replaced", file, {}, "choose another name"});
}

GgufMixModel gguf_mix_model(const ModelSpec& spec) {
  return {spec.family == "mistral" ? "llama" : spec.family, static_cast<int>(spec.blocks.size()), spec.heads,
          spec.kv_heads, 0};
}

GgufWritten write_gguf(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec,
                       const GgufRequest& request, ThreadPool& pool) {
  const std::string file = checkpoint.path().string();
  check_gguf_destination(io, request.destination, request.overwrite, checkpoint.path());
  const std::unique_ptr<GgufTensorSource> source = open_gguf_tensors(io, checkpoint, spec);
  const std::vector<GgufMixTensor>& tensors = source->tensors();
  const std::vector<DType> types =
      choose_gguf_types(*request.file_type, gguf_mix_model(spec), tensors, request.importance != nullptr);
  const GgufMetadata metadata =
      gguf_model_metadata(io, checkpoint, spec, model_name(io, checkpoint, request.name),
                          source->parameters(), *request.file_type);
  std::vector<TensorDeclaration> declarations;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    declarations.push_back({tensors[i].name, types[i], tensors[i].shape});
  GgufWriter writer(io, request.destination, metadata, declarations);
  GgufWritten written;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (request.on_tensor) request.on_tensor(tensors[i].name);
    const std::vector<float> importance =
        is_block_type(types[i]) ? importance_of(request, tensors[i], file) : std::vector<float>();
    try {
      write_tensor(*source, i, types[i], importance, request.search, writer, pool);
    } catch (const Error& error) {
      if (!error.detail().file.empty()) throw;
      fail(error.kind(), {error.detail().message, file, tensors[i].name, error.detail().hint});
    }
    written.tensors.push_back({tensors[i].name, types[i], tensors[i].shape, !importance.empty()});
  }
  writer.finish();
  written.bytes = writer.file_bytes();
  written.sha256 = file_sha256(io, request.destination);
  const std::string line = written.sha256 + "  " + request.destination.filename().string() + "\n";
  written.digest = "sha256:" + sha256_hex(std::as_bytes(std::span(line)));
  return written;
}

}  // namespace llmq
