// Eight GPUs that compute nothing, for a torch that was built without CUDA.
//
// Loaded before torch (LD_PRELOAD), so that torch finds these functions and not its own.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

static constexpr DeviceIndex COUNT = 8;
static thread_local DeviceIndex current = 0;

// Streams are always the default stream of a device, and events have always happened.
struct Guard : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  Device exchangeDevice(Device next) const override {
    const Device before = getDevice();
    uncheckedSetDevice(next);
    return before;
  }
  void setDevice(Device next) const override { uncheckedSetDevice(next); }
  void uncheckedSetDevice(Device next) const noexcept override {
    if (next.has_index()) current = next.index();
  }
  Stream getStream(Device of) const noexcept override {
    return Stream(Stream::DEFAULT, of.has_index() ? of : getDevice());
  }
  Stream getNewStream(Device of, int) const override { return getStream(of); }
  Stream exchangeStream(Stream next) const noexcept override { return next; }
  DeviceIndex deviceCount() const noexcept override { return COUNT; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag)
      const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

static const bool enrolled =
    (c10::impl::registerDeviceGuard(DeviceType::CUDA, new Guard()), true);

struct Hooks : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return COUNT; }
  DeviceIndex getCurrentDevice() const override { return current; }
};

namespace at::detail {
const CUDAHooksInterface& getCUDAHooks() {
  static const Hooks hooks;
  return hooks;
}
}  // namespace at::detail

namespace at::accelerator {
std::optional<DeviceType> getAccelerator(bool) { return DeviceType::CUDA; }
}  // namespace at::accelerator
