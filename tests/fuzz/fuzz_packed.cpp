// Any config.json over any tensors as a quantized checkpoint: either an Error that names the file, or
// matrices and tensors every number of which can be made.
//
// An input is a line with config.json, a line with the header of a safetensors file, and its data.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "tests/fuzz/expect_named.h"
#include "tests/support/temporary_directory.h"

namespace {

constexpr std::int64_t kMostNumbers = 1 << 20;  // of what one input makes of a tensor

std::string write(const llmq::testing::TemporaryDirectory& into, std::string_view config,
                  std::string_view header, std::string_view data) {
  into.write("config.json", config);
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  into.write("model.safetensors", file.append(header).append(data));
  return into.path().string();
}

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
  static const llmq::testing::TemporaryDirectory directory;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::size_t first = text.find('\n');
  const std::size_t second = first == std::string_view::npos ? first : text.find('\n', first + 1);
  if (second == std::string_view::npos) return 0;
  const std::string path = write(directory, text.substr(0, first), text.substr(first + 1, second - first - 1),
                                 text.substr(second + 1));
  llmq::expect_named([&] {
    const llmq::Checkpoint checkpoint = llmq::open_checkpoint(llmq::system_io(), path);
    for (const llmq::StoredTensor& tensor : checkpoint.tensors())
      if (tensor.view.shape.elements() <= kMostNumbers)
        llmq::expect_named([&] { checkpoint.read_float32(tensor); });
    const llmq::LinearSource source = llmq::LinearSource::open(checkpoint);
    for (const std::string& module : source.packed_modules())
      llmq::expect_named([&] { read_matrix(source, module); });
  });
  return 0;
}
