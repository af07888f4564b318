// Ranks of MPI, by a plug-in that was built for the site's MPI (ranks/mpi/plugin.cpp); the program links
// none.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/io.h"
#include "ranks/mpi_table.h"
#include "ranks/ranks.h"

namespace llmq {

// Where the plug-in is looked for: at $LLMQ_MPI_PLUGIN, where that is set, else in the lib/llmq beside the
// folder of `program`.
std::vector<std::string> plugin_places(const Path& program);

struct MpiPlugin {
  const LlmqMpiTable* table = nullptr;
  std::string path;     // the file that was opened
  std::string missing;  // why there is none
};
// Opens it; MPI does not begin yet. Error(kBadInput) for a file that is no plug-in of this version.
MpiPlugin open_mpi_plugin(const std::vector<std::string>& places);
// The same of what an opened file offers.
MpiPlugin taken_plugin(const LlmqMpiTable& table, const std::string& path);

// "Open MPI v4.1.4": the first clause of what its MPI says of itself; before it begins, too.
std::string library_text(const LlmqMpiTable& table);

class MpiRanks final : public Ranks {
 public:
  // Begins MPI, once in a process. `on_wait` is called while a verb waits and may throw to end it; then
  // nothing but abandon() may follow. No call of MPI gets more than `most` bytes. The table outlives the
  // object. Verbs throw Error(kDevice) with MPI's words.
  MpiRanks(const LlmqMpiTable& table, std::function<void()> on_wait, std::size_t most = kMost);
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum_to(int owner, std::span<std::int64_t> values) override;
  void broadcast(int from, std::span<std::byte> bytes) override;
  std::vector<RankBytes> gather(int owner, std::span<const std::byte> bytes) override;
  void barrier() override;
  std::uint64_t joining_bytes() const override { return joining_bytes_; }
  // Of the process, whose resident set was so large before the plug-in was opened.
  void count_joining(std::uint64_t resident_before);

  void finish();           // of all ranks: MPI has ended, and no verb may follow
  void abandon(int code);  // ends every rank of the job; returns only where MPI fails at that, too

  static constexpr std::size_t kMost = std::size_t{1} << 30;

 private:
  static int ask(void* self);
  void check(int outcome);
  template <class Element, class Call>
  void in_pieces(std::span<Element> all, const Call& call);

  const LlmqMpiTable& table_;
  std::function<void()> on_wait_;
  std::exception_ptr stopped_by_;
  std::size_t most_;
  int rank_ = 0, size_ = 1;
  std::uint64_t joining_bytes_ = 0;
};

}  // namespace llmq
