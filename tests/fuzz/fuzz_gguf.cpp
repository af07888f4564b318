// Any bytes as a GGUF file and as a model: either an Error that names the file, or values and tensors every
// byte of which can be read.
#include <algorithm>
#include <cstdlib>
#include <span>

#include "io/gguf.h"
#include "model/gguf/gguf_model.h"
#include "tests/fuzz/expect_named.h"

namespace {

// Every typed read of every key: each answers or refuses.
void read_values(const llmq::GgufHeader& header) {
  for (const auto& [key, value] : header.metadata) {
    const std::string_view name = key;
    llmq::expect_named([&] { header.integer(name); });
    llmq::expect_named([&] { header.number(name); });
    llmq::expect_named([&] { header.boolean(name); });
    llmq::expect_named([&] { header.integers(name); });
    llmq::expect_named([&] { header.numbers(name); });
    std::size_t letters = 0;
    const auto count = [&](std::string_view text) {
      letters += static_cast<std::size_t>(std::count(text.begin(), text.end(), 'a'));
    };
    llmq::expect_named([&] { count(header.string(name)); });
    llmq::expect_named([&] {
      for (const std::string_view text : header.strings(name)) count(text);
    });
    if (letters > value.bytes.size()) std::abort();
  }
}

void read_tensors(const llmq::GgufHeader& header, std::span<const std::byte> bytes) {
  std::uint64_t end = 0;
  for (const llmq::GgufTensor& tensor : header.tensors) {
    if (tensor.offset < end || tensor.offset > bytes.size() || tensor.bytes > bytes.size() - tensor.offset)
      std::abort();
    end = tensor.offset + tensor.bytes;
    // Away from the input, at an aligned address, as a mapping would have it.
    const std::vector<std::byte> copy(bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(end));
    const llmq::TensorView view(static_cast<const void*>(copy.data()), tensor.dtype, tensor.shape);
    if (view.bytes() != tensor.bytes) std::abort();
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
    llmq::to_float32(view, values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  llmq::expect_named([&] {
    const llmq::GgufHeader header = llmq::parse_gguf(bytes, "input.gguf");
    read_values(header);
    read_tensors(header, bytes);
    llmq::expect_named([&] { llmq::gguf_companion_texts(header); });
    const llmq::GgufReading model = llmq::read_gguf_model(header);
    for (const llmq::NamedGgufTensor& tensor : model.tensors)
      if (tensor.index >= header.tensors.size() || tensor.name.empty()) std::abort();
  });
  return 0;
}
