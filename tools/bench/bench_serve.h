// llmq bench --suite serve: a fixed mix of requests to this program's own server, over the loopback
// interface, or to a server elsewhere.
#pragma once
#include "tools/bench/load_options.h"

namespace llmq::tools {

// 0; 3 when requests failed, after the figures of the others.
int bench_serve(const ServeBench& options, const GlobalOptions& globals);

}  // namespace llmq::tools
