// What a run makes goes to the writer while the run goes on:
//
//   the run    quantizes linear i + 1, then what follows
//   adding     packs, hashes and writes linear i
//   the disk   takes the block before
//
// The writer gets everything in the order in which it was given, whatever happens meanwhile, so no byte
// depends on it. One linear waits at most: who brings the next waits for it; and one block, likewise, for the
// disk. So beside the run there are the codes of one linear and what its format makes of them
// (PackedFormatRow::packing_bytes). An error of the writer or of the disk comes to the run with one of the
// next calls, at the latest with finish().
#pragma once
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "export/output/model_writer.h"

namespace llmq {

// Tasks one after another, on a thread beside the caller's.
class SerialTasks {
 public:
  SerialTasks() = default;
  ~SerialTasks() {
    if (last_.valid()) last_.wait();  // an error is there already, and this one would be the next
  }
  SerialTasks(const SerialTasks&) = delete;
  SerialTasks& operator=(const SerialTasks&) = delete;
  // After those that were given before, if none of them failed.
  template <class Task>
  void then(Task task) {
    last_ = std::async(std::launch::async, [before = std::move(last_), task = std::move(task)]() mutable {
      if (before.valid()) before.get();
      task();
    });
  }
  // Until all are done; the first error is thrown here.
  void wait() {
    if (last_.valid()) last_.get();
  }

 private:
  std::future<void> last_;
};

class BackgroundWriter {
 public:
  explicit BackgroundWriter(ModelWriter& writer) : writer_(writer) {}

  void add_quantized(std::string module, QuantizedMatrix matrix);
  void add_dense(std::string tensor, DType dtype, const Shape& shape, std::vector<std::byte> bytes);
  // What need not be copied to be kept: given to the writer before the call returns.
  void add_dense_now(const std::string& tensor, DType dtype, const Shape& shape,
                     std::span<const std::byte> bytes);
  void append_dense_now(const std::string& tensor, DType dtype, const Shape& shape,
                        std::span<const std::byte> bytes);
  void commit(Json findings);  // ModelWriter::commit(), of what was given before
  void sync();                 // of the same, without a record
  void finish();               // until all of it is on the disk
  // ModelWriter::share_committed(), of every block but the last that was committed, at least.
  std::vector<Json> share_committed(Committed what);
  const ModelWriter& writer() const { return writer_; }

 private:
  ModelWriter& writer_;
  SerialTasks disk_, adding_;  // what is being added may yet ask for the disk
};

}  // namespace llmq
