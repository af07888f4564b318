#include "export/output/synced_files.h"

#include <algorithm>
#include <memory>

namespace llmq {

void write_synced(Io& io, const Path& path, std::string_view text) {
  io.remove(path);
  const std::unique_ptr<File> file = io.create(path);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
}

void copy_synced(Io& io, const Path& from, const Path& to) {
  constexpr std::uint64_t kStep = 4u << 20;
  io.remove(to);
  const std::unique_ptr<File> source = io.open(from);
  const std::unique_ptr<File> copy = io.create(to);
  const std::uint64_t size = source->size();
  std::vector<std::byte> step(static_cast<std::size_t>(std::min(size, kStep)));
  for (std::uint64_t offset = 0; offset < size; offset += step.size()) {
    const auto part =
        std::span(step).first(static_cast<std::size_t>(std::min<std::uint64_t>(step.size(), size - offset)));
    source->read_at(offset, part);
    copy->write_at(offset, part);
  }
  copy->sync();
}

}  // namespace llmq
