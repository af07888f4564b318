// Any config.json over any tensors as a quantized checkpoint: either an Error that names the file, or
// matrices and tensors every number of which can be made.
//
// An input is a line with config.json, a line with the header of a safetensors file, and its data.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"

namespace {

constexpr std::int64_t kMostNumbers = 1 << 20;  // of what one input makes of a tensor

template <typename Read>
void expect_named(const Read& read) {
  try {
    read();
  } catch (const llmq::Error& error) {
    const bool kind =
        error.kind() == llmq::ErrorKind::kBadInput || error.kind() == llmq::ErrorKind::kUnsupported;
    if (!kind || error.detail().file.empty() || error.detail().message.empty()) std::abort();
  }
}

class Directory {
 public:
  Directory()
      : path_(std::filesystem::temp_directory_path() / ("llmq-fuzz-packed-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string write(std::string_view config, std::string_view header, std::string_view data) const {
    std::ofstream(path_ / "config.json", std::ios::binary) << config;
    const std::uint64_t length = header.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << file << header << data;
    return path_.string();
  }

 private:
  std::filesystem::path path_;
};

void read_matrix(const llmq::LinearSource& source, const std::string& module) {
  const llmq::PackedShape shape = source.packed_shape(module);
  if (shape.out_features > kMostNumbers || shape.in_features > kMostNumbers / shape.out_features) return;
  const llmq::QuantizedMatrix matrix = source.quantized(module);
  std::vector<float> values(static_cast<std::size_t>(matrix.out_features * matrix.in_features));
  if (matrix.codes.size() != values.size()) std::abort();
  llmq::dequantize(matrix, values);
  if (matrix.scheme.calibrates_inputs() && !(matrix.input_scale > 0)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  static const Directory directory;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::size_t first = text.find('\n');
  const std::size_t second = first == std::string_view::npos ? first : text.find('\n', first + 1);
  if (second == std::string_view::npos) return 0;
  const std::string path = directory.write(text.substr(0, first), text.substr(first + 1, second - first - 1),
                                           text.substr(second + 1));
  expect_named([&] {
    const llmq::Checkpoint checkpoint = llmq::open_checkpoint(llmq::system_io(), path);
    for (const llmq::StoredTensor& tensor : checkpoint.tensors())
      if (tensor.view.shape.elements() <= kMostNumbers)
        expect_named([&] { checkpoint.read_float32(tensor); });
    const llmq::LinearSource source = llmq::LinearSource::open(checkpoint);
    for (const std::string& module : source.packed_modules())
      expect_named([&] { read_matrix(source, module); });
  });
  return 0;
}
