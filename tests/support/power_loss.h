// What a disk holds after the power failed: a recording of every call that changes it, replayed up to any
// point, with what was not synced by then lost, or lost in part.
//
// The model is as harsh as POSIX allows: bytes last once their file is synced, and a name once its directory
// is; a rename is two changes of two directories, each on its own. (Journalling file systems promise more.)
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/counting_io.h"

namespace llmq::testing {

struct DiskEvent {
  std::string operation;
  Path a, b;
  std::uint64_t offset = 0;
  std::string bytes;
};

class RecordingIo final : public InterceptedIo {
 public:
  RecordingIo() : InterceptedIo(system_io()) {}
  const std::vector<DiskEvent>& events() const { return events_; }

  std::unique_ptr<File> create(const Path& path) override {
    auto file = InterceptedIo::create(path);
    add("create", path);
    return file;
  }
  void make_directory(const Path& path) override {
    for (Path prefix = path; !exists(prefix); prefix = prefix.parent_path()) missing_.push_back(prefix);
    InterceptedIo::make_directory(path);
    for (; !missing_.empty(); missing_.pop_back()) add("make_directory", missing_.back());
  }
  void rename(const Path& from, const Path& to) override {
    InterceptedIo::rename(from, to);
    add("rename", from, to);
  }
  bool exchange(const Path& a, const Path& b) override {
    const bool done = InterceptedIo::exchange(a, b);
    if (done) add("exchange", a, b);
    return done;
  }
  void make_link(const Path& target, const Path& link) override {
    InterceptedIo::make_link(target, link);
    add("make_link", link, target);
  }
  std::unique_ptr<NameLock> lock(const Path& path, std::string_view self, std::string& holder) override {
    auto held = InterceptedIo::lock(path, self, holder);
    if (held) add("create", path);
    return held;
  }
  void remove(const Path& path) override {
    const bool there = exists(path);
    InterceptedIo::remove(path);
    if (there) add("remove", path);
  }

 private:
  void add(std::string operation, Path a, Path b = {}) {
    const std::lock_guard turn(mutex_);
    events_.push_back({std::move(operation), std::move(a), std::move(b), 0, {}});
  }
  void before(const char* operation, const Path& path) override {
    if (std::string_view(operation) == "sync" || std::string_view(operation) == "sync_directory")
      add(operation, path);
  }
  void write(File& file, const Path& path, std::uint64_t offset, std::span<const std::byte> from) override {
    file.write_at(offset, from);
    events_.push_back(
        {"write", path, {}, offset, std::string(reinterpret_cast<const char*>(from.data()), from.size())});
  }
  void reserve(File& file, const Path& path, std::uint64_t bytes) override {
    file.reserve(bytes);
    events_.push_back({"reserve", path, {}, bytes, {}});
  }

  std::vector<DiskEvent> events_;
  std::vector<Path> missing_;
};

// A tree of files as the kernel sees it and as the disk holds it.
class SimulatedDisk {
 public:
  // Starts from what lies below `root` now, all of it durable.
  explicit SimulatedDisk(Path root) : root_(std::move(root)), top_(load(root_)) {}
  // Changes of one are not changes of the other.
  SimulatedDisk(const SimulatedDisk& other) : root_(other.root_), top_(copy(*other.top_)) {}

