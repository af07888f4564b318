#include "ranks/mpi_ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "base/disk/shared_library.h"
#include "base/error.h"
#include "base/resident_memory.h"

namespace llmq {

std::vector<std::string> plugin_places(const Path& program) {
  if (const char* chosen = std::getenv("LLMQ_MPI_PLUGIN"); chosen != nullptr && *chosen != '\0')
    return {chosen};
  return {(program.parent_path().parent_path() / "lib" / "llmq" / "libllmq_mpi.so").string()};
}

MpiPlugin taken_plugin(const LlmqMpiTable& table, const std::string& path) {
  if (table.version != kMpiTableVersion)
    fail(ErrorKind::kBadInput, {fmt::format("it is a plug-in of version {}, and this program takes {}",
                                            table.version, kMpiTableVersion),
                                path,
                                {},
                                "build the plug-in from the program's own source"});
  return {&table, path, {}};
}

MpiPlugin open_mpi_plugin(const std::vector<std::string>& places) {
  const SharedLibrary opened = open_shared_library(places);
  if (opened.handle == nullptr) return {nullptr, {}, opened.missing};
  const auto table = reinterpret_cast<LlmqMpiTableFunction>(dlsym(opened.handle, kMpiTableSymbol));
  if (table == nullptr)
    fail(ErrorKind::kBadInput, {fmt::format("it has no {}", kMpiTableSymbol),
                                opened.path,
                                {},
                                "name the libllmq_mpi.so that was built with this program"});
  return taken_plugin(*table(), opened.path);
}

std::string library_text(const LlmqMpiTable& table) {
  const std::string said = table.library();  // some say a page
  std::string first = said.substr(0, said.find_first_of(",\n"));
  std::replace(first.begin(), first.end(), '\t', ' ');
  return first;
}

MpiRanks::MpiRanks(const LlmqMpiTable& table, std::function<void()> on_wait, std::size_t most)
    : table_(table), on_wait_(std::move(on_wait)), most_(most) {
  check(table_.begin(&MpiRanks::ask, this, &rank_, &size_));
}

void MpiRanks::count_joining(std::uint64_t resident_before) {
  barrier();  // libraries take most of it when ranks first meet
  const std::uint64_t now = resident_bytes();
  joining_bytes_ = now > resident_before ? now - resident_before : 0;
}

// An exception must not pass through MPI: it is kept until the plug-in has returned.
int MpiRanks::ask(void* self) {
  auto& ranks = *static_cast<MpiRanks*>(self);
  try {
    ranks.on_wait_();
    return 0;
  } catch (...) {
    ranks.stopped_by_ = std::current_exception();
    return 1;
  }
}

void MpiRanks::check(int outcome) {
  if (outcome == kMpiDone) return;
  if (outcome == kMpiStopped && stopped_by_) std::rethrow_exception(stopped_by_);
  fail(ErrorKind::kDevice, {fmt::format("MPI failed on rank {} of {}: {}", rank_, size_, table_.failure()),
                            {},
                            "--ranks",
                            "see whether the other ranks' machines and the network are up"});
}

template <class Element, class Call>
void MpiRanks::in_pieces(std::span<Element> all, const Call& call) {
  const std::size_t piece = std::max<std::size_t>(1, most_ / sizeof(Element));
  for (std::size_t from = 0; from < all.size(); from += piece)
    check(call(all.subspan(from, std::min(piece, all.size() - from))));
}

void MpiRanks::sum_to(int owner, std::span<std::int64_t> values) {
  if (rank_ != owner) count(values.size_bytes());
  in_pieces(values,
            [&](std::span<std::int64_t> part) { return table_.sum_to(owner, part.data(), part.size()); });
}

void MpiRanks::broadcast(int from, std::span<std::byte> bytes) {
  if (rank_ != from) count(bytes.size());
  in_pieces(bytes,
            [&](std::span<std::byte> part) { return table_.broadcast(from, part.data(), part.size()); });
}

std::vector<RankBytes> MpiRanks::gather(int owner, std::span<const std::byte> bytes) {
  std::uint64_t size = bytes.size();
  if (rank_ != owner) {
    count(bytes.size());
    check(table_.send(owner, &size, sizeof(size)));
    in_pieces(bytes,
              [&](std::span<const std::byte> part) { return table_.send(owner, part.data(), part.size()); });
    return {};
  }
  std::vector<RankBytes> all(static_cast<std::size_t>(size_));
  for (int other = 0; other < size_; ++other) {
    RankBytes& theirs = all[static_cast<std::size_t>(other)];
    if (other == rank_) {
      theirs.assign(bytes.begin(), bytes.end());
      continue;
    }
    check(table_.receive(other, &size, sizeof(size)));
    theirs.resize(size);
    in_pieces(std::span(theirs),
              [&](std::span<std::byte> part) { return table_.receive(other, part.data(), part.size()); });
  }
  return all;
}

void MpiRanks::barrier() { check(table_.barrier()); }

void MpiRanks::finish() { check(table_.end()); }

void MpiRanks::abandon(int code) { table_.abandon(code); }

}  // namespace llmq
