#include "quant/pipeline/residual_store.h"

#include <cstring>

#include "base/error.h"

namespace llmq {

ResidualStore::ResidualStore(Backend& backend, std::int64_t tokens, std::int64_t width,
                             std::int64_t chunk_rows, std::unique_ptr<File> file)
    : backend_(&backend),
      width_(width),
      file_(std::move(file)),
      rows_(
          backend.allocate(static_cast<std::size_t>((file_ ? chunk_rows : tokens) * width) * sizeof(float))) {
}

std::uint64_t ResidualStore::offset_of(std::int64_t row) const {
  return static_cast<std::uint64_t>(row * width_) * sizeof(float);
}

std::byte* ResidualStore::host_bytes() {
  if (backend_->device().kind == DeviceKind::kHost) return static_cast<std::byte*>(view_.pointer);
  staging_.resize(static_cast<std::size_t>(view_.bytes()));
  return staging_.data();
}

TensorView ResidualStore::begin(std::int64_t first, std::int64_t rows) {
  first_ = first;
  view_ = TensorView(rows_.as<std::byte>() + (file_ ? 0 : offset_of(first)), DType::kF32, {rows, width_},
                     rows_.device());
  return view_;
}

TensorView ResidualStore::load(std::int64_t first, std::int64_t rows) {
  if (first == first_ && view_.rows() == rows) return view_;
  begin(first, rows);
  if (!file_) return view_;
  std::byte* const host = host_bytes();
  file_->read_at(offset_of(first), {host, static_cast<std::size_t>(view_.bytes())});
  if (host != view_.pointer) backend_->upload(view_, host);
  return view_;
}

void ResidualStore::save() {
  if (!file_) return;
  std::byte* const host = host_bytes();
  if (host != view_.pointer) backend_->download(host, view_);
  file_->write_at(offset_of(first_), {host, static_cast<std::size_t>(view_.bytes())});
}

namespace {

class HostMemory final : public File {
 public:
  explicit HostMemory(std::uint64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {}
  std::uint64_t size() override { return bytes_.size(); }
  FileStamp stamp() override { return {}; }
  void read_at(std::uint64_t offset, std::span<std::byte> into) override {
    std::memcpy(into.data(), at(offset, into.size()), into.size());
  }
  void write_at(std::uint64_t offset, std::span<const std::byte> from) override {
    std::memcpy(at(offset, from.size()), from.data(), from.size());
  }
  void reserve(std::uint64_t) override {}
  void sync() override {}
  std::unique_ptr<Mapping> map() override {
    fail(ErrorKind::kInternal, "what is held in memory is not mapped");
  }

 private:
  std::byte* at(std::uint64_t offset, std::size_t count) {
    if (offset + count > bytes_.size())
      fail(ErrorKind::kInternal, "{} bytes at {} end behind the {} that are held", count, offset,
           bytes_.size());
    return bytes_.data() + offset;
  }
  std::vector<std::byte> bytes_;
};

}  // namespace

std::unique_ptr<File> hold_on_the_host(std::uint64_t bytes) { return std::make_unique<HostMemory>(bytes); }

std::unique_ptr<File> open_nameless(Io& io, const Path& directory, std::uint64_t bytes) {
  std::unique_ptr<File> file = io.create_nameless(directory);
  file->reserve(bytes);
  return file;
}

}  // namespace llmq
