#include "tools/ranked_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/io.h"
#include "base/log.h"
#include "base/resident_memory.h"
#include "ranks/agreement.h"
#include "ranks/launcher.h"
#include "ranks/mpi_ranks.h"
#include "tools/interrupt.h"

namespace llmq::tools {
namespace {

// What rank 0 says.
struct SaidElsewhere {
  ErrorDetail detail;
};

// Launchers end a job with the first process that fails, so the others let rank 0 speak first. Whoever is
// still there then has no rank 0 beside it, and says it itself.
constexpr std::chrono::seconds kWaitForTheFirst{30};

// What every rank finds alike: rank 0 says it.
[[noreturn]] void refuse_once(int rank, ErrorDetail detail) {
  if (rank != 0) throw SaidElsewhere{std::move(detail)};
  throw Error(ErrorKind::kUsage, std::move(detail));
}

std::string started(const Launcher& launcher) {
  return launcher.size < 2 ? launcher.name + " started this process"
                           : fmt::format("{} started {} processes", launcher.name, launcher.size);
}

MpiPlugin opened_plugin(const Launcher& launcher) {
  MpiPlugin plugin;
  try {
    plugin = open_mpi_plugin(plugin_places(own_program()));
  } catch (const Error& error) {
    refuse_once(launcher.rank, error.detail());
  }
  if (plugin.table == nullptr)
    refuse_once(launcher.rank,
                {fmt::format("{}, and the plug-in by which they would share the work cannot be opened: {}",
                             started(launcher), plugin.missing),
                 {},
                 "--ranks",
                 "build it (cmake -DLLMQ_MPI=ON), name it in LLMQ_MPI_PLUGIN, or add --ranks none, by which "
                 "each process works alone"});
  return plugin;
}

// Some of them end the process in MPI_Init where it was another's launcher that started it, in words of
// their own.
bool cannot_be_of(const Launcher& launcher, const std::string& library) {
  constexpr const char* kOthers[] = {"MPICH", "MVAPICH", "Intel(R) MPI"};
  return launcher.name == kOpenMpiLauncher &&
         std::any_of(std::begin(kOthers), std::end(kOthers),
                     [&](auto* other) { return library.find(other) != std::string::npos; });
}

[[noreturn]] void refuse_another_mpi(const Launcher& launcher, const MpiPlugin& plugin,
                                     const std::string& library) {
  refuse_once(launcher.rank,
              {fmt::format("{}, and this plug-in was built for another MPI than this launcher's: {}",
                           started(launcher), library),
               plugin.path,
               {},
               fmt::format("build the plug-in by the launcher's own MPI and name it in LLMQ_MPI_PLUGIN, or "
                           "add --ranks none where {} is of another launcher, further out",
                           launcher.variable)});
}

// Which rank it was, and where; what ranks say arrives in one place.
std::exception_ptr with_its_rank(const Error& error, const Ranks& ranks) {
  ErrorDetail detail = error.detail();
  detail.message = own_rank_text(ranks) + ": " + detail.message;
  return std::make_exception_ptr(Error(error.kind(), detail));
}

// The exit code of what ended this rank's work alone, told.
int told_of_a_rank(const Ranks& ranks, const std::function<int(std::exception_ptr)>& tell) {
  try {
    throw;
  } catch (const Interrupted& interrupted) {
    if (ranks.rank() == 0)
      Log::get().error(
          fmt::format("rank 0 of {} was told to end (signal {}), as launchers do where another "
                      "rank has ended; run the same command again",
                      ranks.size(), interrupted.signal));
    return 128 + interrupted.signal;
  } catch (const std::exception&) {
    return tell(with_its_rank(as_error(std::current_exception()), ranks));
  }
}

// MPI's end after what was said; where that fails, the end of all.
void finish_or_abandon(MpiRanks& ranks, int code) {
  std::fflush(nullptr);
  try {
    ranks.finish();
  } catch (...) {
    ranks.abandon(code);
  }
}

int run_shared(Session& session, const Launcher& launcher, const std::function<int()>& run,
               const std::function<int(std::exception_ptr)>& tell) {
  const std::uint64_t resident_before = resident_bytes();
  const MpiPlugin plugin = opened_plugin(launcher);
  const std::string library = library_text(*plugin.table);
  if (cannot_be_of(launcher, library)) refuse_another_mpi(launcher, plugin, library);
  MpiRanks ranks(*plugin.table, throw_if_interrupted);
  if (launcher.size != 0 && ranks.size() != launcher.size) {
    try {
      ranks.finish();
    } catch (const Error&) {  // the sentence that follows says more
    }
    refuse_another_mpi(launcher, plugin,
                       fmt::format("{}, which sees {}, and {} says {}", library, ranks.size(),
                                   launcher.variable, launcher.size));
  }
  if (ranks.rank() != 0) {
    Log::get().set_verbosity(Verbosity::kQuiet);
    session.globals.trace_file.clear();
  }
  session.ranks = &ranks;
  try {
    ranks.count_joining(resident_before);
    const int code = run();
    std::fflush(nullptr);  // before others end, and with them the job
    ranks.finish();
    return code;
  } catch (const RanksRefused& refused) {
    const int code = exit_code(refused.kind());
    if (ranks.rank() == 0) tell(std::current_exception());
    finish_or_abandon(ranks, code);
    return code;
  } catch (...) {
    const int code = told_of_a_rank(ranks, tell);
    std::fflush(nullptr);
    ranks.abandon(code);
    std::_Exit(code);
  }
}

}  // namespace

int run_in_ranks(Session& session, const std::string& command, const std::function<int()>& run,
                 const std::function<int(std::exception_ptr)>& tell) {
  const std::string& asked = session.globals.ranks;
  const std::optional<Launcher> launcher = seen_launcher();
  if (asked == "mpi" && !launcher)
    fail(ErrorKind::kUsage,
         {"no launcher started this process",
          {},
          "--ranks",
          "start it by one, as in mpirun -n 4 llmq eval-ppl MODEL, or leave the flag out"});
  if (asked == "none" || !launcher || (asked == "auto" && launcher->size == 1)) return run();
  if (!session.shares_work && asked == "auto" && (session.only_prints || launcher->size == 0))
    return run();  // what spoils nothing, and what is perhaps the only one
  try {
    if (!session.shares_work)
      refuse_once(launcher->rank,
                  {fmt::format("{}, and llmq {} does not share its work: each would do all of it",
                               started(*launcher), command),
                   {},
                   "--ranks",
                   "start one process; several can share llmq eval-ppl, convert, merge and quantize"});
    return run_shared(session, *launcher, run, tell);
  } catch (const SaidElsewhere& said) {
    std::this_thread::sleep_for(kWaitForTheFirst);
    throw Error(ErrorKind::kUsage, said.detail);
  }
}

}  // namespace llmq::tools
