#include "io/codes/refuse_scale.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace llmq {

void refuse_scale(float scale, const std::string& place, const std::string& wanted, const std::string& file,
                  const std::string& tensor) {
  const std::string number = std::isnan(scale)   ? "NaN"
                             : std::isinf(scale) ? scale > 0 ? "infinity" : "-infinity"
                                                 : fmt::format("{}", scale);
  fail(ErrorKind::kBadInput, {fmt::format("has the scale {} for {}, and {}", number, place, wanted), file,
                              tensor, "was the download cut or changed?"});
}

}  // namespace llmq
