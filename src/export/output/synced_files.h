// Small files of an output beside its shards, each on the disk when the function returns. What an interrupted
// run left under the name is replaced.
#pragma once
#include <string_view>

#include "base/io.h"

namespace llmq {

void write_synced(Io& io, const Path& file, std::string_view text);
// Byte for byte, 4 MiB at a time.
void copy_synced(Io& io, const Path& from, const Path& to);

}  // namespace llmq