  void apply(const DiskEvent& event) {
    const std::string& op = event.operation;
    if (op == "create" || op == "make_directory") {
      parent(event.a).now[name(event.a)] =
          std::make_shared<Node>(Node{op == "make_directory", {}, {}, {}, {}, {}});
    } else if (op == "make_link") {
      auto node = std::make_shared<Node>();
      node->link = event.b;
      parent(event.a).now[name(event.a)] = node;
    } else if (op == "reserve") {
      Node& file = at(event.a);
      if (file.bytes.size() < event.offset) file.bytes.resize(event.offset);
    } else if (op == "write") {
      Node& file = at(event.a);
      if (file.bytes.size() < event.offset + event.bytes.size())
        file.bytes.resize(event.offset + event.bytes.size());
      file.bytes.replace(event.offset, event.bytes.size(), event.bytes);
    } else if (op == "sync") {
      at(event.a).synced = at(event.a).bytes;
    } else if (op == "sync_directory") {
      if (Node* directory = find(event.a)) directory->durable = directory->now;
    } else if (op == "remove") {
      parent(event.a).now.erase(name(event.a));
    } else if (op == "rename") {
      const auto node = parent(event.a).now.at(name(event.a));
      parent(event.a).now.erase(name(event.a));
      parent(event.b).now[name(event.b)] = node;
    } else if (op == "exchange") {
      std::swap(parent(event.a).now.at(name(event.a)), parent(event.b).now.at(name(event.b)));
    } else {
      throw std::logic_error("an event of no known kind: " + op);
    }
  }

  // Writes what the power left below `to`. Without a seed only what was synced is there; with one, each
  // directory and each file is as the kernel saw it or as it was synced, a file also in between: the first of
  // its new bytes.
  void leave(const Path& to, const unsigned* seed = nullptr) const {
    std::mt19937 random(seed == nullptr ? 0 : *seed);
    write(*top_, to, seed == nullptr ? nullptr : &random);
  }

 private:
  struct Node {
    bool directory = false;
    std::map<std::string, std::shared_ptr<Node>> now, durable;
    std::string bytes, synced;
    Path link;
  };

  static std::string name(const Path& path) { return path.filename().string(); }

  static std::shared_ptr<Node> load(const Path& path) {
    auto node = std::make_shared<Node>();
    if (std::filesystem::is_symlink(path)) {
      node->link = std::filesystem::read_symlink(path);
    } else if (std::filesystem::is_directory(path)) {
      node->directory = true;
      for (const auto& entry : std::filesystem::directory_iterator(path))
        node->now[entry.path().filename().string()] = load(entry.path());
      node->durable = node->now;
    } else {
      node->bytes = read_text(system_io(), path);
      node->synced = node->bytes;
    }
    return node;
  }

  static std::shared_ptr<Node> copy(const Node& node) {  // of a disk on which everything is durable
    auto twin = std::make_shared<Node>(node);
    for (auto& [name, child] : twin->now) child = copy(*child);
    twin->durable = twin->now;
    return twin;
  }

  Node* find(const Path& path) {
    const Path inside = path.lexically_relative(root_);
    Node* node = top_.get();
    if (inside == ".") return node;
    if (inside.empty() || *inside.begin() == "..") return nullptr;  // above: not ours
    for (const Path& part : inside) {
      const auto next = node->now.find(part.string());
      if (next == node->now.end()) return nullptr;
      node = next->second.get();
    }
    return node;
  }
  Node& at(const Path& path) {
    Node* node = find(path);
    if (node == nullptr) throw std::logic_error(path.string() + " is not on the simulated disk");
    return *node;
  }
  Node& parent(const Path& path) { return at(path.parent_path()); }

  static void write(const Node& node, const Path& to, std::mt19937* random) {
    const auto heads = [&] { return random != nullptr && (*random)() % 2 == 0; };
    if (!node.link.empty()) {
      std::filesystem::create_symlink(node.link, to);
    } else if (node.directory) {
      std::filesystem::create_directory(to);
      for (const auto& [name, child] : heads() ? node.now : node.durable) write(*child, to / name, random);
    } else {
      std::string bytes = heads() ? node.bytes : node.synced;
      if (heads() && node.bytes.size() >= bytes.size() && !node.bytes.empty()) {
        const std::size_t some = (*random)() % node.bytes.size();
        bytes.replace(0, std::min(some, bytes.size()), node.bytes.substr(0, some));
      }
      std::ofstream(to, std::ios::binary) << bytes;
    }
  }

  Path root_;
  std::shared_ptr<Node> top_;
};

}  // namespace llmq::testing
