// Files of one node on their way to others: in pieces, hashed as they come.
//
// Each is of all ranks. Cost: a file's bytes over the network once for gathering, once for each rank for
// spreading; one reading at the sender and one writing at a receiver; a piece of memory at each.
#pragma once
#include <string>

#include "base/io.h"
#include "ranks/ranks.h"

namespace llmq {

// The file of rank `from` into that of rank 0, which is there at its size, and is synced. `sha256`: what
// rank `from` found in its file before, at rank 0. Error(kIo) there where other bytes came.
void gather_file(Ranks& ranks, Io& io, int from, const Path& file, const std::string& sha256);

// The same into the file of every rank that `takes` it, which is there at its size. Error(kIo) at a rank that
// got other bytes than were sent.
void spread_file(Ranks& ranks, Io& io, int from, const Path& file, bool takes);

}  // namespace llmq
