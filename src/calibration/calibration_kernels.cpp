#include "calibration/calibration_kernels.h"

#include <algorithm>
#include <utility>

namespace llmq {
namespace {

bool is_alike(const KernelChoice& a, const KernelChoice& b) {
  return a.what == b.what && a.kernel == b.kernel && a.why == b.why;
}

// The choices of each device as one list.
std::vector<KernelChoice> joined_choices(std::span<const Backend* const> devices,
                                         const std::vector<std::vector<KernelChoice>>& of_each) {
  std::vector<KernelChoice> joined;
  for (std::size_t d = 0; d < devices.size(); ++d)
    for (const KernelChoice& choice : of_each[d]) {
      const bool by_all = std::all_of(of_each.begin(), of_each.end(), [&](const auto& others) {
        return std::any_of(others.begin(), others.end(),
                           [&](const KernelChoice& other) { return is_alike(other, choice); });
      });
      if (by_all && d > 0) continue;
      joined.push_back(choice);
      if (!by_all) joined.back().what += " on " + devices[d]->name();
    }
  return joined;
}

}  // namespace

CalibrationKernels::CalibrationKernels(std::vector<const Backend*> devices) : devices_(std::move(devices)) {
  for (const Backend* const device : devices_) before_.push_back(device->kernel_choices());
}

std::vector<KernelChoice> CalibrationKernels::chosen() const {
  std::vector<std::vector<KernelChoice>> of_each;
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    std::vector<KernelChoice>& choices = of_each.emplace_back(devices_[d]->kernel_choices());
    std::erase_if(choices, [&](const KernelChoice& choice) {
      return choice.asked != 0 &&
             std::any_of(before_[d].begin(), before_[d].end(), [&](const KernelChoice& other) {
               return is_alike(other, choice) && other.asked == choice.asked;
             });
    });
  }
  return joined_choices(devices_, of_each);
}

std::string own_products(std::span<const std::shared_ptr<Backend>> devices) {
  std::vector<const Backend*> all;
  std::vector<std::vector<KernelChoice>> of_each;
  for (const std::shared_ptr<Backend>& device : devices) {
    all.push_back(device.get());
    std::vector<KernelChoice>& choices = of_each.emplace_back(device->kernel_choices());
    std::erase_if(choices, [](const KernelChoice& choice) { return !choice.is_second_best(); });
  }
  std::string text;
  for (const KernelChoice& choice : joined_choices(all, of_each))
    text += (text.empty() ? "" : "; ") + choice.sentence();
  return text;
}

Json kernels_json(std::span<const KernelChoice> kernels) {
  Json list = Json::array();
  for (const KernelChoice& choice : kernels)
    list.push_back(Json::object({{"what", Json(choice.what)},
                                 {"kernel", Json(choice.kernel)},
                                 {"why", choice.why.empty() ? Json() : Json(choice.why)}}));
  return list;
}

}  // namespace llmq
