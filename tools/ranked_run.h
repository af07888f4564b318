// --ranks: a command as one process runs it, or as one of several that a launcher started
// (docs/adr/0030-ranks.md).
#pragma once
#include <functional>

#include "tools/command.h"

namespace llmq::tools {

// run(), with session.ranks where several processes share it; the exit code. Without a launcher, with one of
// one process, with --ranks none and of a command that only prints it is run() and nothing else.
//
// Of several, rank 0 tells what all found before they began, by `tell`, which returns the exit code; the
// others leave with its code and no word. What goes wrong on one rank later is told there, and ends all of
// them. Error(kUsage) for a command that does not share its work, a plug-in that is missing or sees other
// processes than the launcher, and --ranks mpi without a launcher: of rank 0 at once, of others after half a
// minute in which nothing ended them.
int run_in_ranks(Session& session, const std::string& command, const std::function<int()>& run,
                 const std::function<int(std::exception_ptr)>& tell);

}  // namespace llmq::tools
