// Whole texts over any Io.
#include "base/io.h"

#include <unistd.h>

#include <system_error>

#include "base/error.h"

namespace llmq {

Path own_program() {
  std::error_code no_proc;
  return std::filesystem::read_symlink("/proc/self/exe", no_proc);
}

std::string read_text(Io& io, const Path& path, std::uint64_t limit) {
  const std::unique_ptr<File> file = io.open(path);
  const std::uint64_t size = file->size();
  if (size > limit)
    fail(ErrorKind::kBadInput,
         {fmt::format("has {} bytes, more than the {} allowed here", size, limit), path.string(), {}, {}});
  std::string text(static_cast<std::size_t>(size), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_atomically(Io& io, const Path& path, std::string_view text) {
  const Path partial = path.string() + ".partial-" + std::to_string(::getpid());
  io.remove(partial);  // of an earlier failure in this process
  try {
    {
      const std::unique_ptr<File> file = io.create(partial);
      file->write_at(0, std::as_bytes(std::span(text)));
      file->sync();
    }
    io.rename(partial, path);
    io.sync_directory(path.parent_path());
  } catch (...) {
    try {
      io.remove(partial);
    } catch (const Error&) {  // the first error is the one to report
    }
    throw;
  }
}

}  // namespace llmq
