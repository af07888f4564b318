#include "quant/pipeline/background_writer.h"

namespace llmq {

void BackgroundWriter::add_quantized(std::string module, QuantizedMatrix matrix) {
  adding_.wait();
  adding_.then([this, module = std::move(module), matrix = std::move(matrix)] {
    writer_.add_quantized(module, matrix);
  });
}

void BackgroundWriter::add_dense(std::string tensor, DType dtype, const Shape& shape,
                                 std::vector<std::byte> bytes) {
  adding_.then([this, tensor = std::move(tensor), dtype, shape, bytes = std::move(bytes)] {
    writer_.add_dense(tensor, dtype, shape, bytes);
  });
}

void BackgroundWriter::add_dense_now(const std::string& tensor, DType dtype, const Shape& shape,
                                     std::span<const std::byte> bytes) {
  adding_.wait();
  writer_.add_dense(tensor, dtype, shape, bytes);
}

void BackgroundWriter::append_dense_now(const std::string& tensor, DType dtype, const Shape& shape,
                                        std::span<const std::byte> bytes) {
  adding_.wait();
  writer_.append_dense(tensor, dtype, shape, bytes);
}

void BackgroundWriter::commit(Json findings) {
  adding_.then([this, findings = std::move(findings)] {
    disk_.wait();
    disk_.then(writer_.begin_commit(findings));
  });
}

// The last commit begins where the one before it is on the disk.
std::vector<Json> BackgroundWriter::share_committed(Committed what) {
  if (writer_.ranks().size() > 1) adding_.wait();
  return writer_.share_committed(what);
}

void BackgroundWriter::sync() {
  adding_.then([this] {
    disk_.wait();
    disk_.then(writer_.begin_sync());
  });
}

void BackgroundWriter::finish() {
  adding_.wait();
  disk_.wait();
}

}  // namespace llmq
