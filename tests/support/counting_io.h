// An Io that counts what is asked of it, by operation: how often a file is opened, what is synced before it
// is renamed.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/io.h"

namespace llmq::testing {

// Calls `before(operation, path)` ahead of everything that reaches the wrapped Io. The base of CountingIo and
// FailingIo. Threads take turns: what one does to a file is over before another begins.
class InterceptedIo : public Io {
 public:
  explicit InterceptedIo(Io& inner) : inner_(inner) {}

  std::unique_ptr<File> open(const Path& path) override {
    tell("open", path);
    return std::make_unique<InterceptedFile>(*this, inner_.open(path), path);
  }
  std::unique_ptr<File> create(const Path& path) override {
    tell("create", path);
    return std::make_unique<InterceptedFile>(*this, inner_.create(path), path);
  }
  std::unique_ptr<File> create_nameless(const Path& directory) override {
    tell("create_nameless", directory);
    return std::make_unique<InterceptedFile>(*this, inner_.create_nameless(directory), directory);
  }
  std::unique_ptr<File> open_to_write(const Path& path) override {
    tell("open_to_write", path);
    return std::make_unique<InterceptedFile>(*this, inner_.open_to_write(path), path);
  }
  bool exists(const Path& path) override { return inner_.exists(path); }
  bool is_directory(const Path& path) override { return inner_.is_directory(path); }
  FileStamp stamp(const Path& path) override { return inner_.stamp(path); }
  std::vector<std::string> list(const Path& directory) override {
    tell("list", directory);
    return inner_.list(directory);
  }
  void make_directory(const Path& path) override {
    tell("make_directory", path);
    inner_.make_directory(path);
  }
  void rename(const Path& from, const Path& to) override {
    tell("rename", to);
    inner_.rename(from, to);
  }
  bool exchange(const Path& a, const Path& b) override {
    tell("exchange", b);
    return inner_.exchange(a, b);
  }
  void make_link(const Path& target, const Path& link) override {
    tell("make_link", link);
    inner_.make_link(target, link);
  }
  std::string read_link(const Path& link) override { return inner_.read_link(link); }
  std::unique_ptr<NameLock> lock(const Path& path, std::string_view self, std::string& holder) override {
    tell("lock", path);
    return inner_.lock(path, self, holder);
  }
  void remove(const Path& path) override {
    tell("remove", path);
    inner_.remove(path);
  }
  void sync_directory(const Path& directory) override {
    tell("sync_directory", directory);
    inner_.sync_directory(directory);
  }
  std::uint64_t free_bytes(const Path& directory) override { return inner_.free_bytes(directory); }
  IoCounters counters() const override { return inner_.counters(); }

 protected:
  virtual void before(const char* operation, const Path& path) = 0;
  virtual void write(File& file, const Path&, std::uint64_t offset, std::span<const std::byte> from) {
    file.write_at(offset, from);
  }
  virtual void reserve(File& file, const Path&, std::uint64_t bytes) { file.reserve(bytes); }
  // Bytes of `path` that there seem to be, of `size` really there.
  virtual std::uint64_t visible_bytes(const Path&, std::uint64_t size) const { return size; }

  std::recursive_mutex mutex_;

 private:
  void tell(const char* operation, const Path& path) {
    const std::lock_guard turn(mutex_);
    before(operation, path);
  }

  class CutMapping final : public Mapping {
   public:
    CutMapping(std::unique_ptr<Mapping> inner, std::uint64_t size)
        : inner_(std::move(inner)), size_(static_cast<std::size_t>(size)) {}
    std::span<const std::byte> bytes() const override {
      return inner_->bytes().first(std::min(size_, inner_->bytes().size()));
    }
    void release(std::uint64_t offset, std::uint64_t size) const override { inner_->release(offset, size); }
    void read_ahead(std::uint64_t offset, std::uint64_t size) const override {
      inner_->read_ahead(offset, size);
    }
    bool in_memory() const override { return inner_->in_memory(); }
    void take(std::uint64_t offset, std::uint64_t size) const override { inner_->take(offset, size); }
    void give_back(std::uint64_t offset, std::uint64_t size) const noexcept override {
      inner_->give_back(offset, size);
    }

   private:
    std::unique_ptr<Mapping> inner_;
    std::size_t size_;
  };

  class InterceptedFile final : public File {
   public:
    InterceptedFile(InterceptedIo& io, std::unique_ptr<File> inner, Path path)
        : io_(io), inner_(std::move(inner)), path_(std::move(path)) {}
    std::uint64_t size() override { return io_.visible_bytes(path_, inner_->size()); }
    FileStamp stamp() override { return inner_->stamp(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) override {
      const std::lock_guard turn(io_.mutex_);
      io_.before("read", path_);
      if (offset > size() || into.size() > size() - offset)
        fail(ErrorKind::kIo, {fmt::format("ends at byte {}", size()), path_.string(), {}, {}});
      inner_->read_at(offset, into);
    }
    void write_at(std::uint64_t offset, std::span<const std::byte> from) override {
      const std::lock_guard turn(io_.mutex_);
      io_.before("write", path_);
      io_.write(*inner_, path_, offset, from);
    }
    void reserve(std::uint64_t bytes) override {
      const std::lock_guard turn(io_.mutex_);
      io_.before("reserve", path_);
      io_.reserve(*inner_, path_, bytes);
    }
    void sync() override {
      const std::lock_guard turn(io_.mutex_);
      io_.before("sync", path_);
      inner_->sync();
    }
    std::unique_ptr<Mapping> map() override {
      io_.tell("map", path_);
      return std::make_unique<CutMapping>(inner_->map(), size());
    }

   private:
    InterceptedIo& io_;
    std::unique_ptr<File> inner_;
    Path path_;
  };

  Io& inner_;
};

class CountingIo final : public InterceptedIo {
 public:
  explicit CountingIo(Io& inner = system_io()) : InterceptedIo(inner) {}

  // Every call in order: "open a.txt", "sync b.json", with the last part of the path.
  const std::vector<std::string>& calls() const { return calls_; }
  int count(const std::string& operation) const {
    return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), [&](const std::string& call) {
      return call.starts_with(operation + " ");
    }));
  }

 private:
  void before(const char* operation, const Path& path) override {
    calls_.push_back(std::string(operation) + " " + path.filename().string());
  }
  std::vector<std::string> calls_;
};

}  // namespace llmq::testing
