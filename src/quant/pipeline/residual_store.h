// The residual stream of all samples, FP32 [tokens, width], a chunk of rows at a time: in one buffer on the
// device, or in a file of which one chunk is there.
//
//   view = load(first, rows);  ... change view ...;  save();
//
// The file has lost its name before the first byte is written: whatever ends the process, nothing is left.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/io.h"
#include "device/backend.h"

namespace llmq {

class ResidualStore {
 public:
  // file null: everything in memory; no chunk has more than `chunk_rows` rows.
  ResidualStore(Backend& backend, std::int64_t tokens, std::int64_t width, std::int64_t chunk_rows,
                std::unique_ptr<File> file);

  // What the rows hold; valid until the next call for other rows.
  TensorView load(std::int64_t first, std::int64_t rows);
  // The same for rows that are about to be written whole.
  TensorView begin(std::int64_t first, std::int64_t rows);
  // What is in the view given last, changed by now, is kept.
  void save();

 private:
  std::uint64_t offset_of(std::int64_t row) const;
  std::byte* host_bytes();  // of the chunk: its buffer, or what is copied to and from a device

  Backend* backend_;
  std::int64_t width_, first_ = -1;
  std::unique_ptr<File> file_;
  Buffer rows_;      // all tokens, or one chunk
  TensorView view_;  // of the chunk at hand
  std::vector<std::byte> staging_;
};

// The file of a residual stream of so many bytes; null: it stays in memory.
using OpenStore = std::function<std::unique_ptr<File>(std::uint64_t bytes)>;

// What a file would be, in the host's memory: for a device whose own has no room for all samples.
std::unique_ptr<File> hold_on_the_host(std::uint64_t bytes);

// A file of `bytes` without a name, on the disk of `directory`. Error(kIo) where there is no room.
std::unique_ptr<File> open_nameless(Io& io, const Path& directory, std::uint64_t bytes);

}  // namespace llmq
